//! Commands of the program: a file for each command or group, and files that several of them share.
//!
//! The shared files have arguments, files that are written whole and names that shells complete. `output` and `terminal`
//! use none of them.

pub(crate) mod artifact;
pub(crate) mod audit;
pub(crate) mod collect;
pub(crate) mod command_args;
pub(crate) mod command_group;
pub(crate) mod complete;
pub(crate) mod connection_args;
pub(crate) mod context;
pub(crate) mod context_file;
pub(crate) mod copy;
pub(crate) mod exec;
pub(crate) mod exec_output;
pub(crate) mod execs;
pub(crate) mod files;
pub(crate) mod health;
pub(crate) mod identity;
pub(crate) mod image;
pub(crate) mod input_arg;
pub(crate) mod man_pages;
pub(crate) mod mcp;
pub(crate) mod partial_file;
pub(crate) mod remove;
pub(crate) mod run;
pub(crate) mod server;
pub(crate) mod skill;
pub(crate) mod stage;
pub(crate) mod stdin;
pub(crate) mod tenant;
pub(crate) mod terminal_args;
pub(crate) mod token;
pub(crate) mod tool;
pub(crate) mod version;
pub(crate) mod workspace;
pub(crate) mod workspace_limit_args;

//! skilld: the daemon that runs Agent Skills in warm, locked-down containers.
//!
//! Modules in reading order, each of which may use those below it:
//!
//! | module | owns |
//! |---|---|
//! | [`server`] | listeners, health, reflection, the order of start and stop |
//! | [`rpc`] | one file per service: decode, call, encode; all request validation in `rpc/convert.rs` |
//! | [`collect`] | collected files as artifacts, also when an exec ends |
//! | [`inputs`] | files by reference, from wherever they are into a workspace |
//! | [`workspace`] | the slot's life: state table, one task per slot, record on disk, registry of names |
//! | [`exec`] | what a command gets: argv, environment, working directory, effective limits |
//! | [`paths`] | the lexical rules for paths inside a workspace |
//! | [`skills`] | roots, front matter, the content-addressed store, staging into a slot |
//! | [`fetch`] | the only way to get something by URL |
//! | [`artifacts`] | named bytes with versions, in a directory or a bucket |
//! | [`pool`] | warm slots, refill on claim, the bounded queue |
//! | [`guest`] | the connection to one guest: socket, handshake, channel |
//! | [`engine`] | what makes containers: Docker, or a fake for tests |
//! | [`config`], [`error`], [`fault`], `mime`, [`shutdown`], `similar`, [`telemetry`] | leaves that everything uses |
//! | `fuzz` | for tests: hostile bytes for what comes from outside |

pub mod artifacts;
mod beneath;
pub mod collect;
pub mod config;
pub mod engine;
pub mod error;
pub mod exec;
pub mod fault;
pub mod fetch;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod guest;
pub mod inputs;
mod mime;
pub mod paths;
pub mod pool;
pub mod rpc;
pub mod server;
pub mod shutdown;
mod similar;
pub mod skills;
pub mod telemetry;
pub mod workspace;

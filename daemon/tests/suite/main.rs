//! Tests of the whole daemon in this process, with the fake engine, whose guests are real guest processes.
//!
//! `server` starts a daemon, `workspace_mount` lets commands find their workspace, `collector`
//! receives traces; every other module tests one part.

mod access;
mod artifacts;
mod collector;
mod collects;
mod config;
mod connections;
mod discovery;
mod doctor;
mod execs;
mod files;
mod front;
mod frozen_guests;
mod inputs;
mod internal_pool;
mod json_logs;
mod limits;
mod pool;
mod preconditions;
mod problems;
mod publish;
mod reconcile;
mod resource_names;
mod server;
mod skill_content;
mod skill_material;
mod skills;
mod state_disk;
mod traces;
mod whole_runs;
mod workspace_mount;
mod written_files;

//! Promises of skilld, tested end to end: a real daemon and real Docker, through the client. One module per topic.

#![expect(
    clippy::panic_in_result_fn,
    clippy::indexing_slicing,
    reason = "an assertion, and a JSON value without the key, are how a test fails"
)]

mod artifacts;
mod badinput;
mod collects;
mod conformance;
mod demo;
mod disks;
mod doctor;
mod environments;
mod exec_cli;
mod execs;
mod files;
mod hostile;
mod image_env;
mod images;
mod inputs;
mod kills;
mod limits;
mod plugin_files;
mod pools;
mod preflight;
mod prompts;
#[path = "../../client/skillctl/tests/skillctl/pty.rs"]
mod pty;
mod publishing;
mod refusals;
mod remote;
mod restaging;
mod results;
mod samples;
mod scripts;
mod servers;
mod service_reports;
mod skills;
mod stdin;
mod streams;
mod tenants;
mod terminal_cli;
mod terminals;
mod tools_agent_zero;
mod tools_sherma;
mod tools_trpc;
mod trees;
mod workspace_limits;
mod workspaces;
mod writable_skills;

//! Promises of skilld, tested end to end: a real daemon and real Docker, through the client. One module per topic.
//!
//! Docker: each module says what it proves that only Docker, the kernel in a container or the installed programs can
//! refuse. What the in-process suites prove with the whole server and a real guest process is not proved again here.

mod artifacts;
mod collects;
mod conformance;
mod demo;
mod disks;
mod doctor;
mod environments;
mod execs;
mod files;
mod fonts;
mod hostile;
mod image_env;
mod images;
mod inheritance;
mod inputs;
mod limits;
mod package_order;
mod plugin_files;
mod pools;
mod preflight;
mod publishing;
mod refusals;
mod restaging;
mod results;
mod samples;
mod scripts;
mod servers;
mod service_reports;
mod stdin;
mod streams;
mod tenants;
mod terminal_cli;
mod terminals;
mod tools_agent_zero;
mod tools_paths;
mod tools_sherma;
mod tools_trpc;
mod trees;
mod workspace_limits;
mod workspaces;
mod writable_skills;

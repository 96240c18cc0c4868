//! The client library and `skillctl` against a small server in this process, over a real socket.

mod agent_zero;
mod collecting;
mod commands;
mod commands_json;
mod commands_json_all;
mod commands_line;
mod commands_mcp;
mod commands_mcp_http;
mod commands_tool;
mod conversation;
mod fake;
mod following;
mod giving_up;
mod help;
mod polling;
mod pty;
mod publishing;
mod resuming;
mod retrying;
mod schema;
mod servers;
mod sessions;
mod sherma;
mod staging;
mod tools_trpc;
mod writing;

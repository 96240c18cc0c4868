//! `skillctl` as a process against a fake daemon, over a real socket.

mod commands;
mod commands_json;
mod commands_json_all;
mod commands_line;
mod commands_mcp;
mod commands_mcp_http;
mod commands_tool;
mod following;
mod help;
mod polling;
mod pty;
mod publishing;
mod sessions;
mod stdio_servers;
mod writing;

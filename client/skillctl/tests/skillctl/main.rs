//! `skillctl` as a process against a fake daemon, over a real socket.

mod audit;
mod commands;
mod commands_json;
mod commands_json_all;
mod commands_line;
mod commands_mcp;
mod commands_mcp_http;
mod commands_mcp_resources;
mod commands_mcp_results;
mod commands_mcp_schemas;
mod commands_mcp_skills;
mod commands_tool;
mod connection;
mod copies;
mod followed_execs;
mod hangups;
mod health;
mod help;
mod polling;
mod publish_commands;
mod publishing;
mod sessions;
mod staged_skills;
mod stdin_writes;
mod stdio_servers;
mod tokens;

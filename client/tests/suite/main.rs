//! The client library and `skillctl` against a small server in this process, over a real socket.

mod agent_zero;
mod collecting;
mod commands;
mod conversation;
mod fake;
mod following;
mod help;
mod polling;
mod pty;
mod publishing;
mod resuming;
mod retrying;
mod servers;
mod sessions;
mod sherma;
mod staging;
mod tools_trpc;
mod writing;

//! The client library and `skillctl` against a small server in this process, over a real socket.

mod collecting;
mod commands;
mod fake;
mod following;
mod help;
mod resuming;
mod retrying;
mod staging;

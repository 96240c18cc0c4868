//! The client library and `skillctl` against a small server in this process, over a real socket.

mod collecting;
mod commands;
mod fake;
mod following;
mod help;
mod polling;
mod pty;
mod publishing;
mod resuming;
mod retrying;
mod sessions;
mod staging;
mod writing;

//! The guest as the daemon sees it: the real binary, in a directory of its own, over a Unix socket.

mod archives;
mod collects;
mod execs;
mod files;
mod outputs;
mod processes;
mod support;

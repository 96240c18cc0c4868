//! The guest as the daemon sees it: the real binary, in a directory of its own, over a Unix socket.

mod execs;
mod support;

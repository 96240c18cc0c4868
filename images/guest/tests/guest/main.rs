//! The guest as the daemon sees it: the real binary, in a directory of its own, over a Unix socket.

mod archives;
mod blocked_writes;
mod collects;
mod ends;
mod execs;
mod exit_codes;
mod files;
mod hostile;
mod kills;
mod outputs;
mod polls;
mod processes;
mod signals;
mod stdin;
mod streams;
mod support;
mod terminal_stdin;
mod terminals;
mod trees;
mod windows;

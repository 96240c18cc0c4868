//! What the end-to-end tests and benches share: a private daemon, real Docker, short ways to say what they do.
//!
//! The binaries are those of `make test`, found by SKILLD_BIN_DIR and SKILLD_GUEST.

pub mod binaries;
pub mod daemon;
pub mod docker;
pub mod exec;
pub mod files;
pub mod processes;
pub mod proxy;
pub mod refused;
pub mod usage;
pub mod wait;

pub use daemon::{Daemon, Options};
pub use refused::{refused, refused_status};

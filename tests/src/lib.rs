//! Helpers that the end-to-end tests and the benchmarks share: a private daemon, real Docker, short forms of calls.
//!
//! The binaries are those of `make test`, found by SKILLD_BIN_DIR and SKILLD_GUEST.

pub mod binaries;
pub mod daemon;
pub mod docker;
pub mod exec;
pub mod files;
pub mod large_package;
pub mod package_index;
pub mod processes;
pub mod proxy;
pub mod refusal;
pub mod results;
pub mod test_image;
pub mod usage;
pub mod wait;

pub use daemon::{Daemon, Options};
pub use refusal::{expect_refusal, expect_refusal_with};

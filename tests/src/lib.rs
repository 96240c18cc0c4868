//! Helpers that several suites share. The end-to-end tests and the benchmarks use a private daemon, real Docker and
//! short forms of calls; the tests of other crates use `authority`, `pty`, `task_dir` and `web_tokens`, which need no
//! Docker.
//!
//! The binaries are those that cargo built with the program that uses this library, unless SKILLD_BIN_DIR and
//! SKILLD_GUEST name others.

pub mod authority;
pub mod binaries;
pub mod daemon;
pub mod default_daemon;
pub mod disks;
pub mod docker;
pub mod exec;
pub mod files;
pub mod http_page;
pub mod large_package;
pub mod package_index;
pub mod processes;
pub mod proxy;
pub mod pty;
pub mod refusal;
pub mod shared_daemon;
pub mod task_dir;
pub mod test_image;
pub mod usage;
pub mod wait;
pub mod web_tokens;

pub use daemon::{Daemon, Options};
pub use default_daemon::DefaultDaemon;
pub use refusal::{expect_refusal, expect_refusal_with};
pub use shared_daemon::SharedDaemon;

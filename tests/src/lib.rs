//! Helpers that the end-to-end tests and the benchmarks share: a private daemon, real Docker, short forms of calls.
//!
//! The binaries are those that cargo built with the program that uses this library, unless SKILLD_BIN_DIR and
//! SKILLD_GUEST name others.

#[path = "../../daemon/tests/suite/access/authority.rs"]
#[expect(
    dead_code,
    reason = "the tests of the daemon revoke certificates and use expired ones"
)]
mod authority;
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
pub mod refusal;
pub mod shared_daemon;
pub mod test_image;
pub mod usage;
pub mod wait;
#[path = "../../daemon/tests/suite/access/web_tokens.rs"]
mod web_tokens;

pub use daemon::{Daemon, Options};
pub use default_daemon::DefaultDaemon;
pub use refusal::{expect_refusal, expect_refusal_with};
pub use shared_daemon::SharedDaemon;

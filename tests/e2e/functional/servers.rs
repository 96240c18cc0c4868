//! The installed server: what it reports about its engine, and its end in the middle of a boot.
//!
//! Docker: the report is about a real Docker, and a container that is just being created must not stay.

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use skilld_tests::{Daemon, DefaultDaemon, docker};

#[tokio::test]
async fn a_stop_in_the_middle_of_a_boot_leaves_no_container() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    // It serves, and its first container is being made.
    daemon.signal(Signal::SIGTERM)?;
    assert_eq!(daemon.wait().await?, Some(0));
    daemon.stop().await
}

#[tokio::test]
async fn the_engine_shown_is_the_one_that_runs_the_containers() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let engine = daemon.info.engine.clone().context("no engine")?;
    let name = docker::engine_name().await?;
    assert_eq!((engine.name.as_str(), engine.available), (name, true));
    assert!(engine.oci_runtimes.contains(&"runc".to_owned()));
    assert_eq!(daemon.info.pools, ["pools/default"]);
    assert_eq!(daemon.info.default_pool, "pools/default");
    let digest = &daemon.info.seccomp_digest;
    assert!(digest.starts_with("sha256:"), "{digest}");
    daemon.stop().await
}

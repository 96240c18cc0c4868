//! Warm-up: runs a program once before the container becomes a workspace. Then the kernel has cached its interpreter,
//! libraries and modules for the first command.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use skilld_proto::guest::v1 as wire;

use crate::error::Error;
use crate::supervisor::protocol::{LaunchSpec, SupervisorOrder, SupervisorReport};
use crate::supervisor::{Supervisor, SupervisorPool};

/// Default time limit of a warm-up.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Time limit for a killed tree to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// Runs a program to its end and discards its output. Fails only if a process of it is left.
pub(crate) async fn run_warm_up(
    supervisors: &SupervisorPool,
    request: wire::WarmUpRequest,
) -> Result<(), Error> {
    let timeout = super::positive_duration(request.timeout).unwrap_or(TIMEOUT_DEFAULT);
    let launch = LaunchSpec {
        cwd: "/".to_owned(),
        argv: request.argv,
        env: request.env,
        ..LaunchSpec::default()
    };
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|_| Error::NotReady)?;
    let supervisor = supervisors.take().map_err(|_| Error::NotReady)?;
    let stdio = [null.as_fd(), null.as_fd(), null.as_fd()];
    supervisor
        .start(&launch, stdio, supervisors.command_group().as_deref())
        .map_err(|_| Error::NotReady)?;
    let mut clean = tokio::time::timeout(timeout, wait_until_gone(&supervisor)).await;
    if clean.is_err() {
        supervisor.order(SupervisorOrder::Kill);
        clean = tokio::time::timeout(KILL_PATIENCE, wait_until_gone(&supervisor)).await;
    }
    if clean != Ok(true) {
        return Err(Error::NotReady);
    }
    supervisors.give_back(supervisor);
    Ok(())
}

/// Waits until no process of the program is left. Returns `false` if the supervisor is gone. Safe to cancel.
async fn wait_until_gone(supervisor: &Supervisor) -> bool {
    loop {
        match supervisor.report().await {
            Some(SupervisorReport::Started { .. } | SupervisorReport::Exited { .. }) => {}
            Some(SupervisorReport::Failed { .. } | SupervisorReport::Empty) => return true,
            None => return false,
        }
    }
}

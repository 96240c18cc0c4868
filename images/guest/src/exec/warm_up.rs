//! A program run once before the container becomes a workspace, so that the first command does not pay for
//! finding its interpreter, libraries and modules in a file system that nobody has looked at yet.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use skilld_proto::guest::v1 as wire;

use crate::error::Error;
use crate::guest::Guest;
use crate::supervisor::Supervisor;
use crate::supervisor::wire::{Launch, Order, Report};

/// What the daemon does not bound is bounded here.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// For a killed tree to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// Runs it to its end and throws its output away; how it ends does not matter, that nothing of it is left does.
pub(crate) async fn warm_up(guest: &Guest, request: wire::WarmUpRequest) -> Result<(), Error> {
    if !guest.workspace().is_empty() {
        return Err(Error::NotReady);
    }
    let timeout = super::positive(request.timeout).unwrap_or(TIMEOUT_DEFAULT);
    let launch = Launch {
        cwd: "/".to_owned(),
        argv: request.argv,
        env: request.env,
        ..Launch::default()
    };
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|_| Error::NotReady)?;
    let supervisor = guest.supervisors.take().map_err(|_| Error::NotReady)?;
    let stdio = [null.as_fd(), null.as_fd(), null.as_fd()];
    supervisor
        .start(&launch, stdio, guest.supervisors.command_group().as_deref())
        .map_err(|_| Error::NotReady)?;
    let mut clean = tokio::time::timeout(timeout, gone(&supervisor)).await;
    if clean.is_err() {
        supervisor.order(Order::Kill);
        clean = tokio::time::timeout(KILL_PATIENCE, gone(&supervisor)).await;
    }
    if clean != Ok(true) {
        return Err(Error::NotReady);
    }
    guest.supervisors.give_back(supervisor);
    Ok(())
}

/// Waits until nothing of the program is left; false if the supervisor is gone. Safe to cancel.
async fn gone(supervisor: &Supervisor) -> bool {
    loop {
        match supervisor.report().await {
            Some(Report::Started { .. } | Report::Exited { .. }) => {}
            Some(Report::Failed { .. } | Report::Empty) => return true,
            None => return false,
        }
    }
}

//! The same through skilld, as any client would: calls of the client library, and what the kernel says of the
//! daemon's memory.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use skilld_client::Client;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::exec_event::output::Content;
use skilld_proto::v1::exec_result::Outcome;
use skilld_proto::v1::{ExecSpec, RunExecRequest};
use skilld_tests::{Daemon, Options, usage};

/// What one exec said.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Ran {
    /// Of stdout and stderr.
    pub(crate) bytes: u64,
    /// Messages that carried them.
    pub(crate) events: u64,
    /// From the call.
    pub(crate) first_output: Option<Duration>,
}

/// A daemon as a user's: logging what the default logs.
pub(crate) fn options() -> Options {
    Options::default().set("log", "info")
}

/// Runs a command to the end of its stream. It has to succeed.
pub(crate) async fn run(client: &Client, workspace: &str, spec: ExecSpec) -> Result<Ran> {
    let started = Instant::now();
    let request = RunExecRequest {
        workspace: workspace.to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    let (mut ran, mut outcome) = (Ran::default(), None);
    while let Some(event) = events.next().await? {
        match event.event {
            Some(Event::Output(output)) => {
                ran.first_output.get_or_insert(started.elapsed());
                if let Some(Content::Data(data)) = output.content {
                    ran.events += 1;
                    ran.bytes += u64::try_from(data.len())?;
                }
            }
            Some(Event::Exited(exited)) => {
                outcome = exited.result.and_then(|result| result.outcome);
            }
            Some(Event::Started(_) | Event::Heartbeat(_) | Event::Closed(_)) => {}
            Some(Event::Gap(gap)) => anyhow::bail!("output was lost: {gap:?}"),
            None => anyhow::bail!("an empty event"),
        }
    }
    ensure!(
        outcome == Some(Outcome::ExitCode(0)),
        "the command ended with {outcome:?}"
    );
    Ok(ran)
}

/// Waits until a pool has all its warm containers, so that nothing else is being done. There is no event for it
/// in the API, so this looks.
pub(crate) async fn warm(client: &Client, pool: &str) -> Result<()> {
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        tick.tick().await;
        let pool = client.get_pool(pool).await?;
        if pool.warm >= pool.warm_target && pool.booting == 0 {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the pool does not fill: {pool:?}"
        );
    }
}

/// Resident bytes of a process.
pub(crate) fn resident(pid: u32) -> Result<u64> {
    usage::resident(pid)
}

/// Largest resident bytes of a daemon since [`forget_peak`].
pub(crate) fn peak(daemon: &Daemon) -> Result<u64> {
    usage::peak(daemon.pid().context("the daemon has ended")?)
}

/// Starts [`peak`] anew from what is resident now, which is returned.
pub(crate) fn forget_peak(daemon: &Daemon) -> Result<u64> {
    usage::forget_peak(daemon.pid().context("the daemon has ended")?)
}

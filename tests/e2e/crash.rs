//! Sudden ends of the daemon, a container or Docker, and what must survive them.

mod artifacts;
mod container;
mod copies;
mod daemon;
mod descriptors;
mod drain;
mod engine;
mod environments;
mod fault_points;
mod faults;
mod loss;
mod publishing;
mod readers;
mod staging;
mod start;
mod tenants;

use std::borrow::BorrowMut;
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use skilld_client::{Client, Error, MessageStream};
use skilld_proto::v1::ExecEvent;
use skilld_proto::v1::exec_event::Event;
use skilld_tests::{Daemon, docker, exec};

/// Time limit of a wait for an event, more than ten times the usual wait on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Command that prints numbered lines of eight bytes until the file `stop` exists, then `end`, and exits with 7. So it
/// runs while the daemon or its container is away, however long that takes.
const COUNT: &str = "for ((i = 0; ; i++)); do printf '%07d\\n' $i; \
                     ((i % 40)) || { [ ! -e stop ] || break; sleep 0.05; }; done; echo end; exit 7";

/// Checks that the output of [`COUNT`] is whole: no line is missing, and none comes twice.
fn check_count(output: &[u8]) -> Result<()> {
    let text = std::str::from_utf8(output)?;
    let lines = text.strip_suffix("end\n").context("the end is missing")?;
    let expected: String = (0..lines.len() / 8)
        .map(|line| format!("{line:07}\n"))
        .collect();
    ensure!(
        lines == expected,
        "lines are missing or come twice in {} bytes",
        lines.len()
    );
    Ok(())
}

/// Runs a task that would hang if the daemon had a fault. `what` names the awaited event.
async fn with_deadline<T>(what: &str, task: impl Future<Output = Result<T>>) -> Result<T> {
    let ended = tokio::time::timeout(DEADLINE, task).await;
    ended.with_context(|| format!("gave up after {DEADLINE:?}: waited until {what}"))?
}

/// Returns the ids of the daemon's containers.
async fn containers(daemon: &Daemon) -> Result<BTreeSet<String>> {
    let ids = docker::containers(&daemon.info.instance).await?;
    Ok(ids.into_iter().collect())
}

/// Runs shell text that must succeed, and returns what it printed.
async fn run_shell(client: &Client, workspace: &str, text: &str) -> Result<String> {
    let outcome = exec::run(client, workspace, exec::shell(text)).await?;
    assert_eq!(
        outcome.exit_code(),
        Some(0),
        "{text}: {}",
        outcome.error_text()
    );
    Ok(outcome.text())
}

/// Reads a stream of events until this many bytes of stdout have come.
async fn read_bytes(events: &mut MessageStream<ExecEvent>, bytes: usize) -> Result<Vec<u8>> {
    let reading = async {
        let mut read = Vec::new();
        while read.len() < bytes {
            let event = events.next().await?.context("the stream ended")?;
            read.extend_from_slice(exec::stdout(&event));
        }
        Ok::<_, anyhow::Error>(read)
    };
    with_deadline("the exec prints enough", reading).await
}

/// Reads a stream that breaks, checks that it reports no end of the exec, and returns code and reason of the error.
async fn read_until_broken(
    mut events: impl BorrowMut<MessageStream<ExecEvent>>,
) -> Result<(String, String)> {
    let breaking = async {
        loop {
            match events.borrow_mut().next().await {
                Ok(Some(event)) => assert!(
                    !matches!(event.event, Some(Event::Exited(_) | Event::Closed(_))),
                    "an end was made up: {event:?}"
                ),
                Ok(None) => anyhow::bail!("the stream ended as if all had come"),
                Err(error) => return expect_status(Err::<(), _>(error)),
            }
        }
    };
    with_deadline("the stream breaks off", breaking).await
}

/// Returns code and reason of a call that must have failed.
fn expect_status<T: std::fmt::Debug>(answer: Result<T, Error>) -> Result<(String, String)> {
    let error = answer.err().context("the call succeeded")?;
    let reason = error.reason().context(error.to_string())?;
    Ok((
        format!("{:?}", error.code().context("code")?),
        reason.error_info_name().to_owned(),
    ))
}

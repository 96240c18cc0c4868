//! Sudden ends of the daemon, a container or Docker, and what must survive them.

#![expect(
    clippy::panic_in_result_fn,
    reason = "an assertion is how a test fails"
)]

mod artifacts;
mod container;
mod copies;
mod daemon;
mod descriptors;
mod drain;
mod engine;
mod environments;
mod faults;
mod loss;
mod publishing;
mod readers;
mod staging;
mod start;
mod tenants;

use std::borrow::BorrowMut;
use std::collections::BTreeSet;

use anyhow::{Context, Result};
use skilld_client::{Client, Error, MessageStream};
use skilld_proto::v1::ExecEvent;
use skilld_proto::v1::exec_event::Event;
use skilld_tests::{Daemon, docker, exec};

/// Returns the ids of the daemon's containers.
async fn containers(daemon: &Daemon) -> Result<BTreeSet<String>> {
    let ids = docker::containers(&daemon.info.instance).await?;
    Ok(ids.into_iter().collect())
}

/// Runs shell text that must succeed, and returns what it printed.
async fn sh(client: &Client, workspace: &str, text: &str) -> Result<String> {
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
async fn read(events: &mut MessageStream<ExecEvent>, bytes: usize) -> Result<Vec<u8>> {
    let mut read = Vec::new();
    while read.len() < bytes {
        let event = events.next().await?.context("the stream ended")?;
        read.extend_from_slice(exec::stdout(&event));
    }
    Ok(read)
}

/// Reads a stream that breaks, checks that it reports no end of the exec, and returns code and reason of the error.
async fn broken_off(
    mut events: impl BorrowMut<MessageStream<ExecEvent>>,
) -> Result<(String, String)> {
    loop {
        match events.borrow_mut().next().await {
            Ok(Some(event)) => assert!(
                !matches!(event.event, Some(Event::Exited(_) | Event::Closed(_))),
                "an end was made up: {event:?}"
            ),
            Ok(None) => anyhow::bail!("the stream ended as if all had come"),
            Err(error) => return refusal(Err::<(), _>(error)),
        }
    }
}

/// Returns code and reason of a call that must have failed.
fn refusal<T: std::fmt::Debug>(answer: Result<T, Error>) -> Result<(String, String)> {
    let error = answer.err().context("it was answered well")?;
    let reason = error.reason().context(error.to_string())?;
    Ok((
        format!("{:?}", error.code().context("code")?),
        reason.as_str_name().to_owned(),
    ))
}

//! Execs whose client has gone.
//!
//! Docker: the guest kills or keeps a container's processes when a client's connection to the daemon ends.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::{
    AttachExecRequest, DisconnectPolicy, ExecEvent, ExecState, ExitReason as Ended, RunExecRequest,
};
use skilld_client::{Client, MessageStream};
use skilld_tests::exec::{shell, workspace};
use skilld_tests::{Daemon, Options, wait};

/// Grace periods within which a stream has to be attached again. The longer one is for a machine that stands still.
const GRACES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];
/// Time limit of the kill of an exec whose grace period is over.
const KILLED_WITHIN: Duration = Duration::from_secs(60);

/// Starts a program that prints a line and goes on, and reads the line.
async fn stream(
    client: &Client,
    ws: &str,
    id: &str,
    then: DisconnectPolicy,
) -> Result<MessageStream<ExecEvent>> {
    let mut spec = shell("echo up; sleep 1000");
    spec.set_on_disconnect(then);
    let request = RunExecRequest {
        parent: ws.to_owned(),
        exec_id: id.to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    says_something(&mut events).await?;
    Ok(events)
}

async fn says_something(events: &mut MessageStream<ExecEvent>) -> Result<()> {
    while let Some(event) = events.next().await? {
        if matches!(event.event, Some(Event::Output(_))) {
            return Ok(());
        }
    }
    anyhow::bail!("it said nothing")
}

async fn state(client: &Client, ws: &str, id: &str) -> Result<ExecState> {
    Ok(client.get_exec(&format!("{ws}/execs/{id}")).await?.state())
}

/// Leaves three execs, attaches to one of them again, and checks which one is killed. Returns `false` if the machine
/// was too slow to attach within the grace period.
async fn leave_and_return(grace: Duration) -> Result<bool> {
    let seconds = format!("{}s", grace.as_secs());
    let options = Options::default().set("execs.disconnect_grace", &seconds);
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let ws = workspace(client).await?.name;
    let left = stream(client, &ws, "left", DisconnectPolicy::Kill).await?;
    let back = stream(client, &ws, "back", DisconnectPolicy::Kill).await?;
    let kept = stream(client, &ws, "kept", DisconnectPolicy::Keep).await?;
    let disconnected = Instant::now();
    drop((left, back, kept));
    let request = AttachExecRequest {
        name: format!("{ws}/execs/back"),
        ..AttachExecRequest::default()
    };
    let mut back = client.attach_exec(request).await?;
    says_something(&mut back).await?;
    if disconnected.elapsed() >= grace {
        daemon.stop().await?;
        return Ok(false);
    }
    let limit = grace + KILLED_WITHIN;
    let result = wait::until("the abandoned exec is killed", limit, async || {
        Ok(client.get_exec(&format!("{ws}/execs/left")).await?.result)
    })
    .await?;
    ensure!(result.reason() == Ended::KilledByClient, "{result:?}");
    let waited = disconnected.elapsed();
    ensure!(waited + Duration::from_millis(500) >= grace, "{waited:?}");
    // Their clients have gone for as long.
    ensure!(state(client, &ws, "back").await? == ExecState::Running);
    ensure!(state(client, &ws, "kept").await? == ExecState::Running);
    daemon.stop().await?;
    Ok(true)
}

#[tokio::test]
async fn a_disconnect_kills_or_keeps_an_exec_after_the_grace() -> Result<()> {
    for grace in GRACES {
        if leave_and_return(grace).await? {
            return Ok(());
        }
    }
    anyhow::bail!("no stream was attached again within {GRACES:?}")
}

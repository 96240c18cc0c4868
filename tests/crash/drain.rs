//! Orderly end of a daemon: calls that wait for an exec are told to come back, the exec goes on, and the daemon waits for
//! no client that can reconnect.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skilld_client::{Client, MessageStream, RetryPolicy};
use skilld_proto::v1::{
    AttachExecRequest, ExecEvent, ExecState, OnDisconnect, PollExecRequest, RunExecRequest, Stdin,
    StreamOffsets, StreamStdinRequest, WriteStdinRequest, stdin,
};
use skilld_tests::{Daemon, Options, docker, exec};
use tokio_stream::wrappers::ReceiverStream;

use crate::{broken_off, read, refusal};

/// Command that prints a line, waits for its input and prints the input.
const ASK: &str =
    "echo begun; read -rN 4 half; echo heard; read -r line; echo \"$half $line\"; exit 5";

fn draining() -> (String, String) {
    ("Unavailable".into(), "REASON_DRAINING".into())
}

#[tokio::test]
async fn drain_and_stop_end_streams_with_unavailable_and_leave_execs_running() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let workspace = exec::workspace(&client).await?.name;
    let name = format!("{workspace}/execs/ask");
    let mut running = client.run_exec(ask(&workspace)).await?;
    read(&mut running, 6).await?;
    let attach = AttachExecRequest {
        name: name.clone(),
        ..AttachExecRequest::default()
    };
    let mut attached = client.attach_exec(attach).await?;
    read(&mut attached, 6).await?;
    let polling = async {
        let polled = client.execs().poll_exec(poll(&name)).await;
        refusal(polled.map_err(skilld_client::Error::from))
    };
    let (typist, typed) = tokio::sync::mpsc::channel(1);
    typist
        .send(StreamStdinRequest {
            name: name.clone(),
            data: b"half".to_vec().into(),
            ..StreamStdinRequest::default()
        })
        .await?;
    let typing = async {
        let written = client
            .execs()
            .stream_stdin(ReceiverStream::new(typed))
            .await;
        refusal(written.map_err(skilld_client::Error::from))
    };

    let mut typing = Box::pin(typing);
    tokio::select! {
        heard = read(&mut running, 6) => assert_eq!(heard?, b"heard\n"),
        typed = &mut typing => anyhow::bail!("it was not kept open: {typed:?}"),
    }

    let ending = async {
        // It goes the same way as the poll and after it, so that one is under way when this is answered.
        client.get_exec(&name).await?;
        let told = Instant::now();
        daemon.signal(Signal::SIGTERM)?;
        assert_eq!(daemon.wait().await?, Some(0));
        Ok::<_, anyhow::Error>(told.elapsed())
    };
    let (running, attached, polled, typed, ended) = tokio::join!(
        broken_off(running),
        broken_off(attached),
        polling,
        typing,
        ending
    );
    drop(typist);
    assert_eq!(running?, draining(), "RunExec");
    assert_eq!(attached?, draining(), "AttachExec");
    assert_eq!(polled?, draining(), "PollExec");
    // Some of it was written, so nobody may just send it again.
    let aborted = ("Aborted".to_owned(), "REASON_GUEST_LOST".to_owned());
    assert_eq!(typed?, aborted, "StreamStdin");
    let ended = ended?;
    // drain_timeout is 30 s: it waited for none of them.
    assert!(ended < Duration::from_secs(5), "{ended:?}");

    daemon.restart().await?;
    goes_on(&daemon, &name).await?;
    daemon.stop().await
}

fn ask(workspace: &str) -> RunExecRequest {
    let mut spec = exec::shell(ASK);
    spec.stdin = Some(Stdin {
        source: Some(stdin::Source::Open(true)),
    });
    RunExecRequest {
        workspace: workspace.to_owned(),
        exec_id: "ask".to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    }
}

/// Starts a command that does not read and that the daemon kills soon after its client went away. The caller keeps the
/// returned stream open.
async fn start_tied_exec(client: &Client, workspace: &str) -> Result<MessageStream<ExecEvent>> {
    let mut spec = exec::shell("echo begun; exec sleep 1000");
    spec.stdin = Some(Stdin {
        source: Some(stdin::Source::Open(true)),
    });
    spec.set_on_disconnect(OnDisconnect::Kill);
    let request = RunExecRequest {
        workspace: workspace.to_owned(),
        exec_id: "tied".to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    read(&mut events, 6).await?;
    Ok(events)
}

async fn tied_runs(daemon: &Daemon, workspace: &str) -> Result<()> {
    let name = format!("{workspace}/execs/tied");
    let exec = daemon.client.get_exec(&name).await?;
    assert_eq!(exec.state(), ExecState::Running, "{exec:?}");
    Ok(())
}

#[tokio::test]
async fn a_stop_kills_no_exec_while_another_call_is_blocked() -> Result<()> {
    let options = Options::default()
        .set("execs.disconnect_grace", "1s")
        .set("server.drain_timeout", "100ms");
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let workspace = exec::workspace(&client).await?.name;
    let events = start_tied_exec(&client, &workspace).await?;
    // More than the pipe holds.
    let request = WriteStdinRequest {
        name: format!("{workspace}/execs/tied"),
        data: vec![0; 200_000].into(),
        ..WriteStdinRequest::default()
    };
    let mut execs = client.execs();
    let blocked = async {
        let written = execs.write_stdin(request).await;
        refusal(written.map_err(skilld_client::Error::from))
    };
    let ending = async {
        // It goes the same way as the write and after it.
        client.get_exec(&format!("{workspace}/execs/tied")).await?;
        daemon.signal(Signal::SIGTERM)?;
        assert_eq!(daemon.wait().await?, Some(0));
        Ok::<_, anyhow::Error>(())
    };
    let (written, ended) = tokio::join!(blocked, ending);
    ended?;
    assert_eq!(
        written?,
        ("Aborted".to_owned(), "REASON_GUEST_LOST".to_owned())
    );
    drop(events);
    daemon.restart().await?;
    tied_runs(&daemon, &workspace).await?;
    daemon.stop().await
}

/// A guest is unreachable for longer than the other's exec may live without its client.
#[tokio::test]
async fn a_slow_guest_at_a_start_loses_no_workspace_and_no_exec() -> Result<()> {
    let options = Options::default().set("execs.disconnect_grace", "1s");
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let workspace = exec::workspace(&client).await?.name;
    let slow = exec::workspace(&client).await?.name;
    let events = start_tied_exec(&client, &workspace).await?;
    let pid = docker::pid(&daemon.container(&slow)?).await?;
    let pid = Pid::from_raw(pid.context("a pid")?);
    daemon.crash().await?;
    kill(pid, Signal::SIGSTOP)?;
    let awake = async {
        tokio::time::sleep(Duration::from_secs(6)).await;
        kill(pid, Signal::SIGCONT)
    };
    let (restarted, awake) = tokio::join!(daemon.restart(), awake);
    restarted?;
    awake?;
    drop(events);
    tied_runs(&daemon, &workspace).await?;
    let spec = exec::shell("echo here");
    let outcome = exec::run(&daemon.client, &slow, spec).await?;
    assert_eq!(outcome.text(), "here\n");
    daemon.stop().await
}

/// Returns a PollExec request for the output that follows `heard`.
fn poll(name: &str) -> PollExecRequest {
    PollExecRequest {
        name: name.to_owned(),
        offsets: Some(StreamOffsets {
            stdout: 12,
            stderr: 0,
        }),
        wait: Some(prost_types::Duration {
            seconds: 60,
            nanos: 0,
        }),
        ..PollExecRequest::default()
    }
}

/// Checks that the exec still waits and takes the rest of its line.
async fn goes_on(daemon: &Daemon, name: &str) -> Result<()> {
    let rest = StreamStdinRequest {
        name: name.to_owned(),
        offset: Some(4),
        data: b"line\n".to_vec().into(),
        ..StreamStdinRequest::default()
    };
    let rest = tokio_stream::iter([rest]);
    daemon.client.execs().stream_stdin(rest).await?;
    let outcome = exec::attach(&daemon.client, name, StreamOffsets::default()).await?;
    assert_eq!(outcome.text(), "begun\nheard\nhalf line\n");
    assert_eq!(outcome.exit_code().context("a code")?, 5);
    Ok(())
}

//! Orderly end of a daemon: calls that wait for an exec are told to come back, the exec goes on, and the daemon waits for
//! no client that can reconnect.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skilld_client::{Client, MessageStream, RetryPolicy};
use skilld_proto::v1::{
    AttachExecRequest, DisconnectPolicy, ExecEvent, ExecState, ExitReason, PollExecRequest,
    RunExecRequest, StreamOffsets, StreamStdinHeader, StreamStdinRequest, WriteStdinRequest,
};
use skilld_tests::{Daemon, Options, docker, exec, usage, wait};
use tokio_stream::wrappers::ReceiverStream;

use crate::crash::{DEADLINE, expect_status, read_bytes, read_until_broken};

/// Command that prints a line, waits for its input and prints the input.
const ASK: &str =
    "echo begun; read -rN 4 half; echo heard; read -r line; echo \"$half $line\"; exit 5";

fn draining() -> (String, String) {
    ("Unavailable".into(), "DRAINING".into())
}

#[tokio::test]
async fn drain_and_stop_end_streams_and_leave_execs_running() -> Result<()> {
    // A daemon that waited for one of the calls would not end in time.
    let options = Options::default().set("server.drain_timeout", "1h");
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let workspace = exec::workspace(&client).await?.name;
    let name = format!("{workspace}/execs/ask");
    let mut running = client.run_exec(ask(&workspace)).await?;
    read_bytes(&mut running, 6).await?;
    let attach = AttachExecRequest {
        name: name.clone(),
        ..AttachExecRequest::default()
    };
    let mut attached = client.attach_exec(attach).await?;
    read_bytes(&mut attached, 6).await?;
    let polling = async {
        let polled = client.execs().poll_exec(poll(&name)).await;
        expect_status(polled.map_err(skilld_client::Error::from))
    };
    let (typist, typed) = tokio::sync::mpsc::channel(1);
    typist
        .send(StreamStdinRequest {
            header: header(&name, None),
            data: b"half".to_vec().into(),
            ..StreamStdinRequest::default()
        })
        .await?;
    let typing = async {
        let written = client
            .execs()
            .stream_stdin(ReceiverStream::new(typed))
            .await;
        expect_status(written.map_err(skilld_client::Error::from))
    };

    let mut typing = Box::pin(typing);
    tokio::select! {
        heard = read_bytes(&mut running, 6) => assert_eq!(heard?, b"heard\n"),
        typed = &mut typing => anyhow::bail!("it was not kept open: {typed:?}"),
    }

    let ending = async {
        // It goes the same way as the poll and after it, so that one is under way when this is answered.
        client.get_exec(&name).await?;
        daemon.signal(Signal::SIGTERM)?;
        assert_eq!(daemon.wait().await?, Some(0));
        Ok::<_, anyhow::Error>(())
    };
    let (running, attached, polled, typed, ended) = tokio::join!(
        read_until_broken(running),
        read_until_broken(attached),
        polling,
        typing,
        ending
    );
    drop(typist);
    assert_eq!(running?, draining(), "RunExec");
    assert_eq!(attached?, draining(), "AttachExec");
    assert_eq!(polled?, draining(), "PollExec");
    // Some of it was written, so nobody may just send it again.
    let aborted = ("Aborted".to_owned(), "GUEST_LOST".to_owned());
    assert_eq!(typed?, aborted, "StreamStdin");
    ended?;

    daemon.restart().await?;
    goes_on(&daemon, &name).await?;
    daemon.stop().await
}

fn ask(workspace: &str) -> RunExecRequest {
    let mut spec = exec::shell(ASK);
    spec.open_stdin = true;
    RunExecRequest {
        parent: workspace.to_owned(),
        exec_id: "ask".to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    }
}

/// Starts a command that prints `begun` and that the daemon kills soon after its client went away. The caller keeps the
/// returned stream open.
async fn start_tied_exec(
    client: &Client,
    workspace: &str,
    text: &str,
) -> Result<MessageStream<ExecEvent>> {
    let mut spec = exec::shell(text);
    spec.open_stdin = true;
    spec.set_on_disconnect(DisconnectPolicy::Kill);
    let request = RunExecRequest {
        parent: workspace.to_owned(),
        exec_id: "tied".to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    read_bytes(&mut events, 6).await?;
    Ok(events)
}

/// Returns the host's process id of the command of [`start_tied_exec`].
async fn find_tied_command(daemon: &Daemon, workspace: &str) -> Result<u32> {
    let guest = usage::guest(daemon, workspace).await?;
    wait::until("the command runs", DEADLINE, async || {
        let all = usage::list_container_processes(guest)?;
        let command = all.iter().find(|process| process.name == "sleep");
        Ok(command.map(|process| process.pid))
    })
    .await
}

/// Checks on the host that a process was not killed, which needs no daemon.
fn check_runs(pid: u32) -> Result<()> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("it was killed")?;
    ensure!(!stat.contains(") Z "), "it was killed: {stat}");
    Ok(())
}

#[tokio::test]
async fn a_stop_kills_no_exec_while_another_call_is_blocked() -> Result<()> {
    // A blocked call that kept the connection to the guest open would do so for half of stop_timeout, which is longer
    // than the grace period of the exec.
    let options = Options::default()
        .set("execs.disconnect_grace", "60s")
        .set("server.drain_timeout", "100ms")
        .set("server.stop_timeout", "180s");
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let workspace = exec::workspace(&client).await?.name;
    // It reads one byte and no other.
    let text = "echo begun; read -rN 1; echo heard; exec sleep 1000";
    let mut events = start_tied_exec(&client, &workspace, text).await?;
    // More than the pipe holds.
    let request = WriteStdinRequest {
        name: format!("{workspace}/execs/tied"),
        data: vec![b'x'; 200_000].into(),
        ..WriteStdinRequest::default()
    };
    let mut execs = client.execs();
    let blocked = async {
        let written = execs.write_stdin(request).await;
        expect_status(written.map_err(skilld_client::Error::from))
    };
    let ending = async {
        // The write is under way.
        read_bytes(&mut events, 6).await?;
        let command = find_tied_command(&daemon, &workspace).await?;
        daemon.signal(Signal::SIGTERM)?;
        assert_eq!(daemon.wait().await?, Some(0));
        Ok::<_, anyhow::Error>(command)
    };
    let (written, ended) = tokio::join!(blocked, ending);
    let command = ended?;
    assert_eq!(written?, ("Aborted".to_owned(), "GUEST_LOST".to_owned()));
    check_runs(command)?;
    drop(events);
    daemon.restart().await?;
    let exec = format!("{workspace}/execs/tied");
    let state = daemon.client.get_exec(&exec).await?.state();
    assert_eq!(state, ExecState::Running);
    daemon.stop().await
}

/// Time for which a guest is unreachable: longer than an exec may live without its client, which is 100 ms here, and much
/// shorter than the ten seconds after which the daemon gives a guest up, also if the machine stands still meanwhile.
const UNREACHABLE: Duration = Duration::from_millis(500);

/// A guest is unreachable for longer than the other's exec may live without its client.
#[tokio::test]
async fn a_slow_guest_at_a_start_loses_no_workspace_and_no_exec() -> Result<()> {
    let options = Options::default().set("execs.disconnect_grace", "100ms");
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let workspace = exec::workspace(&client).await?.name;
    let slow = exec::workspace(&client).await?.name;
    let text = "echo begun; exec sleep 1000";
    let events = start_tied_exec(&client, &workspace, text).await?;
    let command = find_tied_command(&daemon, &workspace).await?;
    let record = daemon.record(&slow)?;
    let number = record.get("number").context("number")?;
    let socket = daemon
        .state_dir()
        .join(format!("slots/{number}/run/guest.sock"));
    let container_pid = docker::pid(&daemon.container(&slow)?).await?;
    let pid = Pid::from_raw(container_pid.context("a pid")?);
    daemon.crash().await?;
    kill(pid, Signal::SIGSTOP)?;
    let waking = async {
        let awaited = wait::until("the slow guest is awaited", DEADLINE, async || {
            Ok(socket.exists().then_some(()))
        })
        .await;
        tokio::time::sleep(UNREACHABLE).await;
        // The daemon serves only after this, so the client of the exec could not come back.
        let runs = check_runs(command);
        kill(pid, Signal::SIGCONT)?;
        awaited.and(runs)
    };
    let (restarted, woken) = tokio::join!(daemon.restart(), waking);
    restarted?;
    woken?;
    drop(events);
    // From here on the time of the exec without its client counts.
    let ended = wait::until("the exec is killed", DEADLINE, async || {
        let name = format!("{workspace}/execs/tied");
        Ok(daemon.client.get_exec(&name).await?.result)
    });
    assert_eq!(ended.await?.reason(), ExitReason::KilledByClient);
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
            stdout_bytes: 12,
            stderr_bytes: 0,
        }),
        wait: Some(prost_types::Duration {
            seconds: 60,
            nanos: 0,
        }),
        ..PollExecRequest::default()
    }
}

fn header(name: &str, offset: Option<i64>) -> Option<StreamStdinHeader> {
    let name = name.to_owned();
    Some(StreamStdinHeader { name, offset })
}

/// Checks that the exec still waits and takes the rest of its line.
async fn goes_on(daemon: &Daemon, name: &str) -> Result<()> {
    let rest = StreamStdinRequest {
        header: header(name, Some(4)),
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

//! Output as it comes: any bytes, read in any way, each exactly once; and execs whose client has gone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use skilld_client::v1::exec_event::output::Content;
use skilld_client::v1::exec_event::{Event, Output};
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::{
    AttachExecRequest, ExecEvent, ExecState, OnDisconnect, OutputFormat, OutputStream,
    PollExecRequest, PollExecResponse, Reason, RunExecRequest, StartExecRequest, StreamOffsets,
};
use skilld_client::{Client, MessageStream};
use skilld_tests::exec::{attach, run, shell, shell_stdout, start, workspace};
use skilld_tests::{Daemon, Options, expect_refusal};

/// Bytes of an exec's stdout that one reader received.
#[derive(Debug, Default, PartialEq, Eq)]
struct Got {
    bytes: Vec<u8>,
    text: String,
    replaced: bool,
    next: u64,
}

impl Got {
    fn take(&mut self, output: &Output) -> Result<()> {
        ensure!(output.stream() == OutputStream::Stdout, "{output:?}");
        ensure!(
            output.offset == self.next,
            "{} follows {}",
            output.offset,
            self.next
        );
        match output.content.as_ref().context("no content")? {
            Content::Data(data) => {
                self.bytes.extend_from_slice(data);
                self.next += u64::try_from(data.len())?;
            }
            Content::Text(text) => {
                self.text.push_str(text);
                self.next = output.next_offset;
            }
        }
        self.replaced |= output.replaced;
        Ok(())
    }

    async fn streamed(mut events: MessageStream<ExecEvent>) -> Result<Self> {
        let mut got = Self::default();
        while let Some(event) = events.next().await? {
            if let Some(Event::Output(output)) = event.event {
                got.take(&output)?;
            }
        }
        Ok(got)
    }

    async fn polled(client: &Client, name: &str, format: OutputFormat) -> Result<Self> {
        let mut got = Self::default();
        loop {
            let request = PollExecRequest {
                settle_time: Duration::from_millis(10).try_into().ok(),
                format: format.into(),
                ..poll_at(name, got.next)
            };
            let answer = client.poll_exec(request).await?;
            for output in &answer.output {
                got.take(output)?;
            }
            ensure!(answer.next_offsets.context("no offsets")?.stdout == got.next);
            if answer.state() == ExecState::Closed && answer.output.is_empty() {
                return Ok(got);
            }
        }
    }
}

/// Returns a PollExec request that waits for up to ten seconds.
fn poll_at(name: &str, stdout: u64) -> PollExecRequest {
    PollExecRequest {
        name: name.to_owned(),
        offsets: Some(StreamOffsets { stdout, stderr: 0 }),
        wait: Duration::from_secs(10).try_into().ok(),
        ..PollExecRequest::default()
    }
}

fn said(answer: &PollExecResponse) -> String {
    let part = |output: &Output| match output.content.clone() {
        Some(Content::Data(data)) => String::from_utf8_lossy(&data).into_owned(),
        Some(Content::Text(text)) => text,
        None => String::new(),
    };
    answer.output.iter().map(part).collect()
}

/// Runs a program and reads its output in every way, while it runs and afterwards, as bytes and as text.
async fn read_in_every_way(script: &str, bytes: &[u8], text: &str, replaced: bool) -> Result<()> {
    let (daemon, ws) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let as_bytes = Got {
        bytes: bytes.to_vec(),
        next: u64::try_from(bytes.len())?,
        ..Got::default()
    };
    let as_text = Got {
        text: text.to_owned(),
        replaced,
        next: as_bytes.next,
        ..Got::default()
    };
    for (format, expected) in [
        (OutputFormat::Bytes, &as_bytes),
        (OutputFormat::Text, &as_text),
    ] {
        let request = RunExecRequest {
            workspace: ws.clone(),
            exec_id: format!("run{}", format as i32),
            spec: Some(shell(script)),
            format: format.into(),
        };
        let ran = Got::streamed(client.run_exec(request).await?).await?;
        ensure!(&ran == expected, "RunExec: {ran:?}");
        let id = format!("polled{}", format as i32);
        let name = start(client, &ws, &id, shell(script)).await?.name;
        let polled = Got::polled(client, &name, format).await?;
        ensure!(&polled == expected, "PollExec: {polled:?}");
        let again = Got::polled(client, &name, format).await?;
        ensure!(&again == expected, "PollExec of one that ended: {again:?}");
        let request = AttachExecRequest {
            name,
            format: format.into(),
            ..AttachExecRequest::default()
        };
        let attached = Got::streamed(client.attach_exec(request).await?).await?;
        ensure!(&attached == expected, "AttachExec: {attached:?}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_last_line_without_newline_is_readable_in_every_way() -> Result<()> {
    let whole = "one\ntwo";
    read_in_every_way(r"printf 'one\ntwo'", whole.as_bytes(), whole, false).await
}

#[tokio::test]
async fn output_with_nul_bytes_is_readable_in_every_way() -> Result<()> {
    let script = r"printf 'a\0b\0'; sleep 0.1; printf '\0'";
    read_in_every_way(script, b"a\0b\0\0", "a\0b\0\0", false).await
}

#[tokio::test]
async fn invalid_utf8() -> Result<()> {
    // Among it a character that comes in two halves, and one whose second half never comes.
    let script = r"printf 'a\xff\xc3(\xc3'; sleep 0.2; printf '\xa9\xe2\x82'";
    let text = "a\u{fffd}\u{fffd}(\u{e9}\u{fffd}";
    read_in_every_way(script, b"a\xff\xc3(\xc3\xa9\xe2\x82", text, true).await
}

#[tokio::test]
async fn output_with_carriage_returns_only_is_readable_in_every_way() -> Result<()> {
    let script = r"printf '1%%\r'; sleep 0.1; printf '2%%\rdone\r'";
    let whole = "1%\r2%\rdone\r";
    read_in_every_way(script, whole.as_bytes(), whole, false).await
}

#[tokio::test]
async fn output_of_one_byte_writes_is_readable_in_every_way() -> Result<()> {
    let script = "for i in {1..5000}; do printf %s $((i % 10)); done";
    let whole: String = (1..=5000).map(|i| (i % 10).to_string()).collect();
    read_in_every_way(script, whole.as_bytes(), &whole, false).await
}

#[tokio::test]
async fn a_poll_waits_and_answers_when_something_happens() -> Result<()> {
    let (daemon, ws) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let script = "printf 'name? '; until [ -e $WORK_DIR/go ]; do sleep 0.02; done; sleep 0.5; printf bye; exit 3";
    let name = start(client, &ws, "asks", shell(script)).await?.name;
    let answer = client.poll_exec(poll_at(&name, 0)).await?;
    ensure!(said(&answer) == "name? ", "{answer:?}");
    ensure!(answer.state() == ExecState::Running && answer.result.is_none());

    // It does not come again; the wait is over first.
    let started = Instant::now();
    let brief = PollExecRequest {
        wait: Duration::from_millis(300).try_into().ok(),
        ..poll_at(&name, 6)
    };
    let answer = client.poll_exec(brief).await?;
    let took = started.elapsed();
    ensure!(answer.output.is_empty(), "{answer:?}");
    let (least, most) = (Duration::from_millis(300), Duration::from_secs(5));
    ensure!(took >= least && took < most, "{took:?}");

    // The end does not wait for output to settle.
    let patient = PollExecRequest {
        settle_time: Duration::from_secs(10).try_into().ok(),
        ..poll_at(&name, 6)
    };
    let (answer, touched) = tokio::join!(
        client.poll_exec(patient),
        run(client, &ws, shell("touch $WORK_DIR/go; date +%s%N"))
    );
    ensure!(touched?.exit_code() == Some(0));
    let answer = answer?;
    ensure!(said(&answer) == "bye", "{answer:?}");
    let result = answer.result.context("no result")?;
    ensure!(result.reason() == Ended::Exited, "{result:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_poll_does_not_hold_up_the_stop() -> Result<()> {
    let mut daemon =
        Daemon::start_with(Options::default().set("server.drain_timeout", "1s")).await?;
    let client = daemon.client.clone();
    let ws = workspace(&client).await?.name;
    let name = start(&client, &ws, "mute", shell("sleep 100")).await?.name;
    let longest = PollExecRequest {
        wait: Duration::from_secs(60).try_into().ok(),
        ..poll_at(&name, 0)
    };
    let mut stub = client.execs();
    let waiting = stub.poll_exec(longest);
    let stopped = async {
        // The poll is under way when the next call is answered.
        run(&client, &ws, shell("true")).await?;
        let started = Instant::now();
        daemon.signal(Signal::SIGTERM)?;
        daemon.wait().await?;
        Ok::<_, anyhow::Error>(started.elapsed())
    };
    let (answer, took) = tokio::join!(waiting, stopped);
    let took = took?;
    ensure!(took < Duration::from_secs(20), "{took:?}");
    expect_refusal(answer, Reason::Draining)?;
    daemon.restart().await?;
    let exec = daemon.client.get_exec(&name).await?;
    ensure!(exec.state() == ExecState::Running, "{exec:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_deleted_exec_is_not_found() -> Result<()> {
    let (daemon, ws) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let spec = shell("echo begun; trap '' TERM; setsid sleep 1001 & sleep 1002; sleep 1003");
    let name = start(client, &ws, "doomed", spec.clone()).await?.name;
    client.poll_exec(poll_at(&name, 0)).await?;
    let (reader, deleted) = tokio::join!(
        attach(client, &name, StreamOffsets::default()),
        client.delete_exec(&name)
    );
    deleted?;
    let seen = reader?;
    ensure!(seen.reason() == Ended::KilledByClient && seen.text() == "begun\n");
    let left = "grep -l 'sleep.100[123]' /proc/[0-9]*/cmdline; true";
    ensure!(shell_stdout(client, &ws, left).await?.is_empty());
    for _ in 0..2 {
        let again = client.delete_exec(&name).await;
        expect_refusal(again, Reason::ExecNotFound)?;
    }
    let poll = client.poll_exec(poll_at(&name, 0)).await;
    expect_refusal(poll, Reason::ExecNotFound)?;
    // The same request does not run the command once more.
    let request = StartExecRequest {
        workspace: ws,
        exec_id: "doomed".to_owned(),
        spec: Some(spec),
    };
    let again = client.start_exec(request).await;
    expect_refusal(again, Reason::IdTaken)?;
    daemon.stop().await
}

/// Starts a program that prints a line and goes on, and reads the line.
async fn stream(
    client: &Client,
    ws: &str,
    id: &str,
    then: OnDisconnect,
) -> Result<MessageStream<ExecEvent>> {
    let mut spec = shell("echo up; sleep 1000");
    spec.set_on_disconnect(then);
    let request = RunExecRequest {
        workspace: ws.to_owned(),
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

/// Waits until an exec was killed, and returns the elapsed time.
async fn killed(client: &Client, ws: &str, id: &str) -> Result<Duration> {
    let started = Instant::now();
    let quiet = PollExecRequest {
        settle_time: Duration::from_secs(10).try_into().ok(),
        ..poll_at(&format!("{ws}/execs/{id}"), 3)
    };
    let answer = client.poll_exec(quiet).await?;
    let result = answer.result.context("it runs on")?;
    ensure!(result.reason() == Ended::KilledByClient, "{result:?}");
    Ok(started.elapsed())
}

#[tokio::test]
async fn on_disconnect_kill_and_keep() -> Result<()> {
    let options = Options::default().set("execs.disconnect_grace", "1s");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let ws = workspace(client).await?.name;
    let left = stream(client, &ws, "left", OnDisconnect::Kill).await?;
    let back = stream(client, &ws, "back", OnDisconnect::Kill).await?;
    let kept = stream(client, &ws, "kept", OnDisconnect::Keep).await?;
    drop((left, back, kept));
    let request = AttachExecRequest {
        name: format!("{ws}/execs/back"),
        ..AttachExecRequest::default()
    };
    let mut back = client.attach_exec(request).await?;
    says_something(&mut back).await?;
    let took = killed(client, &ws, "left").await?;
    let (least, most) = (Duration::from_millis(800), Duration::from_secs(20));
    ensure!(took > least && took < most, "{took:?}");
    ensure!(state(client, &ws, "back").await? == ExecState::Running);
    ensure!(state(client, &ws, "kept").await? == ExecState::Running);
    daemon.stop().await
}

#[tokio::test]
async fn on_disconnect_kill_survives_the_daemon() -> Result<()> {
    let options = Options::default().set("execs.disconnect_grace", "1s");
    let mut daemon = Daemon::start_with(options).await?;
    let ws = workspace(&daemon.client).await?.name;
    let mut back = stream(&daemon.client, &ws, "back", OnDisconnect::Kill).await?;
    let gone = stream(&daemon.client, &ws, "gone", OnDisconnect::Kill).await?;
    for graceful in [false, true] {
        if graceful {
            daemon.signal(Signal::SIGTERM)?;
            daemon.wait().await?;
        } else {
            daemon.crash().await?;
        }
        // The grace period passes while no daemon runs that could count it.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        daemon.restart().await?;
        let request = AttachExecRequest {
            name: format!("{ws}/execs/back"),
            ..AttachExecRequest::default()
        };
        back = daemon.client.attach_exec(request).await?;
        says_something(&mut back).await?;
        ensure!(state(&daemon.client, &ws, "back").await? == ExecState::Running);
    }
    // An exec whose client did not come back is killed once a daemon runs again.
    let took = killed(&daemon.client, &ws, "gone").await?;
    ensure!(took < Duration::from_secs(20), "{took:?}");
    ensure!(state(&daemon.client, &ws, "back").await? == ExecState::Running);
    drop((back, gone));
    daemon.stop().await
}

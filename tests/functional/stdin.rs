//! stdin that clients write to, end to end.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use skilld_client::Client;
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::{
    ExecSpec, Reason, StartExecRequest, Stdin, StreamOffsets, StreamStdinRequest,
    WriteStdinRequest, stdin,
};
use skilld_tests::exec::{attach, shell};
use skilld_tests::{Daemon, expect_refusal, expect_refusal_with, usage};
use tonic::Code;

const CHUNK: usize = 256 << 10;

async fn start(client: &Client, workspace: &str, id: &str, spec: ExecSpec) -> Result<String> {
    let source = Some(stdin::Source::Open(true));
    let request = StartExecRequest {
        workspace: workspace.to_owned(),
        exec_id: id.to_owned(),
        spec: Some(ExecSpec {
            stdin: Some(Stdin { source }),
            ..spec
        }),
    };
    Ok(client.start_exec(request).await?.name)
}

fn input(name: &str, offset: Option<u64>, data: &[u8], eof: bool) -> WriteStdinRequest {
    WriteStdinRequest {
        name: name.to_owned(),
        offset,
        data: data.to_vec().into(),
        eof,
        ..WriteStdinRequest::default()
    }
}

fn message(name: &str, data: &[u8], eof: bool) -> StreamStdinRequest {
    StreamStdinRequest {
        name: name.to_owned(),
        offset: None,
        data: data.to_vec().into(),
        eof,
    }
}

#[tokio::test]
async fn stdin_eof_keeps_output() -> Result<()> {
    let (daemon, ws) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let spec = shell("cat; sleep 0.2; echo after; exit 4");
    let name = start(client, &ws, "cat", spec).await?;
    client
        .write_stdin(input(&name, None, b"one ", false))
        .await?;
    client
        .write_stdin(input(&name, None, b"two\n", true))
        .await?;
    let outcome = attach(client, &name, StreamOffsets::default()).await?;
    ensure!(outcome.text() == "one two\nafter\n", "{outcome:?}");
    ensure!(outcome.exit_code() == Some(4));
    daemon.stop().await
}

#[tokio::test]
async fn stdin_retried_at_the_same_offset_is_written_once() -> Result<()> {
    let (daemon, ws) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let name = start(client, &ws, "cat", shell("cat")).await?;
    for (offset, data, eof, committed) in [
        (0, "hello ", false, 6),
        (0, "hello ", false, 6),
        (0, "hello world", false, 11),
        (11, "\n", true, 12),
        (11, "\n", true, 12),
    ] {
        let answer = client
            .write_stdin(input(&name, Some(offset), data.as_bytes(), eof))
            .await?;
        ensure!(answer.committed_offset == committed, "{data:?}: {answer:?}");
    }
    let outcome = attach(client, &name, StreamOffsets::default()).await?;
    ensure!(outcome.text() == "hello world\n", "{outcome:?}");

    let name = start(client, &ws, "far", shell("cat")).await?;
    let beyond = client.write_stdin(input(&name, Some(1), b"x", false)).await;
    let failure = expect_refusal_with(beyond, Code::OutOfRange, Reason::InvalidRequest)?;
    let committed = failure.metadata.get("committed_offset");
    ensure!(committed.map(String::as_str) == Some("0"), "{failure:?}");
    client.write_stdin(input(&name, None, b"", true)).await?;
    let closed = client.write_stdin(input(&name, None, b"x", false)).await;
    // `cat` may have ended meanwhile.
    let failure = closed.err().context("it took more after its end")?;
    let reason = failure.failure().context("no status")?.reason;
    let known = [Some(Reason::StdinClosed), Some(Reason::ExecNotRunning)];
    ensure!(known.contains(&reason), "{failure:?}");
    daemon.stop().await
}

#[tokio::test]
async fn unread_stdin_of_1_gib_costs_no_memory() -> Result<()> {
    let (daemon, ws) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let name = start(client, &ws, "deaf", shell("sleep 1000")).await?;
    let guest = usage::guest(&daemon, &ws).await?;
    let server = daemon.pid().context("no daemon")?;
    let guest_before = usage::resident(guest)?;
    let daemon_before = usage::resident(server)?;
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let mut stub = client.execs();
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut call = Box::pin(stub.stream_stdin(stream).into_future());
    let mut sent = 0;
    let feed = async {
        let chunk = vec![b'x'; CHUNK];
        while sent < 1 << 30 {
            let message = message(&name, &chunk, false);
            let send = sender.send(message);
            if tokio::time::timeout(Duration::from_secs(1), send)
                .await
                .is_err()
            {
                return Ok(());
            }
            sent += CHUNK;
        }
        bail!("nothing held it back")
    };
    tokio::select! {
        answer = &mut call => bail!("answered {answer:?}"),
        fed = feed => fed?,
    }
    ensure!(sent < 64 << 20, "{sent} bytes are on their way");
    let guest = usage::resident(guest)?.saturating_sub(guest_before);
    let grown = usage::resident(server)?.saturating_sub(daemon_before);
    ensure!(guest < 8 << 20, "guest: {guest} bytes more");
    ensure!(grown < 32 << 20, "daemon: {grown} bytes more");
    let started = Instant::now();
    let (answer, killed) = tokio::join!(call, client.kill_exec(&name));
    expect_refusal(answer, Reason::ExecNotRunning)?;
    let result = killed?.result.context("no result")?;
    ensure!(result.reason() == Ended::KilledByClient, "{result:?}");
    let took = started.elapsed();
    ensure!(took < Duration::from_secs(10), "{took:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_program_that_ignores_large_input_ends() -> Result<()> {
    let (daemon, ws) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let name = start(client, &ws, "ignores", shell("sleep 0.3; echo fine")).await?;
    let chunk = vec![b'x'; CHUNK];
    let messages = vec![message(&name, &chunk, false); 64];
    let mut stub = client.execs();
    let answer = stub.stream_stdin(tokio_stream::iter(messages)).await;
    expect_refusal(answer, Reason::ExecNotRunning)?;
    let outcome = attach(client, &name, StreamOffsets::default()).await?;
    ensure!(outcome.exit_code() == Some(0) && outcome.text() == "fine\n");
    ensure!(outcome.reason() == Ended::Exited, "{outcome:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_stream_of_stdin_arrives_whole() -> Result<()> {
    let (daemon, ws) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let name = start(client, &ws, "sum", shell("sha256sum")).await?;
    let chunk: Vec<u8> = (0..CHUNK).map(|n| (n % 251).to_le_bytes()[0]).collect();
    let mut messages = vec![message(&name, &chunk, false)];
    messages.extend(vec![message("", &chunk, false); 255]);
    messages.push(message("", b"", true));
    let expected = skilld_tests::files::sha256(&chunk.repeat(256));
    let mut stub = client.execs();
    let answer = stub.stream_stdin(tokio_stream::iter(messages)).await?;
    ensure!(answer.into_inner().committed_offset == 64 << 20);
    let outcome = attach(client, &name, StreamOffsets::default()).await?;
    ensure!(outcome.text() == format!("{expected}  -\n"), "{outcome:?}");

    // A message for another exec, or too large a one, ends the stream and leaves stdin open.
    let name = start(client, &ws, "strict", shell("cat")).await?;
    let wrong = [
        message(&format!("{ws}/execs/sum"), b"x", false),
        message("", &vec![0; CHUNK + 1], false),
    ];
    for second in wrong {
        let messages = vec![message(&name, b"a", false), second];
        let answer = stub.stream_stdin(tokio_stream::iter(messages)).await;
        expect_refusal(answer, Reason::InvalidRequest)?;
    }
    let empty = stub.stream_stdin(tokio_stream::iter(Vec::new())).await;
    expect_refusal(empty, Reason::InvalidRequest)?;
    client.write_stdin(input(&name, None, b"!", true)).await?;
    let outcome = attach(client, &name, StreamOffsets::default()).await?;
    ensure!(
        ["!", "a!", "aa!"].contains(&&*outcome.text()),
        "{outcome:?}"
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_write_to_a_finished_exec_fails_at_once() -> Result<()> {
    let (daemon, ws) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let name = start(client, &ws, "done", shell("true")).await?;
    attach(client, &name, StreamOffsets::default()).await?;
    // Beside a call that waits for nothing, so that a busy machine is not taken for a slow daemon.
    let (mut times, mut idle) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let started = Instant::now();
        client.get_exec(&name).await?;
        idle.push(started.elapsed());
        let started = Instant::now();
        let answer = client.write_stdin(input(&name, None, b"x", false)).await;
        times.push(started.elapsed());
        expect_refusal(answer, Reason::ExecNotRunning)?;
    }
    times.sort();
    idle.sort();
    let most = idle[10] + Duration::from_millis(10);
    ensure!(times[10] < most, "{times:?}, {idle:?}");
    daemon.stop().await
}

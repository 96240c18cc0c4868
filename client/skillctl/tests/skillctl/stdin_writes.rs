//! Stdin: each byte once, whatever breaks; as it comes; and not at all if nobody reads it.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use skilld_client::v1::{
    ErrorReason, ExecSpec, ExecTerminal, ResizeTerminalRequest, StartExecRequest, WriteStdinRequest,
};
use skilld_client::{Client, Error};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::commands::{fake, skillctl};
use skilld_testing::live::{Fault, until};
use skilld_testing::{DEADLINE, Fake, noise};

/// Starts an exec with its stdin open.
async fn start(client: &Client, words: &[&str]) {
    let spec = ExecSpec {
        argv: words.iter().map(|word| (*word).to_owned()).collect(),
        open_stdin: true,
        ..Default::default()
    };
    let request = StartExecRequest {
        parent: "w".into(),
        exec_id: "x".into(),
        spec: Some(spec),
    };
    client.start_exec(request).await.expect("starts");
}

fn write(offset: Option<i64>, data: &'static [u8]) -> WriteStdinRequest {
    WriteStdinRequest {
        name: "w/x".into(),
        offset,
        data: Bytes::from_static(data),
        ..Default::default()
    }
}

/// Returns the offset and the length of each write, and whether it was the last.
fn writes(fake: &Fake) -> Vec<(Option<i64>, usize, bool)> {
    let requests = fake.calls.requests::<WriteStdinRequest>("WriteStdin");
    requests
        .iter()
        .map(|write| (write.offset, write.data.len(), write.eof))
        .collect()
}

fn written(fake: &Fake) -> Vec<u8> {
    fake.exec("x").input.borrow().bytes.clone()
}

#[tokio::test]
async fn a_write_with_an_offset_is_repeated_and_written_once() {
    for fault in [Fault::Lost, Fault::Half, Fault::Refused] {
        let fake = fake();
        let client = fake.client().await;
        start(&client, &["cat"]).await;
        fake.state.lock().faults.extend([fault, fault]);
        let answer = client.write_stdin(write(Some(0), b"abcdef")).await;
        assert_eq!(answer.expect("writes").committed_offset, 6, "{fault:?}");
        assert_eq!(written(&fake), b"abcdef", "{fault:?}");
        assert_eq!(writes(&fake), [(Some(0), 6, false); 3], "{fault:?}");
    }
}

#[tokio::test]
async fn a_write_with_an_id_is_repeated_and_written_once() {
    for fault in [Fault::Lost, Fault::Half, Fault::Refused] {
        let fake = fake();
        let client = fake.client().await;
        start(&client, &["cat"]).await;
        fake.state.lock().faults.extend([fault, fault]);
        let known = WriteStdinRequest {
            request_id: "one".into(),
            ..write(None, b"abcdef")
        };
        let answer = client.write_stdin(known).await;
        assert_eq!(answer.expect("writes").committed_offset, 6, "{fault:?}");
        assert_eq!(written(&fake), b"abcdef", "{fault:?}");
    }
}

#[tokio::test]
async fn a_write_without_an_offset_is_never_repeated() {
    for fault in [Fault::Lost, Fault::Half, Fault::Deadline, Fault::Refused] {
        let fake = fake();
        let client = fake.client().await;
        start(&client, &["cat"]).await;
        fake.state.lock().faults.push_back(fault);
        let failed = client.write_stdin(write(None, b"abcdef")).await;
        failed.expect_err("is handed over");
        assert_eq!(fake.calls.count("WriteStdin"), 1, "{fault:?}");
    }
}

#[tokio::test]
async fn an_appending_writer_repeats_what_was_lost_at_its_offset() {
    for (fault, calls) in [
        (Fault::Lost, vec![None, Some(3)]),
        (Fault::Half, vec![None, Some(3)]),
        (Fault::Deadline, vec![None, Some(3)]),
        (Fault::Refused, vec![None, Some(3)]),
    ] {
        let fake = fake();
        let client = fake.client().await;
        start(&client, &["cat"]).await;
        let before = client.write_stdin(write(None, b"old")).await;
        assert_eq!(before.expect("writes").committed_offset, 3);
        fake.calls.take();
        fake.state.lock().faults.push_back(fault);
        let mut writer = client.stdin_end("w/x");
        writer
            .write(Bytes::from_static(b"abcd"))
            .await
            .expect("writes");
        assert_eq!(writer.offset(), Some(7));
        // Another one writes in between, which is no reason to write anything twice or not at all.
        client
            .write_stdin(write(None, b"-"))
            .await
            .expect("appends");
        writer
            .write(Bytes::from_static(b"e"))
            .await
            .expect("writes");
        assert_eq!(written(&fake), b"oldabcd-e", "{fault:?}");
        let offsets: Vec<_> = writes(&fake).iter().map(|(offset, ..)| *offset).collect();
        // First it asks where the end is.
        let expected = [vec![Some(0)], calls, vec![None, None]].concat();
        assert_eq!(offsets, expected, "{fault:?}");
    }
}

#[tokio::test]
async fn bytes_that_an_exec_already_has_are_not_written_again() {
    let fake = fake();
    let client = fake.client().await;
    start(&client, &["hold"]).await;
    let data = noise(700_000);
    client
        .stdin_at("w/x", 0)
        .write(data.slice(..400_000))
        .await
        .expect("writes");
    // The same program with the same input, once more.
    let mut again = client.stdin_at("w/x", 0);
    for fault in [Fault::Half, Fault::Lost, Fault::Deadline] {
        fake.state.lock().faults.push_back(fault);
    }
    again.write(data.clone()).await.expect("writes");
    again.end().await.expect("ends");
    assert_eq!(written(&fake), data);
    assert_eq!(again.offset(), Some(700_000));
    assert!(fake.exec("x").input.borrow().eof);
    again.end().await.expect("an end can be repeated");
    let error = again
        .write(Bytes::from_static(b"x"))
        .await
        .expect_err("after the end");
    assert_eq!(error.reason(), Some(ErrorReason::StdinClosed));
    let gap = client.write_stdin(write(Some(800_000), b"x")).await;
    assert!(gap.is_err());
}

/// A source that gives a piece, and then fails or waits.
struct Pieces(Vec<io::Result<&'static [u8]>>);

impl tokio::io::AsyncRead for Pieces {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        match self.0.pop() {
            Some(Ok(data)) => buffer.put_slice(data),
            Some(Err(error)) => return std::task::Poll::Ready(Err(error)),
            None => {}
        }
        std::task::Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_source_that_fails_is_no_end_of_file() {
    let fake = fake();
    let client = fake.client().await;
    start(&client, &["cat"]).await;
    let failing = Pieces(vec![Err(io::Error::other("no more")), Ok(b"half")]);
    let error = client.stdin_end("w/x").copy(failing).await;
    assert!(matches!(error, Err(Error::Io { .. })), "{error:?}");
    assert!(!fake.exec("x").input.borrow().eof);
}

#[tokio::test]
async fn a_terminals_last_size_is_set_through_a_broken_connection() {
    let mut fake = fake();
    let direct = fake.client().await;
    let request = StartExecRequest {
        parent: "w".into(),
        exec_id: "x".into(),
        spec: Some(ExecSpec {
            argv: vec!["bash".into()],
            terminal: Some(ExecTerminal::default()),
            ..Default::default()
        }),
    };
    direct.start_exec(request).await.expect("starts");
    let endpoint = fake.breaking_endpoint(vec![300, 300, 300]);
    let client = Client::connect(&endpoint)
        .await
        .expect("connects")
        .with_retry(skilld_testing::hasty());
    for rows in 1..=20 {
        let request = ResizeTerminalRequest {
            name: "w/x".into(),
            rows,
            cols: 80,
        };
        client.resize_terminal(request).await.expect("resizes");
        let last = fake.exec("x").input.borrow().sizes.last().copied();
        assert_eq!(last, Some((rows, 80)));
    }
}

/// Runs it with bytes on its stdin; its code and what it said.
async fn feed(fake: &Fake, words: &[&str], data: Bytes) -> (Option<i32>, Vec<u8>, String) {
    let mut command = skillctl(fake, words);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let (_, ended) = tokio::join!(
        async move {
            // It need not read all of it.
            drop(stdin.write_all(&data).await);
        },
        child.wait_with_output()
    );
    let output = ended.expect("ends");
    let said = String::from_utf8(output.stderr).expect("utf-8");
    (output.status.code(), output.stdout, said)
}

#[tokio::test]
async fn exec_i_sends_everything_however_much() {
    for len in [0, 1, 5_000_003] {
        let fake = fake();
        for fault in [Fault::Half, Fault::Lost, Fault::Refused] {
            fake.state.lock().faults.push_back(fault);
        }
        let (code, stdout, said) = feed(&fake, &["exec", "w", "-i", "--", "cat"], noise(len)).await;
        assert_eq!((code, said.as_str()), (Some(0), ""), "{len}");
        assert_eq!(stdout, noise(len));
    }
}

#[tokio::test]
async fn exec_i_with_the_id_of_before_sends_what_is_missing() {
    let fake = fake();
    let words = ["exec", "w", "-i", "--id", "x", "--", "cat"];
    let (code, ..) = feed(&fake, &words, Bytes::from_static(b"abc")).await;
    assert_eq!(code, Some(0));
    let (code, stdout, _) = feed(&fake, &words, Bytes::from_static(b"abc")).await;
    assert_eq!((code, stdout.as_slice()), (Some(0), &b"abc"[..]));
    assert_eq!(fake.state.lock().starts, 1);
}

#[tokio::test]
async fn exec_i_sends_bytes_as_they_come() {
    let fake = fake();
    let mut command = skillctl(&fake, &["exec", "w", "-i", "--", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut stdout = child.stdout.take().expect("a pipe");
    for byte in *b"hello" {
        stdin.write_all(&[byte]).await.expect("writes");
        let mut echo = [0];
        let read = tokio::time::timeout(DEADLINE, stdout.read_exact(&mut echo));
        read.await.expect("comes back").expect("reads");
        assert_eq!(echo, [byte]);
    }
    drop(stdin);
    let code = child.wait().await.expect("ends").code();
    assert_eq!(code, Some(0), "our end of file is its end of file");
}

#[tokio::test]
async fn a_program_that_does_not_read_is_no_failure() {
    let fake = fake();
    let data = noise(50_000_000);
    let (code, _, said) = feed(&fake, &["exec", "w", "-i", "--", "exit", "0"], data).await;
    assert_eq!((code, said.as_str()), (Some(0), ""));
}

#[tokio::test]
async fn input_that_nobody_reads_waits_where_it_comes_from() {
    let fake = fake();
    let words = ["exec", "w", "-i", "--id", "x", "--", "deaf"];
    let mut command = skillctl(&fake, &words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    stdout.read_line(&mut line).await.expect("reads");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut sent = 0;
    let flood = [0; 64 * 1024];
    // It stops taking more, and for no other reason than that.
    while let Ok(written) = tokio::time::timeout(Duration::from_secs(2), stdin.write(&flood)).await
    {
        sent += written.expect("writes");
        assert!(sent < 4 * 1024 * 1024, "{sent} bytes are somewhere");
    }
    let running = fake.exec("x");
    until(&running, |input| input.bytes.len() == 64 * 1024).await;
    let client = fake.client().await;
    client.kill_exec("w/x").await.expect("kills");
    assert_eq!(child.wait().await.expect("ends").code(), Some(143));
}

#[tokio::test]
async fn stdin_goes_behind_what_was_written_before() {
    let fake = fake();
    let words = ["exec", "w", "-di", "--id", "x", "--", "cat"];
    let (code, stdout, _) = feed(&fake, &words, Bytes::from_static(b"is not read")).await;
    assert_eq!((code, stdout.as_slice()), (Some(0), &b"w/x\n"[..]));
    for word in [&b"one "[..], b"two ", b"three"] {
        let data = Bytes::from_static(word);
        let (code, stdout, said) = feed(&fake, &["stdin", "w/x"], data).await;
        assert_eq!((code, stdout.len(), said.as_str()), (Some(0), 0, ""));
    }
    assert_eq!(written(&fake), b"one two three");
    let words = ["stdin", "w/x", "--offset", "8", "--eof", "-o", "json"];
    let (code, stdout, _) = feed(&fake, &words, Bytes::from_static(b"three!")).await;
    assert_eq!(code, Some(0));
    assert_eq!(
        stdout,
        b"{\"committedOffset\":\"14\",\"unwrittenBytes\":\"0\",\"eofUnwritten\":false}\n"
    );
    let data = Bytes::from_static(b"more");
    let (code, _, said) = feed(&fake, &["stdin", "w/x"], data).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("EXEC_NOT_RUNNING") && said.contains("skillctl ps"));
    assert_eq!(written(&fake), b"one two three!");
}

#[tokio::test]
async fn an_exec_that_ends_with_what_it_took_needs_no_end_of_file() {
    let fake = fake();
    let words = ["exec", "w", "-di", "--id", "x", "--", "bash"];
    feed(&fake, &words, Bytes::new()).await;
    let data = Bytes::from_static(b"exit 3\r");
    let (code, _, said) = feed(&fake, &["stdin", "w/x", "--eof"], data).await;
    assert_eq!((code, said.as_str()), (Some(0), ""));
    // Nobody took that one.
    let (code, _, said) = feed(&fake, &["stdin", "w/x", "--eof"], Bytes::new()).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("EXEC_NOT_RUNNING"), "{said}");
}

#[tokio::test]
async fn attach_i_writes_to_what_takes_input_and_refuses_the_rest() {
    let fake = fake();
    let client = fake.client().await;
    start(&client, &["cat"]).await;
    client.write_stdin(write(None, b"a")).await.expect("writes");
    let data = Bytes::from_static(b"bc");
    let (code, stdout, _) = feed(&fake, &["attach", "w/x", "-i"], data.clone()).await;
    assert_eq!((code, stdout.as_slice()), (Some(0), &b"abc"[..]));
    // It is over: there is only its output.
    let (code, stdout, _) = feed(&fake, &["attach", "w/x", "-i"], data.clone()).await;
    assert_eq!((code, stdout.as_slice()), (Some(0), &b"abc"[..]));
    let words = ["exec", "w", "-d", "--id", "y", "--", "forever"];
    feed(&fake, &words, Bytes::new()).await;
    let (code, _, said) = feed(&fake, &["attach", "w/y", "-i"], data).await;
    assert_eq!(code, Some(125));
    assert!(said.contains("leave out -i"), "{said}");
}

//! Writes to stdin: no byte is lost or written twice, and no write waits for a program that has ended.

use std::time::{Duration, Instant};

use skilld_proto::guest::v1 as wire;
use skilld_proto::v1;
use skilld_proto::v1::output_event::Content;
use skilld_proto::{Outcome, count_from_int64};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::support::{DEADLINE, Guest, SeenEvents, in_time, process_state, reason, until};

/// Number of tries; one without a pause of the machine is enough.
pub(crate) const TRIES: usize = 10;

/// Starts a program whose stdin is open, and returns its pid.
pub(crate) async fn start(guest: &Guest, id: &str, argv: &[&str]) -> String {
    let mut request = guest.request(id, argv);
    if let Some(spec) = &mut request.spec {
        spec.open_stdin = true;
    }
    let mut client = guest.client.clone();
    let started = client.start_exec(request).await.expect("started");
    started.into_inner().pid.to_string()
}

pub(crate) fn message(
    id: &str,
    offset: Option<u64>,
    data: &[u8],
    eof: bool,
) -> wire::WriteStdinRequest {
    wire::WriteStdinRequest {
        exec_id: id.to_owned(),
        offset,
        data: data.to_vec().into(),
        eof,
        ..Default::default()
    }
}

/// Builds a write that can be repeated at any offset and waits only a moment.
pub(crate) fn known(id: &str, request_id: &str, data: &[u8]) -> wire::WriteStdinRequest {
    wire::WriteStdinRequest {
        request_id: request_id.to_owned(),
        wait: Some(prost_types::Duration {
            seconds: 0,
            nanos: 50_000_000,
        }),
        ..message(id, None, data, false)
    }
}

/// Stops or continues a program.
async fn signal(guest: &Guest, id: &str, signal: i32) {
    let request = wire::SignalExecRequest {
        exec_id: id.to_owned(),
        signal,
        ..Default::default()
    };
    guest
        .client
        .clone()
        .signal_exec(request)
        .await
        .expect("sent");
}

pub(crate) async fn write(guest: &Guest, message: wire::WriteStdinRequest) -> Result<u64, Status> {
    let mut client = guest.client.clone();
    let answer = client.write_stdin(message).await?;
    Ok(count_from_int64(answer.into_inner().committed_offset))
}

pub(crate) async fn stream(
    guest: &Guest,
    messages: Vec<wire::WriteStdinRequest>,
) -> Result<u64, Status> {
    let mut client = guest.client.clone();
    let answer = client.stream_stdin(tokio_stream::iter(messages)).await?;
    Ok(count_from_int64(answer.into_inner().committed_offset))
}

pub(crate) async fn all(guest: &Guest, id: &str) -> SeenEvents {
    let stream = guest.attach(id, 0).await;
    SeenEvents::all(stream).await.expect("ends well")
}

pub(crate) async fn kill(guest: &Guest, id: &str) -> v1::Exec {
    let request = wire::KillExecRequest {
        exec_id: id.to_owned(),
        grace: Some(prost_types::Duration::default()),
        ..Default::default()
    };
    let mut client = guest.client.clone();
    client
        .kill_exec(request)
        .await
        .expect("killed")
        .into_inner()
}

/// Waits until an exec's output ends with a text.
pub(crate) async fn says(guest: &Guest, id: &str, text: &str) {
    let begin = Instant::now();
    loop {
        let request = wire::PollExecRequest {
            exec_id: id.to_owned(),
            max_bytes: 1 << 20,
            format: v1::OutputFormat::Text.into(),
            ..Default::default()
        };
        let answer = guest.client.clone().poll_exec(request).await;
        let output = answer.expect("polled").into_inner().outputs;
        let said: String = output
            .iter()
            .filter_map(|output| match &output.content {
                Some(Content::Text(text)) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        if said.ends_with(text) {
            return;
        }
        assert!(begin.elapsed() < DEADLINE, "said {said:?}");
    }
}

pub(crate) fn assert_refused<T: std::fmt::Debug>(
    answer: Result<T, Status>,
    code: Code,
    why: &str,
) -> Status {
    let status = answer.expect_err(why);
    assert_eq!((status.code(), &*reason(&status)), (code, why), "{status}");
    status
}

/// Checks that a write was refused because its program has ended. The guest takes the program for one that only closed
/// its stdin if the guest hears of the end late.
pub(crate) fn assert_ended<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let status = answer.expect_err("the program has ended");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let reasons = ["EXEC_NOT_RUNNING", "STDIN_CLOSED"];
    assert!(reasons.contains(&&*reason(&status)), "{status}");
}

#[tokio::test]
async fn stdin_eof_keeps_output() {
    let guest = Guest::start().await;
    let script = "cat; sleep 0.2; echo after; echo trouble >&2; exit 4";
    start(&guest, "cat", &["bash", "-c", script]).await;
    assert_eq!(
        write(&guest, message("cat", None, b"one ", false))
            .await
            .expect("written"),
        4
    );
    assert_eq!(
        write(&guest, message("cat", None, b"two\n", true))
            .await
            .expect("written"),
        8
    );
    let seen = all(&guest, "cat").await;
    assert_eq!(seen.stdout(), "one two\nafter\n");
    assert_eq!(
        (&*seen.err, seen.outcome()),
        (&b"trouble\n"[..], Outcome::ExitCode(4))
    );
}

#[tokio::test]
async fn a_stdin_retry_at_the_same_offset_writes_once() {
    let guest = Guest::start().await;
    start(&guest, "retry", &["cat"]).await;
    for _ in 0..3 {
        let first = message("retry", Some(0), b"hello ", false);
        assert_eq!(write(&guest, first).await.expect("written"), 6);
    }
    // A retry that reaches further writes what is new of it.
    let longer = message("retry", Some(0), b"hello world", false);
    assert_eq!(write(&guest, longer).await.expect("written"), 11);
    let beyond = write(&guest, message("retry", Some(12), b"!", false)).await;
    let refused = assert_refused(beyond, Code::OutOfRange, "INVALID_REQUEST");
    let info = refused.get_details_error_info().expect("an ErrorInfo");
    let entry = |key: &str| info.metadata.get(key).map(String::as_str);
    assert_eq!(
        (entry("field"), entry("committed_offset")),
        (Some("offset"), Some("11"))
    );
    for _ in 0..3 {
        let end = message("retry", Some(11), b"\n", true);
        assert_eq!(write(&guest, end).await.expect("written"), 12);
    }
    let seen = all(&guest, "retry").await;
    assert_eq!(seen.stdout(), "hello world\n");
    // The exec has ended; what was written was written.
    let end = message("retry", Some(11), b"\n", true);
    assert_eq!(write(&guest, end).await.expect("written"), 12);
    let again = message("retry", Some(0), b"hello", false);
    assert_eq!(write(&guest, again).await.expect("written"), 12);
}

#[tokio::test]
async fn a_write_with_an_id_resumes_despite_writes_in_between() {
    let guest = Guest::start().await;
    let pid = start(&guest, "cat", &["cat"]).await;
    signal(&guest, "cat", 19).await;
    until("the program stops", || process_state(&pid) == Some('T')).await;
    let long: Vec<u8> = (0..200_000_u32).map(|n| b'a' + (n % 26) as u8).collect();
    let mut client = guest.client.clone();
    let mut put = async |write| client.write_stdin(write).await.expect("taken").into_inner();
    let first = put(known("cat", "long", &long)).await;
    assert!(first.committed_offset > 0 && first.unwritten_bytes > 0);
    assert_eq!(first.committed_offset + first.unwritten_bytes, 200_000);
    // Nothing fits, and nothing of the first is there twice.
    assert_eq!(put(known("cat", "long", &long)).await, first);
    let other = put(known("cat", "other", b"!")).await;
    assert_eq!(other.unwritten_bytes, 1);
    // What waits for its turn is left, too; nobody's data is waited for longer than its writer wants.
    let blocked = message("cat", None, b"?", false);
    let mut blocked = Box::pin(write(&guest, blocked));
    let stuck = tokio::time::timeout(Duration::from_millis(100), &mut blocked).await;
    assert!(stuck.is_err(), "the pipe is full");
    assert_eq!(put(known("cat", "long", &long)).await, first);
    signal(&guest, "cat", 18).await;
    blocked.await.expect("written");
    let mut rest = known("cat", "long", &long);
    (rest.wait, rest.eof) = (None, true);
    for _ in 0..2 {
        let written = put(rest.clone()).await;
        assert_eq!(
            (written.committed_offset, written.unwritten_bytes),
            (200_001, 0)
        );
    }
    let mut expected = long;
    let at = usize::try_from(first.committed_offset).expect("small");
    expected.insert(at, b'?');
    assert!(all(&guest, "cat").await.out == expected);
}

#[tokio::test]
async fn equal_writes_with_ids_of_their_own_are_all_written() {
    let guest = Guest::start().await;
    start(&guest, "cat", &["cat"]).await;
    for id in ["a", "b", "b", "a"] {
        let line = wire::WriteStdinRequest {
            wait: None,
            ..known("cat", id, b"1\n")
        };
        write(&guest, line).await.expect("written");
    }
    write(&guest, message("cat", None, b"", true))
        .await
        .expect("written");
    assert_eq!(all(&guest, "cat").await.stdout(), "1\n1\n");
}

#[tokio::test]
async fn a_stream_that_is_sent_again_writes_nothing_twice() {
    let guest = Guest::start().await;
    start(&guest, "again", &["cat"]).await;
    assert_eq!(
        write(&guest, message("again", None, b"aaaabb", false))
            .await
            .expect("written"),
        6
    );
    let messages = vec![
        message("again", Some(0), b"aaaa", false),
        message("", None, b"bbbb", false),
        message("", None, b"cccc", true),
    ];
    for _ in 0..2 {
        assert_eq!(stream(&guest, messages.clone()).await.expect("written"), 12);
    }
    assert_eq!(all(&guest, "again").await.stdout(), "aaaabbbbcccc");
}

#[tokio::test]
async fn writers_are_taken_in_turn() {
    let guest = Guest::start().await;
    start(&guest, "turns", &["cat"]).await;
    let line = |letter: u8| {
        let mut line = vec![letter; 300_000];
        line.push(b'\n');
        line
    };
    let writers = (b'a'..=b'h').map(|letter| {
        let guest = &guest;
        async move { write(guest, message("turns", None, &line(letter), false)).await }
    });
    let reader = all(&guest, "turns");
    let writers = async {
        let mut committed: Vec<_> = futures::future::join_all(writers)
            .await
            .into_iter()
            .map(|one| one.expect("written"))
            .collect();
        committed.sort_unstable();
        let each: Vec<u64> = (1..=8).map(|n| n * 300_001).collect();
        assert_eq!(committed, each);
        write(&guest, message("turns", None, b"", true)).await
    };
    let (seen, written) = tokio::join!(reader, writers);
    assert_eq!(written.expect("written"), 8 * 300_001);
    let mut lines: Vec<Vec<u8>> = seen
        .out
        .split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    lines.sort();
    let expected: Vec<Vec<u8>> = (b'a'..=b'h').map(line).collect();
    assert!(lines == expected, "no line is mixed with another");
}

#[tokio::test]
async fn a_write_to_a_finished_exec_fails() {
    let guest = Guest::start().await;
    start(&guest, "done", &["true"]).await;
    all(&guest, "done").await;
    let fails = async |messages: Vec<wire::WriteStdinRequest>| {
        let answer = if messages.len() == 1 {
            write(&guest, messages[0].clone()).await
        } else {
            stream(&guest, messages).await
        };
        assert_refused(answer, Code::FailedPrecondition, "EXEC_NOT_RUNNING");
    };
    fails(vec![message("done", None, b"x", false)]).await;
    fails(vec![message("done", Some(0), b"x", true)]).await;
    fails(vec![message("done", None, b"x", false); 2]).await;
    // Without a stdin to write to it fails too.
    guest.sh("null", "true").await;
    fails(vec![message("null", None, b"x", false)]).await;
    let request = guest.request("none", &["sleep", "100"]);
    guest
        .client
        .clone()
        .start_exec(request)
        .await
        .expect("started");
    fails(vec![message("none", None, b"x", false)]).await;
    let nobody = write(&guest, message("nobody", None, b"x", false)).await;
    let refused = assert_refused(nobody, Code::NotFound, "EXEC_NOT_FOUND");
    let info = refused.get_details_error_info().expect("an ErrorInfo");
    assert_eq!(
        info.metadata.get("exec").map(String::as_str),
        Some("nobody")
    );
}

#[tokio::test]
async fn writes_to_closed_stdin_are_refused_with_stdin_closed() {
    let guest = Guest::start().await;
    let script = "exec 0<&-; touch closed; sleep 100";
    start(&guest, "closed", &["bash", "-c", script]).await;
    let file = guest.workspace().join("closed");
    until("it is closed", || file.exists()).await;
    for _ in 0..2 {
        let answer = write(&guest, message("closed", None, b"x", false)).await;
        assert_refused(answer, Code::FailedPrecondition, "STDIN_CLOSED");
    }
    start(&guest, "ended", &["sleep", "100"]).await;
    assert_eq!(
        write(&guest, message("ended", None, b"x", true))
            .await
            .expect("written"),
        1
    );
    assert_eq!(
        write(&guest, message("ended", None, b"", true))
            .await
            .expect("written"),
        1
    );
    let answer = write(&guest, message("ended", None, b"y", false)).await;
    let status = assert_refused(answer, Code::FailedPrecondition, "STDIN_CLOSED");
    let info = status.get_details_error_info().expect("an ErrorInfo");
    assert_eq!(
        info.metadata.get("committed_offset").map(String::as_str),
        Some("1")
    );
}

#[tokio::test]
async fn a_write_that_is_given_up_leaves_the_offset_true() {
    let guest = Guest::start().await;
    let script = "until [ -e go ]; do sleep 0.01; done; sha256sum; echo end";
    start(&guest, "given", &["bash", "-c", script]).await;
    let data: Vec<u8> = (0..1_000_000u32).map(|n| n.to_le_bytes()[1]).collect();
    let whole = message("given", Some(0), &data, true);
    let given_up = write(&guest, whole.clone());
    assert!(
        tokio::time::timeout(Duration::from_millis(200), given_up)
            .await
            .is_err()
    );
    std::fs::write(guest.workspace().join("go"), "").expect("written");
    assert_eq!(write(&guest, whole).await.expect("written"), 1_000_000);
    let seen = all(&guest, "given").await;
    let digest: String = <sha2::Sha256 as sha2::Digest>::digest(&data)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(seen.stdout(), format!("{digest}  -\nend\n"));
}

#[tokio::test]
async fn half_closing_a_stream_leaves_stdin_open() {
    let guest = Guest::start().await;
    start(&guest, "half", &["cat"]).await;
    let messages = vec![message("half", None, b"half ", false)];
    assert_eq!(stream(&guest, messages).await.expect("written"), 5);
    let rest = message("half", Some(5), b"and half\n", true);
    assert_eq!(write(&guest, rest).await.expect("written"), 14);
    assert_eq!(all(&guest, "half").await.stdout(), "half and half\n");
}

#[tokio::test]
async fn a_stream_that_breaks_off_leaves_stdin_open() {
    let guest = Guest::start().await;
    start(&guest, "broken", &["cat"]).await;
    let (sender, receiver) = mpsc::channel(1);
    let mut client = guest.client.clone();
    let call = client.stream_stdin(ReceiverStream::new(receiver));
    sender
        .send(message("broken", None, b"half ", false))
        .await
        .expect("sent");
    tokio::select! {
        answer = call => panic!("answered before the end of the stream: {answer:?}"),
        () = says(&guest, "broken", "half ") => {}
    }
    assert_eq!(
        write(&guest, message("broken", Some(5), b"and half\n", true))
            .await
            .expect("written"),
        14
    );
    assert_eq!(all(&guest, "broken").await.stdout(), "half and half\n");
}

#[tokio::test]
async fn a_silent_stream_ends_with_the_exec() {
    let guest = Guest::start().await;
    start(&guest, "short", &["head", "-c", "3"]).await;
    let (sender, receiver) = mpsc::channel(1);
    let mut client = guest.client.clone();
    let call = client.stream_stdin(ReceiverStream::new(receiver));
    sender
        .send(message("short", None, b"abc", false))
        .await
        .expect("sent");
    let answer = in_time("an answer before the client's end", call).await;
    assert_refused(answer, Code::FailedPrecondition, "EXEC_NOT_RUNNING");
    drop(sender);
    // One that ends in time was written, whatever became of the exec.
    for number in 0..TRIES {
        let id = format!("whole{number}");
        start(&guest, &id, &["head", "-c", "3"]).await;
        let answer = stream(&guest, vec![message(&id, None, b"abc", false)]).await;
        assert_eq!(all(&guest, &id).await.stdout(), "abc");
        if let Ok(committed) = answer {
            assert_eq!(committed, 3);
            return;
        }
        assert_ended(answer);
    }
    panic!("none was written");
}

#[tokio::test]
async fn the_effective_spec_reports_open_stdin_and_omits_stdin_data() {
    let guest = Guest::start().await;
    for (id, data, open) in [
        ("open", "", true),
        ("given", "secret", false),
        ("none", "", false),
    ] {
        let mut request = guest.request(id, &["true"]);
        if let Some(spec) = &mut request.spec {
            (spec.stdin_data, spec.open_stdin) = (data.into(), open);
        }
        let mut client = guest.client.clone();
        let exec = client.start_exec(request).await.expect("started");
        let spec = exec.into_inner().effective_spec.expect("is there");
        assert_eq!(
            (&*spec.stdin_data, spec.open_stdin),
            (&b""[..], open),
            "{id}"
        );
    }
}

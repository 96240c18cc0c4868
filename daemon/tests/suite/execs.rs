//! Tests of ExecService with a client, a whole server, the real guest and real commands: the maximum number of execs,
//! heartbeats, stdin that holds back its client, and calls that time out.

use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::exec_event::output::Content;
use skilld_proto::v1::{self as pb, Reason};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::server::{TestServer, within};

/// Size of one message of stdin, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// Upper bound of the bytes of stdin that are on their way to a program that reads none.
const UNREAD_BYTES_MAX: usize = 64 << 20;

/// Time after which a message that was not accepted is held back. A pause of the machine may only end a test too early.
const HELD_BACK: Duration = Duration::from_secs(3);

/// Returns a request to start a command that `bash` interprets.
fn start_request(workspace: &str, id: &str, shell: &str) -> pb::StartExecRequest {
    pb::StartExecRequest {
        workspace: workspace.to_owned(),
        exec_id: id.to_owned(),
        spec: Some(pb::ExecSpec {
            shell: shell.to_owned(),
            ..pb::ExecSpec::default()
        }),
    }
}

/// Returns a stdin that clients may write to.
fn open_stdin() -> Option<pb::Stdin> {
    Some(pb::Stdin {
        source: Some(pb::stdin::Source::Open(true)),
    })
}

#[track_caller]
fn check_refused(status: &Status, code: Code, reason: Reason) {
    let details = status.get_error_details();
    let found = details.error_info().expect("ErrorInfo").reason.clone();
    let expected = reason.as_str_name().trim_start_matches("REASON_");
    assert_eq!(
        (status.code(), found.as_str()),
        (code, expected),
        "{status:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_stdin_stream_ends_at_the_upload_timeout() {
    let server = TestServer::start("server.upload_timeout = \"300ms\"\n", &[]).await;
    let (sender, receiver) = mpsc::channel::<pb::StreamStdinRequest>(1);
    let asked = Instant::now();
    let mut stub = server.client.execs();
    let written = within(stub.stream_stdin(ReceiverStream::new(receiver))).await;
    let status = written.expect_err("silent");
    check_refused(&status, Code::DeadlineExceeded, Reason::Deadline);
    // The limit for the first message of a stream has another message.
    let message = status.message();
    assert!(message.contains("server.upload_timeout"), "{message}");
    let waited = asked.elapsed();
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
    drop(sender);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_over_the_count_is_refused_and_the_quota_names_the_workspace() {
    let server = TestServer::start_with_commands("execs.count_max = 1\n").await;
    let workspace = server.workspace().await;
    let start = |id: &str| start_request(&workspace, id, "sleep 3600");
    let first = server.client.start_exec(start("first")).await;
    let first = first.expect("started").name;
    let second = server.client.execs().start_exec(start("second")).await;
    let status = second.expect_err("one exec runs");
    check_refused(&status, Code::ResourceExhausted, Reason::QuotaExceeded);
    let details = status.get_error_details();
    let violations = &details.quota_failure().expect("QuotaFailure").violations;
    let subjects: Vec<&str> = violations.iter().map(|one| one.subject.as_str()).collect();
    assert_eq!(subjects, [workspace.as_str()]);
    // The end of the first exec makes room.
    server.client.kill_exec(&first).await.expect("killed");
    let third = server.client.start_exec(start("third")).await;
    let third = third.expect("started").name;
    let third = server.client.get_exec(&third).await.expect("there");
    assert_eq!(third.state(), pb::ExecState::Running, "{third:?}");
    assert!(server.stop().await);
}

/// Returns the next event of an exec, which must go on.
async fn next_event(events: &mut tonic::Streaming<pb::ExecEvent>) -> Event {
    let event = within(events.message()).await.expect("events");
    let event = event.expect("the exec goes on").event;
    event.expect("an event")
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_exec_with_a_terminal_sends_heartbeats_and_is_usable_afterwards() {
    let server = TestServer::start_with_commands("execs.heartbeat = \"50ms\"\n").await;
    let workspace = server.workspace().await;
    let request = pb::RunExecRequest {
        workspace: workspace.clone(),
        exec_id: "idle".to_owned(),
        spec: Some(pb::ExecSpec {
            shell: "read -r line; echo got $line".to_owned(),
            stdin: open_stdin(),
            terminal: Some(pb::Terminal::default()),
            ..pb::ExecSpec::default()
        }),
        ..pb::RunExecRequest::default()
    };
    let events = server.client.execs().run_exec(request).await;
    let mut events = events.expect("running").into_inner();
    let mut heartbeats = 0;
    while heartbeats < 5 {
        let event = next_event(&mut events).await;
        heartbeats += usize::from(matches!(event, Event::Heartbeat(_)));
    }
    let line = pb::WriteStdinRequest {
        name: format!("{workspace}/execs/idle"),
        data: Bytes::from_static(b"awake\r"),
        ..pb::WriteStdinRequest::default()
    };
    server.client.write_stdin(line).await.expect("written");
    let mut text = String::new();
    while !text.ends_with("awake\r\ngot awake\r\n") {
        if let Event::Output(output) = next_event(&mut events).await
            && let Some(Content::Data(data)) = output.content
        {
            text.push_str(&String::from_utf8_lossy(&data));
        }
    }
    drop(events);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn stdin_that_a_program_does_not_read_holds_back_its_client() {
    let server = TestServer::start_with_commands("").await;
    let workspace = server.workspace().await;
    let mut start = start_request(&workspace, "deaf", "sleep 3600");
    start.spec.get_or_insert_default().stdin = open_stdin();
    let name = server.client.start_exec(start).await.expect("started").name;
    let (sender, receiver) = mpsc::channel::<pb::StreamStdinRequest>(1);
    let mut stub = server.client.execs();
    let mut call = pin!(stub.stream_stdin(ReceiverStream::new(receiver)));
    let feed = async {
        let data = Bytes::from(vec![b'x'; CHUNK_BYTES]);
        let mut accepted = 0;
        while accepted < UNREAD_BYTES_MAX {
            let message = pb::StreamStdinRequest {
                name: name.clone(),
                data: data.clone(),
                ..pb::StreamStdinRequest::default()
            };
            let sent = tokio::time::timeout(HELD_BACK, sender.send(message)).await;
            let Ok(sent) = sent else { break };
            sent.expect("the call goes on");
            accepted += CHUNK_BYTES;
        }
        accepted
    };
    let accepted = tokio::select! {
        answer = &mut call => panic!("answered: {answer:?}"),
        accepted = feed => accepted,
    };
    assert!(accepted < UNREAD_BYTES_MAX, "nothing held the client back");
    // The end of the exec ends the call.
    let (answer, killed) = tokio::join!(within(call), server.client.kill_exec(&name));
    killed.expect("killed");
    let status = answer.expect_err("the exec has ended");
    // The pipe may be closed before the guest has seen the end.
    let details = status.get_error_details();
    let reason = details.error_info().expect("ErrorInfo").reason.as_str();
    assert!(
        ["EXEC_NOT_RUNNING", "STDIN_CLOSED"].contains(&reason),
        "{status:?}"
    );
    drop(sender);
    assert!(server.stop().await);
}

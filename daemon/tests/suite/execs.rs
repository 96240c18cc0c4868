//! Tests of ExecService with a client, a whole server, the real guest and real commands: the maximum number of execs,
//! stdin over several streams and from clients that it holds back, and calls that time out.

use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::output_event::Content;
use skilld_proto::v1::{self as pb, ErrorReason};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::server::{TestServer, within};

/// Size of one message of stdin, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes of stdin for which the guest has room, while a program reads none.
const GUEST_BYTES: usize = 2 << 20;

/// Upper bound of the bytes of stdin that are on their way to a program that reads none.
const UNREAD_BYTES_MAX: usize = 64 << 20;

/// Time after which a message that was not accepted is held back. A pause of the machine may only end a test too early.
const HELD_BACK: Duration = Duration::from_secs(3);

/// Returns a request to start a command that `bash` interprets.
fn start_request(workspace: &str, id: &str, shell: &str) -> pb::StartExecRequest {
    pb::StartExecRequest {
        parent: workspace.to_owned(),
        exec_id: id.to_owned(),
        spec: Some(pb::ExecSpec {
            shell: shell.to_owned(),
            ..pb::ExecSpec::default()
        }),
    }
}

fn stdin_header(name: &str) -> pb::StreamStdinHeader {
    pb::StreamStdinHeader {
        name: name.to_owned(),
        offset: None,
    }
}

#[track_caller]
fn check_refused(status: &Status, code: Code, reason: ErrorReason) {
    let details = status.get_error_details();
    let found = details.error_info().expect("ErrorInfo").reason.clone();
    let expected = reason.error_info_name();
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
    check_refused(&status, Code::DeadlineExceeded, ErrorReason::Deadline);
    // The limit for the first message of a stream has another message.
    let message = status.message();
    assert!(message.contains("server.upload_timeout"), "{message}");
    let waited = asked.elapsed();
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
    drop(sender);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_over_the_count_is_refused_naming_its_workspace() {
    let server = TestServer::start_with_commands("execs.count_max = 1\n", &[]).await;
    let workspace = server.workspace().await;
    let start = |id: &str| start_request(&workspace, id, "sleep 3600");
    let first = server
        .client
        .start_exec(start("first"))
        .await
        .expect("started")
        .name;
    let second = server.client.execs().start_exec(start("second")).await;
    let status = second.expect_err("one exec runs");
    check_refused(&status, Code::ResourceExhausted, ErrorReason::QuotaExceeded);
    let details = status.get_error_details();
    let violations = &details.quota_failure().expect("QuotaFailure").violations;
    let subjects: Vec<&str> = violations.iter().map(|one| one.subject.as_str()).collect();
    assert_eq!(subjects, [workspace.as_str()]);
    // The end of the first exec makes room.
    server.client.kill_exec(&first).await.expect("killed");
    let started = server
        .client
        .start_exec(start("third"))
        .await
        .expect("started");
    let third = server.client.get_exec(&started.name).await.expect("there");
    assert_eq!(third.state(), pb::ExecState::Running, "{third:?}");
    assert!(server.stop().await);
}

/// Returns the next event of an exec, which must go on.
async fn next_event(events: &mut tonic::Streaming<pb::ExecEvent>) -> Event {
    within(events.message())
        .await
        .expect("events")
        .expect("the exec goes on")
        .event
        .expect("an event")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_exec_names_the_processes_that_ended_with_it() {
    let server = TestServer::start_with_commands("", &[]).await;
    let workspace = server.workspace().await;
    let text = "setsid sleep 1009 > /dev/null 2>&1 & \
                until read -rd '' name < /proc/$!/cmdline && [ \"$name\" = sleep ]; do :; done";
    let start = start_request(&workspace, "server", text);
    let name = server.client.start_exec(start).await.expect("started").name;
    let request = pb::AttachExecRequest {
        name: name.clone(),
        ..pb::AttachExecRequest::default()
    };
    let mut events = server
        .client
        .execs()
        .attach_exec(request)
        .await
        .expect("attached")
        .into_inner();
    let closed = loop {
        if let Event::Closed(closed) = next_event(&mut events).await {
            break closed;
        }
    };
    let ended = closed.ended_processes.expect("named");
    let named = (ended.count, ended.command_lines.clone());
    assert_eq!(named, (1, vec!["sleep 1009".to_owned()]));
    let exec = server.client.get_exec(&name).await.expect("there");
    let result = exec.result.expect("a result");
    assert_eq!(result.ended_processes, Some(ended));
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_program_is_told_more_cores_than_the_host_has() {
    // The host of the fake engine has three cores.
    for (cpus, threads) in [("1.5", "2"), ("64.0", "3")] {
        let pool = format!("pools.default.cpus = {cpus}\n");
        let server = TestServer::start_with_commands(&pool, &[]).await;
        let request = pb::RunExecRequest {
            parent: server.workspace().await,
            spec: Some(pb::ExecSpec {
                shell: "echo $OMP_NUM_THREADS $GOMAXPROCS $PYTHON_CPU_COUNT".to_owned(),
                ..pb::ExecSpec::default()
            }),
            ..pb::RunExecRequest::default()
        };
        let mut events = server
            .client
            .execs()
            .run_exec(request)
            .await
            .expect("running")
            .into_inner();
        let mut text = String::new();
        while !text.ends_with('\n') {
            if let Event::Output(output) = next_event(&mut events).await
                && let Some(Content::Data(data)) = output.content
            {
                text.push_str(&String::from_utf8_lossy(&data));
            }
        }
        assert_eq!(text, format!("{threads} {threads} {threads}\n"), "{cpus}");
        drop(events);
        assert!(server.stop().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stdin_that_a_program_does_not_read_holds_back_its_client() {
    let server = TestServer::start_with_commands("", &[]).await;
    let workspace = server.workspace().await;
    // HTTP/2 ends a connection on which too many small messages wait.
    for (id, bytes) in [("chunks", CHUNK_BYTES), ("lines", 9)] {
        let mut start = start_request(&workspace, id, "sleep 3600");
        start.spec.get_or_insert_default().open_stdin = true;
        let name = server.client.start_exec(start).await.expect("started").name;
        let (sender, receiver) = mpsc::channel::<pb::StreamStdinRequest>(1);
        let mut stub = server.client.execs();
        let mut call = pin!(stub.stream_stdin(ReceiverStream::new(receiver)));
        let feed = async {
            let chunk = Bytes::from(vec![b'x'; CHUNK_BYTES]);
            let mut accepted = 0;
            while accepted < UNREAD_BYTES_MAX {
                let has_room = accepted < GUEST_BYTES;
                let size = if has_room { CHUNK_BYTES } else { bytes };
                let name = if accepted == 0 { name.as_str() } else { "" };
                let message = pb::StreamStdinRequest {
                    header: (accepted == 0).then(|| stdin_header(name)),
                    data: chunk.slice(..size),
                    ..pb::StreamStdinRequest::default()
                };
                let sent = tokio::time::timeout(HELD_BACK, sender.send(message)).await;
                let Ok(sent) = sent else { break };
                sent.expect("the call goes on");
                accepted += size;
            }
            accepted
        };
        let accepted = tokio::select! {
            answer = &mut call => panic!("{id} are answered: {answer:?}"),
            accepted = feed => accepted,
        };
        assert!(accepted < UNREAD_BYTES_MAX, "nothing held {id} back");
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
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_stream_is_not_the_end_of_stdin() {
    let server = TestServer::start_with_commands("", &[]).await;
    let mut start = start_request(&server.workspace().await, "cat", "cat");
    start.spec.get_or_insert_default().open_stdin = true;
    let name = server.client.start_exec(start).await.expect("started").name;
    for (text, eof) in [("a", false), ("b", true)] {
        let message = pb::StreamStdinRequest {
            header: Some(stdin_header(&name)),
            data: Bytes::from_static(text.as_bytes()),
            eof,
        };
        let messages = futures::stream::iter([message]);
        let written = within(server.client.execs().stream_stdin(messages)).await;
        written.expect("written");
    }
    let request = pb::AttachExecRequest {
        name,
        ..pb::AttachExecRequest::default()
    };
    let mut events = server
        .client
        .execs()
        .attach_exec(request)
        .await
        .expect("attached")
        .into_inner();
    let mut output = Vec::new();
    loop {
        let event = next_event(&mut events).await;
        if matches!(event, Event::Closed(_)) {
            break;
        }
        if let Event::Output(part) = event
            && let Some(Content::Data(data)) = part.content
        {
            output.extend_from_slice(&data);
        }
    }
    assert_eq!(output, b"ab");
    assert!(server.stop().await);
}

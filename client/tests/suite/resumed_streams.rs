//! `run_resuming`: whatever breaks and wherever, the events are those of an unbroken stream.

use sha2::{Digest, Sha256};
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::output_event::Content;
use skilld_client::v1::{
    AttachExecRequest, CollectSpec, ErrorReason, ExecSpec, OutputStream, RunExecRequest,
    RunOutputs, Workspace, WorkspaceTemplate,
};
use skilld_client::{Client, Error, ExecStream, RetryPolicy};
use tonic::{Code, Status};

use skilld_testing::collection_messages::{self, file, summary};
use skilld_testing::{EVENTS, Fake, PRINTED, hasty, noise, refusal};

/// Events of a stream, counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Got {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    started: u32,
    exited: u32,
    closed: u32,
}

async fn read(events: &mut ExecStream) -> Result<Got, Error> {
    let mut got = Got::default();
    while let Some(event) = events.next().await? {
        match event.event.expect("an event") {
            Event::Started(_) => got.started += 1,
            Event::Output(output) => {
                let stream = output.stream();
                let Some(Content::Data(data)) = output.content else {
                    panic!("bytes were asked for");
                };
                match stream {
                    OutputStream::Stderr => got.stderr.extend_from_slice(&data),
                    OutputStream::Stdout | OutputStream::Unspecified => {
                        got.stdout.extend_from_slice(&data);
                    }
                }
            }
            Event::Exited(_) => got.exited += 1,
            Event::Closed(_) => got.closed += 1,
            Event::Gap(_)
            | Event::Heartbeat(_)
            | Event::Workspace(_)
            | Event::Staged(_)
            | Event::File(_)
            | Event::FileData(_)
            | Event::FileEnd(_)
            | Event::Summary(_) => {}
        }
    }
    Ok(got)
}

fn check_whole(got: &Got) {
    assert_eq!((got.started, got.exited, got.closed), (1, 1, 1));
    assert_eq!(Sha256::digest(&got.stdout), Sha256::digest(&*PRINTED));
    let half: usize = PRINTED
        .chunks(65536)
        .step_by(2)
        .map(|chunk| chunk.len() / 2)
        .sum();
    assert_eq!(got.stderr.len(), half);
}

fn workspace(fake: &Fake) {
    let workspaces = &mut fake.state.lock().workspaces;
    workspaces.insert("workspaces/w".into(), Workspace::default());
}

fn print(client: &Client) -> ExecStream {
    client.run_resuming(request("print"))
}

fn request(word: &str) -> RunExecRequest {
    RunExecRequest {
        parent: "w".into(),
        spec: Some(ExecSpec {
            argv: vec![word.into()],
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_stream_broken_after_any_event_loses_and_repeats_nothing() {
    let fake = Fake::start();
    workspace(&fake);
    let client = fake.client().await;
    let unbroken = read(&mut print(&client)).await.expect("reads");
    check_whole(&unbroken);
    // Started, 9 pieces of stderr, 17 of stdout, Exited, Closed.
    for after in 0..29 {
        let ways = [
            None,
            Some(Status::unknown("h2 protocol error")),
            Some(refusal(Code::Unavailable, "DRAINING", &[])),
            Some(refusal(Code::Aborted, "GUEST_LOST", &[])),
        ];
        for status in ways {
            fake.calls.break_after(EVENTS, after, status);
            let mut events = print(&client);
            let got = read(&mut events).await.expect("resumes");
            assert_eq!(got, unbroken, "broken after {after} events");
            assert_eq!(events.times_resumed(), u32::from(after < 29), "{after}");
        }
    }
}

#[tokio::test]
async fn a_run_broken_after_any_event_loses_and_repeats_nothing() {
    let fake = Fake::start();
    let client = fake.client().await;
    let large = noise(300 * 1024);
    let link = collection_messages::link("out/now", "a");
    let files = [
        file("out/a", b"1"),
        link,
        file("out/b", &large),
        vec![summary()],
    ];
    fake.answer_collections(files.concat());
    let mut unbroken = Vec::new();
    // Workspace, Staged, Started, Output, Exited, Closed, three events of a, a link, four of b, and the summary.
    for after in (0..16).rev() {
        if after < 15 {
            fake.calls.break_after(EVENTS, after, None);
        }
        let mut events = client.run_resuming(RunExecRequest {
            parent: String::new(),
            workspace_template: Some(WorkspaceTemplate::default()),
            skills: vec!["csv-report".into()],
            outputs: Some(RunOutputs {
                spec: Some(CollectSpec::default()),
                ..Default::default()
            }),
            exec_id: format!("x-{after}"),
            ..request("hello")
        });
        let mut seen = Vec::new();
        while let Some(event) = events.next().await.expect("resumes") {
            // The names are of this run, and a repeated request stages nothing.
            seen.extend(event.event.filter(|event| {
                !matches!(
                    event,
                    Event::Workspace(_) | Event::Staged(_) | Event::Started(_)
                )
            }));
        }
        if unbroken.is_empty() {
            assert_eq!(seen.len(), 12);
            unbroken.clone_from(&seen);
        }
        assert_eq!(seen, unbroken, "broken after {after} events");
        assert_eq!(events.times_resumed(), u32::from(after < 15), "{after}");
    }
    let state = fake.state.lock();
    assert_eq!((state.starts, state.workspaces.len()), (16, 0));
}

#[tokio::test]
async fn a_stream_that_keeps_breaking_resumes_while_it_progresses() {
    let fake = Fake::start();
    workspace(&fake);
    let client = fake.client().await;
    for _ in 0..9 {
        fake.calls.break_after(EVENTS, 4, None);
    }
    let mut events = print(&client);
    check_whole(&read(&mut events).await.expect("resumes"));
    assert_eq!(events.times_resumed(), 9);
    assert_eq!(fake.state.lock().starts, 1, "started once");
    let attached = fake.calls.requests::<AttachExecRequest>("AttachExec");
    let mut reached = 0;
    for request in attached {
        let offset = request.offsets.unwrap_or_default().stdout_bytes;
        assert!(offset > reached, "{offset} after {reached}");
        reached = offset;
    }
}

#[tokio::test]
async fn a_connection_broken_at_any_byte_loses_and_repeats_nothing() {
    for cut in [120, 400, 1_000, 65_000, 65_700, 300_000, 1_000_001] {
        let mut fake = Fake::start();
        workspace(&fake);
        let endpoint = fake.breaking_endpoint(vec![cut, 200_000]);
        let client = Client::connect(&endpoint)
            .await
            .expect("connects")
            .with_retry(hasty());
        let mut events = print(&client);
        check_whole(&read(&mut events).await.expect("resumes"));
        assert!(
            events.times_resumed() > 0 || fake.calls.count(EVENTS) > 1,
            "cut at {cut}"
        );
        assert_eq!(fake.state.lock().starts, 1, "started once, cut at {cut}");
    }
}

#[tokio::test]
async fn a_stream_gives_up_when_nothing_new_comes_and_says_where() {
    let fake = Fake::start();
    workspace(&fake);
    let client = fake.client().await.with_retry(RetryPolicy {
        resume_window: std::time::Duration::from_millis(50),
        ..hasty()
    });
    // Started and two pieces, then Started again and again.
    fake.calls.break_after(EVENTS, 3, None);
    for _ in 1..10_000 {
        fake.calls.break_after(EVENTS, 1, None);
    }
    let mut events = print(&client);
    let error = read(&mut events).await.expect_err("gives up");
    let Error::StreamLost { stdout, stderr, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!((*stdout, *stderr), (65_536, 32_768));
    assert_eq!(events.offsets().stdout_bytes, 65_536);
    assert!(events.next().await.expect("no second error").is_none());
}

#[tokio::test]
async fn a_refusal_is_handed_over_at_once() {
    let fake = Fake::start();
    let client = fake.client().await;
    let mut events = print(&client);
    let error = events.next().await.expect_err("there is no workspace");
    assert_eq!(error.reason(), Some(ErrorReason::WorkspaceNotFound));
    workspace(&fake);
    fake.calls.take();
    let dropped = [("oldest_offset", "7")];
    let dropped = refusal(Code::OutOfRange, "OUTPUT_DROPPED", &dropped);
    fake.calls.break_after(EVENTS, 2, Some(dropped));
    let error = read(&mut print(&client)).await.expect_err("refused");
    assert_eq!(error.reason(), Some(ErrorReason::OutputDropped));
    assert_eq!(fake.calls.count(EVENTS), 1, "not tried again");
}

#[tokio::test]
async fn attaching_starts_at_the_offsets_given() {
    let fake = Fake::start();
    workspace(&fake);
    let client = fake.client().await;
    let mut events = client.run_resuming(RunExecRequest {
        exec_id: "x".into(),
        ..request("print")
    });
    assert_eq!(events.name(), "workspaces/w/execs/x");
    check_whole(&read(&mut events).await.expect("reads"));
    let mut events = client.attach_resuming(AttachExecRequest {
        name: "w/x".into(),
        offsets: Some(skilld_client::v1::StreamOffsets {
            stdout_bytes: 1_000_000,
            stderr_bytes: 300_000,
        }),
        ..Default::default()
    });
    let got = read(&mut events).await.expect("reads");
    assert_eq!(got.stdout, PRINTED[1_000_000..]);
    assert_eq!((got.exited, got.closed), (1, 1));
}

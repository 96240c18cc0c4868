//! Limits of the number of streams. A stalled stream costs the guest its buffers.

use futures::StreamExt;
use futures::stream::{self, pending};
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1;
use tokio::task::JoinSet;
use tonic::{Code, Status, Streaming};

use crate::support::{Guest, reason};

const OF_ONE: usize = 128;
const OF_ALL: usize = 512;
const INPUTS: usize = 32;

fn assert_too_many<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let status = answer.expect_err("too many");
    let seen = (status.code(), &*reason(&status));
    assert_eq!(
        seen,
        (Code::ResourceExhausted, "QUOTA_EXCEEDED"),
        "{status}"
    );
}

async fn attach(guest: &Guest, id: &str) -> Result<Streaming<v1::ExecEvent>, Status> {
    let exec_id = id.to_owned();
    let request = wire::AttachExecRequest {
        exec_id,
        ..Default::default()
    };
    let stream = guest.client.clone().attach_exec(request).await?;
    Ok(stream.into_inner())
}

#[tokio::test]
async fn streams_of_events_are_bounded_and_a_refused_one_starts_nothing() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let mut streams = Vec::new();
    for id in ["a", "b", "c", "d", "e"] {
        let request = guest.request(id, &["sleep", "100"]);
        client.start_exec(request).await.expect("started");
    }
    for id in ["a", "b", "c", "d"] {
        for _ in 0..OF_ONE {
            streams.push(attach(&guest, id).await.expect("attached"));
        }
        assert_too_many(attach(&guest, id).await);
    }
    assert_eq!(streams.len(), OF_ALL);
    assert_too_many(attach(&guest, "e").await);
    let request = guest.request("f", &["touch", "ran"]);
    assert_too_many(client.run_exec(request.clone()).await);
    let exec_id = "f".to_owned();
    let get = client.get_exec(wire::GetExecRequest { exec_id }).await;
    assert_eq!(get.expect_err("not started").code(), Code::NotFound);
    assert!(!guest.workspace().join("ran").exists());
    // Places come back with those that go.
    drop(streams);
    while let Err(status) = attach(&guest, "e").await {
        assert_too_many(Err::<(), _>(status));
    }
    guest.run(request).await;
}

#[tokio::test]
async fn streams_of_input_are_bounded() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let mut request = guest.request("cat", &["cat"]);
    if let Some(spec) = &mut request.spec {
        let source = Some(v1::stdin::Source::Open(true));
        spec.stdin = Some(v1::Stdin { source });
    }
    client.start_exec(request).await.expect("started");
    let message = wire::WriteStdinRequest {
        exec_id: "cat".to_owned(),
        data: b"x".as_slice().into(),
        ..Default::default()
    };
    let mut open = JoinSet::new();
    for _ in 0..INPUTS {
        let mut client = guest.client.clone();
        let first = stream::iter([message.clone()]);
        open.spawn(async move { client.stream_stdin(first.chain(pending())).await });
    }
    // Each has written its byte when all are there.
    let mut events = attach(&guest, "cat").await.expect("attached");
    let mut bytes = 0;
    while bytes < INPUTS {
        let event = events.message().await.expect("an event").expect("runs on");
        if let Some(v1::exec_event::Event::Output(output)) = event.event
            && let Some(v1::exec_event::output::Content::Data(data)) = output.content
        {
            bytes += data.len();
        }
    }
    let once = || stream::iter([message.clone()]);
    assert_too_many(client.stream_stdin(once()).await);
    open.abort_all();
    while let Err(status) = client.stream_stdin(once()).await {
        assert_too_many(Err::<(), _>(status));
    }
}

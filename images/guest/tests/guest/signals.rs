//! Signals that clients send, once each however often the request is repeated.

use skilld_proto::Outcome;
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::{self, ExitReason};
use tonic::{Status, Streaming};

use crate::support::{Guest, SeenEvents, reason};

const USR1: i32 = 10;
const USR2: i32 = 12;
const TERM: i32 = 15;

/// Runs the exec `sig`, which counts each USR1 and names each USR2, until it is ready.
async fn start(guest: &Guest) -> (Streaming<v1::ExecEvent>, SeenEvents) {
    let script = "trap 'echo usr1 $((++n))' USR1; trap 'echo usr2' USR2; echo ready; while :; do sleep 0.02; done";
    let request = guest.request("sig", &["bash", "-c", script]);
    let stream = guest.client.clone().run_exec(request).await;
    let (mut stream, mut seen) = (stream.expect("runs").into_inner(), SeenEvents::default());
    says(&mut seen, &mut stream, "ready\n").await;
    (stream, seen)
}

/// Waits until the output so far is `text`, or something else as long.
async fn says(seen: &mut SeenEvents, stream: &mut Streaming<v1::ExecEvent>, text: &str) {
    seen.take_until(stream, text, |seen| seen.out.len() >= text.len())
        .await;
    assert_eq!(seen.stdout(), text);
}

async fn send(guest: &Guest, signal: i32, request_id: &str) -> Result<v1::Exec, Status> {
    let request = wire::SignalExecRequest {
        exec_id: "sig".to_owned(),
        signal,
        request_id: request_id.to_owned(),
        ..Default::default()
    };
    let answer = guest.client.clone().signal_exec(request).await?;
    Ok(answer.into_inner())
}

#[tokio::test]
async fn signals_reach_whom_they_are_for() {
    let guest = Guest::start().await;
    let (mut stream, mut seen) = start(&guest).await;
    for text in ["ready\nusr1 1\n", "ready\nusr1 1\nusr1 2\n"] {
        send(&guest, USR1, "").await.expect("sent");
        says(&mut seen, &mut stream, text).await;
    }
    send(&guest, TERM, "").await.expect("sent");
    seen.take_until(&mut stream, "closed", |seen| seen.total.is_some())
        .await;
    assert_eq!(seen.outcome(), Outcome::Signal(TERM));
    assert_eq!(seen.reason(), ExitReason::Signaled);
    let late = send(&guest, TERM, "").await.expect_err("over");
    assert_eq!(reason(&late), "EXEC_NOT_RUNNING");
    let bad = send(&guest, 65, "").await.expect_err("no signal");
    assert_eq!(reason(&bad), "INVALID_REQUEST");
}

#[tokio::test]
async fn a_repeated_signal_is_sent_once_even_after_the_end() {
    let guest = Guest::start().await;
    let (mut stream, mut seen) = start(&guest).await;
    send(&guest, USR1, "first").await.expect("sent");
    // A second signal sent earlier could become one with the first.
    says(&mut seen, &mut stream, "ready\nusr1 1\n").await;
    send(&guest, USR1, "first").await.expect("known");
    // The shell would see a second USR1 before this.
    send(&guest, USR2, "second").await.expect("sent");
    says(&mut seen, &mut stream, "ready\nusr1 1\nusr2\n").await;
    send(&guest, USR1, "third").await.expect("sent");
    says(&mut seen, &mut stream, "ready\nusr1 1\nusr2\nusr1 2\n").await;

    send(&guest, TERM, "last").await.expect("sent");
    seen.take_until(&mut stream, "closed", |seen| seen.total.is_some())
        .await;
    for (signal, id) in [(USR1, "first"), (TERM, "last")] {
        let exec = send(&guest, signal, id).await.expect("known");
        assert_eq!(exec.state(), v1::ExecState::Closed);
    }
    let other = send(&guest, USR1, "last")
        .await
        .expect_err("another signal");
    assert_eq!(reason(&other), "INVALID_REQUEST");
    // A refused signal is no known one.
    for _ in 0..2 {
        let late = send(&guest, TERM, "new").await.expect_err("over");
        assert_eq!(reason(&late), "EXEC_NOT_RUNNING");
    }
}

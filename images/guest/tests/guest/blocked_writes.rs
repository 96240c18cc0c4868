//! Writes to stdin that wait because the program reads nothing: their number, their order, and their end.

use std::future::IntoFuture;
use std::time::Duration;

use skilld_proto::Outcome;
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::ExitReason;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::stdin::{
    TRIES, all, assert_ended, assert_refused, kill, known, message, start, stream, write,
};
use crate::support::{Guest, in_time, reason};

#[tokio::test]
async fn an_end_whose_turn_does_not_come_is_reported_as_unwritten() {
    let guest = Guest::start().await;
    start(&guest, "deaf", &["sleep", "1000"]).await;
    let long = message("deaf", None, &[b'x'; 200_000], false);
    let mut blocked = Box::pin(write(&guest, long));
    let mut client = guest.client.clone();
    // A probe that is left unwritten waits behind the long write.
    let full = async {
        let mut written = true;
        while written {
            let probe = client.write_stdin(known("deaf", "", b"x")).await;
            written = probe.expect("an answer").into_inner().unwritten_bytes == 0;
        }
    };
    tokio::select! {
        answer = &mut blocked => panic!("{answer:?}"),
        () = in_time("the pipe is full", full) => {}
    }
    let end = wire::WriteStdinRequest {
        eof: true,
        ..known("deaf", "end", b"")
    };
    let answer = client
        .write_stdin(end)
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!((answer.unwritten_bytes, answer.eof_unwritten), (0, true));
    // An offset beyond all writes is wrong, whichever write has the turn.
    let beyond = wire::WriteStdinRequest {
        offset: Some(1 << 20),
        ..known("deaf", "", b"0123456789")
    };
    let beyond = client.write_stdin(beyond).await;
    assert_refused(beyond, Code::OutOfRange, "INVALID_REQUEST");
    kill(&guest, "deaf").await;
    assert_ended(blocked.await);
}

#[tokio::test]
async fn unread_stdin_of_1_gib_is_held_back_at_the_client() {
    let guest = Guest::start().await;
    start(&guest, "deaf", &["sleep", "1000"]).await;
    let (sender, receiver) = mpsc::channel(1);
    let mut client = guest.client.clone();
    let mut call = Box::pin(
        client
            .stream_stdin(ReceiverStream::new(receiver))
            .into_future(),
    );
    let mut sent: u64 = 0;
    let feed = async {
        let chunk = vec![b'x'; 256 * 1024];
        while sent < 1 << 30 {
            let message = message("deaf", None, &chunk, false);
            let stuck =
                tokio::time::timeout(Duration::from_millis(500), sender.send(message)).await;
            if stuck.is_err() {
                return;
            }
            sent += chunk.len() as u64;
        }
        panic!("nothing held the writes back");
    };
    tokio::select! {
        answer = &mut call => panic!("answered {answer:?}"),
        () = feed => {}
    }
    assert!(sent < 32 << 20, "{sent} bytes are on their way");
    // The guest answers other calls, and a kill ends the exec and the write.
    let other = in_time("another exec", guest.sh("other", "echo hi")).await;
    assert_eq!(other.stdout(), "hi\n");
    let both = async { tokio::join!(call, kill(&guest, "deaf")) };
    let (answer, killed) = in_time("the end", both).await;
    assert_ended(answer);
    assert_eq!(
        killed.result.expect("a result").reason(),
        ExitReason::KilledByClient
    );
}

#[tokio::test]
async fn an_exec_that_ignores_large_stdin_ends_normally() {
    let guest = Guest::start().await;
    start(&guest, "ignore", &["bash", "-c", "sleep 0.3; echo fine"]).await;
    let chunk = vec![b'x'; 256 * 1024];
    let messages = vec![message("ignore", None, &chunk, false); 40];
    let (answer, seen) = tokio::join!(stream(&guest, messages), all(&guest, "ignore"));
    assert_ended(answer);
    assert_eq!(seen.outcome(), Outcome::ExitCode(0));
    assert_eq!(
        (seen.reason(), &*seen.stdout()),
        (ExitReason::Exited, "fine\n")
    );
}

#[tokio::test]
async fn a_blocked_write_fails_when_the_exec_ends() {
    let guest = Guest::start().await;
    start(&guest, "blocked", &["sleep", "1000"]).await;
    let blocked = |offset| write(&guest, message("blocked", offset, &[0; 1 << 20], false));
    let mut first = Box::pin(blocked(None));
    let mut second = Box::pin(blocked(Some(0)));
    let both = futures::future::join(&mut first, &mut second);
    let stuck = tokio::time::timeout(Duration::from_millis(300), both).await;
    assert!(stuck.is_err(), "the pipe holds less");
    let ends = async { tokio::join!(first, second, kill(&guest, "blocked")) };
    let (first, second, _killed) = in_time("the end of both", ends).await;
    assert_ended(first);
    assert_ended(second);
}

#[tokio::test]
async fn a_write_that_its_programs_end_breaks_says_that_it_has_ended() {
    let guest = Guest::start().await;
    for number in 0..TRIES {
        let id = format!("try{number}");
        start(&guest, &id, &["sleep", "0.1"]).await;
        let broken = write(&guest, message(&id, None, &[0; 1 << 20], false)).await;
        let status = broken.expect_err("the program reads nothing");
        if reason(&status) == "EXEC_NOT_RUNNING" {
            return;
        }
        assert_ended(Err::<(), _>(status));
    }
    panic!("each was taken for a program that closed its stdin");
}

fn is_too_many(answer: &Result<u64, Status>) -> bool {
    let refused = answer.as_ref().err();
    refused.is_some_and(|status| {
        status.code() == Code::ResourceExhausted && reason(status) == "QUOTA_EXCEEDED"
    })
}

#[tokio::test]
async fn writes_that_wait_are_bounded() {
    let guest = &Guest::start().await;
    start(guest, "full", &["sleep", "1000"]).await;
    // A probe may take the place of one of the eight, which then asks again.
    let waiting = (0..8).map(|_| async move {
        let large = || message("full", None, &[0; 1 << 20], false);
        while is_too_many(&write(guest, large()).await) {}
    });
    let probe = || write(guest, known("full", "", b"x"));
    let refused = async { while !is_too_many(&probe().await) {} };
    tokio::select! {
        _ended = futures::future::join_all(waiting) => panic!("the pipe holds less"),
        () = in_time("a ninth write is refused", refused) => {}
    }
    // Those that were given up make room for others.
    let taken = async { while probe().await.is_err() {} };
    in_time("a write waits as the others did", taken).await;
}

//! Tests of the request's body: what counts as arrived, what is late, and what is too much.

use std::collections::BTreeSet;
use std::collections::VecDeque;

use http_body::Body as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::connections::{ConnectionAdmission, ConnectionGuard, ConnectionTable};
use super::*;
use crate::access::{ConnectionPeer, PeerAddress};

#[test]
fn a_message_is_complete_with_its_last_byte_however_it_is_cut() {
    for (message, more) in [
        (&[0, 0, 0, 0, 0][..], 0),
        (&[0, 0, 0, 0, 3, 7, 7, 7], 0),
        (&[0, 0, 0, 0, 1, 7, 0, 0], 2),
    ] {
        let whole = message.len() - more;
        for cut in 0..message.len() {
            let (begin, rest) = message.split_at(cut);
            let mut arrival = MessageArrival::default();
            let is_complete = arrival.add(begin);
            assert_eq!(is_complete, cut >= whole, "{message:?} at {cut}");
            assert_eq!(arrival.add(rest), !is_complete, "{message:?} at {cut}");
            assert_eq!(arrival.seen, more as u64, "{message:?} at {cut}");
        }
    }
}

fn peer() -> Arc<ConnectionPeer> {
    let (uid, gid, pid) = (1, 1, None);
    let address = PeerAddress::Unix { uid, gid, pid };
    let (listener, authenticators) = (String::new(), BTreeSet::new());
    Arc::new(ConnectionPeer::new(address, listener, authenticators))
}

fn connection(table: &ConnectionTable) -> ConnectionGuard {
    match table.admit(peer(), &CancellationToken::new()) {
        ConnectionAdmission::Free(guard) | ConnectionAdmission::Replaced(guard) => guard,
        ConnectionAdmission::Full => panic!("full"),
    }
}

fn is_full(table: &ConnectionTable) -> bool {
    let admission = table.admit(peer(), &CancellationToken::new());
    matches!(admission, ConnectionAdmission::Full)
}

/// Polls until the next frame or error.
async fn next(body: &mut TimedRequestBody) -> Option<Result<Frame<Bytes>, Status>> {
    std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

/// Body that yields frames, and then ends or stays silent for ever.
struct Frames {
    frames: VecDeque<Bytes>,
    ends: bool,
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.frames.pop_front() {
            Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

fn frames<const N: usize>(frames: [&'static [u8]; N], ends: bool) -> Body {
    Body::new(Frames {
        frames: frames.map(Bytes::from_static).into(),
        ends,
    })
}

const BOUNDS: MessageBounds = MessageBounds {
    bytes_max: Some(8),
    rest_timeout: Duration::from_secs(60),
};

/// Connection that fills its table, and the request of a call on it.
struct OnlyConnection {
    table: ConnectionTable,
    guard: ConnectionGuard,
    protection: ConnectionProtection,
    body: TimedRequestBody,
}

fn call_on_the_only_connection(request: Body, is_stream: bool) -> OnlyConnection {
    let table = ConnectionTable::new(1, 1);
    let guard = connection(&table);
    let protection = ConnectionProtection::default();
    let pending = protection.pending_call(guard.handle.clone(), CallPriority::Work);
    OnlyConnection {
        body: TimedRequestBody::new(request, is_stream, BOUNDS, Some(pending)),
        table,
        guard,
        protection,
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_protects_its_connection_from_first_message_to_end() {
    let silent = frames([&[0, 0, 0, 0, 2, 7], &[7]], false);
    let OnlyConnection {
        table,
        guard,
        protection,
        mut body,
    } = call_on_the_only_connection(silent, true);

    next(&mut body).await.expect("a frame").expect("data");
    assert!(!guard.cut.is_cancelled() && protection.0.get().is_none());
    next(&mut body).await.expect("a frame").expect("data");
    assert!(protection.0.get().is_some() && is_full(&table));
    // The handler may keep the body longer than the call lasts.
    drop(protection);
    assert!(!is_full(&table) && guard.cut.is_cancelled());
}

#[tokio::test]
async fn a_single_request_protects_its_connection_from_its_end() {
    let mut call = call_on_the_only_connection(frames([&[0; 5]], true), false);
    next(&mut call.body).await.expect("a frame").expect("data");
    assert!(call.protection.0.get().is_none());
    assert!(next(&mut call.body).await.is_none());
    assert!(call.protection.0.get().is_some() && is_full(&call.table));
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_request_ends_its_call_and_protects_nothing() {
    for (body, is_stream) in [
        (frames([], false), true),
        (frames([], false), false),
        (frames([&[0, 0, 0, 0, 2, 7]], false), true),
        // Handlers of single requests wait for the end of the body.
        (frames([&[0; 5]], false), false),
    ] {
        let mut call = call_on_the_only_connection(body, is_stream);
        let start = Instant::now();
        let status = loop {
            match next(&mut call.body).await.expect("no end") {
                Ok(_frame) => {}
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(!status.details().is_empty());
        assert!(start.elapsed() >= REQUEST_TIMEOUT);
        assert!(!is_full(&call.table) && call.guard.cut.is_cancelled());
    }
}

#[tokio::test]
async fn a_call_whose_connection_is_closed_does_not_begin() {
    let mut call = call_on_the_only_connection(frames([&[0; 5]], true), true);
    let _newer = connection(&call.table);
    assert!(call.guard.cut.is_cancelled());
    let frame = next(&mut call.body).await.expect("an end");
    frame.expect_err("the call has begun");
}

fn stream(request: Body) -> TimedRequestBody {
    TimedRequestBody::new(request, true, BOUNDS, None)
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_later_message_must_arrive_in_time() {
    let mut body = stream(frames([&[0, 0, 0, 0, 1, 7, 0, 0]], false));
    next(&mut body).await.expect("a frame").expect("data");
    let start = Instant::now();
    let status = next(&mut body).await.expect("no end").expect_err("late");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(start.elapsed() >= BOUNDS.rest_timeout);
    // Between two messages a client may be silent for ever.
    let mut body = stream(frames([&[0, 0, 0, 0, 1, 7]], false));
    next(&mut body).await.expect("a frame").expect("data");
    let silent = tokio::time::timeout(10 * BOUNDS.rest_timeout, next(&mut body));
    assert!(silent.await.is_err());
}

#[tokio::test]
async fn a_message_over_its_limit_is_refused_with_its_prefix() {
    for (length, is_taken) in [(8, true), (9, false)] {
        let begin = Bytes::from(vec![0, 0, 0, 0, length]);
        let (frames, ends) = (VecDeque::from([begin]), true);
        let mut body = stream(Body::new(Frames { frames, ends }));
        let frame = next(&mut body).await.expect("a frame");
        let code = frame.err().map(|status| status.code());
        assert_eq!(code, (!is_taken).then_some(Code::ResourceExhausted));
    }
}

#[tokio::test]
async fn incomplete_messages_of_a_tenant_hold_limited_bytes() {
    let meter = Arc::new(ByteMeter::default());
    meter.count_arriving(0, ARRIVING_BYTES_MAX - 3);
    let begun = || stream(frames([&[0, 0, 0]], false)).with_meter(Some(Arc::clone(&meter)));
    let mut first = begun();
    next(&mut first).await.expect("a frame").expect("room");
    let status = next(&mut begun())
        .await
        .expect("no end")
        .expect_err("no room");
    assert_eq!(status.code(), Code::ResourceExhausted);
    // Complete messages need no room, and what ends gives its own back.
    let complete = stream(frames([&[0; 5]], false)).with_meter(Some(Arc::clone(&meter)));
    next(&mut { complete })
        .await
        .expect("a frame")
        .expect("taken");
    drop(first);
    next(&mut begun()).await.expect("a frame").expect("room");
}

//! Tests of the memory budget of answers.

use std::collections::BTreeSet;
use std::convert::Infallible;

use tokio_util::sync::CancellationToken;

use super::super::connections::{ConnectionAdmission, ConnectionGuard, ConnectionTable};
use super::*;
use crate::access::{ConnectionPeer, PeerAddress};

/// Body that always has a frame of this size.
struct EndlessBody(usize);

impl http_body::Body for EndlessBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(vec![0; self.0].into()))))
    }
}

/// Client with one connection.
struct Client {
    connection: ConnectionGuard,
    tenant: &'static str,
}

impl Client {
    fn connect(table: &ConnectionTable, tenant: &'static str) -> Self {
        let (uid, gid, pid) = (1, 1, None);
        let address = PeerAddress::Unix { uid, gid, pid };
        let peer = ConnectionPeer::new(address, String::new(), BTreeSet::new());
        let connection = match table.admit(Arc::new(peer), &CancellationToken::new()) {
            ConnectionAdmission::Free(guard) | ConnectionAdmission::Replaced(guard) => guard,
            ConnectionAdmission::Full => panic!("full"),
        };
        Self { connection, tenant }
    }

    fn owner(&self) -> AnswerOwner {
        AnswerOwner {
            tenant: Some(TenantName::parse(self.tenant).expect("a name")),
            connection: Some(self.connection.handle.clone()),
        }
    }

    /// Opens a stream of frames of usual size.
    fn stream(&self, budget: &ResponseBudget) -> BudgetedBody {
        let permit = budget.new_permit(self.owner(), true, false);
        BudgetedBody::new(Body::new(EndlessBody(64 << 10)), permit)
    }
}

fn table() -> ConnectionTable {
    ConnectionTable::new(100, 100)
}

/// Makes a budget for a number of streams.
fn budget(streams: u64) -> ResponseBudget {
    ResponseBudget::new(streams * STREAM_BYTES)
}

/// Returns the contents of the next frame, which waits until they are dropped; `None` if the stream ended for want of
/// room.
fn next(body: &mut BudgetedBody) -> Option<Bytes> {
    let mut context = Context::from_waker(futures::task::noop_waker_ref());
    match http_body::Body::poll_frame(Pin::new(body), &mut context) {
        Poll::Ready(Some(Ok(frame))) => {
            if let Some(trailers) = frame.trailers_ref() {
                let status = Status::from_header_map(trailers);
                let is_exhausted = |status: Status| status.code() == tonic::Code::ResourceExhausted;
                assert!(status.is_some_and(is_exhausted), "{trailers:?}");
            }
            frame.into_data().ok()
        }
        Poll::Ready(_) | Poll::Pending => panic!("neither a frame nor the end"),
    }
}

async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

#[tokio::test(start_paused = true)]
async fn the_longest_stalled_stream_makes_room() {
    // For two streams, and for the unread frame of one that has ended.
    let bytes_max = 2 * STREAM_BYTES + (64 << 10) + FRAME_OVERHEAD_BYTES;
    let (table, budget) = (table(), ResponseBudget::new(bytes_max));
    let client = Client::connect(&table, "a");
    let (mut first, mut second) = (client.stream(&budget), client.stream(&budget));
    let waiting = next(&mut first).expect("room");
    pass(STALLED_AFTER / 2).await;
    let _unread = next(&mut second).expect("room");
    let refused = next(&mut client.stream(&budget));
    assert_eq!(refused, None, "both were read a moment ago");
    pass(STALLED_AFTER).await;
    // The first one goes on reading, so the second one is the stalled one.
    drop(waiting);
    let _waiting = next(&mut first).expect("room");
    let mut third = client.stream(&budget);
    let _third_waiting = next(&mut third).expect("room");
    assert_eq!(next(&mut second), None);
    assert!(next(&mut first).is_some() && next(&mut third).is_some());
    assert!(!client.connection.cut.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_read_hold_nothing_and_end_no_other() {
    let (table, budget) = (table(), budget(2));
    let client = Client::connect(&table, "a");
    let mut streams: Vec<_> = (0..5).map(|_| client.stream(&budget)).collect();
    for _ in 0..1000 {
        for stream in &mut streams {
            assert!(next(stream).is_some());
        }
    }
    assert_eq!(budget.0.table.lock().held, 0);
}

#[tokio::test(start_paused = true)]
async fn a_frame_counts_until_written_even_after_its_stream_ends() {
    let (table, budget) = (table(), budget(4));
    let client = Client::connect(&table, "a");
    let mut stream = client.stream(&budget);
    let frames: Vec<_> = (0..3).map(|_| next(&mut stream)).collect();
    assert_eq!(budget.0.table.lock().held, STREAM_BYTES);
    drop(stream);
    let one = (64 << 10) + FRAME_OVERHEAD_BYTES;
    assert_eq!(budget.0.table.lock().held, 3 * one);
    for (written, frame) in (1..).zip(frames) {
        // Parts of a frame hold all of it.
        let mut rest = frame.expect("room");
        let part = rest.split_to(10);
        drop(rest);
        assert_eq!(budget.0.table.lock().held, (4 - written) * one);
        drop(part);
        assert_eq!(budget.0.table.lock().held, (3 - written) * one);
    }
}

#[tokio::test(start_paused = true)]
async fn unread_streams_of_a_tenant_end_no_stream_of_another() {
    let (table, budget) = (table(), budget(4));
    let clients: Vec<_> = (0..4).map(|_| Client::connect(&table, "a")).collect();
    let mut streams: Vec<_> = clients.iter().map(|one| one.stream(&budget)).collect();
    let _unread: Vec<_> = streams.iter_mut().map(next).collect();
    // They don't count as stalled yet, but their tenant has more than the other one.
    let other = Client::connect(&table, "b");
    let (mut first, mut second) = (other.stream(&budget), other.stream(&budget));
    let _waiting = [&mut first, &mut second].map(|stream| next(stream).expect("room"));
    let refused = next(&mut other.stream(&budget));
    assert_eq!(refused, None, "now the other one has more");
    let ended = streams.iter_mut().filter_map(|stream| match next(stream) {
        Some(_) => None,
        None => Some(()),
    });
    // What waits of an ended stream still counts, so two of them made room for one.
    assert_eq!(ended.count(), 3);
    assert!(next(&mut first).is_some() && next(&mut second).is_some());
}

#[tokio::test(start_paused = true)]
async fn unread_streams_of_a_connection_end_no_stream_of_another() {
    let (table, budget) = (table(), budget(3));
    let (greedy, other) = (Client::connect(&table, "a"), Client::connect(&table, "a"));
    let mut streams: Vec<_> = (0..3).map(|_| greedy.stream(&budget)).collect();
    let _unread: Vec<_> = streams.iter_mut().map(next).collect();
    let mut single = other.stream(&budget);
    let _waiting = next(&mut single).expect("room");
    assert_eq!(
        next(&mut other.stream(&budget)),
        None,
        "no more than its share"
    );
    assert!(next(&mut single).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_loses_its_connection_to_others() {
    let (table, budget) = (table(), budget(2));
    let (unread, reader) = (Client::connect(&table, "a"), Client::connect(&table, "a"));
    let large = |client: &Client| {
        let permit = budget.new_permit(client.owner(), true, false);
        let bytes = usize::try_from(STREAM_BYTES).expect("small");
        BudgetedBody::new(Body::new(EndlessBody(bytes)), permit)
    };
    let mut stream = large(&unread);
    let frame = next(&mut stream).expect("room");
    pass(STALLED_AFTER).await;
    // The end of the stream does not free enough: its frame waits in HTTP/2.
    let mut read = large(&reader);
    let read_frame = next(&mut read).expect("room");
    assert!(unread.connection.cut.is_cancelled());
    assert!(!reader.connection.cut.is_cancelled());
    let held = budget.0.table.lock().held;
    drop((frame, stream));
    assert_eq!(budget.0.table.lock().held, held, "it is not freed twice");
    drop((read_frame, read));
    assert_eq!(budget.0.table.lock().held, 0);
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_change_is_sent_without_room_as_well() {
    let (table, budget) = (table(), budget(1));
    let client = Client::connect(&table, "a");
    let mut first = client.stream(&budget);
    let _waiting = next(&mut first).expect("room");
    let answer = |is_stream, reports_change| {
        let permit = budget.new_permit(client.owner(), is_stream, reports_change);
        BudgetedBody::new(Body::new(EndlessBody(1000)), permit)
    };
    assert_eq!(next(&mut answer(false, false)), None, "a listing");
    assert!(next(&mut answer(false, true)).is_some(), "a creation");
    // The stream of a RunExec reports what was started, and then ends.
    let mut run = answer(true, true);
    let _started = next(&mut run).expect("its first message");
    assert_eq!(next(&mut run), None);
}

//! Memory budget for answers that clients have not read yet (`server.relay_bytes_max`).
//!
//! hyper and h2 keep a frame of an answer until the client's window has room for it. So a frame counts from the moment
//! at which hyper gets it until it is written to the connection. While frames of a stream wait, the stream counts with
//! at least [`STREAM_BYTES`]: a guest fills the window of its stream whether or not the client reads.
//!
//! An answer asks for room with the first frame that waits. If there is none, others make room, the first of these:
//! 1. answers of the tenant that holds the most, if that is more than the tenant of the new answer would hold;
//! 2. among those of its own tenant, answers of which nothing was written for [`STALLED_AFTER`];
//! 3. answers of another connection of its tenant that holds more than its own would.
//!
//! A stream makes room by its end with RESOURCE_EXHAUSTED: its exec goes on, and its client may attach again at its
//! offset. Frames that hyper has already stay, and only the end of their connection frees them. So a connection is
//! closed once the answers on it that have ended, and are still not read, are the ones that have to make room.
//! Without any of these, the new answer itself is refused.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::task::AtomicWaker;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;

use super::connections::ConnectionHandle;
use super::response_status::status_trailers;
use crate::access::TenantName;
use crate::error::Error;
use crate::guest;

/// Outcome of a poll for the next frame of a body.
type PolledFrame = Poll<Option<Result<Frame<Bytes>, Status>>>;

/// Time without a written frame after which an answer counts as stalled. With a shorter time, clients on busy machines
/// and slow lines would end each other's streams in turns.
const STALLED_AFTER: Duration = Duration::from_millis(250);
/// Memory of a stream's source in bytes: the window of the guest's stream.
const SOURCE_BYTES: u64 = guest::STREAM_WINDOW as u64;
/// Memory in bytes that a stream with waiting frames has reserved: its source, and two frames of the largest usual size.
const STREAM_BYTES: u64 = SOURCE_BYTES + (512 << 10);
/// Memory of a waiting frame in bytes, beside its contents: its places in the queues of hyper and h2.
const FRAME_OVERHEAD_BYTES: u64 = 512;

/// Budget of all answers. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct ResponseBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    bytes_max: u64,
    next_id: AtomicU64,
    table: Mutex<AnswerTable>,
}

/// Answers with frames that wait to be written.
#[derive(Debug, Default)]
struct AnswerTable {
    /// Bytes of all answers together.
    held: u64,
    answers: HashMap<u64, WaitingAnswer>,
}

#[derive(Debug)]
struct WaitingAnswer {
    owner: AnswerOwner,
    /// Bytes of the frames that wait.
    frame_bytes: u64,
    /// Source of a stream that goes on; `None` for an answer of which no further frames come.
    source: Option<Arc<AnswerSource>>,
    /// Time at which a frame was written, or at which the first one began to wait.
    last_written: Instant,
}

/// Tenant and connection of an answer; `None` for a call without a principal, and in tests.
#[derive(Debug, Clone, Default)]
pub(super) struct AnswerOwner {
    pub(super) tenant: Option<TenantName>,
    pub(super) connection: Option<ConnectionHandle>,
}

/// Permission of one answer to take part in the budget.
#[derive(Debug)]
pub(super) struct AnswerPermit {
    budget: ResponseBudget,
    id: u64,
    owner: AnswerOwner,
    /// `true` for a stream with a source that buffers, such as a guest.
    is_stream: bool,
    /// `true` if the first frame is sent without room as well: the call may have changed something, which it reports.
    reports_change: bool,
}

/// Body of an answer whose frames count in the budget.
#[derive(Debug)]
pub(super) struct BudgetedBody {
    source: Arc<AnswerSource>,
    permit: AnswerPermit,
    has_begun: bool,
    is_done: bool,
}

/// Body that produces the frames. The budget takes it away to free its memory.
#[derive(Debug)]
struct AnswerSource {
    body: Mutex<Option<Body>>,
    waker: AtomicWaker,
}

/// Contents of a frame that count until they are dropped.
struct WaitingFrame {
    data: Bytes,
    budget: ResponseBudget,
    id: u64,
    /// Memory of the frame in bytes.
    bytes: u64,
}

/// Outcome of a request for room.
#[derive(Debug, PartialEq, Eq)]
enum RoomOutcome {
    Granted,
    /// No room is left, and the frame counts all the same.
    Exceeded,
    Refused,
}

/// Removal that frees the memory of an answer.
#[derive(Debug)]
enum Eviction {
    /// The stream ends.
    Stream(Arc<AnswerSource>),
    /// The connection is closed, with all answers on it.
    Connection(ConnectionHandle),
}

// === impl ResponseBudget ===

impl ResponseBudget {
    /// Makes a budget of `bytes_max` bytes.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self(Arc::new(BudgetState {
            bytes_max,
            next_id: AtomicU64::new(0),
            table: Mutex::default(),
        }))
    }

    /// Makes the permit of an answer, which holds nothing yet.
    pub(super) fn new_permit(
        &self,
        owner: AnswerOwner,
        is_stream: bool,
        reports_change: bool,
    ) -> AnswerPermit {
        AnswerPermit {
            budget: self.clone(),
            id: self.0.next_id.fetch_add(1, Ordering::Relaxed),
            owner,
            is_stream,
            reports_change,
        }
    }

    /// Makes the error of a stream for which there is no room.
    fn exhausted_error(&self) -> Error {
        let subject = "output that waits in the server for readers (server.relay_bytes_max)";
        Error::quota_exceeded(subject, self.0.bytes_max)
    }

    /// Counts a frame of an answer. An answer that has waiting frames goes on without asking for room again, so that
    /// clients which read do not end each other's streams.
    fn hold(
        &self,
        permit: &AnswerPermit,
        source: Option<&Arc<AnswerSource>>,
        bytes: u64,
        is_required: bool,
    ) -> RoomOutcome {
        let mut table = self.0.table.lock();
        if table.answers.contains_key(&permit.id) {
            table.change(permit.id, |answer| answer.frame_bytes += bytes);
            return RoomOutcome::Granted;
        }
        let asking = WaitingAnswer {
            owner: permit.owner.clone(),
            frame_bytes: bytes,
            source: source.map(Arc::clone),
            last_written: Instant::now(),
        };
        let (has_room, evictions) = table.make_room(&asking, self.0.bytes_max);
        let outcome = match (has_room, is_required) {
            (true, _) => RoomOutcome::Granted,
            (false, true) => RoomOutcome::Exceeded,
            (false, false) => RoomOutcome::Refused,
        };
        if outcome != RoomOutcome::Refused {
            table.insert(permit.id, asking);
        }
        drop(table);
        for eviction in evictions {
            eviction.apply();
        }
        outcome
    }
}

// === impl AnswerTable ===

impl AnswerTable {
    /// Adds an answer that has no entry.
    fn insert(&mut self, id: u64, answer: WaitingAnswer) {
        self.held += answer.bytes();
        self.answers.insert(id, answer);
    }

    /// Changes an answer, and removes it once nothing of it waits. It is absent if its connection was closed.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut WaitingAnswer)) {
        let Some(answer) = self.answers.get_mut(&id) else {
            return;
        };
        let before = answer.bytes();
        change(answer);
        let is_written = answer.frame_bytes == 0;
        let after = if is_written { 0 } else { answer.bytes() };
        self.held = self.held - before + after;
        if is_written {
            self.answers.remove(&id);
        }
    }

    /// Lets other answers make room for a new one. Returns `false` if they don't make enough, and the evictions.
    fn make_room(&mut self, asking: &WaitingAnswer, bytes_max: u64) -> (bool, Vec<Eviction>) {
        let mut evictions = Vec::new();
        while self.held + asking.bytes() > bytes_max && !self.answers.is_empty() {
            let evictee = self.find_evictee(asking);
            let Some(eviction) = evictee.and_then(|id| self.evict(id)) else {
                return (false, evictions);
            };
            evictions.push(eviction);
        }
        (true, evictions)
    }

    /// Returns the id of the answer that has to make room for a new one; `None` if none has to.
    fn find_evictee(&self, asking: &WaitingAnswer) -> Option<u64> {
        let now = Instant::now();
        let (mut of_tenants, mut of_connections) = (HashMap::new(), HashMap::new());
        for answer in self.answers.values().chain([asking]) {
            *of_tenants.entry(&answer.owner.tenant).or_insert(0_u64) += answer.bytes();
            let connection = answer.owner.connection_id();
            *of_connections.entry(connection).or_insert(0_u64) += answer.bytes();
        }
        let tenant_bytes = |owner: &AnswerOwner| of_tenants.get(&owner.tenant).copied();
        let connection_bytes =
            |owner: &AnswerOwner| of_connections.get(&owner.connection_id()).copied();
        let own_connection = asking.owner.connection_id();
        let rated = self.answers.iter().filter_map(|(id, answer)| {
            let owner = &answer.owner;
            let (tenant, connection) = (tenant_bytes(owner)?, connection_bytes(owner)?);
            let is_stalled = now.duration_since(answer.last_written) >= STALLED_AFTER;
            let makes_room = match owner.tenant == asking.owner.tenant {
                true => is_stalled || connection > connection_bytes(&asking.owner)?,
                false => tenant > tenant_bytes(&asking.owner)?,
            };
            // The end of its own connection would end the new answer as well.
            let is_closable = owner.connection.is_some() && owner.connection_id() != own_connection;
            let has_ended = answer.source.is_none();
            (makes_room && (!has_ended || is_closable)).then(|| {
                let most = (Reverse(tenant), !is_stalled, has_ended, Reverse(connection));
                ((most, answer.last_written), *id)
            })
        });
        rated.min().map(|(_, id)| id)
    }

    /// Ends a stream, or closes the connection of an answer that has ended. Frees what that will free.
    fn evict(&mut self, id: u64) -> Option<Eviction> {
        let answer = self.answers.get(&id)?;
        if let Some(source) = answer.source.clone() {
            self.change(id, |answer| answer.source = None);
            return Some(Eviction::Stream(source));
        }
        let connection = answer.owner.connection.clone()?;
        let closed = Some(connection.id);
        let mut freed = 0;
        self.answers.retain(|_, answer| {
            let stays = answer.owner.connection_id() != closed;
            freed += if stays { 0 } else { answer.bytes() };
            stays
        });
        self.held -= freed;
        Some(Eviction::Connection(connection))
    }
}

impl WaitingAnswer {
    /// Returns the memory that the answer holds or may take at any time, in bytes.
    fn bytes(&self) -> u64 {
        match self.source {
            Some(_) => STREAM_BYTES.max(SOURCE_BYTES + self.frame_bytes),
            None => self.frame_bytes,
        }
    }
}

impl AnswerOwner {
    fn connection_id(&self) -> Option<u64> {
        self.connection.as_ref().map(|connection| connection.id)
    }
}

impl Eviction {
    fn apply(self) {
        match self {
            Self::Stream(source) => source.end(),
            Self::Connection(connection) => {
                tracing::warn!(
                    peer = %connection.peer.address,
                    "closed a connection whose client does not read: others need the memory of its answers"
                );
                if let Some(cut) = connection.cut() {
                    cut.cancel();
                }
            }
        }
    }
}

// === impl AnswerSource ===

impl AnswerSource {
    /// Drops the body, and wakes the stream's task, which then sends the end.
    fn end(&self) {
        let body = self.body.lock().take();
        drop(body);
        self.waker.wake();
    }
}

// === impl BudgetedBody ===

impl BudgetedBody {
    pub(super) fn new(body: Body, permit: AnswerPermit) -> Self {
        Self {
            source: Arc::new(AnswerSource {
                body: Mutex::new(Some(body)),
                waker: AtomicWaker::new(),
            }),
            permit,
            has_begun: false,
            is_done: false,
        }
    }

    /// Polls the body; `None` if the budget has taken it away.
    fn poll_source(&self, context: &mut Context<'_>) -> Option<PolledFrame> {
        self.source.waker.register(context.waker());
        let mut body = self.source.body.lock();
        let body = Pin::new(body.as_mut()?);
        Some(http_body::Body::poll_frame(body, context))
    }

    /// Counts the contents of a frame; `None` if there is no room for them.
    fn hold(&mut self, data: Bytes) -> Option<Bytes> {
        if data.is_empty() {
            return Some(data);
        }
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let permit = &self.permit;
        let bytes = data.len() as u64 + FRAME_OVERHEAD_BYTES;
        let source = permit.is_stream.then_some(&self.source);
        let is_required = is_first && permit.reports_change;
        match permit.budget.hold(permit, source, bytes, is_required) {
            RoomOutcome::Exceeded if permit.is_stream => self.source.end(),
            RoomOutcome::Granted | RoomOutcome::Exceeded => {}
            RoomOutcome::Refused => return None,
        }
        Some(Bytes::from_owner(WaitingFrame {
            data,
            budget: permit.budget.clone(),
            id: permit.id,
            bytes,
        }))
    }

    /// Ends the stream for which there is no room.
    fn end(&mut self) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.is_done = true;
        self.source.end();
        let status = Status::from(self.permit.budget.exhausted_error());
        Poll::Ready(Some(Ok(status_trailers(&status))))
    }
}

impl http_body::Body for BudgetedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        let Some(polled) = self.poll_source(context) else {
            return self.end();
        };
        let frame = match polled {
            Poll::Ready(Some(Ok(frame))) => frame,
            ended @ (Poll::Ready(_) | Poll::Pending) => return ended,
        };
        match frame.into_data() {
            Ok(data) => match self.hold(data) {
                Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
                None => self.end(),
            },
            Err(trailers) => Poll::Ready(Some(Ok(trailers))),
        }
    }

    fn is_end_stream(&self) -> bool {
        let body = self.source.body.lock();
        self.is_done || body.as_ref().is_some_and(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.source.body.lock();
        body.as_ref()
            .map(http_body::Body::size_hint)
            .unwrap_or_default()
    }
}

impl Drop for BudgetedBody {
    fn drop(&mut self) {
        // Frames that are not written yet still count; the source is gone.
        let mut table = self.permit.budget.0.table.lock();
        table.change(self.permit.id, |answer| answer.source = None);
    }
}

// === impl WaitingFrame ===

impl AsRef<[u8]> for WaitingFrame {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for WaitingFrame {
    fn drop(&mut self) {
        let mut table = self.budget.0.table.lock();
        table.change(self.id, |answer| {
            answer.frame_bytes = answer.frame_bytes.saturating_sub(self.bytes);
            answer.last_written = Instant::now();
        });
    }
}

#[cfg(test)]
mod tests;

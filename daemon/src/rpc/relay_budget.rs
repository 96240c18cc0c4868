//! Memory budget for output that clients have not read yet.
//!
//! A guest fills the HTTP/2 window of a stream whether or not the client reads, so the sum over all streams needs a
//! limit (`server.relay_bytes_max`). A stream holds a [`BufferPermit`] from a message until its client has read
//! everything. When no permit is left, the stream that was not read for the longest time loses its permit and ends with
//! RESOURCE_EXHAUSTED. Its exec goes on, and its client may attach again at its offset.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::guest;

/// Maximum memory of one stream in bytes: the window of the guest's stream and the buffers on the client's side.
pub const STREAM_BYTES_MAX: u64 = guest::STREAM_WINDOW as u64 + (512 << 10);
/// Time without a read after which a stream counts as stalled. If no stream is stalled, the newest one is refused: with
/// a shorter time, clients on busy machines and slow lines would end each other's streams in turns.
const STALLED_AFTER: Duration = Duration::from_millis(250);

/// Budget of all streams. Clones share it.
#[derive(Debug, Clone)]
pub struct RelayBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    bytes: u64,
    permits_max: usize,
    epoch: Instant,
    next: AtomicU64,
    holders: Mutex<HashMap<u64, Arc<BudgetedStream>>>,
}

/// Record of one stream in the budget: when it was last read, and how to free its memory.
struct BudgetedStream {
    id: u64,
    last_read_ms: AtomicU64,
    /// Frees the memory of the stream.
    end: Box<dyn Fn() + Send + Sync>,
}

/// Permission of one stream to hold buffered bytes. Dropping it releases the permit.
#[derive(Debug)]
pub struct BufferPermit {
    budget: RelayBudget,
    stream: Arc<BudgetedStream>,
    is_held: bool,
}

// === impl RelayBudget ===

impl RelayBudget {
    /// Makes a budget of `bytes`, which is divided into permits for at least one stream.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let permits_max = usize::try_from(bytes / STREAM_BYTES_MAX).unwrap_or(usize::MAX);
        Self(Arc::new(BudgetState {
            bytes,
            permits_max: permits_max.max(1),
            epoch: Instant::now(),
            next: AtomicU64::new(0),
            holders: Mutex::default(),
        }))
    }

    /// Makes the permit of a new stream, which is not held yet. The budget calls `end` to free the stream's memory;
    /// `end` must not block.
    pub fn new_permit(&self, end: impl Fn() + Send + Sync + 'static) -> BufferPermit {
        BufferPermit {
            budget: self.clone(),
            stream: Arc::new(BudgetedStream {
                id: self.0.next.fetch_add(1, Ordering::Relaxed),
                last_read_ms: AtomicU64::new(0),
                end: Box::new(end),
            }),
            is_held: false,
        }
    }

    /// Makes the error with which a stream ends that loses its permit.
    #[must_use]
    pub fn exhausted_error(&self) -> Error {
        Error::QuotaExceeded {
            subject: "output that waits in the server for readers (server.relay_bytes_max)".into(),
            limit: self.0.bytes,
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn holders(&self) -> MutexGuard<'_, HashMap<u64, Arc<BudgetedStream>>> {
        // No code panics while it holds the lock, so the map is consistent.
        self.0
            .holders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the id of the stalled stream that was not read for the longest time.
    fn most_stalled(&self, taken: &HashMap<u64, Arc<BudgetedStream>>) -> Option<u64> {
        let latest = self
            .now_ms()
            .checked_sub(u64::try_from(STALLED_AFTER.as_millis()).unwrap_or(u64::MAX))?;
        let last_read = |holder: &BudgetedStream| holder.last_read_ms.load(Ordering::Relaxed);
        let stalled = taken
            .iter()
            .filter(|(_, holder)| last_read(holder) <= latest);
        let (id, _) = stalled.min_by_key(|(_, holder)| last_read(holder))?;
        Some(*id)
    }
}

// === impl BufferPermit ===

impl BufferPermit {
    /// Holds the permit for a message that arrived. Returns `false` if no permit is left.
    #[must_use]
    pub fn try_hold(&mut self) -> bool {
        self.stream
            .last_read_ms
            .store(self.budget.now_ms(), Ordering::Relaxed);
        if self.is_held {
            return true;
        }
        let mut taken = self.budget.holders();
        let mut ended = None;
        if taken.len() >= self.budget.0.permits_max {
            let Some(stalled) = self.budget.most_stalled(&taken) else {
                return false;
            };
            ended = taken.remove(&stalled);
        }
        taken.insert(self.stream.id, Arc::clone(&self.stream));
        drop(taken);
        self.is_held = true;
        if let Some(holder) = ended {
            (holder.end)();
        }
        true
    }

    /// Releases the permit: the client has read everything.
    pub fn release(&mut self) {
        if std::mem::take(&mut self.is_held) {
            self.budget.holders().remove(&self.stream.id);
        }
    }
}

impl Drop for BufferPermit {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for BudgetedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BudgetedStream {{ id: {} }}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes three streams for two permits, and counters of how often the budget ended each.
    fn three() -> (Vec<BufferPermit>, Vec<Arc<AtomicU64>>) {
        let budget = RelayBudget::new(2 * STREAM_BYTES_MAX);
        let ended: Vec<Arc<AtomicU64>> = (0..3).map(|_| Arc::default()).collect();
        let stream = |ended: &Arc<AtomicU64>| {
            let ended = Arc::clone(ended);
            budget.new_permit(move || {
                ended.fetch_add(1, Ordering::Relaxed);
            })
        };
        (ended.iter().map(stream).collect(), ended)
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_stalled_reader_makes_room() {
        let (mut streams, ended) = three();
        let ends = || -> Vec<u64> { ended.iter().map(|n| n.load(Ordering::Relaxed)).collect() };
        assert!(streams[0].try_hold());
        tokio::time::advance(STALLED_AFTER / 2).await;
        assert!(streams[1].try_hold());
        assert!(!streams[2].try_hold(), "both of them read a moment ago");
        tokio::time::advance(STALLED_AFTER).await;
        // The first one goes on reading, so the second one is the stalled one.
        assert!(streams[0].try_hold());
        assert!(streams[2].try_hold());
        assert_eq!(ends(), [0, 1, 0]);
        // The second stream was ended already: its release must not free another stream's permit.
        streams[1].release();
        assert!(!streams[1].try_hold());
        drop(streams.remove(2));
        assert!(streams[1].try_hold());
        assert_eq!(ends(), [0, 1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_readers_do_not_end_each_others_streams() {
        let (mut streams, ended) = three();
        let mut last = streams.pop().expect("three");
        assert!(streams.iter_mut().all(BufferPermit::try_hold));
        for _ in 0..100 {
            for stream in &mut streams {
                tokio::time::advance(Duration::from_millis(50)).await;
                assert!(stream.try_hold());
                assert!(!last.try_hold(), "there is one too many");
            }
        }
        assert!(ended.iter().all(|n| n.load(Ordering::Relaxed) == 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_keeps_up_holds_no_permit() {
        let (mut streams, ended) = three();
        for _ in 0..1000 {
            for stream in &mut streams {
                assert!(stream.try_hold());
                stream.release();
            }
        }
        assert!(ended.iter().all(|n| n.load(Ordering::Relaxed) == 0));
    }
}

//! The memory that streams may take whose readers do not read. A guest fills the window of a stream whether or not the
//! client takes what comes, so the sum over all streams needs a bound of its own.
//!
//! A stream holds a place from a message until there is none left: while its reader keeps up that is no time at all, and
//! an idle stream holds none. When all places are taken, the stream that was longest not read loses its own: it ends with
//! RESOURCE_EXHAUSTED, and its reader may attach again where it was. Its exec goes on; with on_disconnect KILL only if a
//! stream attaches within the grace.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::guest;

/// What one stream takes at most: the window of the guest's stream, and what the client's side holds of it.
pub const STREAM_BYTES: u64 = guest::STREAM_WINDOW as u64 + (512 << 10);
/// A reader that took something within this reads. When all of them do, the one too many has to go: were it shorter,
/// readers on busy machines and slow lines would displace one another in turns.
const STALLED: Duration = Duration::from_millis(250);

/// All places. Clones share them.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes: u64,
    places: usize,
    epoch: Instant,
    next: AtomicU64,
    taken: Mutex<HashMap<u64, Holder>>,
}

/// Who holds a place.
struct Holder {
    last_read_ms: Arc<AtomicU64>,
    /// Lets go of what the stream has in memory.
    end: Arc<dyn Fn() + Send + Sync>,
}

/// One stream's claim to a place.
pub struct Place {
    budget: Budget,
    id: u64,
    last_read_ms: Arc<AtomicU64>,
    end: Arc<dyn Fn() + Send + Sync>,
    held: bool,
}

// === impl Budget ===

impl Budget {
    /// Places for as many streams as `bytes` are enough for, at least one.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let places = usize::try_from(bytes / STREAM_BYTES).unwrap_or(usize::MAX);
        Self(Arc::new(Shared {
            bytes,
            places: places.max(1),
            epoch: Instant::now(),
            next: AtomicU64::new(0),
            taken: Mutex::default(),
        }))
    }

    /// A new stream, which holds no place yet. `end` is called when it has to go; it must not wait.
    pub fn stream(&self, end: impl Fn() + Send + Sync + 'static) -> Place {
        Place {
            budget: self.clone(),
            id: self.0.next.fetch_add(1, Ordering::Relaxed),
            last_read_ms: Arc::default(),
            end: Arc::new(end),
            held: false,
        }
    }

    /// Why a stream ended.
    #[must_use]
    pub fn exhausted(&self) -> Error {
        Error::QuotaExceeded {
            subject: "output that waits in the server for readers (server.relay_bytes_max)".into(),
            limit: self.0.bytes,
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<u64, Holder>> {
        // Nothing panics while holding it.
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stalled stream that was longest not read.
    fn most_stalled(&self, taken: &HashMap<u64, Holder>) -> Option<u64> {
        let latest = self
            .now_ms()
            .checked_sub(u64::try_from(STALLED.as_millis()).unwrap_or(u64::MAX))?;
        let last_read = |holder: &Holder| holder.last_read_ms.load(Ordering::Relaxed);
        let stalled = taken
            .iter()
            .filter(|(_, holder)| last_read(holder) <= latest);
        let (id, _) = stalled.min_by_key(|(_, holder)| last_read(holder))?;
        Some(*id)
    }
}

// === impl Place ===

impl Place {
    /// Something came for the reader, and there may be more. False if there is no room for it.
    #[must_use]
    pub fn take(&mut self) -> bool {
        self.last_read_ms
            .store(self.budget.now_ms(), Ordering::Relaxed);
        if self.held {
            return true;
        }
        let mut taken = self.budget.taken();
        let mut ended = None;
        if taken.len() >= self.budget.0.places {
            let Some(stalled) = self.budget.most_stalled(&taken) else {
                return false;
            };
            ended = taken.remove(&stalled);
        }
        let holder = Holder {
            last_read_ms: Arc::clone(&self.last_read_ms),
            end: Arc::clone(&self.end),
        };
        taken.insert(self.id, holder);
        drop(taken);
        self.held = true;
        if let Some(holder) = ended {
            (holder.end)();
        }
        true
    }

    /// The reader has everything that there is.
    pub fn leave(&mut self) {
        if std::mem::take(&mut self.held) {
            self.budget.taken().remove(&self.id);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, held) = (self.id, self.held);
        write!(f, "Place {{ id: {id}, held: {held} }}")
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder {{ last_read_ms: {:?} }}", self.last_read_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three streams for two places, and how often each was told to end.
    fn three() -> (Vec<Place>, Vec<Arc<AtomicU64>>) {
        let budget = Budget::new(2 * STREAM_BYTES);
        let ended: Vec<Arc<AtomicU64>> = (0..3).map(|_| Arc::default()).collect();
        let stream = |ended: &Arc<AtomicU64>| {
            let ended = Arc::clone(ended);
            budget.stream(move || {
                ended.fetch_add(1, Ordering::Relaxed);
            })
        };
        (ended.iter().map(stream).collect(), ended)
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_stalled_reader_makes_room() {
        let (mut streams, ended) = three();
        let told = || -> Vec<u64> { ended.iter().map(|n| n.load(Ordering::Relaxed)).collect() };
        assert!(streams[0].take());
        tokio::time::advance(STALLED / 2).await;
        assert!(streams[1].take());
        assert!(!streams[2].take(), "both of them read a moment ago");
        tokio::time::advance(STALLED).await;
        // The first one goes on reading, so the second one is the stalled one.
        assert!(streams[0].take());
        assert!(streams[2].take());
        assert_eq!(told(), [0, 1, 0]);
        // It leaves, which is nobody else's place.
        streams[1].leave();
        assert!(!streams[1].take());
        drop(streams.remove(2));
        assert!(streams[1].take());
        assert_eq!(told(), [0, 1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn readers_that_read_slowly_do_not_displace_one_another() {
        let (mut streams, ended) = three();
        let mut last = streams.pop().expect("three");
        assert!(streams.iter_mut().all(Place::take));
        for _ in 0..100 {
            for stream in &mut streams {
                tokio::time::advance(Duration::from_millis(50)).await;
                assert!(stream.take());
                assert!(!last.take(), "there is one too many");
            }
        }
        assert!(ended.iter().all(|n| n.load(Ordering::Relaxed) == 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_keeps_up_holds_no_place() {
        let (mut streams, ended) = three();
        for _ in 0..1000 {
            for stream in &mut streams {
                assert!(stream.take());
                stream.leave();
            }
        }
        assert!(ended.iter().all(|n| n.load(Ordering::Relaxed) == 0));
    }
}

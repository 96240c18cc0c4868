//! Retained window of one output stream: bytes with offsets. `exec::run` fills it, readers read it, and it never
//! waits.
//!
//! ```text
//!   dropped   │         retained            │ room
//! ────────────┼──────────┬─────────┬────────┼───────►
//!           start     reader    reader     end
//! ```
//! Large reads are kept as they came. Small ones are joined, so that a program that writes single bytes costs no more
//! memory than its output.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

/// Maximum size of one event's data and of one read from a pipe, in bytes.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;
/// Reads smaller than this are joined, in bytes.
const JOIN_BELOW: usize = CHUNK_BYTES / 2;
/// Capacity of every window while all windows together exceed their budget, in bytes.
const PRESSED_BYTES: u64 = CHUNK_BYTES as u64;

/// Limit of the bytes that all windows together hold.
#[derive(Debug)]
pub(crate) struct OutputBudget {
    used: AtomicU64,
    max: AtomicU64,
    /// Notified when the windows are within the limit again.
    relieved: Notify,
}

impl OutputBudget {
    /// Returns a budget of `max` bytes.
    pub(crate) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicU64::new(0),
            max: AtomicU64::new(max),
            relieved: Notify::new(),
        })
    }

    /// Changes the limit.
    pub(crate) fn set_max(&self, max: u64) {
        let was_over = self.is_over();
        self.max.store(max, Ordering::Relaxed);
        if was_over && !self.is_over() {
            self.relieved.notify_waiters();
        }
    }

    fn give_back(&self, bytes: u64) {
        let was_over = self.is_over();
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if was_over && !self.is_over() {
            self.relieved.notify_waiters();
        }
    }

    /// Waits until the windows are within the limit again, from the first poll of this future on. Safe to cancel.
    pub(crate) async fn relieved(&self) {
        self.relieved.notified().await;
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns `true` if the windows hold more than the limit.
    pub(crate) fn is_over(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.max.load(Ordering::Relaxed)
    }
}

/// Retained output of one stream.
#[derive(Debug)]
pub(crate) struct OutputWindow {
    capacity: u64,
    /// Offset of the first retained byte.
    start: u64,
    /// Sealed chunks with the offset of their first byte. They are contiguous, and `tail` follows them.
    segments: VecDeque<(u64, Bytes)>,
    tail: BytesMut,
    tail_start: u64,
    budget: Arc<OutputBudget>,
}

impl OutputWindow {
    pub(crate) fn new(capacity: u64, budget: Arc<OutputBudget>) -> Self {
        Self {
            capacity,
            start: 0,
            segments: VecDeque::new(),
            tail: BytesMut::new(),
            tail_start: 0,
            budget,
        }
    }

    /// Returns the offset of the first retained byte.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Returns the offset behind the last byte that was pushed.
    pub(crate) fn end(&self) -> u64 {
        self.tail_start + self.tail.len() as u64
    }

    fn capacity(&self) -> u64 {
        if self.budget.is_over() {
            self.capacity.min(PRESSED_BYTES)
        } else {
            self.capacity
        }
    }

    /// Returns the first offset that is kept for a reader that was sent everything before `at`. Three quarters of the
    /// window lie behind the reader, because bytes on their way are lost when their connection breaks. The last
    /// quarter lets the program go on.
    pub(crate) fn kept_for(&self, at: u64) -> u64 {
        at.saturating_sub(self.capacity() / 4 * 3)
    }

    /// Returns the number of retained bytes at or after `from`.
    pub(crate) fn held(&self, from: u64) -> u64 {
        self.end() - from.clamp(self.start, self.end())
    }

    /// Returns the number of bytes that fit without dropping one at or after `needed`.
    pub(crate) fn room(&self, needed: u64) -> u64 {
        self.capacity().saturating_sub(self.held(needed))
    }

    /// Takes the filled part of a read buffer. Drops the oldest bytes beyond the capacity, but none at or after
    /// `needed`.
    pub(crate) fn push(&mut self, data: &mut BytesMut, needed: u64) {
        self.budget
            .used
            .fetch_add(data.len() as u64, Ordering::Relaxed);
        if data.len() < JOIN_BELOW {
            self.tail.extend_from_slice(data);
            data.clear();
            if self.tail.len() >= JOIN_BELOW {
                self.seal();
            }
        } else {
            self.seal();
            let segment = data.split().freeze();
            let next = self.tail_start + segment.len() as u64;
            self.segments.push_back((self.tail_start, segment));
            self.tail_start = next;
        }
        let oldest = self.end().saturating_sub(self.capacity());
        self.trim(oldest.min(needed));
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            let next = self.end();
            let segment = std::mem::take(&mut self.tail).freeze();
            self.segments.push_back((self.tail_start, segment));
            self.tail_start = next;
        }
    }

    /// Drops all retained bytes.
    pub(crate) fn empty(&mut self) {
        self.seal();
        self.trim(self.end());
    }

    /// Drops the bytes before `start`.
    fn trim(&mut self, start: u64) {
        if start <= self.start {
            return;
        }
        self.budget.give_back(start - self.start);
        self.start = start;
        while let Some((first, segment)) = self.segments.front() {
            if first + segment.len() as u64 > start {
                break;
            }
            self.segments.pop_front();
        }
    }

    /// Returns at most `max` contiguous bytes at `from`, which must not lie before the start. Empty at the end.
    pub(crate) fn read(&self, from: u64, max: usize) -> Bytes {
        if from >= self.tail_start {
            let skip = usize::try_from(from - self.tail_start).unwrap_or(usize::MAX);
            let rest = self.tail.get(skip..).unwrap_or_default();
            return Bytes::copy_from_slice(rest.get(..max).unwrap_or(rest));
        }
        let index = self.segments.partition_point(|(first, _)| *first <= from);
        let Some((first, segment)) = index.checked_sub(1).and_then(|i| self.segments.get(i)) else {
            return Bytes::new();
        };
        let skip = usize::try_from(from - first)
            .unwrap_or(usize::MAX)
            .min(segment.len());
        segment.slice(skip..segment.len().min(skip.saturating_add(max)))
    }

    /// Returns at most `max` bytes at `from`, joined across chunks.
    pub(crate) fn read_joined(&self, mut from: u64, max: usize) -> Vec<u8> {
        let mut joined = Vec::new();
        while joined.len() < max {
            let part = self.read(from, max - joined.len());
            if part.is_empty() {
                break;
            }
            from += part.len() as u64;
            joined.extend_from_slice(&part);
        }
        joined
    }
}

impl Drop for OutputWindow {
    fn drop(&mut self) {
        self.budget.give_back(self.end() - self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(length: usize, seed: u64) -> BytesMut {
        (0..length as u64)
            .map(|i| (i.wrapping_mul(31) ^ seed).to_le_bytes()[0])
            .collect::<Vec<_>>()
            .as_slice()
            .into()
    }

    #[test]
    fn room_counts_only_what_is_needed() {
        let mut window = OutputWindow::new(100, OutputBudget::new(1000));
        window.push(&mut bytes(60, 1), u64::MAX);
        assert_eq!(window.room(0), 40);
        assert_eq!(window.room(60), 100);
        window.push(&mut bytes(60, 2), u64::MAX);
        assert_eq!((window.start(), window.end()), (20, 120));
        assert_eq!(window.room(0), 0);
    }

    #[test]
    fn a_spent_budget_shrinks_windows() {
        let budget = OutputBudget::new(PRESSED_BYTES);
        let mut window = OutputWindow::new(10 * PRESSED_BYTES, Arc::clone(&budget));
        for _ in 0..4 {
            window.push(&mut bytes(CHUNK_BYTES, 3), u64::MAX);
        }
        assert_eq!(window.end() - window.start(), PRESSED_BYTES);
        let needed = window.start() + 10;
        window.push(&mut bytes(CHUNK_BYTES, 4), needed);
        assert_eq!(window.start(), needed);
        drop(window);
        assert_eq!(budget.used(), 0);
    }

    proptest! {
        /// The model is a vector of all pushed bytes, cut at the capacity.
        #[test]
        fn a_window_is_the_end_of_what_was_pushed(
            capacity in 1u64..200_000,
            pushes in proptest::collection::vec((0usize..70_000, any::<u64>()), 0..20),
            from in any::<u64>(),
            max in 0usize..100_000,
        ) {
            let mut window = OutputWindow::new(capacity, OutputBudget::new(u64::MAX));
            let mut model = Vec::new();
            for (length, seed) in pushes {
                let mut data = bytes(length, seed);
                model.extend_from_slice(&data);
                window.push(&mut data, u64::MAX);
                prop_assert!(data.is_empty());
                let start = (model.len() as u64).saturating_sub(capacity);
                prop_assert_eq!(window.start(), start);
                prop_assert_eq!(window.end(), model.len() as u64);
                let from = start + from % (model.len() as u64 - start + 1);
                let rest = &model[usize::try_from(from).expect("small")..];
                let expected = &rest[..rest.len().min(max)];
                let joined = window.read_joined(from, max);
                prop_assert_eq!(joined.as_slice(), expected);
                let part = window.read(from, max);
                prop_assert!(expected.starts_with(&part));
                prop_assert_eq!(part.is_empty(), expected.is_empty());
            }
        }
    }
}

//! Slots by number, and the numbers and uids in use: a table behind a short lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::pool::SlotReservation;
use crate::workspace::Slot;

/// Slots of all pools by number, and the numbers that are free.
#[derive(Debug)]
pub struct SlotTable(Mutex<TableState>);

#[derive(Debug)]
struct TableState {
    numbers: SlotNumberAllocator,
    slots: BTreeMap<u32, Slot>,
}

/// Slot numbers, and with them uids. No two slots share one, and one that was used rests before its next use, so that
/// nothing a tenant left with the kernel (inotify counts, keyrings) meets the next tenant.
#[derive(Debug)]
pub struct SlotNumberAllocator {
    base: u32,
    count: u32,
    quarantine: Duration,
    next: u32,
    used: BTreeSet<u32>,
    resting: VecDeque<(Instant, u32)>,
    /// Uids that other instances on this host use.
    foreign: BTreeSet<u32>,
}

impl SlotNumberAllocator {
    /// Numbers `0..count`, for uids from `base` on. The first one taken is `first`, modulo `count`.
    #[must_use]
    pub fn new(base: u32, count: u32, quarantine: Duration, first: u32) -> Self {
        Self {
            base,
            count,
            quarantine,
            next: first.checked_rem(count).unwrap_or(0),
            used: BTreeSet::new(),
            resting: VecDeque::new(),
            foreign: BTreeSet::new(),
        }
    }

    /// Takes a free number.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`] when all are in use or resting.
    pub fn take(&mut self) -> Result<u32> {
        while self
            .resting
            .front()
            .is_some_and(|(since, _)| since.elapsed() >= self.quarantine)
        {
            self.resting.pop_front();
        }
        for step in 0..self.count {
            let number = (self.next + step) % self.count;
            let free = !self.used.contains(&number)
                && !self.foreign.contains(&(self.base + number))
                && !self.resting.iter().any(|(_, resting)| *resting == number);
            if free {
                self.next = (number + 1) % self.count;
                self.used.insert(number);
                return Ok(number);
            }
        }
        Err(Error::QuotaExceeded {
            subject: "slots (engine.uid_count)".into(),
            limit: self.count.into(),
        })
    }

    /// Marks a number from a record as used. False if it is out of range or used twice.
    #[must_use]
    pub fn adopt(&mut self, number: u32) -> bool {
        number < self.count && self.used.insert(number)
    }

    /// Gives a number back; it rests first.
    pub fn give_back(&mut self, number: u32) {
        if self.used.remove(&number) {
            self.resting.push_back((Instant::now(), number));
        }
    }

    /// Stays clear of the uids of other instances.
    pub fn avoid(&mut self, uids: impl IntoIterator<Item = u32>) {
        self.foreign.extend(uids);
    }

    /// The uid of a number.
    #[must_use]
    pub fn uid(&self, number: u32) -> u32 {
        self.base + number
    }
}

// === impl SlotTable ===

impl SlotTable {
    /// Creates a table without slots.
    #[must_use]
    pub fn new(numbers: SlotNumberAllocator) -> Self {
        let slots = BTreeMap::new();
        Self(Mutex::new(TableState { numbers, slots }))
    }

    /// Takes a free number and returns it with its uid.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`] when all numbers are in use or resting.
    pub fn take_number(&self) -> Result<(u32, u32)> {
        let mut state = self.lock();
        let number = state.numbers.take()?;
        Ok((number, state.numbers.uid(number)))
    }

    /// Marks number and uid of an earlier daemon's slot as used. Returns `false` if the number is out of range or in
    /// use.
    #[must_use]
    pub fn adopt_number(&self, number: u32, uid: u32) -> bool {
        let mut state = self.lock();
        if uid != state.numbers.uid(number) {
            // The configured range of uids has changed since.
            state.numbers.avoid([uid]);
        }
        state.numbers.adopt(number)
    }

    /// Excludes uids that other instances on this host use.
    pub fn avoid_uids(&self, uids: impl IntoIterator<Item = u32>) {
        self.lock().numbers.avoid(uids);
    }

    /// Adds a slot under its number.
    pub fn insert(&self, slot: Slot) {
        self.lock().slots.insert(slot.number, slot);
    }

    /// Removes a slot. Its number rests before its next use.
    pub fn remove(&self, number: u32) {
        let mut state = self.lock();
        state.slots.remove(&number);
        state.numbers.give_back(number);
    }

    /// Returns the slot with a number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<Slot> {
        self.lock().slots.get(&number).cloned()
    }

    /// Returns the slot of a reservation.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`] when the slot was lost meanwhile: reserve another one.
    pub fn reserved(&self, reservation: &SlotReservation) -> Result<Slot> {
        let number = reservation.number;
        self.get(number).ok_or_else(|| Error::WorkspaceNotReady {
            name: format!("slot {number}"),
            state: "gone".to_owned(),
        })
    }

    /// Returns all slots, by number.
    #[must_use]
    pub fn list(&self) -> Vec<Slot> {
        self.lock().slots.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the first slot number to use, and with it the first uid. The daemon does not remember resting uids over a
/// restart, so numbers advance with the clock: by eight per second, which is faster than Docker starts containers.
#[must_use]
pub fn first_slot_number() -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let steps = now.unwrap_or_default().as_secs().wrapping_mul(8);
    u32::try_from(steps % (1 << 31)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn uid_rests_before_reuse() {
        let mut numbers = SlotNumberAllocator::new(1000, 2, Duration::from_secs(60), 0);
        let first = numbers.take().expect("free");
        let second = numbers.take().expect("free");
        assert_ne!(numbers.uid(first), numbers.uid(second));
        assert!(numbers.take().is_err(), "none is shared");
        numbers.give_back(first);
        assert!(numbers.take().is_err(), "it rests");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(numbers.take().expect("rested"), first);
    }

    #[test]
    fn uids_of_other_instances_are_avoided() {
        let mut numbers = SlotNumberAllocator::new(1000, 3, Duration::ZERO, 0);
        numbers.avoid([1000, 1001, 77]);
        assert_eq!(numbers.take().expect("free"), 2);
        assert!(numbers.take().is_err());
    }

    #[test]
    fn adopted_numbers_are_used_once() {
        let mut numbers = SlotNumberAllocator::new(1000, 3, Duration::ZERO, 0);
        assert!(numbers.adopt(1));
        assert!(!numbers.adopt(1), "twice");
        assert!(!numbers.adopt(3), "out of range");
        assert_eq!(numbers.take().expect("free"), 0);
        assert_eq!(numbers.take().expect("free"), 2);
    }
}

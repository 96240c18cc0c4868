//! Slots by number, and the numbers and uids in use: a table behind a short lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::pool::SlotReservation;
use crate::workspace::Slot;

/// Slots of all pools by number. The number of a slot determines its uid. No two slots share a number, and one that was
/// used rests before its next use, so that nothing a tenant left with the kernel (inotify counts, keyrings) meets the
/// next tenant.
#[derive(Debug)]
pub struct SlotTable {
    /// Uid of number 0.
    base: u32,
    /// Number of slot numbers, from 0 on.
    count: u32,
    /// Time that a number rests.
    quarantine: Duration,
    state: Mutex<TableState>,
}

#[derive(Debug)]
struct TableState {
    slots: BTreeMap<u32, Slot>,
    next: u32,
    used: BTreeSet<u32>,
    resting: VecDeque<(Instant, u32)>,
    /// Uids that other instances on this host use.
    foreign: BTreeSet<u32>,
}

impl SlotTable {
    /// Creates a table without slots. Its numbers are `0..count`, for uids from `base` on. The first one taken is
    /// `first`, modulo `count`.
    pub fn new(base: u32, count: u32, quarantine: Duration, first: u32) -> Self {
        Self {
            base,
            count,
            quarantine,
            state: Mutex::new(TableState {
                slots: BTreeMap::new(),
                next: first.checked_rem(count).unwrap_or(0),
                used: BTreeSet::new(),
                resting: VecDeque::new(),
                foreign: BTreeSet::new(),
            }),
        }
    }

    /// Takes a free number and returns it with its uid.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`] when all numbers are in use or resting.
    pub fn take_number(&self) -> Result<(u32, u32)> {
        let mut state = self.state.lock();
        while state
            .resting
            .front()
            .is_some_and(|(since, _)| since.elapsed() >= self.quarantine)
        {
            state.resting.pop_front();
        }
        for step in 0..self.count {
            let number = (state.next + step) % self.count;
            let uid = self.base + number;
            let free = !state.used.contains(&number)
                && !state.foreign.contains(&uid)
                && !state.resting.iter().any(|(_, resting)| *resting == number);
            if free {
                state.next = (number + 1) % self.count;
                state.used.insert(number);
                return Ok((number, uid));
            }
        }
        let subject = "slots (engine.uid_count)";
        Err(Error::quota_exceeded(subject, self.count.into()))
    }

    /// Marks number and uid of an earlier daemon's slot as used. Returns `false` if the number is out of range or in
    /// use.
    #[must_use]
    pub fn adopt_number(&self, number: u32, uid: u32) -> bool {
        let mut state = self.state.lock();
        if uid != self.base + number {
            // The configured range of uids has changed since.
            state.foreign.insert(uid);
        }
        number < self.count && state.used.insert(number)
    }

    /// Excludes uids that other instances on this host use.
    pub fn avoid_uids(&self, uids: impl IntoIterator<Item = u32>) {
        self.state.lock().foreign.extend(uids);
    }

    /// Adds a slot under its number.
    pub fn insert(&self, slot: Slot) {
        self.state.lock().slots.insert(slot.number, slot);
    }

    /// Removes a slot. Its number rests before its next use.
    pub fn remove(&self, number: u32) {
        let mut state = self.state.lock();
        state.slots.remove(&number);
        if state.used.remove(&number) {
            state.resting.push_back((Instant::now(), number));
        }
    }

    /// Returns the slot with a number.
    pub fn get(&self, number: u32) -> Option<Slot> {
        self.state.lock().slots.get(&number).cloned()
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
    pub fn list(&self) -> Vec<Slot> {
        self.state.lock().slots.values().cloned().collect()
    }
}

/// Returns the first slot number to use, and with it the first uid. The daemon does not remember resting uids over a
/// restart, so numbers advance with the clock: by eight per second, which is faster than Docker starts containers.
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
        let table = SlotTable::new(1000, 2, Duration::from_secs(60), 0);
        let first = table.take_number().expect("free");
        let second = table.take_number().expect("free");
        assert_eq!((first, second), ((0, 1000), (1, 1001)));
        assert!(table.take_number().is_err(), "none is shared");
        table.remove(first.0);
        assert!(table.take_number().is_err(), "it rests");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(table.take_number().expect("rested"), first);
    }

    #[test]
    fn uids_of_other_instances_are_avoided() {
        let table = SlotTable::new(1000, 3, Duration::ZERO, 0);
        table.avoid_uids([1000, 1001, 77]);
        assert_eq!(table.take_number().expect("free"), (2, 1002));
        assert!(table.take_number().is_err());
    }

    #[test]
    fn adopted_numbers_are_used_once() {
        let table = SlotTable::new(1000, 3, Duration::ZERO, 0);
        assert!(table.adopt_number(1, 1001));
        assert!(!table.adopt_number(1, 1001), "twice");
        assert!(!table.adopt_number(3, 1003), "out of range");
        assert_eq!(table.take_number().expect("free"), (0, 1000));
        assert_eq!(table.take_number().expect("free"), (2, 1002));
    }
}

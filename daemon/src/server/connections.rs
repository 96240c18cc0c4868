//! Table of open connections, which chooses the connection to close when a new one exceeds a limit.
//!
//! The connection is taken from the user with the most connections, but never from a user with fewer than the new
//! connection's user has. The order among that user's connections:
//! 1. connections without any call for longer than [`FIRST_CALL_GRACE`] after the accept;
//! 2. other connections without an open call, least recently used first;
//! 3. connections whose only open calls watch the server ([`CallPriority::Watch`]).
//!
//! A connection with an open call of [`CallPriority::Work`] is never closed for another one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time within which a working client makes its first call.
const FIRST_CALL_GRACE: Duration = Duration::from_secs(1);

/// Table of open connections. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct ConnectionTable(Arc<Mutex<TableState>>);

#[derive(Debug)]
struct TableState {
    connections_max: usize,
    per_user_max: usize,
    next_id: u64,
    open: BTreeMap<u64, OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    uid: u32,
    /// Number of open calls of [`CallPriority::Work`].
    work_calls: usize,
    /// Number of open calls of [`CallPriority::Watch`].
    watch_calls: usize,
    has_called: bool,
    /// Time of the accept, or of the most recent begin or end of a call.
    last_use: Instant,
    cut: CancellationToken,
}

/// Entry of one connection in the table. Dropping it removes the entry.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    handle: ConnectionHandle,
    /// Cancelled when the connection has to end.
    pub(super) cut: CancellationToken,
}

/// Reference of a request to its connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionHandle {
    table: ConnectionTable,
    id: u64,
}

/// Weight of an open call when a connection has to be closed for a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallPriority {
    /// Call of skilld's own services: the connection is not closed for another one.
    Work,
    /// Call of health or reflection, which may stay open for ever. Its client loses nothing by calling again.
    Watch,
}

/// Counts a call on its connection until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionCallGuard {
    handle: ConnectionHandle,
    kind: CallPriority,
}

/// Outcome of adding a connection to the table.
#[derive(Debug)]
pub(super) enum Admission {
    /// The limits allow the connection.
    Free(ConnectionGuard),
    /// Another connection was closed for the new one.
    Replaced(ConnectionGuard),
    /// Limits are reached, and all connections that could be closed have open calls.
    Full,
}

impl ConnectionTable {
    /// Creates an empty table for `connections_max` connections, `per_user_max` of them from one user.
    pub(super) fn new(connections_max: usize, per_user_max: usize) -> Self {
        Self(Arc::new(Mutex::new(TableState {
            connections_max,
            per_user_max,
            next_id: 0,
            open: BTreeMap::new(),
        })))
    }

    /// Adds a connection of the user `uid`. `cut` ends every connection; a child token of it ends this one.
    pub(super) fn admit(&self, uid: u32, cut: &CancellationToken) -> Admission {
        let cut = cut.child_token();
        let mut replaced = false;
        let id = self.with(|state| {
            if let Some(rivals) = state.rivals(uid) {
                let victim = state.victim(&rivals)?;
                if let Some(victim) = state.open.remove(&victim) {
                    victim.cut.cancel();
                    replaced = true;
                }
            }
            state.next_id += 1;
            let connection = OpenConnection {
                uid,
                work_calls: 0,
                watch_calls: 0,
                has_called: false,
                last_use: Instant::now(),
                cut: cut.clone(),
            };
            state.open.insert(state.next_id, connection);
            Some(state.next_id)
        });
        let Some(id) = id else {
            return Admission::Full;
        };
        let table = self.clone();
        let handle = ConnectionHandle { table, id };
        let guard = ConnectionGuard { handle, cut };
        if replaced {
            Admission::Replaced(guard)
        } else {
            Admission::Free(guard)
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut TableState) -> T) -> T {
        // No code panics while it holds the lock, so the state is consistent.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TableState {
    /// Returns the users of whom a connection may be closed for a new one of `uid`, in order of preference; `None` if
    /// the limits allow another connection.
    fn rivals(&self, uid: u32) -> Option<Vec<u32>> {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for connection in self.open.values() {
            *counts.entry(connection.uid).or_default() += 1;
        }
        let own = counts.get(&uid).copied().unwrap_or_default();
        if own >= self.per_user_max {
            return Some(vec![uid]);
        }
        if self.open.len() < self.connections_max {
            return None;
        }
        // A user with many connections gets no more at the cost of those with fewer.
        let as_many = counts.into_iter().filter(|(_, count)| *count >= own);
        let mut users: Vec<(u32, usize)> = as_many.collect();
        users.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Some(users.into_iter().map(|(uid, _)| uid).collect())
    }

    fn victim(&self, users: &[u32]) -> Option<u64> {
        let now = Instant::now();
        users.iter().find_map(|uid| {
            let of_user = self.open.iter().filter(|(_, open)| open.uid == *uid);
            let without_work = of_user.filter(|(_, open)| open.work_calls == 0);
            without_work
                .min_by_key(|(_, open)| {
                    let is_late =
                        !open.has_called && now.duration_since(open.last_use) > FIRST_CALL_GRACE;
                    (open.watch_calls > 0, !is_late, open.last_use)
                })
                .map(|(id, _)| *id)
        })
    }
}

impl OpenConnection {
    fn calls_mut(&mut self, kind: CallPriority) -> &mut usize {
        match kind {
            CallPriority::Work => &mut self.work_calls,
            CallPriority::Watch => &mut self.watch_calls,
        }
    }
}

impl ConnectionGuard {
    pub(super) fn handle(&self) -> ConnectionHandle {
        self.handle.clone()
    }
}

impl ConnectionHandle {
    /// Counts a call on the connection. Returns `None` if the connection is being closed, so that an answer would not
    /// arrive.
    pub(super) fn open_call(&self, kind: CallPriority) -> Option<ConnectionCallGuard> {
        self.table.with(|state| {
            let connection = state.open.get_mut(&self.id)?;
            *connection.calls_mut(kind) += 1;
            connection.has_called = true;
            connection.last_use = Instant::now();
            let handle = self.clone();
            Some(ConnectionCallGuard { handle, kind })
        })
    }

    /// Returns `true` if the connection is being closed.
    pub(super) fn is_closed(&self) -> bool {
        self.table.with(|state| !state.open.contains_key(&self.id))
    }
}

impl Drop for ConnectionCallGuard {
    fn drop(&mut self) {
        self.handle.table.with(|state| {
            if let Some(connection) = state.open.get_mut(&self.handle.id) {
                *connection.calls_mut(self.kind) -= 1;
                connection.last_use = Instant::now();
            }
        });
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.handle
            .table
            .with(|state| state.open.remove(&self.handle.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(table: &ConnectionTable, uid: u32) -> (ConnectionGuard, bool) {
        match table.admit(uid, &CancellationToken::new()) {
            Admission::Free(guard) => (guard, false),
            Admission::Replaced(guard) => (guard, true),
            Admission::Full => panic!("full"),
        }
    }

    async fn pass(milliseconds: u64) {
        tokio::time::advance(Duration::from_millis(milliseconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_was_idle_for_the_longest_time_goes_first() {
        let table = ConnectionTable::new(3, 3);
        let (first, _) = place(&table, 1);
        pass(1).await;
        let (second, _) = place(&table, 1);
        pass(1).await;
        let (third, _) = place(&table, 1);
        pass(1).await;
        drop(first.handle().open_call(CallPriority::Work));
        let (fourth, replaced) = place(&table, 1);
        assert!(replaced && second.cut.is_cancelled());
        for kept in [&first, &third, &fourth] {
            assert!(!kept.cut.is_cancelled());
        }
        // What was closed gives no place back a second time, and takes no call.
        assert!(second.handle().open_call(CallPriority::Work).is_none());
        drop(second);
        assert!(place(&table, 1).1 && third.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_its_first_call_goes_before_an_older_one_with_calls() {
        let table = ConnectionTable::new(2, 2);
        let (used, _) = place(&table, 1);
        drop(used.handle().open_call(CallPriority::Work));
        pass(10).await;
        let (silent, _) = place(&table, 1);
        pass(2000).await;
        let (_third, _) = place(&table, 1);
        assert!(silent.cut.is_cancelled() && !used.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_call_is_never_closed_for_another() {
        let table = ConnectionTable::new(1, 1);
        let (first, _) = place(&table, 1);
        let call = first.handle().open_call(CallPriority::Work).expect("open");
        assert!(matches!(
            table.admit(1, &CancellationToken::new()),
            Admission::Full
        ));
        assert!(!first.cut.is_cancelled());
        drop(call);
        assert!(place(&table, 1).1 && first.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn one_user_takes_no_place_of_another() {
        let table = ConnectionTable::new(4, 3);
        let mut calls = Vec::new();
        let mut greedy = Vec::new();
        for _ in 0..3 {
            let (guard, _) = place(&table, 1);
            calls.push(guard.handle().open_call(CallPriority::Work).expect("open"));
            greedy.push(guard);
        }
        assert!(matches!(
            table.admit(1, &CancellationToken::new()),
            Admission::Full
        ));
        let (other, replaced) = place(&table, 2);
        assert!(!replaced);
        // All places are taken: a third user gets one of the user with the most, as long as that has an idle one.
        drop(calls.pop());
        let (_third, replaced) = place(&table, 3);
        assert!(replaced && greedy[2].cut.is_cancelled() && !other.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_only_watches_goes_when_none_is_idle() {
        let table = ConnectionTable::new(3, 3);
        let (mut connections, mut calls) = (Vec::new(), Vec::new());
        for kind in [CallPriority::Watch, CallPriority::Work, CallPriority::Watch] {
            let (guard, _) = place(&table, 1);
            calls.push(guard.handle().open_call(kind).expect("open"));
            connections.push(guard);
            pass(1).await;
        }
        // A watcher that also works keeps its connection.
        let [first, _, third] = &connections[..] else {
            panic!("three connections");
        };
        let work = first.handle().open_call(CallPriority::Work);
        assert!(place(&table, 1).1 && third.cut.is_cancelled());
        drop(work);
        pass(1).await;
        let (fourth, _) = place(&table, 1);
        assert!(!first.cut.is_cancelled(), "the idle one went");
        let _work = fourth.handle().open_call(CallPriority::Work);
        assert!(place(&table, 1).1 && first.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn one_users_watches_keep_no_other_user_out() {
        let table = ConnectionTable::new(4, 3);
        let (mut greedy, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (guard, _) = place(&table, 1);
            calls.push(guard.handle().open_call(CallPriority::Watch).expect("open"));
            greedy.push(guard);
            pass(1).await;
        }
        let (other, _) = place(&table, 2);
        // The other's connection is idle, but it has no more than its share.
        let (_third, replaced) = place(&table, 3);
        assert!(replaced && greedy.first().expect("three").cut.is_cancelled());
        assert!(!other.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_gets_no_place_of_one_with_fewer_connections() {
        let table = ConnectionTable::new(4, 4);
        let (mut busy, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (guard, _) = place(&table, 1);
            calls.push(guard.handle().open_call(CallPriority::Work).expect("open"));
            busy.push(guard);
        }
        let (other, _) = place(&table, 2);
        let more = table.admit(1, &CancellationToken::new());
        assert!(matches!(more, Admission::Full));
        assert!(!other.cut.is_cancelled());
    }
}

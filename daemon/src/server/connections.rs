//! Table of open connections, which chooses the connection to close when a new one exceeds a limit.
//!
//! A user here is a user of the host, an IPv4 address or an IPv6 network of 64 bits. Over its own limit, a user loses a
//! connection of its own. If the table is full, the connection is taken from any user that has no fewer than the new
//! connection's user, and strangers are taken from every user. The order:
//! 1. connections without a call of an accepted principal, so that no number of them closes one that has proven its
//!    identity. While these are at most a tenth, the rule does not apply: new clients need places too;
//! 2. strangers: connections that are not proven for longer than [`FIRST_CALL_GRACE`] after the accept;
//! 3. connections of the user with the most.
//!
//! The order among that user's connections:
//! 1. connections without any call for longer than [`FIRST_CALL_GRACE`] after the accept;
//! 2. other connections without an open call, least recently used first;
//! 3. connections whose only open calls watch the server ([`CallPriority::Watch`]).
//!
//! A connection with an open call of [`CallPriority::Work`] is never closed for another one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::{ConnectionOwner, ConnectionPeer, HeldUnit, TenantName};
use crate::error::Result;

/// Time within which a working client makes its first call.
const FIRST_CALL_GRACE: Duration = Duration::from_secs(1);

/// Divisor of the connections of which unproven ones have one part, before proven ones are closed for more.
const UNPROVEN_SHARE: usize = 10;

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

/// Users of whom a connection may be closed for a new one.
#[derive(Debug)]
struct Rivals {
    /// Number of connections of each.
    counts: HashMap<ConnectionOwner, usize>,
    /// Number of connections of the new one's user.
    own: usize,
    /// `true` if a connection that watches goes after others, also if its user has shown no credential.
    spares_watchers: bool,
    /// `true` if proven connections go after all others.
    spares_proven: bool,
}

#[derive(Debug)]
struct OpenConnection {
    peer: Arc<ConnectionPeer>,
    /// Number of open calls of [`CallPriority::Work`].
    work_calls: usize,
    /// Number of open calls of [`CallPriority::Watch`].
    watch_calls: usize,
    has_called: bool,
    /// `true` once a call of an accepted principal arrived, or any call while authentication is off.
    is_authenticated: bool,
    accepted: Instant,
    /// Unit of the quota of connections, of each tenant whose principals called on it.
    tenants: Vec<HeldUnit>,
    /// Time of the accept, or of the most recent begin or end of a call.
    last_use: Instant,
    cut: CancellationToken,
}

/// Entry of one connection in the table. Dropping it removes the entry.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    pub(super) handle: ConnectionHandle,
    /// Cancelled when the connection has to end.
    pub(super) cut: CancellationToken,
}

/// Reference of a request to its connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionHandle {
    table: ConnectionTable,
    /// Number of the connection, which no other one gets.
    pub(super) id: u64,
    pub(super) peer: Arc<ConnectionPeer>,
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
pub(super) enum ConnectionAdmission {
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

    /// Adds a connection. `cut` ends every connection; a child token of it ends this one.
    pub(super) fn admit(
        &self,
        peer: Arc<ConnectionPeer>,
        cut: &CancellationToken,
    ) -> ConnectionAdmission {
        let cut = cut.child_token();
        let mut replaced = false;
        let id = self.with(|state| {
            let now = Instant::now();
            if let Some(rivals) = state.rivals(peer.address.owner()) {
                let victim = state.victim(&rivals, now)?;
                if let Some(victim) = state.open.remove(&victim) {
                    victim.cut.cancel();
                    replaced = true;
                }
            }
            state.next_id += 1;
            let connection = OpenConnection {
                peer: Arc::clone(&peer),
                work_calls: 0,
                watch_calls: 0,
                has_called: false,
                is_authenticated: false,
                accepted: now,
                tenants: Vec::new(),
                last_use: now,
                cut: cut.clone(),
            };
            state.open.insert(state.next_id, connection);
            Some(state.next_id)
        });
        let Some(id) = id else {
            return ConnectionAdmission::Full;
        };
        let table = self.clone();
        let handle = ConnectionHandle { table, id, peer };
        let guard = ConnectionGuard { handle, cut };
        if replaced {
            ConnectionAdmission::Replaced(guard)
        } else {
            ConnectionAdmission::Free(guard)
        }
    }

    /// Adds a connection and logs what that costs others. Returns `None` if the connection is refused.
    pub(super) fn admit_or_refuse(
        &self,
        peer: &Arc<ConnectionPeer>,
        cut: &CancellationToken,
    ) -> Option<ConnectionGuard> {
        let address = peer.address;
        match self.admit(Arc::clone(peer), cut) {
            ConnectionAdmission::Free(guard) => Some(guard),
            ConnectionAdmission::Replaced(guard) => {
                tracing::warn!(peer = %address, "too many connections: closed another one");
                Some(guard)
            }
            ConnectionAdmission::Full => {
                let why = "too many connections, all with open calls";
                tracing::warn!(peer = %address, why, "refused a connection");
                None
            }
        }
    }

    /// Closes the connections whose peers are no longer acceptable. Returns their number.
    pub(super) fn close_if(&self, is_refused: impl Fn(&ConnectionPeer) -> bool) -> usize {
        let all: Vec<(Arc<ConnectionPeer>, CancellationToken)> = self.with(|state| {
            let open = state.open.values();
            open.map(|open| (Arc::clone(&open.peer), open.cut.clone()))
                .collect()
        });
        let refused = all.iter().filter(|(peer, _)| is_refused(peer));
        refused.map(|(_, cut)| cut.cancel()).count()
    }

    fn with<T>(&self, work: impl FnOnce(&mut TableState) -> T) -> T {
        work(&mut self.0.lock())
    }
}

impl TableState {
    /// Returns the users of whom a connection may be closed for a new one of `owner`; `None` if the limits allow another
    /// connection.
    fn rivals(&self, owner: ConnectionOwner) -> Option<Rivals> {
        let mut counts: HashMap<ConnectionOwner, usize> = HashMap::new();
        for connection in self.open.values() {
            *counts.entry(connection.peer.address.owner()).or_default() += 1;
        }
        let own = counts.get(&owner).copied().unwrap_or_default();
        let is_over_own = own >= self.per_user_max;
        if !is_over_own && self.open.len() < self.connections_max {
            return None;
        }
        if is_over_own {
            counts.retain(|rival, _| *rival == owner);
        }
        let is_rival = |open: &&OpenConnection| counts.contains_key(&open.peer.address.owner());
        let rivals = self.open.values().filter(is_rival);
        let proven = rivals.filter(|open| open.is_authenticated).count();
        let all: usize = counts.values().sum();
        Some(Rivals {
            own,
            spares_watchers: is_over_own,
            spares_proven: all - proven > all.div_ceil(UNPROVEN_SHARE),
            counts,
        })
    }

    /// Returns the connection to close for a new one; `None` if all that may be closed have open calls.
    fn victim(&self, rivals: &Rivals, now: Instant) -> Option<u64> {
        let without_work = self.open.iter().filter(|(_, open)| open.work_calls == 0);
        let rated = without_work.filter_map(|(id, open)| {
            let count = *rivals.counts.get(&open.peer.address.owner())?;
            let is_old = now.duration_since(open.accepted) > FIRST_CALL_GRACE;
            let is_stranger = is_old && !open.is_authenticated;
            // A user with many connections gets no more at the cost of those with fewer.
            (is_stranger || count >= rivals.own).then(|| {
                let is_late = is_old && !open.has_called;
                let watches = open.watch_calls > 0;
                let is_proven = open.is_authenticated && rivals.spares_proven;
                let is_spared = watches && rivals.spares_watchers;
                let group = (is_proven, is_spared, !is_stranger, Reverse(count));
                ((group, watches, !is_late, open.last_use), *id)
            })
        });
        rated.min().map(|(_, id)| id)
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

    /// Counts the connection for a tenant, unless it counts already. `take` reserves its unit.
    ///
    /// # Errors
    /// Those of `take`.
    pub(super) fn count_for(
        &self,
        tenant: &TenantName,
        take: impl FnOnce() -> Result<HeldUnit>,
    ) -> Result<()> {
        self.table.with(|state| {
            let Some(connection) = state.open.get_mut(&self.id) else {
                // The call ends with the connection, which is being closed.
                return Ok(());
            };
            if connection
                .tenants
                .iter()
                .all(|held| held.tenant() != tenant)
            {
                connection.tenants.push(take()?);
            }
            Ok(())
        })
    }

    /// Notes that a call of an accepted principal arrived on the connection.
    pub(super) fn set_authenticated(&self) {
        self.table.with(|state| {
            if let Some(connection) = state.open.get_mut(&self.id) {
                connection.is_authenticated = true;
            }
        });
    }

    /// Returns the token that closes the connection; `None` if it is being closed.
    pub(super) fn cut(&self) -> Option<CancellationToken> {
        let find = |state: &mut TableState| Some(state.open.get(&self.id)?.cut.clone());
        self.table.with(find)
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::access::PeerAddress;

    fn peer(uid: u32) -> Arc<ConnectionPeer> {
        let (gid, pid) = (uid, None);
        let address = PeerAddress::Unix { uid, gid, pid };
        Arc::new(ConnectionPeer::new(address, String::new(), BTreeSet::new()))
    }

    fn admit(table: &ConnectionTable, uid: u32) -> (ConnectionGuard, bool) {
        match table.admit(peer(uid), &CancellationToken::new()) {
            ConnectionAdmission::Free(guard) => (guard, false),
            ConnectionAdmission::Replaced(guard) => (guard, true),
            ConnectionAdmission::Full => panic!("full"),
        }
    }

    async fn pass(milliseconds: u64) {
        tokio::time::advance(Duration::from_millis(milliseconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_was_idle_for_the_longest_time_goes_first() {
        let table = ConnectionTable::new(3, 3);
        let (first, _) = admit(&table, 1);
        pass(1).await;
        let (second, _) = admit(&table, 1);
        pass(1).await;
        let (third, _) = admit(&table, 1);
        pass(1).await;
        drop(first.handle.open_call(CallPriority::Work));
        let (fourth, replaced) = admit(&table, 1);
        assert!(replaced && second.cut.is_cancelled());
        for kept in [&first, &third, &fourth] {
            assert!(!kept.cut.is_cancelled());
        }
        // What was closed gives no place back a second time, and takes no call.
        assert!(second.handle.open_call(CallPriority::Work).is_none());
        drop(second);
        assert!(admit(&table, 1).1 && third.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_without_a_call_are_evicted_before_used_ones() {
        let table = ConnectionTable::new(2, 2);
        let (used, _) = admit(&table, 1);
        drop(used.handle.open_call(CallPriority::Work));
        pass(10).await;
        let (silent, _) = admit(&table, 1);
        pass(2000).await;
        let (_third, _) = admit(&table, 1);
        assert!(silent.cut.is_cancelled() && !used.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_call_is_never_closed_for_another() {
        let table = ConnectionTable::new(1, 1);
        let (first, _) = admit(&table, 1);
        let call = first.handle.open_call(CallPriority::Work).expect("open");
        assert!(matches!(
            table.admit(peer(1), &CancellationToken::new()),
            ConnectionAdmission::Full
        ));
        assert!(!first.cut.is_cancelled());
        drop(call);
        assert!(admit(&table, 1).1 && first.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn one_user_takes_no_place_of_another() {
        let table = ConnectionTable::new(4, 3);
        let mut calls = Vec::new();
        let mut greedy = Vec::new();
        for _ in 0..3 {
            let (guard, _) = admit(&table, 1);
            calls.push(guard.handle.open_call(CallPriority::Work).expect("open"));
            greedy.push(guard);
        }
        assert!(matches!(
            table.admit(peer(1), &CancellationToken::new()),
            ConnectionAdmission::Full
        ));
        let (other, replaced) = admit(&table, 2);
        assert!(!replaced);
        // All places are taken: a third user gets one of the user with the most, as long as that has an idle one.
        drop(calls.pop());
        let (_third, replaced) = admit(&table, 3);
        assert!(replaced && greedy[2].cut.is_cancelled() && !other.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_only_watches_goes_when_none_is_idle() {
        let table = ConnectionTable::new(3, 3);
        let (mut connections, mut calls) = (Vec::new(), Vec::new());
        for kind in [CallPriority::Watch, CallPriority::Work, CallPriority::Watch] {
            let (guard, _) = admit(&table, 1);
            calls.push(guard.handle.open_call(kind).expect("open"));
            connections.push(guard);
            pass(1).await;
        }
        // A watcher that also works keeps its connection.
        let [first, _, third] = &connections[..] else {
            panic!("three connections");
        };
        let work = first.handle.open_call(CallPriority::Work);
        assert!(admit(&table, 1).1 && third.cut.is_cancelled());
        drop(work);
        pass(1).await;
        let (fourth, _) = admit(&table, 1);
        assert!(!first.cut.is_cancelled(), "the idle one went");
        let _work = fourth.handle.open_call(CallPriority::Work);
        assert!(admit(&table, 1).1 && first.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn one_users_watches_keep_no_other_user_out() {
        let table = ConnectionTable::new(4, 3);
        let (mut greedy, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (guard, _) = admit(&table, 1);
            calls.push(guard.handle.open_call(CallPriority::Watch).expect("open"));
            greedy.push(guard);
            pass(1).await;
        }
        let (other, _) = admit(&table, 2);
        // The other's connection is idle, but it has no more than its share.
        let (_third, replaced) = admit(&table, 3);
        assert!(replaced && greedy.first().expect("three").cut.is_cancelled());
        assert!(!other.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_gets_no_place_of_one_with_fewer_connections() {
        let table = ConnectionTable::new(4, 4);
        let (mut busy, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (guard, _) = admit(&table, 1);
            calls.push(guard.handle.open_call(CallPriority::Work).expect("open"));
            busy.push(guard);
        }
        let (other, _) = admit(&table, 2);
        let more = table.admit(peer(1), &CancellationToken::new());
        assert!(matches!(more, ConnectionAdmission::Full));
        assert!(!other.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_at_many_addresses_take_no_place_of_a_client() {
        let table = ConnectionTable::new(6, 6);
        let mut clients: Vec<ConnectionGuard> = Vec::new();
        for _ in 0..3 {
            let (guard, _) = admit(&table, 1);
            guard.handle.set_authenticated();
            drop(guard.handle.open_call(CallPriority::Work));
            clients.push(guard);
        }
        pass(5000).await;
        let mut strangers: Vec<(ConnectionGuard, ConnectionCallGuard)> = Vec::new();
        for uid in 10..30 {
            // A health check, which needs no credential.
            let (guard, _) = admit(&table, uid);
            let watch = guard.handle.open_call(CallPriority::Watch);
            strangers.push((guard, watch.expect("open")));
            pass(1100).await;
        }
        assert!(clients.iter().all(|client| !client.cut.is_cancelled()));
        // The client gets the place of a stranger although that has fewer connections.
        let (more, replaced) = admit(&table, 1);
        assert!(replaced && !more.cut.is_cancelled());
        assert!(clients.iter().all(|client| !client.cut.is_cancelled()));
        let open = strangers.iter().filter(|(it, _)| !it.cut.is_cancelled());
        assert_eq!(open.count(), 2);
    }

    /// Adds connections on which a principal has called and that are idle now.
    fn admit_proven(table: &ConnectionTable, uid: u32, count: usize) -> Vec<ConnectionGuard> {
        let admit_one = |_| {
            let (guard, _) = admit(table, uid);
            guard.handle.set_authenticated();
            drop(guard.handle.open_call(CallPriority::Work));
            guard
        };
        (0..count).map(admit_one).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_fresh_connections_closes_no_proven_one() {
        // The flood comes from the client's own address, and from many.
        for (users, size, count) in [
            (1..2, 8, 4),
            (10..50, 8, 4),
            (1..2, 20, 17),
            (10..50, 20, 17),
        ] {
            let table = ConnectionTable::new(size, size);
            let proven = admit_proven(&table, 1, count);
            pass(200).await;
            let mut flood: Vec<(ConnectionGuard, Option<ConnectionCallGuard>)> = Vec::new();
            for uid in users.cycle().take(100) {
                let (guard, _) = admit(&table, uid);
                // Health needs no credential, so a watch proves nothing.
                let handle = guard.handle.clone();
                flood.push((guard, handle.open_call(CallPriority::Watch)));
                pass(1).await;
            }
            assert!(proven.iter().all(|it| !it.cut.is_cancelled()));
            assert!(!flood.last().expect("the flood").0.cut.is_cancelled());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn new_connections_get_places_where_most_are_proven() {
        let table = ConnectionTable::new(4, 4);
        let proven = admit_proven(&table, 1, 4);
        pass(200).await;
        let fresh = [admit(&table, 1).0, admit(&table, 1).0];
        assert!(fresh.iter().all(|it| !it.cut.is_cancelled()));
        let closed = proven.iter().filter(|it| it.cut.is_cancelled());
        assert_eq!(closed.count(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_stranger_with_the_most_connections_loses_one_first() {
        let table = ConnectionTable::new(4, 4);
        let (single, _) = admit(&table, 1);
        let greedy: Vec<ConnectionGuard> = (0..3).map(|_| admit(&table, 2).0).collect();
        pass(2000).await;
        assert!(admit(&table, 3).1);
        assert!(!single.cut.is_cancelled());
        assert_eq!(greedy.iter().filter(|it| it.cut.is_cancelled()).count(), 1);
    }
}

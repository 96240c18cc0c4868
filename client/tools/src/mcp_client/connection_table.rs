//! Table of open connections to MCP servers. At a limit, the least recently used connection without a call is closed;
//! it is opened again when it is needed, so that sessions that were never ended do not add up.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::OnceCell;

use super::ServerAddress;

/// Key of a connection: session, agent and address of the server.
pub(super) type ConnectionKey = (String, String, ServerAddress);
/// Slot of a connection, filled by the first call that needs it while the others wait. Every call that waits for it or
/// uses it holds a reference.
pub(super) type ConnectionCell<T> = Arc<OnceCell<Arc<T>>>;

/// Limits of open connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimits {
    pub(super) of_session: usize,
    pub(super) of_toolset: usize,
}

/// Table of open connections with their last uses.
#[derive(Debug)]
pub(super) struct ConnectionTable<T> {
    limits: ConnectionLimits,
    cells: HashMap<ConnectionKey, (ConnectionCell<T>, u64)>,
    /// Number of uses so far, which orders them.
    uses: u64,
}

impl<T> ConnectionTable<T> {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            cells: HashMap::new(),
            uses: 0,
        }
    }

    /// Returns the cell of a server, and the evicted one, which the caller closes. The error names the limit that is
    /// reached by connections that are all in use.
    pub(super) fn cell(
        &mut self,
        key: &ConnectionKey,
        is_broken: impl Fn(&T) -> bool,
    ) -> Result<(ConnectionCell<T>, Option<ConnectionCell<T>>), String> {
        self.uses += 1;
        if let Some((cell, used)) = self.cells.get_mut(key)
            && !cell.get().is_some_and(|connection| is_broken(connection))
        {
            *used = self.uses;
            return Ok((Arc::clone(cell), None));
        }
        self.cells.remove(key);
        let ConnectionLimits {
            of_session,
            of_toolset,
        } = self.limits;
        let own = self
            .cells
            .keys()
            .filter(|(session, _, _)| *session == key.0);
        let evicted = if own.count() >= of_session {
            let gone = self.evict_lru(|(session, _, _)| *session == key.0);
            Some(
                gone.ok_or_else(|| {
                    format!("all of this session's {of_session} servers are in use")
                })?,
            )
        } else if self.cells.len() >= of_toolset {
            let gone = self.evict_lru(|_| true);
            Some(gone.ok_or_else(|| format!("all of a toolset's {of_toolset} servers are in use"))?)
        } else {
            None
        };
        let cell = ConnectionCell::default();
        self.cells
            .insert(key.clone(), (Arc::clone(&cell), self.uses));
        Ok((cell, evicted))
    }

    /// Removes the least recently used connection without a call.
    fn evict_lru(&mut self, of: impl Fn(&ConnectionKey) -> bool) -> Option<ConnectionCell<T>> {
        let idle = self
            .cells
            .iter()
            .filter(|(key, (cell, _))| of(key) && is_idle(cell));
        let oldest = idle.min_by_key(|(_, (_, used))| *used)?.0.clone();
        self.cells.remove(&oldest).map(|(cell, _)| cell)
    }

    /// Removes the slot of a server that could not be connected.
    pub(super) fn forget(&mut self, key: &ConnectionKey) {
        let empty = |(cell, _): &(ConnectionCell<T>, u64)| !cell.initialized();
        if self.cells.get(key).is_some_and(empty) {
            self.cells.remove(key);
        }
    }

    /// Removes and returns the connections that `which` selects.
    pub(super) fn take(
        &mut self,
        which: impl Fn(&ConnectionKey) -> bool,
    ) -> Vec<ConnectionCell<T>> {
        let taken = self.cells.extract_if(|key, _| which(key));
        taken.map(|(_, (cell, _))| cell).collect()
    }
}

/// Returns `true` if no call uses the connection or waits for it.
fn is_idle<T>(cell: &ConnectionCell<T>) -> bool {
    let used = cell
        .get()
        .is_some_and(|connection| Arc::strong_count(connection) > 1);
    Arc::strong_count(cell) == 1 && !used
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ConnectionLimits = ConnectionLimits {
        of_session: 2,
        of_toolset: 3,
    };

    fn key(session: &str, at: &str) -> ConnectionKey {
        (
            session.into(),
            String::new(),
            ServerAddress::Named(at.into()),
        )
    }

    /// Connects, and says who gave way.
    fn connect(
        open: &mut ConnectionTable<String>,
        session: &str,
        at: &str,
    ) -> Result<Option<String>, String> {
        let (cell, gone) = open.cell(&key(session, at), |_| false)?;
        if !cell.initialized() {
            cell.set(Arc::new(format!("{session} {at}")))
                .map_err(|error| error.to_string())?;
        }
        Ok(gone.map(|cell| cell.get().map_or("empty".into(), |name| name.to_string())))
    }

    #[test]
    fn lru_eviction_prefers_connections_of_the_same_session() {
        let mut open = ConnectionTable::new(LIMITS);
        assert_eq!(connect(&mut open, "a", "1"), Ok(None));
        assert_eq!(connect(&mut open, "a", "2"), Ok(None));
        assert_eq!(connect(&mut open, "b", "1"), Ok(None));
        // Used again.
        assert_eq!(connect(&mut open, "a", "1"), Ok(None));
        assert_eq!(connect(&mut open, "a", "3"), Ok(Some("a 2".into())));
        assert_eq!(connect(&mut open, "c", "1"), Ok(Some("b 1".into())));
        assert_eq!(connect(&mut open, "c", "2"), Ok(Some("a 1".into())));
    }

    #[test]
    fn connections_in_use_are_not_evicted() {
        let mut open = ConnectionTable::new(LIMITS);
        connect(&mut open, "a", "1").expect("room");
        connect(&mut open, "a", "2").expect("room");
        let (cell, _) = open.cell(&key("a", "1"), |_| false).expect("is there");
        let in_call = Arc::clone(cell.get().expect("connected"));
        drop(cell);
        let (waited_for, _) = open.cell(&key("a", "2"), |_| false).expect("is there");
        let full = connect(&mut open, "a", "3");
        assert_eq!(
            full,
            Err("all of this session's 2 servers are in use".into())
        );
        drop(in_call);
        assert_eq!(connect(&mut open, "a", "3"), Ok(Some("a 1".into())));
        drop(waited_for);
        connect(&mut open, "b", "1").expect("room");
        let hold: Vec<ConnectionCell<String>> = [("a", "2"), ("a", "3"), ("b", "1")]
            .iter()
            .map(|(session, at)| open.cell(&key(session, at), |_| false).expect("is there").0)
            .collect();
        let full = connect(&mut open, "c", "1");
        assert_eq!(full, Err("all of a toolset's 3 servers are in use".into()));
        drop(hold);
    }

    #[test]
    fn one_that_was_given_up_while_it_connected_gives_way_too() {
        let mut open = ConnectionTable::<String>::new(LIMITS);
        for at in ["1", "2"] {
            drop(open.cell(&key("a", at), |_| false).expect("room"));
        }
        assert_eq!(connect(&mut open, "a", "3"), Ok(Some("empty".into())));
    }

    #[test]
    fn a_broken_one_is_made_again_and_takes_no_room_of_others() {
        let mut open = ConnectionTable::new(LIMITS);
        connect(&mut open, "a", "1").expect("room");
        connect(&mut open, "a", "2").expect("room");
        let (cell, gone) = open.cell(&key("a", "1"), |_| true).expect("room");
        assert!(!cell.initialized() && gone.is_none());
    }
}

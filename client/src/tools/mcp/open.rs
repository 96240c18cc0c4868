//! Which connections are open, and which of them gives way where a bound is reached: of those that nobody uses, the one
//! that was used longest ago. It is made again when it is needed, so that sessions that were never ended, and loads that
//! were given up, keep nobody else from connecting.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::OnceCell;

use super::Place;

/// Session, agent and place.
pub(super) type Key = (String, String, Place);
/// Filled once, by the first who needs it; the others wait for that. Whoever waits or uses it holds it.
pub(super) type Cell<T> = Arc<OnceCell<Arc<T>>>;

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) of_session: usize,
    pub(super) of_toolset: usize,
}

/// Open connections, and when each was used last.
#[derive(Debug)]
pub(super) struct Open<T> {
    limits: Limits,
    cells: HashMap<Key, (Cell<T>, u64)>,
    /// Goes up with each use.
    uses: u64,
}

impl<T> Open<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            cells: HashMap::new(),
            uses: 0,
        }
    }

    /// The cell of a place, and the one that had to make room for it, which the caller closes. An error says which bound is
    /// reached by connections that are all in use.
    pub(super) fn cell(
        &mut self,
        key: &Key,
        is_broken: impl Fn(&T) -> bool,
    ) -> Result<(Cell<T>, Option<Cell<T>>), String> {
        self.uses += 1;
        if let Some((cell, used)) = self.cells.get_mut(key)
            && !cell.get().is_some_and(|connection| is_broken(connection))
        {
            *used = self.uses;
            return Ok((Arc::clone(cell), None));
        }
        self.cells.remove(key);
        let Limits {
            of_session,
            of_toolset,
        } = self.limits;
        let own = self
            .cells
            .keys()
            .filter(|(session, _, _)| *session == key.0);
        let gives_way = if own.count() >= of_session {
            let gone = self.give_way(|(session, _, _)| *session == key.0);
            Some(
                gone.ok_or_else(|| {
                    format!("all of this session's {of_session} servers are in use")
                })?,
            )
        } else if self.cells.len() >= of_toolset {
            let gone = self.give_way(|_| true);
            Some(gone.ok_or_else(|| format!("all of a toolset's {of_toolset} servers are in use"))?)
        } else {
            None
        };
        let cell = Cell::default();
        self.cells
            .insert(key.clone(), (Arc::clone(&cell), self.uses));
        Ok((cell, gives_way))
    }

    /// Takes out the one that was used longest ago, of those that nobody uses.
    fn give_way(&mut self, of: impl Fn(&Key) -> bool) -> Option<Cell<T>> {
        let idle = self
            .cells
            .iter()
            .filter(|(key, (cell, _))| of(key) && is_idle(cell));
        let oldest = idle.min_by_key(|(_, (_, used))| *used)?.0.clone();
        self.cells.remove(&oldest).map(|(cell, _)| cell)
    }

    /// Forgets one that could not be connected.
    pub(super) fn forget(&mut self, key: &Key) {
        let empty = |(cell, _): &(Cell<T>, u64)| !cell.initialized();
        if self.cells.get(key).is_some_and(empty) {
            self.cells.remove(key);
        }
    }

    /// Takes out all of these.
    pub(super) fn take(&mut self, which: impl Fn(&Key) -> bool) -> Vec<Cell<T>> {
        let taken = self.cells.extract_if(|key, _| which(key));
        taken.map(|(_, (cell, _))| cell).collect()
    }
}

/// Nobody waits for it, and nobody has it in a call.
fn is_idle<T>(cell: &Cell<T>) -> bool {
    let used = cell
        .get()
        .is_some_and(|connection| Arc::strong_count(connection) > 1);
    Arc::strong_count(cell) == 1 && !used
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        of_session: 2,
        of_toolset: 3,
    };

    fn key(session: &str, at: &str) -> Key {
        (session.into(), String::new(), Place::Named(at.into()))
    }

    /// Connects, and says who gave way.
    fn connect(open: &mut Open<String>, session: &str, at: &str) -> Result<Option<String>, String> {
        let (cell, gone) = open.cell(&key(session, at), |_| false)?;
        if !cell.initialized() {
            cell.set(Arc::new(format!("{session} {at}")))
                .map_err(|error| error.to_string())?;
        }
        Ok(gone.map(|cell| cell.get().map_or("empty".into(), |name| name.to_string())))
    }

    #[test]
    fn what_was_used_longest_ago_gives_way_within_its_session_first() {
        let mut open = Open::new(LIMITS);
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
    fn what_is_in_use_does_not_give_way() {
        let mut open = Open::new(LIMITS);
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
        let hold: Vec<Cell<String>> = [("a", "2"), ("a", "3"), ("b", "1")]
            .iter()
            .map(|(session, at)| open.cell(&key(session, at), |_| false).expect("is there").0)
            .collect();
        let full = connect(&mut open, "c", "1");
        assert_eq!(full, Err("all of a toolset's 3 servers are in use".into()));
        drop(hold);
    }

    #[test]
    fn one_that_was_given_up_while_it_connected_gives_way_too() {
        let mut open = Open::<String>::new(LIMITS);
        for at in ["1", "2"] {
            drop(open.cell(&key("a", at), |_| false).expect("room"));
        }
        assert_eq!(connect(&mut open, "a", "3"), Ok(Some("empty".into())));
    }

    #[test]
    fn a_broken_one_is_made_again_and_takes_no_room_of_others() {
        let mut open = Open::new(LIMITS);
        connect(&mut open, "a", "1").expect("room");
        connect(&mut open, "a", "2").expect("room");
        let (cell, gone) = open.cell(&key("a", "1"), |_| true).expect("room");
        assert!(!cell.initialized() && gone.is_none());
    }
}

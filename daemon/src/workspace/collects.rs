//! What is to be collected when execs of a slot end: a small file for each beside the slot's record, and who waits for
//! them. What is in a file is an [`pb::Exec`] with few fields:
//!
//! | field | is |
//! |---|---|
//! | `effective_spec.collect` | what is asked for |
//! | `end_time` | when collecting began; unset before that |
//! | `collection` | how it ended; PENDING before that |
//!
//! The collecting itself is in `collect.rs`.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_collection::State;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::workspace::record;

/// Collections of one workspace at once. The places for all of them are few, and one whose guest is slow on purpose is
/// not to have them all.
const AT_ONCE: usize = 2;

/// The collections of one slot.
#[derive(Debug)]
pub struct Collects {
    dir: PathBuf,
    /// Files kept of what has been collected; the newest stay.
    kept_max: usize,
    turns: Semaphore,
    /// What somebody has to wait for before the workspace can end.
    pending: watch::Sender<usize>,
    /// Execs whose end somebody awaits.
    followed: Mutex<HashSet<String>>,
    /// The workspace is to end: what still runs is killed, so that it can be collected.
    settle: CancellationToken,
    expired: AtomicBool,
}

/// Somebody sees to the collection of one exec. The workspace's end waits until it is dropped.
#[derive(Debug)]
pub struct Ticket {
    collects: Arc<Collects>,
    exec: String,
}

impl Collects {
    /// Of the slot with this directory. One that was a workspace before has collections that are not known yet:
    /// [`Collects::known`] says that they are. `kept_max` are kept of what has been collected: more than the guest keeps
    /// of execs.
    #[must_use]
    pub fn new(slot_dir: &std::path::Path, adopted: bool, kept_max: usize) -> Self {
        Self {
            dir: slot_dir.join("collects"),
            kept_max,
            turns: Semaphore::new(AT_ONCE),
            pending: watch::Sender::new(usize::from(adopted)),
            followed: Mutex::default(),
            settle: CancellationToken::new(),
            expired: AtomicBool::new(false),
        }
    }

    /// What an adopted workspace had to collect has its tickets.
    pub fn known(&self) {
        self.pending
            .send_modify(|pending| *pending = pending.saturating_sub(1));
    }

    /// Takes an exec on; `None` if somebody sees to it already.
    pub fn follow(self: &Arc<Self>, exec: &str) -> Option<Ticket> {
        if !self.followed().insert(exec.to_owned()) {
            return None;
        }
        self.pending.send_modify(|pending| *pending += 1);
        Some(Ticket {
            collects: Arc::clone(self),
            exec: exec.to_owned(),
        })
    }

    /// Waits for its turn to collect. Whoever has one has to end in time.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// Completes when nobody sees to an exec any more.
    pub async fn released(&self, exec: &str) {
        let mut pending = self.pending.subscribe();
        while self.followed().contains(exec) {
            if pending.changed().await.is_err() {
                return;
            }
        }
    }

    fn followed(&self) -> MutexGuard<'_, HashSet<String>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the workspace's end has to wait.
    #[must_use]
    pub fn are_pending(&self) -> bool {
        *self.pending.borrow() > 0
    }

    /// Completes when nothing is pending.
    pub async fn none_pending(&self) {
        let mut pending = self.pending.subscribe();
        // It cannot fail: the sender is ours.
        let _none = pending.wait_for(|pending| *pending == 0).await;
    }

    /// Says that the workspace is about to end.
    pub fn settle(&self, expired: bool) {
        self.expired.store(expired, Ordering::Release);
        self.settle.cancel();
    }

    /// Completes when the workspace is about to end.
    pub async fn settling(&self) {
        self.settle.cancelled().await;
    }

    /// Whether its time was over.
    #[must_use]
    pub fn expired(&self) -> bool {
        self.expired.load(Ordering::Acquire)
    }

    // === files; all of these block ===

    /// What is written of an exec.
    ///
    /// # Errors
    /// When the host's disk fails.
    pub fn read(&self, exec: &str) -> Result<Option<pb::Exec>> {
        let bytes = match fs::read(self.dir.join(exec)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.failed("read", source)),
        };
        let decoded = pb::Exec::decode(bytes.as_slice());
        Ok(decoded
            .inspect_err(|error| {
                tracing::warn!(exec, %error, "note of a collection cannot be understood");
            })
            .ok())
    }

    /// Writes it.
    ///
    /// # Errors
    /// When the host's disk fails or is full, or the slot is gone.
    pub fn write(&self, exec: &str, note: &pb::Exec) -> Result<()> {
        // Nothing above it: a slot that was removed meanwhile stays so.
        match fs::create_dir(&self.dir) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(self.failed("make", source));
            }
            _ => {}
        }
        record::replace(&self.dir.join(exec), &note.encode_to_vec())
    }

    /// Forgets it. OK if there is nothing.
    ///
    /// # Errors
    /// When the host's disk fails.
    pub fn remove(&self, exec: &str) -> Result<()> {
        match fs::remove_file(self.dir.join(exec)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(self.failed("remove", source))
            }
            _ => Ok(()),
        }
    }

    /// Execs that something is written of, the oldest first.
    fn list(&self) -> Result<Vec<String>> {
        let listed = match fs::read_dir(&self.dir) {
            Ok(listed) => listed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(self.failed("list", source)),
        };
        let mut execs = Vec::new();
        for entry in listed {
            let entry = entry.map_err(|source| self.failed("list", source))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // A file that is being written begins with a dot, which no id does.
            if !name.starts_with('.') {
                let time = entry.metadata().and_then(|metadata| metadata.modified());
                execs.push((time.ok(), name));
            }
        }
        execs.sort_unstable();
        Ok(execs.into_iter().map(|(_, name)| name).collect())
    }

    /// What has not ended, with what is written of it.
    ///
    /// # Errors
    /// When the host's disk fails.
    pub fn unfinished(&self) -> Result<Vec<(String, pb::Exec)>> {
        let mut found = Vec::new();
        for exec in self.list()? {
            match self.read(&exec)? {
                Some(note) if is_pending(&note) => found.push((exec, note)),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Forgets the oldest of what has ended, if there is too much.
    ///
    /// # Errors
    /// When the host's disk fails.
    pub fn prune(&self) -> Result<()> {
        let mut execs = self.list()?;
        let kept = execs.split_off(execs.len().saturating_sub(self.kept_max));
        drop(kept);
        for exec in execs {
            if self.read(&exec)?.is_none_or(|note| !is_pending(&note)) {
                self.remove(&exec)?;
            }
        }
        Ok(())
    }

    fn failed(&self, what: &str, source: io::Error) -> Error {
        Error::Io {
            operation: format!("{what} collections in {}", self.dir.display()),
            source,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.collects.followed().remove(&self.exec);
        self.collects.known();
    }
}

fn is_pending(note: &pb::Exec) -> bool {
    let collection = note.collection.as_ref();
    collection.is_some_and(|collection| collection.state() == State::Pending)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(state: State) -> pb::Exec {
        let mut collection = pb::ExecCollection::default();
        collection.set_state(state);
        pb::Exec {
            collection: Some(collection),
            ..pb::Exec::default()
        }
    }

    #[test]
    fn a_slot_that_was_removed_is_not_made_again() {
        let dir = tempfile::tempdir().expect("temp dir");
        let slot = dir.path().join("slot");
        let collects = Collects::new(&slot, false, 4);
        let written = collects.write("a", &note(State::Failed));
        assert!(written.is_err());
        assert!(!slot.exists());
    }

    #[test]
    fn the_newest_notes_are_kept_and_all_that_have_not_ended() {
        let dir = tempfile::tempdir().expect("temp dir");
        let collects = Collects::new(dir.path(), false, 2);
        let states = [
            State::Pending,
            State::Done,
            State::Failed,
            State::Done,
            State::Done,
        ];
        for (second, (exec, state)) in ["a", "b", "c", "d", "e"].iter().zip(states).enumerate() {
            collects.write(exec, &note(state)).expect("written");
            let file = fs::File::options()
                .write(true)
                .open(dir.path().join("collects").join(exec));
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(second as u64);
            file.and_then(|file| file.set_modified(time))
                .expect("a time");
        }
        collects.prune().expect("pruned");
        assert_eq!(collects.list().expect("listed"), ["a", "d", "e"]);
    }

    #[test]
    fn what_has_not_ended_is_found_again() {
        let dir = tempfile::tempdir().expect("temp dir");
        let collects = Collects::new(dir.path(), false, 4);
        assert!(collects.unfinished().expect("none").is_empty());
        assert_eq!(collects.read("a").expect("none"), None);
        for (exec, state) in [
            ("a", State::Done),
            ("b", State::Pending),
            ("c", State::Failed),
        ] {
            collects.write(exec, &note(state)).expect("written");
        }
        fs::write(dir.path().join("collects/.tmp1"), "half").expect("written");
        fs::write(dir.path().join("collects/damaged"), b"\xff\xff").expect("written");
        let found = collects.unfinished().expect("read");
        assert_eq!(found, [("b".to_owned(), note(State::Pending))]);
        collects.remove("b").expect("removed");
        collects.remove("b").expect("removed before");
        assert!(collects.unfinished().expect("read").is_empty());
        collects.prune().expect("little enough");
        assert!(collects.read("a").expect("read").is_some());
    }

    #[tokio::test]
    async fn one_workspace_does_not_have_all_places() {
        use futures::FutureExt;

        let dir = tempfile::tempdir().expect("temp dir");
        let collects = Collects::new(dir.path(), false, 4);
        let turns = [collects.turn().await, collects.turn().await];
        assert!(collects.turn().now_or_never().is_none(), "the third waits");
        drop(turns);
        assert!(collects.turn().now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn an_end_waits_for_every_ticket() {
        let dir = tempfile::tempdir().expect("temp dir");
        let collects = Arc::new(Collects::new(dir.path(), true, 4));
        let ticket = collects.follow("a").expect("first");
        assert!(collects.follow("a").is_none(), "it has somebody");
        collects.known();
        assert!(collects.are_pending());
        drop(ticket);
        collects.none_pending().await;
        assert!(collects.follow("a").is_some(), "it can be taken on again");
    }
}

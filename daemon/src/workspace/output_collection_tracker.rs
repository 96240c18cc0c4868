//! Bookkeeping of a slot's on-exit collections: records, jobs in flight, and the flush before the workspace ends.
//!
//! The module `collect` runs the jobs.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::workspace::record;

mod collection_record;

pub use collection_record::{CollectionRecord, CollectionStatus};

/// Maximum number of collections of one workspace that run at the same time. The permits of all workspaces together are
/// few, so a workspace whose guest is slow on purpose must not hold all of them.
const CONCURRENT_MAX: usize = 2;
/// Number of records that a workspace adds before its old ones are pruned again.
const PRUNE_INTERVAL: usize = 64;

/// Bookkeeping of a slot's on-exit collections.
#[derive(Debug)]
pub struct OutputCollectionTracker {
    dir: PathBuf,
    /// Maximum number of collections that have not ended, and of records kept of ended ones; the newest are kept.
    records_max: usize,
    /// Number of records that were added.
    added: AtomicUsize,
    turns: Semaphore,
    /// Number of jobs that the end of the workspace waits for.
    pending: watch::Sender<usize>,
    /// Ids of the execs that have a job.
    in_flight: Mutex<HashSet<String>>,
    /// Cancelled when the workspace is about to end: running execs are killed so that their files can be collected.
    flush: CancellationToken,
    is_expired: AtomicBool,
}

/// Marker of an exec whose collection has a job. The end of the workspace waits until it is dropped.
#[derive(Debug)]
pub struct InFlight {
    collections: Arc<OutputCollectionTracker>,
    exec_id: String,
}

impl OutputCollectionTracker {
    /// Creates the collections of the slot in `slot_dir`. The unfinished collections of an adopted workspace are
    /// unknown until [`OutputCollectionTracker::finish_adoption`]. `records_max` must exceed the number of execs that
    /// the guest keeps.
    #[must_use]
    pub fn new(slot_dir: &Path, is_adopted: bool, records_max: usize) -> Self {
        Self {
            dir: slot_dir.join("collects"),
            records_max,
            added: AtomicUsize::new(0),
            turns: Semaphore::new(CONCURRENT_MAX),
            pending: watch::Sender::new(usize::from(is_adopted)),
            in_flight: Mutex::default(),
            flush: CancellationToken::new(),
            is_expired: AtomicBool::new(false),
        }
    }

    /// Ends the adoption: every unfinished collection of the workspace has its job.
    pub fn finish_adoption(&self) {
        self.pending
            .send_modify(|pending| *pending = pending.saturating_sub(1));
    }

    /// Marks an exec as in flight. Returns `None` if it has a job already.
    pub fn begin(self: &Arc<Self>, exec_id: &str) -> Option<InFlight> {
        if !self.in_flight().insert(exec_id.to_owned()) {
            return None;
        }
        self.pending.send_modify(|pending| *pending += 1);
        Some(InFlight {
            collections: Arc::clone(self),
            exec_id: exec_id.to_owned(),
        })
    }

    /// Checks that the collection of an exec may be promised before the others have ended. One that has a job already
    /// needs no more room.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`].
    pub fn check_room(&self, exec_id: &str) -> Result<()> {
        let in_flight = self.in_flight();
        if in_flight.len() < self.records_max || in_flight.contains(exec_id) {
            return Ok(());
        }
        Err(Error::QuotaExceeded {
            subject:
                "the number of collections of one workspace that have not ended (wait for these)"
                    .to_owned(),
            limit: self.records_max as u64,
        })
    }

    /// Waits for one of the workspace's turns to collect.
    pub async fn acquire_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// Waits until an exec has no job.
    pub async fn wait_until_released(&self, exec_id: &str) {
        let mut pending = self.pending.subscribe();
        while self.in_flight().contains(exec_id) {
            if pending.changed().await.is_err() {
                return;
            }
        }
    }

    fn in_flight(&self) -> MutexGuard<'_, HashSet<String>> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if the end of the workspace has to wait for a collection.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        *self.pending.borrow() > 0
    }

    /// Waits until no collection is pending.
    pub async fn flush(&self) {
        let mut pending = self.pending.subscribe();
        // The sender is a field of `self`, so this cannot fail.
        let _none = pending.wait_for(|pending| *pending == 0).await;
    }

    /// Asks every job to finish, because the workspace is about to end. `is_expired` tells them why.
    pub fn request_flush(&self, is_expired: bool) {
        self.is_expired.store(is_expired, Ordering::Release);
        self.flush.cancel();
    }

    /// Waits until a flush is requested.
    pub async fn flush_requested(&self) {
        self.flush.cancelled().await;
    }

    /// Returns `true` if the workspace ends because its lease expired.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.is_expired.load(Ordering::Acquire)
    }

    // === record files; all of these block ===

    /// Reads the record of an exec. Returns `None` if there is none, or an unreadable one.
    ///
    /// # Errors
    /// When the host's disk fails.
    pub fn read_record(&self, exec_id: &str) -> Result<Option<CollectionRecord>> {
        let bytes = match fs::read(self.dir.join(exec_id)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.failed("read", source)),
        };
        let record = CollectionRecord::decode(&bytes);
        if record.is_none() {
            tracing::warn!(exec_id, "collection record is damaged");
        }
        Ok(record)
    }

    /// Writes the record of an exec.
    ///
    /// # Errors
    /// When the host's disk fails or is full, or the slot is gone.
    pub fn write_record(&self, exec_id: &str, collection: &CollectionRecord) -> Result<()> {
        // Not `create_dir_all`: a slot that was removed meanwhile must not come back.
        match fs::create_dir(&self.dir) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(self.failed("make", source));
            }
            _ => {}
        }
        record::replace_file(&self.dir.join(exec_id), &collection.encode())
    }

    /// Writes the record of an exec that has none, and now and then removes old ones.
    ///
    /// # Errors
    /// When the host's disk fails or is full, or the slot is gone.
    pub fn add_record(&self, exec_id: &str, collection: &CollectionRecord) -> Result<()> {
        let added = self.added.fetch_add(1, Ordering::Relaxed);
        if added.is_multiple_of(PRUNE_INTERVAL) {
            self.prune_records()?;
        }
        self.write_record(exec_id, collection)
    }

    /// Removes the record of an exec, if there is one.
    ///
    /// # Errors
    /// When the host's disk fails.
    pub fn remove_record(&self, exec_id: &str) -> Result<()> {
        match fs::remove_file(self.dir.join(exec_id)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(self.failed("remove", source))
            }
            _ => Ok(()),
        }
    }

    /// Lists the ids of execs with a record, the oldest first.
    fn list_records(&self) -> Result<Vec<String>> {
        let listed = match fs::read_dir(&self.dir) {
            Ok(listed) => listed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(self.failed("list", source)),
        };
        let mut execs = Vec::new();
        for entry in listed {
            let entry = entry.map_err(|source| self.failed("list", source))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // A temporary file begins with a dot, which no exec id does.
            if !name.starts_with('.') {
                let time = entry.metadata().and_then(|metadata| metadata.modified());
                execs.push((time.ok(), name));
            }
        }
        execs.sort_unstable();
        Ok(execs.into_iter().map(|(_, name)| name).collect())
    }

    /// Reads the records of collections that have not ended.
    ///
    /// # Errors
    /// When the host's disk fails.
    pub fn unfinished_records(&self) -> Result<Vec<(String, CollectionRecord)>> {
        let mut found = Vec::new();
        for exec_id in self.list_records()? {
            match self.read_record(&exec_id)? {
                Some(record) if !record.has_ended() => found.push((exec_id, record)),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Removes the oldest records of ended collections beyond the maximum.
    fn prune_records(&self) -> Result<()> {
        let mut execs = self.list_records()?;
        execs.truncate(execs.len().saturating_sub(self.records_max));
        for exec_id in execs {
            let record = self.read_record(&exec_id)?;
            if record.is_none_or(|record| record.has_ended()) {
                self.remove_record(&exec_id)?;
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

impl Drop for InFlight {
    fn drop(&mut self) {
        self.collections.in_flight().remove(&self.exec_id);
        self.collections
            .pending
            .send_modify(|pending| *pending = pending.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use skilld_proto::v1 as pb;
    use skilld_proto::v1::exec_collection::State;

    use super::*;

    fn record(state: State) -> CollectionRecord {
        let mut collection = pb::ExecCollection::default();
        collection.set_state(state);
        let status = match state {
            State::Pending => CollectionStatus::Pending,
            State::Unspecified | State::Done | State::Failed => CollectionStatus::Ended(collection),
        };
        CollectionRecord {
            spec: pb::CollectSpec::default(),
            status,
        }
    }

    #[test]
    fn record_of_a_removed_slot_is_not_written() {
        let dir = tempfile::tempdir().expect("temp dir");
        let slot = dir.path().join("slot");
        let collections = OutputCollectionTracker::new(&slot, false, 4);
        let written = collections.write_record("a", &record(State::Failed));
        assert!(written.is_err());
        assert!(!slot.exists());
    }

    #[test]
    fn newest_records_and_all_unfinished_ones_are_kept() {
        let dir = tempfile::tempdir().expect("temp dir");
        let collections = OutputCollectionTracker::new(dir.path(), false, 2);
        let states = [
            State::Pending,
            State::Done,
            State::Failed,
            State::Done,
            State::Done,
        ];
        for (second, (exec, state)) in ["a", "b", "c", "d", "e"].iter().zip(states).enumerate() {
            collections
                .write_record(exec, &record(state))
                .expect("written");
            let file = fs::File::options()
                .write(true)
                .open(dir.path().join("collects").join(exec));
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(second as u64);
            file.and_then(|file| file.set_modified(time))
                .expect("a time");
        }
        collections.prune_records().expect("pruned");
        assert_eq!(collections.list_records().expect("listed"), ["a", "d", "e"]);
    }

    #[test]
    fn records_of_a_workspace_are_bounded_whatever_others_write() {
        let dir = tempfile::tempdir().expect("temp dir");
        let collections = Arc::new(OutputCollectionTracker::new(dir.path(), false, 2));
        for number in 0..3 * PRUNE_INTERVAL {
            let added = collections.add_record(&number.to_string(), &record(State::Done));
            added.expect("written");
            let kept = collections.list_records().expect("listed").len();
            assert!(kept <= 2 + PRUNE_INTERVAL, "{kept}");
        }
        // Those of collections that have not ended cannot be pruned.
        let in_flight = ["a", "b"].map(|exec| {
            collections.check_room(exec).expect("room");
            collections.begin(exec)
        });
        let refused = collections.check_room("c");
        assert!(matches!(
            refused,
            Err(Error::QuotaExceeded { limit: 2, .. })
        ));
        let repeated = collections.check_room("b");
        repeated.expect("a repeat of its request needs no room");
        drop(in_flight);
        collections.check_room("c").expect("room again");
    }

    #[test]
    fn unfinished_records_are_found_again() {
        let dir = tempfile::tempdir().expect("temp dir");
        let collections = OutputCollectionTracker::new(dir.path(), false, 4);
        assert!(collections.unfinished_records().expect("none").is_empty());
        assert_eq!(collections.read_record("a").expect("none"), None);
        for (exec, state) in [
            ("a", State::Done),
            ("b", State::Pending),
            ("c", State::Failed),
        ] {
            collections
                .write_record(exec, &record(state))
                .expect("written");
        }
        fs::write(dir.path().join("collects/.tmp1"), "half").expect("written");
        fs::write(dir.path().join("collects/damaged"), b"\xff\xff").expect("written");
        let found = collections.unfinished_records().expect("read");
        assert_eq!(found, [("b".to_owned(), record(State::Pending))]);
        collections.remove_record("b").expect("removed");
        collections.remove_record("b").expect("removed before");
        assert!(collections.unfinished_records().expect("read").is_empty());
        collections.prune_records().expect("little enough");
        assert!(collections.read_record("a").expect("read").is_some());
    }

    #[tokio::test]
    async fn one_workspace_takes_two_turns_at_most() {
        use futures::FutureExt;

        let dir = tempfile::tempdir().expect("temp dir");
        let collections = OutputCollectionTracker::new(dir.path(), false, 4);
        let turns = [
            collections.acquire_turn().await,
            collections.acquire_turn().await,
        ];
        assert!(
            collections.acquire_turn().now_or_never().is_none(),
            "the third waits"
        );
        drop(turns);
        assert!(
            collections
                .acquire_turn()
                .now_or_never()
                .flatten()
                .is_some()
        );
    }

    #[tokio::test]
    async fn flush_waits_for_every_collection_in_flight() {
        let dir = tempfile::tempdir().expect("temp dir");
        let collections = Arc::new(OutputCollectionTracker::new(dir.path(), true, 4));
        let in_flight = collections.begin("a").expect("first");
        assert!(collections.begin("a").is_none(), "it has a job");
        collections.finish_adoption();
        assert!(collections.has_pending());
        drop(in_flight);
        collections.flush().await;
        assert!(collections.begin("a").is_some(), "it can be taken on again");
    }
}

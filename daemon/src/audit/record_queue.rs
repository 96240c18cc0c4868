//! Queue between the daemon's tasks and the thread that owns the file. The thread takes all records at once, so that
//! those that arrive during a write share the next one.

use std::mem;
use std::time::{Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::fault::AuditFault;
use super::record::AuditRecord;

/// Maximum number of records that wait. One has at most a few KiB, and a disk that works takes this many in well under a
/// second.
pub(super) const RECORDS_MAX: usize = 4096;

/// Maximum number of records in the queue at which another one is taken for which no call waits. The rest is for calls
/// that change something, so that a flood of refused calls does not keep them out.
const UNAWAITED_RECORDS_MAX: usize = RECORDS_MAX / 4 * 3;

/// Record that waits for the writer.
#[derive(Debug)]
pub(super) struct QueuedRecord {
    pub(super) time: SystemTime,
    pub(super) record: AuditRecord,
    /// Gets the result; `None` if the caller does not wait for it.
    pub(super) reply: Option<oneshot::Sender<Result<(), AuditFault>>>,
}

/// Work for the writer.
#[derive(Debug, Default)]
pub(super) struct QueueWork {
    pub(super) records: Vec<QueuedRecord>,
    /// `true` if the file may have been renamed.
    pub(super) reopen: bool,
    /// Result of a sync that ran in the background.
    pub(super) synced: Option<Result<(), AuditFault>>,
    /// `true` if no further record comes.
    pub(super) closed: bool,
}

/// Bounded queue of records and orders for the writer.
#[derive(Debug, Default)]
pub(super) struct RecordQueue {
    work: Mutex<QueueWork>,
    wake: Condvar,
}

impl RecordQueue {
    /// Adds a record.
    ///
    /// # Errors
    /// [`AuditFault`] if the queue is full or closed.
    pub(super) fn push(&self, record: QueuedRecord) -> Result<(), AuditFault> {
        let mut work = self.work.lock();
        if work.closed {
            return Err(AuditFault::Closed);
        }
        let records_max = match record.reply {
            Some(_) => RECORDS_MAX,
            None => UNAWAITED_RECORDS_MAX,
        };
        if work.records.len() >= records_max {
            return Err(AuditFault::QueueFull);
        }
        work.records.push(record);
        drop(work);
        self.wake.notify_one();
        Ok(())
    }

    /// Has the writer look whether the file was renamed. Orders that come before it does are one.
    pub(super) fn request_reopen(&self) {
        self.work.lock().reopen = true;
        self.wake.notify_one();
    }

    /// Reports the result of a sync.
    pub(super) fn report_sync(&self, result: Result<(), AuditFault>) {
        self.work.lock().synced = Some(result);
        self.wake.notify_one();
    }

    /// Refuses further records; the writer writes those in the queue and ends.
    pub(super) fn close(&self) {
        self.work.lock().closed = true;
        self.wake.notify_one();
    }

    /// Waits for work, at most until `deadline`. Blocks the thread.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> QueueWork {
        let mut work = self.work.lock();
        while !work.is_any() {
            let Some(deadline) = deadline else {
                self.wake.wait(&mut work);
                continue;
            };
            if self.wake.wait_until(&mut work, deadline).timed_out() {
                break;
            }
        }
        let closed = work.closed;
        let taken = mem::take(&mut *work);
        work.closed = closed;
        taken
    }
}

impl QueueWork {
    fn is_any(&self) -> bool {
        !self.records.is_empty() || self.reopen || self.synced.is_some() || self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;

    /// Record for whose result a call waits if `is_awaited`.
    fn queued(is_awaited: bool) -> QueuedRecord {
        QueuedRecord {
            time: SystemTime::now(),
            record: record("r"),
            reply: is_awaited.then(|| oneshot::channel().0),
        }
    }

    #[test]
    fn the_queue_is_bounded_and_the_writer_takes_all_of_it_at_once() {
        let queue = RecordQueue::default();
        for _ in 0..UNAWAITED_RECORDS_MAX {
            queue.push(queued(false)).expect("has room");
        }
        // The rest is for calls that wait.
        assert_eq!(queue.push(queued(false)), Err(AuditFault::QueueFull));
        for _ in UNAWAITED_RECORDS_MAX..RECORDS_MAX {
            queue.push(queued(true)).expect("has room");
        }
        assert_eq!(queue.push(queued(true)), Err(AuditFault::QueueFull));
        for _ in 0..1000 {
            queue.request_reopen();
        }
        let work = queue.wait(None);
        assert_eq!(
            (work.records.len(), work.reopen, work.closed),
            (RECORDS_MAX, true, false)
        );
        assert!(!queue.wait(Some(Instant::now())).is_any());
        queue.push(queued(false)).expect("has room");
        queue.close();
        assert_eq!(queue.push(queued(false)), Err(AuditFault::Closed));
        let work = queue.wait(None);
        assert_eq!((work.records.len(), work.closed), (1, true));
    }
}

//! Writer of the audit log: one thread owns the file and the end of the chain.
//!
//! ```text
//! records that wait ──► one write(2) ──► their callers go on ──► position to STATE_DIR/audit-chain
//!                                  └───► fdatasync, at most sync_interval later, on another thread
//!
//! failed write or sync ──► Failed: records are lost and counted, the count goes to STATE_DIR/audit-chain;
//!                          every second: open, repair, write `recovered` (`started` if the log has none), sync
//! SIGHUP ──► path leads to another file? open it, write `reopened`; if that fails, go on in the old one and try again
//! ```
//!
//! Opening always does the same: it removes an incomplete last line and continues the chain from the file's last line
//! or from the known position, whichever has the larger number. Lines that were cut off thus leave a gap in the
//! numbers.

use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use skilld_common::audit_chain::{ChainKey, ChainPosition};
use tokio_util::sync::DropGuard;

use super::RECORD_TIMEOUT;
use super::chain_file::{ChainFile, ChainState, UnreportedLosses};
use super::fault::AuditFault;
use super::line::{LineEvent, LogEvent, append_line};
use super::log_file::LogFile;
use super::record::BoundedText;
use super::record_queue::{QueuedRecord, RecordQueue};
use super::status::{AuditState, AuditStatus};
use crate::error::Result;
use crate::shutdown::Tasks;

/// Time between two attempts to write the log again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of records of one write, which bounds its buffer to a few MiB.
const BATCH_RECORDS_MAX: usize = 256;

/// Settings of the writer.
#[derive(Debug)]
pub(super) struct WriterOptions {
    pub(super) path: PathBuf,
    /// Name of the host in each line.
    pub(super) node: String,
    /// Maximum time from a write to its sync. With zero, callers wait for the sync.
    pub(super) sync_interval: Duration,
    /// Key of the lines' MACs.
    pub(super) key: ChainKey,
}

/// Owner of the file.
#[derive(Debug)]
pub(super) struct AuditWriter {
    options: WriterOptions,
    queue: Arc<RecordQueue>,
    status: Arc<AuditStatus>,
    tasks: Tasks,
    chain_file: ChainFile,
    /// `None` while the log can't be written.
    log: Option<LogFile>,
    /// Position of the last line that was written.
    position: ChainPosition,
    /// `true` once the log says that the daemon started.
    has_started: bool,
    /// Number of the last line that is known to be on the disk.
    synced_sequence: u64,
    /// Losses that no line reports yet. Those of the handles are in `status`.
    losses: UnreportedLosses,
    /// Time at which a sync has to start.
    sync_due: Option<Instant>,
    sync: Option<RunningSync>,
    /// Time of the next attempt to open the file.
    retry_at: Option<Instant>,
    /// Reports the end of the writer to those that wait for it.
    _ended: DropGuard,
}

/// Sync that runs in the background.
#[derive(Debug)]
struct RunningSync {
    /// Number of the last line that it covers.
    sequence: u64,
    deadline: Instant,
}

impl AuditWriter {
    /// Opens the log and writes that the daemon started. If the host is short of something, the log starts as failed,
    /// and the first attempt that succeeds writes it. Blocks the thread.
    ///
    /// # Errors
    /// [`Error`](crate::error::Error) if the configuration or the state directory is to blame.
    pub(super) fn start(
        options: WriterOptions,
        state_dir: &Path,
        (queue, status): (Arc<RecordQueue>, Arc<AuditStatus>),
        tasks: Tasks,
        ended: DropGuard,
    ) -> Result<Self> {
        let (chain_file, known) = ChainFile::open(state_dir)?;
        let ChainState { position, losses } = known.unwrap_or_default();
        let mut writer = Self {
            options,
            queue,
            status,
            tasks,
            chain_file,
            log: None,
            position,
            has_started: false,
            synced_sequence: position.sequence,
            losses,
            sync_due: None,
            sync: None,
            retry_at: None,
            _ended: ended,
        };
        let opened = writer.open_log();
        match opened.and_then(|missing| writer.write_started(missing)) {
            Ok(()) => {}
            Err(fault) if fault.is_recoverable() => writer.fail(fault),
            Err(fault) => return Err(fault.start_error()),
        }
        Ok(writer)
    }

    /// Writes records until the queue is closed. Blocks the thread.
    pub(super) fn run(mut self) {
        loop {
            let work = self.queue.wait(self.next_deadline());
            if let Some(result) = work.synced {
                self.finish_sync(result);
            }
            if work.reopen {
                self.reopen();
            }
            self.retry_if_due();
            self.write_records(work.records);
            if work.closed {
                self.stop();
                return;
            }
            self.sync_if_due();
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let sync = match &self.sync {
            Some(running) => self.log.as_ref().map(|_| running.deadline),
            None => self.sync_due,
        };
        [sync, self.retry_at].into_iter().flatten().min()
    }

    // === Records ===

    fn write_records(&mut self, mut records: Vec<QueuedRecord>) {
        while !records.is_empty() {
            let rest = records.split_off(records.len().min(BATCH_RECORDS_MAX));
            let result = self.write_batch(&records);
            if result.is_err() {
                self.status
                    .add_lost(u64::try_from(records.len()).unwrap_or(u64::MAX));
            }
            for reply in records.into_iter().filter_map(|record| record.reply) {
                // The caller may have gone away; the record is written all the same.
                reply.send(result.clone()).unwrap_or_default();
            }
            records = rest;
        }
    }

    /// Writes records with one write. A failure is the log's new state.
    fn write_batch(&mut self, records: &[QueuedRecord]) -> Result<(), AuditFault> {
        if let Some(fault) = self.status.failure().filter(|_| self.log.is_none()) {
            return Err(fault);
        }
        let (mut lines, mut position) = (Vec::new(), self.position);
        let (key, node) = (&self.options.key, &self.options.node);
        let lost = self.status.take_unreported();
        if lost > 0 {
            // While the file is open, only a full queue loses records.
            let event = LogEvent::Recovered {
                cause: BoundedText::new(AuditFault::QueueFull.to_string()),
                lost,
                unsynced: 0,
                removed_bytes: 0,
                missing: 0,
            };
            let event = LineEvent::Log(&event);
            let now = SystemTime::now();
            position = append_line(&mut lines, position, key, node, now, &event);
        }
        for record in records {
            let event = LineEvent::Call(&record.record);
            position = append_line(&mut lines, position, key, node, record.time, &event);
        }
        self.append(&lines, position).inspect_err(|fault| {
            self.status.restore_unreported(lost);
            self.fail(fault.clone());
        })
    }

    /// Appends lines, whose last one has the position `end`. Closes the file after a failure.
    fn append(&mut self, lines: &[u8], end: ChainPosition) -> Result<(), AuditFault> {
        let path = &self.options.path;
        let mut log = self.log.take().ok_or(AuditFault::Closed)?;
        let mut length = log.length();
        if !log.append(lines)? {
            tracing::warn!(path = %path.display(), "the audit log was removed: it goes on in a new file");
            let opened = LogFile::open(path)?;
            self.losses.removed_bytes += opened.removed_bytes;
            log = opened.log;
            length = log.length();
            if !log.append(lines)? {
                return Err(AuditFault::io("find", path, &Errno::ENOENT.into()));
            }
        }
        if self.options.sync_interval.is_zero()
            && let Err(fault) = log.sync()
        {
            log.remove_tail(length);
            return Err(fault);
        }
        self.log = Some(log);
        self.position = end;
        self.save_state();
        match self.options.sync_interval {
            Duration::ZERO => self.synced_sequence = end.sequence,
            interval => {
                self.sync_due
                    .get_or_insert_with(|| Instant::now() + interval);
            }
        }
        Ok(())
    }

    /// Writes an event of the log itself, and waits until it is on the disk.
    fn write_event(&mut self, event: &LogEvent) -> Result<(), AuditFault> {
        let mut line = Vec::new();
        let (options, now) = (&self.options, SystemTime::now());
        let (key, node) = (&options.key, &options.node);
        let event = LineEvent::Log(event);
        let end = append_line(&mut line, self.position, key, node, now, &event);
        self.append(&line, end)?;
        self.sync_now()
    }

    /// Writes an event that reports all losses so far. After a failure they wait for another one.
    fn report_losses(
        &mut self,
        make_event: impl FnOnce(UnreportedLosses) -> LogEvent,
    ) -> Result<(), AuditFault> {
        let mut losses = mem::take(&mut self.losses);
        losses.lost += self.status.take_unreported();
        self.write_event(&make_event(losses)).inspect_err(|_| {
            self.losses.lost += losses.lost;
            self.losses.unsynced += losses.unsynced;
            self.losses.removed_bytes += losses.removed_bytes;
        })
    }

    /// Writes that the daemon started, with all losses so far.
    fn write_started(&mut self, missing: u64) -> Result<(), AuditFault> {
        self.report_losses(|losses| LogEvent::Started {
            version: env!("CARGO_PKG_VERSION"),
            losses,
            missing,
        })?;
        self.has_started = true;
        Ok(())
    }

    /// Writes the position and the unreported losses to the state directory, for the next start.
    fn save_state(&self) {
        let state = ChainState {
            position: self.position,
            losses: UnreportedLosses {
                lost: self.losses.lost + self.status.unreported(),
                ..self.losses
            },
        };
        if let Err(error) = self.chain_file.write(state) {
            tracing::warn!(%error, "the position of the audit log could not be written to the state directory");
        }
    }

    // === The file ===

    /// Opens the file and continues the chain in it. Returns the number of records at its end that are gone.
    fn open_log(&mut self) -> Result<u64, AuditFault> {
        let opened = LogFile::open(&self.options.path)?;
        let known = self.position.sequence;
        let missing = opened
            .last
            .map_or(0, |last| known.saturating_sub(last.sequence));
        if missing > 0 {
            let path = self.options.path.display();
            tracing::warn!(%path, missing, "records at the end of the audit log are missing");
        }
        if opened.removed_bytes > 0 {
            let bytes = opened.removed_bytes;
            tracing::warn!(
                bytes,
                "an incomplete line at the end of the audit log was removed"
            );
        }
        if let Some(last) = opened.last.filter(|last| last.sequence > known) {
            self.position = last;
            self.synced_sequence = last.sequence;
        }
        self.losses.removed_bytes += opened.removed_bytes;
        self.log = Some(opened.log);
        Ok(missing)
    }

    /// Continues in the file that has the path now, if it is another one.
    fn reopen(&mut self) {
        self.retry_at = None;
        if self.status.failure().is_some() {
            self.recover();
        }
        let Some(log) = &self.log else { return };
        if log.is_current() {
            self.status.set(AuditState::Healthy);
            return;
        }
        // The old file's records must not depend on a sync of the new one.
        let result = self.sync_now().and_then(|()| {
            let opened = LogFile::open(&self.options.path);
            let opened = match opened {
                Ok(opened) => opened,
                Err(fault) => {
                    self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
                    self.status.set(AuditState::OldFile(fault));
                    return Ok(());
                }
            };
            self.log = Some(opened.log);
            self.write_event(&LogEvent::Reopened {
                removed_bytes: opened.removed_bytes,
            })?;
            self.status.set(AuditState::Healthy);
            Ok(())
        });
        if let Err(fault) = result {
            self.fail(fault);
        }
    }

    fn fail(&mut self, fault: AuditFault) {
        self.log = None;
        self.sync_due = None;
        self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
        self.status.set(AuditState::Failed(fault));
        // The daemon may be killed before the log is written again.
        self.save_state();
    }

    fn retry_if_due(&mut self) {
        if self.retry_at.is_some_and(|at| at <= Instant::now()) {
            self.reopen();
        }
    }

    /// Opens the file again after a failure, and writes what happened.
    fn recover(&mut self) {
        let cause = self.status.failure().unwrap_or(AuditFault::Closed);
        if self.log.is_none() && self.sync.is_some() {
            // The sync still holds the file and its lock.
            self.fail(cause);
            return;
        }
        let opened = match self.log {
            Some(_) => Ok(0),
            None => self.open_log(),
        };
        let result = opened.and_then(|missing| {
            if !self.has_started {
                return self.write_started(missing);
            }
            self.report_losses(|losses| LogEvent::Recovered {
                cause: BoundedText::new(cause.to_string()),
                lost: losses.lost,
                unsynced: losses.unsynced,
                removed_bytes: losses.removed_bytes,
                missing,
            })
        });
        match result {
            Ok(()) => self.status.set(AuditState::Healthy),
            Err(fault) => self.fail(fault),
        }
    }

    fn stop(&mut self) {
        if self.log.is_none() {
            self.save_state();
            let lost = self.losses.lost + self.status.unreported();
            tracing::error!(
                lost,
                "the audit log can't be written at the stop: the next start reports its lost records"
            );
            return;
        }
        if let Err(fault) = self.write_event(&LogEvent::Stopped {}) {
            tracing::error!(error = %fault, "the end of the audit log could not be written");
        }
    }

    // === Syncs ===

    fn sync_now(&mut self) -> Result<(), AuditFault> {
        if let Some(log) = &self.log {
            log.sync().inspect_err(|_| self.doubt_unsynced())?;
            self.synced_sequence = self.position.sequence;
            self.sync_due = None;
        }
        Ok(())
    }

    fn sync_if_due(&mut self) {
        let now = Instant::now();
        let Some(log) = &self.log else { return };
        if let Some(running) = &self.sync {
            if running.deadline <= now {
                self.fail(AuditFault::NoAnswer(self.options.path.clone()));
            }
            return;
        }
        if self.sync_due.is_none_or(|due| due > now) {
            return;
        }
        self.sync_due = None;
        self.sync = Some(RunningSync {
            sequence: self.position.sequence,
            deadline: now + RECORD_TIMEOUT,
        });
        let (job, tasks, queue) = (log.sync_job(), self.tasks.clone(), Arc::clone(&self.queue));
        self.tasks.spawn(async move {
            let result = tasks.blocking(move || Ok(job())).await;
            queue.report_sync(result.unwrap_or(Err(AuditFault::Closed)));
        });
    }

    fn finish_sync(&mut self, result: Result<(), AuditFault>) {
        let Some(running) = self.sync.take() else {
            return;
        };
        match result {
            Ok(()) => self.synced_sequence = self.synced_sequence.max(running.sequence),
            Err(fault) => {
                self.doubt_unsynced();
                self.fail(fault);
            }
        }
    }

    /// Counts the lines since the last sync as in doubt: after a failed sync the kernel drops what it could not write,
    /// and a further sync succeeds without it.
    fn doubt_unsynced(&mut self) {
        self.losses.unsynced += self.position.sequence - self.synced_sequence;
        self.synced_sequence = self.position.sequence;
    }
}

impl Drop for AuditWriter {
    fn drop(&mut self) {
        // Records that still come, and those of a writer that panicked, fail at once.
        self.queue.close();
        drop(self.queue.wait(None));
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use tokio_util::sync::CancellationToken;

    use super::super::argv_key::ArgvKey;
    use super::super::tests::retry_while_in_use;
    use super::*;

    fn start_writer(dir: &Path) -> (AuditWriter, Arc<AuditStatus>) {
        let key = ArgvKey::load_or_create(dir).expect("a key");
        retry_while_in_use(|| {
            let options = WriterOptions {
                path: dir.join("audit.log"),
                node: "n".to_owned(),
                sync_interval: Duration::from_secs(10),
                key: key.chain_key(),
            };
            let shared = (Arc::<RecordQueue>::default(), Arc::<AuditStatus>::default());
            let status = Arc::clone(&shared.1);
            let ended = CancellationToken::new().drop_guard();
            let started = AuditWriter::start(options, dir, shared, Tasks::default(), ended);
            started.map(|writer| (writer, status))
        })
    }

    /// Opens the log again, which must succeed.
    fn reopen(writer: &mut AuditWriter, status: &AuditStatus) {
        retry_while_in_use(|| {
            writer.reopen();
            status.failure().map_or(Ok(()), Err)
        });
    }

    #[test]
    fn losses_of_a_full_queue_are_reported_before_the_next_record() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (mut writer, status) = start_writer(dir.path());
        status.add_lost(5);
        let queued = || QueuedRecord {
            time: SystemTime::now(),
            record: super::super::tests::record("r"),
            reply: None,
        };
        writer.write_records(vec![queued(), queued()]);
        let text = std::fs::read_to_string(dir.path().join("audit.log")).expect("reads");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(
            lines[1].contains("queue of the audit log is full\",\"lost\":5,"),
            "{text}"
        );
        assert_eq!((status.lost(), status.take_unreported()), (5, 0));
    }

    #[test]
    fn a_failed_sync_fails_the_log_and_reports_unsynced_records() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("audit.log");
        let (mut writer, status) = start_writer(dir.path());
        for _ in 0..3 {
            let mut line = Vec::new();
            let event = LineEvent::Log(&LogEvent::Reopened { removed_bytes: 0 });
            let now = SystemTime::now();
            let key = &writer.options.key;
            let end = append_line(&mut line, writer.position, key, "n", now, &event);
            writer.append(&line, end).expect("written");
        }
        writer.sync = Some(RunningSync {
            sequence: 3,
            deadline: Instant::now() + RECORD_TIMEOUT,
        });
        writer.finish_sync(Err(AuditFault::io("sync", &path, &Errno::EIO.into())));
        let fault = status.failure().expect("failed");
        assert!(fault.to_string().contains("failed to sync"), "{fault}");
        reopen(&mut writer, &status);
        assert_eq!(status.failure(), None);
        let text = std::fs::read_to_string(&path).expect("reads");
        let last = text.lines().last().expect("a line");
        assert!(
            last.contains("\"event\":\"recovered\"") && last.contains("\"unsynced\":3"),
            "{last}"
        );
        writer.fail(fault);
        reopen(&mut writer, &status);
        let text = std::fs::read_to_string(&path).expect("reads");
        assert!(
            !text.lines().last().expect("a line").contains("unsynced"),
            "reported once"
        );
    }

    #[test]
    fn losses_before_a_kill_are_reported_by_the_next_start() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("audit.log");
        let (mut writer, status) = start_writer(dir.path());
        status.add_lost(3);
        writer.fail(AuditFault::NoAnswer(path.clone()));
        // A killed process writes no more than this.
        drop(writer);
        let first_line = |text: &str| text.lines().nth(1).expect("a line").to_owned();
        let (mut writer, status) = start_writer(dir.path());
        let started = first_line(&std::fs::read_to_string(&path).expect("reads"));
        assert!(
            started.contains("\"event\":\"started\"") && started.contains("\"lost\":3,"),
            "{started}"
        );
        assert_eq!(status.lost(), 0, "the count is that of this daemon");

        writer.fail(AuditFault::NoAnswer(path.clone()));
        let cut = "{\"time\":\"2026";
        let text = std::fs::read_to_string(&path).expect("reads");
        std::fs::write(&path, text + cut).expect("written");
        reopen(&mut writer, &status);
        let text = std::fs::read_to_string(&path).expect("reads");
        let recovered = text.lines().last().expect("a line");
        let removed = format!("\"lost\":0,\"removed_bytes\":{},", cut.len());
        assert!(recovered.contains(&removed), "{recovered}");
    }
}

//! Audit log: one JSON line for each decision about a call, in a file of its own. Lines are chained by hashes and
//! authenticated with the instance's key.
//!
//! [`AuditLog`] is the handle that the layers call. A thread of its own owns the file (`writer.rs`); records reach it
//! through a bounded queue, and those that wait share one write. Handles never touch the file.
//!
//! **Guarantee.** With delivery `enforced`, the future of [`AuditLog::record`] is ready when the record is in the
//! kernel's page cache: it survives a SIGKILL of the daemon, and a full, read-only or failing disk is noticed. The
//! record reaches the disk at most `sync_interval` (and one or two fdatasync) later; a power cut or a kernel crash can
//! lose that much from the end of the log. With a `sync_interval` of 0 it is ready only after fdatasync.
//!
//! | module | contents |
//! |---|---|
//! | `record.rs`, `argv_key.rs` | records as the layers make them; fingerprints of command lines |
//! | `line.rs` | one line as JSON, as the chain of [`skilld_common::audit_chain`] has it |
//! | `record_queue.rs`, `status.rs` | what handles and writer share |
//! | `writer.rs`, `log_file.rs`, `chain_file.rs` | the thread that owns the file; the file; the chain's position |
//! | `fault.rs` | reasons why records can't be written |

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::config::{AuditConfig, AuditDelivery};
use crate::error::{Chain, Result};
use crate::shutdown::Tasks;

mod argv_key;
mod chain_file;
mod fault;
mod line;
mod log_file;
mod record;
mod record_queue;
mod status;
#[cfg(test)]
mod tests;
mod writer;

use argv_key::ArgvKey;
pub use argv_key::ExecDescription;
use chain_file::ChainFile;
pub use fault::AuditFault;
use log_file::LogFile;
pub use record::{
    AuditPeer, AuditPrincipal, AuditRecord, BoundedText, CallOutcome, CallStage, CreatedResource,
    SETUP_COMMANDS_MAX, TraceParent,
};
use record_queue::{QueuedRecord, RecordQueue};
pub use status::AuditState;
use status::AuditStatus;
use writer::{AuditWriter, WriterOptions};

/// Maximum time that a call waits for its record, and maximum duration of a sync. A disk that takes longer has failed.
pub const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// Handle of the audit log. Clones share it; the log ends with the last one, or with [`Self::close`].
#[derive(Debug, Clone)]
pub struct AuditLog(Arc<AuditHandle>);

#[derive(Debug)]
struct AuditHandle {
    config: AuditConfig,
    key: ArgvKey,
    queue: Arc<RecordQueue>,
    status: Arc<AuditStatus>,
    /// Cancelled when the writer has ended.
    ended: CancellationToken,
}

impl AuditLog {
    /// Opens the log of the configuration, and continues its chain; `None` if the configuration has none. If the disk
    /// is full, read-only or failing, the log is in the state [`AuditState::Failed`] until that is over.
    ///
    /// # Errors
    /// [`crate::error::Error`] if the path can't be used, its file is not an audit log, another daemon writes it, or
    /// the state directory's files can't be used.
    pub async fn open(config: &AuditConfig, state_dir: &Path) -> Result<Option<Self>> {
        let Some(path) = config.file.clone() else {
            return Ok(None);
        };
        // The log outlives the daemon's other tasks, whose end it records.
        let tasks = Tasks::default();
        let (queue, status) = (Arc::<RecordQueue>::default(), Arc::<AuditStatus>::default());
        let ended = CancellationToken::new();
        let shared = (Arc::clone(&queue), Arc::clone(&status));
        let (guard, writer_tasks) = (ended.clone().drop_guard(), tasks.clone());
        let (node, state_dir) = (config.node.clone(), state_dir.to_owned());
        let sync_interval = config.sync_interval;
        let start = move || {
            let key = ArgvKey::load_or_create(&state_dir)?;
            let options = WriterOptions {
                path,
                node: node.unwrap_or_else(read_hostname),
                sync_interval,
                key: key.chain_key(),
            };
            let writer = AuditWriter::start(options, &state_dir, shared, writer_tasks, guard)?;
            Ok((key, writer))
        };
        let (key, writer) = tasks.blocking(start).await?;
        let runner = tasks.clone();
        tasks.spawn(async move {
            let run = move || {
                writer.run();
                Ok(())
            };
            if let Err(error) = runner.blocking(run).await {
                tracing::error!(error = %Chain(&error), "the writer of the audit log ended");
            }
        });
        Ok(Some(Self(Arc::new(AuditHandle {
            config: config.clone(),
            key,
            queue,
            status,
            ended,
        }))))
    }

    /// Checks that [`Self::open`] would succeed, and changes nothing. Blocks. While a daemon `is_running`, the log may
    /// be its own, so its lock is not tried. A disk that is full, read-only or failing ends no start.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn check(path: &Path, state_dir: &Path, is_running: bool) -> Result<()> {
        ArgvKey::check(state_dir)?;
        ChainFile::check(state_dir)?;
        match LogFile::check(path, is_running) {
            Err(fault) if !fault.is_recoverable() => Err(fault.start_error()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Queues a record at once, and returns a future that waits until it is written (see the module's guarantee). With
    /// delivery `best_effort` the future is ready at once. A dropped future takes nothing back.
    ///
    /// # Errors
    /// [`AuditFault`] if the record could not be written. It is then lost, and counted in a later line.
    pub fn record(
        &self,
        record: AuditRecord,
    ) -> impl Future<Output = Result<(), AuditFault>> + Send + use<> {
        let pushed = match self.0.config.delivery {
            AuditDelivery::BestEffort => {
                self.submit(record);
                Ok(None)
            }
            AuditDelivery::Enforced => {
                let (reply, result) = oneshot::channel();
                self.push(record, Some(reply)).map(|()| Some(result))
            }
        };
        let log = self.clone();
        async move {
            let Some(result) = pushed? else {
                return Ok(());
            };
            match tokio::time::timeout(RECORD_TIMEOUT, result).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(AuditFault::Closed),
                Err(_) => Err(log.report_silence()),
            }
        }
    }

    /// Hands a record over without waiting for it, for the end of a call in code that can't wait. A record that can't
    /// be written is counted.
    pub fn submit(&self, record: AuditRecord) {
        // The failure is counted, and is the state of the log.
        self.push(record, None).unwrap_or_default();
    }

    /// Returns an error if a call that changes something must be refused: with delivery `enforced`, while no record can
    /// be written. Reads, kills and deletions are never refused.
    ///
    /// # Errors
    /// [`AuditFault`] that has to be ended first.
    pub fn check_writable(&self) -> Result<(), AuditFault> {
        match self.0.config.delivery {
            AuditDelivery::BestEffort => Ok(()),
            AuditDelivery::Enforced => self.0.status.failure().map_or(Ok(()), Err),
        }
    }

    /// Describes a command for [`AuditRecord::exec`], by its program's name and a fingerprint of its arguments.
    pub fn describe_exec<A: AsRef<str>>(&self, argv: &[A]) -> ExecDescription {
        self.0.key.describe(argv)
    }

    /// Returns the state of the log, and its changes.
    pub fn state(&self) -> watch::Receiver<AuditState> {
        self.0.status.subscribe()
    }

    /// Returns the time at which the log came into the state that it has: a failure keeps its time while its cause
    /// changes.
    pub fn state_since(&self) -> SystemTime {
        self.0.status.since()
    }

    /// Returns the number of records that were lost since the start of the daemon.
    pub fn lost(&self) -> u64 {
        self.0.status.lost()
    }

    /// Continues the log in a new file if the operator renamed the current one. Any number of calls do no harm.
    pub fn reopen(&self) {
        self.0.queue.request_reopen();
    }

    /// Writes what is in the queue and the end of the log, and waits until both are on the disk. Later records fail.
    pub async fn close(&self) {
        self.0.queue.close();
        let ended = self.0.ended.cancelled();
        if tokio::time::timeout(2 * RECORD_TIMEOUT, ended)
            .await
            .is_err()
        {
            tracing::error!("the disk of the audit log does not answer: its end is not written");
        }
    }

    /// Sets the state of a disk that did not answer in time, and returns its fault.
    fn report_silence(&self) -> AuditFault {
        let path = self.0.config.file.clone().unwrap_or_default();
        let fault = AuditFault::NoAnswer(path);
        self.0.status.set(AuditState::Failed(fault.clone()));
        // The writer answers when the disk does, and ends the failure.
        self.reopen();
        fault
    }

    fn push(
        &self,
        record: AuditRecord,
        reply: Option<oneshot::Sender<Result<(), AuditFault>>>,
    ) -> Result<(), AuditFault> {
        let queued = QueuedRecord {
            time: SystemTime::now(),
            record,
            reply,
        };
        let failure = self.0.status.failure();
        let pushed = failure.map_or_else(|| self.0.queue.push(queued), Err);
        pushed.inspect_err(|_| self.0.status.add_lost(1))
    }
}

impl Drop for AuditHandle {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Returns the host's name.
fn read_hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

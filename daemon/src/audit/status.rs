//! State of the audit log that its handles and its writer share: whether records are written, and how many were lost.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::fault::AuditFault;

/// State of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditState {
    /// Records are written to the configured path.
    Healthy,
    /// Records are written, but to the file that had the path before: the one that has it now can't be used.
    OldFile(AuditFault),
    /// Records can't be written. The daemon tries again every second.
    Failed(AuditFault),
}

/// Shared state and counters of the audit log.
#[derive(Debug)]
pub(super) struct AuditStatus {
    state: watch::Sender<AuditState>,
    /// Time at which the present kind of state began.
    since: Mutex<SystemTime>,
    /// Number of records that were lost since the start.
    lost: AtomicU64,
    /// Number of lost records that no line of the log reports yet.
    unreported: AtomicU64,
}

impl Default for AuditStatus {
    fn default() -> Self {
        Self {
            state: watch::Sender::new(AuditState::Healthy),
            since: Mutex::new(SystemTime::now()),
            lost: AtomicU64::new(0),
            unreported: AtomicU64::new(0),
        }
    }
}

impl AuditStatus {
    pub(super) fn subscribe(&self) -> watch::Receiver<AuditState> {
        self.state.subscribe()
    }

    /// Returns the fault because of which no record can be written; `None` while they can.
    pub(super) fn failure(&self) -> Option<AuditFault> {
        match &*self.state.borrow() {
            AuditState::Failed(fault) => Some(fault.clone()),
            AuditState::Healthy | AuditState::OldFile(_) => None,
        }
    }

    /// Changes the state, and logs a change once.
    pub(super) fn set(&self, state: AuditState) {
        self.state.send_if_modified(|current| {
            if *current == state {
                return false;
            }
            match &state {
                AuditState::Healthy => tracing::info!("the audit log is written again"),
                AuditState::OldFile(fault) => {
                    tracing::warn!(error = %fault, "the audit log was renamed, and goes on in the old file");
                }
                AuditState::Failed(fault) => {
                    tracing::error!(error = %fault, "the audit log can't be written");
                }
            }
            // A failure with another cause is still the same failure.
            if mem::discriminant(current) != mem::discriminant(&state) {
                *self.since.lock() = SystemTime::now();
            }
            *current = state;
            true
        });
    }

    /// Returns the time at which the present kind of state began.
    pub(super) fn since(&self) -> SystemTime {
        *self.since.lock()
    }

    /// Counts records that were not written.
    pub(super) fn add_lost(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
        self.unreported.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the number of records that were lost since the start.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Takes the number of lost records that the next line must report.
    pub(super) fn take_unreported(&self) -> u64 {
        self.unreported.swap(0, Ordering::Relaxed)
    }

    /// Returns the number of lost records that no line of the log reports yet.
    pub(super) fn unreported(&self) -> u64 {
        self.unreported.load(Ordering::Relaxed)
    }

    /// Returns a number from [`Self::take_unreported`] whose line could not be written.
    pub(super) fn restore_unreported(&self, count: u64) {
        self.unreported.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_time_of_a_failure_is_that_of_its_beginning() {
        let status = AuditStatus::default();
        let fault = |path: &str| AuditState::Failed(AuditFault::NoAnswer(PathBuf::from(path)));
        status.set(fault("a"));
        let since = status.since();
        assert!(since <= SystemTime::now());
        status.set(fault("b"));
        status.set(fault("b"));
        assert_eq!(status.since(), since);
        status.set(AuditState::Healthy);
        status.set(fault("a"));
        assert!(status.since() > since, "another failure");
    }
}

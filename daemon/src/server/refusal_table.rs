//! Table of refused calls. It bounds what they cost: for each reason, a peer has one audit record for its first refused
//! call, then one a [`WINDOW`] with their number. Beyond [`PROMPT_REFUSALS_MAX`] it is a flood.
//!
//! A call with a valid credential is never delayed or refused here, so a peer that shares an address with an attacker
//! is served as before.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use skilld_proto::v1::ErrorReason;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::{ConnectionOwner, CredentialKind, TenantName};
use crate::audit::{AuditLog, AuditPeer, AuditRecord, CallStage};
use crate::shutdown::Tasks;

/// Time over which the refused calls of a peer share a record.
const WINDOW: Duration = Duration::from_secs(60);
/// Interval between looks for windows that have ended.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of windows. The calls of further peers that are refused for the same reason share one. With a window
/// of a minute, this many cost about 4 KB of audit log per second.
const WINDOWS_MAX: usize = 256;
/// Number of refused calls per window that are answered at once.
const PROMPT_REFUSALS_MAX: u64 = 100;
/// Delay of further answers.
const DELAY: Duration = Duration::from_secs(1);
/// Maximum number of answers that are delayed at the same time. Beyond it answers are prompt, because a waiting call
/// takes memory.
const DELAYED_MAX: usize = 1024;

/// Refused calls that share their records.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RefusedCalls {
    /// Owner of the connection, and the principal if an authenticator knows the credential. `None` stands for all peers
    /// without a window of their own.
    pub(super) peer: Option<(ConnectionOwner, Option<PrincipalKey>)>,
    /// Reason of the refusal; `None` if its status names none.
    pub(super) reason: Option<ErrorReason>,
}

/// Kind of a principal's credential, its tenant and its id. Ids are unique only within both.
pub(super) type PrincipalKey = (CredentialKind, TenantName, String);

/// Table of refused calls.
#[derive(Debug)]
pub(super) struct RefusalTable {
    /// `None` without an audit log.
    audit: Option<AuditLog>,
    windows: Mutex<RefusalWindows>,
    delayed: Semaphore,
}

#[derive(Debug, Default)]
struct RefusalWindows {
    by_calls: HashMap<RefusedCalls, RefusalWindow>,
    /// `true` once the daemon stops: records are written at once.
    is_closed: bool,
}

#[derive(Debug)]
struct RefusalWindow {
    start: Instant,
    /// Number of all refused calls since `start`.
    count: u64,
    /// Number of those that no record reports yet.
    unrecorded: u64,
    /// Record of the first call that no record reports yet; `None` if there is none, or no audit log.
    sample: Option<AuditRecord>,
}

impl RefusalTable {
    pub(super) fn new(audit: Option<AuditLog>) -> Self {
        Self {
            audit,
            windows: Mutex::default(),
            delayed: Semaphore::new(DELAYED_MAX),
        }
    }

    /// Counts a refused call. Writes the record that `record` makes if it is the first such call of its peer for a
    /// while; `record` is called only for a record that is kept, and makes none without an audit log. Returns `true` if
    /// the peer makes many such calls.
    pub(super) fn count(
        &self,
        mut calls: RefusedCalls,
        record: impl FnOnce() -> Option<AuditRecord>,
    ) -> bool {
        let mut windows = self.windows.lock();
        if windows.is_closed {
            drop(windows);
            self.submit_all(record());
            return false;
        }
        let is_known = windows.by_calls.contains_key(&calls);
        if !is_known && windows.by_calls.len() >= WINDOWS_MAX {
            calls.peer = None;
        }
        let Some(window) = windows.by_calls.get_mut(&calls) else {
            let window = RefusalWindow {
                start: Instant::now(),
                count: 1,
                unrecorded: 0,
                sample: None,
            };
            windows.by_calls.insert(calls, window);
            drop(windows);
            self.submit_all(record());
            return false;
        };
        window.count += 1;
        window.unrecorded += 1;
        if window.sample.is_none() {
            window.sample = record();
        }
        let is_flood = window.count > PROMPT_REFUSALS_MAX;
        if window.count == PROMPT_REFUSALS_MAX + 1 {
            tracing::warn!(
                peer = ?calls.peer,
                reason = calls.reason.map(|reason| reason.error_info_name()),
                "many calls are refused: answers to further ones without a valid credential are delayed"
            );
        }
        is_flood
    }

    /// Waits as long as the answer to a call of a flood is delayed, or until `stop`.
    pub(super) async fn delay(&self, stop: &CancellationToken) {
        let permit: Option<SemaphorePermit<'_>> = self.delayed.try_acquire().ok();
        if permit.is_some() {
            stop.run_until_cancelled(tokio::time::sleep(DELAY)).await;
        }
    }

    /// Makes the table and starts the task that writes its records until the daemon stops.
    pub(super) fn start(audit: Option<AuditLog>, tasks: &Tasks) -> Arc<Self> {
        let table = Arc::new(Self::new(audit));
        let (running, stop) = (Arc::clone(&table), tasks.stop.clone());
        tasks.spawn(async move { running.run(stop).await });
        table
    }

    /// Writes the records of windows that have ended, until the daemon stops, and then all others.
    async fn run(&self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
                () = stop.cancelled() => break,
            }
            self.end_windows(|window| window.start.elapsed() >= WINDOW);
        }
        self.windows.lock().is_closed = true;
        self.end_windows(|_| true);
    }

    /// Writes the records of the windows for which `is_over` is true. A peer whose calls went on gets a new window.
    fn end_windows(&self, is_over: impl Fn(&RefusalWindow) -> bool) {
        let mut records = Vec::new();
        self.windows.lock().by_calls.retain(|calls, window| {
            if !is_over(window) {
                return true;
            }
            let sample = window.sample.take();
            records.extend(sample.map(|sample| window.summary(calls, sample)));
            window.start = Instant::now();
            window.count = 0;
            mem::take(&mut window.unrecorded) > 0
        });
        self.submit_all(records);
    }

    fn submit_all(&self, records: impl IntoIterator<Item = AuditRecord>) {
        for record in records {
            if let Some(audit) = &self.audit {
                audit.submit(record);
            }
        }
    }
}

impl RefusalWindow {
    /// Makes the record of all calls that no record reports yet, from that of the first one.
    fn summary(&self, calls: &RefusedCalls, mut sample: AuditRecord) -> AuditRecord {
        if calls.peer.is_none() {
            sample.peer = AuditPeer::Several {};
            sample.principal = None;
            sample.for_tenant = None;
        }
        if let Some(mut outcome) = sample.stage.outcome() {
            outcome.duration = self.start.elapsed();
            let refusals = self.unrecorded;
            sample.stage = CallStage::Refusals { outcome, refusals };
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::path::Path;

    use serde_json::Value;

    use super::*;
    use crate::audit::{BoundedText, CallOutcome};
    use crate::config::Config;

    fn record(request_id: &str) -> AuditRecord {
        let outcome = CallOutcome {
            code: tonic::Code::Unauthenticated,
            reason: None,
            bytes_in: 0,
            bytes_out: 0,
            duration: Duration::ZERO,
        };
        AuditRecord {
            request_id: BoundedText::new(request_id),
            traceparent: None,
            principal: None,
            for_tenant: None,
            peer: AuditPeer::Process { uid: 7, pid: None },
            method: BoundedText::new("/skilld.v1.AccessService/GetPrincipal"),
            resource: None,
            exec: None,
            setup: Vec::new(),
            stage: CallStage::Refusal(outcome),
        }
    }

    fn peer(number: u32) -> RefusedCalls {
        let peer = Some((
            ConnectionOwner::Network(Ipv4Addr::from(number).into()),
            None,
        ));
        let reason = Some(ErrorReason::Unauthenticated);
        RefusedCalls { peer, reason }
    }

    async fn open_table(dir: &Path) -> (RefusalTable, AuditLog) {
        let path = dir.join("audit.log").display().to_string();
        // A test may count for longer than a sync may take, which ends only while the test waits.
        let text = format!("[audit]\nfile = {path:?}\nsync_interval = \"10s\"\n");
        let config = Config::from_toml(&text).expect("valid");
        let audit = AuditLog::open(&config.config.audit, dir)
            .await
            .expect("opened")
            .expect("configured");
        (RefusalTable::new(Some(audit.clone())), audit)
    }

    /// Closes the log and returns its lines about calls.
    async fn close(audit: AuditLog, dir: &Path) -> Vec<Value> {
        audit.close().await;
        let text = std::fs::read_to_string(dir.join("audit.log")).expect("read");
        let mut lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect(line))
            .collect();
        lines.retain(|line| line["method"].is_string());
        lines
    }

    #[tokio::test]
    async fn a_peers_refusals_in_a_window_take_two_records() {
        let dir = tempfile::tempdir().expect("directory");
        let (table, audit) = open_table(dir.path()).await;
        for index in 0..1000 {
            let is_flood = table.count(peer(1), || Some(record(&format!("r{index}"))));
            assert_eq!(is_flood, index >= PROMPT_REFUSALS_MAX);
        }
        assert!(!table.count(peer(2), || Some(record("other"))));
        table.end_windows(|_| false);
        table.end_windows(|_| true);
        // The first peer's calls go on, the second one has no window any more.
        assert!(!table.count(peer(1), || Some(record("later"))));
        assert!(!table.count(peer(2), || Some(record("again"))));
        let stop = CancellationToken::new();
        stop.cancel();
        table.run(stop).await;
        table.count(peer(1), || Some(record("after the stop")));
        let lines = close(audit, dir.path()).await;
        let seen: Vec<(&str, &str, Option<u64>)> = lines
            .iter()
            .map(|line| {
                (
                    line["event"].as_str().expect("text"),
                    line["request_id"].as_str().expect("text"),
                    line["refusals"].as_u64(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("call_ended", "r0", None),
                ("call_ended", "other", None),
                ("calls_refused", "r1", Some(999)),
                ("call_ended", "again", None),
                ("calls_refused", "later", Some(1)),
                ("call_ended", "after the stop", None),
            ]
        );
        assert!(lines.iter().all(|line| line["decision"] == "refused"));
    }

    #[tokio::test]
    async fn a_flood_from_many_addresses_has_few_records() {
        let dir = tempfile::tempdir().expect("directory");
        let (table, audit) = open_table(dir.path()).await;
        for address in 0..100_000 {
            table.count(peer(address), || Some(record("r")));
        }
        table.end_windows(|_| true);
        let lines = close(audit, dir.path()).await;
        // One for each window, one for the first peer without, and one for all others.
        assert_eq!(lines.len(), WINDOWS_MAX + 2);
        let last = lines.last().expect("a line");
        let others = 100_000 - WINDOWS_MAX - 1;
        assert_eq!(last["refusals"], others);
        assert!(last["peer_uid"].is_null() && last["peer_address"].is_null());
    }

    #[tokio::test]
    async fn calls_that_are_refused_for_different_reasons_share_no_record() {
        let dir = tempfile::tempdir().expect("directory");
        let (table, audit) = open_table(dir.path()).await;
        for reason in [ErrorReason::PermissionDenied, ErrorReason::QuotaExceeded] {
            for _ in 0..5 {
                let calls = RefusedCalls {
                    reason: Some(reason),
                    ..peer(1)
                };
                table.count(calls, || Some(record(reason.error_info_name())));
            }
        }
        table.end_windows(|_| true);
        let mut seen: Vec<(String, Option<u64>)> = Vec::new();
        for line in close(audit, dir.path()).await {
            let id = line["request_id"].as_str().expect("text").to_owned();
            seen.push((id, line["refusals"].as_u64()));
        }
        seen.sort();
        let expected = [
            ("PERMISSION_DENIED", None),
            ("PERMISSION_DENIED", Some(4)),
            ("QUOTA_EXCEEDED", None),
            ("QUOTA_EXCEEDED", Some(4)),
        ];
        assert_eq!(seen, expected.map(|(id, count)| (id.to_owned(), count)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limited_number_of_flood_answers_is_delayed_at_once() {
        let table = RefusalTable::new(None);
        let stop = CancellationToken::new();
        let start = Instant::now();
        let delays = (0..DELAYED_MAX).map(|_| table.delay(&stop));
        let further = async {
            // The others are polled first.
            table.delay(&stop).await;
            start.elapsed()
        };
        let (_, further) = tokio::join!(futures::future::join_all(delays), further);
        assert_eq!((start.elapsed(), further), (DELAY, Duration::ZERO));
        stop.cancel();
        table.delay(&stop).await;
        assert_eq!(start.elapsed(), DELAY);
    }
}

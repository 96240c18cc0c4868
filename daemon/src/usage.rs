//! Ledger of what tenants have used: since the start of the daemon, and per UTC day.
//!
//! Each part of the daemon adds what it observes: the table of workspaces their time, the followers of execs their
//! ends, the layer around every call its bytes, the artifact store what it saved. The days survive a restart in a file
//! (`usage_file.rs`), which may lack the last minute before a crash. Workspaces and execs that the daemon finds again
//! fill that gap.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use skilld_common::unix_time::{from_unix_ms, unix_ms};
use skilld_proto::v1::{Exec, ExecResult};

use crate::access::TenantName;
use crate::error::Result;

mod usage_file;

/// Number of days before the current one that the ledger keeps.
pub const PAST_DAYS: u64 = 7;
/// Length of a UTC day in milliseconds.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Ledger of all tenants. Clones share it.
#[derive(Debug, Clone)]
pub struct UsageLedger(Arc<LedgerInner>);

#[derive(Debug)]
struct LedgerInner {
    /// Time of the daemon's start, in milliseconds since 1970.
    start_ms: u64,
    /// Time at which the file that was loaded had been written, in milliseconds since 1970; that of the start without
    /// one.
    saved_ms: u64,
    tenants: Mutex<BTreeMap<TenantName, TenantRecord>>,
}

/// Counters of one tenant.
#[derive(Debug, Default)]
struct TenantRecord {
    since_start: UsageCounters,
    /// Counters by the number of the day since 1970.
    days: BTreeMap<u64, UsageCounters>,
    meter: Arc<ByteMeter>,
}

/// Amounts that a tenant has used over one period.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageCounters {
    /// Time for which workspaces existed, in milliseconds.
    pub workspace_ms: u64,
    /// Memory limits of workspaces times the time for which these existed, in bytes times milliseconds.
    pub memory_byte_ms: u128,
    /// Processor time of ended execs, in microseconds.
    pub cpu_us: u64,
    /// Number of ended execs by the number of their reason in the API.
    pub execs: BTreeMap<i32, u64>,
    /// Bytes of requests.
    pub bytes_in: u64,
    /// Bytes of answers.
    pub bytes_out: u64,
    /// Bytes of saved artifacts.
    pub bytes_stored: u64,
}

/// Counters of one tenant at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantUsage {
    /// Counters since the start of the daemon.
    pub since_start: UsageCounters,
    /// Counters by the number of the day since 1970. Days without use are absent.
    pub days: BTreeMap<u64, UsageCounters>,
}

/// Bytes of a tenant's calls: those that are not in the ledger yet, and those that wait for the rest of their message.
#[derive(Debug, Default)]
pub struct ByteMeter {
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    arriving: AtomicU64,
}

// === impl ByteMeter ===

impl ByteMeter {
    /// Counts bytes of a request.
    pub fn count_in(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes of an answer.
    pub fn count_out(&self, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a message of which `after` bytes have arrived, in place of `before`; 0 once it is complete. Returns the sum
    /// over all incomplete messages.
    pub fn count_arriving(&self, before: u64, after: u64) -> u64 {
        // May be negative. Both operations wrap, which makes the sum right again.
        let added = after.wrapping_sub(before);
        let sum = self.arriving.fetch_add(added, Ordering::Relaxed);
        sum.wrapping_add(added)
    }
}

// === impl UsageLedger ===

impl Default for UsageLedger {
    fn default() -> Self {
        Self::new(now_ms(), None)
    }
}

impl UsageLedger {
    /// Loads the days from the state directory. A file that cannot be understood is ignored. Blocks.
    pub fn open(state_dir: &Path) -> Self {
        Self::new(now_ms(), usage_file::load(state_dir))
    }

    fn new(start_ms: u64, file: Option<usage_file::UsageFile>) -> Self {
        let file = file.unwrap_or(usage_file::UsageFile::new(start_ms));
        let tenants = file.tenants.into_iter().map(|(tenant, mut days)| {
            retain_recent_days(&mut days, start_ms);
            let record = TenantRecord {
                days,
                ..TenantRecord::default()
            };
            (tenant, record)
        });
        Self(Arc::new(LedgerInner {
            start_ms,
            // A clock that was set back must not count time twice.
            saved_ms: file.saved_ms.min(start_ms),
            tenants: Mutex::new(tenants.collect()),
        }))
    }

    /// Writes the days into the state directory. The time of workspaces was added up to `saved_ms`, in milliseconds
    /// since 1970. Blocks.
    ///
    /// # Errors
    /// When the host's disk fails or is full.
    pub fn save(&self, state_dir: &Path, saved_ms: u64) -> Result<()> {
        let mut tenants = self.0.tenants.lock();
        let days = tenants.iter_mut().map(|(tenant, record)| {
            record.fold(now_ms());
            (tenant.clone(), record.days.clone())
        });
        let tenants_days = days.filter(|(_, days)| !days.is_empty()).collect();
        drop(tenants);
        usage_file::save(state_dir, saved_ms, tenants_days)
    }

    /// Returns the time of the daemon's start.
    pub fn start_time(&self) -> SystemTime {
        from_unix_ms(self.0.start_ms)
    }

    /// Returns the time up to which an earlier daemon's usage is in the ledger, in milliseconds since 1970.
    pub fn saved_ms(&self) -> u64 {
        self.0.saved_ms
    }

    /// Returns the counters of a tenant.
    pub fn read(&self, tenant: &TenantName) -> TenantUsage {
        let mut tenants = self.0.tenants.lock();
        let Some(record) = tenants.get_mut(tenant) else {
            return TenantUsage::default();
        };
        record.fold(now_ms());
        TenantUsage {
            since_start: record.since_start.clone(),
            days: record.days.clone(),
        }
    }

    /// Returns the meter of the bytes of a tenant's calls.
    pub fn meter(&self, tenant: &TenantName) -> Arc<ByteMeter> {
        let mut tenants = self.0.tenants.lock();
        if let Some(record) = tenants.get(tenant) {
            return Arc::clone(&record.meter);
        }
        let record = tenants.entry(tenant.clone()).or_default();
        Arc::clone(&record.meter)
    }

    /// Adds the time of a workspace with this memory limit, in milliseconds since 1970.
    pub fn add_workspace_time(&self, tenant: &TenantName, memory_bytes: u64, time_ms: Range<u64>) {
        let mut tenants = self.0.tenants.lock();
        let record = tenants.entry(tenant.clone()).or_default();
        let since_start = time_ms.start.max(self.0.start_ms)..time_ms.end;
        record
            .since_start
            .add_workspace_time(&since_start, memory_bytes);
        let last = time_ms.end / DAY_MS;
        let first = (time_ms.start / DAY_MS).max(last.saturating_sub(PAST_DAYS));
        for day in first..=last {
            let of_day = time_ms.start.max(day * DAY_MS)..time_ms.end.min((day + 1) * DAY_MS);
            if !of_day.is_empty() {
                let counters = record.days.entry(day).or_default();
                counters.add_workspace_time(&of_day, memory_bytes);
            }
        }
    }

    /// Adds an exec that has ended now.
    pub fn add_exec(&self, tenant: &TenantName, result: &ExecResult) {
        self.add(tenant, |counters| counters.add_exec(result));
    }

    /// Adds an exec of an earlier daemon that has ended, to the day of its end. One that ended before the file was
    /// written is in it.
    pub fn add_earlier_exec(&self, tenant: &TenantName, exec: &Exec) {
        let to_ms = |time: Option<prost_types::Timestamp>| {
            let time: SystemTime = time?.try_into().ok()?;
            Some(unix_ms(time))
        };
        let (Some(start_ms), Some(end_ms)) = (to_ms(exec.start_time), to_ms(exec.end_time)) else {
            return;
        };
        if start_ms >= self.0.start_ms || end_ms <= self.0.saved_ms {
            return;
        }
        // The times come from a guest, which the daemon does not trust.
        let counted_ms = end_ms.min(now_ms());
        let result = exec.result.clone().unwrap_or_default();
        let mut tenants = self.0.tenants.lock();
        let record = tenants.entry(tenant.clone()).or_default();
        record
            .days
            .entry(counted_ms / DAY_MS)
            .or_default()
            .add_exec(&result);
        if counted_ms >= self.0.start_ms {
            record.since_start.add_exec(&result);
        }
    }

    /// Adds the bytes of an artifact that was saved now.
    pub fn add_stored(&self, tenant: &TenantName, bytes: u64) {
        self.add(tenant, |counters| {
            counters.bytes_stored = counters.bytes_stored.saturating_add(bytes);
        });
    }

    fn add(&self, tenant: &TenantName, add: impl Fn(&mut UsageCounters)) {
        let mut tenants = self.0.tenants.lock();
        let record = tenants.entry(tenant.clone()).or_default();
        add(&mut record.since_start);
        add(record.days.entry(now_ms() / DAY_MS).or_default());
    }
}

// === impl TenantRecord ===

impl TenantRecord {
    /// Takes over the bytes of the meter, and forgets days that are too old or to come.
    fn fold(&mut self, now_ms: u64) {
        let today = now_ms / DAY_MS;
        let bytes_in = self.meter.bytes_in.swap(0, Ordering::Relaxed);
        let bytes_out = self.meter.bytes_out.swap(0, Ordering::Relaxed);
        if bytes_in > 0 || bytes_out > 0 {
            let today = self.days.entry(today).or_default();
            for counters in [&mut self.since_start, today] {
                counters.bytes_in = counters.bytes_in.saturating_add(bytes_in);
                counters.bytes_out = counters.bytes_out.saturating_add(bytes_out);
            }
        }
        retain_recent_days(&mut self.days, now_ms);
    }
}

/// Removes days that are too old, and those that a clock which was ahead has left.
fn retain_recent_days(days: &mut BTreeMap<u64, UsageCounters>, now_ms: u64) {
    let today = now_ms / DAY_MS;
    let oldest = today.saturating_sub(PAST_DAYS);
    days.retain(|day, _| (oldest..=today).contains(day));
}

// === impl UsageCounters ===

impl UsageCounters {
    fn add_workspace_time(&mut self, time_ms: &Range<u64>, memory_bytes: u64) {
        let length = time_ms.end.saturating_sub(time_ms.start);
        self.workspace_ms = self.workspace_ms.saturating_add(length);
        let memory = u128::from(memory_bytes) * u128::from(length);
        self.memory_byte_ms = self.memory_byte_ms.saturating_add(memory);
    }

    fn add_exec(&mut self, result: &ExecResult) {
        // A result comes from a guest, which the daemon does not trust to send a valid reason and valid times.
        *self.execs.entry(result.reason().into()).or_default() += 1;
        for time in [result.user_duration, result.system_duration]
            .into_iter()
            .flatten()
        {
            let time = Duration::try_from(time).unwrap_or_default();
            let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            self.cpu_us = self.cpu_us.saturating_add(time_us);
        }
    }
}

fn now_ms() -> u64 {
    unix_ms(SystemTime::now())
}

#[cfg(test)]
mod tests;

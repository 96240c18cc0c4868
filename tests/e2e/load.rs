//! Load on skilld: many execs at once, many readers, more output than memory, broken connections. The tests compare bytes,
//! counts and order; times and memory are measured by `make bench`, `make soak` and `make release-check`. One test runs at
//! a time, since each takes the whole machine.

mod environments;
mod readers;
mod reconnect;
mod starvation;
mod storm;
mod trees;
mod wide;

use std::time::Duration;

use anyhow::{Context, Result};
use skilld_tests::Options;
use tokio::sync::{Mutex, MutexGuard};

const MIB: u64 = 1 << 20;

/// Time limit of a wait for an event, more than ten times the usual wait on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);

/// Lock that the running test holds.
static ALONE: Mutex<()> = Mutex::const_new(());

async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

/// Runs a task that would hang if the daemon or the guest had a fault. `what` names the awaited event.
async fn with_deadline<T>(what: &str, task: impl Future<Output = Result<T>>) -> Result<T> {
    let ended = tokio::time::timeout(DEADLINE, task).await;
    ended.with_context(|| format!("gave up after {DEADLINE:?}: waited until {what}"))?
}

/// Settings with all cores, so that the kernel's CPU quota slows no test, and without a log line for each call.
fn options() -> Result<Options> {
    let cpus = std::thread::available_parallelism()?.get();
    Ok(Options::default()
        .set("pools.default.cpus", &format!("{cpus}.0"))
        .set("log", "info"))
}

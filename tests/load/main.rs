//! skilld under load: many execs at once and one after the other, many readers, more output than memory, broken
//! connections. What is asserted are numbers: bytes, counts, times, memory. One test at a time, since each takes the
//! whole machine.

#![expect(
    clippy::panic_in_result_fn,
    clippy::indexing_slicing,
    reason = "an assertion, and a value that is not there, are how a test fails"
)]

mod readers;
mod reconnect;
mod soak;
mod starvation;
mod storm;
mod wide;

use anyhow::Result;
use skilld_tests::Options;
use tokio::sync::{Mutex, MutexGuard};

const MIB: u64 = 1 << 20;

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::const_new(());

async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

/// All cores, so that the kernel's quota of CPU time is not what is tested; and no log line for each call.
fn options() -> Result<Options> {
    let cpus = std::thread::available_parallelism()?.get();
    Ok(Options::default()
        .set("pools.default.cpus", &format!("{cpus}.0"))
        .set("log", "info"))
}

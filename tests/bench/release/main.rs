//! Sizes, memory and speed of a release. They only mean something for optimised programs on an idle machine, so no gate
//! runs these tests: `make release-check` does, and `make soak` the long one. `make bench` measures properly; these tests
//! catch accidents, so their bounds are wide. One test runs at a time.

#![expect(
    clippy::panic_in_result_fn,
    clippy::indexing_slicing,
    reason = "an assertion, and a value that is not there, are how a test fails"
)]

mod budget;
mod memory;
mod soak;
mod times;
mod transfers;

use std::time::Duration;

use anyhow::Result;
use skilld_tests::Options;
use tokio::sync::{Mutex, MutexGuard};

const MIB: u64 = 1 << 20;

/// Time limit of a wait for an event whose time is not measured.
const DEADLINE: Duration = Duration::from_secs(120);

/// Lock that the running test holds.
static ALONE: Mutex<()> = Mutex::const_new(());

async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

/// Settings with all cores, so that no test measures the kernel's CPU quota, and without a log line for each call.
fn options() -> Result<Options> {
    let cpus = std::thread::available_parallelism()?.get();
    Ok(Options::default()
        .set("pools.default.cpus", &format!("{cpus}.0"))
        .set("log", "info"))
}

/// Runs up to three rounds until one takes at most `most`, and returns the shortest time. Other work of the machine only
/// lengthens a time.
async fn shortest_of_three(
    most: Duration,
    mut round: impl AsyncFnMut() -> Result<Duration>,
) -> Result<Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        shortest = shortest.min(round().await?);
        if shortest <= most {
            break;
        }
    }
    Ok(shortest)
}

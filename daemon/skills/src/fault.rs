//! Fault points: places between two steps of a lifecycle where a crash test can kill the daemon. The lifecycles are
//! those of slots and artifacts. Only debug builds have them: with `debug_assertions` off, as in a release, they are
//! empty.
//!
//! `FAULT_POINT=claim.recorded:2` ends the process with SIGKILL when it reaches that point for the second time; without
//! a number, for the first time. The suite `tests/e2e/crash` kills the daemon at each point; `fault_points.rs` in it
//! says what exists at each of them.

/// Kills the process if this fault point is selected.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn reach(_point: &str) {}

/// Returns `true` if the process is to be killed when it next reaches one of these points.
#[cfg(not(debug_assertions))]
#[inline]
#[must_use]
pub const fn will_kill_at(_points: &[&str]) -> bool {
    false
}

#[cfg(debug_assertions)]
pub use armed::{reach, will_kill_at};

/// Runs `work`, or waits for ever if `hold` is `true`, so that a concurrent fault point kills the process first.
pub async fn hold_if<T>(hold: bool, work: impl Future<Output = T>) -> T {
    if hold {
        std::future::pending::<()>().await;
    }
    work.await
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use nix::sys::signal::{Signal, raise};

    /// Name of the selected fault point, and the number of visits until it kills the process.
    static CHOSEN_POINT: LazyLock<Option<(String, AtomicU64)>> = LazyLock::new(|| {
        #[expect(
            clippy::disallowed_methods,
            reason = "no part of the configuration: a shipped binary does not know it"
        )]
        let chosen = std::env::var("FAULT_POINT").ok()?;
        let (name, times) = chosen.split_once(':').unwrap_or((&chosen, "1"));
        Some((name.to_owned(), AtomicU64::new(times.parse().ok()?)))
    });

    /// Returns the number of visits until this point kills the process; `None` if it is not selected.
    fn remaining_visits(point: &str) -> Option<&'static AtomicU64> {
        CHOSEN_POINT
            .as_ref()
            .filter(|(name, _)| name == point)
            .map(|(_, left)| left)
    }

    /// Kills the process if this fault point is selected.
    pub fn reach(point: &str) {
        if remaining_visits(point).is_some_and(|left| left.fetch_sub(1, Ordering::SeqCst) == 1) {
            // SIGKILL ends the process here, so there is no result to check.
            let _dead = raise(Signal::SIGKILL);
        }
    }

    /// Returns `true` if the process is to be killed when it next reaches one of these points.
    #[must_use]
    pub fn will_kill_at(points: &[&str]) -> bool {
        let is_next = |point: &&str| {
            remaining_visits(point).is_some_and(|left| left.load(Ordering::SeqCst) == 1)
        };
        points.iter().any(is_next)
    }
}

//! Lease of a workspace: the idle timeout and the lifetime after which it ends by itself. The owning task and the
//! grants of requests share it; nothing here waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::config::EXECS_MAX;
use crate::error::Error;

/// Number of calls that a guest serves at the same time; it silently queues the rest.
const GUEST_CALLS_MAX: u64 = 1024;
/// Number of calls to a guest that the daemon makes for itself, besides one for each running exec.
const OWN_CALLS_MAX: u64 = 32;

/// Lease of a workspace. Clones share it.
///
/// Monotonic time decides; wall time is only for display, so setting the host's clock expires no workspace.
#[derive(Debug, Clone)]
pub struct WorkspaceLease {
    shared: Arc<LeaseState>,
}

#[derive(Debug)]
struct LeaseState {
    /// Start of the lease, from which all milliseconds count.
    epoch: Instant,
    epoch_wall: SystemTime,
    idle_ms: AtomicU64,
    end_ms: AtomicU64,
    last_use_ms: AtomicU64,
    /// Number of requests that use the workspace. It is not idle while this exceeds 0. [`CLOSED`] is added once the
    /// workspace ends.
    users: AtomicU64,
    /// Maximum number of requests for [`WorkspaceLease::try_hold`].
    users_max: u64,
}

/// Bit of the number of users that is set once the workspace ends: with it the number exceeds every maximum.
const CLOSED: u64 = 1 << 63;

/// Reason why a request may not use the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldError {
    /// The workspace ends.
    Closed,
    /// The maximum number of requests uses the workspace already.
    Full,
}

/// Guard of a request that uses the workspace. Dropping the last one starts the idle timeout again.
#[derive(Debug)]
pub struct LeaseGuard(Arc<LeaseState>);

impl WorkspaceLease {
    /// Creates a lease that ends `remaining` from now, or `idle` after its last use. `users_max` requests may use the
    /// workspace at the same time.
    pub fn new(idle: Duration, remaining: Duration, users_max: u64) -> Self {
        Self {
            shared: Arc::new(LeaseState {
                epoch: Instant::now(),
                epoch_wall: SystemTime::now(),
                idle_ms: AtomicU64::new(to_millis(idle)),
                end_ms: AtomicU64::new(to_millis(remaining)),
                last_use_ms: AtomicU64::new(0),
                users: AtomicU64::new(0),
                users_max,
            }),
        }
    }

    /// Marks the workspace as used until the guard is dropped, unless it ends or as many requests as may use it do.
    ///
    /// # Errors
    /// [`HoldError`].
    pub fn try_hold(&self) -> Result<LeaseGuard, HoldError> {
        let more = |users| (users < self.shared.users_max).then(|| users + 1);
        match self
            .shared
            .users
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
        {
            Ok(_) => Ok(LeaseGuard(Arc::clone(&self.shared))),
            Err(users) if users & CLOSED != 0 => Err(HoldError::Closed),
            Err(_) => Err(HoldError::Full),
        }
    }

    /// Returns the error for a request that [`Self::try_hold`] refused as [`HoldError::Full`].
    pub(super) fn full_error(&self) -> Error {
        let subject = "the number of calls to a workspace at once";
        Error::quota_exceeded(subject, self.shared.users_max)
    }

    /// Refuses requests from here on, unless the workspace is used or was used since it became idle. Returns `true` if
    /// it is closed.
    pub fn close_if_idle(&self) -> bool {
        let free =
            self.shared
                .users
                .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        if free.is_ok() && self.shared.now_ms() < self.idle_end_ms() {
            // A request came and went since the caller looked.
            self.shared.users.fetch_and(!CLOSED, Ordering::AcqRel);
            return false;
        }
        free.is_ok()
    }

    /// Refuses requests from here on: the workspace ends.
    pub fn close(&self) {
        self.shared.users.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Marks the workspace as used just now.
    pub fn touch(&self) {
        self.shared.touch();
    }

    /// Marks the workspace as last used this long ago.
    pub fn touch_ago(&self, ago: Duration) {
        let at = self.shared.now_ms().saturating_sub(to_millis(ago));
        self.shared.last_use_ms.fetch_max(at, Ordering::AcqRel);
    }

    /// Sets idle timeout and remaining lifetime, if given. Counts as a use.
    pub fn renew(&self, idle: Option<Duration>, remaining: Option<Duration>) {
        if let Some(idle) = idle {
            self.shared
                .idle_ms
                .store(to_millis(idle), Ordering::Release);
        }
        if let Some(remaining) = remaining {
            let end = self.shared.now_ms().saturating_add(to_millis(remaining));
            self.shared.end_ms.store(end, Ordering::Release);
        }
        self.shared.touch();
    }

    /// Returns the earlier of both ends, as of now.
    pub fn deadline(&self) -> Instant {
        let at = self
            .idle_end_ms()
            .min(self.shared.end_ms.load(Ordering::Acquire));
        self.shared.epoch + Duration::from_millis(at)
    }

    /// Returns `true` once the lifetime is over.
    pub fn is_over(&self) -> bool {
        self.shared.now_ms() >= self.shared.end_ms.load(Ordering::Acquire)
    }

    /// Returns `true` if no request has used the workspace for the idle timeout.
    pub fn is_idle(&self) -> bool {
        self.shared.users() == 0 && self.shared.now_ms() >= self.idle_end_ms()
    }

    /// Returns the wall time at which the workspace ends if it is not used again.
    pub fn expire_time(&self) -> SystemTime {
        let end = self.shared.end_ms.load(Ordering::Acquire);
        let idle = if self.shared.users() > 0 {
            self.shared
                .now_ms()
                .saturating_add(self.shared.idle_ms.load(Ordering::Acquire))
        } else {
            self.idle_end_ms()
        };
        self.shared.epoch_wall + Duration::from_millis(end.min(idle))
    }

    /// Returns the wall time at which the lifetime ends.
    pub fn lifetime_end_time(&self) -> SystemTime {
        self.shared.epoch_wall + Duration::from_millis(self.shared.end_ms.load(Ordering::Acquire))
    }

    /// Returns the current idle timeout.
    pub fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.shared.idle_ms.load(Ordering::Acquire))
    }

    fn idle_end_ms(&self) -> u64 {
        let last = if self.shared.users() > 0 {
            self.shared.now_ms()
        } else {
            self.shared.last_use_ms.load(Ordering::Acquire)
        };
        last.saturating_add(self.shared.idle_ms.load(Ordering::Acquire))
    }
}

impl LeaseState {
    fn now_ms(&self) -> u64 {
        to_millis(self.epoch.elapsed())
    }

    /// Returns the number of requests that use the workspace.
    fn users(&self) -> u64 {
        self.users.load(Ordering::Acquire) & !CLOSED
    }

    fn touch(&self) {
        self.last_use_ms.fetch_max(self.now_ms(), Ordering::AcqRel);
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        // The time first: otherwise the workspace looks idle since long for a moment.
        self.0.touch();
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX / 4)
        .min(u64::MAX / 4)
}

/// Returns the maximum number of requests that use a workspace at the same time. The rest of the calls that its guest
/// serves is for the daemon itself.
pub(super) fn users_max(execs_max: u32) -> u64 {
    GUEST_CALLS_MAX - OWN_CALLS_MAX - u64::from(execs_max.min(EXECS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idle_timeout_starts_when_the_last_guard_is_dropped() {
        let lease = WorkspaceLease::new(Duration::from_secs(10), Duration::from_secs(100), 960);
        let user = lease.try_hold().expect("free");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(!lease.is_idle(), "in use");
        drop(user);
        assert!(!lease.is_idle(), "just used");
        tokio::time::advance(Duration::from_millis(9_999)).await;
        assert!(!lease.is_idle());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(lease.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn lifetime_ends_a_workspace_that_is_in_use() {
        let lease = WorkspaceLease::new(Duration::from_secs(10), Duration::from_secs(20), 960);
        let _user = lease.try_hold().expect("free");
        tokio::time::advance(Duration::from_secs(19)).await;
        assert!(!lease.is_over());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(lease.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn renew_moves_both_ends() {
        let lease = WorkspaceLease::new(Duration::from_secs(10), Duration::from_secs(20), 960);
        tokio::time::advance(Duration::from_secs(9)).await;
        lease.renew(Some(Duration::from_secs(30)), Some(Duration::from_secs(40)));
        assert_eq!(lease.deadline() - Instant::now(), Duration::from_secs(30));
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(!lease.is_idle());
        assert!(!lease.is_over());
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(lease.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_keeps_a_workspace_or_finds_it_closed() {
        let idle = Duration::from_secs(10);
        let lease = WorkspaceLease::new(idle, Duration::from_secs(100), 1);
        let user = lease.try_hold().expect("free");
        assert_eq!(lease.try_hold().expect_err("full"), HoldError::Full);
        tokio::time::advance(idle).await;
        assert!(!lease.close_if_idle(), "in use");
        drop(user);
        assert!(!lease.close_if_idle(), "just used");
        tokio::time::advance(idle).await;
        assert!(lease.close_if_idle());
        assert_eq!(lease.try_hold().expect_err("closed"), HoldError::Closed);
    }
}

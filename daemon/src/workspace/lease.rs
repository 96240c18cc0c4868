//! When a workspace ends by itself: idle timeout and lifetime. Shared between the owning task and the
//! grants that requests hold; nothing here waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A workspace's clock. Clones share it.
///
/// Monotonic time decides, wall time is only shown: a host whose clock is set must not expire anything.
#[derive(Debug, Clone)]
pub struct Lease {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// What monotonic milliseconds count from.
    epoch: Instant,
    epoch_wall: SystemTime,
    idle_ms: AtomicU64,
    end_ms: AtomicU64,
    last_use_ms: AtomicU64,
    /// Requests that use the workspace right now; it is not idle while there are any.
    users: AtomicU64,
}

/// Proof that a request uses the workspace. Dropping it starts the idle timeout again.
#[derive(Debug)]
pub struct Use(Arc<Shared>);

impl Lease {
    /// A lease that ends `remaining` from now, or `idle` after its last use.
    #[must_use]
    pub fn new(idle: Duration, remaining: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                epoch: Instant::now(),
                epoch_wall: SystemTime::now(),
                idle_ms: AtomicU64::new(millis(idle)),
                end_ms: AtomicU64::new(millis(remaining)),
                last_use_ms: AtomicU64::new(0),
                users: AtomicU64::new(0),
            }),
        }
    }

    /// Marks the workspace as used until the answer is dropped.
    #[must_use]
    pub fn hold(&self) -> Use {
        self.shared.users.fetch_add(1, Ordering::AcqRel);
        Use(Arc::clone(&self.shared))
    }

    /// Who uses it right now.
    #[must_use]
    pub fn users(&self) -> u64 {
        self.shared.users.load(Ordering::Acquire)
    }

    /// It was used just now.
    pub fn touch(&self) {
        self.shared.touch();
    }

    /// It was used last this long ago.
    pub fn touch_ago(&self, ago: Duration) {
        let at = self.shared.now_ms().saturating_sub(millis(ago));
        self.shared.last_use_ms.fetch_max(at, Ordering::AcqRel);
    }

    /// Sets the idle timeout and, if given, the end as time from now. It counts as a use.
    pub fn renew(&self, idle: Option<Duration>, remaining: Option<Duration>) {
        if let Some(idle) = idle {
            self.shared.idle_ms.store(millis(idle), Ordering::Release);
        }
        if let Some(remaining) = remaining {
            let end = self.shared.now_ms().saturating_add(millis(remaining));
            self.shared.end_ms.store(end, Ordering::Release);
        }
        self.shared.touch();
    }

    /// When to look again: the earlier of both ends as they are now.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let at = self
            .idle_end_ms()
            .min(self.shared.end_ms.load(Ordering::Acquire));
        self.shared.epoch + Duration::from_millis(at)
    }

    /// The lifetime is over, whatever happens.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.now_ms() >= self.shared.end_ms.load(Ordering::Acquire)
    }

    /// Nobody has used it for the idle timeout.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.shared.users.load(Ordering::Acquire) == 0 && self.shared.now_ms() >= self.idle_end_ms()
    }

    /// When it ends if nothing happens, in wall time.
    #[must_use]
    pub fn expire_time(&self) -> SystemTime {
        let end = self.shared.end_ms.load(Ordering::Acquire);
        let idle = if self.shared.users.load(Ordering::Acquire) > 0 {
            self.shared
                .now_ms()
                .saturating_add(self.shared.idle_ms.load(Ordering::Acquire))
        } else {
            self.idle_end_ms()
        };
        self.shared.epoch_wall + Duration::from_millis(end.min(idle))
    }

    /// The end of its life, in wall time.
    #[must_use]
    pub fn end_time(&self) -> SystemTime {
        self.shared.epoch_wall + Duration::from_millis(self.shared.end_ms.load(Ordering::Acquire))
    }

    /// The idle timeout in force.
    #[must_use]
    pub fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.shared.idle_ms.load(Ordering::Acquire))
    }

    fn idle_end_ms(&self) -> u64 {
        let last = if self.shared.users.load(Ordering::Acquire) > 0 {
            self.shared.now_ms()
        } else {
            self.shared.last_use_ms.load(Ordering::Acquire)
        };
        last.saturating_add(self.shared.idle_ms.load(Ordering::Acquire))
    }
}

impl Shared {
    fn now_ms(&self) -> u64 {
        millis(self.epoch.elapsed())
    }

    fn touch(&self) {
        self.last_use_ms.fetch_max(self.now_ms(), Ordering::AcqRel);
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        // The time first: between the two the workspace must not look idle since long.
        self.0.touch();
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX / 4)
        .min(u64::MAX / 4)
}

/// Milliseconds since 1970, for records.
#[must_use]
pub fn unix_ms(time: SystemTime) -> u64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The inverse of [`unix_ms`].
#[must_use]
pub fn from_unix_ms(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idle_timeout_starts_when_the_last_user_goes() {
        let lease = Lease::new(Duration::from_secs(10), Duration::from_secs(100));
        let user = lease.hold();
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
    async fn lifetime_ends_a_workspace_in_use() {
        let lease = Lease::new(Duration::from_secs(10), Duration::from_secs(20));
        let _user = lease.hold();
        tokio::time::advance(Duration::from_secs(19)).await;
        assert!(!lease.is_over());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(lease.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn renew_moves_both_ends() {
        let lease = Lease::new(Duration::from_secs(10), Duration::from_secs(20));
        tokio::time::advance(Duration::from_secs(9)).await;
        lease.renew(Some(Duration::from_secs(30)), Some(Duration::from_secs(40)));
        assert_eq!(lease.deadline() - Instant::now(), Duration::from_secs(30));
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(!lease.is_idle());
        assert!(!lease.is_over());
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(lease.is_over());
    }
}

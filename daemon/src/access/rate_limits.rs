//! Rates of calls, one limiter for each tenant and kind of rate.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota};
use parking_lot::Mutex;

use super::tenant_limits::RateLimit;
use super::tenant_name::TenantName;

/// Kind of calls that a rate limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum RateKind {
    /// All calls.
    Requests,
    /// CreateWorkspace.
    Creates,
}

/// Limiters of all tenants that have a rate.
#[derive(Debug, Default)]
pub(super) struct RateLimits {
    limiters: Mutex<HashMap<(TenantName, RateKind), KnownLimiter>>,
    clock: DefaultClock,
}

#[derive(Debug)]
struct KnownLimiter {
    rate: RateLimit,
    limiter: Arc<DefaultDirectRateLimiter>,
}

impl RateLimits {
    /// Counts a call. Returns the time after which it may be repeated if the rate is exceeded.
    pub(super) fn check(
        &self,
        tenant: &TenantName,
        kind: RateKind,
        rate: RateLimit,
    ) -> Result<(), Duration> {
        let limiter = self.limiter(tenant, kind, rate);
        limiter
            .check()
            .map_err(|until| until.wait_time_from(self.clock.now()))
    }

    /// Returns the limiter of a tenant; a new one if its rate has changed.
    fn limiter(
        &self,
        tenant: &TenantName,
        kind: RateKind,
        rate: RateLimit,
    ) -> Arc<DefaultDirectRateLimiter> {
        let mut limiters = self.limiters.lock();
        let key = (tenant.clone(), kind);
        if let Some(known) = limiters.get(&key).filter(|known| known.rate == rate) {
            return Arc::clone(&known.limiter);
        }
        let interval = rate.period / rate.count.get();
        let quota = Quota::with_period(interval).unwrap_or(Quota::per_second(rate.count));
        let limiter = DefaultDirectRateLimiter::direct(quota.allow_burst(rate.burst));
        let limiter = Arc::new(limiter);
        let known = KnownLimiter {
            rate,
            limiter: Arc::clone(&limiter),
        };
        limiters.insert(key, known);
        limiter
    }
}

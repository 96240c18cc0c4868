//! Permits for work of which only so much may be done at the same time, for instance saves of artifacts.
//!
//! With authentication one tenant gets at most half of them: otherwise clients that upload slowly on purpose could keep
//! all other tenants waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::tenant_name::TenantName;

/// Permits of all tenants.
#[derive(Debug)]
pub struct TenantPermits {
    all: Arc<Semaphore>,
    /// Maximum number of permits of one tenant.
    of_tenant_max: usize,
    /// Permits of the tenants that have one or wait for one.
    of_tenants: Mutex<HashMap<TenantName, Weak<Semaphore>>>,
}

/// Permit of one tenant. Dropping it gives the permit back.
#[derive(Debug)]
pub struct TenantPermit {
    _all: OwnedSemaphorePermit,
    _of_tenant: OwnedSemaphorePermit,
}

impl TenantPermits {
    /// Makes `count` permits. `is_shared` is `true` if there may be several tenants.
    #[must_use]
    pub fn new(count: usize, is_shared: bool) -> Self {
        Self {
            all: Arc::new(Semaphore::new(count)),
            of_tenant_max: if is_shared { count.div_ceil(2) } else { count },
            of_tenants: Mutex::default(),
        }
    }

    /// Waits for a permit. Permits of one tenant are given in the order of the calls.
    ///
    /// # Errors
    /// Never, since no one closes the semaphores.
    pub async fn acquire(&self, tenant: &TenantName) -> Result<TenantPermit, AcquireError> {
        let of_tenant = self.of_tenant(tenant).acquire_owned().await?;
        let all = Arc::clone(&self.all).acquire_owned().await?;
        Ok(TenantPermit {
            _all: all,
            _of_tenant: of_tenant,
        })
    }

    fn of_tenant(&self, tenant: &TenantName) -> Arc<Semaphore> {
        // No holder panics.
        let mut tenants = self
            .of_tenants
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(permits) = tenants.get(tenant).and_then(Weak::upgrade) {
            return permits;
        }
        tenants.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(self.of_tenant_max));
        tenants.insert(tenant.clone(), Arc::downgrade(&permits));
        permits
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Takes permits of a tenant until it would have to wait.
    fn take_all(permits: &TenantPermits, tenant: &str) -> Vec<TenantPermit> {
        let tenant = TenantName::parse(tenant).expect("a name");
        let take = || permits.acquire(&tenant).now_or_never();
        std::iter::from_fn(take)
            .map(|permit| permit.expect("open"))
            .collect()
    }

    #[test]
    fn one_tenant_has_at_most_half_of_the_permits() {
        let permits = TenantPermits::new(5, true);
        let of_a = take_all(&permits, "a");
        assert_eq!(of_a.len(), 3);
        assert_eq!(take_all(&permits, "b").len(), 2, "given back at once");
        drop(of_a);
        assert_eq!(take_all(&permits, "b").len(), 3);
        assert_eq!(take_all(&TenantPermits::new(1, true), "a").len(), 1);
    }

    #[test]
    fn without_tenants_one_caller_has_all_permits() {
        assert_eq!(take_all(&TenantPermits::new(5, false), "default").len(), 5);
    }
}

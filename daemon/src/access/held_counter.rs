//! Counters of what tenants hold of a resource. A unit is reserved before the thing is taken, and given back when the
//! thing ends.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::tenant_name::TenantName;
use crate::error::{Error, Result};

/// Number of units of one resource that each tenant holds. Clones share it.
#[derive(Debug, Clone)]
pub struct HeldCounter {
    resource: &'static str,
    held: Arc<Mutex<HashMap<TenantName, u64>>>,
}

/// Unit of a resource that a tenant holds. Dropping it gives the unit back.
#[derive(Debug)]
pub struct HeldUnit {
    counter: HeldCounter,
    tenant: TenantName,
}

impl HeldCounter {
    /// Creates a counter of a resource, which is named like its quota.
    pub fn new(resource: &'static str) -> Self {
        Self {
            resource,
            held: Arc::default(),
        }
    }

    /// Reserves a unit for a tenant, if it holds fewer than `limit`; `None` means unlimited.
    ///
    /// # Errors
    /// [`Error::TenantQuota`].
    pub fn take(&self, tenant: &TenantName, limit: Option<u64>) -> Result<HeldUnit> {
        let mut held = self.held.lock();
        let used = held.get(tenant).copied().unwrap_or_default();
        if let Some(limit) = limit.filter(|limit| used >= *limit) {
            return Err(Error::tenant_quota(tenant, self.resource, used, limit));
        }
        held.insert(tenant.clone(), used + 1);
        Ok(HeldUnit {
            counter: self.clone(),
            tenant: tenant.clone(),
        })
    }

    /// Reserves a unit that the tenant has already, whatever its quota is.
    #[must_use]
    pub fn adopt(&self, tenant: &TenantName) -> HeldUnit {
        *self.held.lock().entry(tenant.clone()).or_default() += 1;
        HeldUnit {
            counter: self.clone(),
            tenant: tenant.clone(),
        }
    }

    /// Returns the number of units that a tenant holds.
    pub fn count(&self, tenant: &TenantName) -> u64 {
        self.held.lock().get(tenant).copied().unwrap_or_default()
    }
}

impl HeldUnit {
    /// Returns the tenant that holds the unit.
    pub fn tenant(&self) -> &TenantName {
        &self.tenant
    }
}

impl Drop for HeldUnit {
    fn drop(&mut self) {
        let mut held = self.counter.held.lock();
        if let Some(count) = held.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_threads_take_at_most_the_limit_and_return_all() {
        let counter = HeldCounter::new("execs");
        let tenant = TenantName::default();
        let take = || counter.take(&tenant, Some(7));
        let taken: Vec<Result<HeldUnit>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..50).map(|_| scope.spawn(take)).collect();
            let results = threads.into_iter().map(|thread| thread.join());
            results.map(|result| result.expect("no panic")).collect()
        });
        assert_eq!(taken.iter().filter(|unit| unit.is_ok()).count(), 7);
        assert_eq!(counter.count(&tenant), 7);
        let adopted = counter.adopt(&tenant);
        assert_eq!(counter.count(&tenant), 8);
        drop((taken, adopted));
        assert_eq!(counter.count(&tenant), 0);
    }

    #[test]
    fn a_limit_of_zero_refuses_all_and_no_limit_refuses_none() {
        let counter = HeldCounter::new("connections");
        let tenant = TenantName::default();
        let refused = counter.take(&tenant, Some(0)).expect_err("none at all");
        assert!(matches!(
            refused,
            Error::TenantQuota {
                resource: "connections",
                used: 0,
                limit: 0,
                ..
            }
        ));
        let units: Vec<_> = (0..100).map(|_| counter.take(&tenant, None)).collect();
        assert!(units.iter().all(Result::is_ok));
    }
}

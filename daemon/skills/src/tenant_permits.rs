//! Permits for work of which only so much may be done at the same time, for instance saves of artifacts.
//!
//! Where there are several tenants, one gets at most half of the permits, and those that have one leave the last one to
//! a tenant without any. Otherwise clients that upload slowly on purpose could keep all other tenants waiting. A permit
//! that is given back goes to the waiting tenant with the fewest.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Holder of the permits for work of the daemon itself. No tenant has this name.
pub const DAEMON_HOLDER: &str = "";

/// Permits of all tenants. Clones share them.
#[derive(Debug, Clone)]
pub struct TenantPermits(Arc<PermitTable>);

#[derive(Debug)]
struct PermitTable {
    /// Number of permits of all tenants.
    count: usize,
    /// Maximum number of permits of one tenant.
    of_tenant_max: usize,
    /// Number of permits that only tenants without one get.
    reserved: usize,
    state: Mutex<PermitState>,
}

#[derive(Debug, Default)]
struct PermitState {
    /// Number of permits that tenants hold.
    granted: usize,
    /// Number of callers that have had to wait.
    arrivals: u64,
    /// Tenants that have a permit or wait for one.
    tenants: HashMap<Arc<str>, TenantShare>,
}

#[derive(Debug, Default)]
struct TenantShare {
    held: usize,
    /// Callers in the order of their arrival. Those that have gone away stay until their turn, or until another one
    /// arrives.
    waiting: VecDeque<WaitingCaller>,
}

#[derive(Debug)]
struct WaitingCaller {
    arrival: u64,
    sender: oneshot::Sender<TenantPermit>,
}

/// Permit of one tenant. Dropping it gives the permit back.
#[derive(Debug)]
pub struct TenantPermit {
    table: Arc<PermitTable>,
    tenant: Arc<str>,
}

// === impl TenantPermits ===

impl TenantPermits {
    /// Makes `count` permits. `is_shared` is `true` if there may be several tenants.
    pub fn new(count: usize, is_shared: bool) -> Self {
        Self(Arc::new(PermitTable {
            count,
            of_tenant_max: if is_shared { count.div_ceil(2) } else { count },
            reserved: usize::from(is_shared),
            state: Mutex::default(),
        }))
    }

    /// Waits for a permit. Permits of one tenant are granted in the order of the calls.
    pub async fn acquire(&self, tenant: &str) -> TenantPermit {
        loop {
            let waiting = match self.0.take_or_queue(tenant) {
                Ok(permit) => return permit,
                Err(waiting) => waiting,
            };
            // The table drops no sender of a caller that still waits.
            if let Ok(permit) = waiting.await {
                return permit;
            }
        }
    }
}

// === impl PermitTable ===

impl PermitTable {
    /// Takes a permit, or queues the caller behind those of its tenant.
    fn take_or_queue(
        self: &Arc<Self>,
        tenant: &str,
    ) -> Result<TenantPermit, oneshot::Receiver<TenantPermit>> {
        let tenant: Arc<str> = tenant.into();
        let mut state = self.state.lock();
        let PermitState {
            granted,
            arrivals,
            tenants,
        } = &mut *state;
        let share = tenants.entry(Arc::clone(&tenant)).or_default();
        share.waiting.retain(|caller| !caller.sender.is_closed());
        if share.waiting.is_empty() && self.allows(*granted, share.held) {
            *granted += 1;
            share.held += 1;
            let table = Arc::clone(self);
            return Ok(TenantPermit { table, tenant });
        }
        let (sender, receiver) = oneshot::channel();
        *arrivals += 1;
        share.waiting.push_back(WaitingCaller {
            arrival: *arrivals,
            sender,
        });
        Err(receiver)
    }

    /// Returns `true` if a tenant that holds `held` permits may have another one while `granted` are held by all.
    fn allows(&self, granted: usize, held: usize) -> bool {
        let reserved = if held == 0 { 0 } else { self.reserved };
        held < self.of_tenant_max && granted + reserved < self.count
    }

    /// Takes a permit back, and gives the free ones to callers that wait.
    fn give_back(self: &Arc<Self>, tenant: &Arc<str>) {
        let mut state = self.state.lock();
        state.granted = state.granted.saturating_sub(1);
        if let Some(share) = state.tenants.get_mut(tenant) {
            share.held = share.held.saturating_sub(1);
        }
        let mut grants = Vec::new();
        while let Some(next) = state.next_tenant(self) {
            if let Some(sender) = state.grant(&next) {
                let table = Arc::clone(self);
                let permit = TenantPermit {
                    table,
                    tenant: next,
                };
                grants.push((sender, permit));
            }
        }
        state.tenants.retain(|_, share| !share.is_idle());
        drop(state);
        for (sender, permit) in grants {
            // A caller that has gone away meanwhile drops its permit, which comes back here: the lock must be free.
            drop(sender.send(permit));
        }
    }
}

// === impl PermitState ===

impl PermitState {
    /// Returns the tenant that gets the next permit: of those that wait and may have one, the one with the fewest, and
    /// of several the one whose caller has waited for the longest time.
    fn next_tenant(&self, table: &PermitTable) -> Option<Arc<str>> {
        let waiting = self.tenants.iter().filter_map(|(tenant, share)| {
            let first = share.waiting.front()?;
            let may_have = table.allows(self.granted, share.held);
            may_have.then_some(((share.held, first.arrival), tenant))
        });
        let (_, tenant) = waiting.min_by_key(|(order, _)| *order)?;
        Some(Arc::clone(tenant))
    }

    /// Counts a permit for the first caller that waits for one of a tenant; `None` if that has gone away.
    fn grant(&mut self, tenant: &Arc<str>) -> Option<oneshot::Sender<TenantPermit>> {
        let share = self.tenants.get_mut(tenant)?;
        let first = share.waiting.pop_front()?;
        if first.sender.is_closed() {
            return None;
        }
        share.held += 1;
        self.granted += 1;
        Some(first.sender)
    }
}

// === impl TenantShare ===

impl TenantShare {
    fn is_idle(&self) -> bool {
        self.held == 0 && self.waiting.is_empty()
    }
}

impl Drop for TenantPermit {
    fn drop(&mut self) {
        self.table.give_back(&self.tenant);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::task_spawner::TaskSpawner;

    /// Takes permits of a tenant until it would have to wait.
    async fn take_all(permits: &TenantPermits, tenant: &str) -> Vec<TenantPermit> {
        let mut taken = Vec::new();
        while let Ok(permit) = tokio::time::timeout(Duration::ZERO, permits.acquire(tenant)).await {
            taken.push(permit);
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn one_tenant_has_at_most_half_of_the_permits() {
        let permits = TenantPermits::new(6, true);
        let of_a = take_all(&permits, "a").await;
        assert_eq!(of_a.len(), 3);
        let given_back = take_all(&permits, "b").await.len();
        assert_eq!(given_back, 2, "one is reserved");
        drop(of_a);
        assert_eq!(take_all(&permits, "b").await.len(), 3);
        let single = TenantPermits::new(1, true);
        assert_eq!(take_all(&single, "a").await.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_kept_for_a_tenant_without_one() {
        let permits = TenantPermits::new(32, true);
        let _of_a = take_all(&permits, "a").await;
        let _of_c = take_all(&permits, "c").await;
        assert_eq!(take_all(&permits, "b").await.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_free_permit_goes_to_the_waiting_tenant_with_the_fewest() {
        let permits = TenantPermits::new(4, true);
        let mut of_a = take_all(&permits, "a").await;
        let of_c = permits.acquire("c").await;
        let of_b = permits.acquire("b").await;
        let tasks = TaskSpawner::default();
        let wait = |tenant: &'static str| {
            let permits = permits.clone();
            tasks.spawn(async move { permits.acquire(tenant).await })
        };
        let (again, gone, first) = (wait("a"), wait("d"), wait("d"));
        tokio::task::yield_now().await;
        gone.abort();
        gone.await.expect_err("gone");
        drop(of_a.pop());
        let of_d = first.await.expect("tenant d has none");
        assert!(!again.is_finished());
        drop((of_b, of_c, of_d));
        let _second = again.await.expect("tenant a has one");
        assert_eq!(of_a.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_were_cancelled_do_not_pile_up() {
        let permits = TenantPermits::new(1, true);
        let _held = permits.acquire("a").await;
        let mut waiting = std::pin::pin!(permits.acquire("a"));
        let waited = tokio::time::timeout(Duration::ZERO, &mut waiting).await;
        waited.expect_err("the permit is held");
        for _ in 0..10 {
            assert!(take_all(&permits, "a").await.is_empty());
        }
        let queue = permits.0.state.lock().tenants["a"].waiting.len();
        assert_eq!(queue, 2, "the one that waits, and the last cancelled one");
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_can_take_all_permits_without_tenants() {
        let permits = TenantPermits::new(5, false);
        assert_eq!(take_all(&permits, DAEMON_HOLDER).await.len(), 5);
    }
}

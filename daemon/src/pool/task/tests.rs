//! Decisions of a pool over a launcher that only counts, on a paused clock.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::task::{JoinHandle, yield_now};
use tonic_types::StatusExt;

use super::*;
use crate::access::TenantName;
use crate::config::{Config, PoolConfig};
use crate::engine::{ContainerLimits, ImageInfo};
use crate::error::Error;
use crate::pool::TenantShare;
use crate::shutdown::Tasks;

/// Launcher that records what the pool asks for. Numbers count up from 0.
#[derive(Debug, Default)]
struct FakeLauncher(Mutex<LaunchLog>);

#[derive(Debug, Default)]
struct LaunchLog {
    limits: Vec<ContainerLimits>,
    discarded: Vec<u32>,
}

impl FakeLauncher {
    fn lock(&self) -> MutexGuard<'_, LaunchLog> {
        self.0
            .lock()
            .expect("no test panics while it holds the lock")
    }
}

impl SlotLauncher for FakeLauncher {
    fn launch(&self, _pool: &Arc<Pool>, limits: ContainerLimits) -> Result<u32> {
        let mut launched = self.lock();
        launched.limits.push(limits);
        let number = u32::try_from(launched.limits.len() - 1);
        Ok(number.unwrap_or(u32::MAX))
    }

    fn discard(&self, number: u32) {
        self.lock().discarded.push(number);
    }
}

fn image() -> ImageInfo {
    ImageInfo {
        reference: "image:latest".to_owned(),
        id: "sha256:0".to_owned(),
        ..ImageInfo::default()
    }
}

/// Pool under test with its launcher.
struct Bench {
    pool: Arc<Pool>,
    launcher: Arc<FakeLauncher>,
    tasks: Tasks,
}

impl Bench {
    /// Opens a pool of at most 4 slots whose queue has 2 places, each for at most 10 s.
    async fn open(warm: usize) -> Self {
        Self::open_with(warm, 4, 2).await
    }

    /// Opens a pool of at most 16 slots whose queue has `queue_max` places.
    async fn open_with_queue(warm: usize, queue_max: usize) -> Self {
        Self::open_with(warm, 16, queue_max).await
    }

    async fn open_with(warm: usize, max: usize, queue_max: usize) -> Self {
        let defaults = Config::from_toml("").expect("defaults").config;
        let config = PoolConfig {
            warm,
            max,
            queue_max,
            claim_timeout: Duration::from_secs(10),
            ..defaults.pools.first().expect("default pool").clone()
        };
        let (tasks, launcher) = (Tasks::default(), Arc::new(FakeLauncher::default()));
        let pool = Pool::start(
            &tasks,
            config,
            image(),
            Arc::clone(&launcher) as Arc<dyn SlotLauncher>,
            Arc::default(),
        );
        pool.open().await;
        let bench = Self {
            pool,
            launcher,
            tasks,
        };
        bench.settle().await;
        bench
    }

    /// Lets the pool's task handle every message that was sent.
    async fn settle(&self) {
        for _ in 0..20 {
            yield_now().await;
        }
    }

    async fn report(&self, number: u32, report: SlotReport) {
        self.pool.report(number, report).await;
        self.settle().await;
    }

    fn launches(&self) -> usize {
        self.launcher.lock().limits.len()
    }

    fn discarded(&self) -> Vec<u32> {
        self.launcher.lock().discarded.clone()
    }

    async fn claim(&self) -> Result<SlotReservation> {
        self.pool.claim(self.pool.config.limits()).await
    }

    /// Sends a claim and leaves it in the queue.
    async fn claim_in_background(&self) -> JoinHandle<Result<SlotReservation>> {
        let pool = Arc::clone(&self.pool);
        let limits = self.pool.config.limits();
        let claim = self.tasks.spawn(async move { pool.claim(limits).await });
        self.settle().await;
        claim
    }

    /// Sends a claim of a tenant and leaves it in the queue.
    async fn claim_as(&self, tenant: &str, weight: u32) -> JoinHandle<Result<SlotReservation>> {
        let pool = Arc::clone(&self.pool);
        let limits = self.pool.config.limits();
        let tenant = TenantName::parse(tenant).expect("name");
        let share = TenantShare { tenant, weight };
        let claim = async move { pool.claim_for(share, limits).await };
        let claim = self.tasks.spawn(claim);
        self.settle().await;
        claim
    }

    fn engine_away() -> SlotReport {
        let message = "no answer".to_owned();
        SlotReport::BootFailed(Error::EngineUnavailable { message })
    }
}

async fn reservation(claim: JoinHandle<Result<SlotReservation>>) -> SlotReservation {
    claim.await.expect("joined").expect("a slot")
}

#[tokio::test(start_paused = true)]
async fn claim_takes_a_warm_slot_and_refills_at_once() {
    let bench = Bench::open(1).await;
    bench.report(0, SlotReport::Ready).await;
    assert_eq!((bench.pool.snapshot().warm, bench.launches()), (1, 1));
    let reservation = bench.claim().await.expect("warm");
    assert_eq!(reservation.number, 0);
    bench.settle().await;
    assert_eq!(bench.launches(), 2, "the claim itself refills");
    let snapshot = bench.pool.snapshot();
    assert_eq!(
        (snapshot.warm, snapshot.booting, snapshot.claimed),
        (0, 1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_boots_before_adopted_slots_are_known() {
    let bench = Bench::open(2).await;
    let config = bench.pool.config.clone();
    let launcher = Arc::new(FakeLauncher::default());
    let pool = Pool::start(
        &bench.tasks,
        config,
        image(),
        Arc::clone(&launcher) as Arc<dyn SlotLauncher>,
        Arc::default(),
    );
    pool.adopt(100, true, None).await;
    pool.report(100, SlotReport::Ready).await;
    bench.settle().await;
    assert_eq!(launcher.lock().limits.len(), 0);
    pool.open().await;
    bench.settle().await;
    assert_eq!(
        launcher.lock().limits.len(),
        1,
        "one of two is warm already"
    );
}

#[tokio::test(start_paused = true)]
async fn queue_is_served_in_order_and_refuses_what_exceeds_it() {
    let bench = Bench::open(0).await;
    let first = bench.claim_in_background().await;
    let second = bench.claim_in_background().await;
    assert_eq!(bench.pool.snapshot().waiting, 2);
    let refused = bench.claim().await.expect_err("the queue is full");
    assert!(matches!(refused, Error::PoolExhausted { .. }), "{refused}");
    let details = tonic::Status::from(refused).get_error_details();
    assert!(details.retry_info().is_some(), "{details:?}");
    assert_eq!(bench.launches(), 2, "a slot boots for each waiting request");
    bench.report(1, SlotReport::Ready).await;
    bench.report(0, SlotReport::Ready).await;
    assert_eq!(reservation(first).await.number, 1);
    assert_eq!(reservation(second).await.number, 0);
}

#[tokio::test(start_paused = true)]
async fn waiting_request_is_refused_at_its_deadline() {
    let bench = Bench::open(0).await;
    let start = Instant::now();
    let refused = bench.claim().await.expect_err("no slot becomes ready");
    assert!(refused.to_string().contains("10s"), "{refused}");
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    // A slot that becomes ready later has no request.
    bench.report(0, SlotReport::Ready).await;
    assert_eq!(bench.discarded(), [0]);
}

#[tokio::test(start_paused = true)]
async fn dropped_reservation_returns_the_slot_and_a_kept_one_does_not() {
    let bench = Bench::open(1).await;
    bench.report(0, SlotReport::Ready).await;
    drop(bench.claim().await.expect("warm"));
    bench.settle().await;
    let again = bench.claim().await.expect("returned");
    assert_eq!(again.number, 0);
    again.keep();
    bench.settle().await;
    let snapshot = bench.pool.snapshot();
    assert_eq!((snapshot.warm, snapshot.claimed), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn slot_that_reports_ready_twice_is_handed_out_once() {
    let bench = Bench::open(1).await;
    bench.report(0, SlotReport::Ready).await;
    bench.report(0, SlotReport::Withdrawn).await;
    assert_eq!(bench.pool.snapshot().warm, 0);
    bench.report(0, SlotReport::Ready).await;
    bench.report(0, SlotReport::Ready).await;
    let first = bench.claim().await.expect("warm");
    bench.report(0, SlotReport::Ready).await;
    let second = bench.claim_in_background().await;
    assert!(!second.is_finished(), "the slot is reserved");
    drop(first);
    assert_eq!(reservation(second).await.number, 0);
}

#[tokio::test(start_paused = true)]
async fn slot_withdrawn_while_reserved_waits_for_its_guest() {
    let bench = Bench::open(1).await;
    bench.report(0, SlotReport::Ready).await;
    let first = bench.claim().await.expect("warm");
    bench.report(0, SlotReport::Withdrawn).await;
    drop(first);
    bench.settle().await;
    assert_eq!(bench.pool.snapshot().warm, 0, "its guest is silent");
    bench.report(0, SlotReport::Ready).await;
    assert_eq!(bench.pool.snapshot().warm, 1);
}

#[tokio::test(start_paused = true)]
async fn caller_that_goes_away_loses_no_slot() {
    let bench = Bench::open(0).await;
    let gone = bench.claim_in_background().await;
    gone.abort();
    bench.settle().await;
    assert_eq!(bench.pool.snapshot().waiting, 0, "it left the queue");
    let waiting = bench.claim_in_background().await;
    bench.report(0, SlotReport::Ready).await;
    assert_eq!(reservation(waiting).await.number, 0);
}

#[tokio::test(start_paused = true)]
async fn failed_boot_is_tried_again_after_its_back_off() {
    let bench = Bench::open(2).await;
    assert_eq!(bench.launches(), 2);
    for number in [0, 1] {
        bench
            .report(number, SlotReport::BootFailed(Error::Draining))
            .await;
        bench.report(number, SlotReport::Removed).await;
    }
    assert_eq!(bench.launches(), 2);
    assert!(!*bench.pool.is_healthy.borrow());
    assert!(bench.pool.snapshot().problem.is_some());
    tokio::time::sleep(Duration::from_millis(201)).await;
    assert_eq!(bench.launches(), 3, "one boot finds out whether it works");
    bench.report(2, SlotReport::Ready).await;
    assert_eq!(bench.launches(), 4);
    assert!(*bench.pool.is_healthy.borrow());
    assert!(bench.pool.snapshot().problem.is_none());
}

#[tokio::test(start_paused = true)]
async fn absent_engine_refuses_waiting_and_new_requests() {
    let bench = Bench::open(0).await;
    let waiting = bench.claim_in_background().await;
    bench.report(0, Bench::engine_away()).await;
    let refused = waiting.await.expect("joined").expect_err("no engine");
    assert!(
        matches!(refused, Error::EngineUnavailable { .. }),
        "{refused}"
    );
    let refused = bench.claim().await.expect_err("no engine");
    assert!(
        matches!(refused, Error::EngineUnavailable { .. }),
        "{refused}"
    );
}

#[tokio::test(start_paused = true)]
async fn limits_of_a_request_get_a_slot_of_their_own() {
    let bench = Bench::open(1).await;
    let limits = ContainerLimits {
        pids: 7,
        ..bench.pool.config.limits()
    };
    let pool = Arc::clone(&bench.pool);
    let claim = bench.tasks.spawn(async move { pool.claim(limits).await });
    bench.settle().await;
    assert_eq!(bench.launcher.lock().limits.last(), Some(&limits));
    let failed = SlotReport::BootFailed(Error::Draining);
    bench.report(1, failed).await;
    claim.await.expect("joined").expect_err("it did not start");
    let problem = bench.pool.snapshot().problem;
    assert!(problem.is_none(), "its limits may be the cause");

    let pool = Arc::clone(&bench.pool);
    let claim = bench.tasks.spawn(async move { pool.claim(limits).await });
    bench.settle().await;
    bench.report(2, SlotReport::Ready).await;
    let own = reservation(claim).await;
    drop(own);
    bench.settle().await;
    assert_eq!(bench.discarded(), [2], "no other request can use it");
}

#[tokio::test(start_paused = true)]
async fn limits_of_a_request_take_no_place_that_the_queue_needs() {
    let bench = Bench::open_with(0, 1, 2).await;
    let waiting = bench.claim_in_background().await;
    let failed = SlotReport::BootFailed(Error::Draining);
    bench.report(0, failed).await;
    bench.report(0, SlotReport::Removed).await;
    // The pool waits before it boots the next one, and has a free place meanwhile.
    let limits = ContainerLimits {
        pids: 7,
        ..bench.pool.config.limits()
    };
    let refused = bench.pool.claim(limits).await.expect_err("not its place");
    assert!(matches!(refused, Error::PoolExhausted { .. }), "{refused}");
    tokio::time::sleep(Duration::from_millis(201)).await;
    bench.report(1, SlotReport::Ready).await;
    let _served = reservation(waiting).await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_boots_for_a_tenant_counts_in_its_share() {
    let bench = Bench::open_with(0, 2, 8).await;
    let pool = Arc::clone(&bench.pool);
    let tenant = TenantName::parse("a").expect("name");
    let limits = ContainerLimits {
        pids: 7,
        ..bench.pool.config.limits()
    };
    let share = TenantShare { tenant, weight: 1 };
    let own = async move { pool.claim_for(share, limits).await };
    let _own = bench.tasks.spawn(own);
    bench.settle().await;
    let first = bench.claim_as("a", 1).await;
    let second = bench.claim_as("b", 1).await;
    bench.report(1, SlotReport::Ready).await;
    assert!(second.is_finished() && !first.is_finished());
}

#[tokio::test(start_paused = true)]
async fn resize_removes_surplus_slots() {
    let bench = Bench::open(3).await;
    for number in 0..3 {
        bench.report(number, SlotReport::Ready).await;
    }
    bench.pool.resize(1).await;
    assert_eq!(bench.discarded(), [2, 1]);
    assert_eq!(bench.pool.snapshot().warm, 1);
    bench.pool.resize(2).await;
    assert_eq!(bench.launches(), 4);
}

#[tokio::test(start_paused = true)]
async fn failed_workspaces_without_a_container_free_their_place() {
    let bench = Bench::open(0).await;
    for number in 0..4 {
        let claim = bench.claim_in_background().await;
        bench.report(number, SlotReport::Ready).await;
        reservation(claim).await.keep();
    }
    let waiting = bench.claim_in_background().await;
    assert_eq!(bench.launches(), 4, "the pool is at its maximum");
    bench.report(3, SlotReport::Vacated).await;
    assert_eq!(bench.launches(), 5);
    bench.report(4, SlotReport::Ready).await;
    assert_eq!(reservation(waiting).await.number, 4);
}

#[tokio::test(start_paused = true)]
async fn closed_pool_boots_nothing_and_refuses_every_request() {
    let bench = Bench::open(0).await;
    let waiting = bench.claim_in_background().await;
    bench.pool.close().await;
    let refused = waiting.await.expect("joined").expect_err("draining");
    assert!(matches!(refused, Error::Draining), "{refused}");
    let refused = bench.claim().await.expect_err("draining");
    assert!(matches!(refused, Error::Draining), "{refused}");
    bench.report(0, SlotReport::Ready).await;
    assert_eq!((bench.discarded(), bench.launches()), (vec![0], 1));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_claims_delay_another_tenant_by_two_refills() {
    let bench = Bench::open_with_queue(0, 2000).await;
    let mut queued = Vec::new();
    for _ in 0..1000 {
        queued.push(bench.claim_as("a", 1).await);
    }
    let other = bench.claim_as("b", 1).await;
    // The first refill may go to either; the second one goes to the tenant that holds nothing.
    for number in 0..2 {
        bench.report(number, SlotReport::Ready).await;
    }
    bench.settle().await;
    assert!(other.is_finished(), "it waits longer than two refills");
    let served = queued.iter().filter(|claim| claim.is_finished()).count();
    assert_eq!(served, 1);
    reservation(other).await.keep();
}

#[tokio::test(start_paused = true)]
async fn slots_are_shared_by_weight_while_tenants_wait() {
    let bench = Bench::open_with_queue(0, 100).await;
    let mut claims = Vec::new();
    for _ in 0..12 {
        claims.push((1, bench.claim_as("light", 1).await));
        claims.push((3, bench.claim_as("heavy", 3).await));
    }
    for number in 0..8 {
        bench.report(number, SlotReport::Ready).await;
    }
    bench.settle().await;
    let served = |wanted: u32| {
        let of_tenant = claims.iter().filter(|(weight, _)| *weight == wanted);
        of_tenant.filter(|(_, claim)| claim.is_finished()).count()
    };
    assert_eq!((served(1), served(3)), (2, 6));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_of_one_tenant_lets_another_in() {
    let bench = Bench::open_with_queue(0, 4).await;
    let mut queued = Vec::new();
    for _ in 0..4 {
        queued.push(bench.claim_as("a", 1).await);
    }
    let claim = bench.claim_as("a", 1).await;
    let refused = claim.await.expect("joined").expect_err("its queue is full");
    assert!(matches!(refused, Error::PoolExhausted { .. }), "{refused}");
    let first = bench.claim_as("b", 1).await;
    let newest = queued.pop().expect("four").await.expect("joined");
    assert!(
        newest
            .expect_err("evicted")
            .to_string()
            .contains("other tenants")
    );
    let _second = bench.claim_as("b", 1).await;
    assert!(
        queued.pop().expect("three").is_finished(),
        "both have two now"
    );
    assert!(
        bench.claim_as("b", 1).await.is_finished(),
        "no tenant has more"
    );
    assert!(!first.is_finished() && queued.iter().all(|claim| !claim.is_finished()));
}

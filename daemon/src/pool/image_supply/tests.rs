//! Tests of the supply of an image over the fake engine, on a paused clock.

use tokio::task::yield_now;

use super::*;
use crate::config::{Config, PoolConfig};
use crate::engine::ContainerLimits;
use crate::engine::fake::{EngineOperation, FakeEngine};
use crate::pool::SlotLauncher;
use crate::shutdown::Tasks;

const IMAGE: &str = "registry.example/tools:1";

/// Launcher that no test makes launch anything.
#[derive(Debug)]
struct NoLauncher;

impl SlotLauncher for NoLauncher {
    fn launch(&self, _pool: &Arc<Pool>, _limits: ContainerLimits) -> Result<u32> {
        Ok(0)
    }

    fn discard(&self, _number: u32) {}
}

/// Pool without its image, and the task that supplies it.
struct Bench {
    engine: Arc<FakeEngine>,
    pool: Arc<Pool>,
    tasks: Tasks,
}

impl Bench {
    async fn start(pull: PullPolicy, is_needed: bool, prepare: impl FnOnce(&FakeEngine)) -> Self {
        let defaults = Config::from_toml("").expect("defaults").config;
        let config = PoolConfig {
            image: IMAGE.to_owned(),
            pull,
            warm: 1,
            ..defaults.pools.first().expect("default pool").clone()
        };
        let (tasks, engine) = (Tasks::default(), Arc::new(FakeEngine::new()));
        engine.remove_image(IMAGE);
        prepare(&engine);
        let pool = Pool::start_without_image(
            &tasks,
            config,
            is_needed,
            Arc::new(NoLauncher),
            Arc::default(),
        );
        pool.open().await;
        tasks.spawn(supply_image(Arc::clone(&engine) as _, Arc::clone(&pool)));
        let bench = Self {
            engine,
            pool,
            tasks,
        };
        bench.settle().await;
        bench
    }

    /// Lets the tasks handle everything that does not wait for the clock.
    async fn settle(&self) {
        for _ in 0..50 {
            yield_now().await;
        }
    }

    async fn advance(&self, time: Duration) {
        tokio::time::advance(time).await;
        self.settle().await;
    }

    fn problem(&self) -> DaemonProblem {
        self.pool.snapshot().problem.expect("a problem")
    }

    async fn claim_error(&self) -> Error {
        let limits = self.pool.config.limits();
        self.pool.claim(limits).await.expect_err("no image")
    }
}

#[tokio::test(start_paused = true)]
async fn pool_serves_after_the_operator_has_made_its_image() {
    let bench = Bench::start(PullPolicy::Never, false, |_| {}).await;
    let problem = bench.problem();
    assert_eq!(
        (problem.code, problem.is_error),
        ("pool.image_missing", false)
    );
    assert!(
        problem
            .message
            .contains("docker pull registry.example/tools:1")
    );
    let error = bench.claim_error().await;
    let expected = "pool default has no container free: the image registry.example/tools:1 is not there yet: \
                    `skillctl problems` says why";
    assert_eq!(error.to_string(), expected);
    assert!(*bench.pool.is_healthy.borrow(), "other pools serve");
    assert_eq!(bench.pool.snapshot().booting, 0);
    for _ in 0..3 {
        bench.advance(LOOK_INTERVAL).await;
    }
    assert_eq!(bench.problem().time, problem.time, "the same problem");
    assert_eq!(bench.engine.call_count(EngineOperation::FindImage), 4);
    assert_eq!(bench.engine.call_count(EngineOperation::PullImage), 0);
    bench.engine.add_image(IMAGE);
    bench.advance(LOOK_INTERVAL).await;
    assert_eq!(
        bench.pool.image().map(|image| image.reference.as_str()),
        Some(IMAGE)
    );
    let snapshot = bench.pool.snapshot();
    assert_eq!((snapshot.booting, snapshot.problem), (1, None));
    bench.tasks.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_background_pull_reports_its_progress_as_a_problem() {
    let bench = Bench::start(PullPolicy::Missing, true, FakeEngine::hold_pulls).await;
    assert_eq!(bench.problem().code, "pool.image_pulling");
    assert!(
        !*bench.pool.is_healthy.borrow(),
        "the default pool is needed"
    );
    bench.advance(REPORT_INTERVAL).await;
    let expected = "image registry.example/tools:1 is being pulled (25 %, 30.0 MiB of 120.0 MiB); the pool serves once \
                    it is there";
    assert_eq!(bench.problem().message, expected);
    bench.claim_error().await;
    bench.engine.release_pulls();
    bench.settle().await;
    assert_eq!(bench.pool.snapshot().problem, None);
    assert!(*bench.pool.is_healthy.borrow());
    assert_eq!(bench.engine.call_count(EngineOperation::PullImage), 1);
    bench.tasks.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn failed_pull_is_repeated_with_back_off() {
    let refusal = || Error::Engine {
        operation: "pull image",
        message: "unauthorized".to_owned(),
    };
    let fail = |engine: &FakeEngine| engine.fail_next(EngineOperation::PullImage, refusal());
    let bench = Bench::start(PullPolicy::Missing, false, fail).await;
    let problem = bench.problem();
    assert_eq!(
        (problem.code, problem.is_error),
        ("pool.image_pull_failed", true)
    );
    assert!(
        problem
            .message
            .contains("failed to pull image: unauthorized"),
        "{}",
        problem.message
    );
    assert!(
        problem.message.ends_with("skilld tries again after 5s"),
        "{}",
        problem.message
    );
    fail(&bench.engine);
    bench.advance(PULL_WAIT_MIN).await;
    assert!(bench.problem().message.ends_with("after 10s"));
    bench.advance(PULL_WAIT_MIN).await;
    assert_eq!(bench.engine.call_count(EngineOperation::PullImage), 2);
    bench.advance(PULL_WAIT_MIN).await;
    assert_eq!(bench.engine.call_count(EngineOperation::PullImage), 3);
    assert!(bench.pool.image().is_some());
    bench.tasks.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn pulled_image_that_cannot_be_used_is_reported_with_the_reason() {
    let describe = |engine: &FakeEngine| {
        engine.describe_image(ImageInfo {
            reference: IMAGE.to_owned(),
            id: "sha256:1".to_owned(),
            volumes: vec!["/data".to_owned()],
            ..ImageInfo::default()
        });
    };
    let bench = Bench::start(PullPolicy::Missing, false, describe).await;
    assert!(bench.problem().message.contains("it declares VOLUME /data"));
    bench.advance(PULL_WAIT_MIN).await;
    let problem = bench.problem();
    assert_eq!(
        (problem.code, problem.is_error),
        ("pool.image_unusable", true)
    );
    assert_eq!(bench.engine.call_count(EngineOperation::PullImage), 1);
    bench.tasks.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn engine_that_is_away_changes_nothing_about_the_image() {
    let bench = Bench::start(PullPolicy::Never, false, |_| {}).await;
    let problem = bench.problem();
    bench.engine.set_unavailable(true);
    bench.advance(LOOK_INTERVAL).await;
    assert_eq!(bench.problem(), problem);
    bench.engine.set_unavailable(false);
    bench.engine.add_image(IMAGE);
    bench.advance(LOOK_INTERVAL).await;
    assert!(bench.pool.image().is_some());
    bench.tasks.stop.cancel();
}

//! Tests of internal pools with the fake engine and the real guest: commands of the daemon itself, their bounds, and the
//! end of their containers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::server::{WAIT_MAX, guest_path, wait_until};
use bytes::Bytes;
use futures::stream;
use skilld::config::Config;
use skilld::engine::fake::{EngineOperation, FakeEngine};
use skilld::engine::{Engine, ImageInfo};
use skilld::error::Error;
use skilld::shutdown::Tasks;
use skilld::workspace::internal_pool::{InternalCommand, InternalPool};
use skilld::workspace::registry::WorkspaceRegistry;
use skilld::workspace::shared_slot_context::SharedSlotContext;
use skilld_proto::Outcome;
use skilld_proto::v1::ExitReason;
use skilld_proto::v1::{ExecResult, StageFilesHeader};
use skilld_tests::task_dir::TaskDir;

/// Daemon without a server: an engine, the context of its slots and its tasks.
struct Daemon {
    engine: Arc<FakeEngine>,
    config: Arc<Config>,
    context: Arc<SharedSlotContext>,
    tasks: Tasks,
    _dir: Arc<TaskDir>,
}

impl Daemon {
    async fn start() -> Self {
        let dir = TaskDir::new(&Tasks::default().for_skills().tracker);
        let toml = format!(
            "state_dir = {:?}\nengine.guest_path = {:?}\npools.default.warm = 0\npools.default.warm_up = []\n\
             pools.office.warm = 0\npools.office.max = 0\n",
            dir.path().join("state"),
            guest_path(),
        );
        let config = Config::from_toml(&toml).expect("configuration").config;
        std::fs::create_dir_all(config.state_dir.join("slots")).expect("mkdir");
        Self::start_on(Arc::new(FakeEngine::new()), Arc::new(config), Arc::new(dir)).await
    }

    async fn start_on(engine: Arc<FakeEngine>, config: Arc<Config>, dir: Arc<TaskDir>) -> Self {
        let tasks = Tasks::default();
        let info = engine.describe().await.expect("description");
        let shared = Arc::clone(&engine) as Arc<dyn Engine>;
        let context = SharedSlotContext::new(&config, shared, info, &tasks, "instance", 0);
        Self {
            engine,
            config,
            context: Arc::new(context),
            tasks,
            _dir: dir,
        }
    }

    async fn internal_pool(&self) -> InternalPool {
        let image = self.engine.check_image("an/image:1").await.expect("image");
        self.internal_pool_of(image).await
    }

    async fn internal_pool_of(&self, image: ImageInfo) -> InternalPool {
        let template = self.config.pools.first().expect("a pool");
        InternalPool::start(&self.context, "test", image, template).await
    }

    /// Stops all tasks as a daemon does, and returns once they have ended.
    async fn stop(self) -> (Arc<FakeEngine>, Arc<Config>, Arc<TaskDir>) {
        self.tasks.drain.cancel();
        self.tasks.stop.cancel();
        self.tasks.finished().await;
        (self.engine, self.config, self._dir)
    }
}

/// Returns a command that `sh` interprets.
fn shell(text: &str) -> InternalCommand {
    InternalCommand {
        argv: ["sh", "-c", text].map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        // The fake engine's containers have no /workspace.
        cwd: "/".to_owned(),
        stdin: None,
        timeout: WAIT_MAX,
        output_bytes_max: 1 << 20,
        stderr_tail_bytes: 8,
    }
}

fn exit_code(result: &ExecResult) -> Option<i32> {
    match result.outcome() {
        Some(Outcome::ExitCode(code)) => Some(code),
        _ => None,
    }
}

/// Waits until the engine has no container.
async fn wait_for_no_container(engine: &FakeEngine) {
    wait_until("no container is left", async || {
        engine.container_ids().is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_internal_command_gets_input_and_returns_output_and_code() {
    let daemon = Daemon::start().await;
    let slot = daemon
        .internal_pool()
        .await
        .take_slot()
        .await
        .expect("slot");
    let command = InternalCommand {
        env: BTreeMap::from([("WORD".to_owned(), "blue".to_owned())]),
        stdin: Some(Bytes::from_static(b"in")),
        ..shell("cat; echo $WORD; echo 0123456789 >&2; exit 3")
    };
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    let on_stderr = |piece: &[u8]| stderr.extend_from_slice(piece);
    let end = slot
        .run(command, &mut stdout, on_stderr)
        .await
        .expect("ran");
    assert_eq!(String::from_utf8_lossy(&stdout), "inblue\n");
    assert!(stderr.ends_with(&end.stderr_tail) && stderr.len() > 8);
    assert_eq!(end.stderr_tail, b"3456789\n", "the last eight bytes");
    assert_eq!(exit_code(&end.result), Some(3));
    assert!(!end.is_success());
    let end = slot
        .run(shell("true"), &mut stdout, |_| {})
        .await
        .expect("ran");
    assert!(end.is_success());
    drop(slot);
    wait_for_no_container(&daemon.engine).await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_and_time_of_a_command_of_the_daemon_are_bounded() {
    let daemon = Daemon::start().await;
    let slot = daemon
        .internal_pool()
        .await
        .take_slot()
        .await
        .expect("slot");
    let command = InternalCommand {
        output_bytes_max: 1000,
        ..shell("while :; do echo 0123456789; done")
    };
    let mut stdout = Vec::new();
    let end = slot.run(command, &mut stdout, |_| {}).await.expect("ran");
    assert_eq!(end.result.reason(), ExitReason::OutputLimit);
    assert_eq!(stdout.len(), 1000);
    let command = InternalCommand {
        timeout: Duration::from_millis(300),
        ..shell("sleep 1000")
    };
    let end = slot.run(command, &mut stdout, |_| {}).await.expect("ran");
    assert_eq!(end.result.reason(), ExitReason::Timeout);
    drop(slot);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn staged_file_is_readable_by_a_command_of_the_daemon() {
    let daemon = Daemon::start().await;
    let slot = daemon
        .internal_pool()
        .await
        .take_slot()
        .await
        .expect("slot");
    let header = StageFilesHeader {
        path: "work/a.txt".to_owned(),
        ..StageFilesHeader::default()
    };
    let data = stream::iter([Bytes::from_static(b"one "), Bytes::from_static(b"two")]);
    let staged = slot.stage_files(header, data).await.expect("staged");
    assert_eq!(staged.size_bytes, 7);
    let mut stdout = Vec::new();
    let dir = daemon.context.slot_dir(slot.number());
    let command = InternalCommand {
        cwd: dir.join("fake-workspace/work").display().to_string(),
        ..shell("cat a.txt")
    };
    let end = slot.run(command, &mut stdout, |_| {}).await.expect("ran");
    assert!(end.is_success());
    assert_eq!(stdout, b"one two");
    drop(slot);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_internal_slot_has_a_container_of_its_own() {
    let daemon = Daemon::start().await;
    let pool = daemon.internal_pool().await;
    let first = pool.take_slot().await.expect("slot");
    let second = pool.take_slot().await.expect("slot");
    assert_ne!(first.number(), second.number());
    drop(first);
    let third = pool.take_slot().await.expect("slot");
    assert_ne!(second.number(), third.number());
    assert_eq!(daemon.engine.call_count(EngineOperation::Create), 3);
    assert!(daemon.context.workspaces.list_all().is_empty());
    drop((second, third, pool));
    wait_for_no_container(&daemon.engine).await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_boot_of_an_internal_slot_is_reported_with_its_reason() {
    let daemon = Daemon::start().await;
    let pool = daemon.internal_pool().await;
    let refusal = || Error::Engine {
        operation: "start container",
        message: "exec format error".to_owned(),
    };
    for _ in 0..2 {
        daemon.engine.fail_next(EngineOperation::Start, refusal());
        let error = pool.take_slot().await.expect_err("it does not start");
        assert_eq!(
            error.to_string(),
            "image an/image:1 cannot be used: no container of it starts: the container engine failed to start container: \
             exec format error"
        );
    }
    pool.take_slot().await.expect("it starts again");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn internal_slots_are_removed_by_the_next_daemon() {
    let daemon = Daemon::start().await;
    let slot = daemon
        .internal_pool()
        .await
        .take_slot()
        .await
        .expect("slot");
    let (engine, config, dir) = daemon.stop().await;
    assert_eq!(engine.container_ids().len(), 1, "a stop removes nothing");
    drop(slot);
    let next = Daemon::start_on(engine, config, dir).await;
    let registry = WorkspaceRegistry::boot(Arc::clone(&next.context))
        .await
        .expect("started");
    assert!(registry.list_all().is_empty());
    wait_for_no_container(&next.engine).await;
    drop(registry);
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_daemon_boots_no_internal_slot() {
    let daemon = Daemon::start().await;
    let pool = daemon.internal_pool().await;
    daemon.tasks.drain.cancel();
    let error = pool.take_slot().await.expect_err("it drains");
    assert!(matches!(error, Error::Draining), "{error}");
    assert_eq!(daemon.engine.call_count(EngineOperation::Create), 0);
    daemon.stop().await;
}

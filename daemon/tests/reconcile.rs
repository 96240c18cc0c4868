//! Containers that the engine has and no slot knows, and those that it cannot remove, over the fake engine.

#[path = "support/server.rs"]
#[expect(dead_code, reason = "shared with tests that use more of it")]
mod server;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use server::{Stopped, TestServer};
use skilld::engine::fake::{FakeEngine, Operation};
use skilld::engine::{ContainerSpec, Engine, LABEL_INSTANCE, Limits};
use skilld_client::Error;
use skilld_proto::v1::{CreateWorkspaceRequest, DrainRequest, Problem, Reason, WorkspaceState};

/// Nothing here may take longer.
const DEADLINE: Duration = Duration::from_secs(20);
const HANG: Duration = Duration::from_secs(3600);

/// Waits until something is so. The engine says nothing by itself, so this looks.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    loop {
        tick.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "in vain: {what}");
    }
}

async fn warm(server: &TestServer, count: i32) {
    until("the pool is warm", async || {
        let pool = server.client.get_pool("default").await.expect("pool");
        (pool.warm == count && pool.booting == 0).then_some(())
    })
    .await;
}

fn named(id: &str) -> CreateWorkspaceRequest {
    CreateWorkspaceRequest {
        name: format!("workspaces/{id}"),
        ..Default::default()
    }
}

/// Stops a server and gives its engine containers of its instance that no record names. Returns the stopped server, the
/// engine, and the containers that have a record.
async fn stopped_with_orphans(toml: &str, orphans: u32) -> (Stopped, Arc<FakeEngine>, Vec<String>) {
    let server = TestServer::start(toml, &[]).await;
    warm(&server, 1).await;
    let known = server.engine.containers();
    let instance = server.client.server_info().await.expect("info").instance;
    let engine = Arc::clone(&server.engine);
    let stopped = server.stopped().await;
    let dir = tempfile::tempdir().expect("temporary directory");
    for name in ["run", "skills", "passwd", "group"] {
        std::fs::create_dir(dir.path().join(name)).expect("mkdir");
    }
    for number in 0..orphans {
        let orphan = ContainerSpec {
            name: format!("orphan-{number}"),
            labels: [(LABEL_INSTANCE.to_owned(), instance.clone())].into(),
            image_id: String::new(),
            slot_dir: dir.path().to_owned(),
            uid: 1,
            limits: Limits {
                memory_bytes: 1,
                cpu_millis: 1,
                pids: 1,
                disk_bytes: 1,
                inodes: 1,
            },
            tmp_bytes: 1,
            shm_bytes: 1,
            terminals: 1,
            oci_runtime: None,
            env: Vec::new(),
        };
        engine.create(&orphan).await.expect("created");
    }
    (stopped, engine, known)
}

async fn quarantines(server: &TestServer) -> Vec<Problem> {
    let mut problems = server.client.problems().await.expect("problems");
    problems.retain(|problem| problem.code == "container.quarantined");
    problems
}

fn records(state_dir: &Path) -> Vec<serde_json::Value> {
    let slots = std::fs::read_dir(state_dir.join("slots")).expect("slots");
    slots
        .filter_map(|slot| std::fs::read(slot.ok()?.path().join("record.json")).ok())
        .map(|bytes| serde_json::from_slice(&bytes).expect("a record"))
        .collect()
}

/// Returns the record of the one workspace.
fn claimed_record(server: &TestServer) -> serde_json::Value {
    let taken = records(server.state_dir()).into_iter();
    let mut taken = taken.filter(|record| record["phase"] == "claimed");
    taken.next().expect("the workspace's")
}

async fn wait_until_freed(server: &TestServer) {
    until("it is freed", async || {
        quarantines(server).await.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_whose_creation_was_never_answered_are_removed_without_a_restart() {
    let server = TestServer::start("engine.reconcile_interval = \"100ms\"\n", &[]).await;
    warm(&server, 1).await;
    server.engine.lose_creations(2);
    server.workspace().await;
    until("two creations are lost", async || {
        (server.engine.lost_creations() == 2).then_some(())
    })
    .await;
    // Their slots are long forgotten when the engine carries them out.
    warm(&server, 1).await;
    let slots = std::fs::read_dir(server.state_dir().join("slots")).expect("slots");
    assert_eq!(slots.count(), 2, "only the workspace's and the warm one");
    let known = server.engine.containers();
    assert_eq!(known.len(), 2);
    let late = server.engine.carry_out_lost_creations();
    assert_eq!(late.len(), 2);
    let started = Instant::now();
    until("they are removed", async || {
        (server.engine.containers() == known).then_some(())
    })
    .await;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_removes_many_orphans_a_few_at_a_time() {
    let (stopped, engine, known) = stopped_with_orphans("", 40).await;
    engine.delay(Operation::Remove, Duration::from_millis(20));
    let server = stopped.start_again().await;
    assert_eq!(engine.containers(), known, "the start waits for them");
    let at_once = engine.max_calls_in_flight(Operation::Remove);
    assert!((2..=16).contains(&at_once), "{at_once} removals at once");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_removes_all_orphans_although_one_is_refused_first() {
    let (stopped, engine, known) = stopped_with_orphans("", 40).await;
    let refusal = skilld::error::Error::Engine {
        operation: "remove container",
        message: "busy".to_owned(),
    };
    engine.fail_next(Operation::Remove, refusal);
    let server = stopped.start_again().await;
    assert_eq!(engine.containers(), known);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_slow_removals_for_a_bounded_time() {
    let toml = "engine.remove_timeout = \"300ms\"\nengine.reconcile_interval = \"50ms\"\n";
    // More than 5.3 s can remove, 16 at a time.
    let (stopped, engine, known) = stopped_with_orphans(toml, 500).await;
    engine.delay(Operation::Remove, Duration::from_millis(250));
    let server = stopped.start_again().await;
    let left = engine.containers().len() - known.len();
    assert!((1..400).contains(&left), "{left} are left");
    engine.delay(Operation::Remove, Duration::ZERO);
    until("they are removed", async || {
        (engine.containers() == known).then_some(())
    })
    .await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_that_cannot_be_removed_hold_up_a_start_for_a_bounded_time() {
    let toml = "engine.remove_timeout = \"300ms\"\nengine.reconcile_interval = \"50ms\"\n";
    let (stopped, engine, known) = stopped_with_orphans(toml, 40).await;
    engine.delay(Operation::Remove, HANG);
    let started = Instant::now();
    let server = stopped.start_again().await;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    until("every orphan had its turn", async || {
        (engine.calls(Operation::Remove) >= 40).then_some(())
    })
    .await;
    assert!(engine.max_calls_in_flight(Operation::Remove) <= 16);
    engine.delay(Operation::Remove, Duration::ZERO);
    until("they are removed", async || {
        (engine.containers() == known).then_some(())
    })
    .await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_of_a_boot_in_progress_is_never_removed() {
    let server = TestServer::start("engine.reconcile_interval = \"10ms\"\n", &[]).await;
    warm(&server, 1).await;
    let created = server.engine.calls(Operation::Create);
    let removed = server.engine.calls(Operation::Remove);
    // The container is there for a second before its slot knows more than that it asked for it.
    server
        .engine
        .delay(Operation::Start, Duration::from_secs(1));
    server.workspace().await;
    until("it is created", async || {
        (server.engine.containers().len() == 2).then_some(())
    })
    .await;
    let listed = server.engine.calls(Operation::List);
    until("it is listed many times", async || {
        (server.engine.calls(Operation::List) >= listed + 20).then_some(())
    })
    .await;
    warm(&server, 1).await;
    assert_eq!(server.engine.calls(Operation::Create), created + 1);
    assert_eq!(server.engine.calls(Operation::Remove), removed);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_directories_that_no_slot_owns_are_deleted() {
    let server = TestServer::start("engine.reconcile_interval = \"50ms\"\n", &[]).await;
    warm(&server, 1).await;
    let left = server.state_dir().join("slots/4000");
    std::fs::create_dir_all(left.join("run")).expect("mkdir");
    until("it is deleted", async || (!left.exists()).then_some(())).await;
    assert_eq!(records(server.state_dir()).len(), 1, "the warm one stays");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_cannot_be_removed_is_quarantined_and_freed_when_it_is_gone() {
    let toml = "engine.remove_timeout = \"300ms\"\nengine.reconcile_interval = \"100ms\"\n";
    let server = TestServer::start(toml, &[]).await;
    let created = server.client.create_workspace(named("stuck")).await;
    let stuck = created.expect("created").name;
    warm(&server, 1).await;
    let record = claimed_record(&server);
    server.engine.delay(Operation::Remove, HANG);

    let asked = Instant::now();
    server.client.delete_workspace(&stuck).await.expect("gone");
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let error = server.client.get_workspace(&stuck).await.expect_err("gone");
    assert_eq!(error.reason(), Some(Reason::WorkspaceNotFound));
    let problems = quarantines(&server).await;
    assert_eq!(problems.len(), 1, "{problems:?}");
    let (number, uid) = (&record["number"], &record["uid"]);
    let problem = &problems[0];
    assert!(
        problem.subject.ends_with(&format!("-{number}")),
        "{problem:?}"
    );
    let says = format!("slot {number} and uid {uid} are not used again");
    assert!(problem.message.contains(&says), "{problem:?}");

    // Its name is free, its slot and uid are not.
    let again = server.client.create_workspace(named("stuck")).await;
    again.expect("the name is free");
    let server = server.restart(|_| {}).await;
    let kept = quarantines(&server).await;
    assert_eq!(kept.len(), 1, "a restart does not forget it");
    assert_eq!(kept[0].subject, problem.subject);
    assert_eq!(kept[0].time, problem.time);
    let refused: Result<_, Error> = server.client.drain(DrainRequest { remove: true }).await;
    let refused = refused.expect_err("it is still there").to_string();
    assert!(refused.contains(&problem.subject), "{refused}");

    server.engine.delay(Operation::Remove, Duration::ZERO);
    wait_until_freed(&server).await;
    let container = record["container_id"].as_str().expect("id").to_owned();
    assert!(!server.engine.containers().contains(&container));
    let left = records(server.state_dir()).into_iter();
    assert!(left.into_iter().all(|left| left["number"] != *number));
    let drained = server.client.drain(DrainRequest { remove: true }).await;
    drained.expect("nothing is in the way");
    assert_eq!(server.engine.containers(), Vec::<String>::new());
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_container_of_a_failed_workspace_counts_until_it_is_gone() {
    let toml = "engine.remove_timeout = \"300ms\"\nengine.reconcile_interval = \"100ms\"\n\
                pools.default.max = 2\npools.default.claim_timeout = \"500ms\"\n";
    let server = TestServer::start(toml, &[]).await;
    let created = server.client.create_workspace(named("lost")).await;
    let lost = created.expect("created").name;
    warm(&server, 1).await;
    let record = claimed_record(&server);
    let container = record["container_id"].as_str().expect("id").to_owned();
    server.engine.delay(Operation::Remove, HANG);
    server.engine.kill(&container).await;
    let problem = until("it is listed", async || quarantines(&server).await.pop()).await;
    let says = format!("slot {} and uid {}", record["number"], record["uid"]);
    assert!(problem.message.contains(&says), "{problem:?}");

    // The workspace says why it was lost, and its container takes one of two places.
    let workspace = server.client.get_workspace(&lost).await.expect("listed");
    assert_eq!(
        workspace.state,
        i32::from(WorkspaceState::Failed),
        "{workspace:?}"
    );
    server.workspace().await;
    let created = server.client.create_workspace(named("more")).await;
    let error = created.expect_err("no room");
    assert_eq!(error.reason(), Some(Reason::PoolExhausted));

    server.engine.delay(Operation::Remove, Duration::ZERO);
    wait_until_freed(&server).await;
    assert!(!server.engine.containers().contains(&container));
    let created = server.client.create_workspace(named("more")).await;
    created.expect("room");
    let workspace = server.client.get_workspace(&lost).await.expect("listed");
    assert_eq!(
        workspace.state,
        i32::from(WorkspaceState::Failed),
        "{workspace:?}"
    );
    server.client.delete_workspace(&lost).await.expect("gone");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_workspace_that_is_deleted_keeps_its_slot_while_its_container_is_there() {
    let toml = "engine.remove_timeout = \"500ms\"\nengine.reconcile_interval = \"50ms\"\n";
    let server = TestServer::start(toml, &[]).await;
    let created = server.client.create_workspace(named("lost")).await;
    let lost = created.expect("created").name;
    let record = claimed_record(&server);
    let container = record["container_id"].as_str().expect("id").to_owned();
    server.engine.delay(Operation::Remove, HANG);
    server.engine.kill(&container).await;
    until("it is listed", async || quarantines(&server).await.pop()).await;

    // While the slot's task tries again, the reconciler looks several times.
    server
        .client
        .delete_workspace(&lost)
        .await
        .expect("answered");
    let looks = server.engine.calls(Operation::List);
    until("the reconciler has looked again", async || {
        (server.engine.calls(Operation::List) > looks + 2).then_some(())
    })
    .await;
    assert!(server.engine.containers().contains(&container));
    assert_eq!(quarantines(&server).await.len(), 1);
    let kept = records(server.state_dir()).into_iter();
    let numbers: Vec<_> = kept.map(|kept| kept["number"].clone()).collect();
    assert!(numbers.contains(&record["number"]), "{numbers:?}");

    server.engine.delay(Operation::Remove, Duration::ZERO);
    wait_until_freed(&server).await;
    assert!(!server.engine.containers().contains(&container));
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_away_quarantines_nothing() {
    let toml = "engine.remove_timeout = \"100ms\"\nengine.reconcile_interval = \"50ms\"\n";
    let server = TestServer::start(toml, &[]).await;
    let workspace = server.workspace().await;
    warm(&server, 1).await;
    server.engine.unavailable(true);
    for _ in 0..2 {
        let deleted = server.client.delete_workspace(&workspace).await;
        let error = deleted.expect_err("the engine is away");
        assert_eq!(error.reason(), Some(Reason::EngineUnavailable));
    }
    let pings = server.engine.calls(Operation::Ping);
    until(
        "its slot tried again, for longer than it may take",
        async || (server.engine.calls(Operation::Ping) >= pings + 3).then_some(()),
    )
    .await;
    assert!(quarantines(&server).await.is_empty());
    server.engine.unavailable(false);
    until("it is deleted", async || {
        let listed = server.client.get_workspace(&workspace).await;
        listed.is_err().then_some(())
    })
    .await;
    assert!(server.stop().await);
}

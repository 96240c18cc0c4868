//! Tests of removing containers that no slot knows, and of containers that the engine cannot remove.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::server::{StoppedServer, TestServer, wait_until, within};
use skilld::engine::fake::{EngineOperation, FakeEngine};
use skilld::engine::{ContainerLimits, ContainerSpec, Engine, LABEL_INSTANCE};
use skilld_proto::v1::{
    CreateWorkspaceRequest, DrainRequest, ErrorReason, Problem, WorkspaceState,
};

/// Delay of an engine call that hangs.
const HANG: Duration = Duration::from_secs(3600);

/// Waits until the default pool has `count` warm containers and starts none.
async fn wait_until_warm(server: &TestServer, count: i32) {
    wait_until("the pool is warm", async || {
        let pool = server.client.get_pool("default").await.expect("pool");
        (pool.warm == count && pool.booting == 0).then_some(())
    })
    .await;
}

/// Returns a request for a workspace with this id.
fn create_request(id: &str) -> CreateWorkspaceRequest {
    CreateWorkspaceRequest {
        workspace_id: id.to_owned(),
        ..Default::default()
    }
}

/// Stops a server and creates containers of its instance that no record names. Returns the stopped server, the engine,
/// and the ids of the containers that have a record.
async fn stop_with_orphans(
    toml: &str,
    orphans: u32,
) -> (StoppedServer, Arc<FakeEngine>, Vec<String>) {
    let server = TestServer::start(toml, &[]).await;
    wait_until_warm(&server, 1).await;
    let known = server.engine.container_ids();
    let instance = server.client.server_info().await.expect("info").instance;
    let engine = Arc::clone(&server.engine);
    let stopped = server.shut_down().await;
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
            limits: ContainerLimits {
                memory_bytes: 1,
                cpu_millis: 1,
                pids: 1,
                disk_bytes: 1,
                inodes: 1,
            },
            shared_dirs: Vec::new(),
            tmp_bytes: 1,
            shm_bytes: 1,
            terminals: 1,
            workspace_device: None,
            oci_runtime: None,
            env: Vec::new(),
        };
        engine.create(&orphan).await.expect("created");
    }
    (stopped, engine, known)
}

/// Returns the problems of quarantined containers.
async fn quarantine_problems(server: &TestServer) -> Vec<Problem> {
    let mut problems = server.client.problems().await.expect("problems");
    problems.retain(|problem| problem.code == "container.quarantined");
    problems
}

/// Returns the records of all slots.
fn read_records(state_dir: &Path) -> Vec<serde_json::Value> {
    let slots = std::fs::read_dir(state_dir.join("slots")).expect("slots");
    slots
        .filter_map(|slot| std::fs::read(slot.ok()?.path().join("record.json")).ok())
        .map(|bytes| serde_json::from_slice(&bytes).expect("a record"))
        .collect()
}

/// Returns the record of the only claimed slot.
fn claimed_record(server: &TestServer) -> serde_json::Value {
    read_records(server.state_dir())
        .into_iter()
        .find(|record| record["phase"] == "claimed")
        .expect("the workspace's")
}

/// Waits until no container is quarantined.
async fn wait_until_freed(server: &TestServer) {
    wait_until("no container is quarantined", async || {
        quarantine_problems(server).await.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_of_lost_creations_are_removed_without_a_restart() {
    let server = TestServer::start("engine.reconcile_interval = \"100ms\"\n", &[]).await;
    wait_until_warm(&server, 1).await;
    server.engine.lose_next_creations(2);
    server.workspace().await;
    wait_until("two creations are lost", async || {
        (server.engine.lost_creations() == 2).then_some(())
    })
    .await;
    // The daemon forgets the slots before the engine carries the creations out.
    wait_until_warm(&server, 1).await;
    wait_until("only the used and the warm slot are left", async || {
        let slots = std::fs::read_dir(server.state_dir().join("slots")).expect("slots");
        (slots.count() == 2).then_some(())
    })
    .await;
    let known = server.engine.container_ids();
    assert_eq!(known.len(), 2);
    let late = server.engine.carry_out_lost_creations();
    assert_eq!(late.len(), 2);
    wait_until("the orphans are removed", async || {
        (server.engine.container_ids() == known).then_some(())
    })
    .await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn start_removes_orphans_with_limited_concurrency() {
    let (stopped, engine, known) = stop_with_orphans("", 40).await;
    engine.set_delay(EngineOperation::Remove, Duration::from_millis(20));
    let server = stopped.start().await;
    assert_eq!(engine.container_ids(), known, "the start waits for them");
    let at_once = engine.in_flight_calls_max(EngineOperation::Remove);
    assert!((2..=16).contains(&at_once), "{at_once} removals at once");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn start_removes_all_orphans_after_one_refused_removal() {
    let (stopped, engine, known) = stop_with_orphans("", 40).await;
    let refusal = skilld::error::Error::Engine {
        operation: "remove container",
        message: "busy".to_owned(),
    };
    engine.fail_next(EngineOperation::Remove, refusal);
    let server = stopped.start().await;
    assert_eq!(engine.container_ids(), known);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn start_waits_for_slow_removals_for_a_limited_time() {
    let toml = "engine.remove_timeout = \"300ms\"\nengine.reconcile_interval = \"50ms\"\n";
    // The engine removes 16 at a time, which takes 31 s; the start lasts 5.3 s.
    let (stopped, engine, known) = stop_with_orphans(toml, 2000).await;
    engine.set_delay(EngineOperation::Remove, Duration::from_millis(250));
    let server = stopped.start().await;
    let left = engine.container_ids().len() - known.len();
    assert!((1..2000).contains(&left), "{left} are left");
    engine.set_delay(EngineOperation::Remove, Duration::ZERO);
    wait_until("the orphans are removed", async || {
        (engine.container_ids() == known).then_some(())
    })
    .await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn unremovable_orphans_delay_a_start_for_a_limited_time() {
    let toml = "engine.remove_timeout = \"300ms\"\nengine.reconcile_interval = \"50ms\"\n";
    let (stopped, engine, known) = stop_with_orphans(toml, 40).await;
    engine.set_delay(EngineOperation::Remove, HANG);
    let server = within(stopped.start()).await;
    wait_until("every orphan had its turn", async || {
        (engine.call_count(EngineOperation::Remove) >= 40).then_some(())
    })
    .await;
    assert!(engine.in_flight_calls_max(EngineOperation::Remove) <= 16);
    engine.set_delay(EngineOperation::Remove, Duration::ZERO);
    wait_until("the orphans are removed", async || {
        (engine.container_ids() == known).then_some(())
    })
    .await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn container_of_a_boot_in_progress_is_never_removed() {
    let server = TestServer::start("engine.reconcile_interval = \"10ms\"\n", &[]).await;
    wait_until_warm(&server, 1).await;
    let created = server.engine.call_count(EngineOperation::Create);
    let removed = server.engine.call_count(EngineOperation::Remove);
    // For a second the container exists, and the slot has no response of the engine yet.
    server
        .engine
        .set_delay(EngineOperation::Start, Duration::from_secs(1));
    server.workspace().await;
    wait_until("the container is created", async || {
        (server.engine.container_ids().len() == 2).then_some(())
    })
    .await;
    let listed = server.engine.call_count(EngineOperation::List);
    wait_until("the engine lists many times", async || {
        (server.engine.call_count(EngineOperation::List) >= listed + 20).then_some(())
    })
    .await;
    wait_until_warm(&server, 1).await;
    assert_eq!(
        server.engine.call_count(EngineOperation::Create),
        created + 1
    );
    assert_eq!(server.engine.call_count(EngineOperation::Remove), removed);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_directories_without_a_slot_are_deleted() {
    let server = TestServer::start("engine.reconcile_interval = \"50ms\"\n", &[]).await;
    wait_until_warm(&server, 1).await;
    let left = server.state_dir().join("slots/4000");
    std::fs::create_dir_all(left.join("run")).expect("mkdir");
    wait_until("the directory is deleted", async || {
        (!left.exists()).then_some(())
    })
    .await;
    assert_eq!(
        read_records(server.state_dir()).len(),
        1,
        "the warm one stays"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unremovable_container_is_quarantined_until_it_is_gone() {
    let toml = "engine.remove_timeout = \"300ms\"\nengine.reconcile_interval = \"100ms\"\n";
    let server = TestServer::start(toml, &[]).await;
    let created = server
        .client
        .create_workspace(create_request("stuck"))
        .await;
    let stuck = created.expect("created").name;
    wait_until_warm(&server, 1).await;
    let record = claimed_record(&server);
    server.engine.set_delay(EngineOperation::Remove, HANG);

    let deleted = within(server.client.delete_workspace(&stuck)).await;
    deleted.expect("gone, long before the engine removes it");
    let error = server.client.get_workspace(&stuck).await.expect_err("gone");
    assert_eq!(error.reason(), Some(ErrorReason::WorkspaceNotFound));
    let problems = quarantine_problems(&server).await;
    assert_eq!(problems.len(), 1, "{problems:?}");
    let (number, uid) = (&record["number"], &record["uid"]);
    let problem = &problems[0];
    assert!(
        problem.subject.ends_with(&format!("-{number}")),
        "{problem:?}"
    );
    let says = format!("slot {number} and uid {uid} are not used again");
    assert!(problem.message.contains(&says), "{problem:?}");

    // The name of the workspace is free; its slot and uid are not.
    let again = server
        .client
        .create_workspace(create_request("stuck"))
        .await;
    again.expect("the name is free");
    // A container that boots at the restart would be removed, too.
    wait_until_warm(&server, 1).await;
    let server = server.restart(|_| {}).await;
    let kept = quarantine_problems(&server).await;
    assert_eq!(kept.len(), 1, "a restart does not forget it");
    assert_eq!(kept[0].subject, problem.subject);
    assert_eq!(kept[0].detect_time, problem.detect_time);
    let refused = server
        .client
        .drain(DrainRequest {
            remove_workspaces: true,
            refuse_execs: true,
        })
        .await
        .expect_err("it is still there")
        .to_string();
    assert!(refused.contains(&problem.subject), "{refused}");

    server
        .engine
        .set_delay(EngineOperation::Remove, Duration::ZERO);
    wait_until_freed(&server).await;
    let container = record["container_id"].as_str().expect("id").to_owned();
    assert!(!server.engine.container_ids().contains(&container));
    let left = read_records(server.state_dir()).into_iter();
    assert!(left.into_iter().all(|left| left["number"] != *number));
    // A removal that takes longer than the short timeout is repeated.
    wait_until("nothing is in the way", async || {
        let request = DrainRequest {
            remove_workspaces: true,
            refuse_execs: true,
        };
        server.client.drain(request).await.ok()
    })
    .await;
    assert_eq!(server.engine.container_ids(), Vec::<String>::new());
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn container_of_a_failed_workspace_counts_until_it_is_gone() {
    let toml = "engine.remove_timeout = \"300ms\"\nengine.reconcile_interval = \"100ms\"\n\
                pools.default.max = 2\npools.default.claim_timeout = \"500ms\"\n";
    let server = TestServer::start(toml, &[]).await;
    wait_until_warm(&server, 1).await;
    let created = server.client.create_workspace(create_request("lost")).await;
    let lost = created.expect("created").name;
    wait_until_warm(&server, 1).await;
    let record = claimed_record(&server);
    let container = record["container_id"].as_str().expect("id").to_owned();
    server.engine.set_delay(EngineOperation::Remove, HANG);
    server.engine.kill_container(&container).await;
    let problem = wait_until("the quarantine is listed", async || {
        quarantine_problems(&server).await.pop()
    })
    .await;
    let says = format!("slot {} and uid {}", record["number"], record["uid"]);
    assert!(problem.message.contains(&says), "{problem:?}");

    // The failed workspace stays listed, and its container counts towards the maximum of two.
    let workspace = server.get_workspace(&lost).await;
    assert_eq!(
        workspace.state,
        i32::from(WorkspaceState::Failed),
        "{workspace:?}"
    );
    server.workspace().await;
    let created = server.client.create_workspace(create_request("more")).await;
    let error = created.expect_err("no room");
    assert_eq!(error.reason(), Some(ErrorReason::PoolExhausted));

    server
        .engine
        .set_delay(EngineOperation::Remove, Duration::ZERO);
    wait_until_freed(&server).await;
    assert!(!server.engine.container_ids().contains(&container));
    wait_until_warm(&server, 1).await;
    let created = server.client.create_workspace(create_request("more")).await;
    created.expect("room");
    let workspace = server.get_workspace(&lost).await;
    assert_eq!(
        workspace.state,
        i32::from(WorkspaceState::Failed),
        "{workspace:?}"
    );
    server.client.delete_workspace(&lost).await.expect("gone");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_workspace_keeps_its_slot_until_its_container_goes() {
    let toml = "engine.remove_timeout = \"500ms\"\nengine.reconcile_interval = \"50ms\"\n";
    let server = TestServer::start(toml, &[]).await;
    let created = server.client.create_workspace(create_request("lost")).await;
    let lost = created.expect("created").name;
    let record = claimed_record(&server);
    let container = record["container_id"].as_str().expect("id").to_owned();
    server.engine.set_delay(EngineOperation::Remove, HANG);
    server.engine.kill_container(&container).await;
    wait_until("the quarantine is listed", async || {
        quarantine_problems(&server).await.pop()
    })
    .await;

    // The slot's task retries the removal while the reconciler runs several times.
    server
        .client
        .delete_workspace(&lost)
        .await
        .expect("answered");
    let looks = server.engine.call_count(EngineOperation::List);
    wait_until("the reconciler has looked again", async || {
        (server.engine.call_count(EngineOperation::List) > looks + 2).then_some(())
    })
    .await;
    assert!(server.engine.container_ids().contains(&container));
    assert_eq!(quarantine_problems(&server).await.len(), 1);
    let kept = read_records(server.state_dir()).into_iter();
    let numbers: Vec<_> = kept.map(|kept| kept["number"].clone()).collect();
    assert!(numbers.contains(&record["number"]), "{numbers:?}");

    server
        .engine
        .set_delay(EngineOperation::Remove, Duration::ZERO);
    wait_until_freed(&server).await;
    assert!(!server.engine.container_ids().contains(&container));
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_engine_causes_no_quarantine() {
    let toml = "engine.remove_timeout = \"100ms\"\nengine.reconcile_interval = \"50ms\"\n";
    let server = TestServer::start(toml, &[]).await;
    let workspace = server.workspace().await;
    wait_until_warm(&server, 1).await;
    server.engine.set_unavailable(true);
    for _ in 0..2 {
        let deleted = server.client.delete_workspace(&workspace).await;
        let error = deleted.expect_err("the engine is away");
        assert_eq!(error.reason(), Some(ErrorReason::EngineUnavailable));
    }
    let pings = server.engine.call_count(EngineOperation::Ping);
    wait_until(
        "its slot tried again, for longer than it may take",
        async || (server.engine.call_count(EngineOperation::Ping) >= pings + 3).then_some(()),
    )
    .await;
    assert!(quarantine_problems(&server).await.is_empty());
    server.engine.set_unavailable(false);
    wait_until("the workspace is deleted", async || {
        let listed = server.client.get_workspace(&workspace).await;
        listed.is_err().then_some(())
    })
    .await;
    assert!(server.stop().await);
}

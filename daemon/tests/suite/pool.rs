//! Tests of pools and workspaces in a whole server with the fake engine and the real guest: claims, refills, queues,
//! losses, restarts.

mod image_checks;
mod images;
mod restarts;
mod staging;
mod workspaces;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::server::{TestServer, wait_until};
use skilld::engine::fake::EngineOperation;
use skilld_client::{Error, RetryPolicy};
use skilld_proto::v1::workspace_failure::Cause;
use skilld_proto::v1::{
    CreateWorkspaceRequest, ErrorReason, ListWorkspacesRequest, Pool, Workspace, WorkspaceLimits,
    WorkspaceState,
};

/// Returns a request for a workspace with this id.
fn create_request(id: &str) -> CreateWorkspaceRequest {
    CreateWorkspaceRequest {
        workspace_id: id.to_owned(),
        ..Default::default()
    }
}

/// Creates a workspace with this id.
async fn create_workspace(server: &TestServer, id: &str) -> Workspace {
    let created = server.client.create_workspace(create_request(id)).await;
    created.expect("created")
}

/// Waits until the default pool satisfies `wanted`.
async fn wait_for_pool(server: &TestServer, what: &str, wanted: impl Fn(&Pool) -> bool) -> Pool {
    wait_until(what, async || {
        let pool = server.client.get_pool("default").await.expect("pool");
        wanted(&pool).then_some(pool)
    })
    .await
}

/// Waits until a workspace has a state.
async fn wait_for_state(server: &TestServer, name: &str, wanted: WorkspaceState) -> Workspace {
    wait_until("the workspace has the state", async || {
        let workspace = server.get_workspace(name).await;
        (workspace.state() == wanted).then_some(workspace)
    })
    .await
}

/// Waits until the daemon's health is SERVING, or not.
async fn wait_for_health(server: &TestServer, is_serving: bool) {
    wait_until("health changes", async || {
        let found = server.client.is_serving("").await.expect("health");
        (found == is_serving).then_some(())
    })
    .await;
}

/// Creates a workspace with this id. A boot that a slow machine did not complete in time is repeated.
async fn create_workspace_patiently(server: &TestServer, id: &str) {
    wait_until("a container boots in time", async || {
        match server.client.create_workspace(create_request(id)).await {
            Ok(_) => Some(()),
            Err(error) => {
                assert_eq!(error.reason(), Some(ErrorReason::PoolExhausted), "{error}");
                None
            }
        }
    })
    .await;
}

/// Returns the names of all workspaces.
async fn workspace_names(server: &TestServer) -> Vec<String> {
    let page = server
        .client
        .list_workspaces(ListWorkspacesRequest::default())
        .await
        .expect("list");
    page.workspaces
        .into_iter()
        .map(|workspace| workspace.name)
        .collect()
}

/// Returns the reason of a call that must fail.
fn error_reason<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorReason {
    let error = result.expect_err("refused");
    error
        .reason()
        .unwrap_or_else(|| panic!("no reason: {error:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_takes_a_warm_slot_and_refills_the_pool() {
    let server = TestServer::start("", &[]).await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let created = server.engine.call_count(EngineOperation::Create);
    server.workspace().await;
    let pool = wait_for_pool(&server, "warm again", |pool| {
        pool.warm == 1 && pool.claimed == 1
    })
    .await;
    assert_eq!((pool.booting, pool.waiting), (0, 0));
    assert_eq!(
        server.engine.call_count(EngineOperation::Create),
        created + 1,
        "one claim, one refill"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_length_and_waiting_time_are_limited() {
    let toml = "pools.default.max = 1\npools.default.queue_max = 1\npools.default.claim_timeout = \"300ms\"\n";
    let server = TestServer::start(toml, &[]).await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let first = server.workspace().await;
    let started = Instant::now();
    let waits = (0..2).map(|_| {
        server
            .client
            .create_workspace(CreateWorkspaceRequest::default())
    });
    for result in futures::future::join_all(waits).await {
        let error = result.expect_err("none is free");
        assert_eq!(error.reason(), Some(ErrorReason::PoolExhausted), "{error}");
        let retry = error.failure().and_then(|failure| failure.retry_after);
        assert_eq!(
            retry,
            Some(Duration::from_secs(1)),
            "it says when to try again"
        );
    }
    let waited = started.elapsed();
    assert!(
        waited >= Duration::from_millis(300),
        "one of them waited: {waited:?}"
    );

    // A waiting request gets the next free container.
    let client = server.client.clone();
    let (created, deleted) = tokio::join!(
        async { client.create_workspace(create_request("next")).await },
        async { server.client.delete_workspace(&first).await }
    );
    deleted.expect("deleted");
    // Deletion and refill may take longer than the claim timeout; then a retry succeeds.
    if let Err(error) = created {
        assert_eq!(error.reason(), Some(ErrorReason::PoolExhausted), "{error}");
        wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
        create_workspace(&server, "next").await;
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn lower_limits_get_their_own_container_and_higher_are_refused() {
    let server = TestServer::start("pools.default.max = 4\n", &[]).await;
    let with = |pids| CreateWorkspaceRequest {
        limits: Some(WorkspaceLimits {
            pids,
            ..Default::default()
        }),
        ..Default::default()
    };
    assert_eq!(
        error_reason(server.client.create_workspace(with(100_000)).await),
        ErrorReason::LimitUnsupported
    );
    let small = server
        .client
        .create_workspace(with(64))
        .await
        .expect("made for it");
    assert_eq!(small.limits.expect("limits").pids, 64);
    let common = server
        .client
        .create_workspace(with(0))
        .await
        .expect("a warm one");
    assert_eq!(common.limits.expect("limits").pids, 512);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_without_a_guest_times_out_and_is_a_pool_problem() {
    let toml = "engine.boot_timeout = \"1s\"\npools.default.claim_timeout = \"3s\"\n";
    let server = TestServer::start(toml, &[]).await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    server.engine.start_without_guest();
    server.workspace().await;
    let pool = wait_for_pool(&server, "in trouble", |pool| !pool.problem.is_empty()).await;
    assert!(
        pool.problem.contains("did not connect within 1s"),
        "{}",
        pool.problem
    );
    assert_eq!(
        error_reason(
            server
                .client
                .create_workspace(create_request("in-vain"))
                .await
        ),
        ErrorReason::PoolExhausted
    );
    assert_eq!(
        workspace_names(&server).await.len(),
        1,
        "a failed create leaves no entry"
    );
    let problems = server.client.problems().await.expect("problems");
    let of_pools = problems
        .iter()
        .filter(|problem| problem.subject == "pools/default");
    assert_eq!(of_pools.count(), 1);

    server.engine.start_with_guest();
    let pool = wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    assert_eq!(pool.problem, "");
    create_workspace_patiently(&server, "in-vain").await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_engine_stops_new_workspaces_but_not_running_ones() {
    let server = TestServer::start("", &[]).await;
    let first = server.workspace().await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    server.engine.set_unavailable(true);
    let warm = server.workspace().await;
    // The refill fails; from then on the pool rejects requests at once.
    wait_for_pool(&server, "in trouble", |pool| !pool.problem.is_empty()).await;
    let refused = server
        .client
        .create_workspace(create_request("refused"))
        .await;
    assert_eq!(error_reason(refused), ErrorReason::EngineUnavailable);
    for name in [&first, &warm] {
        server
            .client
            .list_execs(list_request(name))
            .await
            .expect("it goes on");
    }
    assert_eq!(
        error_reason(server.client.delete_workspace(&first).await),
        ErrorReason::EngineUnavailable
    );
    assert_eq!(
        server.get_workspace(&first).await.state(),
        WorkspaceState::Closing
    );

    server.engine.set_unavailable(false);
    wait_until(
        "the engine is back, and so the deletion is done",
        async || (workspace_names(&server).await == [warm.clone()]).then_some(()),
    )
    .await;
    wait_for_pool(&server, "warm", |pool| {
        pool.warm == 1 && pool.problem.is_empty()
    })
    .await;
    assert!(server.stop().await);
}

fn list_request(workspace: &str) -> skilld_proto::v1::ListExecsRequest {
    skilld_proto::v1::ListExecsRequest {
        parent: workspace.to_owned(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resize_and_drain_remove_surplus_containers() {
    let server = TestServer::start("", &[]).await;
    server
        .client
        .resize_pool("default", 3)
        .await
        .expect("resized");
    wait_for_pool(&server, "three", |pool| pool.warm == 3).await;
    server
        .client
        .resize_pool("default", 1)
        .await
        .expect("resized");
    wait_for_pool(&server, "one", |pool| {
        pool.warm == 1 && pool.claimed == 0 && pool.booting == 0
    })
    .await;
    assert_eq!(server.engine.container_ids().len(), 1);
    server.workspace().await;
    let drained = server
        .client
        .drain(skilld_proto::v1::DrainRequest {
            remove_workspaces: true,
            refuse_execs: true,
        })
        .await
        .expect("drained");
    assert_eq!(drained.removed_workspace_count, 1);
    assert_eq!(server.engine.container_ids(), Vec::<String>::new());
    assert_eq!(
        error_reason(server.client.create_workspace(create_request("late")).await),
        ErrorReason::Draining
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_refuses_by_its_extent_until_it_is_taken_back() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let start_exec = async || {
        let request = skilld_proto::v1::StartExecRequest {
            parent: workspace.clone(),
            spec: Some(skilld_proto::v1::ExecSpec {
                shell: "true".to_owned(),
                ..skilld_proto::v1::ExecSpec::default()
            }),
            ..skilld_proto::v1::StartExecRequest::default()
        };
        server.client.start_exec(request).await
    };
    for (remove, execs) in [(false, false), (false, true), (true, false)] {
        let request = skilld_proto::v1::DrainRequest {
            remove_workspaces: remove,
            refuse_execs: execs,
        };
        server.client.drain(request).await.expect("draining");
        let created = server.client.create_workspace(create_request("w")).await;
        assert_eq!(error_reason(created), ErrorReason::Draining);
        match (remove, execs) {
            (false, false) => drop(start_exec().await.expect("existing ones go on")),
            (false, true) => assert_eq!(error_reason(start_exec().await), ErrorReason::Draining),
            (true, _) => assert_eq!(server.engine.container_ids(), Vec::<String>::new()),
        }
        if execs {
            // A second operator, who asks for less.
            let less = skilld_proto::v1::DrainRequest::default();
            server.client.drain(less).await.expect("draining");
            assert_eq!(error_reason(start_exec().await), ErrorReason::Draining);
        }
        wait_for_health(&server, false).await;
        server.client.undrain().await.expect("taken back");
        wait_for_health(&server, true).await;
    }
    wait_for_pool(&server, "warm again", |pool| pool.warm == 1).await;
    let created = server.client.create_workspace(create_request("w")).await;
    created.expect("accepted again");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_without_warm_target_recovers_by_itself() {
    let toml = "engine.boot_timeout = \"1s\"\npools.default.claim_timeout = \"3s\"\n";
    let server = TestServer::start(toml, &[]).await;
    server
        .client
        .resize_pool("default", 0)
        .await
        .expect("resized");
    wait_for_pool(&server, "empty", |pool| {
        pool.warm + pool.booting + pool.claimed == 0
    })
    .await;
    server.engine.start_without_guest();
    let failed = server
        .client
        .create_workspace(create_request("fails"))
        .await;
    assert_eq!(error_reason(failed), ErrorReason::PoolExhausted);
    server.engine.start_with_guest();
    // The pool recovers without a request.
    wait_for_pool(&server, "fine", |pool| pool.problem.is_empty()).await;
    wait_for_health(&server, true).await;
    create_workspace_patiently(&server, "works").await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_request_with_own_limits_does_not_affect_the_pool() {
    let toml = "engine.boot_timeout = \"1s\"\npools.default.max = 4\n";
    let server = TestServer::start(toml, &[]).await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    server.engine.start_without_guest();
    let own = CreateWorkspaceRequest {
        limits: Some(WorkspaceLimits {
            pids: 64,
            ..Default::default()
        }),
        ..create_request("own")
    };
    assert_eq!(
        error_reason(server.client.create_workspace(own).await),
        ErrorReason::PoolExhausted
    );
    let pool = server.client.get_pool("default").await.expect("pool");
    assert_eq!((pool.warm, pool.problem.as_str()), (1, ""));
    server.engine.start_with_guest();
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_limit_above_the_memory_limit_is_rejected() {
    let server = TestServer::start("", &[]).await;
    let small = CreateWorkspaceRequest {
        limits: Some(WorkspaceLimits {
            memory_bytes: 64 << 20,
            ..Default::default()
        }),
        ..create_request("small")
    };
    assert_eq!(
        error_reason(server.client.create_workspace(small.clone()).await),
        ErrorReason::LimitUnsupported
    );
    let mut fits = small;
    fits.limits.as_mut().expect("limits").disk_bytes = 32 << 20;
    server
        .client
        .create_workspace(fits)
        .await
        .expect("made for it");
    assert!(server.stop().await);
}

//! Pools and workspaces in a whole server, over the fake engine and the real guest: claims, refills, queues,
//! losses, restarts.

#[path = "support/server.rs"]
#[expect(dead_code, reason = "shared with tests that use more of it")]
mod server;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use server::TestServer;
use skilld::engine::fake::Operation;
use skilld_client::{Error, RetryPolicy};
use skilld_proto::v1::{
    CreateWorkspaceRequest, ListWorkspacesRequest, Pool, Reason, Workspace, WorkspaceLimits,
    WorkspaceState, workspace_failure::Cause,
};

/// Nothing here may take longer.
const DEADLINE: Duration = Duration::from_secs(20);

fn named(id: &str) -> CreateWorkspaceRequest {
    CreateWorkspaceRequest {
        name: format!("workspaces/{id}"),
        ..Default::default()
    }
}

/// Waits until the pool looks as wanted. Pools say nothing by themselves, so this looks.
async fn pool_becomes(server: &TestServer, what: &str, wanted: impl Fn(&Pool) -> bool) -> Pool {
    let started = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    loop {
        tick.tick().await;
        let pool = server.client.get_pool("default").await.expect("pool");
        if wanted(&pool) {
            return pool;
        }
        assert!(
            started.elapsed() < DEADLINE,
            "the pool did not become {what}: {pool:?}"
        );
    }
}

async fn state_becomes(server: &TestServer, name: &str, wanted: WorkspaceState) -> Workspace {
    let started = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    loop {
        tick.tick().await;
        let workspace = server.client.get_workspace(name).await.expect("listed");
        if workspace.state() == wanted {
            return workspace;
        }
        assert!(
            started.elapsed() < DEADLINE,
            "did not become {wanted:?}: {workspace:?}"
        );
    }
}

async fn names(server: &TestServer) -> Vec<String> {
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

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> Reason {
    let error = result.expect_err("refused");
    error
        .reason()
        .unwrap_or_else(|| panic!("no reason: {error:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_a_warm_slot_and_refills_the_pool() {
    let server = TestServer::start("", &[]).await;
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    let created = server.engine.calls(Operation::Create);
    server.workspace().await;
    let pool = pool_becomes(&server, "warm again", |pool| {
        pool.warm == 1 && pool.claimed == 1
    })
    .await;
    assert_eq!((pool.booting, pool.waiting), (0, 0));
    assert_eq!(
        server.engine.calls(Operation::Create),
        created + 1,
        "one claim, one refill"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_exclusive_and_a_retry_gets_its_workspace() {
    let server = TestServer::start("pools.default.max = 4\n", &[]).await;
    let request = CreateWorkspaceRequest {
        request_id: "one".to_owned(),
        ..named("same")
    };
    let creates = (0..16).map(|_| server.client.create_workspace(request.clone()));
    for workspace in futures::future::join_all(creates).await {
        assert_eq!(workspace.expect("one for all").name, "workspaces/same");
    }
    assert_eq!(names(&server).await, ["workspaces/same"]);
    pool_becomes(&server, "calm", |pool| pool.claimed == 1 && pool.warm == 1).await;

    let two = CreateWorkspaceRequest {
        request_id: "two".to_owned(),
        ..request.clone()
    };
    // The client chooses an id for each call that has none.
    for taken in [named("same"), named("same"), two] {
        let answer = server.client.create_workspace(taken).await;
        assert_eq!(reason(answer), Reason::IdTaken);
    }
    // A client that knows of no ids, twice.
    for _ in 0..2 {
        let mut stub = server.client.workspaces();
        let answer = stub.create_workspace(named("same")).await;
        let status = answer.expect_err("taken");
        assert_eq!(status.code(), tonic::Code::AlreadyExists, "{status:?}");
    }
    let long = CreateWorkspaceRequest {
        request_id: "x".repeat(129),
        ..named("long")
    };
    assert_eq!(
        reason(server.client.create_workspace(long).await),
        Reason::InvalidRequest
    );
    let other = CreateWorkspaceRequest {
        labels: BTreeMap::from([("a".into(), "b".into())]),
        ..request
    };
    assert_eq!(
        reason(server.client.create_workspace(other.clone()).await),
        Reason::IdTaken
    );
    let existing = CreateWorkspaceRequest {
        allow_existing: true,
        ..other
    };
    let found = server
        .client
        .create_workspace(existing)
        .await
        .expect("the one there is");
    assert!(found.labels.is_empty(), "it was not changed");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_bounded_and_every_wait_has_a_deadline() {
    let toml = "pools.default.max = 1\npools.default.queue_max = 1\npools.default.claim_timeout = \"300ms\"\n";
    let server = TestServer::start(toml, &[]).await;
    let first = server.workspace().await;
    let started = Instant::now();
    let waits = (0..2).map(|_| {
        server
            .client
            .create_workspace(CreateWorkspaceRequest::default())
    });
    for result in futures::future::join_all(waits).await {
        let error = result.expect_err("none is free");
        assert_eq!(error.reason(), Some(Reason::PoolExhausted), "{error}");
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

    // A waiter gets what comes free.
    let client = server.client.clone();
    let (created, deleted) = tokio::join!(
        async { client.create_workspace(named("next")).await },
        async { server.client.delete_workspace(&first).await }
    );
    deleted.expect("deleted");
    // The deletion and the refill may take longer than the wait allows; then the next try finds it.
    if let Err(error) = created {
        assert_eq!(error.reason(), Some(Reason::PoolExhausted), "{error}");
        pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
        server
            .client
            .create_workspace(named("next"))
            .await
            .expect("free now");
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_above_the_pools_are_refused_and_smaller_ones_get_their_own_container() {
    let server = TestServer::start("pools.default.max = 4\n", &[]).await;
    let with = |pids| CreateWorkspaceRequest {
        limits: Some(WorkspaceLimits {
            pids,
            ..Default::default()
        }),
        ..Default::default()
    };
    assert_eq!(
        reason(server.client.create_workspace(with(100_000)).await),
        Reason::LimitUnsupported
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
async fn a_slot_whose_guest_never_answers_is_given_up_and_the_pool_says_why() {
    let toml = "engine.boot_timeout = \"200ms\"\npools.default.claim_timeout = \"1s\"\n";
    let server = TestServer::start(toml, &[]).await;
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    server.engine.start_without_guest();
    server.workspace().await;
    let pool = pool_becomes(&server, "in trouble", |pool| !pool.problem.is_empty()).await;
    assert!(
        pool.problem.contains("did not connect within 200ms"),
        "{}",
        pool.problem
    );
    assert_eq!(
        reason(server.client.create_workspace(named("in-vain")).await),
        Reason::PoolExhausted
    );
    assert_eq!(
        names(&server).await.len(),
        1,
        "a failed create leaves no entry"
    );
    assert_eq!(server.client.problems().await.expect("problems").len(), 1);

    server.engine.start_with_guest();
    let pool = pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    assert_eq!(pool.problem, "");
    server
        .client
        .create_workspace(named("in-vain"))
        .await
        .expect("it works again");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_engine_workspaces_go_on_and_new_ones_are_refused() {
    let server = TestServer::start("", &[]).await;
    let first = server.workspace().await;
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    server.engine.unavailable(true);
    let warm = server.workspace().await;
    // The refill fails, and from then on nothing is promised that cannot be had.
    pool_becomes(&server, "in trouble", |pool| !pool.problem.is_empty()).await;
    let refused = server.client.create_workspace(named("refused")).await;
    assert_eq!(reason(refused), Reason::EngineUnavailable);
    for name in [&first, &warm] {
        server
            .client
            .list_execs(list(name))
            .await
            .expect("it goes on");
    }
    assert_eq!(
        reason(server.client.delete_workspace(&first).await),
        Reason::EngineUnavailable
    );
    assert_eq!(
        server
            .client
            .get_workspace(&first)
            .await
            .expect("listed")
            .state(),
        WorkspaceState::Closing
    );

    server.engine.unavailable(false);
    let started = Instant::now();
    while names(&server).await != [warm.clone()] {
        assert!(
            started.elapsed() < DEADLINE,
            "the deletion is carried out when the engine is back"
        );
        tokio::task::yield_now().await;
    }
    pool_becomes(&server, "warm", |pool| {
        pool.warm == 1 && pool.problem.is_empty()
    })
    .await;
    assert!(server.stop().await);
}

fn list(workspace: &str) -> skilld_proto::v1::ListExecsRequest {
    skilld_proto::v1::ListExecsRequest {
        workspace: workspace.to_owned(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_whose_container_dies_is_failed_within_2_s_and_stays_listed() {
    let server = TestServer::start("workspaces.failed_retention = \"500ms\"\n", &[]).await;
    let name = server.workspace().await;
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    let containers = server.engine.containers();
    assert_eq!(containers.len(), 2);
    let started = Instant::now();
    for container in &containers {
        server.engine.kill(container).await;
    }
    let lost = state_becomes(&server, &name, WorkspaceState::Failed).await;
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(lost.failure.expect("failure").cause(), Cause::ContainerLost);
    assert_eq!(
        reason(server.client.list_execs(list(&name)).await),
        Reason::WorkspaceNotReady
    );
    // The warm one that died with it is replaced, and the failed one is forgotten after its time.
    pool_becomes(&server, "warm", |pool| pool.warm == 1 && pool.claimed == 0).await;
    assert_eq!(
        reason(server.client.get_workspace(&name).await),
        Reason::WorkspaceNotFound
    );
    assert!(
        !server
            .engine
            .containers()
            .iter()
            .any(|id| containers.contains(id)),
        "nothing of them is left"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_workspace_is_removed_and_a_used_one_is_not() {
    let server = TestServer::start("", &[]).await;
    let second = Some(prost_types::Duration {
        seconds: 1,
        nanos: 0,
    });
    let idle = CreateWorkspaceRequest {
        idle_timeout: second,
        ..named("idle")
    };
    server.client.create_workspace(idle).await.expect("created");
    let used = CreateWorkspaceRequest {
        idle_timeout: second,
        ..named("used")
    };
    server.client.create_workspace(used).await.expect("created");
    let started = Instant::now();
    while names(&server).await.contains(&"workspaces/idle".to_owned()) {
        server
            .client
            .list_execs(list("workspaces/used"))
            .await
            .expect("in use");
        assert!(started.elapsed() < DEADLINE, "it is idle and stays");
    }
    assert!(
        started.elapsed() >= Duration::from_millis(900),
        "not before its time: {:?}",
        started.elapsed()
    );
    assert_eq!(names(&server).await, ["workspaces/used"]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_workspaces_and_warm_slots() {
    let server = TestServer::start("", &[]).await;
    let request = CreateWorkspaceRequest {
        request_id: "one".into(),
        ..named("kept")
    };
    server
        .client
        .create_workspace(request.clone())
        .await
        .expect("created");
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    let mut before = server.engine.containers();
    before.sort();
    let server = server.restart(|_| {}).await;
    assert_eq!(names(&server).await, ["workspaces/kept"]);
    server
        .client
        .list_execs(list("workspaces/kept"))
        .await
        .expect("usable at once");
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    let mut after = server.engine.containers();
    after.sort();
    assert_eq!(after, before, "nothing was made anew");
    // The same request still gives the same workspace.
    server
        .client
        .create_workspace(request)
        .await
        .expect("the same request");
    assert_eq!(names(&server).await.len(), 1);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_removes_what_nobody_owns() {
    let server = TestServer::start("", &[]).await;
    server
        .client
        .create_workspace(named("lost"))
        .await
        .expect("created");
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    let before = server.engine.containers();
    let server = server
        .restart(|state| {
            let slots: Vec<_> = std::fs::read_dir(state.join("slots"))
                .expect("slots")
                .collect();
            assert_eq!(slots.len(), 2);
            for slot in slots {
                let record = slot.expect("entry").path().join("record.json");
                std::fs::write(record, "{ \"version\": 1, ").expect("damaged");
            }
            std::fs::create_dir_all(state.join("slots/half-made/run")).expect("mkdir");
        })
        .await;
    assert_eq!(names(&server).await, Vec::<String>::new());
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    let after = server.engine.containers();
    assert_eq!(after.len(), 1, "only the new one: {after:?}");
    assert!(
        !before.contains(&after[0]),
        "containers without a record are orphans"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn resize_and_drain_remove_what_is_too_much() {
    let server = TestServer::start("", &[]).await;
    server
        .client
        .resize_pool("default", 3)
        .await
        .expect("resized");
    pool_becomes(&server, "three", |pool| pool.warm == 3).await;
    server
        .client
        .resize_pool("default", 1)
        .await
        .expect("resized");
    pool_becomes(&server, "one", |pool| {
        pool.warm == 1 && pool.claimed == 0 && pool.booting == 0
    })
    .await;
    assert_eq!(server.engine.containers().len(), 1);
    server.workspace().await;
    let drained = server
        .client
        .drain(skilld_proto::v1::DrainRequest { remove: true })
        .await
        .expect("drained");
    assert_eq!(drained.removed_workspaces, 1);
    assert_eq!(server.engine.containers(), Vec::<String>::new());
    assert_eq!(
        reason(server.client.create_workspace(named("late")).await),
        Reason::Draining
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_its_caller_gives_up_leaves_nothing() {
    let toml = "pools.default.max = 1\nworkspaces.count_max = 3\n";
    let server = TestServer::start(toml, &[]).await;
    let first = server.workspace().await;
    for round in 0..8 {
        let create = server
            .client
            .create_workspace(CreateWorkspaceRequest::default());
        let given_up = tokio::time::timeout(Duration::from_millis(50), create).await;
        assert!(
            given_up.is_err(),
            "round {round}: none is free, so it waits: {given_up:?}"
        );
        pool_becomes(&server, "quiet", |pool| pool.waiting == 0).await;
    }
    assert_eq!(names(&server).await, std::slice::from_ref(&first));
    server
        .client
        .delete_workspace(&first)
        .await
        .expect("deleted");
    // Nothing of them counts against the three that there may be.
    server
        .client
        .create_workspace(named("a"))
        .await
        .expect("room");
    assert_eq!(names(&server).await, ["workspaces/a"]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_one_of_two_equal_creates_gives_up_the_other_is_found_by_its_name() {
    let server = TestServer::start("pools.default.max = 1\n", &[]).await;
    let first = server.workspace().await;
    let request = CreateWorkspaceRequest {
        request_id: "one".to_owned(),
        ..named("same")
    };
    let patient = server.client.create_workspace(request.clone());
    let others = async {
        let impatient = server.client.create_workspace(request);
        let given_up = tokio::time::timeout(Duration::from_millis(50), impatient).await;
        assert!(given_up.is_err(), "it gave up: {given_up:?}");
        pool_becomes(&server, "waited for", |pool| pool.waiting == 1).await;
        server.client.delete_workspace(&first).await
    };
    let (deleted, patient) = tokio::join!(others, patient);
    deleted.expect("deleted");
    let made = patient.expect("it waited long enough");
    assert_eq!(
        server
            .client
            .get_workspace(&made.name)
            .await
            .expect("found")
            .name,
        made.name
    );
    server
        .client
        .list_execs(list(&made.name))
        .await
        .expect("usable");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_can_be_used_again_as_soon_as_it_is_deleted() {
    let server = TestServer::start("", &[]).await;
    for _ in 0..5 {
        server
            .client
            .create_workspace(named("again"))
            .await
            .expect("created");
        let (deleted, created) = tokio::join!(
            server.client.delete_workspace("again"),
            server.client.create_workspace(CreateWorkspaceRequest {
                allow_existing: true,
                ..named("again")
            })
        );
        deleted.expect("deleted");
        // Either it found the old one before its end, or it made a new one, which stays.
        created.expect("created");
        server
            .client
            .delete_workspace_if_exists("again")
            .await
            .expect("deleted");
        assert_eq!(names(&server).await, Vec::<String>::new());
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_time_counts_from_the_end_of_the_last_exec() {
    use skilld_proto::v1::{ExecSpec, StartExecRequest};
    let server = TestServer::start("", &[]).await;
    let second = Some(prost_types::Duration {
        seconds: 1,
        nanos: 0,
    });
    let create = CreateWorkspaceRequest {
        idle_timeout: second,
        ..named("busy")
    };
    server
        .client
        .create_workspace(create)
        .await
        .expect("created");
    let started = Instant::now();
    let start = StartExecRequest {
        workspace: "workspaces/busy".into(),
        // Ends just before the second look at the idle time.
        spec: Some(ExecSpec {
            argv: ["sleep", "1.8"].map(str::to_owned).to_vec(),
            cwd: "/workspace".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    // The fake has no /workspace, so where it starts does not matter: a failed spawn ends at once.
    let exec = server.client.start_exec(start).await.expect("started");
    let ran = exec.pid != 0;
    while names(&server).await.contains(&"workspaces/busy".to_owned()) {
        assert!(started.elapsed() < DEADLINE, "it is idle and stays");
        tokio::task::yield_now().await;
    }
    let least = if ran {
        Duration::from_millis(2_700)
    } else {
        Duration::from_millis(900)
    };
    assert!(
        started.elapsed() >= least,
        "{:?} after an exec that ran: {ran}",
        started.elapsed()
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_cannot_see_the_engine_removes_nothing() {
    let server = TestServer::start("", &[]).await;
    server
        .client
        .create_workspace(named("kept"))
        .await
        .expect("created");
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    let away = skilld::error::Error::EngineUnavailable {
        message: "for a moment".into(),
    };
    server.engine.fail_next(Operation::Inspect, away);
    let (error, stopped) = server.restart_in_vain().await;
    assert!(
        matches!(error, skilld::error::Error::EngineUnavailable { .. }),
        "{error}"
    );
    let server = stopped.start_again().await;
    assert_eq!(names(&server).await, ["workspaces/kept"]);
    let kept = server.client.get_workspace("kept").await.expect("listed");
    assert_eq!(kept.state(), WorkspaceState::Ready, "{kept:?}");
    server
        .client
        .list_execs(list("workspaces/kept"))
        .await
        .expect("usable");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_keeps_none_warm_recovers_by_itself() {
    let toml = "engine.boot_timeout = \"200ms\"\npools.default.claim_timeout = \"1s\"\n";
    let server = TestServer::start(toml, &[]).await;
    server
        .client
        .resize_pool("default", 0)
        .await
        .expect("resized");
    pool_becomes(&server, "empty", |pool| {
        pool.warm + pool.booting + pool.claimed == 0
    })
    .await;
    server.engine.start_without_guest();
    let failed = server.client.create_workspace(named("fails")).await;
    assert_eq!(reason(failed), Reason::PoolExhausted);
    server.engine.start_with_guest();
    // Nobody asks it for anything, and yet it must not stay in trouble.
    pool_becomes(&server, "fine", |pool| pool.problem.is_empty()).await;
    let started = Instant::now();
    while !server.client.is_serving("").await.expect("health") {
        assert!(started.elapsed() < DEADLINE, "health stays NOT_SERVING");
        tokio::task::yield_now().await;
    }
    server
        .client
        .create_workspace(named("works"))
        .await
        .expect("it works");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_its_own_size_that_fails_does_not_trouble_the_pool() {
    let toml = "engine.boot_timeout = \"300ms\"\npools.default.max = 4\n";
    let server = TestServer::start(toml, &[]).await;
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    server.engine.start_without_guest();
    let own = CreateWorkspaceRequest {
        limits: Some(WorkspaceLimits {
            pids: 64,
            ..Default::default()
        }),
        ..named("own")
    };
    assert_eq!(
        reason(server.client.create_workspace(own).await),
        Reason::PoolExhausted
    );
    let pool = server.client.get_pool("default").await.expect("pool");
    assert_eq!((pool.warm, pool.problem.as_str()), (1, ""));
    server.engine.start_with_guest();
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_its_memory_cannot_hold_is_refused() {
    let server = TestServer::start("", &[]).await;
    let small = CreateWorkspaceRequest {
        limits: Some(WorkspaceLimits {
            memory_bytes: 64 << 20,
            ..Default::default()
        }),
        ..named("small")
    };
    assert_eq!(
        reason(server.client.create_workspace(small.clone()).await),
        Reason::LimitUnsupported
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

#[tokio::test(flavor = "multi_thread")]
async fn requests_hear_of_a_loss_before_the_engine_has_removed_the_container() {
    let server = TestServer::start("", &[]).await;
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    // The only one there is becomes the workspace's.
    let containers = server.engine.containers();
    assert_eq!(containers.len(), 1);
    let name = server.workspace().await;
    let client = server.client.clone().with_retry(RetryPolicy::none());
    // Long enough for the request to come before anybody knows.
    let look = Duration::from_millis(300);
    server.engine.delay(Operation::Inspect, look);
    let removal = Duration::from_secs(5);
    server.engine.delay(Operation::Remove, removal);
    server.engine.kill(&containers[0]).await;
    let started = Instant::now();
    let listed = client.list_execs(list(&name)).await;
    assert_eq!(reason(listed), Reason::GuestLost);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    server.engine.delay(Operation::Remove, Duration::ZERO);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_an_engine_that_hangs() {
    let server = TestServer::start("server.stop_timeout = \"2s\"\n", &[]).await;
    server.workspace().await;
    pool_becomes(&server, "warm", |pool| pool.warm == 1).await;
    let looks = server.engine.calls(Operation::Inspect);
    let hang = Duration::from_secs(30);
    server.engine.delay(Operation::Inspect, hang);
    let containers = server.engine.containers();
    server.engine.kill(&containers[0]).await;
    let started = Instant::now();
    while server.engine.calls(Operation::Inspect) < looks + 2 {
        assert!(started.elapsed() < DEADLINE, "nobody looks");
        tokio::task::yield_now().await;
    }
    assert!(server.stop().await, "in time");
}

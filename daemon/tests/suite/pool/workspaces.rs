//! Tests of the lifecycle of workspaces: names, idle timeout, loss and deletion.

use super::*;
use crate::server::within;
use skilld_proto::v1::{ExecSpec, RenewWorkspaceRequest, StartExecRequest};

/// Number of rounds; one without a pause of the machine is enough.
const ROUNDS: usize = 5;

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

#[tokio::test(flavor = "multi_thread")]
async fn name_is_exclusive_and_a_retry_returns_the_same_workspace() {
    let server = TestServer::start("pools.default.max = 4\n", &[]).await;
    let request = CreateWorkspaceRequest {
        request_id: "one".to_owned(),
        ..create_request("same")
    };
    let creates = (0..16).map(|_| server.client.create_workspace(request.clone()));
    let created: Vec<Workspace> = futures::future::join_all(creates)
        .await
        .into_iter()
        .map(|one| one.expect("one for all"))
        .collect();
    let create_time = created[0].create_time;
    assert!(create_time.is_some());
    for workspace in &created {
        assert_eq!(workspace.name, "workspaces/same");
        assert_eq!(workspace.create_time, create_time);
    }
    assert_eq!(workspace_names(&server).await, ["workspaces/same"]);
    wait_for_pool(&server, "calm", |pool| pool.claimed == 1 && pool.warm == 1).await;

    let two = CreateWorkspaceRequest {
        request_id: "two".to_owned(),
        ..request.clone()
    };
    // The client generates a request id for each call without one.
    for taken in [create_request("same"), create_request("same"), two] {
        let answer = server.client.create_workspace(taken).await;
        let error = answer.expect_err("taken");
        assert_eq!(error.reason(), Some(ErrorReason::IdTaken), "{error}");
        let failure = error.failure().expect("a status");
        assert_eq!(failure.resource.as_deref(), Some("workspaces/same"));
    }
    // Two requests of a client that sends no request ids.
    for _ in 0..2 {
        let mut stub = server.client.workspaces();
        let answer = stub.create_workspace(create_request("same")).await;
        let status = answer.expect_err("taken");
        assert_eq!(status.code(), tonic::Code::AlreadyExists, "{status:?}");
    }
    let long = CreateWorkspaceRequest {
        request_id: "x".repeat(129),
        ..create_request("long")
    };
    assert_eq!(
        error_reason(server.client.create_workspace(long).await),
        ErrorReason::InvalidRequest
    );
    let other = CreateWorkspaceRequest {
        labels: BTreeMap::from([("a".into(), "b".into())]),
        ..request
    };
    assert_eq!(
        error_reason(server.client.create_workspace(other.clone()).await),
        ErrorReason::IdTaken
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
    assert!(found.labels.is_empty(), "the workspace was not changed");
    assert_eq!(found.create_time, create_time);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn workspace_with_a_dead_container_fails_and_stays_listed() {
    let server = TestServer::start("", &[]).await;
    let name = server.workspace().await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let containers = server.engine.container_ids();
    assert_eq!(containers.len(), 2);
    for container in &containers {
        server.engine.kill_container(container).await;
    }
    let lost = wait_for_state(&server, &name, WorkspaceState::Failed).await;
    // A guest that does not come back in time is another cause.
    assert_eq!(lost.failure.expect("failure").cause(), Cause::ContainerLost);
    assert_eq!(
        error_reason(server.client.list_execs(list_request(&name)).await),
        ErrorReason::WorkspaceNotReady
    );
    wait_until("the pool replaces the warm container", async || {
        let now = server.engine.container_ids();
        (now.len() == 1 && !containers.contains(&now[0])).then_some(())
    })
    .await;
    assert_eq!(workspace_names(&server).await, [name]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_workspace_is_removed_after_its_retention() {
    let server = TestServer::start_after("", &[], |config| {
        config.workspaces.failed_retention = Duration::from_millis(500);
    })
    .await;
    let name = server.workspace().await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let containers = server.engine.container_ids();
    for container in &containers {
        server.engine.kill_container(container).await;
    }
    wait_until("the workspace is gone", async || {
        let found = server.client.get_workspace(&name).await;
        let reason = found.err().and_then(|error| error.reason());
        (reason == Some(ErrorReason::WorkspaceNotFound)).then_some(())
    })
    .await;
    wait_until("nothing of them is left", async || {
        let now = server.engine.container_ids();
        let is_left = now.iter().any(|id| containers.contains(id));
        (!is_left).then_some(())
    })
    .await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1 && pool.claimed == 0).await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_workspace_is_removed_and_used_workspace_is_kept() {
    let server = TestServer::start("", &[]).await;
    let idle_timeout = Duration::from_secs(3);
    let started = Instant::now();
    for id in ["idle", "used"] {
        let create = CreateWorkspaceRequest {
            idle_timeout: seconds(3),
            ..create_request(id)
        };
        server
            .client
            .create_workspace(create)
            .await
            .expect("created");
    }
    let mut last_use = started;
    let mut use_workspace = async || {
        let asked = Instant::now();
        let used = server.client.list_execs(list_request("workspaces/used"));
        match used.await {
            Ok(_) => last_use = asked,
            // Only a pause of the machine lets the test use it too late.
            Err(error) => assert!(last_use.elapsed() >= idle_timeout, "{error}"),
        }
    };
    within(async {
        while workspace_names(&server)
            .await
            .contains(&"workspaces/idle".to_owned())
        {
            use_workspace().await;
        }
    })
    .await;
    assert!(
        started.elapsed() >= Duration::from_millis(2_900),
        "not before its time: {:?}",
        started.elapsed()
    );
    // It outlives the other one.
    use_workspace().await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_create_leaves_no_workspace() {
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
        wait_for_pool(&server, "quiet", |pool| pool.waiting == 0).await;
    }
    assert_eq!(workspace_names(&server).await, std::slice::from_ref(&first));
    server
        .client
        .delete_workspace(&first)
        .await
        .expect("deleted");
    // The cancelled requests do not count towards the maximum of three workspaces.
    create_workspace(&server, "a").await;
    assert_eq!(workspace_names(&server).await, ["workspaces/a"]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_one_of_two_equal_creates_spares_the_other() {
    let server = TestServer::start("pools.default.max = 1\n", &[]).await;
    let first = server.workspace().await;
    let request = CreateWorkspaceRequest {
        request_id: "one".to_owned(),
        ..create_request("same")
    };
    let patient = server.client.create_workspace(request.clone());
    let others = async {
        let impatient = server.client.create_workspace(request);
        let given_up = tokio::time::timeout(Duration::from_millis(50), impatient).await;
        assert!(given_up.is_err(), "it gave up: {given_up:?}");
        wait_for_pool(&server, "waited for", |pool| pool.waiting == 1).await;
        server.client.delete_workspace(&first).await
    };
    let (deleted, patient) = tokio::join!(others, patient);
    deleted.expect("deleted");
    let made = patient.expect("it waited long enough");
    assert_eq!(server.get_workspace(&made.name).await.name, made.name);
    server
        .client
        .list_execs(list_request(&made.name))
        .await
        .expect("usable");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn name_can_be_reused_as_soon_as_its_workspace_is_deleted() {
    let server = TestServer::start("", &[]).await;
    for _ in 0..5 {
        create_workspace(&server, "again").await;
        let (deleted, created) = tokio::join!(
            server.client.delete_workspace("again"),
            server.client.create_workspace(CreateWorkspaceRequest {
                allow_existing: true,
                ..create_request("again")
            })
        );
        deleted.expect("deleted");
        // The request returned the old workspace before its end, or created a new one.
        created.expect("created");
        server
            .client
            .delete_workspace_if_exists("again")
            .await
            .expect("deleted");
        assert_eq!(workspace_names(&server).await, Vec::<String>::new());
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_time_counts_from_the_end_of_the_last_exec() {
    let server = TestServer::start("", &[]).await;
    create_workspace(&server, "busy").await;
    let started = Instant::now();
    let start = StartExecRequest {
        parent: "workspaces/busy".into(),
        // Ends shortly before the second check of the idle time.
        spec: Some(ExecSpec {
            argv: ["sleep", "1.8"].map(str::to_owned).to_vec(),
            cwd: "/workspace".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    // With the fake engine /workspace may not exist; then the spawn fails and the exec ends at once.
    let exec = server.client.start_exec(start).await.expect("started");
    let ran = exec.pid != 0;
    let renew = RenewWorkspaceRequest {
        name: "workspaces/busy".into(),
        idle_timeout: seconds(1),
        expire_time: None,
    };
    server.client.renew_workspace(renew).await.expect("renewed");
    wait_until("the idle workspace is removed", async || {
        let names = workspace_names(&server).await;
        names.is_empty().then_some(())
    })
    .await;
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

/// Makes a request while the container of its workspace dies and the engine takes long to remove it. Returns its
/// reason, and `true` if the container still existed when the answer came.
async fn request_while_removing() -> (ErrorReason, bool) {
    // The daemon waits for the removal for longer than it lasts.
    let server = TestServer::start("engine.remove_timeout = \"80s\"\n", &[]).await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    // The workspace gets the only container.
    let containers = server.engine.container_ids();
    assert_eq!(containers.len(), 1);
    let name = server.workspace().await;
    let client = server.client.clone().with_retry(RetryPolicy::none());
    // Long enough for the request to arrive before the daemon notices the loss.
    let look = Duration::from_millis(300);
    server.engine.set_delay(EngineOperation::Inspect, look);
    let removal = Duration::from_secs(60);
    server.engine.set_delay(EngineOperation::Remove, removal);
    let container = containers.first().expect("one");
    server.engine.kill_container(container).await;
    let listed = within(client.list_execs(list_request(&name))).await;
    let exists = server.engine.container_ids().contains(container);
    // A stop would wait for the removal, so the daemon is dropped.
    (error_reason(listed), exists)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_fail_with_guest_lost_before_container_removal() {
    for _ in 0..ROUNDS {
        let (reason, exists) = request_while_removing().await;
        assert!(exists, "the request waited for the removal");
        if reason == ErrorReason::GuestLost {
            return;
        }
        // The daemon had noticed the loss before the request came.
        assert_eq!(reason, ErrorReason::WorkspaceNotReady);
    }
    panic!("no request came before the daemon noticed the loss");
}

//! Tests of the lifecycle of workspaces: names, idle timeout, loss and deletion.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn name_is_exclusive_and_a_retry_returns_the_same_workspace() {
    let server = TestServer::start("pools.default.max = 4\n", &[]).await;
    let request = CreateWorkspaceRequest {
        request_id: "one".to_owned(),
        ..create_request("same")
    };
    let creates = (0..16).map(|_| server.client.create_workspace(request.clone()));
    for workspace in futures::future::join_all(creates).await {
        assert_eq!(workspace.expect("one for all").name, "workspaces/same");
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
        assert_eq!(error_reason(answer), Reason::IdTaken);
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
        Reason::InvalidRequest
    );
    let other = CreateWorkspaceRequest {
        labels: BTreeMap::from([("a".into(), "b".into())]),
        ..request
    };
    assert_eq!(
        error_reason(server.client.create_workspace(other.clone()).await),
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
async fn workspace_with_a_dead_container_fails_within_2_s_and_stays_listed() {
    let server = TestServer::start("workspaces.failed_retention = \"500ms\"\n", &[]).await;
    let name = server.workspace().await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let containers = server.engine.container_ids();
    assert_eq!(containers.len(), 2);
    let started = Instant::now();
    for container in &containers {
        server.engine.kill_container(container).await;
    }
    let lost = wait_for_state(&server, &name, WorkspaceState::Failed).await;
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(lost.failure.expect("failure").cause(), Cause::ContainerLost);
    assert_eq!(
        error_reason(server.client.list_execs(list_request(&name)).await),
        Reason::WorkspaceNotReady
    );
    // The pool replaces the warm container, and the failed workspace is removed after its retention.
    wait_for_pool(&server, "warm", |pool| pool.warm == 1 && pool.claimed == 0).await;
    assert_eq!(
        error_reason(server.client.get_workspace(&name).await),
        Reason::WorkspaceNotFound
    );
    assert!(
        !server
            .engine
            .container_ids()
            .iter()
            .any(|id| containers.contains(id)),
        "nothing of them is left"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_workspace_is_removed_and_used_workspace_is_kept() {
    let server = TestServer::start("", &[]).await;
    let three_seconds = Some(prost_types::Duration {
        seconds: 3,
        nanos: 0,
    });
    let started = Instant::now();
    let idle = CreateWorkspaceRequest {
        idle_timeout: three_seconds,
        ..create_request("idle")
    };
    server.client.create_workspace(idle).await.expect("created");
    let used = CreateWorkspaceRequest {
        idle_timeout: three_seconds,
        ..create_request("used")
    };
    server.client.create_workspace(used).await.expect("created");
    while workspace_names(&server)
        .await
        .contains(&"workspaces/idle".to_owned())
    {
        server
            .client
            .list_execs(list_request("workspaces/used"))
            .await
            .expect("in use");
        assert!(started.elapsed() < DEADLINE, "an idle workspace stays");
    }
    assert!(
        started.elapsed() >= Duration::from_millis(2_900),
        "not before its time: {:?}",
        started.elapsed()
    );
    assert_eq!(workspace_names(&server).await, ["workspaces/used"]);
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
async fn cancelling_one_of_two_equal_creates_does_not_affect_the_other() {
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
    use skilld_proto::v1::{ExecSpec, StartExecRequest};
    let server = TestServer::start("", &[]).await;
    let second = Some(prost_types::Duration {
        seconds: 1,
        nanos: 0,
    });
    let create = CreateWorkspaceRequest {
        idle_timeout: second,
        ..create_request("busy")
    };
    server
        .client
        .create_workspace(create)
        .await
        .expect("created");
    let started = Instant::now();
    let start = StartExecRequest {
        workspace: "workspaces/busy".into(),
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
    while workspace_names(&server)
        .await
        .contains(&"workspaces/busy".to_owned())
    {
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
async fn requests_fail_with_guest_lost_before_the_container_is_removed() {
    let server = TestServer::start("", &[]).await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    // The workspace gets the only container.
    let containers = server.engine.container_ids();
    assert_eq!(containers.len(), 1);
    let name = server.workspace().await;
    let client = server.client.clone().with_retry(RetryPolicy::none());
    // Long enough for the request to arrive before the daemon notices the loss.
    let look = Duration::from_millis(300);
    server.engine.set_delay(EngineOperation::Inspect, look);
    let removal = Duration::from_secs(5);
    server.engine.set_delay(EngineOperation::Remove, removal);
    server.engine.kill_container(&containers[0]).await;
    let started = Instant::now();
    let listed = client.list_execs(list_request(&name)).await;
    assert_eq!(error_reason(listed), Reason::GuestLost);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    server
        .engine
        .set_delay(EngineOperation::Remove, Duration::ZERO);
    assert!(server.stop().await);
}

//! Quotas of tenants: never exceeded by clients at once, exact after a restart, and refused with what is used and allowed.

use std::time::Duration;

use skilld::engine::fake::EngineOperation;
use skilld_client::Client;
use skilld_proto::v1 as pb;
use skilld_tests::authority::install;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::harness::{AccessServer, tenants_text};
use super::streams::OpenStream;
use crate::server::wait_until;

/// Number of clients that try at once.
pub(super) const CLIENTS: usize = 50;

/// Writes a file of tenants whose tenant `a` has these keys, and waits until they are in force.
pub(super) async fn set_quotas(server: &AccessServer, keys: &str, resource: &str, limit: i64) {
    let text = tenants_text("admin").replace("[tenants.a]\n", &format!("[tenants.a]\n{keys}\n"));
    install(&server.path("tenants.toml"), &text, 0o644);
    let observer = server.client("a", "observer").await;
    wait_until("the quota is in force", async || {
        (usage(&observer, resource).await.1 == Some(limit)).then_some(())
    })
    .await;
}

/// Returns the used amount and the limit of a resource.
pub(super) async fn usage(client: &Client, resource: &str) -> (i64, Option<i64>) {
    let usage = client.get_tenant_usage().await.expect("usage");
    let found = usage
        .resources
        .into_iter()
        .find(|it| it.resource == resource)
        .expect(resource);
    (found.used, found.limit)
}

/// Creates a workspace without waiting for a container.
pub(super) async fn create(client: &Client, id: &str) -> Result<pb::Workspace, Status> {
    let request = pb::CreateWorkspaceRequest {
        workspace_id: id.to_owned(),
        ..pb::CreateWorkspaceRequest::default()
    };
    let answer = client.workspaces().create_workspace(request).await;
    answer.map(tonic::Response::into_inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_without_a_pool_learns_whom_to_ask() {
    let server = AccessServer::start().await;
    let user = server.client("a", "user").await;
    set_quotas(&server, "pools = []\nexecs = 1", "execs", 1).await;
    let status = create(&user, "w").await.expect_err("not its pool");
    assert_eq!(status.code(), Code::NotFound, "{status}");
    let expected =
        "pool default does not exist for your tenant, which may use none: ask the operator";
    assert_eq!(status.message(), expected);
    assert!(server.stop().await);
}

/// Asserts that a quota refused a call, and which.
#[track_caller]
pub(super) fn check_refusal(status: &Status, subject: &str, used: &str, limit: &str) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let details = status.get_error_details();
    let info = details.error_info().expect("ErrorInfo");
    assert_eq!(info.reason, "QUOTA_EXCEEDED");
    let metadata = |key: &str| info.metadata.get(key).map(String::as_str);
    assert_eq!(
        (metadata("used"), metadata("limit")),
        (Some(used), Some(limit))
    );
    let failure = details.quota_failure().expect("QuotaFailure");
    assert_eq!(failure.violations.first().expect("one").subject, subject);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_at_once_never_exceed_a_quota_of_workspaces() {
    let server = AccessServer::start().await;
    set_quotas(&server, "workspaces = 3", "workspaces", 3).await;
    let mut tries = Vec::new();
    for index in 0..CLIENTS {
        let client = server.client("a", "user").await;
        tries.push(async move { create(&client, &format!("w{index}")).await });
    }
    let results = futures::future::join_all(tries).await;
    let (created, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((created.len(), refused.len()), (3, CLIENTS - 3));
    for refusal in refused {
        let status = refusal.expect_err("refused");
        check_refusal(&status, "tenants/a/workspaces", "3", "3");
        assert!(
            status.get_error_details().retry_info().is_none(),
            "waiting does not help"
        );
    }
    let user = server.client("a", "user").await;
    assert_eq!(usage(&user, "workspaces").await, (3, Some(3)));
    assert_eq!(
        usage(&server.client("b", "user").await, "workspaces").await,
        (0, None)
    );
    create(&server.client("b", "user").await, "w0")
        .await
        .expect("of another tenant");
    let first = created.into_iter().next().expect("three").expect("created");
    user.delete_workspace(&first.name).await.expect("deleted");
    assert_eq!(usage(&user, "workspaces").await, (2, Some(3)));
    create(&user, "again").await.expect("one was deleted");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_cannot_be_removed_counts_until_it_is_gone() {
    let lines = "engine.remove_timeout = \"300ms\"\nengine.reconcile_interval = \"100ms\"\n";
    let server = AccessServer::start_with(lines).await;
    set_quotas(&server, "workspaces = 1", "workspaces", 1).await;
    let user = server.client("a", "user").await;
    let made = create(&user, "stuck").await.expect("created");
    let memory = made.limits.expect("limits").memory_bytes;
    let hang = Duration::from_secs(3600);
    server.engine.set_delay(EngineOperation::Remove, hang);
    user.delete_workspace(&made.name).await.expect("gone");
    user.get_workspace(&made.name).await.expect_err("gone");
    let server = server.restart().await;
    let user = server.client("a", "user").await;
    assert_eq!(usage(&user, "workspaces").await, (1, Some(1)));
    assert_eq!(usage(&user, "memory").await, (memory, None));
    let refused = create(&user, "more").await.expect_err("no room");
    check_refusal(&refused, "tenants/a/workspaces", "1", "1");
    server
        .engine
        .set_delay(EngineOperation::Remove, Duration::ZERO);
    wait_until("the removed workspace no longer counts", async || {
        (usage(&user, "workspaces").await.0 == 0).then_some(())
    })
    .await;
    create(&user, "more").await.expect("there is room again");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_and_cpus_are_sums_of_reserved_limits() {
    let server = AccessServer::start().await;
    let user = server.client("a", "user").await;
    let first = create(&user, "first").await.expect("created");
    let limits = first.limits.expect("limits");
    let (memory, cpus) = (limits.memory_bytes, limits.cpu_millis);
    assert_eq!(usage(&user, "memory").await, (memory, None));
    assert_eq!(usage(&user, "cpus").await, (cpus, None));
    let limit = memory * 2 - 1;
    set_quotas(&server, &format!("memory = \"{limit}B\""), "memory", limit).await;
    let refused = create(&user, "second").await.expect_err("over the sum");
    check_refusal(
        &refused,
        "tenants/a/memory",
        &memory.to_string(),
        &limit.to_string(),
    );
    // A quota below what is held takes nothing away.
    set_quotas(&server, "memory = 0\ncpus = \"unlimited\"", "memory", 0).await;
    user.get_workspace("workspaces/first")
        .await
        .expect("it stays");
    let refused = create(&user, "second").await.expect_err("none at all");
    check_refusal(&refused, "tenants/a/memory", &memory.to_string(), "0");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn rates_are_refused_with_the_time_to_wait() {
    let server = AccessServer::start().await;
    let keys = "workspace_creates_per_minute = 1\nworkspace_creates_burst = 2";
    set_quotas(&server, keys, "workspace_creates_per_minute", 1).await;
    let user = server.client("a", "user").await;
    for id in ["w1", "w2"] {
        create(&user, id).await.expect("within the burst");
    }
    let refused = create(&user, "w3").await.expect_err("over the rate");
    check_refusal(&refused, "tenants/a/workspace_creates_per_minute", "1", "1");
    let details = refused.get_error_details();
    let wait = details
        .retry_info()
        .and_then(|info| info.retry_delay)
        .expect("RetryInfo");
    // What is left of a minute.
    assert!(
        (Duration::from_secs(1)..=Duration::from_secs(60)).contains(&wait),
        "{wait:?}"
    );
    assert_eq!(
        usage(&user, "workspaces").await.0,
        2,
        "a refused call holds nothing"
    );

    set_quotas(
        &server,
        "requests_per_second = 1\nrequests_burst = 5",
        "requests_per_second",
        1,
    )
    .await;
    wait_until("one of twenty calls at once is refused", async || {
        let calls = (0..20).map(|_| {
            let mut access = user.access();
            async move { access.get_principal(pb::GetPrincipalRequest {}).await }
        });
        let answers = futures::future::join_all(calls).await;
        let mut codes = answers.into_iter().filter_map(Result::err);
        codes
            .any(|status| status.code() == Code::ResourceExhausted)
            .then_some(())
    })
    .await;
    let other = server.client("b", "user").await;
    other
        .get_principal()
        .await
        .expect("another tenant has its own rate");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lifetime_is_bounded_by_its_tenants_quota() {
    let server = AccessServer::start().await;
    let keys = "workspace_lifetime_max = \"10m\"\nworkspaces = 9";
    set_quotas(&server, keys, "workspaces", 9).await;
    let user = server.client("a", "user").await;
    let created = create(&user, "w").await.expect("created");
    assert_eq!(created.max_lifetime.expect("a lifetime").seconds, 600);
    let request = pb::CreateWorkspaceRequest {
        expiry: Some(pb::create_workspace_request::Expiry::MaxLifetime(
            prost_types::Duration {
                seconds: 3600,
                nanos: 0,
            },
        )),
        ..pb::CreateWorkspaceRequest::default()
    };
    let refused = user
        .workspaces()
        .create_workspace(request)
        .await
        .expect_err("too long");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_of_streams_counts_open_ones() {
    let server = AccessServer::start().await;
    set_quotas(&server, "streams = 2", "streams", 2).await;
    let user = server.client("a", "user").await;
    let mut streams = [OpenStream::open(&user).await, OpenStream::open(&user).await];
    let refused = OpenStream::try_open(&user)
        .await
        .err()
        .expect("the third one");
    check_refusal(&refused, "tenants/a/streams", "2", "2");
    for stream in &mut streams {
        stream.assert_open().await;
    }
    drop(streams);
    wait_until("the ended streams no longer count", async || {
        (usage(&user, "streams").await.0 == 0).then_some(())
    })
    .await;
    OpenStream::open(&user).await.assert_open().await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_exact_after_a_restart() {
    let server = AccessServer::start().await;
    let user = server.client("a", "user").await;
    for id in ["w1", "w2"] {
        create(&user, id).await.expect("created");
    }
    let held = ["cpus", "execs", "memory", "workspaces"];
    let mut before = Vec::new();
    for resource in held {
        before.push(usage(&user, resource).await);
    }
    let server = server.restart().await;
    let user = server.client("a", "user").await;
    for (resource, before) in held.into_iter().zip(before) {
        assert_eq!(usage(&user, resource).await, before, "{resource}");
    }
    assert_eq!(usage(&user, "workspaces").await, (2, None));
    assert_eq!(
        usage(&server.client("b", "user").await, "workspaces").await,
        (0, None)
    );
    set_quotas(&server, "workspaces = 2", "workspaces", 2).await;
    let refused = create(&user, "w3").await.expect_err("two are held");
    check_refusal(&refused, "tenants/a/workspaces", "2", "2");
    assert!(server.stop().await);
}

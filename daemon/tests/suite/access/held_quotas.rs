//! Quotas of what tenants hold: fifty clients at once take exactly as much as each permits, and an end gives it back.

use skilld_client::Client;
use skilld_proto::v1 as pb;
use tonic::Status;

use super::harness::{AccessServer, connect};
use super::quotas::{CLIENTS, check_refusal, create, set_quotas, usage};
use super::streams::OpenStream;
use crate::server::wait_until;

/// Waits until a tenant holds this amount of a resource.
async fn wait_for_usage(client: &Client, resource: &str, amount: i64) {
    wait_until(&format!("{resource}: {amount}"), async || {
        let (used, _) = usage(client, resource).await;
        (used == amount).then_some(())
    })
    .await;
}

/// Runs the tries of all clients at once. Returns those that succeeded, after checking the refusals of the others.
async fn try_at_once<T, F>(tries: Vec<F>, resource: &str, used: i64, limit: i64) -> Vec<T>
where
    F: Future<Output = Result<T, Status>>,
{
    let (mut taken, mut refused) = (Vec::new(), 0);
    for result in futures::future::join_all(tries).await {
        match result {
            Ok(thing) => taken.push(thing),
            Err(status) => {
                let subject = format!("tenants/a/{resource}");
                check_refusal(&status, &subject, &used.to_string(), &limit.to_string());
                refused += 1;
            }
        }
    }
    assert_eq!(taken.len() + refused, CLIENTS);
    taken
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_never_exceed_the_sums_of_memory_and_cpus() {
    let server = AccessServer::start().await;
    let user = server.client("a", "user").await;
    let first = create(&user, "first").await.expect("created");
    let limits = first.limits.expect("limits");
    for (round, resource, each, unit) in [
        ("m", "memory", limits.memory_bytes, "B"),
        ("c", "cpus", limits.cpu_millis, ""),
    ] {
        let limit = each * 3;
        let value = match unit {
            "" => format!("{}.{:03}", limit / 1000, limit % 1000),
            unit => format!("\"{limit}{unit}\""),
        };
        set_quotas(&server, &format!("{resource} = {value}"), resource, limit).await;
        let mut tries = Vec::new();
        for index in 0..CLIENTS {
            let client = server.client("a", "user").await;
            tries.push(async move { create(&client, &format!("{round}{index}")).await });
        }
        let created = try_at_once(tries, resource, limit, limit).await;
        assert_eq!(created.len(), 2, "{resource}: one existed");
        assert_eq!(usage(&user, resource).await, (limit, Some(limit)));
        for workspace in created {
            user.delete_workspace(&workspace.name)
                .await
                .expect("deleted");
        }
        assert_eq!(usage(&user, resource).await.0, each);
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_at_once_never_exceed_a_quota_of_streams() {
    let server = AccessServer::start().await;
    set_quotas(&server, "streams = 4", "streams", 4).await;
    let mut tries = Vec::new();
    for _ in 0..CLIENTS {
        let client = server.client("a", "user").await;
        tries.push(async move { OpenStream::try_open(&client).await });
    }
    let mut streams = try_at_once(tries, "streams", 4, 4).await;
    assert_eq!(streams.len(), 4);
    for stream in &mut streams {
        stream.assert_open().await;
    }
    let user = server.client("a", "user").await;
    assert_eq!(usage(&user, "streams").await, (4, Some(4)));
    drop(streams);
    wait_for_usage(&user, "streams", 0).await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_at_once_never_exceed_a_quota_of_connections() {
    let server = AccessServer::start().await;
    let observer = server.client("a", "observer").await;
    assert_eq!(usage(&observer, "connections").await, (1, None));
    set_quotas(&server, "connections = 4", "connections", 4).await;
    wait_for_usage(&observer, "connections", 1).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(server.client("a", "user").await);
    }
    // A connection counts with its first call, and several calls on it count once.
    assert_eq!(usage(&observer, "connections").await.0, 1);
    let tries = clients.iter().map(|client| async move {
        let request = || pb::GetPrincipalRequest {};
        let (mut first, mut second) = (client.access(), client.access());
        let (first, second) = tokio::join!(
            first.get_principal(request()),
            second.get_principal(request())
        );
        assert_eq!(first.is_ok(), second.is_ok());
        first.map(|_| client.clone())
    });
    let connected = try_at_once(tries.collect(), "connections", 4, 4).await;
    assert_eq!(connected.len(), 3, "the observer has one");
    assert_eq!(usage(&observer, "connections").await, (4, Some(4)));
    for client in &connected {
        client.get_principal().await.expect("it keeps its place");
    }
    let other = server.client("b", "user").await;
    other.get_principal().await.expect("another tenant");
    // Health needs no tenant. The end of a connection makes room for one.
    drop((connected, clients));
    wait_for_usage(&observer, "connections", 1).await;
    let user = connect(&server.with_token(super::harness::token("a", "user"))).await;
    user.get_principal().await.expect("room");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_counts_for_every_tenant_that_calls_on_it() {
    let server = AccessServer::start().await;
    set_quotas(&server, "connections = 1", "connections", 1).await;
    let channel = server.client("b", "admin").await;
    let answer = channel
        .list_tenant_usages(pb::ListTenantUsagesRequest::default())
        .await
        .expect("listed");
    let connections = |list: &pb::ListTenantUsagesResponse, tenant: &str| {
        let tenant = list
            .tenant_usages
            .iter()
            .find(|it| it.tenant == tenant)
            .expect("tenant");
        let found = tenant
            .resources
            .iter()
            .find(|it| it.resource == "connections");
        found.expect("connections").used
    };
    assert_eq!(connections(&answer, "b"), 1);
    // An admin of `b` that names `a` takes no connection of `a`.
    let mut request = tonic::Request::new(pb::GetTenantUsageRequest {});
    let name = "a".parse().expect("metadata");
    request.metadata_mut().insert("skilld-tenant", name);
    let usage = channel
        .tenants()
        .get_tenant_usage(request)
        .await
        .expect("in the name of a");
    assert_eq!(usage.into_inner().tenant, "a");
    wait_until(
        "the connections that set the quota have ended",
        async || {
            let list = channel
                .list_tenant_usages(pb::ListTenantUsagesRequest::default())
                .await
                .expect("listed");
            (connections(&list, "a") == 0).then_some(())
        },
    )
    .await;
    let user = server.client("a", "user").await;
    user.get_principal().await.expect("the only one");
    let second = server.client("a", "user").await;
    let refused = second
        .access()
        .get_principal(pb::GetPrincipalRequest {})
        .await;
    check_refusal(
        &refused.expect_err("a second one"),
        "tenants/a/connections",
        "1",
        "1",
    );
    set_quotas_as_b(&server, "connections = 0").await;
    user.get_principal()
        .await
        .expect("lowering takes nothing away");
    let refused = second
        .access()
        .get_principal(pb::GetPrincipalRequest {})
        .await;
    check_refusal(
        &refused.expect_err("none at all"),
        "tenants/a/connections",
        "1",
        "0",
    );
    assert!(server.stop().await);
}

/// Writes quotas of tenant `a`, and waits until a client of tenant `b` sees them.
async fn set_quotas_as_b(server: &AccessServer, keys: &str) {
    use super::harness::tenants_text;
    use skilld_tests::authority::install;

    let text = tenants_text("admin").replace("[tenants.a]\n", &format!("[tenants.a]\n{keys}\n"));
    install(&server.path("tenants.toml"), &text, 0o644);
    let admin = server.client("b", "admin").await;
    let limit = |list: pb::ListTenantUsagesResponse| {
        let first = list.tenant_usages.into_iter().next().expect("tenant a");
        let found = first
            .resources
            .into_iter()
            .find(|it| it.resource == "connections");
        found.expect("connections").limit
    };
    wait_until("the quota is in force", async || {
        let list = admin
            .list_tenant_usages(pb::ListTenantUsagesRequest::default())
            .await
            .expect("listed");
        (limit(list) == Some(0)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_zero_and_a_wrong_amount_are_faults_of_the_file() {
    use super::harness::tenants_text;
    use skilld_tests::authority::install;

    let server = AccessServer::start().await;
    let keys =
        "requests_burst = 0\nworkspace_creates_burst = 0\nexecs = -1\nconnections = \"many\"";
    let text = tenants_text("admin").replace("[tenants.a]\n", &format!("[tenants.a]\n{keys}\n"));
    install(&server.path("tenants.toml"), &text, 0o644);
    let admin = server.client("a", "admin").await;
    let message = wait_until("the file is a problem", async || {
        let mut problems = admin.problems().await.expect("problems").into_iter();
        let found = problems.find(|problem| problem.subject == "auth.tenants_file");
        found.map(|problem| problem.message)
    })
    .await;
    for key in ["requests_burst", "workspace_creates_burst"] {
        let fault = format!(
            "tenants.a.{key}: must be at least 1; without it the burst is as large as the rate"
        );
        assert!(message.contains(&fault), "{message}");
    }
    for key in ["execs", "connections"] {
        let fault = format!("tenants.a.{key}: must be a whole number or \"unlimited\"");
        assert!(message.contains(&fault), "{message}");
    }
    assert!(server.stop().await);
}

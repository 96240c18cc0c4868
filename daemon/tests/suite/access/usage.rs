//! Usage counters of tenants for workspaces, calls and artifacts. Those of ended execs are tested with real containers.

use std::time::{Duration, Instant};

use skilld_client::Client;
use skilld_proto::v1 as pb;

use super::harness::AccessServer;
use super::quotas::create;
use super::written_bytes::start_sleep;
use crate::server::wait_until;

/// Returns the usage of tenant `a`, which `admin` of another tenant reads so that the call itself does not count.
async fn usage_of_a(admin: &Client) -> pb::TenantUsage {
    let list = admin
        .list_tenant_usages(pb::ListTenantUsagesRequest::default())
        .await
        .expect("listed");
    let mut tenants = list.tenant_usages.into_iter();
    tenants.find(|it| it.tenant == "a").expect("tenant a")
}

async fn since_start(admin: &Client) -> pb::UsageCounters {
    usage_of_a(admin).await.since_start.expect("counters")
}

fn to_duration(time: Option<prost_types::Duration>) -> Duration {
    time.unwrap_or_default().try_into().expect("a time")
}

#[tokio::test(flavor = "multi_thread")]
async fn workspaces_count_from_their_creation_to_their_end() {
    let server = AccessServer::start().await;
    let admin = server.client("b", "admin").await;
    let user = server.client("a", "user").await;
    assert_eq!(
        to_duration(since_start(&admin).await.workspace_duration),
        Duration::ZERO
    );
    let begin = Instant::now();
    let workspace = create(&user, "w").await.expect("created");
    let created = Instant::now();
    let memory = workspace.limits.expect("limits").memory_bytes;
    wait_until("the time grows", async || {
        let time = to_duration(since_start(&admin).await.workspace_duration);
        (time >= Duration::from_millis(300)).then_some(())
    })
    .await;
    let at_least = created.elapsed();
    user.delete_workspace(&workspace.name)
        .await
        .expect("deleted");
    let at_most = begin.elapsed();
    let counters = since_start(&admin).await;
    let time = to_duration(counters.workspace_duration);
    // Times are of whole milliseconds.
    let bounds = at_least - Duration::from_millis(2)..=at_most + Duration::from_millis(2);
    assert!(bounds.contains(&time), "{time:?} is not in {bounds:?}");
    #[expect(clippy::cast_precision_loss, reason = "less than 2^53")]
    let gib = memory as f64 / f64::from(1 << 30);
    let expected = gib * time.as_secs_f64();
    assert!((counters.memory_gib_seconds - expected).abs() < 1e-9);
    assert_eq!(
        since_start(&admin).await.workspace_duration,
        counters.workspace_duration,
        "it has ended"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_artifacts_count_as_stored() {
    let server = AccessServer::start().await;
    let admin = server.client("b", "admin").await;
    let user = server.client("a", "user").await;
    for size in [1000, 234] {
        let header = pb::SaveArtifactHeader {
            name: "artifacts/file".to_owned(),
            scope: Some(pb::ArtifactScope {
                app: "app".to_owned(),
                user: "user".to_owned(),
                session: "session".to_owned(),
            }),
            ..pb::SaveArtifactHeader::default()
        };
        let payloads = [
            pb::save_artifact_request::Payload::Header(header),
            pb::save_artifact_request::Payload::Data(vec![7; size].into()),
        ];
        let messages = payloads.map(|payload| pb::SaveArtifactRequest {
            payload: Some(payload),
        });
        user.artifacts()
            .save_artifact(futures::stream::iter(messages))
            .await
            .expect("saved");
    }
    let usage = usage_of_a(&admin).await;
    assert_eq!(usage.since_start.expect("counters").bytes_stored, 1234);
    let days = usage.days.iter().flat_map(|day| day.counters.iter());
    assert_eq!(days.map(|day| day.bytes_stored).sum::<i64>(), 1234);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn execs_that_run_at_a_stop_do_not_count_as_lost() {
    let server = AccessServer::start_with_commands().await;
    let user = server.client("a", "user").await;
    create(&user, "w").await.expect("created");
    for _ in 0..16 {
        start_sleep(&user).await;
    }
    let server = server.restart().await;
    let admin = server.client("b", "admin").await;
    let usage = usage_of_a(&admin).await;
    let counters: Vec<_> = usage.days.iter().flat_map(|day| &day.counters).collect();
    assert!(counters.iter().any(|counters| counters.bytes_in > 0));
    assert!(
        counters.iter().all(|counters| counters.execs.is_empty()),
        "{usage:?}"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn daily_bytes_survive_a_restart_that_resets_the_counters() {
    let server = AccessServer::start().await;
    let admin = server.client("b", "admin").await;
    let user = server.client("a", "user").await;
    assert_eq!(since_start(&admin).await.bytes_in, 0);
    user.get_principal().await.expect("known");
    let before = usage_of_a(&admin).await;
    let counters = before.since_start.expect("counters");
    // An empty message has a prefix of five bytes.
    assert_eq!(counters.bytes_in, 5);
    assert!(counters.bytes_out > 5);
    let server = server.restart().await;
    let admin = server.client("b", "admin").await;
    let after = usage_of_a(&admin).await;
    assert_eq!(after.days, before.days);
    assert_eq!(after.since_start.expect("counters").bytes_in, 0);
    assert!(server.stop().await);
}

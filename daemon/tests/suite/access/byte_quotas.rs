//! Quotas of stored bytes: the artifacts, the published skills and the staged skills of a tenant.

use std::ops::RangeInclusive;

use skilld_client::{Client, Error, SaveTarget};
use skilld_proto::v1 as pb;
use skilld_proto::v1::save_artifact_request::Payload;
use tonic::Code;

use super::harness::AccessServer;
use super::quotas::{CLIENTS, set_quotas, usage};
use super::skills::try_publish;
use crate::server::wait_until;

/// Size of each artifact in bytes.
const SIZE: usize = 1000;
/// Bytes that a version counts beside its contents: a block for each of its files and directories.
const VERSION_BYTES: i64 = 4 * 4096;
/// Bytes that seven of them count.
const SEVEN: i64 = 7 * (1000 + VERSION_BYTES);

pub(super) async fn save(client: &Client, name: &str, bytes: usize) -> Result<pb::Artifact, Error> {
    let target = SaveTarget::new(name, pb::ArtifactScope::default());
    let data = std::io::Cursor::new(vec![7; bytes]);
    client.save_artifact(target, data).await
}

async fn delete(client: &Client, name: &str, version: Option<i64>) {
    let request = pb::DeleteArtifactRequest {
        name: name.to_owned(),
        version,
        ..pb::DeleteArtifactRequest::default()
    };
    client.delete_artifact(request).await.expect("deleted");
}

#[track_caller]
fn check_refusal(error: &Error, used: i64, limit: i64) {
    check_refusal_within(error, used..=used, limit);
}

/// Checks a refusal by a quota of which so much was used at that moment.
#[track_caller]
fn check_refusal_within(error: &Error, used: RangeInclusive<i64>, limit: i64) {
    let failure = error.failure().unwrap_or_else(|| panic!("{error}"));
    let reason = Some(pb::ErrorReason::QuotaExceeded);
    assert_eq!(
        (failure.code, failure.reason),
        (Code::ResourceExhausted, reason),
        "{error}"
    );
    let metadata = |key: &str| failure.metadata.get(key).cloned();
    assert_eq!(metadata("limit"), Some(limit.to_string()));
    let found = metadata("used").and_then(|amount| amount.parse::<i64>().ok());
    assert!(found.is_some_and(|found| used.contains(&found)), "{error}");
    assert_eq!(failure.retry_after, None, "waiting does not help");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_at_once_never_exceed_a_quota_of_artifact_bytes() {
    let server = AccessServer::start().await;
    let limit = SEVEN + VERSION_BYTES + 500;
    let keys = format!("artifact_bytes = \"{limit}B\"");
    set_quotas(&server, &keys, "artifact_bytes", limit).await;
    let mut saves = Vec::new();
    for index in 0..CLIENTS {
        let client = server.client("a", "user").await;
        // Half of them save versions of one artifact.
        let name = format!("n{}", index / 2 * (index % 2));
        saves.push(async move { save(&client, &name, SIZE).await });
    }
    let results = futures::future::join_all(saves).await;
    let (saved, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((saved.len(), refused.len()), (7, CLIENTS - 7));
    for refusal in refused {
        // What running saves have taken counts as well.
        let error = refusal.expect_err("refused");
        check_refusal_within(&error, 7 * VERSION_BYTES..=limit, limit);
    }
    let (user, other) = (
        server.client("a", "user").await,
        server.client("b", "user").await,
    );
    let held = SEVEN;
    assert_eq!(usage(&user, "artifact_bytes").await, (held, Some(limit)));
    assert_eq!(usage(&other, "artifact_bytes").await, (0, None));
    save(&other, "n0", 100 * SIZE)
        .await
        .expect("another tenant");
    // What fits exactly is saved, and a deletion gives its bytes back.
    save(&user, "rest", 500).await.expect("the rest");
    let refused = save(&user, "one", 1).await.expect_err("over by a byte");
    check_refusal(&refused, limit, limit);
    delete(&user, "rest", Some(0)).await;
    assert_eq!(usage(&user, "artifact_bytes").await.0, held);
    save(&user, "rest", 500).await.expect("it was given back");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_save_needs_no_room_beside_the_first_one() {
    let server = AccessServer::start().await;
    let user = server.client("a", "user").await;
    let save = async |request_id: &str, bytes: &'static [u8]| {
        let header = pb::SaveArtifactHeader {
            name: "artifacts/a".to_owned(),
            scope: Some(pb::ArtifactScope::default()),
            request_id: request_id.to_owned(),
            ..pb::SaveArtifactHeader::default()
        };
        let message = |payload| pb::SaveArtifactRequest {
            payload: Some(payload),
        };
        let header = message(Payload::Header(header));
        let data = message(Payload::Data(bytes.into()));
        let messages = futures::stream::iter([header, data]);
        let saved = user.artifacts().save_artifact(messages).await;
        saved.map(tonic::Response::into_inner).map_err(Error::from)
    };
    let first = save("key", b"first").await.expect("saved");
    for (keys, resource, limit) in [
        ("artifacts = 1".to_owned(), "artifacts", 1),
        (
            format!("artifact_bytes = \"{}B\"", VERSION_BYTES + 5),
            "artifact_bytes",
            VERSION_BYTES + 5,
        ),
    ] {
        set_quotas(&server, &keys, resource, limit).await;
        assert_eq!(save("key", b"first").await.expect(resource), first);
        let refused = save("other", b"first").await.expect_err("another save");
        assert_eq!(refused.reason(), Some(pb::ErrorReason::QuotaExceeded));
        for bytes in [&b"other"[..], b"firstborn"] {
            let refused = save("key", bytes).await.expect_err("other bytes");
            assert_eq!(refused.reason(), Some(pb::ErrorReason::InvalidRequest));
        }
        assert_eq!(usage(&user, resource).await, (limit, Some(limit)));
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_never_exceed_a_quota_of_published_bytes() {
    let server = AccessServer::start().await;
    let publisher = server.client("a", "publisher").await;
    // All have names and bodies of one length, so contents of one size.
    try_publish(&publisher, "skill-00", "1.0", "body 00")
        .await
        .expect("published");
    let (size, _) = usage(&publisher, "published_bytes").await;
    assert!(size > 20, "{size}");
    let limit = 5 * size + 1;
    let keys = format!("published_bytes = \"{limit}B\"");
    set_quotas(&server, &keys, "published_bytes", limit).await;
    let mut publishes = Vec::new();
    for index in 1..=CLIENTS {
        let client = server.client("a", "publisher").await;
        publishes.push(async move {
            let name = format!("skill-{index:02}");
            try_publish(&client, &name, "1.0", &format!("body {index:02}")).await
        });
    }
    let results = futures::future::join_all(publishes).await;
    let (published, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((published.len(), refused.len()), (4, CLIENTS - 4));
    for refusal in refused {
        check_refusal(&refusal.expect_err("refused"), 5 * size, limit);
    }
    let used = usage(&publisher, "published_bytes").await;
    assert_eq!(used, (5 * size, Some(limit)));
    // The same content again changes nothing, and content that two tenants have counts for each.
    try_publish(&publisher, "skill-00", "1.0", "body 00")
        .await
        .expect("published already");
    let other = server.client("b", "publisher").await;
    try_publish(&other, "skill-00", "1.0", "body 00")
        .await
        .expect("of another tenant");
    assert_eq!(usage(&other, "published_bytes").await, (size, None));
    assert_eq!(usage(&publisher, "published_bytes").await.0, 5 * size);
    let request = pb::DeleteSkillRequest {
        name: "skills/skill-00".to_owned(),
        allow_missing: false,
    };
    publisher
        .skills()
        .delete_skill(request)
        .await
        .expect("deleted");
    assert_eq!(usage(&publisher, "published_bytes").await.0, 4 * size);
    try_publish(&publisher, "skill-99", "1.0", "body 99")
        .await
        .expect("there is room");
    assert_eq!(usage(&other, "published_bytes").await.0, size);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_bytes_are_exact_after_a_restart() {
    let server = AccessServer::start().await;
    for (tenant, count) in [("a", 3), ("b", 5)] {
        let publisher = server.client(tenant, "publisher").await;
        for index in 0..count {
            save(&publisher, "x", SIZE + index).await.expect("saved");
        }
        delete(&publisher, "x", Some(1)).await;
        try_publish(&publisher, tenant, "1.0", "body")
            .await
            .expect("published");
    }
    let amounts = async |server: &AccessServer| {
        let mut amounts = Vec::new();
        for tenant in ["a", "b"] {
            let client = server.client(tenant, "user").await;
            for resource in ["artifact_bytes", "published_bytes"] {
                amounts.push(usage(&client, resource).await.0);
            }
        }
        amounts
    };
    let before = amounts(&server).await;
    let expected = [(2, 2002), (4, 4009)].map(|(count, sizes)| sizes + count * VERSION_BYTES);
    assert_eq!([before[0], before[2]], expected);
    assert!(before[1] > 0 && before[1] == before[3], "{before:?}");
    let server = server.restart().await;
    wait_until(&format!("the amounts are {before:?} again"), async || {
        (amounts(&server).await == before).then_some(())
    })
    .await;
    // A save that comes while the artifacts are counted waits for the end of the count.
    let limit = before[0] + VERSION_BYTES + 10;
    let keys = format!("artifact_bytes = \"{limit}B\"");
    set_quotas(&server, &keys, "artifact_bytes", limit).await;
    let server = server.restart().await;
    let user = server.client("a", "user").await;
    let refused = save(&user, "x", 11).await.expect_err("over the quota");
    check_refusal(&refused, before[0], limit);
    save(&user, "x", 10).await.expect("all that is left");
    assert!(server.stop().await);
}

//! Tests of CheckImage with the fake engine and the real guest. The engine's containers have this host's programs.

use skilld::engine::ImageInfo;
use skilld_proto::v1::ProblemSeverity;
use skilld_proto::v1::{CheckImageRequest, CheckImageResponse};

use super::*;

async fn check_image(
    server: &TestServer,
    image: &str,
    pool: &str,
) -> Result<CheckImageResponse, Error> {
    let request = CheckImageRequest {
        image: image.to_owned(),
        pool: pool.to_owned(),
    };
    server.client.check_image(request).await
}

/// Returns the codes of the findings that are errors.
fn error_codes(answer: &CheckImageResponse) -> Vec<&str> {
    answer
        .findings
        .iter()
        .filter(|finding| finding.severity() == ProblemSeverity::Error)
        .map(|finding| finding.code.as_str())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn image_is_checked_in_a_container_of_which_nothing_is_left() {
    // With a root of its own, the container has no files of this host for the search for setuid programs.
    let server = TestServer::start_with_commands("", &[]).await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let before = server.engine.container_ids();
    let answer = check_image(&server, "an/image:1", "")
        .await
        .expect("checked");
    assert_eq!(error_codes(&answer), [""; 0]);
    assert!(answer.usable);
    assert!(answer.image_id.starts_with("sha256:"));
    assert_eq!(answer.size_bytes, 100 << 20);
    assert!(answer.start_duration.is_some());
    assert!(answer.program_count() > 10, "{answer:?}");
    assert_eq!(
        answer.python_version.is_empty(),
        !has_python(&answer),
        "{answer:?}"
    );
    // The check neither takes a warm slot nor is visible.
    assert_eq!(workspace_names(&server).await, Vec::<String>::new());
    let request = skilld_proto::v1::ListPoolsRequest::default();
    let answer = server.client.list_pools(request).await.expect("pools");
    assert_eq!(answer.pools.len(), 1);
    let removed = async || {
        wait_until("the container of the check is gone", async || {
            (server.engine.container_ids() == before).then_some(())
        })
        .await;
    };
    removed().await;
    server.hide_workspaces();
    let answer = check_image(&server, "an/image:1", "")
        .await
        .expect("checked");
    assert_eq!(error_codes(&answer), ["image.not_writable"]);
    assert!(!answer.usable);
    removed().await;
    assert!(server.stop().await);
}

fn has_python(answer: &CheckImageResponse) -> bool {
    let without = |finding: &str| finding.starts_with("python3");
    !answer
        .findings
        .iter()
        .any(|finding| without(&finding.message))
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_an_image_are_findings_and_start_no_container() {
    let server = TestServer::start("", &[]).await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let created = server.engine.call_count(EngineOperation::Create);
    server.engine.remove_image("an/image:1");
    let answer = check_image(&server, "an/image:1", "default")
        .await
        .expect("checked");
    assert_eq!(error_codes(&answer), ["image.missing"]);
    assert_eq!(
        (answer.image_id.as_str(), answer.start_duration),
        ("", None)
    );
    server.engine.describe_image(ImageInfo {
        reference: "an/image:2".to_owned(),
        id: "sha256:2".to_owned(),
        volumes: vec!["/data".to_owned()],
        ..ImageInfo::default()
    });
    let answer = check_image(&server, "an/image:2", "")
        .await
        .expect("checked");
    assert_eq!(error_codes(&answer), ["image.unusable"]);
    assert_eq!(server.engine.call_count(EngineOperation::Create), created);
    server.engine.fail_next(
        EngineOperation::Start,
        skilld::error::Error::Engine {
            operation: "start container",
            message: "no such runtime".to_owned(),
        },
    );
    let answer = check_image(&server, "an/image:3", "")
        .await
        .expect("checked");
    assert_eq!(error_codes(&answer), ["image.not_started"]);
    let message = &answer.findings[0].message;
    assert!(
        message.ends_with("start container: no such runtime"),
        "{message}"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn image_check_refuses_what_is_no_image_or_no_pool() {
    let server = TestServer::start("", &[]).await;
    for image in ["", "../containers/x", "a b"] {
        let refused = check_image(&server, image, "").await;
        assert_eq!(
            error_reason(refused),
            ErrorReason::InvalidRequest,
            "{image:?}"
        );
    }
    let refused = check_image(&server, "an/image:1", "nope").await;
    assert_eq!(error_reason(refused), ErrorReason::PoolNotFound);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn number_of_image_checks_at_once_is_limited() {
    let server = TestServer::start_with_commands("engine.boot_timeout = \"10m\"\n", &[]).await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let started = server.engine.call_count(EngineOperation::Start);
    let check = || check_image(&server, "an/image:1", "");
    // The containers of two checks start and never answer.
    server.engine.start_without_guest();
    let third = async {
        wait_until("two checks have begun", async || {
            (server.engine.call_count(EngineOperation::Start) >= started + 2).then_some(())
        })
        .await;
        check().await
    };
    let refused = tokio::select! {
        ended = futures::future::join(check(), check()) => panic!("they wait: {ended:?}"),
        refused = third => refused,
    };
    assert_eq!(error_reason(refused), ErrorReason::QuotaExceeded);
    // A check whose client has gone gives its turn back.
    server.engine.start_with_guest();
    wait_until("a check has its turn", async || check().await.ok()).await;
    assert!(server.stop().await);
}

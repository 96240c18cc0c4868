//! Tests of pools whose image the engine does not have when the daemon starts, and of several pools with images of their
//! own.

use skilld::engine::fake::FakeEngine;
use skilld_client::Failure;
use skilld_proto::v1::{Problem, ProblemSeverity};

use super::*;

/// Second pool, whose image is `example/second:1`.
const SECOND_POOL: &str = "[pools.second]\nimage = \"example/second:1\"\nwarm = 1\nmax = 2\nwarm_up = []\n\
                           claim_timeout = \"1m\"\n";
const SECOND_IMAGE: &str = "example/second:1";
const DEFAULT_IMAGE: &str = "skilld/base:latest";

/// Starts a server on an engine without some images.
async fn start_without(
    images: &[&str],
    toml: &str,
    prepare: impl FnOnce(&FakeEngine),
) -> TestServer {
    let server = TestServer::start(toml, &[]).await;
    for image in images {
        server.engine.remove_image(image);
    }
    prepare(&server.engine);
    server.restart(|_| {}).await
}

/// Creates a workspace in a pool.
async fn create_in(server: &TestServer, pool: &str) -> Result<Workspace, Error> {
    let request = CreateWorkspaceRequest {
        pool: pool.to_owned(),
        ..Default::default()
    };
    server.client.create_workspace(request).await
}

/// Returns the status of a claim that must be refused.
async fn refused_claim(server: &TestServer, pool: &str) -> Box<Failure> {
    let error = create_in(server, pool).await.expect_err("refused");
    let Error::Status(failure) = error else {
        panic!("no status: {error:?}");
    };
    failure
}

/// Waits until the problem of a pool has a code.
async fn wait_for_problem(server: &TestServer, subject: &str, code: &str) -> Problem {
    wait_until(code, async || {
        let problems = server.client.problems().await.expect("problems");
        problems
            .into_iter()
            .find(|problem| problem.subject == subject && problem.code == code)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_image_of_another_pool_leaves_the_daemon_serving() {
    let server = start_without(&[SECOND_IMAGE], SECOND_POOL, |_| {}).await;
    let problem = wait_for_problem(&server, "pools/second", "pool.image_missing").await;
    assert_eq!(problem.severity(), ProblemSeverity::Warning);
    let expected = "image example/second:1 cannot be used: the engine does not have it; run `docker pull example/second:1` (with Podman `podman pull`), \
                    or set `pull = \"missing\"` for its pool";
    assert_eq!(problem.message, expected);
    let failure = refused_claim(&server, "second").await;
    assert_eq!(failure.reason, Some(ErrorReason::PoolExhausted));
    assert!(failure.retry_after.is_some());
    let request = skilld_proto::v1::ListPoolsRequest::default();
    let answer = server.client.list_pools(request).await.expect("pools");
    let states: Vec<_> = answer
        .pools
        .iter()
        .map(|pool| {
            (
                pool.name.as_str(),
                pool.image_id.is_empty(),
                pool.problem.is_empty(),
            )
        })
        .collect();
    assert_eq!(
        states,
        [
            ("pools/default", false, true),
            ("pools/second", true, false)
        ]
    );
    assert!(server.client.is_serving("").await.expect("health"));
    create_in(&server, "default")
        .await
        .expect("the other pool works");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_image_of_the_default_pool_fails_the_start() {
    let server = TestServer::start("", &[]).await;
    server.engine.remove_image(DEFAULT_IMAGE);
    let (error, _state) = server.fail_to_restart().await;
    assert_eq!(
        error.to_string(),
        "image skilld/base:latest cannot be used: the engine does not have it; run `make image`"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn daemon_serves_while_the_image_of_its_default_pool_is_pulled() {
    let toml = format!("pools.default.pull = \"missing\"\n{SECOND_POOL}");
    let server = start_without(&[DEFAULT_IMAGE], &toml, FakeEngine::hold_pulls).await;
    let problem = wait_for_problem(&server, "pools/default", "pool.image_pulling").await;
    assert_eq!(problem.severity(), ProblemSeverity::Warning);
    let failure = refused_claim(&server, "").await;
    let expected = "pool default has no container free: the image skilld/base:latest is not there yet: \
                    `skillctl problems` says why";
    assert_eq!(failure.message, expected);
    assert!(failure.retry_after.is_some());
    let serving = || async { server.client.is_serving("").await.expect("health") };
    wait_until("the daemon is not serving", async || {
        (!serving().await).then_some(())
    })
    .await;
    create_in(&server, "second")
        .await
        .expect("the other pool works");
    server.engine.release_pulls();
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    create_in(&server, "").await.expect("its image is there");
    wait_until("the daemon is serving", async || {
        serving().await.then_some(())
    })
    .await;
    let problems = server.client.problems().await.expect("problems");
    let left = problems
        .iter()
        .find(|problem| problem.subject == "pools/default");
    assert_eq!(left, None);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_pool_makes_its_containers_from_its_own_image() {
    let server = TestServer::start(SECOND_POOL, &[]).await;
    let mut ids = vec![];
    for pool in ["default", "second"] {
        let workspace = create_in(&server, pool).await.expect("created");
        assert_eq!(workspace.pool, format!("pools/{pool}"));
        let pool = server.client.get_pool(pool).await.expect("a pool");
        ids.push(pool.image_id);
    }
    assert_ne!(ids[0], ids[1]);
    let images = server.engine.container_images();
    for id in ids {
        let count = images.iter().filter(|image| **image == id).count();
        assert!(count > 0, "{id} of {images:?}");
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_digest_must_be_one_of_the_image() {
    let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
    let pinned = format!("example/second:1@{}", digest("1"));
    let toml = SECOND_POOL.replace(SECOND_IMAGE, &pinned);
    let server = TestServer::start(&toml, &[]).await;
    create_in(&server, "second")
        .await
        .expect("it has the digest");
    server.engine.describe_image(skilld::engine::ImageInfo {
        reference: pinned.clone(),
        id: "sha256:0".to_owned(),
        repo_digests: vec![format!("example/second@{}", digest("2"))],
        ..Default::default()
    });
    let server = server.restart(|_| {}).await;
    let problem = wait_for_problem(&server, "pools/second", "pool.image_unusable").await;
    assert_eq!(problem.severity(), ProblemSeverity::Error);
    let expected = format!(
        "image {pinned} cannot be used: it has {}, not {} as configured: pull that digest, or correct the configuration",
        digest("2"),
        digest("1")
    );
    assert_eq!(problem.message, expected);
    assert!(server.stop().await);
}

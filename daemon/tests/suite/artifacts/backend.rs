//! Tests of an artifact store that is missing or cannot be opened.

use super::*;

#[tokio::test]
async fn missing_store_is_an_error_and_not_an_empty_listing() {
    let server = TestServer::start("", &[]).await;
    save(&server, "a", b"x").await.expect("saved");
    let (store, away) = (
        server.state_dir().join("artifacts"),
        server.state_dir().join("away"),
    );
    std::fs::rename(&store, &away).expect("moved");
    let client = server
        .client
        .clone()
        .with_retry(skilld_client::RetryPolicy {
            attempts_max: 1,
            ..Default::default()
        });
    let request = pb::ListArtifactsRequest {
        scope: Some(scope("1")),
        ..Default::default()
    };
    let gone = client.list_artifacts(request.clone()).await;
    check_refused(gone, Code::Unavailable, Reason::StorageUnavailable);
    let serving = async |expected: bool| {
        wait_until("the health of the service changes", async || {
            let serving = client.is_serving("skilld.v1.ArtifactService").await;
            (serving.expect("health") == expected).then_some(())
        })
        .await;
    };
    serving(false).await;
    assert!(
        client.is_serving("").await.expect("health"),
        "the others serve"
    );
    std::fs::rename(&away, &store).expect("moved");
    assert_eq!(
        client
            .list_artifacts(request)
            .await
            .expect("listed")
            .artifacts
            .len(),
        1
    );
    serving(true).await;
    assert!(server.stop().await);
}

#[tokio::test]
async fn daemon_does_not_start_if_the_store_cannot_be_opened() {
    let server = TestServer::start("", &[]).await;
    save(&server, "a", b"x").await.expect("saved");
    let store = server.state_dir().join("artifacts");
    let away = store.with_extension("away");
    std::fs::rename(&store, &away).expect("moved");
    std::fs::write(&store, "a file").expect("written");
    let (error, stopped) = server.fail_to_restart().await;
    let text = error.to_string();
    assert!(
        text.starts_with("the artifact store cannot be used") && text.contains("artifacts"),
        "{text}"
    );
    std::fs::remove_file(&store).expect("removed");
    std::fs::rename(&away, &store).expect("moved");
    let server = stopped.start().await;
    assert_eq!(load(&server, "a", None).await.expect("loaded").1, b"x");
    assert!(server.stop().await);
}

//! Tests of saves and deletions that a client repeats because it did not get the answer.

use super::*;

#[tokio::test]
async fn a_repeated_save_returns_the_version_of_the_first_one() {
    let server = TestServer::start("", &[]).await;
    let save = async |request_id: &str, bytes: &[u8]| {
        let described = pb::SaveArtifactHeader {
            scope: Some(scope("1")),
            request_id: request_id.to_owned(),
            ..Default::default()
        };
        let messages = [header("artifacts/a", described), data(bytes.to_vec())];
        send(&server, stream::iter(messages)).await
    };
    let first = save("key-1", b"one").await.expect("saved");
    assert_eq!(save("key-2", b"two").await.expect("saved").version, 1);
    assert_eq!(save("key-1", b"one").await.expect("repeated"), first);
    let other = save("key-1", b"other").await.map_err(Error::from);
    check_refused(other, Code::InvalidArgument, Reason::InvalidRequest);
    for version in 2..4 {
        let saved = save("", b"one").await.expect("saved");
        assert_eq!(
            saved.version, version,
            "without a key each save is a new one"
        );
    }
    assert_eq!(load(&server, "a", Some(0)).await.expect("kept").1, b"one");
    // The key outlives the daemon.
    let server = server.restart(|_| {}).await;
    let described = pb::SaveArtifactHeader {
        scope: Some(scope("1")),
        request_id: "key-2".to_owned(),
        ..Default::default()
    };
    let messages = [header("artifacts/a", described), data(b"two".to_vec())];
    let repeated = send(&server, stream::iter(messages)).await;
    assert_eq!(repeated.expect("repeated").version, 1);
    assert!(server.stop().await);
}

#[tokio::test]
async fn a_repeated_deletion_succeeds_if_the_request_allows_it() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let artifact = async |allow_missing| {
        let request = pb::DeleteArtifactRequest {
            name: "artifacts/a".to_owned(),
            scope: Some(scope("1")),
            version: None,
            allow_missing,
        };
        let deleted = server.client.artifacts().delete_artifact(request).await;
        deleted.map_err(|status| status.code())
    };
    let skill = async |allow_missing| {
        let request = pb::DeleteSkillRequest {
            name: "skills/none".to_owned(),
            allow_missing,
        };
        let deleted = server.client.skills().delete_skill(request).await;
        deleted.map_err(|status| status.code())
    };
    let exec = async |workspace: &str, allow_missing| {
        let request = pb::DeleteExecRequest {
            name: format!("{workspace}/execs/none"),
            allow_missing,
        };
        let deleted = server.client.execs().delete_exec(request).await;
        deleted.map_err(|status| status.code())
    };
    save(&server, "a", b"x").await.expect("saved");
    artifact(true).await.expect("deleted");
    artifact(true).await.expect("gone");
    assert_eq!(artifact(false).await.err(), Some(Code::NotFound));
    skill(true).await.expect("absent");
    assert_eq!(skill(false).await.err(), Some(Code::NotFound));
    for workspace in [workspace.as_str(), "workspaces/none"] {
        exec(workspace, true).await.expect("absent");
        let refused = exec(workspace, false).await.err();
        assert_eq!(refused, Some(Code::NotFound), "{workspace}");
    }
    assert!(server.stop().await);
}

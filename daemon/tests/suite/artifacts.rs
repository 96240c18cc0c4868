//! Tests of ArtifactService with a client, a whole server and the real guest.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use futures::{Stream, StreamExt, stream};
use sha2::{Digest, Sha256};
use skilld_client::{Error, SaveTarget};
use skilld_proto::v1::save_artifact_request::Payload;
use skilld_proto::v1::{self as pb, ErrorReason as Reason};
use tonic::{Code, Status};

mod backend;
mod repeats;
use crate::server::{TestServer, wait_until, within};

fn scope(session: &str) -> pb::ArtifactScope {
    pb::ArtifactScope {
        app: "app".into(),
        user: "ada".into(),
        session: session.into(),
    }
}

fn target(name: &str) -> SaveTarget {
    SaveTarget::new(name, scope("1"))
}

async fn save(server: &TestServer, name: &str, data: &[u8]) -> Result<pb::Artifact, Error> {
    let source = std::io::Cursor::new(data.to_vec());
    server.client.save_artifact(target(name), source).await
}

/// Loads an artifact and checks the size of its messages, its digest and its size.
async fn load(
    server: &TestServer,
    name: &str,
    version: Option<i64>,
) -> Result<(pb::Artifact, Vec<u8>), Error> {
    let request = pb::LoadArtifactRequest {
        name: name.to_owned(),
        scope: Some(scope("1")),
        version,
    };
    let mut reader = server.client.load_artifact(request).await?;
    let mut data = Vec::new();
    while let Some(piece) = reader.next().await? {
        assert!(piece.len() <= 256 << 10, "{}", piece.len());
        data.extend_from_slice(&piece);
    }
    let artifact = reader.header().clone();
    assert_eq!(artifact.sha256, hex(&data));
    assert_eq!(
        artifact.size_bytes,
        i64::try_from(data.len()).expect("small")
    );
    Ok((artifact, data))
}

fn header(name: &str, header: pb::SaveArtifactHeader) -> pb::SaveArtifactRequest {
    let name = name.to_owned();
    pb::SaveArtifactRequest {
        payload: Some(Payload::Header(pb::SaveArtifactHeader { name, ..header })),
    }
}

fn data(bytes: Vec<u8>) -> pb::SaveArtifactRequest {
    pb::SaveArtifactRequest {
        payload: Some(Payload::Data(bytes.into())),
    }
}

async fn send(
    server: &TestServer,
    messages: impl Stream<Item = pb::SaveArtifactRequest> + Send + 'static,
) -> Result<pb::Artifact, Status> {
    let saved = server.client.artifacts().save_artifact(messages).await;
    saved.map(tonic::Response::into_inner)
}

fn hex(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns `len` bytes without a short period, so that mixed-up chunks are noticed.
fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|n| u8::try_from(n * 7 % 251).expect("small"))
        .collect()
}

fn check_refused<T: std::fmt::Debug>(refused: Result<T, Error>, code: Code, reason: Reason) {
    let error = refused.expect_err("must be refused");
    let failure = error.failure().unwrap_or_else(|| panic!("{error}"));
    assert_eq!(
        (failure.code, failure.reason),
        (code, Some(reason)),
        "{error}"
    );
}

/// Returns the number of files in a directory of the store.
fn count_files(server: &TestServer, beneath: &str) -> usize {
    fn count(dir: &Path) -> usize {
        let Ok(listed) = std::fs::read_dir(dir) else {
            return 0;
        };
        let paths = listed.map(|entry| entry.expect("an entry").path());
        paths
            .map(|path| if path.is_dir() { count(&path) } else { 1 })
            .sum()
    }
    count(&server.state_dir().join("artifacts").join(beneath))
}

/// Returns the output directory, on the host, of the only workspace that contains a `table.png`.
fn output_dir(server: &TestServer) -> PathBuf {
    let slots = std::fs::read_dir(server.state_dir().join("slots")).expect("slots");
    slots
        .map(|slot| slot.expect("a slot").path().join("fake-workspace/out"))
        .find(|out| out.join("table.png").exists())
        .expect("the workspace")
}

/// Waits until the store has no files.
async fn wait_until_empty(server: &TestServer) {
    wait_until("the store is empty", async || {
        (count_files(server, "") == 0).then_some(())
    })
    .await;
}

/// Waits until a save has written bytes to the store.
async fn wait_until_written(server: &TestServer) {
    wait_until("bytes are written", async || {
        (count_files(server, "data") > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn saved_artifacts_load_byte_for_byte_in_every_version() {
    let server = TestServer::start("", &[]).await;
    // Binary data, data larger than any limit of inline content, and no data.
    let all = [
        b"\0\xff\xfe binary \n".to_vec(),
        pattern(5_000_001),
        Vec::new(),
    ];
    for (version, bytes) in (0_i64..).zip(&all) {
        let saved = save(&server, "out/report.bin", bytes).await.expect("saved");
        assert_eq!(saved.name, "artifacts/out/report.bin");
        assert_eq!(saved.scope, Some(scope("1")));
        assert_eq!(saved.version, version);
        assert!(saved.create_time.is_some());
        let (loaded, data) = load(&server, "out/report.bin", None).await.expect("loaded");
        assert_eq!(loaded, saved);
        assert!(data == *bytes);
    }
    // Artifacts survive a restart.
    let server = server.restart(|_| {}).await;
    for (version, bytes) in (0_i64..).zip(&all) {
        let (_, data) = load(&server, "out/report.bin", Some(version))
            .await
            .expect("loaded");
        assert!(data == *bytes, "version {version}");
    }
    let info = server.client.server_info().await.expect("info");
    let limits = info.limits.expect("limits");
    assert_eq!(
        (
            limits.artifact_bytes,
            limits.artifact_name_bytes,
            limits.artifact_scope_bytes
        ),
        (1 << 30, 512, 256)
    );
    for feature in [
        "artifacts.save",
        "artifacts.load",
        "artifacts.list",
        "artifacts.delete",
    ] {
        assert!(info.features.iter().any(|has| has == feature), "{feature}");
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn listings_and_deletions_follow_scope_and_version() {
    let server = TestServer::start("", &[]).await;
    for name in ["b", "a", "user:shared", "a/b"] {
        save(&server, name, name.as_bytes()).await.expect("saved");
    }
    let client = &server.client;
    let names = async |session: &str| {
        let (mut names, mut token) = (Vec::new(), String::new());
        loop {
            let request = pb::ListArtifactsRequest {
                scope: Some(scope(session)),
                page_size: 3,
                page_token: token,
            };
            let page = client.list_artifacts(request).await.expect("listed");
            names.extend(page.artifacts.into_iter().map(|artifact| artifact.name));
            token = page.next_page_token;
            if token.is_empty() {
                return names;
            }
        }
    };
    let all = [
        "artifacts/a",
        "artifacts/a/b",
        "artifacts/b",
        "artifacts/user:shared",
    ];
    assert_eq!(names("1").await, all);
    assert_eq!(names("2").await, ["artifacts/user:shared"]);
    save(&server, "a", b"again").await.expect("saved");
    let versions = async |name: &str| {
        let request = pb::ListArtifactVersionsRequest {
            parent: name.to_owned(),
            scope: Some(scope("1")),
            ..Default::default()
        };
        let listed = client.list_artifact_versions(request).await?;
        let versions = listed.artifacts.iter().map(|artifact| artifact.version);
        Ok::<_, Error>(versions.collect::<Vec<_>>())
    };
    assert_eq!(versions("a").await.expect("listed"), [0, 1]);
    let delete = async |name: &str, version| {
        let request = pb::DeleteArtifactRequest {
            name: name.to_owned(),
            scope: Some(scope("1")),
            version,
            allow_missing: false,
        };
        client.delete_artifact(request).await
    };
    delete("a", Some(0)).await.expect("deleted");
    assert_eq!(versions("a").await.expect("listed"), [1]);
    let absent = (Code::NotFound, Reason::ArtifactNotFound);
    check_refused(delete("a", Some(0)).await, absent.0, absent.1);
    check_refused(load(&server, "a", Some(0)).await, absent.0, absent.1);
    delete("a", None).await.expect("deleted");
    check_refused(delete("a", None).await, absent.0, absent.1);
    check_refused(versions("a").await, absent.0, absent.1);
    check_refused(load(&server, "a", None).await, absent.0, absent.1);
    assert_eq!(names("1").await, all[1..]);
    for name in ["a/b", "b", "user:shared"] {
        delete(name, None).await.expect("deleted");
    }
    assert_eq!(count_files(&server, ""), 0);
    assert!(server.stop().await);
}

#[tokio::test]
async fn concurrent_saves_get_different_versions() {
    let server = TestServer::start("", &[]).await;
    let saves = (0..64_u8).map(|n| {
        let server = &server;
        async move { save(server, "same", &[n]).await.expect("saved").version }
    });
    let mut versions = futures::future::join_all(saves).await;
    versions.sort_unstable();
    assert_eq!(versions, (0..64).collect::<Vec<_>>());
    assert!(server.stop().await);
}

#[tokio::test]
async fn hostile_names_are_refused_before_anything_is_written() {
    let server = TestServer::start("", &[]).await;
    let long = format!("artifacts/{}", "x".repeat(513));
    let names = [
        "",
        "a",
        "artifacts/",
        "artifacts//a",
        "artifacts/../../x",
        "artifacts/a/../b",
        "artifacts/.",
        "artifacts//etc/passwd",
        "artifacts/a/",
        "artifacts/a\0b",
        "artifacts/a\nb",
        "artifacts/user:",
        "artifacts/user:../x",
        "artifacts/user:/x",
        long.as_str(),
    ];
    for name in names {
        let header = header(name, pb::SaveArtifactHeader::default());
        let status = send(&server, stream::iter([header, data(b"x".to_vec())])).await;
        check_refused(
            status.map_err(Error::from),
            Code::InvalidArgument,
            Reason::InvalidRequest,
        );
        let mut stub = server.client.artifacts();
        let request = pb::LoadArtifactRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        let loaded = stub.load_artifact(request).await.map_err(Error::from);
        check_refused(loaded, Code::InvalidArgument, Reason::InvalidRequest);
        let request = pb::DeleteArtifactRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        let deleted = stub.delete_artifact(request).await.map_err(Error::from);
        check_refused(deleted, Code::InvalidArgument, Reason::InvalidRequest);
    }
    let far = pb::ArtifactScope {
        app: "x".repeat(257),
        ..scope("a\0")
    };
    let request = pb::ListArtifactsRequest {
        scope: Some(far),
        page_size: -1,
        page_token: "..".into(),
    };
    let error = server
        .client
        .list_artifacts(request)
        .await
        .expect_err("refused");
    let failure = error.failure().expect("typed");
    let fields: Vec<&str> = failure
        .violations
        .iter()
        .map(|fault| fault.field.as_str())
        .collect();
    assert_eq!(
        fields,
        ["scope.app", "scope.session", "page_size", "page_token"]
    );
    assert_eq!(count_files(&server, ""), 0);
    assert!(server.stop().await);
}

#[tokio::test]
async fn save_over_a_limit_or_with_wrong_checksum_leaves_no_files() {
    let server = TestServer::start("artifacts.bytes_max = \"1MiB\"\n", &[]).await;
    let most = pattern(1 << 20);
    let too_many = save(&server, "a", &[most.as_slice(), b"x"].concat()).await;
    check_refused(too_many, Code::ResourceExhausted, Reason::LimitExceeded);
    wait_until_empty(&server).await;
    let wrong = SaveTarget {
        sha256: hex(b"else"),
        ..target("a")
    };
    let refused = server
        .client
        .save_artifact(wrong, std::io::Cursor::new(most.clone()))
        .await;
    let failure = refused
        .expect_err("refused")
        .failure()
        .expect("typed")
        .clone();
    assert_eq!(failure.reason, Some(Reason::ChecksumMismatch));
    assert_eq!(failure.metadata["sha256"], hex(&most));
    wait_until_empty(&server).await;
    assert_eq!(save(&server, "a", &most).await.expect("saved").version, 0);
    assert!(server.stop().await);
}

#[tokio::test]
async fn broken_or_invalid_upload_leaves_no_files() {
    let server = TestServer::start("", &[]).await;
    let begin = || header("artifacts/a", pb::SaveArtifactHeader::default());
    // Streams of invalid messages.
    let wrong = [
        vec![data(b"x".to_vec())],
        vec![begin(), begin()],
        vec![
            begin(),
            data(pattern(1 << 20)),
            data(pattern((1 << 20) + 1)),
        ],
        vec![begin(), pb::SaveArtifactRequest::default()],
        vec![],
    ];
    for messages in wrong {
        let refused = send(&server, stream::iter(messages))
            .await
            .map_err(Error::from);
        check_refused(refused, Code::InvalidArgument, Reason::InvalidRequest);
        wait_until_empty(&server).await;
    }
    // A message larger than allowed.
    let refused = send(&server, stream::iter([begin(), data(pattern(5 << 20))])).await;
    check_refused(
        refused.map_err(Error::from),
        Code::ResourceExhausted,
        Reason::LimitExceeded,
    );
    wait_until_empty(&server).await;
    // The client disconnects in the middle.
    let some = || stream::iter([begin(), data(pattern(1 << 20)), data(pattern(1 << 20))]);
    let sending = send(&server, some().chain(stream::pending()));
    tokio::select! {
        ended = sending => panic!("{ended:?}"),
        () = wait_until_written(&server) => {}
    }
    wait_until_empty(&server).await;
    assert_eq!(save(&server, "a", b"x").await.expect("saved").version, 0);
    assert!(server.stop().await);
}

#[tokio::test]
async fn silent_upload_times_out_and_leaves_no_files() {
    let server = TestServer::start("server.upload_timeout = \"300ms\"\n", &[]).await;
    let begin = header("artifacts/a", pb::SaveArtifactHeader::default());
    let some = [begin, data(pattern(1 << 20)), data(pattern(1 << 20))];
    let refused = within(send(&server, stream::iter(some).chain(stream::pending())))
        .await
        .map_err(Error::from);
    check_refused(refused, Code::DeadlineExceeded, Reason::Deadline);
    wait_until_empty(&server).await;
    assert!(server.stop().await);
}

#[tokio::test]
async fn save_during_a_stop_fails_with_draining_and_leaves_no_files() {
    let server = TestServer::start("", &[]).await;
    let begin = header("artifacts/a", pb::SaveArtifactHeader::default());
    let messages = stream::iter([begin, data(pattern(1 << 20)), data(pattern(1 << 20))]);
    let mut stub = server.client.artifacts();
    let sending = async move { stub.save_artifact(messages.chain(stream::pending())).await };
    let stopping = async {
        wait_until_written(&server).await;
        server.restart(|_| {}).await
    };
    let (ended, server) = futures::future::join(sending, stopping).await;
    check_refused(
        ended.map_err(Error::from),
        Code::Unavailable,
        Reason::Draining,
    );
    assert_eq!(count_files(&server, ""), 0);
    assert!(server.stop().await);
}

#[tokio::test]
async fn a_workspace_file_is_saved_without_passing_the_client() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let client = &server.client;
    let bytes = pattern(9_000_001);
    client
        .upload_bytes(&workspace, "out/table.png", bytes.clone())
        .await
        .expect("staged");
    client
        .upload_bytes(&workspace, "inputs/empty.csv", "")
        .await
        .expect("staged");
    let out = output_dir(&server);
    symlink("table.png", out.join("within")).expect("a link");
    let from = async |path: &str| {
        client
            .save_artifact_from(target("kept/a"), &workspace, path)
            .await
    };
    let saved = from("out/table.png").await.expect("saved");
    assert_eq!((saved.version, saved.sha256.clone()), (0, hex(&bytes)));
    assert_eq!(saved.size_bytes, 9_000_001);
    assert_eq!(
        from("$OUTPUT_DIR/within")
            .await
            .expect("a link within")
            .version,
        1
    );
    let empty = from("inputs/empty.csv").await.expect("an empty file");
    assert_eq!(
        (empty.version, empty.size_bytes, empty.mime_type.as_str()),
        (2, 0, "text/plain")
    );
    // The artifact survives the deletion of the workspace.
    client.delete_workspace(&workspace).await.expect("deleted");
    let (newest, _) = load(&server, "kept/a", None).await.expect("loaded");
    assert_eq!(newest.version, 2);
    let (_, data) = load(&server, "kept/a", Some(0)).await.expect("loaded");
    assert!(data == bytes);
    assert_eq!(
        (
            count_files(&server, "data"),
            count_files(&server, "pending")
        ),
        (3, 0)
    );
    assert!(server.stop().await);
}

#[tokio::test]
async fn saving_a_wrong_or_missing_file_leaves_no_version() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let client = &server.client;
    client
        .upload_bytes(&workspace, "out/table.png", pattern(9_000))
        .await
        .expect("staged");
    let out = output_dir(&server);
    nix::unistd::mkfifo(&out.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    symlink("/etc/passwd", out.join("link")).expect("a link");
    std::fs::create_dir(out.join("dir")).expect("a directory");
    let from = async |path: &str| {
        client
            .save_artifact_from(target("kept/a"), &workspace, path)
            .await
    };
    let wrong = SaveTarget {
        sha256: hex(b"else"),
        ..target("kept/a")
    };
    let refused = client
        .save_artifact_from(wrong, &workspace, "out/table.png")
        .await;
    check_refused(refused, Code::InvalidArgument, Reason::ChecksumMismatch);
    let refusals = [
        ("out/none", Code::NotFound, Reason::FileNotFound),
        ("out/dir", Code::FailedPrecondition, Reason::WrongFileType),
        ("", Code::FailedPrecondition, Reason::WrongFileType),
        ("out/fifo", Code::FailedPrecondition, Reason::WrongFileType),
        ("out/link", Code::InvalidArgument, Reason::PathEscapes),
        ("../etc/passwd", Code::InvalidArgument, Reason::PathEscapes),
        ("/etc/passwd", Code::InvalidArgument, Reason::PathEscapes),
        ("$HOME/x", Code::InvalidArgument, Reason::InvalidRequest),
    ];
    for (path, code, reason) in refusals {
        check_refused(from(path).await, code, reason);
    }
    let nowhere = client
        .save_artifact_from(target("a"), "w-none", "out/x")
        .await;
    check_refused(nowhere, Code::NotFound, Reason::WorkspaceNotFound);
    let lonely = pb::SaveArtifactHeader {
        path: "out/x".into(),
        ..Default::default()
    };
    let refused = send(&server, stream::iter([header("artifacts/a", lonely)])).await;
    check_refused(
        refused.map_err(Error::from),
        Code::InvalidArgument,
        Reason::InvalidRequest,
    );
    // The daemon removes what it has written after the answer.
    wait_until_empty(&server).await;
    assert!(server.stop().await);
}

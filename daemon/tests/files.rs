//! Files into a workspace and out of it: through a client, a whole server and a real guest. No Docker.

use std::io::Write;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use sha2::{Digest, Sha256};
use skilld_client::{Error, Failure};
use skilld_proto::v1::stage_files_header::Kind;
use skilld_proto::v1::stage_files_request::Payload;
use skilld_proto::v1::{self as pb, Reason};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

#[path = "support/server.rs"]
#[expect(dead_code, reason = "shared with tests that use more of it")]
mod server;
use server::TestServer;

fn header(kind: Kind, path: &str) -> pb::StageFilesHeader {
    pb::StageFilesHeader {
        kind: kind.into(),
        path: path.to_owned(),
        ..Default::default()
    }
}

fn first(workspace: &str, header: pb::StageFilesHeader) -> pb::StageFilesRequest {
    pb::StageFilesRequest {
        workspace: workspace.to_owned(),
        payload: Some(Payload::Header(header)),
    }
}

fn data(bytes: &[u8]) -> pb::StageFilesRequest {
    pb::StageFilesRequest {
        workspace: String::new(),
        payload: Some(Payload::Data(bytes.to_vec().into())),
    }
}

/// Sends a header and bytes in chunks.
async fn stage(
    server: &TestServer,
    workspace: &str,
    header: pb::StageFilesHeader,
    bytes: &[u8],
) -> Result<pb::StageFilesResponse, Status> {
    let mut messages = vec![first(workspace, header)];
    messages.extend(bytes.chunks(100_000).map(data));
    send(server, stream::iter(messages)).await
}

async fn send(
    server: &TestServer,
    messages: impl Stream<Item = pb::StageFilesRequest> + Send + 'static,
) -> Result<pb::StageFilesResponse, Status> {
    let staged = server.client.files().stage_files(messages).await;
    staged.map(tonic::Response::into_inner)
}

async fn read(
    server: &TestServer,
    workspace: &str,
    path: &str,
    offset: i64,
    length: i64,
) -> Result<Vec<u8>, Status> {
    let request = pb::ReadFileRequest {
        workspace: workspace.to_owned(),
        path: path.to_owned(),
        offset,
        length,
    };
    let mut stream = server.client.files().read_file(request).await?.into_inner();
    let mut bytes = Vec::new();
    while let Some(message) = stream.message().await? {
        match message.payload {
            Some(pb::read_file_response::Payload::Data(data)) => bytes.extend_from_slice(&data),
            Some(pb::read_file_response::Payload::File(_)) => {
                assert!(bytes.is_empty(), "description comes first");
            }
            None => panic!("message without payload"),
        }
    }
    Ok(bytes)
}

/// Paths beneath a directory, with their sizes.
async fn list(
    server: &TestServer,
    workspace: &str,
    path: &str,
) -> Result<Vec<(String, i64)>, Status> {
    let request = pb::ListFilesRequest {
        workspace: workspace.to_owned(),
        path: path.to_owned(),
        recursive: true,
        ..Default::default()
    };
    let listed = server
        .client
        .files()
        .list_files(request)
        .await?
        .into_inner();
    let files = listed.files.into_iter();
    Ok(files
        .filter(|file| file.r#type() == pb::FileType::File)
        .map(|file| (file.path, file.size))
        .collect())
}

/// Collected files with their bytes, and the summary.
async fn collect(
    server: &TestServer,
    workspace: &str,
    spec: pb::CollectSpec,
) -> Result<(Vec<(String, Vec<u8>)>, pb::CollectSummary), Status> {
    use pb::collect_outputs_response::Payload;
    let request = pb::CollectOutputsRequest {
        workspace: workspace.to_owned(),
        spec: Some(spec),
    };
    let mut stream = server
        .client
        .files()
        .collect_outputs(request)
        .await?
        .into_inner();
    let (mut files, mut summary) = (Vec::<(String, Vec<u8>)>::new(), None);
    while let Some(message) = stream.message().await? {
        match message.payload.expect("payload") {
            Payload::File(file) => files.push((file.path, Vec::new())),
            Payload::Data(data) => files
                .last_mut()
                .expect("a file first")
                .1
                .extend_from_slice(&data),
            Payload::FileEnd(end) => {
                let (_, bytes) = files.last().expect("a file first");
                assert_eq!(end.sha256, hex(&Sha256::digest(bytes)));
                assert_eq!(
                    usize::try_from(end.sent_bytes).expect("positive"),
                    bytes.len()
                );
            }
            Payload::Summary(last) => summary = Some(last),
        }
    }
    Ok((files, summary.expect("summary")))
}

fn globs(globs: &[&str]) -> pb::CollectSpec {
    pb::CollectSpec {
        globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
        ..Default::default()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that no two positions of a chunk share.
fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((at * 7 + at / 251) % 256).expect("a byte"))
        .collect()
}

#[track_caller]
fn check_refused<T: std::fmt::Debug>(
    result: Result<T, Status>,
    code: Code,
    reason: Reason,
) -> Failure {
    let status = result.expect_err("must be refused");
    let error = Error::from(status);
    let failure = error
        .failure()
        .unwrap_or_else(|| panic!("{error:?}"))
        .clone();
    assert_eq!(
        (failure.code, failure.reason),
        (code, Some(reason)),
        "{failure:?}"
    );
    failure
}

fn tar_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder
            .append_data(&mut header, path, *bytes)
            .expect("append");
    }
    builder.into_inner().expect("tar")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("gzip");
    encoder.finish().expect("gzip")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_staged_file_is_listed_read_and_collected_byte_for_byte() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let bytes = pattern(3_000_000);
    let sha256 = hex(&Sha256::digest(&bytes));
    let header = pb::StageFilesHeader {
        mode: 0o755,
        sha256: sha256.clone(),
        ..header(Kind::File, "inputs/deep/a.bin")
    };
    let staged = stage(&server, &workspace, header, &bytes)
        .await
        .expect("staged");
    assert_eq!((staged.files_total, staged.bytes_total), (1, 3_000_000));
    let file = &staged.files[0];
    assert_eq!(
        (file.path.as_str(), file.mode),
        ("work/inputs/deep/a.bin", 0o755)
    );
    assert_eq!(file.sha256, sha256);

    let listed = list(&server, &workspace, "$INPUTS_DIR")
        .await
        .expect("listed");
    assert_eq!(listed, [("work/inputs/deep/a.bin".to_owned(), 3_000_000)]);
    for path in [
        "inputs/deep/a.bin",
        "/workspace/work/inputs/deep/a.bin",
        "${WORK_DIR}/inputs//deep/./a.bin",
    ] {
        assert_eq!(
            read(&server, &workspace, path, 0, 0).await.expect("read"),
            bytes
        );
    }
    let part = read(&server, &workspace, "inputs/deep/a.bin", 1_000_000, 10).await;
    assert_eq!(part.expect("read"), bytes[1_000_000..1_000_010]);
    let (collected, summary) = collect(&server, &workspace, globs(&["inputs/**"]))
        .await
        .expect("collected");
    assert_eq!(collected, [("work/inputs/deep/a.bin".to_owned(), bytes)]);
    assert_eq!((summary.matched, summary.returned), (1, 1));
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_are_unpacked_and_collected_again() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let big = pattern(700_000);
    let files: [(&str, &[u8]); 3] = [("a.txt", b"a"), ("b/c.bin", &big), ("b/empty", b"")];
    let tar = tar_of(&files);
    for (kind, dir, bytes) in [
        (Kind::Tar, "out/plain", tar.clone()),
        (Kind::TarGz, "out/gz", gzip(&tar)),
    ] {
        let header = pb::StageFilesHeader {
            sha256: hex(&Sha256::digest(&bytes)),
            ..header(kind, dir)
        };
        let staged = stage(&server, &workspace, header, &bytes)
            .await
            .expect("staged");
        assert_eq!((staged.files_total, staged.bytes_total), (3, 700_001));
        let (collected, _) = collect(&server, &workspace, globs(&[&format!("{dir}/**")]))
            .await
            .expect("collected");
        let expected = files.map(|(path, bytes)| (format!("{dir}/{path}"), bytes.to_vec()));
        assert_eq!(collected, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_paths_are_refused_with_their_reason() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let invalid = Code::InvalidArgument;
    for (path, code, reason) in [
        ("../x", invalid, Reason::PathEscapes),
        ("work/../../x", invalid, Reason::PathEscapes),
        ("/etc/passwd", invalid, Reason::PathEscapes),
        ("$WORK_DIR/../../x", invalid, Reason::PathEscapes),
        ("a\0b", invalid, Reason::InvalidRequest),
        ("$NOPE/x", invalid, Reason::InvalidRequest),
        (&"x".repeat(300), invalid, Reason::InvalidRequest),
    ] {
        let staged = stage(&server, &workspace, header(Kind::File, path), b"x").await;
        check_refused(staged, code, reason);
        check_refused(read(&server, &workspace, path, 0, 0).await, code, reason);
        check_refused(list(&server, &workspace, path).await, code, reason);
    }
    let staged = stage(&server, &workspace, header(Kind::File, "skills/a/x"), b"x").await;
    check_refused(staged, Code::FailedPrecondition, Reason::ReadOnly);
    let collected = collect(&server, &workspace, globs(&["../*"])).await;
    check_refused(collected, invalid, Reason::PathEscapes);
    let missing = read(&server, &workspace, "work/none", 0, 0).await;
    check_refused(missing, Code::NotFound, Reason::FileNotFound);
    let unknown = stage(&server, "workspaces/none", header(Kind::File, "a"), b"x").await;
    check_refused(unknown, Code::NotFound, Reason::WorkspaceNotFound);
    assert_eq!(list(&server, &workspace, "work").await.expect("listed"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_archives_are_refused_and_leave_nothing() {
    let server = TestServer::start("files.archive_entries_max = 50\n", &[]).await;
    let workspace = server.workspace().await;
    let raw = |path: &str, kind: tar::EntryType, link: &str| {
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(0o644);
        if !link.is_empty() {
            header.set_link_name_literal(link).expect("link");
        }
        header.set_cksum();
        let mut bytes = tar_of(&[("good.txt", b"good")]);
        // Before the two closing blocks.
        let end = bytes.len() - 1024;
        bytes.splice(end..end, header.as_bytes().iter().copied());
        bytes
    };
    let invalid = (Code::InvalidArgument, Reason::ArchiveInvalid);
    for (name, bytes, expected) in [
        ("up", raw("../x", tar::EntryType::Regular, ""), None),
        ("absolute", raw("/etc/x", tar::EntryType::Regular, ""), None),
        (
            "link",
            raw("l", tar::EntryType::Symlink, "../../../etc"),
            None,
        ),
        (
            "hard link",
            raw("l", tar::EntryType::Link, "good.txt"),
            Some(invalid),
        ),
        ("device", raw("d", tar::EntryType::Char, ""), Some(invalid)),
        ("fifo", raw("f", tar::EntryType::Fifo, ""), Some(invalid)),
        ("damaged", b"not a tar at all".repeat(100), Some(invalid)),
    ] {
        let staged = stage(&server, &workspace, header(Kind::Tar, "out"), &bytes).await;
        let status = staged.expect_err(name);
        let error = Error::from(status);
        if let Some(expected) = expected {
            assert_eq!(
                (error.code(), error.reason()),
                (Some(expected.0), Some(expected.1)),
                "{name}"
            );
        } else {
            let refusals = [Some(Reason::ArchiveInvalid), Some(Reason::PathEscapes)];
            assert!(refusals.contains(&error.reason()), "{name}: {error:?}");
        }
        assert_eq!(
            list(&server, &workspace, "out").await.expect("listed"),
            [],
            "{name}"
        );
    }
    let names: Vec<String> = (0..51).map(|at| format!("f{at}")).collect();
    let many: Vec<(&str, &[u8])> = names
        .iter()
        .map(|name| (name.as_str(), b"".as_slice()))
        .collect();
    let staged = stage(
        &server,
        &workspace,
        header(Kind::Tar, "out"),
        &tar_of(&many),
    )
    .await;
    check_refused(staged, Code::ResourceExhausted, Reason::LimitExceeded);
    assert_eq!(list(&server, &workspace, "out").await.expect("listed"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_checksum_leaves_nothing() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let header = pb::StageFilesHeader {
        sha256: "0".repeat(64),
        ..header(Kind::File, "work/a")
    };
    let staged = stage(&server, &workspace, header, b"bytes").await;
    check_refused(staged, Code::InvalidArgument, Reason::ChecksumMismatch);
    assert_eq!(list(&server, &workspace, "work").await.expect("listed"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_breaks_off_leaves_nothing() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let (sender, receiver) = mpsc::channel(4);
    sender
        .send(first(&workspace, header(Kind::File, "work/part")))
        .await
        .expect("open");
    sender.send(data(&pattern(1 << 20))).await.expect("open");
    let mut upload = Box::pin(send(&server, ReceiverStream::new(receiver)));
    // Until the second chunk was taken, the first one has been sent.
    for _ in 0..8 {
        tokio::select! {
            sent = sender.send(data(&pattern(1 << 20))) => sent.expect("open"),
            ended = &mut upload => panic!("ended early: {ended:?}"),
        }
    }
    // The client goes away: its call is reset.
    drop(upload);
    eventually_empty(&server, &workspace).await;
}

/// Waits until no file is anywhere, not even under a temporary name. Stages one to see that all is well, and looks
/// again: by then what was sent before has been dealt with.
async fn eventually_empty(server: &TestServer, workspace: &str) {
    let next = ("out/next".to_owned(), 1);
    for _ in 0..3 {
        let empty = async {
            let others = |file: &(String, i64)| *file != next;
            while list(server, workspace, "")
                .await
                .expect("listed")
                .iter()
                .any(others)
            {
                tokio::task::yield_now().await;
            }
        };
        let empty = tokio::time::timeout(Duration::from_secs(10), empty).await;
        empty.expect("something was left");
        stage(server, workspace, header(Kind::File, "out/next"), b"x")
            .await
            .expect("staged");
        let read = read(server, workspace, "out/next", 0, 0).await;
        assert_eq!(read.expect("read"), b"x");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_may_not_be_sent_ends_the_upload_and_leaves_nothing() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let good = data(&pattern(1 << 20));
    let invalid = (Code::InvalidArgument, Reason::InvalidRequest);
    let too_large = (Code::ResourceExhausted, Reason::LimitExceeded);
    for (bad, (code, reason)) in [
        (data(&vec![0; (1 << 20) + 1]), invalid),
        // Over the limit of a message.
        (data(&vec![0; 5 << 20]), too_large),
        (first(&workspace, header(Kind::File, "work/part")), invalid),
        (pb::StageFilesRequest::default(), invalid),
    ] {
        let messages = vec![
            first(&workspace, header(Kind::File, "work/part")),
            good.clone(),
            good.clone(),
            bad,
        ];
        let staged = send(&server, stream::iter(messages)).await;
        check_refused(staged, code, reason);
        eventually_empty(&server, &workspace).await;
    }
    let none = send(&server, stream::empty()).await;
    check_refused(none, Code::InvalidArgument, Reason::InvalidRequest);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_guest_comes_back_while_the_client_still_sends() {
    let server = TestServer::start("files.stage_bytes_max = \"1MiB\"\n", &[]).await;
    let workspace = server.workspace().await;
    // The stream never ends.
    let chunk = data(&pattern(600_000));
    let sent = [
        first(&workspace, header(Kind::File, "work/a")),
        chunk.clone(),
        chunk,
    ];
    let endless = stream::iter(sent).chain(stream::pending());
    let staged = tokio::time::timeout(Duration::from_secs(10), send(&server, endless)).await;
    let staged = staged.expect("answered while the stream was open");
    check_refused(staged, Code::ResourceExhausted, Reason::LimitExceeded);
    eventually_empty(&server, &workspace).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_open_at_the_stop_is_told_so() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let (sender, receiver) = mpsc::channel(1);
    sender
        .send(first(&workspace, header(Kind::File, "work/a")))
        .await
        .expect("open");
    let mut stub = server.client.files();
    let upload = Box::pin(async move { stub.stage_files(ReceiverStream::new(receiver)).await });
    let sending = async {
        // More than the transport takes unread: the upload is under way when this is done.
        for _ in 0..8 {
            sender.send(data(&pattern(1 << 20))).await.expect("open");
        }
        let clean = server.stop().await;
        drop(sender);
        clean
    };
    let (uploaded, clean) = tokio::join!(upload, sending);
    assert!(clean);
    check_refused(uploaded, Code::Unavailable, Reason::Draining);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_falls_silent_is_ended_and_leaves_nothing() {
    let server = TestServer::start("server.upload_timeout = \"300ms\"\n", &[]).await;
    let workspace = server.workspace().await;
    for begun in [false, true] {
        let (sender, receiver) = mpsc::channel(4);
        if begun {
            let opened = sender.send(first(&workspace, header(Kind::File, "work/a")));
            opened.await.expect("open");
            sender.send(data(b"half")).await.expect("open");
        }
        let asked = std::time::Instant::now();
        let mut stub = server.client.files();
        let uploaded = stub.stage_files(ReceiverStream::new(receiver)).await;
        check_refused(uploaded, Code::DeadlineExceeded, Reason::Deadline);
        let took = asked.elapsed();
        let bounds = Duration::from_millis(300)..Duration::from_secs(3);
        assert!(bounds.contains(&took), "{took:?}");
        drop(sender);
    }
    let request = pb::ListFilesRequest {
        workspace,
        path: "work".to_owned(),
        ..Default::default()
    };
    let listed = server.client.files().list_files(request).await;
    let entries = listed.expect("listed").into_inner();
    assert!(!format!("{entries:?}").contains("work/a"), "{entries:?}");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn collect_limits_over_the_maximum_are_refused_by_name() {
    let server = TestServer::start("files.collect_files_max = 200\n", &[]).await;
    let workspace = server.workspace().await;
    let spec = pb::CollectSpec {
        max_files: 201,
        ..globs(&["out/**"])
    };
    let failure = check_refused(
        collect(&server, &workspace, spec).await,
        Code::InvalidArgument,
        Reason::InvalidRequest,
    );
    assert!(
        failure.message.contains("spec.max_files") && failure.message.contains("200"),
        "{failure:?}"
    );
    let (files, summary) = collect(&server, &workspace, globs(&["out/**"]))
        .await
        .expect("collected");
    assert_eq!((files.len(), summary.matched), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn collect_since_an_exec_needs_one_of_this_workspace() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let since = |exec: String| pb::CollectSpec {
        changed_since_exec: exec,
        ..globs(&["out/**"])
    };
    let unknown = since(format!("{workspace}/execs/none"));
    let collected = collect(&server, &workspace, unknown).await;
    check_refused(collected, Code::NotFound, Reason::ExecNotFound);
    let foreign = since("workspaces/other/execs/e1".to_owned());
    let collected = collect(&server, &workspace, foreign).await;
    check_refused(collected, Code::InvalidArgument, Reason::InvalidRequest);
}

fn from_workspace(workspace: &str, input: pb::InputSpec) -> pb::StageInputsRequest {
    pb::StageInputsRequest {
        workspace: workspace.to_owned(),
        inputs: vec![input],
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_is_made_only_to_what_has_the_digest_that_was_asked_for() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let bytes = pattern(300_000);
    stage(&server, &workspace, header(Kind::File, "work/a"), &bytes)
        .await
        .expect("staged");
    let sha256 = hex(&Sha256::digest(&bytes));
    let link = |from: &str, sha256: &str| {
        let input = pb::InputSpec {
            source: Some(pb::input_spec::Source::From(from.to_owned())),
            to: "work/link".to_owned(),
            mode: pb::StageMode::Link.into(),
            sha256: sha256.to_owned(),
            ..Default::default()
        };
        server
            .client
            .stage_inputs(from_workspace(&workspace, input))
    };
    for (from, sha256, reason) in [
        (
            "workspace://work/a",
            &"0".repeat(64),
            Reason::ChecksumMismatch,
        ),
        ("workspace://work", &sha256, Reason::InvalidRequest),
    ] {
        let refused = link(from, sha256).await.expect_err(from);
        assert_eq!(refused.reason(), Some(reason), "{refused}");
        let names = list(&server, &workspace, "work").await.expect("listed");
        assert_eq!(names.len(), 1, "{names:?}");
    }
    let linked = link("workspace://work/a", &sha256).await.expect("linked");
    assert_eq!(linked[0].mode(), pb::StageMode::Link);
    let read = read(&server, &workspace, "work/link", 0, 0).await;
    assert_eq!(read.expect("read"), bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_was_whole_at_the_stop_is_not_told_that_nothing_happened() {
    for _ in 0..3 {
        let server = TestServer::start("", &[]).await;
        let workspace = server.workspace().await;
        let names: Vec<_> = (0..4000).map(|number| format!("{number:04}")).collect();
        let files: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), &b"x"[..]))
            .collect();
        let archive = tar_of(&files);
        let (asked, is_asked) = tokio::sync::oneshot::channel();
        let mut messages = vec![first(&workspace, header(Kind::Tar, "work/many"))];
        messages.extend(archive.chunks(1 << 20).map(data));
        let last = stream::once(async move {
            asked.send(()).expect("awaited");
            data(&[0; 512])
        });
        let mut stub = server.client.files();
        let messages = stream::iter(messages).chain(last);
        let staging = async move { stub.stage_files(messages).await };
        let stopping = async {
            is_asked.await.expect("asked");
            // Somewhere between the last byte and the answer.
            while list(&server, &workspace, "work/many").await.is_err() {}
            server.stop().await
        };
        let (staged, _) = tokio::join!(staging, stopping);
        if let Err(status) = staged {
            assert_ne!(status.code(), Code::Unavailable, "{status:?}");
        }
    }
}

//! Tests of FileService with a client, a whole server and the real guest.

use std::io::Write;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use sha2::{Digest, Sha256};
use skilld_client::{Error, Failure};
use skilld_proto::v1::SkipReason;
use skilld_proto::v1::StageFormat;
use skilld_proto::v1::stage_files_request::Payload;
use skilld_proto::v1::{self as pb, ErrorReason};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

mod copies;
mod uploads;
use crate::server::{TestServer, wait_until, within};

/// Returns a header without mode and checksum.
fn header(kind: StageFormat, path: &str) -> pb::StageFilesHeader {
    pb::StageFilesHeader {
        format: kind.into(),
        path: path.to_owned(),
        ..Default::default()
    }
}

/// Returns the first message of a StageFiles stream.
fn header_message(workspace: &str, header: pb::StageFilesHeader) -> pb::StageFilesRequest {
    let workspace = workspace.to_owned();
    pb::StageFilesRequest {
        payload: Some(Payload::Header(pb::StageFilesHeader {
            workspace,
            ..header
        })),
    }
}

/// Returns a data message of a StageFiles stream.
fn data_message(bytes: &[u8]) -> pb::StageFilesRequest {
    pb::StageFilesRequest {
        payload: Some(Payload::Data(bytes.to_vec().into())),
    }
}

/// Stages bytes in chunks.
async fn stage_file(
    server: &TestServer,
    workspace: &str,
    header: pb::StageFilesHeader,
    bytes: &[u8],
) -> Result<pb::StageFilesResponse, Status> {
    let mut messages = vec![header_message(workspace, header)];
    messages.extend(bytes.chunks(100_000).map(data_message));
    send_messages(server, stream::iter(messages)).await
}

/// Sends a StageFiles stream.
async fn send_messages(
    server: &TestServer,
    messages: impl Stream<Item = pb::StageFilesRequest> + Send + 'static,
) -> Result<pb::StageFilesResponse, Status> {
    let staged = server.client.files().stage_files(messages).await;
    staged.map(tonic::Response::into_inner)
}

/// Reads part of a file; `length` 0 reads to the end.
async fn read_file(
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

/// Lists the regular files beneath a directory, with their sizes.
async fn list_files(
    server: &TestServer,
    workspace: &str,
    path: &str,
) -> Result<Vec<(String, i64)>, Status> {
    let request = pb::ListFilesRequest {
        parent: workspace.to_owned(),
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
        .filter(|file| file.file_type() == pb::FileType::File)
        .map(|file| (file.path, file.size_bytes))
        .collect())
}

/// Asserts that no regular file is beneath a directory.
async fn assert_no_files(server: &TestServer, workspace: &str, path: &str) {
    let files = list_files(server, workspace, path).await.expect("listed");
    assert_eq!(files, [], "{path}");
}

/// Collects files and checks their digests. Returns the files with their bytes, and the summary.
async fn collect_files(
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

/// Returns a spec that collects these globs.
fn collect_spec(globs: &[&str]) -> pb::CollectSpec {
    pb::CollectSpec {
        globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
        ..Default::default()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns `len` bytes without a short period, so that mixed-up chunks are noticed.
fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((at * 7 + at / 251) % 256).expect("a byte"))
        .collect()
}

#[track_caller]
fn check_refused<T: std::fmt::Debug>(
    result: Result<T, Status>,
    code: Code,
    reason: ErrorReason,
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

/// Builds a tar of these files.
fn build_tar(files: &[(&str, &[u8])]) -> Vec<u8> {
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
async fn staged_file_is_listed_read_and_collected_byte_for_byte() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let bytes = pattern(3_000_000);
    let sha256 = hex(&Sha256::digest(&bytes));
    let header = pb::StageFilesHeader {
        mode: Some(0o755),
        sha256: sha256.clone(),
        ..header(StageFormat::File, "inputs/deep/a.bin")
    };
    let staged = stage_file(&server, &workspace, header, &bytes)
        .await
        .expect("staged");
    assert_eq!((staged.file_count, staged.size_bytes), (1, 3_000_000));
    let file = &staged.files[0];
    assert_eq!(
        (file.path.as_str(), file.mode),
        ("work/inputs/deep/a.bin", 0o755)
    );
    assert_eq!(file.sha256, sha256);

    let listed = list_files(&server, &workspace, "$INPUTS_DIR")
        .await
        .expect("listed");
    assert_eq!(listed, [("work/inputs/deep/a.bin".to_owned(), 3_000_000)]);
    for path in [
        "inputs/deep/a.bin",
        "/workspace/work/inputs/deep/a.bin",
        "${WORK_DIR}/inputs//deep/./a.bin",
    ] {
        assert_eq!(
            read_file(&server, &workspace, path, 0, 0)
                .await
                .expect("read"),
            bytes
        );
    }
    let part = read_file(&server, &workspace, "inputs/deep/a.bin", 1_000_000, 10).await;
    assert_eq!(part.expect("read"), bytes[1_000_000..1_000_010]);
    let (collected, summary) = collect_files(&server, &workspace, collect_spec(&["inputs/**"]))
        .await
        .expect("collected");
    assert_eq!(collected, [("work/inputs/deep/a.bin".to_owned(), bytes)]);
    assert_eq!((summary.matched_count, summary.returned_count), (1, 1));
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_are_unpacked_and_collected() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let big = pattern(700_000);
    let files: [(&str, &[u8]); 3] = [("a.txt", b"a"), ("b/c.bin", &big), ("b/empty", b"")];
    let tar = build_tar(&files);
    for (kind, dir, bytes) in [
        (StageFormat::Tar, "out/plain", tar.clone()),
        (StageFormat::TarGz, "out/gz", gzip(&tar)),
    ] {
        let header = pb::StageFilesHeader {
            sha256: hex(&Sha256::digest(&bytes)),
            ..header(kind, dir)
        };
        let staged = stage_file(&server, &workspace, header, &bytes)
            .await
            .expect("staged");
        assert_eq!((staged.file_count, staged.size_bytes), (3, 700_001));
        let (collected, _) =
            collect_files(&server, &workspace, collect_spec(&[&format!("{dir}/**")]))
                .await
                .expect("collected");
        let expected = files.map(|(path, bytes)| (format!("{dir}/{path}"), bytes.to_vec()));
        assert_eq!(collected, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_paths_are_rejected_with_their_reason() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let invalid = Code::InvalidArgument;
    for (path, code, reason) in [
        ("../x", invalid, ErrorReason::PathEscapes),
        ("work/../../x", invalid, ErrorReason::PathEscapes),
        ("/etc/passwd", invalid, ErrorReason::PathEscapes),
        ("$WORK_DIR/../../x", invalid, ErrorReason::PathEscapes),
        ("a\0b", invalid, ErrorReason::InvalidRequest),
        ("$NOPE/x", invalid, ErrorReason::InvalidRequest),
        (&"x".repeat(300), invalid, ErrorReason::InvalidRequest),
    ] {
        let staged = stage_file(&server, &workspace, header(StageFormat::File, path), b"x").await;
        check_refused(staged, code, reason);
        check_refused(
            read_file(&server, &workspace, path, 0, 0).await,
            code,
            reason,
        );
        check_refused(list_files(&server, &workspace, path).await, code, reason);
    }
    let staged = stage_file(
        &server,
        &workspace,
        header(StageFormat::File, "skills/a/x"),
        b"x",
    )
    .await;
    check_refused(staged, Code::FailedPrecondition, ErrorReason::ReadOnly);
    let collected = collect_files(&server, &workspace, collect_spec(&["../*"])).await;
    check_refused(collected, invalid, ErrorReason::PathEscapes);
    let missing = read_file(&server, &workspace, "work/none", 0, 0).await;
    check_refused(missing, Code::NotFound, ErrorReason::FileNotFound);
    let unknown = stage_file(
        &server,
        "workspaces/none",
        header(StageFormat::File, "a"),
        b"x",
    )
    .await;
    check_refused(unknown, Code::NotFound, ErrorReason::WorkspaceNotFound);
    assert_no_files(&server, &workspace, "work").await;
}

/// Builds a tar of a regular file and an empty entry whose path is not checked.
fn tar_with_raw_entry(path: &str, kind: tar::EntryType) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    let name = header.as_mut_bytes().get_mut(..path.len());
    name.expect("a short path").copy_from_slice(path.as_bytes());
    header.set_entry_type(kind);
    header.set_size(0);
    header.set_mode(0o644);
    header.set_cksum();
    let mut bytes = build_tar(&[("good.txt", b"good")]);
    // Insert before the two final blocks.
    let end = bytes.len() - 1024;
    bytes.splice(end..end, header.as_bytes().iter().copied());
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_archives_are_refused_and_leave_nothing() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let raw = tar_with_raw_entry;
    let invalid = (Code::InvalidArgument, ErrorReason::ArchiveInvalid);
    for (name, bytes, expected) in [
        ("up", raw("../x", tar::EntryType::Regular), None),
        ("damaged", b"not a tar at all".repeat(100), Some(invalid)),
    ] {
        let staged = stage_file(&server, &workspace, header(StageFormat::Tar, "out"), &bytes).await;
        let status = staged.expect_err(name);
        let error = Error::from(status);
        if let Some(expected) = expected {
            assert_eq!(
                (error.code(), error.reason()),
                (Some(expected.0), Some(expected.1)),
                "{name}"
            );
        } else {
            let refusals = [
                Some(ErrorReason::ArchiveInvalid),
                Some(ErrorReason::PathEscapes),
            ];
            assert!(refusals.contains(&error.reason()), "{name}: {error:?}");
        }
        let left = list_files(&server, &workspace, "out").await;
        assert_eq!(left.expect(name), [], "{name}");
    }
    let names: Vec<String> = (0..=50_000).map(|at| format!("f{at}")).collect();
    let many: Vec<(&str, &[u8])> = names
        .iter()
        .map(|name| (name.as_str(), b"".as_slice()))
        .collect();
    let staged = stage_file(
        &server,
        &workspace,
        header(StageFormat::Tar, "out"),
        &build_tar(&many),
    )
    .await;
    check_refused(staged, Code::ResourceExhausted, ErrorReason::LimitExceeded);
    assert_no_files(&server, &workspace, "out").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_is_not_unpacked_does_not_refuse_the_others() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    for (name, kind, reason) in [
        ("f", tar::EntryType::Fifo, SkipReason::FileType),
        ("/etc/x", tar::EntryType::Regular, SkipReason::Name),
    ] {
        let bytes = tar_with_raw_entry(name, kind);
        let staged = stage_file(&server, &workspace, header(StageFormat::Tar, "out"), &bytes)
            .await
            .expect("staged");
        let [skipped] = staged.skipped_files.as_slice() else {
            panic!("{:?}", staged.skipped_files);
        };
        assert_eq!(
            (skipped.path.as_str(), skipped.reason()),
            (&*format!("out/{name}"), reason)
        );
        assert_eq!(staged.file_count, 1);
        assert_eq!(staged.files[0].path, "out/good.txt");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn collect_limit_above_the_maximum_is_rejected_by_name() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let spec = pb::CollectSpec {
        max_files: 50_001,
        ..collect_spec(&["out/**"])
    };
    let failure = check_refused(
        collect_files(&server, &workspace, spec).await,
        Code::InvalidArgument,
        ErrorReason::InvalidRequest,
    );
    assert!(
        failure.message.contains("spec.max_files") && failure.message.contains("50000"),
        "{failure:?}"
    );
    let (files, summary) = collect_files(&server, &workspace, collect_spec(&["out/**"]))
        .await
        .expect("collected");
    assert_eq!((files.len(), summary.matched_count), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn globs_collect_what_they_spell_and_the_rest_is_named() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let names = ["[slug].tsx", "a[1", "x{1}.csv"];
    let tar = build_tar(&names.map(|name| (name, name.as_bytes())));
    stage_file(&server, &workspace, header(StageFormat::Tar, "out"), &tar)
        .await
        .expect("staged");
    let expected = names.map(|name| (format!("out/{name}"), name.as_bytes().to_vec()));
    let mut globs = vec!["out/*.pdf", "$OUTPUT_DIR/[9]"];
    globs.extend(expected.iter().map(|(path, _)| path.as_str()));
    let (collected, summary) = collect_files(&server, &workspace, collect_spec(&globs))
        .await
        .expect("collected");
    assert_eq!(collected, expected);
    assert_eq!(summary.unmatched_globs, ["out/*.pdf", "out/[9]"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_since_exec_requires_an_exec_of_the_same_workspace() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let since = |exec: String| pb::CollectSpec {
        changed_since_exec: exec,
        ..collect_spec(&["out/**"])
    };
    let unknown = since(format!("{workspace}/execs/none"));
    let collected = collect_files(&server, &workspace, unknown).await;
    check_refused(collected, Code::NotFound, ErrorReason::ExecNotFound);
    let foreign = since("workspaces/other/execs/e1".to_owned());
    let collected = collect_files(&server, &workspace, foreign).await;
    check_refused(
        collected,
        Code::InvalidArgument,
        ErrorReason::InvalidRequest,
    );
}

/// Returns a request that stages one input.
fn stage_input_request(workspace: &str, input: pb::InputSpec) -> pb::StageInputsRequest {
    pb::StageInputsRequest {
        workspace: workspace.to_owned(),
        inputs: vec![input],
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_linked_only_if_it_has_the_requested_digest() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let bytes = pattern(300_000);
    stage_file(
        &server,
        &workspace,
        header(StageFormat::File, "work/a"),
        &bytes,
    )
    .await
    .expect("staged");
    let sha256 = hex(&Sha256::digest(&bytes));
    let link = |from: &str, sha256: &str| {
        let input = pb::InputSpec {
            content: Some(pb::input_spec::Content::Source(from.to_owned())),
            path: "work/link".to_owned(),
            mode: pb::StageMode::Link.into(),
            sha256: sha256.to_owned(),
            ..Default::default()
        };
        server
            .client
            .stage_inputs(stage_input_request(&workspace, input))
    };
    for (from, sha256, reason) in [
        (
            "workspace://work/a",
            &"0".repeat(64),
            ErrorReason::ChecksumMismatch,
        ),
        ("workspace://work", &sha256, ErrorReason::InvalidRequest),
    ] {
        let refused = link(from, sha256).await.expect_err(from);
        assert_eq!(refused.reason(), Some(reason), "{refused}");
        let names = list_files(&server, &workspace, "work")
            .await
            .expect("listed");
        assert_eq!(names.len(), 1, "{names:?}");
    }
    let linked = link("workspace://work/a", &sha256).await.expect("linked");
    assert_eq!(linked[0].mode(), pb::StageMode::Link);
    let read = read_file(&server, &workspace, "work/link", 0, 0).await;
    assert_eq!(read.expect("read"), bytes);
}

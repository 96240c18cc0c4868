//! Tests of StageInputs with a client, a whole server and the real guest: inputs from URLs and the host, requests of which
//! one input fails, pinned artifacts, and stops.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};
use skilld_client::{Error, SaveTarget};
use skilld_proto::v1::input_spec::Content;
use skilld_proto::v1::{self as pb, ErrorReason as Reason};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::Code;

use crate::frozen_guests::FrozenGuests;
use crate::server::{TestServer, within};

mod host_roots;
mod repeats;

/// Settings that allow inputs from a web server on this host.
const LOOPBACK: &str = "files.input_urls = true\nfiles.input_private_addresses = true\n";

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(bytes))
}

fn input(from: &str) -> pb::InputSpec {
    pb::InputSpec {
        content: Some(Content::Source(from.to_owned())),
        ..Default::default()
    }
}

fn scope(user: &str) -> pb::ArtifactScope {
    pb::ArtifactScope {
        app: "app".into(),
        user: user.into(),
        session: "1".into(),
    }
}

/// Stages inputs with the artifact scope of `ada`.
async fn stage_inputs<const N: usize>(
    server: &TestServer,
    workspace: &str,
    inputs: [pb::InputSpec; N],
) -> Result<Vec<pb::StagedInput>, Error> {
    let request = pb::StageInputsRequest {
        workspace: workspace.to_owned(),
        inputs: inputs.into(),
        scope: Some(scope("ada")),
    };
    server.client.stage_inputs(request).await
}

/// Stages one input. Returns its path and its text.
async fn stage_one(server: &TestServer, workspace: &str, spec: pb::InputSpec) -> (String, String) {
    let staged = stage_inputs(server, workspace, [spec])
        .await
        .expect("staged");
    let file = staged
        .first()
        .and_then(|staged| staged.file.clone())
        .expect("a file");
    let text = read_text(server, workspace, &file.path).await;
    assert_eq!(file.sha256, hex(text.as_bytes()));
    (file.path, text)
}

/// Reads a text file of a workspace.
async fn read_text(server: &TestServer, workspace: &str, path: &str) -> String {
    use pb::read_file_response::Payload;
    let request = pb::ReadFileRequest {
        workspace: workspace.to_owned(),
        path: path.to_owned(),
        ..Default::default()
    };
    let answer = server.client.files().read_file(request).await;
    let mut messages = answer.expect("there").into_inner();
    let mut data = Vec::new();
    while let Some(message) = messages.message().await.expect("bytes") {
        if let Some(Payload::Data(piece)) = message.payload {
            data.extend_from_slice(&piece);
        }
    }
    String::from_utf8(data).expect("text")
}

/// Returns the paths of all files in the working directory of a workspace.
async fn list_work_files(server: &TestServer, workspace: &str) -> Vec<String> {
    let listed = server
        .client
        .list_files(pb::ListFilesRequest {
            parent: workspace.to_owned(),
            path: "work".into(),
            recursive: true,
            ..Default::default()
        })
        .await
        .expect("listed");
    listed
        .files
        .into_iter()
        .filter(|file| file.file_type() == pb::FileType::File)
        .map(|file| file.path)
        .collect()
}

/// Checks that the workspace has no inputs in its record, and only these files in its working directory.
async fn check_files(server: &TestServer, workspace: &str, expected: &[&str]) {
    let view = server.get_workspace(workspace).await;
    assert_eq!(view.inputs, []);
    assert_eq!(list_work_files(server, workspace).await, expected);
}

/// Checks that the workspace has no inputs, neither in its record nor on disk.
async fn check_nothing_staged(server: &TestServer, workspace: &str) {
    check_files(server, workspace, &[]).await;
}

fn check_refused<T: std::fmt::Debug>(
    answer: Result<T, Error>,
    code: Code,
    reason: Reason,
) -> String {
    let error = answer.expect_err("must be refused");
    assert_eq!(
        (error.code(), error.reason()),
        (Some(code), Some(reason)),
        "{error:?}"
    );
    let Error::Status(failure) = error else {
        panic!("{error:?}");
    };
    failure.message
}

/// Pages of a web server: target (path and query) → status line and headers, and body.
#[derive(Default)]
struct WebPages {
    pages: HashMap<&'static str, (String, String)>,
}

/// Web server that records the requested targets.
struct WebServer {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl WebPages {
    fn page(mut self, target: &'static str, head: &str, body: &str) -> Self {
        self.pages
            .insert(target, (head.to_owned(), body.to_owned()));
        self
    }

    async fn serve(self) -> WebServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("bound").to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (mut tasks, log) = (JoinSet::new(), Arc::clone(&asked));
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream = BufReader::new(stream);
                let mut lines = Vec::new();
                let mut line = String::new();
                while stream
                    .read_line(&mut line)
                    .await
                    .is_ok_and(|count| count > 2)
                {
                    lines.push(std::mem::take(&mut line));
                }
                let requested = lines.first().and_then(|line| line.split(' ').nth(1));
                let target = requested.unwrap_or_default().to_owned();
                let missing = ("404 Not Found\r\n".to_owned(), String::new());
                let (head, body) = self.pages.get(target.as_str()).unwrap_or(&missing);
                let answer = format!(
                    "HTTP/1.1 {head}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                log.lock().expect("not poisoned").push(target);
                // The client may have disconnected.
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        WebServer {
            address,
            asked,
            _tasks: tasks,
        }
    }
}

impl WebServer {
    fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    fn take_targets(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().expect("not poisoned"))
    }
}

const OK: &str = "200 OK\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_input_is_fetched_from_a_server_if_that_is_configured() {
    let web = WebPages::default()
        .page("/data/table.csv?key=secret", OK, "a,b\n1,2\n")
        .page("/moved", "302 Found\r\nLocation: /data/other\r\n", "")
        .page("/data/other", OK, "other")
        .serve()
        .await;
    let server = TestServer::start(LOOPBACK, &[]).await;
    let workspace = server.workspace().await;
    let url = web.url("/data/table.csv?key=secret");
    let (path, text) = stage_one(&server, &workspace, input(&url)).await;
    assert_eq!(
        (path.as_str(), text.as_str()),
        ("work/inputs/table.csv", "a,b\n1,2\n")
    );
    let (path, text) = stage_one(&server, &workspace, input(&web.url("/moved"))).await;
    assert_eq!(
        (path.as_str(), text.as_str()),
        ("work/inputs/moved", "other")
    );
    assert_eq!(
        web.take_targets(),
        ["/data/table.csv?key=secret", "/moved", "/data/other"]
    );

    // The record and the metadata file omit the query, which may contain a secret.
    let recorded = server.get_workspace(&workspace).await.inputs;
    let mut from: Vec<&str> = recorded.iter().map(|input| input.source.as_str()).collect();
    from.sort_unstable_by_key(|from| from.len());
    assert_eq!(from, [web.url("/moved"), web.url("/data/table.csv?…")]);
    let slots = std::fs::read_dir(server.state_dir().join("slots")).expect("slots");
    let metadata: Vec<String> = slots
        .filter_map(|slot| {
            std::fs::read_to_string(slot.ok()?.path().join("skills/.metadata.json")).ok()
        })
        .filter(|text| text.contains("table.csv"))
        .collect();
    assert_eq!(metadata.len(), 1);
    assert!(
        metadata[0].contains(&web.url("/data/table.csv")),
        "{metadata:?}"
    );
    let secret = metadata[0].contains("secret") || metadata[0].contains("url_sha256");
    assert!(!secret, "it could be read or guessed: {metadata:?}");
    assert!(server.stop().await);
}

/// Path of a file that a workspace has before inputs are staged, and its text.
const OLDER: (&str, &str) = ("work/inputs/older", "older");

/// References to what other sources do not have or do not permit, each with its code and reason.
const UNAVAILABLE: [(&str, Code, Reason); 4] = [
    (
        "workspace://work/nothing",
        Code::NotFound,
        Reason::FileNotFound,
    ),
    (
        "skill://nothing/SKILL.md",
        Code::NotFound,
        Reason::SkillNotFound,
    ),
    (
        "artifact://nothing",
        Code::NotFound,
        Reason::ArtifactNotFound,
    ),
    (
        "host:///etc/passwd",
        Code::PermissionDenied,
        Reason::PermissionDenied,
    ),
];

/// Checks that a request is refused and stages neither of its inputs: the older file keeps its bytes.
async fn check_none_staged(
    server: &TestServer,
    workspace: &str,
    inputs: [pb::InputSpec; 2],
    code: Code,
    reason: Reason,
) {
    let answer = stage_inputs(server, workspace, inputs).await;
    let message = check_refused(answer, code, reason);
    assert!(!message.is_empty(), "{reason:?}");
    check_files(server, workspace, &[OLDER.0]).await;
    assert_eq!(read_text(server, workspace, OLDER.0).await, OLDER.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_fetch_of_an_input_has_a_reason_and_leaves_nothing() {
    let long = "x".repeat(2000);
    let metadata = "302 Found\r\nLocation: http://169.254.169.254/\r\n";
    let web = WebPages::default()
        .page("/fine", OK, "fine")
        .page("/long", OK, &long)
        .page("/broken", "500 Internal Server Error\r\n", "")
        .page("/metadata", metadata, "")
        .page("/file", "302 Found\r\nLocation: file:///etc/passwd\r\n", "")
        .serve()
        .await;
    let server = TestServer::start(
        &format!("{LOOPBACK}files.stage_bytes_max = \"1KiB\"\n"),
        &[],
    )
    .await;
    let workspace = server.workspace().await;
    let uploaded = server.client.upload_bytes(&workspace, OLDER.0, OLDER.1);
    uploaded.await.expect("staged");
    let fine = pb::InputSpec {
        path: OLDER.0.to_owned(),
        ..input(&web.url("/fine"))
    };
    let pinned = format!("/fine#sha256={}", "0".repeat(64));
    let of_the_server = [
        ("/nothing", Code::NotFound, Reason::FileNotFound),
        ("/long", Code::ResourceExhausted, Reason::LimitExceeded),
        ("/broken", Code::FailedPrecondition, Reason::FetchFailed),
        (
            "/metadata",
            Code::PermissionDenied,
            Reason::PermissionDenied,
        ),
        ("/file", Code::FailedPrecondition, Reason::FetchFailed),
        (
            pinned.as_str(),
            Code::InvalidArgument,
            Reason::ChecksumMismatch,
        ),
    ]
    .map(|(target, code, reason)| (web.url(target), code, reason));
    let of_others = UNAVAILABLE.map(|(from, code, reason)| (from.to_owned(), code, reason));
    for (from, code, reason) in of_the_server.into_iter().chain(of_others) {
        let inputs = [fine.clone(), input(&from)];
        check_none_staged(&server, &workspace, inputs, code, reason).await;
    }
    let wrong = pb::InputSpec {
        sha256: "0".repeat(64),
        ..input(&web.url("/fine"))
    };
    let (code, reason) = (Code::InvalidArgument, Reason::ChecksumMismatch);
    check_none_staged(&server, &workspace, [fine, wrong], code, reason).await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn urls_of_callers_are_bounded_by_settings_of_their_own() {
    let web = WebPages::default().page("/x", OK, "x").serve().await;
    let url = web.url("/x");
    let by_name = url.replace("127.0.0.1", "localhost");
    // Settings for skill roots do not apply to inputs.
    for (settings, told) in [
        ("", "files.input_urls"),
        ("files.input_private_addresses = true\n", "files.input_urls"),
        ("files.input_urls = true\n", "files.input_private_addresses"),
    ] {
        let settings = format!("skills.allow_private_addresses = true\n{settings}");
        let server = TestServer::start(&settings, &[]).await;
        let workspace = server.workspace().await;
        for url in [&url, &by_name] {
            let answer = stage_inputs(&server, &workspace, [input(url)]).await;
            let message = check_refused(answer, Code::PermissionDenied, Reason::PermissionDenied);
            assert!(message.contains(told), "{message}");
        }
        check_nothing_staged(&server, &workspace).await;
        assert!(server.stop().await);
    }
    assert_eq!(
        web.take_targets(),
        Vec::<String>::new(),
        "it was connected to"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn urls_that_differ_in_their_query_do_not_overwrite_one_another() {
    let web = WebPages::default()
        .page("/get?id=1", OK, "one")
        .page("/get?id=2", OK, "two")
        .serve()
        .await;
    let server = TestServer::start(LOOPBACK, &[]).await;
    let workspace = server.workspace().await;
    let first = input(&web.url("/get?id=1"));
    let second = input(&web.url("/get?id=2"));
    for _ in 0..2 {
        let (path, text) = stage_one(&server, &workspace, first.clone()).await;
        assert_eq!((path.as_str(), text.as_str()), ("work/inputs/get", "one"));
        let (path, text) = stage_one(&server, &workspace, second.clone()).await;
        assert_eq!((path.as_str(), text.as_str()), ("work/inputs/get_2", "two"));
    }
    assert_eq!(
        read_text(&server, &workspace, "work/inputs/get").await,
        "one"
    );
    assert!(server.stop().await);
}

/// Number of rounds; one without a pause of the machine is enough.
const ROUNDS: usize = 5;

/// Request to stage an artifact of `ada`.
fn stage_request(workspace: &str, from: &str) -> pb::StageInputsRequest {
    pb::StageInputsRequest {
        workspace: workspace.to_owned(),
        inputs: vec![input(from)],
        scope: Some(scope("ada")),
    }
}

/// Stages an artifact while the guest is frozen, until the client gives up, and then a second one of the same name.
/// Returns the second one's path, the first one's text and the number of recorded inputs.
async fn stage_late() -> Result<(String, String, usize), String> {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    save_artifact(&server, "ada", "first/a.csv", "1").await;
    save_artifact(&server, "ada", "second/a.csv", "2").await;
    let frozen = FrozenGuests::stop(server.state_dir());
    let mut request = tonic::Request::new(stage_request(&workspace, "artifact://first/a.csv"));
    // Longer than sending the archive takes, and shorter than the daemon waits for a guest.
    request.set_timeout(Duration::from_secs(2));
    let late = server.client.files().stage_inputs(request).await;
    late.expect_err("the client gave up");
    drop(frozen);
    // The daemon stages this input after it has completed the first one.
    let second = stage_inputs(&server, &workspace, [input("artifact://second/a.csv")])
        .await
        .map_err(|error| error.to_string())?;
    let file = second.first().and_then(|staged| staged.file.clone());
    let text = read_text(&server, &workspace, "work/inputs/a.csv").await;
    let view = server.get_workspace(&workspace).await;
    Ok((file.expect("a file").path, text, view.inputs.len()))
}

#[tokio::test]
async fn input_that_the_guest_completes_late_is_recorded() {
    let expected: Result<_, String> =
        Ok(("work/inputs/a_2.csv".to_owned(), "1".to_owned(), 2_usize));
    let mut results = Vec::new();
    for _ in 0..ROUNDS {
        let result = stage_late().await;
        if result == expected {
            return;
        }
        results.push(result);
    }
    panic!("never {expected:?}: {results:?}");
}

/// Freezes the guest of a new workspace and begins to stage an artifact. Returns the guest, and the call, which ends
/// with the code of its status.
async fn stage_at_frozen_guest(server: &TestServer) -> (FrozenGuests, JoinSet<Option<Code>>) {
    let workspace = server.workspace().await;
    save_artifact(server, "ada", "first/a.csv", "1").await;
    let frozen = FrozenGuests::stop(server.state_dir());
    let (mut files, mut call) = (server.client.files(), JoinSet::new());
    call.spawn(async move {
        let request = stage_request(&workspace, "artifact://first/a.csv");
        let staged = files.stage_inputs(request).await;
        staged.err().map(|status| status.code())
    });
    (frozen, call)
}

/// Stops a daemon that waits for a frozen guest to install an archive, while another daemon does the same and goes on.
/// Returns the code of the call, and `true` if the stop ended before the other daemon gave up its guest.
async fn stop_while_staging() -> (Option<Code>, bool) {
    let server = TestServer::start("", &[]).await;
    let other = TestServer::start("", &[]).await;
    // The other daemon begins first, so it is the first to give up its guest.
    let (frozen, mut other_call) = stage_at_frozen_guest(&other).await;
    let (_frozen, mut call) = stage_at_frozen_guest(&server).await;
    // Longer than sending the archive takes. No event reports that the daemon now waits for the guest.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(server.stop().await);
    let is_first = other_call.try_join_next().is_none();
    let ended = within(call.join_next()).await.expect("a call");
    drop((frozen, other_call));
    assert!(other.stop().await);
    (ended.expect("no panic"), is_first)
}

#[tokio::test]
async fn stop_does_not_wait_for_a_guest_that_is_staging_inputs() {
    let mut results = Vec::new();
    for _ in 0..ROUNDS {
        let result = stop_while_staging().await;
        // The guest has the archive, and the daemon does not know whether it is in place.
        if result == (Some(Code::Aborted), true) {
            return;
        }
        results.push(result);
    }
    panic!("the stop waits for the guest: {results:?}");
}

async fn save_artifact(server: &TestServer, user: &str, name: &str, text: &'static str) -> i64 {
    let target = SaveTarget::new(name, scope(user));
    let saved = server.client.save_artifact(target, text.as_bytes()).await;
    saved.expect("saved").version
}

/// Stages an artifact. Returns its version and text.
async fn stage_artifact(
    server: &TestServer,
    workspace: &str,
    from: &str,
    pin: bool,
) -> (i64, String) {
    let spec = pb::InputSpec { pin, ..input(from) };
    let inputs = stage_inputs(server, workspace, [spec])
        .await
        .expect("staged");
    let staged = inputs.first().expect("one");
    let path = staged.file.clone().expect("a file").path;
    (
        staged.version.expect("of an artifact"),
        read_text(server, workspace, &path).await,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_artifact_keeps_the_version_that_the_workspace_used() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let took = |version: i64, text: &str| (version, text.to_owned());
    assert_eq!(save_artifact(&server, "ada", "dir/a", "zero").await, 0);
    assert_eq!(save_artifact(&server, "ada", "dir/a", "one").await, 1);
    // Artifacts of another user with the same name do not matter.
    for text in ["other zero", "other one", "other two", "other three"] {
        save_artifact(&server, "bob", "dir/a", text).await;
    }
    let from = "artifact://dir/a";
    let missing = pb::InputSpec {
        pin: true,
        ..input("artifact://none")
    };
    let answer = stage_inputs(&server, &workspace, [missing]).await;
    check_refused(answer, Code::NotFound, Reason::ArtifactNotFound);
    // Without an earlier use, a pinned artifact is the newest version.
    assert_eq!(
        stage_artifact(&server, &workspace, from, true).await,
        took(1, "one")
    );
    assert_eq!(save_artifact(&server, "ada", "dir/a", "two").await, 2);
    assert_eq!(
        stage_artifact(&server, &workspace, from, true).await,
        took(1, "one")
    );
    // The pin also applies to another path, and after a restart.
    let server = server.restart(|_| {}).await;
    let elsewhere = pb::InputSpec {
        pin: true,
        path: "work/copy".into(),
        ..input(from)
    };
    assert_eq!(
        stage_one(&server, &workspace, elsewhere).await,
        ("work/copy".into(), "one".into())
    );
    // Another workspace has no pin.
    let second = server.workspace().await;
    assert_eq!(
        stage_artifact(&server, &second, from, true).await,
        took(2, "two")
    );
    // Without `pin` the newest version is used, and a version number selects that version. The pin is the version used
    // last.
    assert_eq!(
        stage_artifact(&server, &workspace, from, false).await,
        took(2, "two")
    );
    assert_eq!(
        stage_artifact(&server, &workspace, from, true).await,
        took(2, "two")
    );
    let zero = stage_artifact(&server, &workspace, "artifact://dir/a@0", true).await;
    assert_eq!(zero, took(0, "zero"));
    assert_eq!(
        stage_artifact(&server, &workspace, from, true).await,
        took(0, "zero")
    );
    // Pins are in the daemon's record, which no command can change.
    let recorded = server.get_workspace(&workspace).await.inputs;
    let pinned = recorded.iter().find(|input| input.version == Some(0));
    assert!(pinned.is_some(), "{recorded:?}");
    assert!(server.stop().await);
}

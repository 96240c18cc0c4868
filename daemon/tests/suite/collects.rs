//! Tests of collections that save artifacts, with a client, a whole server and the real guest.

use skilld_client::{Error, UploadTarget};
use skilld_proto::v1::{self as pb, ErrorReason};
use tonic::Code;

use crate::frozen_guests::FrozenGuests;
use crate::server::{TestServer, wait_until, within};

fn shell(text: &str) -> pb::ExecSpec {
    pb::ExecSpec {
        shell: text.to_owned(),
        ..Default::default()
    }
}

fn spec(globs: &[&str], prefix: &str) -> pb::CollectSpec {
    pb::CollectSpec {
        globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
        save_as_artifacts: Some(pb::SaveAsArtifacts {
            prefix: prefix.to_owned(),
            scope: Some(pb::ArtifactScope {
                app: "app".to_owned(),
                user: "ada".to_owned(),
                session: "s1".to_owned(),
            }),
            request_id: String::new(),
        }),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_collection_is_refused_with_every_fault() {
    let server = TestServer::start("", &[]).await;
    let request = pb::CollectOutputsRequest {
        workspace: server.workspace().await,
        spec: Some(pb::CollectSpec {
            format: pb::CollectFormat::TarGz.into(),
            ..spec(&["out/[a/b]"], "a/../")
        }),
    };
    let error = server.client.collect(request).await.expect_err("refused");
    let expected = ["spec.save_as_artifacts", "spec.save_as_artifacts.prefix"];
    assert_eq!(fields(&error), expected);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn planned_collection_is_validated_before_the_exec_starts() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let run = async |planned: pb::CollectSpec| {
        let mut asked = shell("touch ran");
        asked.planned_collect = Some(planned);
        let request = start_request(&workspace, "job".to_owned(), asked);
        server.client.start_exec(request).await
    };
    let mut bad = spec(&["out/c.txt", "$UNKNOWN_DIR/d.txt", "out/[a"], "/x");
    bad.max_files = -1;
    let error = run(bad).await.expect_err("refused");
    let expected = [
        "spec.planned_collect.globs[1]",
        "spec.planned_collect.max_files",
        "spec.planned_collect.save_as_artifacts.prefix",
    ];
    assert_eq!(fields(&error), expected);
    for outside in ["../*.txt", "/out/c.txt"] {
        let error = run(spec(&[outside], "")).await.expect_err("refused");
        assert_eq!(fields(&error), [ErrorReason::PathEscapes.as_str_name()]);
    }
    let execs = server.client.list_execs(pb::ListExecsRequest {
        parent: workspace.clone(),
        ..Default::default()
    });
    assert_eq!(execs.await.expect("listed").execs, [], "nothing ran");
    // A planned collection collects nothing and needs no `save_as_artifacts`.
    let planned = pb::CollectSpec {
        save_as_artifacts: None,
        ..spec(&["$OUTPUT_DIR", "$RUN_DIR/*"], "")
    };
    let exec = run(planned).await.expect("started");
    let effective = exec.effective_spec.expect("a spec");
    assert_eq!(effective.planned_collect, None);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_collection_saves_no_second_version() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let upload = async |bytes: &'static [u8]| {
        let target = UploadTarget::file(&workspace, "out/x");
        server.client.upload(target, bytes).await.expect("staged");
    };
    let asked = |request_id: &str| {
        let mut spec = spec(&["out"], "");
        if let Some(saved) = &mut spec.save_as_artifacts {
            saved.request_id = request_id.to_owned();
        }
        spec
    };
    upload(b"one").await;
    for _ in 0..2 {
        let summary = collected(&server, &workspace, asked("first")).await;
        assert_eq!(summary.artifacts, ["artifact://out/x@0"]);
    }
    let summary = collected(&server, &workspace, asked("second")).await;
    assert_eq!(summary.artifacts, ["artifact://out/x@1"]);
    upload(b"two").await;
    let summary = collected(&server, &workspace, asked("first")).await;
    let skipped = pb::SkippedFile {
        path: "out/x".to_owned(),
        reason: pb::SkipReason::NotSaved.into(),
    };
    assert_eq!(summary.artifacts, Vec::<String>::new());
    assert_eq!(summary.skipped_files, [skipped]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_exec_saves_no_empty_artifact() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let name = run_to_end(&server, &workspace, "exit 3").await;
    for (path, bytes) in [("out/r", &b""[..]), ("out/x", b"x")] {
        let target = UploadTarget::file(&workspace, path);
        server.client.upload(target, bytes).await.expect("staged");
    }
    let asked = |skip_empty_after_failure| pb::CollectSpec {
        changed_since_exec: name.clone(),
        skip_empty_after_failure,
        ..spec(&["out"], "")
    };
    let summary = collected(&server, &workspace, asked(true)).await;
    assert_eq!(summary.artifacts, ["artifact://out/x@0"]);
    let skipped = pb::SkippedFile {
        path: "out/r".to_owned(),
        reason: pb::SkipReason::EmptyAfterFailure.into(),
    };
    assert_eq!(summary.skipped_files, [skipped]);
    // The caller must set `skip_empty_after_failure`.
    let summary = collected(&server, &workspace, asked(false)).await;
    assert_eq!(
        summary.artifacts,
        ["artifact://out/r@0", "artifact://out/x@0"]
    );
    let alone = pb::CollectSpec {
        skip_empty_after_failure: true,
        ..spec(&["out"], "")
    };
    let request = pb::CollectOutputsRequest {
        workspace: workspace.clone(),
        spec: Some(alone),
    };
    let error = server.client.collect(request).await.expect_err("refused");
    assert_eq!(fields(&error), ["spec.skip_empty_after_failure"]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_stragglers_of_a_failed_exec_are_collected() {
    let server = TestServer::start_with_commands("", &[]).await;
    let workspace = server.workspace().await;
    let text = "echo one > $OUTPUT_DIR/one; echo log > $RUN_DIR/log; \
                (sleep 0.1; echo late > $OUTPUT_DIR/late) & exit 3";
    let name = run_to_end(&server, &workspace, text).await;
    let asked = pb::CollectSpec {
        changed_since_exec: name,
        until_exec_end: true,
        ..spec(&["out/**", "$RUN_DIR/*"], "job/")
    };
    let summary = collected(&server, &workspace, asked).await;
    let expected =
        ["out/late", "out/one", "runs/job/log"].map(|path| format!("artifact://job/{path}@0"));
    assert_eq!(summary.artifacts, expected);
    assert!(server.stop().await);
}

/// Runs the exec `job` to its end, and returns its name.
async fn run_to_end(server: &TestServer, workspace: &str, text: &str) -> String {
    let request = start_request(workspace, "job".to_owned(), shell(text));
    let started = server.client.start_exec(request).await;
    let name = started.expect("started").name;
    wait_until("the exec has ended", async || {
        let exec = server.client.get_exec(&name).await.expect("there");
        (exec.state() == pb::ExecState::Closed).then_some(())
    })
    .await;
    name
}

async fn collected(
    server: &TestServer,
    workspace: &str,
    spec: pb::CollectSpec,
) -> pb::CollectSummary {
    let request = pb::CollectOutputsRequest {
        workspace: workspace.to_owned(),
        spec: Some(spec),
    };
    let mut messages = server.client.collect(request).await.expect("collected");
    while let Some(message) = messages.next().await.expect("a message") {
        if let Some(pb::collect_outputs_response::Payload::Summary(summary)) = message.payload {
            return summary;
        }
    }
    panic!("no summary");
}

#[tokio::test(flavor = "multi_thread")]
async fn collection_that_saved_ends_with_aborted_at_a_stop() {
    let server = TestServer::start("", &[]).await;
    let (workspace, client) = (server.workspace().await, server.client.clone());
    // More files than the windows of the connections hold.
    for number in 10..26 {
        let path = format!("out/{number}");
        let uploaded = client.upload_bytes(&workspace, &path, vec![0; 2 << 20]);
        uploaded.await.expect("staged");
    }
    let request = pb::CollectOutputsRequest {
        workspace,
        spec: Some(spec(&["out/*"], "")),
    };
    let mut messages = client.collect(request).await.expect("collected");
    let saved = loop {
        let message = messages.next().await.expect("a message");
        let payload = message.expect("it goes on").payload;
        if let Some(pb::collect_outputs_response::Payload::FileEnd(end)) = payload {
            break end.artifact;
        }
    };
    assert_eq!(saved, "artifact://out/10@0");
    let frozen = FrozenGuests::stop(server.state_dir());
    let end = async {
        loop {
            match messages.next().await {
                Ok(Some(_)) => {}
                ended => break ended,
            }
        }
    };
    let (clean, ended) = tokio::join!(server.stop(), within(end));
    drop(frozen);
    assert!(clean);
    let error = ended.expect_err("stopped");
    let failure = (error.code(), error.reason());
    assert_eq!(failure, (Some(Code::Aborted), Some(ErrorReason::GuestLost)));
    assert!(error.to_string().contains("saving"), "{error}");
}

fn start_request(workspace: &str, id: String, spec: pb::ExecSpec) -> pb::StartExecRequest {
    pb::StartExecRequest {
        parent: workspace.to_owned(),
        exec_id: id,
        spec: Some(spec),
    }
}

/// Returns the fields of an error's violations, or else its reason.
fn fields(error: &Error) -> Vec<String> {
    let Error::Status(failure) = error else {
        panic!("{error:?}");
    };
    let violations = &failure.violations;
    if violations.is_empty() {
        let reason = error.reason().expect("a reason");
        return vec![reason.as_str_name().to_owned()];
    }
    violations
        .iter()
        .map(|violation| violation.field.clone())
        .collect()
}

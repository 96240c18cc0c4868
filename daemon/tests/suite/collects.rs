//! Tests of collections at an exec's end, with a client, a whole server and the real guest.

use std::path::Path;
use std::time::Duration;

use prost::Message;
use skilld_client::{Error, UploadTarget};
use skilld_proto::v1::exec_collection::State;
use skilld_proto::v1::skipped_file;
use skilld_proto::v1::{self as pb, Reason};
use tonic::Code;

use crate::frozen_guests::FrozenGuests;
use crate::server::{TestServer, ignore_absent, wait_until, within};

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
        }),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_collection_is_rejected_before_the_exec_starts() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let refused = |spec: pb::CollectSpec| async {
        let mut asked = shell("true");
        asked.collect = Some(spec);
        let request = pb::StartExecRequest {
            workspace: workspace.clone(),
            exec_id: "job".to_owned(),
            spec: Some(asked),
        };
        let error = server
            .client
            .start_exec(request)
            .await
            .expect_err("refused");
        fields(&error)
    };
    let mut bad = spec(&[], "/x");
    bad.max_files = -1;
    bad.changed_since_exec = "workspaces/w/execs/other".to_owned();
    bad.format = pb::CollectFormat::Tar.into();
    let expected = [
        "spec.collect.globs",
        "spec.collect.max_files",
        "spec.collect.save_as_artifacts",
        "spec.collect.save_as_artifacts.prefix",
        "spec.collect.changed_since_exec",
    ];
    assert_eq!(refused(bad).await, expected);
    let nobody = pb::CollectSpec {
        save_as_artifacts: None,
        ..spec(&["out/**"], "")
    };
    assert_eq!(refused(nobody).await, ["spec.collect.save_as_artifacts"]);
    let out = refused(spec(&["../*"], "")).await;
    assert_eq!(out, [Reason::PathEscapes.as_str_name()]);

    let request = pb::CollectOutputsRequest {
        workspace: workspace.clone(),
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
        assert_eq!(fields(&error), [Reason::PathEscapes.as_str_name()]);
    }
    let execs = server.client.list_execs(pb::ListExecsRequest {
        workspace: workspace.clone(),
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
    assert_eq!((effective.collect, effective.planned_collect), (None, None));
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_exec_saves_no_empty_artifact() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let request = start_request(&workspace, "failed".to_owned(), shell("exit 3"));
    let name = server
        .client
        .start_exec(request)
        .await
        .expect("started")
        .name;
    wait_until("the exec has ended", async || {
        let exec = server.client.get_exec(&name).await.expect("there");
        (exec.state() == pb::ExecState::Closed).then_some(())
    })
    .await;
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
        reason: skipped_file::Reason::EmptyAfterFailure.into(),
    };
    assert_eq!(summary.skipped, [skipped]);
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
    assert_eq!(failure, (Some(Code::Aborted), Some(Reason::GuestLost)));
    assert!(error.to_string().contains("saving"), "{error}");
}

fn start_request(workspace: &str, id: String, spec: pb::ExecSpec) -> pb::StartExecRequest {
    pb::StartExecRequest {
        workspace: workspace.to_owned(),
        exec_id: id,
        spec: Some(spec),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_is_collected_if_its_client_disconnects_during_the_start() {
    // A busy guest may have many of them at once.
    let server = TestServer::start("execs.count_max = 100\n", &[]).await;
    let workspace = server.workspace().await;
    let mut asked = shell("true");
    asked.collect = Some(spec(&["out/*"], ""));
    // Clients that disconnect sooner and later, until one of them has started its exec.
    let mut round: u32 = 0;
    let cut_off = wait_until("an exec starts without its client", async || {
        let step = Duration::from_micros(100_u64 << (round % 10));
        let mut ids = Vec::new();
        for number in 0..60 {
            let id = format!("job-{round}-{number}");
            let request = start_request(&workspace, id.clone(), asked.clone());
            let mut stub = server.client.execs();
            match tokio::time::timeout(step * number, stub.start_exec(request)).await {
                Ok(started) => drop(started.expect("started")),
                Err(_) => ids.push(id),
            }
        }
        round += 1;
        for id in ids {
            let name = format!("{workspace}/execs/{id}");
            if server.client.get_exec(&name).await.is_ok() {
                return Some(id);
            }
        }
        None
    })
    .await;
    // Execs that the guest has started end, and their outputs are collected.
    wait_until("all are collected", async || {
        let list = pb::ListExecsRequest {
            workspace: workspace.clone(),
            page_size: 100,
            ..Default::default()
        };
        let execs = server.client.list_execs(list).await.expect("listed").execs;
        let state = |exec: &pb::Exec| exec.collection.as_ref().map(pb::ExecCollection::state);
        let done = execs.iter().all(|exec| state(exec) == Some(State::Done));
        done.then_some(())
    })
    .await;
    // The same request returns the same exec, whether or not the first call started it.
    for id in [cut_off, "job-0-0".to_owned()] {
        let request = start_request(&workspace, id, asked.clone());
        let again = server.client.start_exec(request).await.expect("started");
        wait_until("the exec is collected", async || {
            let exec = server.client.get_exec(&again.name).await.expect("there");
            let state = exec.collection.as_ref().map(pb::ExecCollection::state);
            (state == Some(State::Done)).then_some(())
        })
        .await;
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn workspace_that_expired_during_downtime_is_collected_before_removal() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let mut asked = shell("true");
    asked.collect = Some(spec(&["out/x"], ""));
    let request = start_request(&workspace, "job".to_owned(), asked);
    let exec = server.client.start_exec(request).await.expect("started");
    let started = wait_until("the exec is collected", async || {
        let exec = server.client.get_exec(&exec.name).await.expect("there");
        let state = exec.collection.as_ref().map(pb::ExecCollection::state);
        exec.effective_spec.filter(|_| state == Some(State::Done))
    })
    .await;
    let target = UploadTarget::file(&workspace, "out/x");
    let staged = server.client.upload(target, &b"x"[..]).await;
    staged.expect("a late file");
    // Simulate a daemon that died before the collection.
    let server = server.restart(|dir| expire_workspaces(dir, &started)).await;
    let list = pb::ListArtifactsRequest {
        scope: spec(&[], "").save_as_artifacts.and_then(|save| save.scope),
        ..Default::default()
    };
    wait_until("the workspace is gone", async || {
        let gone = server.client.get_workspace(&workspace).await;
        gone.is_err().then_some(())
    })
    .await;
    let found = server.client.list_artifacts(list).await.expect("listed");
    let names: Vec<_> = found.artifacts.iter().map(|found| &found.name).collect();
    assert_eq!(names, ["artifacts/out/x"]);
    assert!(server.stop().await);
}

/// Ends the lifetime of all workspaces in their records, and makes their collections pending again. `spec` is what their
/// exec was started with.
fn expire_workspaces(state_dir: &Path, spec: &pb::ExecSpec) {
    for slot in std::fs::read_dir(state_dir.join("slots")).expect("slots") {
        let slot = slot.expect("a slot").path();
        let path = slot.join("record.json");
        // A slot whose start the stop ended may have none.
        let Some(text) = ignore_absent(std::fs::read(&path)) else {
            continue;
        };
        let mut record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        if let Some(claim) = record.get_mut("claim").filter(|claim| claim.is_object()) {
            claim["end_time_ms"] = 1.into();
            std::fs::write(&path, record.to_string()).expect("written");
            let path = slot.join("collects/job");
            let text = std::fs::read(&path).expect("a note");
            let mut note = pb::Exec::decode(text.as_slice()).expect("a message");
            note.effective_spec = Some(spec.clone());
            note.collection = Some(pb::ExecCollection {
                state: State::Pending.into(),
                ..Default::default()
            });
            std::fs::write(&path, note.encode_to_vec()).expect("written");
        }
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

//! What may be asked to be kept as artifacts, and when: through a client and a whole server. No Docker.

use skilld_client::Error;
use skilld_proto::v1::{self as pb, Reason};

#[path = "support/server.rs"]
#[expect(dead_code, reason = "shared with tests that use more of it")]
mod server;
use server::TestServer;

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
async fn what_cannot_be_collected_is_refused_before_anything_starts() {
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
    let expected = [
        "spec.globs[0]",
        "spec.save_as_artifacts",
        "spec.save_as_artifacts.prefix",
    ];
    assert_eq!(fields(&error), expected);
    assert!(server.stop().await);
}

/// Fields that are named, or the reason.
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

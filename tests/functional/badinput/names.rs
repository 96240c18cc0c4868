//! Malformed names, ids, paths and messages.

use anyhow::{Context, Result, ensure};
use skilld_client::v1::{
    CreateWorkspaceRequest, DeleteWorkspaceRequest, ExecSpec, GetExecRequest, GetWorkspaceRequest,
    Reason, RunExecRequest, StartExecRequest,
};
use skilld_client::{FieldViolation, UploadTarget};
use skilld_tests::exec::{argv, run, shell};
use skilld_tests::files::{collect, globs, put, read, stage};
use skilld_tests::{Daemon, expect_refusal};
use tonic::Code;

use super::{contents, still_well};

/// Texts that are not valid ids.
fn bad_ids() -> Vec<String> {
    let fixed = [
        "a/b", "..", ".", "a/../b", "a\0b", "A", "-a", "a-", "ü", " a", "a\n", "%2e%2e",
    ];
    let mut ids: Vec<String> = fixed.map(str::to_owned).to_vec();
    ids.extend(["x".repeat(64), "x".repeat(300)]);
    ids
}

#[tokio::test]
async fn bad_ids_are_refused_and_named() -> Result<()> {
    let (daemon, good) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let invalid = Reason::InvalidRequest;
    for id in bad_ids() {
        let name = format!("workspaces/{id}");
        let request = CreateWorkspaceRequest {
            name: name.clone(),
            ..CreateWorkspaceRequest::default()
        };
        let failure = expect_refusal(client.create_workspace(request).await, invalid)?;
        let [FieldViolation { field, .. }] = &failure.violations[..] else {
            anyhow::bail!("{id:?}: {failure:?}");
        };
        assert_eq!(field, "name", "{id:?}");
        let request = GetWorkspaceRequest { name: name.clone() };
        expect_refusal(client.workspaces().get_workspace(request).await, invalid)?;
        let request = DeleteWorkspaceRequest {
            name,
            allow_missing: true,
        };
        expect_refusal(client.workspaces().delete_workspace(request).await, invalid)?;
        let request = StartExecRequest {
            workspace: good.clone(),
            exec_id: id.clone(),
            spec: Some(shell("true")),
        };
        expect_refusal(client.execs().start_exec(request).await, invalid)?;
        let request = GetExecRequest {
            name: format!("{good}/execs/{id}"),
        };
        expect_refusal(client.execs().get_exec(request).await, invalid)?;
        let pool = CreateWorkspaceRequest {
            pool: id.clone(),
            ..CreateWorkspaceRequest::default()
        };
        expect_refusal(client.create_workspace(pool).await, invalid)?;
    }
    ensure!(
        contents(client, &good)
            .await?
            .lines()
            .all(|line| !line.contains(".."))
    );
    assert_eq!(client.get_pool("default").await?.claimed, 1);
    still_well(client, &good).await?;
    daemon.stop().await
}

#[tokio::test]
async fn names_of_another_form_are_refused() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let invalid = Reason::InvalidRequest;
    for name in [
        "",
        "w",
        "workspace/w",
        "workspaces/",
        "workspaces/w/execs/e",
    ] {
        let request = GetWorkspaceRequest {
            name: name.to_owned(),
        };
        expect_refusal(client.workspaces().get_workspace(request).await, invalid)?;
    }
    daemon.stop().await
}

#[tokio::test]
async fn what_does_not_exist_is_not_found() -> Result<()> {
    let (daemon, good) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let missing = Reason::WorkspaceNotFound;
    let failure = expect_refusal(client.get_workspace("none").await, missing)?;
    assert_eq!(failure.resource.as_deref(), Some("workspaces/none"));
    expect_refusal(run(client, "workspaces/none", shell("true")).await, missing)?;
    expect_refusal(put(client, "workspaces/none", "work/x", "x").await, missing)?;
    expect_refusal(read(client, "workspaces/none", "work/x").await, missing)?;
    expect_refusal(client.stage_skills("none", &["csv-report"]).await, missing)?;
    expect_refusal(
        collect(client, "workspaces/none", globs(["**"])).await,
        missing,
    )?;
    let pool = CreateWorkspaceRequest {
        pool: "none".to_owned(),
        ..CreateWorkspaceRequest::default()
    };
    expect_refusal(client.create_workspace(pool).await, Reason::PoolNotFound)?;
    expect_refusal(
        client.get_exec(&format!("{good}/execs/none")).await,
        Reason::ExecNotFound,
    )?;
    let failure = expect_refusal(read(client, &good, "work/none").await, Reason::FileNotFound)?;
    assert_eq!(failure.metadata["path"], "work/none");
    still_well(client, &good).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_message_of_5_mib_is_refused() -> Result<()> {
    let (daemon, good) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let request = RunExecRequest {
        workspace: good.clone(),
        spec: Some(argv([&"x".repeat(5 << 20)])),
        ..RunExecRequest::default()
    };
    let status = client.execs().run_exec(request).await.expect_err("5 MiB");
    ensure!(
        matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted),
        "{status:?}"
    );
    let failure = skilld_client::Error::from(status);
    assert_eq!(failure.reason(), Some(Reason::LimitExceeded), "{failure}");
    // The connection that it came on goes on.
    still_well(client, &good).await?;
    daemon.stop().await
}

#[tokio::test]
async fn all_violations_of_a_request_are_reported_at_once() -> Result<()> {
    let (daemon, good) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let spec = ExecSpec {
        env: [
            ("A B".to_owned(), "x".to_owned()),
            ("GOOD".to_owned(), "a\0b".to_owned()),
        ]
        .into(),
        skill: "../x".to_owned(),
        shell: "true".to_owned(),
        timeout: Some(prost_types::Duration {
            seconds: -1,
            nanos: 0,
        }),
        ..argv(["a\0b"])
    };
    let failure = expect_refusal(run(client, &good, spec).await, Reason::InvalidRequest)?;
    assert!(failure.violations.len() >= 6, "{:?}", failure.violations);
    // One argument over what Linux takes, one environment over what we take.
    for spec in [
        argv(["echo", &"x".repeat(128 << 10)]),
        ExecSpec {
            env: [("A".to_owned(), "x".repeat(300 << 10))].into(),
            ..shell("true")
        },
        ExecSpec::default(),
    ] {
        expect_refusal(run(client, &good, spec).await, Reason::InvalidRequest)?;
    }
    still_well(client, &good).await?;
    daemon.stop().await
}

#[tokio::test]
async fn paths_that_lead_out_or_nowhere_are_refused() -> Result<()> {
    let (daemon, good) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let before = contents(client, &good).await?;
    let long = format!("work/{}", "x".repeat(256));
    let deep = format!("work/{}", "d/".repeat(200));
    let endless = format!("work/{}", "./".repeat(2500));
    let escapes = Reason::PathEscapes;
    let invalid = Reason::InvalidRequest;
    for (path, reason) in [
        ("../x", escapes),
        ("/etc/x", escapes),
        ("/workspace/../etc/x", escapes),
        ("work/../../x", escapes),
        ("$OUTPUT_DIR/../../x", escapes),
        ("$HOME/x", invalid),
        ("work/a\0b", invalid),
        (&long, invalid),
        (&deep, invalid),
        (&endless, invalid),
        ("", invalid),
    ] {
        expect_refusal(put(client, &good, path, "x").await, reason)
            .with_context(|| path.to_owned())?;
    }
    // A directory where a file is to go, a file on the way.
    put(client, &good, "work/file", "x").await?;
    for path in ["work/inputs", "work/file/x"] {
        expect_refusal(put(client, &good, path, "y").await, Reason::WrongFileType)
            .with_context(|| path.to_owned())?;
    }
    for mode in [0o4755, 0o1777, 0o10_0644] {
        let target = UploadTarget {
            mode,
            ..UploadTarget::file(&good, "work/mode")
        };
        expect_refusal(stage(client, target, "x").await, invalid)?;
    }
    assert_eq!(read(client, &good, "work/file").await?, b"x");
    run(client, &good, shell("rm $WORK_DIR/file")).await?;
    assert_eq!(contents(client, &good).await?, before);
    still_well(client, &good).await?;
    daemon.stop().await
}

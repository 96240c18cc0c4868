//! Malformed names, ids, paths and messages.

use anyhow::{Context, Result, ensure};
use skilld_client::v1::{
    CreateWorkspaceRequest, DeleteWorkspaceRequest, ExecSpec, GetExecRequest, GetWorkspaceRequest,
    Reason, RunExecRequest, StartExecRequest,
};
use skilld_client::{FieldViolation, UploadTarget};
use skilld_tests::exec::{argv, run, shell, workspace};
use skilld_tests::files::{collect, globs, put, read, stage};
use skilld_tests::{Daemon, expect_refusal, expect_refused_status};
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
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let good = workspace(client).await?.name;
    let invalid = (Code::InvalidArgument, Reason::InvalidRequest);
    for id in bad_ids() {
        let name = format!("workspaces/{id}");
        let request = CreateWorkspaceRequest {
            name: name.clone(),
            ..CreateWorkspaceRequest::default()
        };
        let failure = expect_refusal(client.create_workspace(request).await, invalid.0, invalid.1)?;
        let [FieldViolation { field, .. }] = &failure.violations[..] else {
            anyhow::bail!("{id:?}: {failure:?}");
        };
        assert_eq!(field, "name", "{id:?}");
        let request = GetWorkspaceRequest { name: name.clone() };
        expect_refused_status(
            client.workspaces().get_workspace(request).await,
            invalid.0,
            invalid.1,
        )?;
        let request = DeleteWorkspaceRequest {
            name,
            allow_missing: true,
        };
        expect_refused_status(
            client.workspaces().delete_workspace(request).await,
            invalid.0,
            invalid.1,
        )?;
        let request = StartExecRequest {
            workspace: good.clone(),
            exec_id: id.clone(),
            spec: Some(shell("true")),
        };
        expect_refused_status(
            client.execs().start_exec(request).await,
            invalid.0,
            invalid.1,
        )?;
        let request = GetExecRequest {
            name: format!("{good}/execs/{id}"),
        };
        expect_refused_status(client.execs().get_exec(request).await, invalid.0, invalid.1)?;
        let pool = CreateWorkspaceRequest {
            pool: id.clone(),
            ..CreateWorkspaceRequest::default()
        };
        expect_refusal(client.create_workspace(pool).await, invalid.0, invalid.1)?;
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
    let invalid = (Code::InvalidArgument, Reason::InvalidRequest);
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
        expect_refused_status(
            client.workspaces().get_workspace(request).await,
            invalid.0,
            invalid.1,
        )?;
    }
    daemon.stop().await
}

#[tokio::test]
async fn what_does_not_exist_is_not_found() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let good = workspace(client).await?.name;
    let missing = (Code::NotFound, Reason::WorkspaceNotFound);
    let failure = expect_refusal(client.get_workspace("none").await, missing.0, missing.1)?;
    assert_eq!(failure.resource.as_deref(), Some("workspaces/none"));
    let error = run(client, "workspaces/none", shell("true"))
        .await
        .expect_err("none")
        .downcast()?;
    expect_refusal::<()>(Err(error), missing.0, missing.1)?;
    expect_refusal(
        put(client, "workspaces/none", "work/x", "x").await,
        missing.0,
        missing.1,
    )?;
    expect_refusal(
        read(client, "workspaces/none", "work/x").await,
        missing.0,
        missing.1,
    )?;
    expect_refusal(
        client.stage_skills("none", &["csv-report"]).await,
        missing.0,
        missing.1,
    )?;
    let error = collect(client, "workspaces/none", globs(["**"]))
        .await
        .expect_err("none")
        .downcast()?;
    expect_refusal::<()>(Err(error), missing.0, missing.1)?;
    let pool = CreateWorkspaceRequest {
        pool: "none".to_owned(),
        ..CreateWorkspaceRequest::default()
    };
    expect_refusal(
        client.create_workspace(pool).await,
        Code::NotFound,
        Reason::PoolNotFound,
    )?;
    expect_refusal(
        client.get_exec(&format!("{good}/execs/none")).await,
        Code::NotFound,
        Reason::ExecNotFound,
    )?;
    let failure = expect_refusal(
        read(client, &good, "work/none").await,
        Code::NotFound,
        Reason::FileNotFound,
    )?;
    assert_eq!(
        failure.metadata.get("path").map(String::as_str),
        Some("work/none")
    );
    still_well(client, &good).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_message_of_5_mib_is_refused() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let good = workspace(client).await?.name;
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
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let good = workspace(client).await?.name;
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
    let error = run(client, &good, spec)
        .await
        .expect_err("all wrong")
        .downcast()?;
    let failure = expect_refusal::<()>(Err(error), Code::InvalidArgument, Reason::InvalidRequest)?;
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
        let error = run(client, &good, spec)
            .await
            .expect_err("too large")
            .downcast()?;
        expect_refusal::<()>(Err(error), Code::InvalidArgument, Reason::InvalidRequest)?;
    }
    still_well(client, &good).await?;
    daemon.stop().await
}

#[tokio::test]
async fn paths_that_lead_out_or_nowhere_are_refused() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let good = workspace(client).await?.name;
    let before = contents(client, &good).await?;
    let long = format!("work/{}", "x".repeat(256));
    let deep = format!("work/{}", "d/".repeat(200));
    let endless = format!("work/{}", "./".repeat(2500));
    let escapes = (Code::InvalidArgument, Reason::PathEscapes);
    let invalid = (Code::InvalidArgument, Reason::InvalidRequest);
    for (path, (code, reason)) in [
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
        expect_refusal(put(client, &good, path, "x").await, code, reason)
            .with_context(|| path.to_owned())?;
    }
    // A directory where a file is to go, a file on the way.
    put(client, &good, "work/file", "x").await?;
    for path in ["work/inputs", "work/file/x"] {
        expect_refusal(
            put(client, &good, path, "y").await,
            Code::FailedPrecondition,
            Reason::WrongFileType,
        )
        .with_context(|| path.to_owned())?;
    }
    for mode in [0o4755, 0o1777, 0o10_0644] {
        let target = UploadTarget {
            mode,
            ..UploadTarget::file(&good, "work/mode")
        };
        expect_refusal(stage(client, target, "x").await, invalid.0, invalid.1)?;
    }
    assert_eq!(read(client, &good, "work/file").await?, b"x");
    run(client, &good, shell("rm $WORK_DIR/file")).await?;
    assert_eq!(contents(client, &good).await?, before);
    still_well(client, &good).await?;
    daemon.stop().await
}

//! The daemon dies between every two steps of a slot's life, once at each fault point, and is started again on the same
//! state. Nothing may be left over, nothing may have two owners, nothing may be half there.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::Value;
use skilld_client::{Client, RetryPolicy, short_id};
use skilld_proto::v1::{
    CollectSpec, CreateWorkspaceRequest, DeleteWorkspaceRequest, ListWorkspacesRequest,
    RenewWorkspaceRequest, RunExecRequest, SaveAsArtifacts, StreamOffsets, Workspace,
    WorkspaceState,
};
use skilld_tests::{Daemon, Options, docker, exec, files, wait};

use crate::crash::fault_points::points;
use crate::crash::{DEADLINE, containers, read_bytes, run_shell};

/// Workspace that is being created, renewed, lost or deleted.
const TARGET: &str = "workspaces/target";
/// Workspace that must not be affected.
const NEIGHBOUR: &str = "workspaces/neighbour";
/// Time from one renewal to the next.
const RENEWED_SECONDS: i64 = 7200;

/// Returns the number of the fault points of a boot in the first of two tests, which run at the same time.
fn count_first_half_of_boot_points() -> usize {
    points("boot.").count() / 2
}

#[tokio::test]
async fn the_first_half_of_a_boot_survives_a_crash_at_every_step() -> Result<()> {
    for point in points("boot.").take(count_first_half_of_boot_points()) {
        // The second boot is for the target: nothing is warm, so each claim waits for its own.
        crash_at(point, 2).await.context(point)?;
    }
    Ok(())
}

#[tokio::test]
async fn the_second_half_of_a_boot_survives_a_crash_at_every_step() -> Result<()> {
    for point in points("boot.").skip(count_first_half_of_boot_points()) {
        crash_at(point, 2).await.context(point)?;
    }
    Ok(())
}

#[tokio::test]
async fn making_a_disk_survives_a_crash_at_every_step() -> Result<()> {
    for point in points("disk.") {
        crash_at(point, 2).await.context(point)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_claim_survives_a_crash_at_every_step() -> Result<()> {
    for point in points("claim.") {
        crash_at(point, 2).await.context(point)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_renewal_and_a_loss_survive_a_crash_at_every_step() -> Result<()> {
    for point in points("renew.").chain(points("loss.")) {
        crash_at(point, 1).await.context(point)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_delete_survives_a_crash_at_every_step() -> Result<()> {
    for point in points("delete.") {
        crash_at(point, 1).await.context(point)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_collection_survives_a_crash_between_two_files() -> Result<()> {
    crash_at("collect.saved", 1).await
}

async fn crash_at(point: &str, times: u32) -> Result<()> {
    let on_disk = point.starts_with("disk.");
    let booting = on_disk || point.starts_with("boot.");
    let options = Options::default()
        .set("pools.default.warm", if booting { "0" } else { "1" })
        .set(
            "pools.default.storage",
            if on_disk { "disk" } else { "tmpfs" },
        )
        .dies_at(&format!("{point}:{times}"));
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    create(&client, NEIGHBOUR).await?;
    run_shell(&client, NEIGHBOUR, "echo mine > file").await?;
    let mut counting = client
        .run_exec(RunExecRequest {
            parent: NEIGHBOUR.to_owned(),
            exec_id: "count".to_owned(),
            spec: Some(exec::shell("echo 1; read -r < <(sleep 1); echo 2; exit 3")),
            ..RunExecRequest::default()
        })
        .await?;
    read_bytes(&mut counting, 2).await?;

    let answered = provoke(point, &daemon, &client).await?;
    assert_eq!(daemon.wait().await?, None, "it was not killed");
    daemon.heal("pools.default.warm", "1");
    daemon.restart().await?;

    found(point, &daemon, answered).await?;
    usable(&daemon).await?;
    let counted = exec::attach(
        &daemon.client,
        &format!("{NEIGHBOUR}/execs/count"),
        StreamOffsets::default(),
    )
    .await?;
    assert_eq!(
        (counted.text().as_str(), counted.exit_code()),
        ("1\n2\n", Some(3))
    );
    assert_eq!(
        run_shell(&daemon.client, NEIGHBOUR, "cat file").await?,
        "mine\n"
    );
    daemon.stop().await
}

/// Makes the calls that lead to the fault point, and returns what the client was told before it.
async fn provoke(point: &str, daemon: &Daemon, client: &Client) -> Result<Option<Workspace>> {
    let (action, _) = point.split_once('.').context("no action")?;
    if matches!(action, "boot" | "disk" | "claim") {
        let made = create(client, TARGET).await;
        // What happens after the answer's last step may still let it through.
        assert!(made.is_err() || point == "boot.offered", "{made:?}");
        return Ok(made.ok());
    }
    let target = create(client, TARGET).await?;
    run_shell(client, TARGET, "echo target > file").await?;
    daemon.warm(1).await?;
    match action {
        "renew" => {
            let request = RenewWorkspaceRequest {
                name: TARGET.to_owned(),
                idle_timeout: Some(prost_types::Duration {
                    seconds: RENEWED_SECONDS,
                    nanos: 0,
                }),
                ..RenewWorkspaceRequest::default()
            };
            let renewed = client.workspaces().renew_workspace(request).await;
            assert!(renewed.is_err(), "{renewed:?}");
        }
        "collect" => {
            let spec = exec::shell("echo one > $OUTPUT_DIR/one; echo two > $OUTPUT_DIR/two");
            let job = exec::start(client, TARGET, "job", spec).await?;
            exec::attach(client, &job.name, StreamOffsets::default()).await?;
            let collected = files::collect(client, TARGET, job_files()).await;
            assert!(collected.is_err(), "it was answered before it was killed");
        }
        "loss" => docker::remove(&daemon.container(TARGET)?).await?,
        _ => {
            let deleted = client.delete_workspace(TARGET).await;
            assert!(deleted.is_err(), "it was answered before it was killed");
        }
    }
    Ok(Some(target))
}

/// Returns the request for the two files of an exec, which become artifacts.
fn job_files() -> CollectSpec {
    CollectSpec {
        changed_since_exec: format!("{TARGET}/execs/job"),
        save_as_artifacts: Some(SaveAsArtifacts::default()),
        ..files::globs(["out/**"])
    }
}

/// Checks that each file becomes one version of one artifact, however often it is collected.
async fn collected_once(daemon: &Daemon) -> Result<()> {
    for _ in 0..2 {
        let collected = files::collect(&daemon.client, TARGET, job_files()).await?;
        let expected = ["artifact://out/one@0", "artifact://out/two@0"];
        assert_eq!(collected.summary.artifacts, expected);
    }
    Ok(())
}

async fn create(client: &Client, name: &str) -> Result<Workspace> {
    let request = CreateWorkspaceRequest {
        workspace_id: short_id(name),
        request_id: format!("the one for {name}"),
        ..CreateWorkspaceRequest::default()
    };
    Ok(client
        .workspaces()
        .create_workspace(request)
        .await?
        .into_inner())
}

/// Checks that the restarted daemon reports a possible state of the target.
async fn found(point: &str, daemon: &Daemon, answered: Option<Workspace>) -> Result<()> {
    let listed = daemon
        .client
        .list_workspaces(ListWorkspacesRequest::default())
        .await?
        .workspaces;
    let neighbour = listed.iter().find(|one| one.name == NEIGHBOUR);
    assert_eq!(
        neighbour.map(Workspace::state),
        Some(WorkspaceState::Ready),
        "the neighbour"
    );
    let target = listed.iter().find(|one| one.name == TARGET);
    assert_eq!(
        listed.len(),
        1 + usize::from(target.is_some()),
        "{listed:?}"
    );
    let state = target.map(Workspace::state);
    let (action, _) = point.split_once('.').context("no action")?;
    match (action, point) {
        ("boot" | "disk", _) if answered.is_none() => assert_eq!(state, None),
        ("claim", "claim.recorded" | "claim.done" | "claim.listed") => {
            assert_eq!(state, Some(WorkspaceState::Ready));
        }
        ("claim", _) => assert_eq!(state, None),
        ("renew", _) => {
            let idle = target.and_then(|one| one.idle_timeout).context("a lease")?;
            let renewed = point == "renew.recorded";
            assert_eq!(idle.seconds == RENEWED_SECONDS, renewed, "{idle:?}");
        }
        ("loss", _) => assert_eq!(state, Some(WorkspaceState::Failed)),
        ("delete", "delete.begun") => assert_eq!(state, Some(WorkspaceState::Ready)),
        ("delete", _) => assert_eq!(state, None),
        _ => assert_eq!(state, Some(WorkspaceState::Ready)),
    }
    if state == Some(WorkspaceState::Ready) && matches!(action, "renew" | "delete") {
        assert_eq!(
            run_shell(&daemon.client, TARGET, "cat file").await?,
            "target\n"
        );
    }
    if action == "collect" {
        collected_once(daemon).await?;
    }
    if state == Some(WorkspaceState::Failed) {
        daemon.client.delete_workspace(TARGET).await?;
    }
    Ok(())
}

/// Checks that the pool fills, that the same request returns the one workspace, and that every slot has one owner.
async fn usable(daemon: &Daemon) -> Result<()> {
    let client = &daemon.client;
    create(client, TARGET).await?;
    let who =
        "import json; print(json.load(open(\"/workspace/skills/.metadata.json\"))[\"workspace\"])";
    let told = run_shell(client, TARGET, &format!("python3 -c '{who}'")).await?;
    assert_eq!(told.trim(), TARGET);
    create(client, "workspaces/third").await?;
    run_shell(client, "workspaces/third", "true").await?;
    daemon.warm(1).await?;
    // What the killed daemon left is removed while this one serves.
    let slots = wait::until("only slots of this daemon are left", DEADLINE, async || {
        let slots = std::fs::read_dir(daemon.state_dir().join("slots"))?.count();
        Ok((slots <= 4 && containers(daemon).await?.len() <= 4).then_some(slots))
    })
    .await?;
    let records = daemon.records()?;
    let field = |name: &str| -> BTreeSet<String> {
        let values = records.iter().filter_map(|record| record.pointer(name));
        values.map(Value::to_string).collect()
    };
    // Three workspaces and a warm slot, each with a uid and a container of its own.
    assert_eq!((records.len(), slots), (4, 4), "{records:?}");
    assert_eq!(field("/claim/workspace").len(), 3, "{records:?}");
    assert_eq!(field("/uid").len(), 4, "{records:?}");
    let recorded: BTreeSet<String> = field("/container_id")
        .iter()
        .map(|id| id.trim_matches('"').to_owned())
        .collect();
    assert_eq!(recorded, containers(daemon).await?);
    let delete = |name: &str| DeleteWorkspaceRequest {
        name: name.to_owned(),
        allow_missing: false,
    };
    for name in [TARGET, "workspaces/third"] {
        client.workspaces().delete_workspace(delete(name)).await?;
    }
    Ok(())
}

//! Section `claim`: a workspace from the warm pool, a skill of 50 files staged, its script's first output, and the
//! deletion; beside the same by Docker's API.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use skilld_proto::v1::{CreateWorkspaceRequest, ExecSpec, RunExecRequest, WorkspaceTemplate};
use skilld_tests::Daemon;

use crate::reference::{ContainerLimits, DockerReference};
use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls};

const SKILL: &str = "bench-skill";
const FILES: usize = 50;
const SCRIPT: &str = "scripts/run.sh";

#[derive(Default)]
struct ClaimTimes {
    claim: FigureSeries,
    stage: FigureSeries,
    /// First output of one call that does all of it.
    all: FigureSeries,
    /// End of the stream of that call, which does not wait for the deletion.
    end: FigureSeries,
    /// First output of the same script when it is run again.
    again: FigureSeries,
    /// Deletion of the workspace or container.
    delete: FigureSeries,
}

/// Measures claims one after the other, each with a full pool and nothing else going on.
pub(crate) async fn claims(
    bench: &BenchOptions,
    reference: &DockerReference,
) -> Result<Vec<TableRow>> {
    let root = tempfile::Builder::new().prefix("skb").tempdir()?;
    let tar = write_skill(&root.path().join(SKILL))?;
    let options = daemon_calls::daemon_options()
        .skills(root.path())
        .set("engine.uid_count", "8192");
    let daemon = Daemon::start_with(options).await?;
    let (mut skilld, mut docker) = (ClaimTimes::default(), ClaimTimes::default());
    // The first claims warm up the store and the page cache.
    for turn in 0..bench.times(500, 20) + 3 {
        let measured = claim_once(&daemon, &mut skilld).await;
        measured.with_context(|| format!("claim {turn}"))?;
        let measured = run_once(&daemon, &mut skilld).await;
        measured.with_context(|| format!("run {turn}"))?;
        if turn % 5 == 0 {
            start_container_once(reference, tar.clone(), &mut docker).await?;
        }
        if turn == 2 {
            (skilld, docker) = (ClaimTimes::default(), ClaimTimes::default());
        }
    }
    daemon.stop().await?;
    let claim = TableRow::new(
        "claim of a warm workspace",
        &skilld.claim,
        Budget::Faster(50.0, None),
    );
    let stage = TableRow::new("stage a skill of 50 files", &skilld.stage, Budget::None);
    let all = TableRow::new(
        "claim, stage 50 files, first output in one call",
        &skilld.all,
        Budget::Faster(30.0, None),
    );
    let end = TableRow::new("end of the stream of that call", &skilld.end, Budget::None);
    let again = TableRow::new(
        "first output of the same script again",
        &skilld.again,
        Budget::None,
    );
    let delete = TableRow::new("delete a workspace", &skilld.delete, Budget::None);
    Ok(vec![
        claim.against("create + start (API)", &docker.claim),
        stage.against("archive put (API)", &docker.stage),
        all.against("create, start, put, exec (API)", &docker.all),
        end,
        again.against("docker exec (API)", &docker.again),
        delete.against("remove by force (API)", &docker.delete),
    ])
}

/// Claims, stages and runs in calls of their own, which shows what each takes.
async fn claim_once(daemon: &Daemon, times: &mut ClaimTimes) -> Result<()> {
    let client = &daemon.client;
    daemon_calls::wait_until_warm(client, "default").await?;
    let started = Instant::now();
    let workspace = client
        .create_workspace(CreateWorkspaceRequest::default())
        .await?;
    let claimed = started.elapsed();
    let staged = client.stage_skills(&workspace.name, &[SKILL]).await?;
    let stage = started.elapsed().saturating_sub(claimed);
    daemon_calls::run_exec(client, &workspace.name, spec()).await?;
    let ran_again = daemon_calls::run_exec(client, &workspace.name, spec()).await?;
    ensure!(staged.len() == 1, "{} skills were staged", staged.len());
    times.claim.time(claimed)?;
    times.stage.time(stage)?;
    let again = ran_again
        .first_output
        .context("the script printed nothing")?;
    times.again.time(again)?;
    // The pool boots the next container meanwhile, which Docker would do beside the removal.
    daemon_calls::wait_until_warm(client, "default").await?;
    let started = Instant::now();
    client.delete_workspace(&workspace.name).await?;
    times.delete.time(started.elapsed())
}

/// Does all of it in one call.
async fn run_once(daemon: &Daemon, times: &mut ClaimTimes) -> Result<()> {
    let client = &daemon.client;
    daemon_calls::wait_until_warm(client, "default").await?;
    let request = RunExecRequest {
        workspace_template: Some(WorkspaceTemplate::default()),
        skills: vec![SKILL.to_owned()],
        spec: Some(spec()),
        ..RunExecRequest::default()
    };
    let ran = daemon_calls::run_request(client, request).await?;
    let first = ran.first_output.context("the script printed nothing")?;
    times.all.time(first)?;
    times.end.time(ran.end)
}

fn spec() -> ExecSpec {
    ExecSpec {
        argv: vec!["bash".to_owned(), SCRIPT.to_owned()],
        skill: SKILL.to_owned(),
        ..ExecSpec::default()
    }
}

async fn start_container_once(
    reference: &DockerReference,
    tar: Bytes,
    times: &mut ClaimTimes,
) -> Result<()> {
    let limits = ContainerLimits {
        memory_bytes: 512 << 20,
        cpus: 1,
    };
    let started = Instant::now();
    let container = reference.create_container(limits).await?;
    let claimed = started.elapsed();
    reference.upload(&container, "/tmp", tar).await?;
    let stage = started.elapsed();
    let script = format!("/tmp/{SCRIPT}");
    let (_, first_output) = reference.exec(&container, &["bash", &script]).await?;
    times.claim.time(claimed)?;
    times.stage.time(stage.saturating_sub(claimed))?;
    let first = first_output.context("the script printed nothing")?;
    times.all.time(stage + first)?;
    let (_, next_output) = reference.exec(&container, &["bash", &script]).await?;
    let again = next_output.context("the script printed nothing")?;
    times.again.time(again)?;
    let started = Instant::now();
    reference.remove_container(&container).await?;
    times.delete.time(started.elapsed())
}

/// Writes the skill, and returns a tar of the same files.
fn write_skill(dir: &Path) -> Result<Bytes> {
    std::fs::create_dir_all(dir.join("scripts"))?;
    std::fs::create_dir_all(dir.join("references"))?;
    let about = format!("---\nname: {SKILL}\ndescription: Fifty files.\n---\n# {SKILL}\n");
    std::fs::write(dir.join("SKILL.md"), about)?;
    std::fs::write(dir.join(SCRIPT), "echo ready\n")?;
    for number in 2..FILES {
        let text = format!("line {number} of a document\n").repeat(100);
        std::fs::write(dir.join(format!("references/{number}.md")), text)?;
    }
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_dir_all(".", dir)?;
    Ok(tar.into_inner()?.into())
}

//! Section `claim`: a workspace from the warm pool, a skill of 50 files staged, its script's first output; beside
//! the same by Docker's API.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use skilld_proto::v1::{CreateWorkspaceRequest, ExecSpec};
use skilld_tests::Daemon;

use crate::reference::{Limits, Reference};
use crate::report::{Budget, Row, Series};
use crate::{Wish, ours};

const SKILL: &str = "bench-skill";
const FILES: usize = 50;
const SCRIPT: &str = "scripts/run.sh";

struct Times {
    claim: Series,
    stage: Series,
    all: Series,
    /// The same script's first output when it is run again.
    again: Series,
}

impl Times {
    fn new() -> Result<Self> {
        Ok(Self {
            claim: Series::times()?,
            stage: Series::times()?,
            all: Series::times()?,
            again: Series::times()?,
        })
    }
}

/// Claims one after the other, with the pool full and nothing else going on.
pub(crate) async fn claims(wish: &Wish, reference: &Reference) -> Result<Vec<Row>> {
    let root = tempfile::Builder::new().prefix("skb").tempdir()?;
    let tar = skill(&root.path().join(SKILL))?;
    let options = ours::options()
        .skills(root.path())
        .set("engine.uid_count", "8192")
        .set("engine.uid_quarantine", "1s");
    let daemon = Daemon::start_with(options).await?;
    let (mut skilld, mut docker) = (Times::new()?, Times::new()?);
    // The first claims warm up the store and the page cache.
    for turn in 0..wish.times(500, 20) + 3 {
        let measured = ours_once(&daemon, &mut skilld).await;
        measured.with_context(|| format!("claim {turn}"))?;
        if turn % 5 == 0 {
            docker_once(reference, tar.clone(), &mut docker).await?;
        }
        if turn == 2 {
            (skilld, docker) = (Times::new()?, Times::new()?);
        }
    }
    daemon.stop().await?;
    let claim = Row::new(
        "claim of a warm workspace",
        &skilld.claim,
        Budget::Faster(50.0, None),
    );
    let stage = Row::new("stage a skill of 50 files", &skilld.stage, Budget::None);
    let all = Row::new(
        "claim, stage 50 files, first output",
        &skilld.all,
        Budget::Faster(30.0, None),
    );
    let again = Row::new(
        "first output of the same script again",
        &skilld.again,
        Budget::None,
    );
    Ok(vec![
        claim.against("create + start (API)", &docker.claim),
        stage.against("archive put (API)", &docker.stage),
        all.against("create, start, put, exec (API)", &docker.all),
        again.against("docker exec (API)", &docker.again),
    ])
}

async fn ours_once(daemon: &Daemon, times: &mut Times) -> Result<()> {
    let client = &daemon.client;
    ours::warm(client, "default").await?;
    let started = Instant::now();
    let workspace = client
        .create_workspace(CreateWorkspaceRequest::default())
        .await?;
    let claimed = started.elapsed();
    let staged = client.stage_skills(&workspace.name, &[SKILL]).await?;
    let stage = started.elapsed();
    let spec = ExecSpec {
        argv: vec!["bash".to_owned(), SCRIPT.to_owned()],
        skill: SKILL.to_owned(),
        ..ExecSpec::default()
    };
    let ran = ours::run(client, &workspace.name, spec.clone()).await?;
    let again = ours::run(client, &workspace.name, spec).await?;
    let first = stage + ran.first_output.context("the script printed nothing")?;
    ensure!(staged.len() == 1, "{} skills were staged", staged.len());
    times.claim.time(claimed)?;
    times.stage.time(stage.saturating_sub(claimed))?;
    times.all.time(first)?;
    let again = again.first_output.context("the script printed nothing")?;
    times.again.time(again)?;
    Ok(client.delete_workspace(&workspace.name).await?)
}

async fn docker_once(reference: &Reference, tar: Bytes, times: &mut Times) -> Result<()> {
    let limits = Limits {
        memory_bytes: 512 << 20,
        cpus: 1,
    };
    let started = Instant::now();
    let container = reference.container(limits).await?;
    let claimed = started.elapsed();
    reference.put(&container, "/tmp", tar).await?;
    let stage = started.elapsed();
    let script = format!("/tmp/{SCRIPT}");
    let (_, first) = reference.exec(&container, &["bash", &script]).await?;
    times.claim.time(claimed)?;
    times.stage.time(stage.saturating_sub(claimed))?;
    let first = first.context("the script printed nothing")?;
    times.all.time(stage + first)?;
    let (_, again) = reference.exec(&container, &["bash", &script]).await?;
    let again = again.context("the script printed nothing")?;
    times.again.time(again)?;
    reference.remove(&container).await
}

/// Makes the skill, and a tar of the same files.
fn skill(dir: &Path) -> Result<Bytes> {
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

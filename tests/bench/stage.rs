//! Section `stage`: skills of one, fifty and a thousand files into a workspace: not yet in the store, in the store but not
//! in this workspace, and there already; beside `cp`, `tar` and Docker.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use skilld_client::Client;
use skilld_proto::v1::RefreshSkillsRequest;
use skilld_tests::Daemon;
use skilld_tests::exec::workspace;

use crate::reference::{Limits, Reference, spawn};
use crate::report::{Budget, Row, Series};
use crate::{Wish, ours};

/// Bytes of one file of a skill, about.
const LINE: &str = "A line of a document that is as long as lines are.\n";
const LINES: usize = 40;

struct Times {
    /// The store has it not.
    new: Series,
    /// The store has it, the workspace has not.
    first: Series,
    /// The workspace has it.
    again: Series,
    cp: Series,
    tar: Series,
    docker: Series,
}

impl Times {
    fn new() -> Result<Self> {
        Ok(Self {
            new: Series::times()?,
            first: Series::times()?,
            again: Series::times()?,
            cp: Series::times()?,
            tar: Series::times()?,
            docker: Series::times()?,
        })
    }
}

pub(crate) async fn stage(wish: &Wish, reference: &Reference) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for files in [1, 50, 1000] {
        let times = measure(wish, reference, files).await;
        let times = times.with_context(|| format!("{files} files"))?;
        let what = match files {
            1 => "stage a skill of 1 file".to_owned(),
            1000 => "stage a skill of 1,000 files".to_owned(),
            _ => format!("stage a skill of {files} files"),
        };
        let new = Row::new(
            &format!("{what}, new to the store"),
            &times.new,
            Budget::None,
        );
        let first = |budget| {
            Row::new(
                &format!("{what}, new to the workspace"),
                &times.first,
                budget,
            )
        };
        // 30 ms for fifty files, whatever else there is to compare with.
        let soon = match files {
            50 => Budget::Soon {
                p50: Some(30_000_000),
                p99: None,
            },
            _ => Budget::None,
        };
        let again = Row::new(&format!("{what}, unchanged"), &times.again, Budget::None);
        rows.extend([
            new.against("docker cp", &times.docker),
            first(soon).against("cp -a", &times.cp),
            first(Budget::None).against("tar c | tar x", &times.tar),
            first(Budget::None).against("docker cp", &times.docker),
            again.against("cp -a", &times.cp),
        ]);
    }
    Ok(rows)
}

async fn measure(wish: &Wish, reference: &Reference, files: usize) -> Result<Times> {
    let full = if files > 100 { 10 } else { 50 };
    let turns = wish.times(full, 5);
    let root = tempfile::Builder::new().prefix("skb").tempdir()?;
    for turn in 0..=turns {
        skill(&root.path().join(name(turn)), turn, files)?;
    }
    let options = ours::options()
        .skills(root.path())
        .set("pools.default.warm", "2");
    let daemon = Daemon::start_with(options).await?;
    let copies = tempfile::Builder::new().prefix("skb").tempdir()?;
    let client = &daemon.client;
    let (one, other) = (workspace(client).await?.name, workspace(client).await?.name);
    ours::warm(client, "default").await?;
    // Nobody waits for the first look at a root.
    client
        .skills()
        .refresh_skills(RefreshSkillsRequest {})
        .await?;
    let limits = Limits {
        memory_bytes: 512 << 20,
        cpus: 1,
    };
    let container = reference.container(limits).await?;
    let mut times = Times::new()?;
    for turn in 0..=turns {
        if turn == 1 {
            // What came before was for warmth.
            times = Times::new()?;
        }
        let skill = name(turn);
        times.new.time(once(client, &one, &skill, false).await?)?;
        times
            .first
            .time(once(client, &other, &skill, false).await?)?;
        for _ in 0..5 {
            times
                .again
                .time(once(client, &other, &skill, true).await?)?;
        }
        let (from, to) = (root.path().join(&skill), copies.path().join("copy"));
        let (from, to) = (text(&from)?, text(&to)?);
        let started = Instant::now();
        spawn(&["cp", "-a", from, to]).await?;
        times.cp.time(started.elapsed())?;
        std::fs::remove_dir_all(to)?;
        std::fs::create_dir(to)?;
        let pipe = r#"tar -C "$0" -c . | tar -C "$1" -x"#;
        let started = Instant::now();
        spawn(&["bash", "-c", pipe, from, to]).await?;
        times.tar.time(started.elapsed())?;
        std::fs::remove_dir_all(to)?;
        let target = format!("{container}:/tmp/{skill}");
        let started = Instant::now();
        spawn(&["docker", "cp", from, &target]).await?;
        times.docker.time(started.elapsed())?;
    }
    reference.remove(&container).await?;
    daemon.stop().await?;
    Ok(times)
}

/// Stages a skill and says how long that took.
async fn once(
    client: &Client,
    workspace: &str,
    skill: &str,
    there: bool,
) -> Result<std::time::Duration> {
    let started = Instant::now();
    let staged = client.stage_skills(workspace, &[skill]).await?;
    let elapsed = started.elapsed();
    ensure!(
        staged.iter().all(|staged| staged.unchanged == there) && staged.len() == 1,
        "{staged:?}"
    );
    Ok(elapsed)
}

fn name(turn: usize) -> String {
    format!("bench-{turn}")
}

/// Makes a skill of so many files whose contents no other one has.
fn skill(dir: &Path, turn: usize, files: usize) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let name = name(turn);
    let about = format!("---\nname: {name}\ndescription: Is staged.\n---\n# {name}\n");
    std::fs::write(dir.join("SKILL.md"), about)?;
    for number in 1..files {
        let folder = dir.join(format!("references/{}", number % 10));
        std::fs::create_dir_all(&folder)?;
        let text = format!("{turn} {number}\n{}", LINE.repeat(LINES));
        std::fs::write(folder.join(format!("{number}.md")), text)?;
    }
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not text")
}

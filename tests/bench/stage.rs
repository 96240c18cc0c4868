//! Section `stage`: staging of skills of one, fifty and a thousand files that are new to the store, new to the
//! workspace or unchanged; beside `cp`, `tar` and Docker.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use skilld_client::Client;
use skilld_proto::v1::RefreshSkillsRequest;
use skilld_tests::Daemon;
use skilld_tests::exec::workspace;

use crate::reference::{ContainerLimits, DockerReference, spawn_local};
use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls};

/// Line of a document; a file of a skill has [`LINES`] of them.
const LINE: &str = "A line of a document that is as long as lines are.\n";
const LINES: usize = 40;

#[derive(Default)]
struct StageTimes {
    /// Staging of a skill that is not in the store.
    new: FigureSeries,
    /// Staging of a skill that is in the store but not in the workspace.
    first: FigureSeries,
    /// Staging of a skill that the workspace already has.
    again: FigureSeries,
    cp: FigureSeries,
    tar: FigureSeries,
    docker: FigureSeries,
}

pub(crate) async fn stage(
    bench: &BenchOptions,
    reference: &DockerReference,
) -> Result<Vec<TableRow>> {
    let mut rows = Vec::new();
    for files in [1, 50, 1000] {
        let times = measure(bench, reference, files)
            .await
            .with_context(|| format!("{files} files"))?;
        let what = match files {
            1 => "stage a skill of 1 file".to_owned(),
            1000 => "stage a skill of 1,000 files".to_owned(),
            _ => format!("stage a skill of {files} files"),
        };
        let new = |budget| TableRow::new(&format!("{what}, new to the store"), &times.new, budget);
        let first = |budget| {
            TableRow::new(
                &format!("{what}, new to the workspace"),
                &times.first,
                budget,
            )
        };
        // The absolute budget of fifty files is 30 ms.
        let soon = match files {
            50 => Budget::Soon {
                p50: Some(30_000_000),
                p99: None,
            },
            _ => Budget::None,
        };
        let again = TableRow::new(&format!("{what}, unchanged"), &times.again, Budget::None);
        // Twice the time of `cp -a` for a thousand files, which also have to be hashed and stored.
        let stored = match files {
            1000 => Budget::Within(2.0),
            _ => Budget::None,
        };
        rows.extend([
            new(stored).against("cp -a", &times.cp),
            new(Budget::None).against("docker cp", &times.docker),
            first(soon).against("cp -a", &times.cp),
            first(Budget::None).against("tar c | tar x", &times.tar),
            first(Budget::None).against("docker cp", &times.docker),
            again.against("cp -a", &times.cp),
        ]);
    }
    Ok(rows)
}

async fn measure(
    bench: &BenchOptions,
    reference: &DockerReference,
    files: usize,
) -> Result<StageTimes> {
    let full = if files > 100 { 10 } else { 50 };
    let turns = bench.times(full, 5);
    let root = tempfile::Builder::new().prefix("skb").tempdir()?;
    for turn in 0..=turns {
        write_skill(&root.path().join(name(turn)), turn, files)?;
    }
    let options = daemon_calls::daemon_options()
        .skills(root.path())
        .set("pools.default.warm", "2");
    let daemon = Daemon::start_with(options).await?;
    let copies = tempfile::Builder::new().prefix("skb").tempdir()?;
    let client = &daemon.client;
    let (one, other) = (workspace(client).await?.name, workspace(client).await?.name);
    daemon_calls::wait_until_warm(client, "default").await?;
    // The first scan of a root is not measured.
    client
        .skills()
        .refresh_skills(RefreshSkillsRequest {})
        .await?;
    let limits = ContainerLimits {
        memory_bytes: 512 << 20,
        cpus: 1,
    };
    let container = reference.create_container(limits).await?;
    let mut times = StageTimes::default();
    for turn in 0..=turns {
        if turn == 1 {
            // The first turn warmed up.
            times = StageTimes::default();
        }
        let skill = name(turn);
        times
            .new
            .time(stage_once(client, &one, &skill, false).await?)?;
        times
            .first
            .time(stage_once(client, &other, &skill, false).await?)?;
        for _ in 0..5 {
            times
                .again
                .time(stage_once(client, &other, &skill, true).await?)?;
        }
        let (from, to) = (root.path().join(&skill), copies.path().join("copy"));
        let (from, to) = (text(&from)?, text(&to)?);
        let started = Instant::now();
        spawn_local(&["cp", "-a", from, to]).await?;
        times.cp.time(started.elapsed())?;
        std::fs::remove_dir_all(to)?;
        std::fs::create_dir(to)?;
        let pipe = r#"tar -C "$0" -c . | tar -C "$1" -x"#;
        let started = Instant::now();
        spawn_local(&["bash", "-c", pipe, from, to]).await?;
        times.tar.time(started.elapsed())?;
        std::fs::remove_dir_all(to)?;
        let target = format!("{container}:/tmp/{skill}");
        let started = Instant::now();
        spawn_local(&["docker", "cp", from, &target]).await?;
        times.docker.time(started.elapsed())?;
    }
    reference.remove_container(&container).await?;
    daemon.stop().await?;
    Ok(times)
}

/// Stages a skill and returns the elapsed time.
async fn stage_once(
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

/// Writes a skill of a number of files whose contents are unique.
fn write_skill(dir: &Path, turn: usize, files: usize) -> Result<()> {
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

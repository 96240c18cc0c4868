//! Section `environments`: staging of skills whose packages are built, the first import in a warm container of the office
//! image, and what one environment takes in many workspaces.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use skilld_client::Client;
use skilld_proto::v1::CreateWorkspaceRequest;
use skilld_tests::exec::{argv, workspace};
use skilld_tests::large_package::LargePackage;
use skilld_tests::{Daemon, docker};

use crate::reference::{ContainerLimits, DockerReference};
use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls, fleet, progress};

/// Maximum time that a built environment adds to the median of a staging, in nanoseconds.
const STAGING_MAX: u64 = 2_000_000;
/// Maximum ratio of what all workspaces take to what one takes. The difference is the copies of the skill's own files.
const SHARING_MAX: f64 = 1.1;
const IMPORT: [&str; 3] = ["python", "-c", "import pandas"];
/// Size of the file that all workspaces read, in MiB.
const SHARED_MEBIBYTES: u64 = 64;

pub(crate) async fn environments(
    bench: &BenchOptions,
    reference: &DockerReference,
) -> Result<Vec<TableRow>> {
    let mut rows = measure_staging(bench).await.context("staging")?;
    if docker::has_image(docker::OFFICE_IMAGE).await? {
        let row = measure_first_import(bench, reference).await;
        rows.push(row.context("first import")?);
    } else {
        progress(&format!(
            "  no row for the first import of pandas: this Docker has no {}. `make image IMAGE=office` builds it; a run with \
             --quick does not copy it to overlay2",
            docker::OFFICE_IMAGE
        ));
    }
    rows.extend(measure_sharing(bench).await.context("sharing")?);
    Ok(rows)
}

/// Times of stagings of one kind of skill.
#[derive(Default)]
struct StagingTimes {
    /// Skill that the workspace does not have yet.
    new: FigureSeries,
    /// Skill that the workspace has.
    unchanged: FigureSeries,
}

/// Measures staging of skills with and without packages. Both kinds take turns, in one workspace.
async fn measure_staging(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let turns = bench.times(200, 40);
    let package = LargePackage::new(1).await?;
    for turn in 0..=turns {
        for has_need in [true, false] {
            package.add_skill(&skill_name(has_need, turn), has_need)?;
        }
    }
    let options = daemon_calls::daemon_options().set("pools.default.warm", "2");
    let daemon = Daemon::start_with(package.serve(options)).await?;
    let client = &daemon.client;
    let (one, other) = (workspace(client).await?.name, workspace(client).await?.name);
    daemon_calls::wait_until_warm(client, "default").await?;
    let (mut with, mut without) = (StagingTimes::default(), StagingTimes::default());
    for turn in 0..=turns {
        if turn == 1 {
            // The first turn built the environment.
            (with, without) = (StagingTimes::default(), StagingTimes::default());
        }
        // Each kind is the first of every other turn.
        for has_need in [turn % 2 == 0, turn % 2 != 0] {
            let times = if has_need { &mut with } else { &mut without };
            let skill = skill_name(has_need, turn);
            // This puts the skill into the store.
            stage_skill(client, &one, &skill, has_need).await?;
            let new = stage_skill(client, &other, &skill, has_need).await?;
            times.new.time(new)?;
            let unchanged = stage_skill(client, &other, &skill, has_need).await?;
            times.unchanged.time(unchanged)?;
        }
    }
    daemon.stop().await?;
    let row = |what, with, without| {
        let what = format!("stage a skill with a built environment, {what}");
        TableRow::new(&what, with, Budget::Over(STAGING_MAX)).against("without packages", without)
    };
    Ok(vec![
        row("new to the workspace", &with.new, &without.new),
        row("unchanged", &with.unchanged, &without.unchanged),
    ])
}

fn skill_name(has_need: bool, turn: usize) -> String {
    let kind = if has_need { "with" } else { "without" };
    format!("{kind}-packages-{turn}")
}

/// Stages a skill and returns the elapsed time. The skill must have its environment.
async fn stage_skill(
    client: &Client,
    workspace: &str,
    skill: &str,
    has_need: bool,
) -> Result<Duration> {
    let started = Instant::now();
    let staged = client.stage_skills(workspace, &[skill]).await?;
    let elapsed = started.elapsed();
    let has_environment = staged.iter().any(|skill| skill.environment.is_some());
    ensure!(has_environment == has_need, "{staged:?}");
    Ok(elapsed)
}

/// Measures the first command of a workspace, whose container has run none before.
async fn measure_first_import(
    bench: &BenchOptions,
    reference: &DockerReference,
) -> Result<TableRow> {
    let cpus = std::thread::available_parallelism()?.get();
    let limits = ContainerLimits {
        memory_bytes: 1 << 30,
        cpus,
    };
    let options = daemon_calls::daemon_options()
        .set("pools.default.warm", "0")
        .set("pools.office.warm", "1")
        .set("pools.office.max", "2")
        .set("pools.office.memory", "1GiB")
        .set("pools.office.cpus", &format!("{cpus}.0"));
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let (mut ours, mut theirs) = (FigureSeries::times(), FigureSeries::times());
    let turns = bench.times(30, 5);
    for turn in 0..=turns {
        if turn == 1 {
            // The first turn brought the image's files into memory.
            (ours, theirs) = (FigureSeries::times(), FigureSeries::times());
        }
        daemon_calls::wait_until_warm(client, "office").await?;
        let request = CreateWorkspaceRequest {
            pool: "office".to_owned(),
            ..CreateWorkspaceRequest::default()
        };
        let name = client.create_workspace(request).await?.name;
        // The pool starts its next container; neither side is measured beside that.
        daemon_calls::wait_until_warm(client, "office").await?;
        let started = Instant::now();
        daemon_calls::run_exec(client, &name, argv(IMPORT)).await?;
        ours.time(started.elapsed())?;
        client.delete_workspace(&name).await?;
        let started = Instant::now();
        let image = docker::OFFICE_IMAGE;
        reference.run_once(image, limits, &IMPORT).await?;
        theirs.time(started.elapsed())?;
    }
    daemon.stop().await?;
    let what = "first exec of python -c 'import pandas', office image";
    Ok(TableRow::new(what, &ours, Budget::None).against("docker run --rm", &theirs))
}

/// Measures what many workspaces take that use one environment, beside one workspace.
async fn measure_sharing(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let count = bench.times(100, 10);
    let package = LargePackage::new(SHARED_MEBIBYTES).await?;
    package.add_skill("large", true)?;
    let (daemon, names) = fleet::start_fleet(package.serve(fleet::small_slots()), count).await?;
    let [one, all] = package.use_in_each(&daemon, &names, "large").await?;
    daemon.stop().await?;
    let row = |what: &str, all, one| {
        let (mut ours, mut beside) = (FigureSeries::bytes(), FigureSeries::bytes());
        ours.size(all)?;
        beside.size(one)?;
        let what = format!("{what} in {count} workspaces");
        let row = TableRow::new(&what, &ours, Budget::Within(SHARING_MAX));
        anyhow::Ok(row.against("in 1 workspace", &beside))
    };
    let disk = format!("disk of an environment of {SHARED_MEBIBYTES} MiB");
    Ok(vec![
        row(&disk, all.disk_bytes, one.disk_bytes)?,
        row(
            "page cache of its file, read",
            all.cache_bytes,
            one.cache_bytes,
        )?,
    ])
}

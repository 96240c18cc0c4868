//! Sections `exec` and `rate`: short commands, one after the other and from 16 clients at once.

use std::time::Instant;

use anyhow::{Context, Result};
use skilld_client::Client;
use skilld_proto::v1::{ExecSpec, ListExecsRequest};
use skilld_tests::exec::{argv, shell, workspace};
use skilld_tests::{Daemon, Options};
use tokio::task::JoinSet;

use crate::inside_reference::{self, InsidePrograms};
use crate::reference::{ContainerLimits, DockerReference, spawn_local};
use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls};

const CLIENTS: usize = 16;
const HELLO: [&str; 3] = ["bash", "-c", "echo hi"];

/// Settings with all cores, so that the kernel's CPU quota is not what is measured.
fn options() -> Result<(Options, ContainerLimits)> {
    let cpus = std::thread::available_parallelism()?.get();
    let options = daemon_calls::daemon_options()
        .set("pools.default.cpus", &format!("{cpus}.0"))
        .set("engine.uid_count", "8192");
    let limits = ContainerLimits {
        memory_bytes: 512 << 20,
        cpus,
    };
    Ok((options, limits))
}

/// Maximum time that skilld adds to a posix_spawn inside the same container: 0.35 ms at the median.
const OVERHEAD: Budget = Budget::Over(350_000);

/// Times of one program by skilld and by the references.
#[derive(Default)]
struct ProgramTimes {
    skilld: FigureSeries,
    inside: FigureSeries,
    local: FigureSeries,
    docker: FigureSeries,
}

impl ProgramTimes {
    fn rows(&self, what: &str, overhead: Budget) -> Vec<TableRow> {
        let row = |budget| TableRow::new(what, &self.skilld, budget);
        let mut rows = vec![
            row(overhead).against("posix_spawn inside", &self.inside),
            row(Budget::None).against("local spawn", &self.local),
        ];
        if self.docker.is_empty() {
            return rows;
        }
        let faster = row(Budget::Faster(40.0, Some(15.0)));
        rows.push(faster.against("docker exec (API)", &self.docker));
        let start = TableRow::new(
            &format!(
                "posix_spawn inside, {}",
                what.trim_start_matches("exec of ")
            ),
            &self.inside,
            Budget::None,
        );
        rows.push(start.against("local spawn", &self.local));
        rows
    }
}

/// Measures one command after the other: a static program of 4 KB on tmpfs, `true` and `bash -c 'echo hi'`.
pub(crate) async fn latency(
    bench: &BenchOptions,
    reference: &DockerReference,
) -> Result<Vec<TableRow>> {
    let (options, limits) = options()?;
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon_calls::wait_until_warm(client, "default").await?;
    let container = reference.create_container(limits).await?;
    let programs = InsidePrograms::build().await?;
    let inside = programs.upload(client, &name).await?;
    let (tiny_inside, tiny_path) = (
        inside_reference::tiny_in_workspace(),
        programs.tiny_on_host(),
    );
    let tiny_local = tiny_path.to_str().context("a path that is not text")?;
    let mut times = [
        ProgramTimes::default(),
        ProgramTimes::default(),
        ProgramTimes::default(),
    ];
    // Batches take turns, so that a noisy machine disturbs all of them. The first turn warms up and is not counted.
    for turn in 0..=bench.times(25, 5) {
        if turn == 1 {
            times = [
                ProgramTimes::default(),
                ProgramTimes::default(),
                ProgramTimes::default(),
            ];
        }
        let [tiny, bare, bash] = &mut times;
        for _ in 0..40 {
            for (spec, series) in [
                (argv([&tiny_inside]), &mut tiny.skilld),
                (argv(["true"]), &mut bare.skilld),
                (shell("echo hi"), &mut bash.skilld),
            ] {
                let started = Instant::now();
                daemon_calls::run_exec(client, &name, spec).await?;
                series.time(started.elapsed())?;
            }
        }
        inside
            .spawn_each(40, &[&tiny_inside], &mut tiny.inside)
            .await?;
        inside.spawn_each(40, &["true"], &mut bare.inside).await?;
        inside.spawn_each(40, &HELLO, &mut bash.inside).await?;
        for _ in 0..40 {
            for (argv, series) in [
                (&[tiny_local][..], &mut tiny.local),
                (&["true"], &mut bare.local),
                (&HELLO, &mut bash.local),
            ] {
                let started = Instant::now();
                spawn_local(argv).await?;
                series.time(started.elapsed())?;
            }
        }
        docker_batch(reference, &container, bare, bash).await?;
    }
    let hops = hops(bench, client, &name).await?;
    reference.remove_container(&container).await?;
    daemon.stop().await?;
    let [tiny, bare, bash] = &times;
    let mut rows = tiny.rows("exec of a static program on tmpfs", OVERHEAD);
    rows.extend(bare.rows("exec of true", OVERHEAD));
    rows.extend(bash.rows("exec of bash -c 'echo hi'", Budget::None));
    rows.push(hops);
    Ok(rows)
}

/// Measures 20 execs of each command through Docker's API.
async fn docker_batch(
    reference: &DockerReference,
    container: &str,
    bare: &mut ProgramTimes,
    bash: &mut ProgramTimes,
) -> Result<()> {
    for _ in 0..20 {
        for (argv, series) in [
            (&["true"][..], &mut bare.docker),
            (&HELLO, &mut bash.docker),
        ] {
            let started = Instant::now();
            reference.exec(container, argv).await?;
            series.time(started.elapsed())?;
        }
    }
    Ok(())
}

/// Measures what an exec costs before anything is started: an answer from the guest, beside one from the daemon.
async fn hops(bench: &BenchOptions, client: &Client, name: &str) -> Result<TableRow> {
    let (mut guest, mut near) = (FigureSeries::times(), FigureSeries::times());
    let list = ListExecsRequest {
        parent: name.to_owned(),
        page_size: 1,
        ..ListExecsRequest::default()
    };
    for _ in 0..bench.times(1_000, 200) {
        let started = Instant::now();
        client.list_execs(list.clone()).await?;
        guest.time(started.elapsed())?;
        let started = Instant::now();
        client.get_workspace(name).await?;
        near.time(started.elapsed())?;
    }
    let row = TableRow::new("an answer from the guest (ListExecs)", &guest, Budget::None);
    Ok(row.against("one from the daemon (GetWorkspace)", &near))
}

/// Measures the throughput of 16 clients, each with a connection of its own.
pub(crate) async fn rate(
    bench: &BenchOptions,
    reference: &DockerReference,
) -> Result<Vec<TableRow>> {
    let (options, limits) = options()?;
    let daemon = Daemon::start_with(options).await?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Client::connect(&daemon.endpoint()).await?);
    }
    let one = vec![workspace(&daemon.client).await?.name; CLIENTS];
    let mut names = Vec::new();
    for _ in 0..4 {
        names.push(workspace(&daemon.client).await?.name);
    }
    let four: Vec<String> = names.iter().cycle().take(CLIENTS).cloned().collect();
    daemon_calls::wait_until_warm(&daemon.client, "default").await?;
    let container = reference.create_container(limits).await?;
    let programs = InsidePrograms::build().await?;
    let own = one.first().context("no workspace")?;
    let inside = programs.upload(&daemon.client, own).await?;
    let (mut single, mut spread) = (FigureSeries::rates(), FigureSeries::rates());
    let (mut local, mut docker) = (FigureSeries::rates(), FigureSeries::rates());
    let mut inside_rate = FigureSeries::rates();
    for turn in 0..=bench.times(5, 2) {
        let count = bench.times(150, 40);
        let by_one = exec_from_clients(&clients, &one, count).await?;
        let by_four = exec_from_clients(&clients, &four, count).await?;
        let by_inside = inside.spawn_together(count, &["true"]).await?;
        let by_local =
            spawn_from_tasks(count, || async { spawn_local(&["true"]).await.map(|_| ()) }).await?;
        let docker_call = (reference.clone(), container.clone());
        let by_docker = spawn_from_tasks(count.div_ceil(15), move || {
            let (reference, container) = docker_call.clone();
            async move { reference.exec(&container, &["true"]).await.map(|_| ()) }
        })
        .await?;
        // The first turn warms up.
        if turn > 0 {
            single.rate(by_one.0, by_one.1)?;
            spread.rate(by_four.0, by_four.1)?;
            inside_rate.rate(by_one.0, by_inside)?;
            local.rate(by_local.0, by_local.1)?;
            docker.rate(by_docker.0, by_docker.1)?;
        }
    }
    reference.remove_container(&container).await?;
    daemon.stop().await?;
    let one = |budget| TableRow::new("execs of true, 16 clients, 1 workspace", &single, budget);
    let four = |budget| TableRow::new("execs of true, 16 clients, 4 workspaces", &spread, budget);
    Ok(vec![
        one(Budget::Share(0.6)).against("posix_spawn inside, 16 threads", &inside_rate),
        one(Budget::Share(60.0)).against("docker exec (API), 16 clients", &docker),
        four(Budget::Share(60.0)).against("docker exec (API), 16 clients", &docker),
        four(Budget::None).against("local spawn, 16 tasks", &local),
    ])
}

/// Number of execs and the time that all of them took.
type CountedTime = (u64, std::time::Duration);

async fn exec_from_clients(
    clients: &[Client],
    workspaces: &[String],
    count: usize,
) -> Result<CountedTime> {
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for (client, name) in clients.iter().zip(workspaces) {
        let (client, name) = (client.clone(), name.clone());
        tasks.spawn(async move {
            for _ in 0..count {
                let spec: ExecSpec = argv(["true"]);
                daemon_calls::run_exec(&client, &name, spec).await?;
            }
            Ok(())
        });
    }
    finish(tasks, started, count).await
}

async fn spawn_from_tasks<F, T>(count: usize, call: F) -> Result<CountedTime>
where
    F: Fn() -> T + Clone + Send + 'static,
    T: Future<Output = Result<()>> + Send,
{
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for _ in 0..CLIENTS {
        let call = call.clone();
        tasks.spawn(async move {
            for _ in 0..count {
                call().await?;
            }
            Ok(())
        });
    }
    finish(tasks, started, count).await
}

async fn finish(
    mut tasks: JoinSet<Result<()>>,
    started: Instant,
    count: usize,
) -> Result<CountedTime> {
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok((u64::try_from(count * CLIENTS)?, started.elapsed()))
}

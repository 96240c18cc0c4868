//! Sections `exec` and `rate`: short commands, one after the other and from 16 clients at once.

use std::time::Instant;

use anyhow::Result;
use skilld_client::Client;
use skilld_proto::v1::{ExecSpec, ListExecsRequest};
use skilld_tests::exec::{argv, shell, workspace};
use skilld_tests::{Daemon, Options};
use tokio::task::JoinSet;

use crate::reference::{Limits, Reference, spawn};
use crate::report::{Budget, Row, Series};
use crate::{Wish, ours};

const CLIENTS: usize = 16;
const HELLO: [&str; 3] = ["bash", "-c", "echo hi"];

/// All cores, so that the kernel's quota of CPU time is not what is measured.
fn options() -> Result<(Options, Limits)> {
    let cpus = std::thread::available_parallelism()?.get();
    let options = ours::options()
        .set("pools.default.cpus", &format!("{cpus}.0"))
        .set("engine.uid_quarantine", "1s");
    let limits = Limits {
        memory_bytes: 512 << 20,
        cpus,
    };
    Ok((options, limits))
}

/// Times of one command by skilld, by a local spawn, by Docker.
struct Times {
    skilld: Series,
    local: Series,
    docker: Series,
}

impl Times {
    fn new() -> Result<Self> {
        Ok(Self {
            skilld: Series::times()?,
            local: Series::times()?,
            docker: Series::times()?,
        })
    }

    fn rows(&self, what: &str, within: f64) -> [Row; 2] {
        let local = Row::new(what, &self.skilld, Budget::Within(within));
        let docker = Row::new(what, &self.skilld, Budget::Faster(40.0, Some(15.0)));
        [
            local.against("local spawn", &self.local),
            docker.against("docker exec (API)", &self.docker),
        ]
    }
}

/// One command after the other: `true` and `bash -c 'echo hi'`.
pub(crate) async fn latency(wish: &Wish, reference: &Reference) -> Result<Vec<Row>> {
    let (options, limits) = options()?;
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    ours::warm(client, "default").await?;
    let container = reference.container(limits).await?;
    let (mut bare, mut bash) = (Times::new()?, Times::new()?);
    // Batches take turns, so that all see the same weather. The first turn warms up and is not counted.
    for turn in 0..=wish.times(25, 5) {
        if turn == 1 {
            (bare, bash) = (Times::new()?, Times::new()?);
        }
        for _ in 0..40 {
            let started = Instant::now();
            ours::run(client, &name, argv(["true"])).await?;
            bare.skilld.time(started.elapsed())?;
            let started = Instant::now();
            ours::run(client, &name, shell("echo hi")).await?;
            bash.skilld.time(started.elapsed())?;
        }
        for _ in 0..40 {
            let started = Instant::now();
            spawn(&["true"]).await?;
            bare.local.time(started.elapsed())?;
            let started = Instant::now();
            spawn(&HELLO).await?;
            bash.local.time(started.elapsed())?;
        }
        for _ in 0..20 {
            let started = Instant::now();
            reference.exec(&container, &["true"]).await?;
            bare.docker.time(started.elapsed())?;
            let started = Instant::now();
            reference.exec(&container, &HELLO).await?;
            bash.docker.time(started.elapsed())?;
        }
    }
    let inside = inside(wish, &daemon, &name).await?;
    let hops = hops(wish, client, &name).await?;
    reference.remove(&container).await?;
    daemon.stop().await?;
    let mut rows = Vec::from(bare.rows("exec of true", 1.5));
    rows.extend(bash.rows("exec of bash -c 'echo hi'", 1.3));
    rows.push(inside);
    rows.push(hops);
    Ok(rows)
}

/// What an exec costs before anything is started: an answer from the guest, beside one from the daemon.
async fn hops(wish: &Wish, client: &Client, name: &str) -> Result<Row> {
    let (mut guest, mut near) = (Series::times()?, Series::times()?);
    let list = ListExecsRequest {
        workspace: name.to_owned(),
        page_size: 1,
        ..ListExecsRequest::default()
    };
    for _ in 0..wish.times(1_000, 200) {
        let started = Instant::now();
        client.list_execs(list.clone()).await?;
        guest.time(started.elapsed())?;
        let started = Instant::now();
        client.get_workspace(name).await?;
        near.time(started.elapsed())?;
    }
    let row = Row::new("an answer from the guest (ListExecs)", &guest, Budget::None);
    Ok(row.against("one from the daemon (GetWorkspace)", &near))
}

/// What starting a process costs inside a container and outside, without skilld: the share that is the storage
/// driver's and the seccomp filter's.
async fn inside(wish: &Wish, daemon: &Daemon, name: &str) -> Result<Row> {
    const SCRIPT: &str = "import os,sys,time
for _ in range(int(sys.argv[1])):
    r,w=os.pipe()
    start=time.perf_counter_ns()
    pid=os.posix_spawn('/bin/bash',['bash','-c','echo hi'],{},file_actions=[(os.POSIX_SPAWN_DUP2,w,1),(os.POSIX_SPAWN_CLOSE,r)])
    os.close(w)
    while os.read(r,99): pass
    os.waitpid(pid,0)
    print(time.perf_counter_ns()-start,flush=True)
    os.close(r)";
    let count = wish.times(40, 10).to_string();
    let (mut within, mut outside) = (Series::times()?, Series::times()?);
    for _ in 0..wish.times(10, 3) {
        let spec = argv(["python3", "-c", SCRIPT, &count]);
        let outcome = skilld_tests::exec::run(&daemon.client, name, spec).await?;
        within.nanoseconds(&outcome.text())?;
        let output = tokio::process::Command::new("python3")
            .args(["-c", SCRIPT, &count])
            .output()
            .await?;
        outside.nanoseconds(&String::from_utf8(output.stdout)?)?;
    }
    let row = Row::new(
        "posix_spawn of bash from python in a workspace",
        &within,
        Budget::None,
    );
    Ok(row.against("the same on the host", &outside))
}

/// From 16 clients, each with a connection of its own.
pub(crate) async fn rate(wish: &Wish, reference: &Reference) -> Result<Vec<Row>> {
    let (options, limits) = options()?;
    let daemon = Daemon::start_with(options).await?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Client::connect(&daemon.endpoint()).await?);
    }
    let one = vec![workspace(&daemon.client).await?.name; CLIENTS];
    let mut four = Vec::new();
    for _ in 0..4 {
        four.push(workspace(&daemon.client).await?.name);
    }
    let four: Vec<String> = four.iter().cycle().take(CLIENTS).cloned().collect();
    ours::warm(&daemon.client, "default").await?;
    let container = reference.container(limits).await?;
    let (mut single, mut spread) = (Series::rates()?, Series::rates()?);
    let (mut local, mut docker) = (Series::rates()?, Series::rates()?);
    for turn in 0..=wish.times(5, 2) {
        let count = wish.times(150, 40);
        let by_one = ours_at_once(&clients, &one, count).await?;
        let by_four = ours_at_once(&clients, &four, count).await?;
        let by_local = at_once(count, || async { spawn(&["true"]).await.map(|_| ()) }).await?;
        let docker_call = (reference.clone(), container.clone());
        let by_docker = at_once(count.div_ceil(15), move || {
            let (reference, container) = docker_call.clone();
            async move { reference.exec(&container, &["true"]).await.map(|_| ()) }
        })
        .await?;
        // The first turn warms up.
        if turn > 0 {
            single.rate(by_one.0, by_one.1)?;
            spread.rate(by_four.0, by_four.1)?;
            local.rate(by_local.0, by_local.1)?;
            docker.rate(by_docker.0, by_docker.1)?;
        }
    }
    reference.remove(&container).await?;
    daemon.stop().await?;
    let one = Row::new(
        "execs of true, 16 clients, 1 workspace",
        &single,
        Budget::Share(60.0),
    );
    let four = Row::new(
        "execs of true, 16 clients, 4 workspaces",
        &spread,
        Budget::Share(60.0),
    );
    let beside_local = Row::new(
        "execs of true, 16 clients, 4 workspaces",
        &spread,
        Budget::None,
    );
    Ok(vec![
        one.against("docker exec (API), 16 clients", &docker),
        four.against("docker exec (API), 16 clients", &docker),
        beside_local.against("local spawn, 16 tasks", &local),
    ])
}

type Counted = (u64, std::time::Duration);

async fn ours_at_once(clients: &[Client], workspaces: &[String], count: usize) -> Result<Counted> {
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for (client, name) in clients.iter().zip(workspaces) {
        let (client, name) = (client.clone(), name.clone());
        tasks.spawn(async move {
            for _ in 0..count {
                let spec: ExecSpec = argv(["true"]);
                ours::run(&client, &name, spec).await?;
            }
            Ok(())
        });
    }
    finish(tasks, started, count).await
}

async fn at_once<F, T>(count: usize, call: F) -> Result<Counted>
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

async fn finish(mut tasks: JoinSet<Result<()>>, started: Instant, count: usize) -> Result<Counted> {
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok((u64::try_from(count * CLIENTS)?, started.elapsed()))
}

//! Section `stdout`: one exec that prints as fast as it can, in small and in large writes, to one client that counts;
//! the same through skillctl and through `docker exec`.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use skilld_client::short_id;
use skilld_proto::v1::ExecSpec;
use skilld_tests::Daemon;
use skilld_tests::binaries::binary;
use skilld_tests::exec::workspace;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::reference::{ContainerLimits, DockerReference, spawn_local};
use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls, progress};

/// Speed that every size of writes should reach, in bytes per second.
const SPEED_MIN: u64 = 400_000_000;
/// Share of that speed that skillctl should reach.
const SKILLCTL_SHARE: f64 = 0.9;
/// Bytes of one read of a pipe.
const READ_BYTES: usize = 256 << 10;

/// Speeds of one size of writes.
#[derive(Debug)]
struct Speeds {
    skilld: FigureSeries,
    skillctl: FigureSeries,
    docker: FigureSeries,
    local: FigureSeries,
}

/// Measures bytes per second and the largest growth of the daemon's memory.
pub(crate) async fn throughput(
    bench: &BenchOptions,
    reference: &DockerReference,
) -> Result<Vec<TableRow>> {
    let cpus = std::thread::available_parallelism()?.get();
    let options = daemon_calls::daemon_options().set("pools.default.cpus", &format!("{cpus}.0"));
    let daemon = Daemon::start_with(options).await?;
    let name = workspace(&daemon.client).await?.name;
    let limits = ContainerLimits {
        memory_bytes: 512 << 20,
        cpus,
    };
    let container = reference.create_container(limits).await?;
    daemon_calls::wait_until_warm(&daemon.client, "default").await?;
    let mib: u64 = if bench.quick { 256 } else { 1024 };
    let mut memory = FigureSeries::bytes();
    let mut rows = Vec::new();
    for (what, command) in [
        ("writes of 8 KiB", format!("head -c {mib}M /dev/zero")),
        (
            "writes of 1 MiB",
            format!("dd if=/dev/zero bs=1M count={mib} status=none"),
        ),
    ] {
        let command: Vec<&str> = command.split(' ').collect();
        let mut speeds = Speeds::new();
        for _ in 0..bench.times(7, 3) {
            let before = daemon_calls::reset_peak(&daemon)?;
            let place = (&daemon, name.as_str(), container.as_str());
            speeds.measure(place, &command, mib << 20).await?;
            memory.size(daemon_calls::peak_bytes(&daemon)?.saturating_sub(before))?;
        }
        rows.extend(speeds.rows(what));
    }
    reference.remove_container(&container).await?;
    daemon.stop().await?;
    let most = Budget::AtMost(16 << 20);
    let memory = TableRow::new("daemon's memory for these streams", &memory, most);
    rows.push(memory);
    Ok(rows)
}

impl Speeds {
    fn new() -> Self {
        let [skilld, skillctl, docker, local] = std::array::from_fn(|_| FigureSeries::speeds());
        Self {
            skilld,
            skillctl,
            docker,
            local,
        }
    }

    /// Runs the command in each way, once.
    async fn measure(
        &mut self,
        (daemon, workspace, container): (&Daemon, &str, &str),
        command: &[&str],
        bytes: u64,
    ) -> Result<()> {
        let started = Instant::now();
        let spec = ExecSpec {
            argv: command.iter().map(|&word| word.to_owned()).collect(),
            ..ExecSpec::default()
        };
        let ran = daemon_calls::run_exec(&daemon.client, workspace, spec).await?;
        self.skilld.rate(bytes, started.elapsed())?;
        ensure!(ran.bytes == bytes, "{} bytes came", ran.bytes);
        progress(&format!("  {} bytes per event", bytes / ran.events.max(1)));
        let started = Instant::now();
        let mut skillctl = Command::new(binary("skillctl")?);
        skillctl.args(["exec", &short_id(workspace), "--"]);
        skillctl.args(command);
        skillctl.env("SKILLD_ENDPOINT", daemon.endpoint());
        let came = count_output(skillctl).await?;
        self.skillctl.rate(bytes, started.elapsed())?;
        ensure!(came == bytes, "{came} bytes came from skillctl");
        let started = Instant::now();
        let mut docker = Command::new("docker");
        docker.args(["exec", container]).args(command);
        let came = count_output(docker).await?;
        self.docker.rate(bytes, started.elapsed())?;
        ensure!(came == bytes, "{came} bytes came from docker");
        let started = Instant::now();
        let came = spawn_local(command).await?;
        self.local.rate(bytes, started.elapsed())?;
        ensure!(came == bytes, "{came} bytes came from the local pipe");
        Ok(())
    }

    fn rows(&self, what: &str) -> [TableRow; 3] {
        let ours = format!("stdout of one exec, {what}");
        let skilld = TableRow::new(&ours, &self.skilld, Budget::AtLeast(SPEED_MIN));
        let share = Budget::Share(SKILLCTL_SHARE);
        let skillctl = TableRow::new(&format!("skillctl exec, {what}"), &self.skillctl, share);
        let docker = TableRow::new(&ours, &self.skilld, Budget::None);
        [
            skilld.against("the same pipe read locally", &self.local),
            skillctl.against("the API", &self.skilld),
            docker.against("docker exec", &self.docker),
        ]
    }
}

/// Runs a program, which has to succeed, and counts what it prints.
async fn count_output(mut program: Command) -> Result<u64> {
    let mut child = program
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdout = child.stdout.take().context("no stdout")?;
    let (mut buffer, mut bytes) = (vec![0; READ_BYTES], 0);
    loop {
        let count = stdout.read(&mut buffer).await?;
        if count == 0 {
            break;
        }
        bytes += u64::try_from(count)?;
    }
    let status = child.wait().await?;
    ensure!(status.success(), "it ended with {status}");
    Ok(bytes)
}

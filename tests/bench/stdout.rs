//! Section `stdout`: one exec that prints as fast as it can, to one client that counts.

use std::time::Instant;

use anyhow::{Result, ensure};
use skilld_tests::Daemon;
use skilld_tests::exec::{argv, workspace};

use crate::reference::spawn_local;
use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls, progress};

/// Measures bytes per second and the largest growth of the daemon's memory.
pub(crate) async fn throughput(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let cpus = std::thread::available_parallelism()?.get();
    let options = daemon_calls::daemon_options().set("pools.default.cpus", &format!("{cpus}.0"));
    let daemon = Daemon::start_with(options).await?;
    let name = workspace(&daemon.client).await?.name;
    daemon_calls::wait_until_warm(&daemon.client, "default").await?;
    let bytes: u64 = if bench.quick { 256 << 20 } else { 1 << 30 };
    let text = bytes.to_string();
    let (mut skilld, mut local) = (FigureSeries::speeds(), FigureSeries::speeds());
    let mut memory = FigureSeries::bytes();
    for _ in 0..bench.times(7, 3) {
        let before = daemon_calls::reset_peak(&daemon)?;
        let started = Instant::now();
        let spec = argv(["head", "-c", &text, "/dev/zero"]);
        let ran = daemon_calls::run_exec(&daemon.client, &name, spec).await?;
        skilld.rate(bytes, started.elapsed())?;
        memory.size(daemon_calls::peak_bytes(&daemon)?.saturating_sub(before))?;
        ensure!(ran.bytes == bytes, "{} bytes came", ran.bytes);
        progress(&format!("  {} bytes per event", bytes / ran.events.max(1)));
        let started = Instant::now();
        let came = spawn_local(&["head", "-c", &text, "/dev/zero"]).await?;
        local.rate(bytes, started.elapsed())?;
        ensure!(came == bytes, "{came} bytes came from the local pipe");
    }
    daemon.stop().await?;
    let speed = TableRow::new("stdout of one exec", &skilld, Budget::Share(0.4));
    Ok(vec![
        speed.against("the same pipe read locally", &local),
        TableRow::new(
            "daemon's memory for that stream",
            &memory,
            Budget::AtMost(16 << 20),
        ),
    ])
}

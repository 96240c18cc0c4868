//! Section `stdout`: one exec that prints as fast as it can, to one client that counts.

use std::time::Instant;

use anyhow::{Result, ensure};
use skilld_tests::Daemon;
use skilld_tests::exec::{argv, workspace};

use crate::reference::spawn;
use crate::report::{Budget, Row, Series};
use crate::{Wish, ours, progress};

/// Bytes per second, and what the daemon's memory grew by at most.
pub(crate) async fn throughput(wish: &Wish) -> Result<Vec<Row>> {
    let cpus = std::thread::available_parallelism()?.get();
    let options = ours::options().set("pools.default.cpus", &format!("{cpus}.0"));
    let daemon = Daemon::start_with(options).await?;
    let name = workspace(&daemon.client).await?.name;
    ours::warm(&daemon.client, "default").await?;
    let bytes: u64 = if wish.quick { 256 << 20 } else { 1 << 30 };
    let text = bytes.to_string();
    let (mut skilld, mut local) = (Series::speeds()?, Series::speeds()?);
    let mut memory = Series::bytes()?;
    for _ in 0..wish.times(7, 3) {
        let before = ours::forget_peak(&daemon)?;
        let started = Instant::now();
        let spec = argv(["head", "-c", &text, "/dev/zero"]);
        let ran = ours::run(&daemon.client, &name, spec).await?;
        skilld.rate(bytes, started.elapsed())?;
        memory.size(ours::peak(&daemon)?.saturating_sub(before))?;
        ensure!(ran.bytes == bytes, "{} bytes came", ran.bytes);
        progress(&format!("  {} bytes per event", bytes / ran.events.max(1)));
        let started = Instant::now();
        let came = spawn(&["head", "-c", &text, "/dev/zero"]).await?;
        local.rate(bytes, started.elapsed())?;
        ensure!(came == bytes, "{came} bytes came from the local pipe");
    }
    daemon.stop().await?;
    let speed = Row::new("stdout of one exec", &skilld, Budget::Share(0.4));
    Ok(vec![
        speed.against("the same pipe read locally", &local),
        Row::new(
            "daemon's memory for that stream",
            &memory,
            Budget::AtMost(16 << 20),
        ),
    ])
}

//! Sections `big` and `small`: one file of a GiB in and out, one small file, ten thousand of them.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use skilld_client::{TransferProgress, UploadTarget};
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::{CollectFormat, CollectOutputsRequest, CollectSpec, CollectSummary};
use skilld_tests::exec::{shell, workspace};
use skilld_tests::{Daemon, Options, usage};

use crate::reference::{ContainerLimits, DockerReference, spawn_local};
use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls};

const SMALL_FILES: usize = 10_000;
/// Budget of memory, for any size and number of files.
const MEMORY: Budget = Budget::AtMost(16 << 20);
/// Command that makes `one.txt` in the working directory, and 10,000 files of 1 KiB in `many/`.
const MAKE: &str = r#"echo one > one.txt && mkdir -p many && cd many && python3 -c "
for i in range(10000): open(f'{i:05}.txt','w').write(f'{i:05} '*170+'abcd')""#;

fn options() -> Result<Options> {
    let cpus = std::thread::available_parallelism()?.get();
    Ok(daemon_calls::daemon_options()
        .set("default_pool", "large")
        .set("pools.large.warm", "1")
        .set("pools.large.max", "2")
        .set("pools.large.memory", "4GiB")
        .set("pools.large.disk", "3GiB")
        .set("pools.large.cpus", &format!("{cpus}.0"))
        .set("pools.default.warm", "0"))
}

/// Measures one file of 1 GiB, from a file in memory to a file in memory, its sha256 checked both ways.
pub(crate) async fn big(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let bytes: u64 = if bench.quick { 256 << 20 } else { 1 << 30 };
    let daemon = Daemon::start_with(options()?).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon_calls::wait_until_warm(client, "large").await?;
    let dir = in_memory()?;
    let source = dir.path().join("source");
    let sha256 = random_file(&source, bytes)?;
    let (mut stage, mut collect, mut copy) = (
        FigureSeries::speeds(),
        FigureSeries::speeds(),
        FigureSeries::speeds(),
    );
    let (mut memory, mut guest_memory) = (FigureSeries::bytes(), FigureSeries::bytes());
    let guest = usage::guest(&daemon, &name).await?;
    for _ in 0..bench.times(5, 2) {
        let before = daemon_calls::reset_peak(&daemon)?;
        let guest_before = usage::forget_peak(guest)?;
        let started = Instant::now();
        let mut target = UploadTarget::file(&name, "out/big");
        target.sha256.clone_from(&sha256);
        let file = tokio::fs::File::open(&source).await?;
        let staged = client.upload(target, file).await?;
        stage.rate(bytes, started.elapsed())?;
        ensure!(staged.file_count == 1, "{staged:?}");
        let started = Instant::now();
        let request = request(&name, "out/big", CollectFormat::Files);
        let collected = client
            .collect_to_dir(
                request,
                &dir.path().join("collected"),
                TransferProgress::none(),
            )
            .await?;
        collect.rate(bytes, started.elapsed())?;
        memory.size(daemon_calls::peak_bytes(&daemon)?.saturating_sub(before))?;
        guest_memory.size(usage::peak(guest)?.saturating_sub(guest_before))?;
        ensure!(collected.bytes == bytes, "{} bytes came", collected.bytes);
        std::fs::remove_dir_all(dir.path().join("collected"))?;
        daemon_calls::run_exec(client, &name, shell("rm $OUTPUT_DIR/big")).await?;
        let target = dir.path().join("copy");
        let started = Instant::now();
        spawn_local(&["cp", text(&source)?, text(&target)?]).await?;
        copy.rate(bytes, started.elapsed())?;
        std::fs::remove_file(&target)?;
    }
    daemon.stop().await?;
    let stage = TableRow::new("stage one file of 1 GiB", &stage, Budget::Share(0.3));
    let collect = TableRow::new("collect one file of 1 GiB", &collect, Budget::Share(0.3));
    Ok(vec![
        stage.against("cp within tmpfs", &copy),
        collect.against("cp within tmpfs", &copy),
        TableRow::new("daemon's memory for either", &memory, MEMORY),
        TableRow::new("guest's memory for either", &guest_memory, MEMORY),
    ])
}

/// Measures one small file and ten thousand, as files and as a tar.
pub(crate) async fn small(
    bench: &BenchOptions,
    reference: &DockerReference,
) -> Result<Vec<TableRow>> {
    let daemon = Daemon::start_with(options()?).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon_calls::wait_until_warm(client, "large").await?;
    let limits = ContainerLimits {
        memory_bytes: 4 << 30,
        cpus: std::thread::available_parallelism()?.get(),
    };
    let container = reference.create_container(limits).await?;
    let dir = in_memory()?;
    let make = format!("cd {} && {MAKE}", text(dir.path())?);
    spawn_local(&["bash", "-c", &make]).await?;
    daemon_calls::run_exec(client, &name, shell(&format!("cd $OUTPUT_DIR && {MAKE}"))).await?;
    let make = format!("cd /tmp && {MAKE}");
    reference.exec(&container, &["bash", "-c", &make]).await?;

    let (one, docker_one) = collect_one(bench, &daemon, &name, (reference, &container)).await?;
    let (mut files, mut archive) = (FigureSeries::times(), FigureSeries::times());
    let (mut tar, mut docker) = (FigureSeries::times(), FigureSeries::times());
    let (mut stage, mut copy) = (FigureSeries::times(), FigureSeries::times());
    let (mut memory, mut guest_memory) = (FigureSeries::bytes(), FigureSeries::bytes());
    let guest = usage::guest(&daemon, &name).await?;
    for turn in 0..bench.times(15, 3) {
        let before = daemon_calls::reset_peak(&daemon)?;
        let guest_before = usage::forget_peak(guest)?;
        for (format, series) in [
            (CollectFormat::Files, &mut files),
            (CollectFormat::Tar, &mut archive),
        ] {
            let started = Instant::now();
            let summary = collect(&daemon, &name, "out/many/**", format).await?;
            series.time(started.elapsed())?;
            let returned = usize::try_from(summary.returned_count)?;
            ensure!(returned == SMALL_FILES, "{summary:?}");
        }
        stage_many(&daemon, &name, dir.path(), (&mut stage, &mut copy)).await?;
        memory.size(daemon_calls::peak_bytes(&daemon)?.saturating_sub(before))?;
        guest_memory.size(usage::peak(guest)?.saturating_sub(guest_before))?;
        let started = Instant::now();
        // To a pipe: tar does not read the files when it writes to /dev/null.
        spawn_local(&["tar", "-C", text(dir.path())?, "-c", "many"]).await?;
        tar.time(started.elapsed())?;
        if turn % 3 == 0 {
            let started = Instant::now();
            reference.download(&container, "/tmp/many").await?;
            docker.time(started.elapsed())?;
        }
    }
    reference.remove_container(&container).await?;
    daemon.stop().await?;
    let row = |what: &str, series, budget| TableRow::new(what, series, budget);
    let as_files = row(
        "collect 10,000 files, with sha256 each",
        &files,
        Budget::Within(2.0),
    );
    let as_tar = |budget| row("collect 10,000 files as a tar", &archive, budget);
    Ok(vec![
        row("collect 1 file", &one, Budget::None).against("archive get (API)", &docker_one),
        as_files.against("tar c in tmpfs", &tar),
        as_tar(Budget::Within(2.0)).against("tar c in tmpfs", &tar),
        as_tar(Budget::None).against("archive get (API)", &docker),
        row("stage 10,000 files", &stage, Budget::None).against("cp -a in tmpfs", &copy),
        row("daemon's memory for any of these", &memory, MEMORY),
        row("guest's memory for any of these", &guest_memory, MEMORY),
    ])
}

/// Collects one small file, through the guest and through Docker.
async fn collect_one(
    bench: &BenchOptions,
    daemon: &Daemon,
    name: &str,
    (reference, container): (&DockerReference, &str),
) -> Result<(FigureSeries, FigureSeries)> {
    let (mut one, mut docker_one) = (FigureSeries::times(), FigureSeries::times());
    for turn in 0..bench.times(500, 50) {
        let started = Instant::now();
        collect(daemon, name, "out/one.txt", CollectFormat::Files).await?;
        one.time(started.elapsed())?;
        if turn % 5 == 0 {
            let started = Instant::now();
            reference.download(container, "/tmp/one.txt").await?;
            docker_one.time(started.elapsed())?;
        }
    }
    Ok((one, docker_one))
}

/// Stages the files that are in `many/` of a directory, and copies them beside.
async fn stage_many(
    daemon: &Daemon,
    name: &str,
    dir: &Path,
    (stage, copy): (&mut FigureSeries, &mut FigureSeries),
) -> Result<()> {
    let many = dir.join("many");
    let started = Instant::now();
    let target = "work/staged";
    let answer = daemon
        .client
        .upload_path(name, &many, target, TransferProgress::none())
        .await?;
    stage.time(started.elapsed())?;
    ensure!(answer.file_count >= 10_000, "{answer:?}");
    daemon_calls::run_exec(&daemon.client, name, shell("rm -r $WORK_DIR/staged")).await?;
    let other = dir.join("copy");
    let started = Instant::now();
    spawn_local(&["cp", "-a", text(&many)?, text(&other)?]).await?;
    copy.time(started.elapsed())?;
    Ok(std::fs::remove_dir_all(&other)?)
}

async fn collect(
    daemon: &Daemon,
    name: &str,
    glob: &str,
    format: CollectFormat,
) -> Result<CollectSummary> {
    let mut messages = daemon.client.collect(request(name, glob, format)).await?;
    let mut last = None;
    while let Some(message) = messages.next().await? {
        if let Some(Payload::Summary(summary)) = message.payload {
            last = Some(summary);
        }
    }
    let summary = last.context("the stream ended without a summary")?;
    ensure!(summary.returned_count > 0, "nothing came: {summary:?}");
    Ok(summary)
}

fn request(name: &str, glob: &str, format: CollectFormat) -> CollectOutputsRequest {
    CollectOutputsRequest {
        workspace: name.to_owned(),
        spec: Some(CollectSpec {
            globs: vec![glob.to_owned()],
            max_files: 50_000,
            max_file_bytes: 2 << 30,
            max_total_bytes: 2 << 30,
            format: format.into(),
            ..CollectSpec::default()
        }),
    }
}

/// Creates a directory on a tmpfs, as a workspace's files are.
fn in_memory() -> Result<tempfile::TempDir> {
    let made = tempfile::Builder::new()
        .prefix("skb")
        .tempdir_in("/dev/shm");
    made.context("make a directory in /dev/shm")
}

/// Writes bytes that do not compress, and returns their sha256.
fn random_file(path: &Path, bytes: u64) -> Result<String> {
    use std::io::{Read, Write};
    let mut chunk = vec![0; 1 << 20];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut chunk)?;
    let mut file = std::fs::File::create(path)?;
    let mut digest = Sha256::new();
    for _ in 0..bytes >> 20 {
        file.write_all(&chunk)?;
        digest.update(&chunk);
    }
    let hex = digest.finalize();
    Ok(hex.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not text")
}

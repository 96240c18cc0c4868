//! Workspaces on disk: larger than memory, with hard limits, theirs alone, and without a trace after their end.
//!
//! Docker: loop devices, file systems and mounts of the host's kernel hold the files of containers.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use skilld_client::v1::{
    CreateWorkspaceRequest, ErrorReason, ExitReason as Ended, WorkspaceLimits,
};
use skilld_client::{Client, RetryPolicy};
use skilld_tests::disks::loop_devices;
use skilld_tests::exec::{run, shell, shell_stdout, sized, workspace};
use skilld_tests::files::{put, read};
use skilld_tests::{Daemon, Options, binaries, docker, expect_refusal, wait};

use crate::functional::workspaces::named;

/// Time within which the kernel has to end a mount whose container is gone.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(60);
/// Size of the workspaces of most tests, in bytes.
const DISK_BYTES: u64 = 64 << 20;

/// Returns the settings of a default pool on disk.
fn on_disk(disk: &str) -> Options {
    Options::default()
        .set("pools.default.storage", "disk")
        .set("pools.default.disk", disk)
        .set("pools.default.inodes", "4096")
}

/// Returns size, block size, free blocks, inodes and free inodes of the workspace's file system.
async fn measure(client: &Client, name: &str) -> Result<[u64; 5]> {
    let text = shell_stdout(client, name, "stat -f -c '%b %S %a %c %d' /workspace").await?;
    let numbers: Vec<u64> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    numbers.try_into().ok().context("five numbers")
}

#[tokio::test]
async fn a_workspace_on_disk_holds_more_than_its_memory() -> Result<()> {
    const WRITE: &str = "
import hashlib
wanted, found = hashlib.sha256(), hashlib.sha256()
with open('/workspace/work/big', 'wb') as file:
    for number in range(768):
        block = number.to_bytes(8, 'little') * (1 << 17)
        wanted.update(block)
        file.write(block)
with open('/workspace/work/big', 'rb') as file:
    while block := file.read(1 << 20):
        found.update(block)
print(file.name, found.digest() == wanted.digest())";
    let options = on_disk("4GiB").set("pools.default.memory", "128MiB");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    assert!(daemon.info.features.contains(&"storage.disk".to_owned()));
    let made = workspace(client).await?;
    let limits = made.limits.context("limits")?;
    assert_eq!(
        (limits.disk_bytes, limits.memory_bytes),
        (4 << 30, 128 << 20)
    );
    let outcome = run(
        client,
        &made.name,
        shell(&format!("python3 -c \"{WRITE}\"")),
    )
    .await?;
    assert_eq!(outcome.text(), "/workspace/work/big True\n", "{outcome:?}");
    assert_eq!(outcome.result.oom_kills(), 0, "{outcome:?}");
    let [blocks, block, free, ..] = measure(client, &made.name).await?;
    assert!(blocks * block > (4 << 30) - (64 << 20), "{blocks}");
    assert!(free * block < (4 << 30) - (768 << 20), "{free}");
    daemon.stop().await
}

#[tokio::test]
async fn a_full_disk_is_reported_and_hurts_nobody_else() -> Result<()> {
    let daemon = Daemon::start_with(on_disk("64MiB")).await?;
    let client = &daemon.client;
    let (full, other) = (workspace(client).await?.name, workspace(client).await?.name);
    for fill in [
        "head -c 100M /dev/zero >$WORK_DIR/fill",
        // Large writes are refused as a whole, so that a part of one stays free.
        "dd if=/dev/zero of=$WORK_DIR/fill bs=1M",
        "cd $WORK_DIR && touch {1..5000}",
    ] {
        let outcome = run(client, &full, shell(fill)).await?;
        let ended = (outcome.reason(), outcome.exit_code());
        assert_eq!(ended, (Ended::DiskFull, Some(1)), "{fill}: {outcome:?}");
        let error = outcome.error_text();
        assert!(error.contains("No space left on device"), "{fill}: {error}");
        expect_refusal(
            put(client, &full, "out/large", vec![1; 8 << 20])
                .await
                .and(put(client, &full, "out/file", "x").await),
            ErrorReason::DiskFull,
        )?;
        put(client, &other, "work/x", vec![1; 8 << 20]).await?;
        run(client, &full, shell("rm -rf $WORK_DIR/* $OUTPUT_DIR/*")).await?;
    }
    assert_eq!(
        run(client, &full, shell("exit 3")).await?.reason(),
        Ended::Exited
    );
    put(client, &full, "work/x", vec![1; 32 << 20]).await?;
    assert_eq!(read(client, &other, "work/x").await?.len(), 8 << 20);
    daemon.stop().await
}

#[tokio::test]
async fn a_request_has_its_own_size_or_is_refused() -> Result<()> {
    let daemon = Daemon::start_with(on_disk("64MiB")).await?;
    let client = &daemon.client;
    let small = WorkspaceLimits {
        disk_bytes: 8 << 20,
        ..WorkspaceLimits::default()
    };
    let name = sized(client, small).await?;
    let limits = client
        .get_workspace(&name)
        .await?
        .limits
        .context("limits")?;
    // As many inodes as fit, since the request has no number.
    assert_eq!((limits.disk_bytes, limits.inodes), (8 << 20, 2048));
    let [blocks, block, _, inodes, free_inodes] = measure(client, &name).await?;
    assert!((7 << 20..=8 << 20).contains(&(blocks * block)), "{blocks}");
    assert_eq!(inodes, 2048);
    let files = shell_stdout(
        client,
        &name,
        "cd $WORK_DIR; touch {1..2100} 2>/dev/null; ls | wc -l",
    );
    assert_eq!(files.await?.trim().parse::<u64>()?, free_inodes);

    for (field, disk_bytes, inodes) in [
        ("limits.disk_bytes", 1 << 40, 0),
        ("limits.inodes", 8 << 20, 4096),
    ] {
        let limits = WorkspaceLimits {
            disk_bytes,
            inodes,
            ..WorkspaceLimits::default()
        };
        let failure = expect_refusal(sized(client, limits).await, ErrorReason::LimitUnsupported)?;
        assert_eq!(
            failure.metadata.get("field").map(String::as_str),
            Some(field)
        );
    }
    daemon.stop().await
}

#[tokio::test]
async fn nothing_of_a_disk_is_left_after_its_workspace() -> Result<()> {
    let daemon = Daemon::start_with(on_disk("64MiB")).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    shell_stdout(client, &name, "yes secret | head -c 32M >$WORK_DIR/secret").await?;
    daemon.warm(1).await?;
    let slot = daemon.record(&name)?["number"].to_string();
    let file = daemon
        .state_dir()
        .join("slots")
        .join(slot)
        .join("workspace.ext4");
    // Each of both has taken its space already, and is where only the daemon sees it.
    let status = fs::metadata(&file)?;
    assert!(std::os::unix::fs::MetadataExt::blocks(&status) * 512 >= DISK_BYTES);
    assert_eq!(loop_devices(&daemon.state_dir())?.len(), 2);

    client.delete_workspace(&name).await?;
    assert!(!file.exists());
    wait::until("the device is free", UNMOUNT_TIMEOUT, async || {
        let left = loop_devices(&daemon.state_dir())?;
        Ok((left.len() == 1).then_some(()))
    })
    .await?;

    // Another workspace, on blocks that may have been the first one's.
    const LOOK: &str = "find /workspace -mindepth 1 -maxdepth 1 -printf '%f '; cd $WORK_DIR
        fallocate -l 48M room; grep -c secret room; tr -d '\\0' <room | wc -c";
    let next = workspace(client).await?.name;
    let text = run(client, &next, shell(LOOK)).await?.text();
    let (first_line, rest) = text.split_once('\n').context("two lines")?;
    let mut names: Vec<&str> = first_line.split_whitespace().collect();
    let count = names.pop();
    names.sort_unstable();
    assert_eq!(names, ["metadata.json", "out", "runs", "skills", "work"]);
    assert_eq!((count, rest.trim()), (Some("0"), "0"));
    daemon.stop().await
}

#[tokio::test]
async fn a_disk_outlives_the_daemon_and_an_unmount_on_the_host() -> Result<()> {
    let mut daemon = Daemon::start_with(on_disk("64MiB")).await?;
    let name = workspace(&daemon.client).await?.name;
    shell_stdout(&daemon.client, &name, "echo mine >$WORK_DIR/file").await?;
    daemon.crash().await?;
    daemon.restart().await?;
    let read =
        async |daemon: &Daemon| shell_stdout(&daemon.client, &name, "cat $WORK_DIR/file").await;
    assert_eq!(read(&daemon).await?, "mine\n");
    // Docker does that to all volumes when it is restarted with live-restore.
    let container = daemon.container(&name)?;
    let volumes = docker::mounted_volumes(&container, "ext4").await?;
    let is_docker = docker::engine_name().await? == "docker";
    assert_eq!(volumes.len(), usize::from(is_docker), "{volumes:?}");
    for volume in volumes {
        let unmounted = Command::new("umount").arg(&volume).output()?;
        ensure!(unmounted.status.success(), "{unmounted:?}");
    }
    assert_eq!(read(&daemon).await?, "mine\n");
    put(&daemon.client, &name, "work/more", vec![1; 8 << 20]).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_lost_workspace_gives_its_disk_back() -> Result<()> {
    let options = on_disk("64MiB").set("pools.default.warm", "0");
    let daemon = Daemon::start_with(options).await?;
    let name = workspace(&daemon.client).await?.name;
    let slots = daemon.state_dir().join("slots");
    docker::remove(&daemon.container(&name)?).await?;
    wait::until("the space is free", UNMOUNT_TIMEOUT, async || {
        let slot = fs::read_dir(&slots)?
            .next()
            .context("the slot is listed")??;
        let is_gone = !slot.path().join("workspace.ext4").exists();
        Ok((is_gone && loop_devices(&slots)?.is_empty()).then_some(()))
    })
    .await?;
    daemon.stop().await
}

#[tokio::test]
async fn no_container_takes_the_reserve_of_the_hosts_disk() -> Result<()> {
    let options = on_disk("64MiB")
        .set("pools.default.warm", "0")
        // No container ever comes.
        .set("pools.default.claim_timeout", "1s")
        .set("workspaces.disk_reserve", "1024TiB");
    let daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let request = CreateWorkspaceRequest {
        request_id: "one".to_owned(),
        ..named("refused")
    };
    let refused = client.create_workspace(request).await;
    assert!(refused.is_err(), "{refused:?}");
    wait::until("the log names the reserve", UNMOUNT_TIMEOUT, async || {
        let is_named = daemon.log().contains("workspaces.disk_reserve");
        Ok(is_named.then_some(()))
    })
    .await?;
    // A further attempt may be under way.
    wait::until("no file of a disk is left", UNMOUNT_TIMEOUT, async || {
        let mut slots = fs::read_dir(daemon.state_dir().join("slots"))?;
        let has_disk = |slot: fs::DirEntry| slot.path().join("workspace.ext4").exists();
        let is_left = slots.any(|slot| slot.is_ok_and(has_disk));
        Ok((!is_left).then_some(()))
    })
    .await?;
    daemon.stop().await
}

#[tokio::test]
async fn start_and_checks_refuse_a_host_without_loop_devices() -> Result<()> {
    let state = tempfile::tempdir()?;
    let skilld = |argument: &str| -> Result<std::process::Output> {
        let plain = binaries::skilld()?;
        let mut command = Command::new("unshare");
        // A /dev with nothing but what every program needs.
        let script = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$@\"";
        command.args(["--mount", "--", "bash", "-c", script, "-"]);
        command.arg(plain.get_program());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
            .args(argument.split_whitespace())
            .env("SKILLD_STATE_DIR", state.path().join("s"))
            .env("SKILLD_ENGINE__GUEST_PATH", binaries::guest()?)
            .env("SKILLD_POOLS__DEFAULT__STORAGE", "disk");
        Ok(command.output()?)
    };
    for (argument, remedy) in [
        ("", "set pools.default.storage = \"tmpfs\""),
        ("--check", "modprobe loop"),
        ("doctor", "modprobe loop"),
    ] {
        let output = skilld(argument)?;
        assert_eq!(output.status.code(), Some(1), "{argument}: {output:?}");
        let mut said = String::from_utf8(output.stdout)?;
        said.push_str(&String::from_utf8(output.stderr)?);
        for part in ["/dev/loop-control can't be opened", remedy] {
            assert!(said.contains(part), "{argument}: {said}");
        }
    }
    Ok(())
}

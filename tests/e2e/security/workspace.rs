//! A single workspace: the surroundings of a command, and the actions that are refused to it.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use skilld_tests::{Daemon, DefaultDaemon, Options, binaries, docker, exec};

use crate::security::{all_ok, python, sh};

fn probe(name: &str) -> Result<String> {
    let path = binaries::repository().join("tests/probes").join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

#[tokio::test]
async fn nothing_gets_out_of_a_workspace() -> Result<()> {
    let (daemon, workspace) = DefaultDaemon::with_workspace().await?;
    check_isolation(&daemon, &workspace).await?;
    daemon.stop().await
}

#[tokio::test]
async fn nothing_gets_out_of_a_workspace_on_disk() -> Result<()> {
    let (daemon, workspace) = with_workspace_on_disk().await?;
    check_isolation(&daemon, &workspace).await?;
    daemon.stop().await
}

/// Starts a daemon whose workspaces are on disk, and creates one. Returns both, the workspace by its name.
async fn with_workspace_on_disk() -> Result<(Daemon, String)> {
    let options = Options::default().set("pools.default.storage", "disk");
    let daemon = Daemon::start_with(options).await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    Ok((daemon, workspace))
}

async fn check_isolation(daemon: &Daemon, workspace: &str) -> Result<()> {
    let uid = daemon.record(workspace)?["uid"].to_string();
    let spec = python(&probe("isolation.py")?, &[&uid], "");
    let outcome = exec::run(&daemon.client, workspace, spec).await?;
    let report = all_ok("isolation.py", &outcome)?;
    let checks = report["checks"].as_object().context("checks")?.len();
    assert!(checks >= 130, "only {checks} checks were made");
    Ok(())
}

#[tokio::test]
async fn ordinary_programs_run_in_a_workspace() -> Result<()> {
    let (daemon, workspace) = DefaultDaemon::with_workspace().await?;
    check_ordinary_programs(&daemon, &workspace).await?;
    daemon.stop().await
}

#[tokio::test]
async fn ordinary_programs_run_in_a_workspace_on_disk() -> Result<()> {
    let (daemon, workspace) = with_workspace_on_disk().await?;
    check_ordinary_programs(&daemon, &workspace).await?;
    daemon.stop().await
}

async fn check_ordinary_programs(daemon: &Daemon, workspace: &str) -> Result<()> {
    let spec = python(&probe("compatibility.py")?, &[], "");
    let outcome = exec::run(&daemon.client, workspace, spec).await?;
    let report = all_ok("compatibility.py", &outcome)?;
    for needed in ["python multiprocessing", "node", "git", "sqlite3", "curl"] {
        assert!(
            report["checks"].get(needed).is_some(),
            "{needed} is missing"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_command_starts_with_the_documented_minimum() -> Result<()> {
    let (daemon, workspace) = DefaultDaemon::with_workspace().await?;
    let run = |spec| exec::run(&daemon.client, &workspace, spec);

    let printed = run(exec::argv(["/usr/bin/env", "-0"])).await?.text();
    let mut env: BTreeMap<&str, &str> = printed
        .split_terminator('\0')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let run_dir = env.remove("RUN_DIR").context("RUN_DIR")?;
    assert!(run_dir.starts_with("/workspace/runs/"), "{run_dir}");
    let expected = BTreeMap::from([
        ("CLAUDE_PROJECT_DIR", "/workspace/work"),
        ("GOMAXPROCS", "1"),
        ("HOME", "/workspace/work"),
        ("IMAGE_WHEELS", "/usr/share/skilld/wheels"),
        ("INPUTS_DIR", "/workspace/work/inputs"),
        ("LANG", "C.UTF-8"),
        (
            "NODE_OPTIONS",
            "--require=/usr/share/skilld/node_preload.js",
        ),
        ("OMP_NUM_THREADS", "1"),
        ("OPENBLAS_NUM_THREADS", "1"),
        ("OUTPUT_DIR", "/workspace/out"),
        (
            "PATH",
            "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        ),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("PIP_FIND_LINKS", "/usr/share/skilld/wheels"),
        ("PIP_NO_INDEX", "1"),
        ("POLARS_MAX_THREADS", "1"),
        ("PYTHONPATH", "/run/skilld/python"),
        ("PYTHONUNBUFFERED", "1"),
        ("PYTHON_CPU_COUNT", "1"),
        ("RAYON_NUM_THREADS", "1"),
        ("SHELL", "/bin/bash"),
        ("SKILLS_DIR", "/workspace/skills"),
        ("TMPDIR", "/tmp"),
        ("USER", "skill"),
        ("UV_FIND_LINKS", "/usr/share/skilld/wheels"),
        ("UV_OFFLINE", "1"),
        ("UV_PYTHON_DOWNLOADS", "never"),
        ("WORKSPACE", "/workspace"),
        ("WORKSPACE_DIR", "/workspace"),
        ("WORK_DIR", "/workspace/work"),
    ]);
    assert_eq!(env, expected);

    // The last one is the directory that is being listed.
    let descriptors = run(exec::argv(["/bin/ls", "/proc/self/fd"])).await?.text();
    assert_eq!(descriptors, "0\n1\n2\n3\n");
    let cwd = run(exec::argv(["/bin/pwd"])).await?.text();
    assert_eq!(cwd, "/workspace\n");
    // Its own session, no terminal, no parent but its supervisor, signals as they come with a process.
    let status = run(exec::shell(
        "grep -E '^Sig(Blk|Ign)' /proc/self/status; ps -o tty= -p $$",
    ))
    .await?
    .text();
    assert_eq!(
        status,
        "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n?\n"
    );
    daemon.stop().await
}

#[tokio::test]
async fn the_kernel_enforces_read_only_paths() -> Result<()> {
    let (daemon, workspace) = DefaultDaemon::with_workspace().await?;
    let staged = daemon.client.stage_skills(&workspace, &["text-stats"]);
    let skill = staged.await?.remove(0);
    let digest = format!(
        "cd {} && find . -type f -exec sha256sum {{}} + | sort",
        skill.path
    );
    let before = sh(&daemon.client, &workspace, &digest).await?;
    for attempt in [
        ": >> SKILL.md",
        "rm SKILL.md",
        "chmod 777 SKILL.md",
        "mv SKILL.md x",
        "ln -s /etc/passwd x",
        "rm out",
        "mkdir ../x",
        ": > ../.metadata.json",
        ": > /run/skilld/x",
        "rm /run/skilld/skilld-guest",
        ": >> /etc/passwd",
        "chmod 777 /etc/passwd",
        ": > /usr/x",
        "mount -o remount,rw /workspace/skills",
        "umount /workspace/skills",
    ] {
        let spec = exec::shell(&format!("cd {} && {attempt}", skill.path));
        let outcome = exec::run(&daemon.client, &workspace, spec).await?;
        assert_ne!(outcome.exit_code(), Some(0), "{attempt} went through");
    }
    // Whoever owns the files: the mounts themselves are read-only.
    let mounts = "awk '{ print $5, substr($6, 1, 3) }' /proc/self/mountinfo";
    let mounts = sh(&daemon.client, &workspace, mounts).await?;
    for path in [
        "/",
        "/run/skilld",
        "/workspace/skills",
        "/etc/passwd",
        "/etc/group",
    ] {
        let read_only = format!("{path} ro,");
        assert!(
            mounts.lines().any(|line| line == read_only),
            "{path}: {mounts}"
        );
    }
    assert_eq!(sh(&daemon.client, &workspace, &digest).await?, before);
    // Where a skill may write, it can, through the links in its folder.
    let write = format!("cd {} && echo yes > out/x && echo yes > work/y", skill.path);
    sh(&daemon.client, &workspace, &write).await?;
    let read = sh(&daemon.client, &workspace, "cat out/x work/y").await?;
    assert_eq!(read, "yes\nyes\n");
    daemon.stop().await
}

#[tokio::test]
async fn no_program_runs_with_more_rights_than_its_caller() -> Result<()> {
    let (daemon, workspace) = DefaultDaemon::with_workspace().await?;
    let find = "find / -xdev -type f -perm /6000 2>/dev/null || true";
    assert_eq!(sh(&daemon.client, &workspace, find).await?, "");
    // One that a tenant makes gains nothing: it is its own.
    let own = "cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && /tmp/id -u && id -u";
    let uids = sh(&daemon.client, &workspace, own).await?;
    let uid = daemon.record(&workspace)?["uid"].to_string();
    assert_eq!(uids, format!("{uid}\n{uid}\n"));
    let capabilities = "getcap -r / 2>/dev/null || true";
    assert_eq!(sh(&daemon.client, &workspace, capabilities).await?, "");
    daemon.stop().await
}

/// Only root can make such files. The host's root puts them where no mistake of a container could have.
#[tokio::test]
async fn setuid_programs_and_devices_on_a_disk_do_nothing() -> Result<()> {
    let (daemon, workspace) = with_workspace_on_disk().await?;
    let pid = docker::pid(&daemon.container(&workspace)?)
        .await?
        .context("the container runs")?;
    let root = format!("/proc/{pid}/root");
    let script = "cd \"$1/workspace/work\" && mknod -m 666 zero c 1 5 && cp \"$1/usr/bin/id\" id && chmod 6755 id";
    let made = Command::new("bash")
        .args(["-c", script, "-", &root])
        .output()?;
    ensure!(made.status.success(), "{made:?}");
    let look = "cd $WORK_DIR; stat -c '%u %a' id; ./id -u; head -c 1 zero | wc -c; grep ' /workspace ' /proc/self/mounts | cut -d' ' -f4";
    let outcome = exec::run(&daemon.client, &workspace, exec::shell(look)).await?;
    let uid = daemon.record(&workspace)?["uid"].to_string();
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..3], ["0 6755", &uid, "0"], "{outcome:?}");
    assert!(
        outcome.error_text().contains("Permission denied"),
        "{outcome:?}"
    );
    for option in ["nosuid", "nodev"] {
        assert!(lines[3].split(',').any(|found| found == option), "{text}");
    }
    daemon.stop().await
}

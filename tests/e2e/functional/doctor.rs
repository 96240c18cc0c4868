//! `skilld doctor` and `skilld --check` on this host and its Docker, each run as the real binary.
//!
//! Docker: the reports are about a real Docker, its images and runtimes, and the rights of a real user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use skilld_tests::{Daemon, Options, binaries};

/// Image that no Docker has.
const NO_IMAGE: &str = "skilld-test/no-such-image:1";
/// User without an account and without permission for Docker.
const STRANGER: u32 = 2_999_999;
/// Maximum number of further examinations of a host that stands still again and again.
const EXAMINATIONS_MAX: usize = 10;

/// Returns the daemon's binary as a command with settings that this host can meet.
fn skilld(state_dir: &Path) -> Result<Command> {
    let mut command = binaries::skilld()?;
    command
        .env("SKILLD_STATE_DIR", state_dir)
        .env("SKILLD_ENGINE__GUEST_PATH", binaries::guest()?)
        .env("SKILLD_POOLS__OFFICE__WARM", "0")
        .env("SKILLD_POOLS__OFFICE__MAX", "0");
    Ok(command)
}

/// Runs the doctor, and again while the host stood still for longer than the doctor waits for an answer.
fn examine(command: &mut Command) -> Result<Output> {
    let is_late = |output: &Output| {
        let said = String::from_utf8_lossy(&output.stdout);
        let limits = [" within 10s", " within 5s", " does not answer"];
        limits.iter().any(|limit| said.contains(limit))
    };
    let mut output = command.output()?;
    for _ in 0..EXAMINATIONS_MAX {
        if !is_late(&output) {
            break;
        }
        output = command.output()?;
    }
    Ok(output)
}

/// Lines of a report, and the exit code of its program.
struct DoctorRun {
    code: Option<i32>,
    lines: Vec<Value>,
}

impl DoctorRun {
    fn start(mut command: Command) -> Result<Self> {
        let output = examine(command.args(["doctor", "-o", "json"]))?;
        ensure!(output.stderr.is_empty(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let lines = report["checks"].as_array().context("lines")?.clone();
        let count = |state: &str| lines.iter().filter(|line| line["state"] == state).count();
        for (field, state) in [("ok", "ok"), ("warnings", "warning"), ("failed", "failed")] {
            ensure!(report[field] == count(state), "{field} of {report}");
        }
        Ok(Self {
            code: output.status.code(),
            lines,
        })
    }

    /// Returns the lines of one check.
    fn find(&self, check: &str) -> Vec<&Value> {
        let lines = self.lines.iter();
        lines.filter(|line| line["check"] == check).collect()
    }

    /// Returns the only line of one check, or of one precondition of the start by its configuration key.
    fn line(&self, name: &str) -> Result<&Value> {
        let preconditions = self.find("start").into_iter();
        let mut found = self.find(name);
        found.extend(preconditions.filter(|line| line["subject"] == name));
        ensure!(found.len() == 1, "{name}: {found:?}");
        Ok(found[0])
    }
}

/// Copies a program in a process of its own. A copy by this process could not be run for a moment (`ETXTBSY`) when
/// another test starts a process meanwhile, which inherits the file opened for writing.
fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let copied = Command::new("cp").args([from, to]).output()?;
    ensure!(copied.status.success(), "{copied:?}");
    Ok(())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn doctor_finds_nothing_that_fails_on_the_host_of_the_tests() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let state_dir = dir.path().join("s");
    let run = DoctorRun::start(skilld(&state_dir)?)?;
    let failed: Vec<_> = run
        .lines
        .iter()
        .filter(|line| line["state"] == "failed")
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(run.code, Some(0), "warnings do not count");
    for check in [
        "docker",
        "docker.limits",
        "docker.seccomp",
        "state_dir",
        "listeners.0",
        "artifacts",
    ] {
        assert_eq!(run.line(check)?["state"], "ok", "{check}");
    }
    let driver = Command::new("docker")
        .args(["info", "--format", "{{.Driver}}"])
        .output()?;
    let driver = String::from_utf8(driver.stdout)?;
    let line = run.line("docker.storage_driver")?;
    assert!(
        line["finding"]
            .as_str()
            .is_some_and(|text| text.starts_with(driver.trim())),
        "{line}"
    );
    let is_slow = ["fuse-overlayfs", "vfs"].contains(&driver.trim());
    assert_eq!(line["state"] == "warning", is_slow, "{line}");
    let image = run.line("pools.default")?;
    assert!(
        image["finding"]
            .as_str()
            .is_some_and(|text| text.contains("skilld/base"))
    );

    let output = examine(skilld(&state_dir)?.arg("doctor"))?;
    assert_eq!(output.status.code(), Some(0));
    let printed = String::from_utf8(output.stdout)?;
    let remedies = printed
        .lines()
        .filter(|line| line.trim_start().starts_with("remedy: "));
    let warnings = printed.lines().filter(|line| line.starts_with("warning  "));
    assert_eq!(remedies.count(), warnings.count(), "{printed}");
    let totals = printed.lines().last().context("totals")?;
    assert!(totals.ends_with(", failed 0"), "{printed}");
    assert!(!state_dir.exists(), "the doctor makes nothing");
    Ok(())
}

#[tokio::test]
async fn doctor_works_beside_a_daemon_on_the_same_state_directory() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut command = skilld(&daemon.state_dir())?;
    command.envs(daemon.settings());
    daemon.warm(1).await?;
    let containers = daemon.containers().await?;
    let run = DoctorRun::start(command)?;
    assert_eq!(run.line("daemon")?["state"], "ok");
    for key in ["state_dir", "listeners.0", "pools.default"] {
        assert_eq!(run.line(key)?["state"], "ok", "{key}");
    }
    // The daemon goes on: it serves, with the same containers.
    daemon.client.get_pool("default").await?;
    assert_eq!(daemon.containers().await?, containers);
    daemon.stop().await
}

#[test]
fn doctor_and_check_name_a_pool_whose_image_is_missing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let state_dir = dir.path().join("s");
    let with = |key: &str, value: &str| -> Result<Command> {
        let mut command = skilld(&state_dir)?;
        command.env(key, value);
        Ok(command)
    };
    let missing = || with("SKILLD_POOLS__DEFAULT__IMAGE", NO_IMAGE);
    let run = DoctorRun::start(missing()?)?;
    assert_eq!(run.code, Some(1));
    let line = run.line("pools.default")?;
    assert_eq!(line["state"], "failed");
    for part in [NO_IMAGE, "docker pull"] {
        let finding = line["finding"].as_str();
        assert!(finding.is_some_and(|text| text.contains(part)), "{line}");
    }

    let output = missing()?.arg("--check").output()?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains(NO_IMAGE));
    let expected = format!("error: pools.default: image {NO_IMAGE} cannot be used: ");
    assert!(stderr(&output).contains(&expected), "{output:?}");

    // A pool beside the default one waits for its image: the daemon starts without it.
    let mut other = with("SKILLD_POOLS__OTHER__IMAGE", NO_IMAGE)?;
    let output = other.arg("--check").output()?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        stderr(&output).contains("warning: pools.other: image"),
        "{output:?}"
    );

    let output = skilld(&state_dir)?.arg("--check").output()?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    Ok(())
}

#[test]
fn doctor_and_check_name_an_oci_runtime_unknown_to_docker() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let unknown = || -> Result<Command> {
        let mut command = skilld(&dir.path().join("s"))?;
        command.env("SKILLD_POOLS__DEFAULT__OCI_RUNTIME", "no-such-runtime");
        Ok(command)
    };
    let run = DoctorRun::start(unknown()?)?;
    assert_eq!(run.code, Some(1));
    let line = run.line("pools.default")?;
    assert_eq!(line["state"], "failed");
    assert!(
        line["finding"]
            .as_str()
            .is_some_and(|text| text.contains("runc")),
        "{line}"
    );
    let output = unknown()?.arg("--check").output()?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = "pool default wants no-such-runtime, which is not registered";
    assert!(stderr(&output).contains(expected), "{output:?}");
    Ok(())
}

#[test]
fn doctor_of_a_user_without_rights_reports_what_that_user_lacks() -> Result<()> {
    let dir = tempfile::Builder::new().prefix("skd").tempdir()?;
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
    // The user must be able to run the programs, wherever the repository is.
    let program = dir.path().join("skilld");
    copy_program(&binaries::binary("skilld")?, &program)?;
    let guest = dir.path().join("guest");
    copy_program(&binaries::guest()?, &guest)?;
    fs::set_permissions(&guest, PermissionsExt::from_mode(0o755))?;
    let root = dir.path().join("skills");
    fs::create_dir(&root)?;
    fs::set_permissions(&root, PermissionsExt::from_mode(0o700))?;
    let mut command = binaries::without_settings(program);
    command
        .uid(STRANGER)
        .gid(STRANGER)
        .env("SKILLD_STATE_DIR", dir.path().join("s"))
        .env("SKILLD_ENGINE__GUEST_PATH", &guest)
        .env("SKILLD_SKILLS__ROOTS", format!("[{:?}]", root.display()));
    let run = DoctorRun::start(command)?;
    assert_eq!(run.code, Some(1));
    assert_eq!(run.line("user")?["state"], "warning");
    for check in ["docker", "root", "state_dir"] {
        assert_eq!(run.line(check)?["state"], "failed", "{check}");
    }
    let docker = run.line("docker")?;
    assert!(
        docker["finding"]
            .as_str()
            .is_some_and(|text| text.contains("no permission")),
        "{docker}"
    );
    Ok(())
}

#[tokio::test]
async fn the_start_warns_of_pools_that_promise_too_much_memory() -> Result<()> {
    let promised = "the pools promise";
    let daemon = Daemon::start_with(Options::default().set("skills.builds_max", "100000")).await?;
    let log = daemon.log();
    let warning = log
        .lines()
        .find(|line| line.contains("WARN") && line.contains(promised))
        .context("a warning")?;
    assert!(warning.contains("builds 100000 × 3.0 GiB"), "{warning}");
    daemon.stop().await
}

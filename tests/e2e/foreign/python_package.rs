//! The Python package: its tests, the examples of docs/python.md and that of README.md, with the built wheel alone.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use skilld_tests::{Daemon, SharedDaemon, binaries};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::foreign::recipes::{Place, blocks};
use crate::foreign::{note, output};

/// Version of pytest that runs the tests.
const PYTEST: &str = "pytest==9.2.0";

static WHEEL: OnceCell<PathBuf> = OnceCell::const_new();

/// Returns the path of the wheel, which is built with the debug profile: its crates are compiled already.
async fn wheel() -> Result<PathBuf> {
    let build = || async {
        let target = binaries::target_dir()?;
        let script = binaries::repository().join("client/python/wheel.sh");
        let mut command = Command::new(script);
        command.arg("dev").arg(target.join("test-wheels"));
        command.env("CARGO_TARGET_DIR", &target);
        let path = PathBuf::from(output(&mut command).await?.trim_end());
        ensure!(path.is_file(), "no wheel at {}", path.display());
        Ok(path)
    };
    WHEEL.get_or_try_init(build).await.cloned()
}

/// Returns a new virtual environment with the wheel and these packages, and nothing else.
async fn environment(packages: &[&str]) -> Result<TempDir> {
    let wheel = wheel().await?;
    let venv = tempfile::tempdir()?;
    output(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(venv.path()),
    )
    .await?;
    let pip = ["install", "--quiet", "--disable-pip-version-check"];
    let mut install = Command::new(venv.path().join("bin/pip"));
    output(install.args(pip).arg(wheel).args(packages))
        .await
        .context("pip cannot install the wheel; is a Python package index reachable?")?;
    Ok(venv)
}

/// Returns a reader's directory whose `python` has the wheel alone.
async fn place_with_wheel() -> Result<(Place, TempDir)> {
    let venv = environment(&[]).await?;
    let mut place = Place::new().await?;
    place.path = format!("{}:{}", venv.path().join("bin").display(), place.path);
    Ok((place, venv))
}

#[tokio::test]
async fn python_package_passes_its_tests_from_the_wheel() -> Result<()> {
    // Those of adapters need the frameworks.
    let adapters = tests().join("adapters");
    let more = [OsStr::new("--ignore"), adapters.as_os_str()];
    run_tests(&[PYTEST], tests(), &more).await
}

/// Returns the directory of the package's tests.
fn tests() -> PathBuf {
    binaries::repository().join("client/python/tests")
}

/// Runs tests of a directory in an environment with the wheel and these packages, against a daemon of their own.
pub(super) async fn run_tests(
    packages: &[&str],
    directory: PathBuf,
    arguments: &[&OsStr],
) -> Result<()> {
    let venv = environment(packages).await?;
    let daemon = Daemon::start().await?;
    let mut pytest = binaries::without_settings(venv.path().join("bin/python"));
    pytest
        .args(["-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"])
        // pytest keeps its temporary files, which end with the environment.
        .arg("--basetemp")
        .arg(venv.path().join("tmp"))
        .args(arguments)
        .arg(directory)
        .env("SKILLD_ENDPOINT", daemon.endpoint())
        .current_dir(venv.path());
    let said = output(&mut Command::from(pytest)).await?;
    note(said.lines().next_back().unwrap_or_default());
    daemon.stop().await
}

#[tokio::test]
async fn docs_python_typed_whole_does_what_it_shows() -> Result<()> {
    let (place, _venv) = place_with_wheel().await?;
    let test = "docs_python_typed_whole_does_what_it_shows";
    place.type_page("docs/python.md", test).await?;
    place.daemon.stop().await
}

#[tokio::test]
async fn workspace_token_is_enough_for_a_sandbox_in_python() -> Result<()> {
    let venv = environment(&[]).await?;
    let shared = SharedDaemon::start().await?;
    let token = shared.create_workspace_token("job-9").await?;
    let program = "import sys, skilld\n\
        options = dict(endpoint=sys.argv[1], ca_file=sys.argv[2], token=sys.argv[3])\n\
        box = skilld.Sandbox.connect('job-9', **options)\n\
        print(box.run('cat a', inputs={'a': b'by token'}).check().stdout)\n\
        try:\n    skilld.Sandbox.create(**options)\n\
        except skilld.SkilldError as error:\n    print(error.reason)\n";
    let mut python = binaries::without_settings(venv.path().join("bin/python"));
    python.args(["-c", program]);
    python.arg(format!("https://{}", shared.target));
    python.arg(shared.ca_file()).arg(token);
    let printed = output(&mut Command::from(python)).await?;
    assert_eq!(printed, "by token\nPERMISSION_DENIED\n");
    shared.daemon.stop().await
}

#[tokio::test]
async fn readme_example_in_python_prints_the_report() -> Result<()> {
    let (place, _venv) = place_with_wheel().await?;
    let printed = place.run_of("README.md", "From Python").await?;
    assert!(printed.contains("wrote report.md"), "{printed}");
    assert!(printed.contains("## Columns"), "{printed}");
    let shown = blocks("README.md", "From Python")?;
    let lines: Vec<usize> = shown.iter().map(|(_, code)| code.lines().count()).collect();
    assert_eq!(lines, [5]);
    place.daemon.stop().await
}

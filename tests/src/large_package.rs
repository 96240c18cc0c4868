//! Skills that need a package with one large file, and what this file takes when many workspaces read it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use skilld_proto::v1::StagedSkill;
use tempfile::TempDir;
use tokio::process::Command;

use crate::exec::{run, shell};
use crate::package_index::{MAKE_WHEELS, make_packages};
use crate::{Daemon, Options, usage, wait};

/// Time within which the daemon removes the container that built an environment.
const REMOVAL_MAX: Duration = Duration::from_secs(60);

/// Root of skills, and directory of wheels with the package that some of them need.
#[derive(Debug)]
pub struct LargePackage {
    dir: TempDir,
    mebibytes: u64,
}

/// Bytes of the host that an environment takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EnvironmentUsage {
    /// Growth of the daemon's state directory.
    pub disk_bytes: u64,
    /// Growth of the page cache that the kernel counts for the workspaces' containers.
    pub cache_bytes: u64,
}

impl LargePackage {
    /// Makes the package, with a file of this size, and a root without a skill.
    ///
    /// # Errors
    /// When python3 is missing or the disk is full.
    pub async fn new(mebibytes: u64) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("skp").tempdir()?;
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
        let package = Self { dir, mebibytes };
        fs::create_dir(package.skills())?;
        make_packages(MAKE_WHEELS, &package.wheels(), &[&mebibytes.to_string()]).await?;
        Ok(package)
    }

    /// Adds a skill with two small files. With `has_need` one of them names the package.
    ///
    /// # Errors
    /// When the disk is full.
    pub fn add_skill(&self, name: &str, has_need: bool) -> Result<()> {
        let folder = self.skills().join(name);
        fs::create_dir(&folder)?;
        let document = format!("---\nname: {name}\ndescription: d\n---\n");
        fs::write(folder.join("SKILL.md"), document)?;
        let file = match has_need {
            true => "requirements.txt",
            false => "notes.txt",
        };
        Ok(fs::write(folder.join(file), "skilld-compat-large==1.0\n")?)
    }

    /// Makes a daemon serve the skills, and build their environments from the wheels.
    #[must_use]
    pub fn serve(&self, options: Options) -> Options {
        let wheels = self.wheels();
        options
            .skills(&self.skills())
            .set("skills.wheelhouse", &wheels.to_string_lossy())
    }

    /// Returns the size of the large file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.mebibytes << 20
    }

    /// Stages a skill that needs the package in each workspace, and reads the large file there. Returns what that took
    /// in the first workspace, the build of the environment included, and in all of them. The pool must have no warm
    /// container, whose directory would be counted.
    ///
    /// # Errors
    /// When the environment is not built, or a command fails.
    pub async fn use_in_each(
        &self,
        daemon: &Daemon,
        workspaces: &[String],
        skill: &str,
    ) -> Result<[EnvironmentUsage; 2]> {
        let slots = daemon.state_dir().join("slots");
        let slots_before = fs::read_dir(&slots)?.count();
        let disk_before = disk_bytes(&daemon.state_dir()).await?;
        let (mut first, mut all) = (None, EnvironmentUsage::default());
        for workspace in workspaces {
            let staged = daemon.client.stage_skills(workspace, &[skill]).await?;
            let file = host_path(daemon, &staged)?;
            if first.is_none() {
                // The daemon has just written the file, so its pages are charged to no reader.
                drop_from_cache(&file).await?;
            }
            all.cache_bytes += read_in_workspace(daemon, workspace, skill).await?;
            if first.is_none() {
                wait::until("the build's container is gone", REMOVAL_MAX, async || {
                    let count = fs::read_dir(&slots)?.count();
                    Ok((count == slots_before).then_some(()))
                })
                .await?;
                all.disk_bytes = disk_bytes(&daemon.state_dir()).await? - disk_before;
                first = Some(all);
            }
        }
        all.disk_bytes = disk_bytes(&daemon.state_dir()).await? - disk_before;
        Ok([first.context("no workspace")?, all])
    }

    fn skills(&self) -> PathBuf {
        self.dir.path().join("skills")
    }

    fn wheels(&self) -> PathBuf {
        self.dir.path().join("wheels")
    }
}

/// Reads the large file in a workspace, and returns the growth of the container's page cache.
async fn read_in_workspace(daemon: &Daemon, workspace: &str, skill: &str) -> Result<u64> {
    let guest = usage::guest(daemon, workspace).await?;
    let mut before = 0;
    // The first command brings the programs of the image into memory, so that the second one reads only the file.
    for file in [
        "/dev/null",
        "\"$VIRTUAL_ENV\"/lib/python3*/site-packages/skilld_compat_large/data.bin",
    ] {
        before = usage::page_cache(guest)?;
        let mut spec = shell(&format!("cat {file} > /dev/null"));
        skill.clone_into(&mut spec.skill);
        let outcome = run(&daemon.client, workspace, spec).await?;
        ensure!(outcome.exit_code() == Some(0), "{outcome:?}");
    }
    Ok(usage::page_cache(guest)?.saturating_sub(before))
}

/// Returns the path of the large file on the host.
fn host_path(daemon: &Daemon, staged: &[StagedSkill]) -> Result<PathBuf> {
    let environment = staged
        .iter()
        .find_map(|skill| skill.environment.as_ref())
        .with_context(|| format!("no environment: {staged:?}"))?;
    let name = Path::new(&environment.path)
        .file_name()
        .context("a path without a name")?;
    let mounted = daemon.state_dir().join("environments/mounted");
    let mut library = fs::read_dir(mounted.join(name).join("venv/lib"))?;
    let python = library.next().context("no Python in the environment")??;
    let package = "site-packages/skilld_compat_large/data.bin";
    Ok(python.path().join(package))
}

/// Returns the bytes that the files beneath a directory take on its disk.
async fn disk_bytes(directory: &Path) -> Result<u64> {
    let mut command = Command::new("du");
    command.args(["--summarize", "--one-file-system", "--block-size=1"]);
    let printed = run_to_end(command.arg(directory)).await?;
    let bytes = printed.split_whitespace().next().unwrap_or_default();
    bytes.parse().context(printed)
}

/// Writes a file to its disk and makes the kernel forget its pages.
async fn drop_from_cache(file: &Path) -> Result<()> {
    run_to_end(Command::new("sync").arg(file)).await?;
    let mut command = Command::new("dd");
    command.args(["iflag=nocache", "count=0", "status=none"]);
    let mut input = std::ffi::OsString::from("if=");
    input.push(file);
    run_to_end(command.arg(input)).await.map(drop)
}

/// Runs a program of the host, which has to succeed, and returns what it printed.
async fn run_to_end(command: &mut Command) -> Result<String> {
    let output = command.output().await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {errors}");
    Ok(String::from_utf8(output.stdout)?)
}

//! A private daemon with its own state directory, socket, uids and containers. A test ends it with [`Daemon::stop`],
//! which proves that nothing is left; after a failed test `Drop` cleans up.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use skilld_client::Client;
use skilld_proto::v1::{DrainRequest, ServerInfo};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::disks::loop_devices;
use crate::exec::workspace;
use crate::{binaries, docker, wait};

/// Time within which a daemon has to serve, and has its warm containers: more than ten times what is usual on a busy
/// machine, and more than one container may take to boot.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Time within which a daemon has to end, more than ten times what is usual on a busy machine, and more than it waits
/// for calls and tasks.
const STOP_TIMEOUT: Duration = Duration::from_secs(300);
/// Number of uids of one daemon under test. A uid rests for ten minutes after its use, so more are needed than containers
/// run.
const UIDS: u32 = 256;

/// Number of the next daemon of this process, from which its range of uids follows.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Settings of a daemon under test that differ from the defaults.
#[derive(Debug, Clone)]
pub struct Options {
    /// Environment variables `SKILLD_SECTION__KEY` and their values.
    pub env: Vec<(String, String)>,
    /// Directories with skills.
    pub skill_roots: Vec<PathBuf>,
    /// Text of a configuration file, in which `{socket}` is the path of the socket that [`Daemon::client`] connects to.
    pub config: Option<String>,
    /// Fault point at which the daemon dies, in the syntax of `FAULT_POINT`. Only debug builds have fault points.
    pub fault: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            env: Vec::new(),
            skill_roots: vec![binaries::repository().join("skills")],
            config: None,
            fault: None,
        }
    }
}

impl Options {
    /// Sets one key, given as `section.key`.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        let name = format!("SKILLD_{}", key.replace('.', "__").to_uppercase());
        self.env.push((name, value.to_owned()));
        self
    }

    /// Makes the daemon die at a fault point, given as `NAME` or `NAME:TIMES`.
    #[must_use]
    pub fn dies_at(mut self, point: &str) -> Self {
        self.fault = Some(point.to_owned());
        self
    }

    /// Replaces the directories with skills by one.
    #[must_use]
    pub fn skills(mut self, root: &Path) -> Self {
        self.skill_roots = vec![root.to_owned()];
        self
    }
}

/// Returns the setting of the default pool's OCI runtime. `SKILLD_TEST_OCI_RUNTIME` names a runtime for a whole suite.
fn oci_runtime() -> Option<(String, String)> {
    let runtime = std::env::var_os("SKILLD_TEST_OCI_RUNTIME")?
        .into_string()
        .ok()?;
    Some(("SKILLD_POOLS__DEFAULT__OCI_RUNTIME".to_owned(), runtime))
}

/// Daemon under test, running or ended.
#[derive(Debug)]
pub struct Daemon {
    child: Option<Child>,
    dir: TempDir,
    options: Options,
    stopped: bool,
    /// Client that is connected to the daemon.
    pub client: Client,
    /// Answer of GetServerInfo.
    pub info: ServerInfo,
}

impl Daemon {
    /// Starts a daemon with the default settings and one warm container.
    ///
    /// # Errors
    /// When the daemon does not serve in time; its log is in the error.
    pub async fn start() -> Result<Self> {
        Self::start_with(Options::default()).await
    }

    /// Starts a daemon with the default settings and claims a workspace. Returns both, the workspace by its name.
    ///
    /// # Errors
    /// When the daemon does not serve in time; its log is in the error.
    pub async fn with_workspace() -> Result<(Self, String)> {
        let daemon = Self::start().await?;
        let workspace = workspace(&daemon.client).await?.name;
        Ok((daemon, workspace))
    }

    /// Starts a daemon.
    ///
    /// # Errors
    /// When the daemon does not serve in time; its log is in the error.
    pub async fn start_with(options: Options) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("skd").tempdir()?;
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
        let process = std::process::id() % 4_000;
        let number = process * 1000 + NEXT.fetch_add(1, Ordering::Relaxed) % 1000;
        let mut options = options;
        // The base comes first, so that a test's own settings win.
        let roots: Vec<String> = options
            .skill_roots
            .iter()
            .map(|root| format!("{root:?}"))
            .collect();
        let base = [
            (
                "SKILLD_ENGINE__UID_BASE",
                (1_000_000 + number * UIDS).to_string(),
            ),
            ("SKILLD_ENGINE__UID_COUNT", UIDS.to_string()),
            (
                "SKILLD_ENGINE__GUEST_PATH",
                binaries::guest()?.display().to_string(),
            ),
            ("SKILLD_SKILLS__ROOTS", format!("[{}]", roots.join(","))),
            ("SKILLD_POOLS__DEFAULT__WARM", "1".to_owned()),
            ("SKILLD_POOLS__DEFAULT__MAX", "16".to_owned()),
            // A machine may stand still for seconds, which must not fail a test that is about something else. A claim
            // and a removal have less time than their call.
            ("SKILLD_SERVER__UNARY_TIMEOUT", "10m".to_owned()),
            ("SKILLD_POOLS__DEFAULT__CLAIM_TIMEOUT", "4m".to_owned()),
            ("SKILLD_ENGINE__BOOT_TIMEOUT", "120s".to_owned()),
            ("SKILLD_ENGINE__TIMEOUT", "120s".to_owned()),
            ("SKILLD_ENGINE__REMOVE_TIMEOUT", "120s".to_owned()),
            ("SKILLD_SERVER__KEEPALIVE_TIMEOUT", "10m".to_owned()),
            ("SKILLD_SERVER__UPLOAD_TIMEOUT", "5m".to_owned()),
            ("SKILLD_SERVER__STOP_TIMEOUT", "60s".to_owned()),
            ("SKILLD_EXECS__TIMEOUT_DEFAULT", "1h".to_owned()),
            ("SKILLD_ARTIFACTS__TIMEOUT", "2m".to_owned()),
            // Whether a host has the image of this pool must not change what a test sees.
            ("SKILLD_POOLS__OFFICE__WARM", "0".to_owned()),
            ("SKILLD_POOLS__OFFICE__MAX", "0".to_owned()),
            (
                "SKILLD_LOG",
                "debug,h2=info,hyper=info,tonic=info,tower=info,bollard=info".to_owned(),
            ),
        ];
        let settings = base
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .chain(oci_runtime());
        options.env.splice(0..0, settings);
        let launched = launch(dir.path(), &options).await;
        if launched.is_err() {
            // The daemon may have made a container before it ended.
            let clean = binaries::repository().join("tests/clean.sh");
            let state = dir.path().join("s");
            std::process::Command::new(clean).arg(state).output()?;
        }
        let (child, client, info) = launched?;
        Ok(Self {
            child: Some(child),
            dir,
            options,
            stopped: false,
            client,
            info,
        })
    }

    /// Returns the ids of the daemon's containers, found by their label.
    ///
    /// # Errors
    /// When Docker does not answer.
    pub async fn containers(&self) -> Result<Vec<String>> {
        docker::containers(&self.info.instance).await
    }

    /// Returns the endpoint of the daemon's socket, for a client.
    #[must_use]
    pub fn endpoint(&self) -> String {
        endpoint(self.dir.path())
    }

    /// Returns the daemon's state directory.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// Returns the `record.json` of every slot, in no order.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn records(&self) -> Result<Vec<Value>> {
        let mut records = Vec::new();
        for slot in std::fs::read_dir(self.state_dir().join("slots"))? {
            // A slot that is being made or removed has no record.
            let Ok(text) = std::fs::read(slot?.path().join("record.json")) else {
                continue;
            };
            records.push(serde_json::from_slice(&text)?);
        }
        Ok(records)
    }

    /// Returns the `record.json` of a workspace's slot.
    ///
    /// # Errors
    /// When no slot is claimed for the workspace.
    pub fn record(&self, workspace: &str) -> Result<Value> {
        let id = workspace.trim_start_matches("workspaces/");
        let is_its = |record: &Value| record.pointer("/claim/workspace") == Some(&Value::from(id));
        let found = self.records()?.into_iter().find(is_its);
        found.with_context(|| format!("no record of {workspace}"))
    }

    /// Returns the id of a workspace's container.
    ///
    /// # Errors
    /// When the slot has no container.
    pub fn container(&self, workspace: &str) -> Result<String> {
        let record = self.record(workspace)?;
        let id = record.get("container_id").and_then(Value::as_str);
        Ok(id.context("no container")?.to_owned())
    }

    /// Waits until the default pool has this many warm containers, and returns the elapsed time.
    ///
    /// # Errors
    /// When it takes more than five minutes.
    pub async fn warm(&self, count: i32) -> Result<Duration> {
        let started = Instant::now();
        wait::until("the pool is warm", START_TIMEOUT, async || {
            let pool = self.client.get_pool("default").await?;
            Ok((pool.warm == count).then_some(()))
        })
        .await?;
        Ok(started.elapsed())
    }

    /// Returns the process id, unless the daemon has ended.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Returns the log so far.
    #[must_use]
    pub fn log(&self) -> String {
        read_log(self.dir.path())
    }

    /// Returns the addresses of the listeners of metrics, which the daemon logs.
    #[must_use]
    pub fn metrics_addresses(&self) -> Vec<String> {
        let log = self.log();
        let lines = log.lines().filter(|line| line.contains("serving metrics"));
        lines
            .flat_map(str::split_whitespace)
            .filter_map(|word| word.strip_prefix("address="))
            .map(str::to_owned)
            .collect()
    }

    /// Sends a signal to the daemon.
    ///
    /// # Errors
    /// When the daemon does not run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().context("the daemon has ended")?;
        Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
    }

    /// Kills the daemon with SIGKILL, as a crash would. Its containers stay.
    ///
    /// # Errors
    /// When the daemon does not run.
    pub async fn crash(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.wait().await?;
        Ok(())
    }

    /// Waits until the daemon has ended, and returns its exit code, or `None` if a signal ended it.
    ///
    /// # Errors
    /// When the daemon does not end in time.
    pub async fn wait(&mut self) -> Result<Option<i32>> {
        let mut child = self.child.take().context("the daemon has ended")?;
        let status = tokio::time::timeout(STOP_TIMEOUT, child.wait()).await;
        match status {
            Ok(status) => Ok(status?.code()),
            Err(_) => {
                self.child = Some(child);
                bail!(
                    "the daemon did not end within {STOP_TIMEOUT:?}; its log:\n{}",
                    self.log()
                )
            }
        }
    }

    /// Returns the environment variables of the daemon, for another daemon on the same state.
    #[must_use]
    pub fn settings(&self) -> Vec<(&str, &str)> {
        let pairs = self.options.env.iter();
        pairs
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect()
    }

    /// Sets the fault point of the next start, given as `NAME` or `NAME:TIMES`.
    pub fn dies_at(&mut self, point: &str) {
        self.options.fault = Some(point.to_owned());
    }

    /// Removes the fault point for the next start, and adds a setting.
    pub fn heal(&mut self, key: &str, value: &str) {
        let options = std::mem::take(&mut self.options);
        self.options = options.set(key, value);
        self.options.fault = None;
    }

    /// Starts the daemon again on the same state, and returns the time until it served.
    ///
    /// # Errors
    /// When the daemon has not ended, or does not serve in time.
    pub async fn restart(&mut self) -> Result<Duration> {
        ensure!(self.child.is_none(), "the daemon runs");
        let started = Instant::now();
        let (child, client, info) = launch(self.dir.path(), &self.options).await?;
        (self.child, self.client, self.info) = (Some(child), client, info);
        Ok(started.elapsed())
    }

    /// Deletes every workspace and warm container, ends the daemon, and proves that nothing is left.
    ///
    /// # Errors
    /// When something is left, or the daemon did not end well.
    pub async fn stop(mut self) -> Result<()> {
        if self.child.is_none() {
            self.restart().await?;
        }
        self.client
            .drain(DrainRequest {
                remove_workspaces: true,
                refuse_execs: true,
            })
            .await
            .context("drain")?;
        self.signal(Signal::SIGTERM)?;
        let code = self.wait().await?;
        ensure!(
            code == Some(0),
            "the daemon ended with {code:?}; its log:\n{}",
            self.log()
        );
        let left = docker::containers(&self.info.instance).await?;
        ensure!(
            left.is_empty(),
            "containers are left: {left:?}; the log:\n{}",
            self.log()
        );
        let volumes = docker::volumes(&self.info.instance).await?;
        ensure!(
            volumes.is_empty(),
            "volumes are left: {volumes:?}; the log:\n{}",
            self.log()
        );
        // The kernel ends the mount of a removed container by itself.
        wait::until("no loop device is left", STOP_TIMEOUT, async || {
            let devices = loop_devices(&self.state_dir())?;
            Ok(devices.is_empty().then_some(()))
        })
        .await?;
        let slots = std::fs::read_dir(self.state_dir().join("slots"))?.count();
        ensure!(slots == 0, "{slots} slot directories are left");
        ensure!(!socket(self.dir.path()).exists(), "the socket is left");
        self.stopped = true;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.stopped {
            return;
        }
        // The test failed. Its containers are removed, so that the next test meets a clean host; the daemon is killed
        // first, so that it makes no more of them.
        let pid = self.pid().and_then(|pid| i32::try_from(pid).ok());
        let killed = pid.map(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL));
        let filter = format!("label={}={}", docker::LABEL_INSTANCE, self.info.instance);
        let script = r#"docker ps -aq --filter "$1" | xargs -r docker rm -fv"#;
        let removed = std::process::Command::new("bash")
            .args(["-c", script, "-", &filter])
            .output();
        let log = read_log(self.dir.path());
        let mut tail: Vec<&str> = log.lines().rev().take(80).collect();
        tail.reverse();
        #[expect(
            clippy::print_stderr,
            reason = "the test harness captures it, and shows it for failed tests only"
        )]
        {
            eprintln!("killed: {killed:?}; removed: {removed:?}");
            eprintln!("the daemon's log, last lines:\n{}", tail.join("\n"));
        }
    }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("s/skilld.sock")
}

fn endpoint(dir: &Path) -> String {
    format!("unix:{}", socket(dir).display())
}

/// Returns the whole lines of the log. The daemon may be writing another one.
fn read_log(dir: &Path) -> String {
    let bytes = std::fs::read(dir.join("log")).unwrap_or_default();
    let end = bytes.iter().rposition(|byte| *byte == b'\n');
    let whole = bytes.get(..end.map_or(0, |end| end + 1));
    String::from_utf8_lossy(whole.unwrap_or_default()).into_owned()
}

async fn launch(dir: &Path, options: &Options) -> Result<(Child, Client, ServerInfo)> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("log"))?;
    let mut command = Command::from(binaries::skilld()?);
    if let Some(point) = &options.fault {
        command.env("FAULT_POINT", point);
    }
    if let Some(template) = &options.config {
        let file = dir.join("skilld.toml");
        let text = template.replace("{socket}", &socket(dir).display().to_string());
        std::fs::write(&file, text)?;
        command.arg("--config").arg(file);
    }
    command
        .arg("--state-dir")
        .arg(dir.join("s"))
        .envs(options.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    let mut child = command.spawn().context("start skilld")?;
    let failure = match tokio::time::timeout(START_TIMEOUT, serving(dir, &mut child)).await {
        Ok(Ok((client, info))) => return Ok((child, client, info)),
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => format!("skilld did not serve within {START_TIMEOUT:?}"),
    };
    // A process that is ending holds the lock of its state directory, which the next one needs.
    drop(child.kill().await);
    bail!("{failure}; its log:\n{}", read_log(dir))
}

/// Polls until the daemon serves: no event across processes tells that a socket has appeared.
async fn serving(dir: &Path, child: &mut Child) -> Result<(Client, ServerInfo)> {
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    loop {
        tick.tick().await;
        if let Some(status) = child.try_wait()? {
            bail!("skilld ended with {status}");
        }
        let Ok(client) = Client::connect(&endpoint(dir)).await else {
            continue;
        };
        if client.is_serving("").await.unwrap_or(false) {
            let info = client.server_info().await?;
            return Ok((client, info));
        }
    }
}

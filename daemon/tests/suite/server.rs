//! Harness for tests of the whole daemon: a server in this process with the fake engine, the real guest, and a client
//! connected to its socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use skilld::config::Config;
use skilld::engine::fake::FakeEngine;
use skilld::server::Server;
use skilld::shutdown::Tasks;
use skilld_client::{Client, ConnectOptions};
use skilld_proto::v1::{CreateWorkspaceRequest, Workspace};
use skilld_tests::task_dir::TaskDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::workspace_mount::{hide_workspaces, write_mounting_guest};

/// Maximum time that a test waits for one event or condition. Only a failing test waits so long, so that a pause of the
/// machine fails none.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(120);

/// Configuration keys of timeouts that a pause of the machine must not reach, and their values in tests.
const SERVER_TIMEOUTS: [(&str, &str); 2] = [
    ("server.keepalive_timeout", "10m"),
    ("server.stop_timeout", "1m"),
];

/// Calls `look` until it returns a value. For conditions that no event reports.
pub(crate) async fn wait_until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    loop {
        tick.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(started.elapsed() < WAIT_MAX, "timed out: {what}");
    }
}

/// Awaits a future for at most [`WAIT_MAX`].
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(WAIT_MAX, future)
        .await
        .expect("takes too long")
}

/// Connects, which must succeed. A handshake that timed out, because the machine paused, is repeated.
pub(crate) async fn connect(options: &ConnectOptions) -> Client {
    wait_until("the client is connected", async || {
        let error = match Client::connect_with(options).await {
            Ok(client) => return Some(client),
            Err(error) => error.to_string(),
        };
        assert!(is_timeout(&error), "{error}");
        None
    })
    .await
}

/// Returns `true` for the text of an error by which a client gives up a server that does not answer in time.
pub(crate) fn is_timeout(error: &str) -> bool {
    let words = ["timeout", "timed out", "deadline"];
    words.iter().any(|word| error.contains(word))
}

/// Parses a configuration, with timeouts that a pause of the machine does not reach, unless `toml` sets them.
pub(crate) fn parse_config(toml: &str) -> Config {
    let text = lines_unless_set(&SERVER_TIMEOUTS, toml) + toml;
    let mut config = Config::from_toml(&text).expect("configuration").config;
    config.server.handshake_timeout = Duration::from_secs(600);
    config.traces.timeout = Duration::from_secs(600);
    config
}

/// Returns the lines of `keys`, without those that `toml` sets itself.
fn lines_unless_set(keys: &[(&str, &str)], toml: &str) -> String {
    let absent = keys.iter().filter(|(key, _)| !toml.contains(key));
    absent
        .map(|(key, value)| format!("{key} = {value:?}\n"))
        .collect()
}

/// Running server of one test, in a temporary directory.
pub(crate) struct TestServer {
    /// Client that is connected to the server.
    pub(crate) client: Client,
    stop: mpsc::Sender<()>,
    run: JoinHandle<bool>,
    /// Engine of the server. Dropping it after the server kills the containers.
    pub(crate) engine: Arc<FakeEngine>,
    config: Config,
    tasks: Tasks,
    dir: TaskDir,
}

/// State directory and engine of a stopped server.
pub(crate) struct StoppedServer {
    /// Configuration of the next start.
    pub(crate) config: Config,
    engine: Arc<FakeEngine>,
    tasks: Tasks,
    dir: TaskDir,
}

impl StoppedServer {
    /// Starts a server on the same state and engine.
    pub(crate) async fn start(self) -> TestServer {
        let Self {
            config,
            engine,
            tasks,
            dir,
        } = self;
        let endpoint = format!("unix:{}", config.socket.display());
        let server = Server::start(config.clone(), Arc::clone(&engine) as _)
            .await
            .expect("started");
        let (stop, signals) = mpsc::channel(2);
        let run = tasks.spawn(server.run(signals));
        let client = connect(&ConnectOptions::new(endpoint)).await;
        TestServer {
            client,
            stop,
            run,
            engine,
            config,
            tasks,
            dir,
        }
    }
}

impl TestServer {
    /// Starts a server with the default configuration, one warm container and the settings in `toml`. `skills` are
    /// pairs of a folder's name and the front matter of its SKILL.md; no skill is found if `toml` sets `skills.roots`.
    pub(crate) async fn start(toml: &str, skills: &[(&str, &str)]) -> Self {
        Self::start_after(toml, skills, |_| {}).await
    }

    /// Starts a server like [`Self::start`], whose workspaces are at `/workspace` for the commands that run in them.
    /// Without that, no command of a client starts.
    pub(crate) async fn start_with_commands(toml: &str, skills: &[(&str, &str)]) -> Self {
        let guest = |dir: &Path| write_mounting_guest(dir, &guest_path());
        Self::start_with_guest(guest, toml, skills, |_| {}).await
    }

    /// Starts a server like [`Self::start`], after `prepare` was called with its configuration.
    pub(crate) async fn start_after(
        toml: &str,
        skills: &[(&str, &str)],
        prepare: impl FnOnce(&mut Config),
    ) -> Self {
        Self::start_with_guest(|_| guest_path(), toml, skills, prepare).await
    }

    /// Starts a server with the guest that `guest` returns for the test's directory.
    async fn start_with_guest(
        guest: impl FnOnce(&Path) -> PathBuf,
        toml: &str,
        skills: &[(&str, &str)],
        prepare: impl FnOnce(&mut Config),
    ) -> Self {
        let tasks = Tasks::default();
        let dir = TaskDir::new(&tasks.for_skills().tracker);
        let root = dir.path().join("skills");
        std::fs::create_dir(&root).expect("mkdir");
        for (name, front) in skills {
            let text = format!("---\n{front}\n---\n# Body\n");
            std::fs::create_dir(root.join(name)).expect("mkdir");
            std::fs::write(root.join(name).join("SKILL.md"), text).expect("write");
        }
        let base = format!(
            "state_dir = {:?}\nengine.guest_path = {:?}\npools.default.warm = 1\npools.default.warm_up = []\n\
             pools.office.warm = 0\npools.office.max = 0\n",
            dir.path().join("state"),
            guest(dir.path()),
        );
        let roots = match toml.contains("skills.roots") {
            true => String::new(),
            false => format!("skills.roots = [{root:?}]\n"),
        };
        let claims = lines_unless_set(&[("pools.default.claim_timeout", "1m")], toml);
        let mut config = parse_config(&(base + &roots + &claims + toml));
        prepare(&mut config);
        let engine = Arc::new(FakeEngine::new());
        let state = StoppedServer {
            config,
            engine,
            tasks,
            dir,
        };
        state.start().await
    }

    /// Stops the server and starts it again on the same state and engine. Calls `between` with the state directory
    /// while no server is running.
    pub(crate) async fn restart(self, between: impl FnOnce(&Path)) -> Self {
        let stopped = self.shut_down().await;
        between(&stopped.config.state_dir);
        stopped.start().await
    }

    /// Stops the server and starts it again, which must fail. Returns the error.
    pub(crate) async fn fail_to_restart(self) -> (skilld::error::Error, StoppedServer) {
        let stopped = self.shut_down().await;
        let engine = Arc::clone(&stopped.engine);
        let started = Server::start(stopped.config.clone(), engine as _).await;
        (started.expect_err("it must not start"), stopped)
    }

    /// Stops the server and keeps its state and engine.
    pub(crate) async fn shut_down(self) -> StoppedServer {
        for _ in 0..2 {
            // Without open calls the server stops at the first signal.
            let _ended = self.stop.send(()).await;
        }
        assert!(self.run.await.expect("no panic"), "stopped in time");
        StoppedServer {
            config: self.config,
            engine: self.engine,
            tasks: self.tasks,
            dir: self.dir,
        }
    }

    /// Returns the state directory.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.config.state_dir
    }

    /// Lets later containers of a server that [`Self::start_with_commands`] started have no `/workspace`.
    pub(crate) fn hide_workspaces(&self) {
        hide_workspaces(self.dir.path());
    }

    /// Claims a workspace and returns its name.
    pub(crate) async fn workspace(&self) -> String {
        let created = self
            .client
            .create_workspace(CreateWorkspaceRequest::default())
            .await;
        created.expect("claimed").name
    }

    /// Returns a workspace, which must exist.
    pub(crate) async fn get_workspace(&self, name: &str) -> Workspace {
        self.client.get_workspace(name).await.expect("exists")
    }

    /// Drains and stops the server. Returns `true` if all tasks ended in time.
    pub(crate) async fn stop(self) -> bool {
        stop(self.stop, self.run).await
    }
}

async fn stop(signals: mpsc::Sender<()>, run: JoinHandle<bool>) -> bool {
    signals.send(()).await.expect("running");
    // The server may have stopped before the second signal.
    signals.send(()).await.unwrap_or_default();
    run.await.expect("no panic")
}

/// Returns the fields of a refused request, with their descriptions.
#[track_caller]
pub(crate) fn violations(status: &Status) -> Vec<(String, String)> {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let details = status.get_error_details();
    let refused = details.bad_request().expect("BadRequest");
    let all = refused.field_violations.iter();
    all.map(|one| (one.field.clone(), one.description.clone()))
        .collect()
}

/// Returns the fields of a refused request.
#[track_caller]
pub(crate) fn violated_fields(status: &Status) -> Vec<String> {
    let all = violations(status).into_iter();
    all.map(|(field, _)| field).collect()
}

/// Returns the sorted names of what a directory holds.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("read dir");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("entry").file_name();
    let mut names: Vec<String> = entries
        .map(|entry| name(entry).into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

/// Returns what was read; `None` if it does not exist. Any other error fails the test.
#[track_caller]
pub(crate) fn ignore_absent<T>(read: std::io::Result<T>) -> Option<T> {
    match read {
        Ok(found) => Some(found),
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
            None
        }
    }
}

/// Asserts that a directory holds nothing.
#[track_caller]
pub(crate) fn assert_empty(dir: &Path) {
    assert_eq!(names(dir), Vec::<String>::new(), "{}", dir.display());
}

/// Returns the path of the guest binary: from SKILLD_GUEST, else from this build, else from `make guest`.
pub(crate) fn guest_path() -> PathBuf {
    #[expect(
        clippy::disallowed_methods,
        reason = "the Makefile names the guest this way"
    )]
    if let Ok(path) = std::env::var("SKILLD_GUEST") {
        return path.into();
    }
    let own = std::env::current_exe().expect("own path");
    let target = own
        .parent()
        .and_then(Path::parent)
        .expect("target directory");
    let beside = target.join("skilld-guest");
    if beside.is_file() {
        return beside;
    }
    let config = Config::from_toml("").expect("defaults").config;
    assert!(
        config.engine.guest_path.is_file(),
        "no guest binary: run `make guest`"
    );
    config.engine.guest_path
}

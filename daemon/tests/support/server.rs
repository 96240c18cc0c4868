//! A whole server in this process, over the fake engine and the real guest, with a client on its socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use skilld::config::Config;
use skilld::engine::fake::FakeEngine;
use skilld::server::Server;
use skilld::shutdown::Tasks;
use skilld_client::Client;
use skilld_proto::v1::CreateWorkspaceRequest;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// A server of its own for one test, in a temporary directory.
pub(crate) struct TestServer {
    /// Connected.
    pub(crate) client: Client,
    stop: mpsc::Sender<()>,
    run: JoinHandle<bool>,
    /// Its containers end with it, after the server.
    pub(crate) engine: Arc<FakeEngine>,
    config: Config,
    dir: tempfile::TempDir,
}

/// A server that was stopped, with all that it left.
pub(crate) struct Stopped {
    config: Config,
    engine: Arc<FakeEngine>,
    dir: tempfile::TempDir,
}

impl Stopped {
    /// Starts it again.
    pub(crate) async fn start_again(self) -> TestServer {
        TestServer::serve(self.config, self.engine, self.dir).await
    }
}

impl TestServer {
    /// Starts with the default configuration, one warm container and `toml` over that. `skills` are folders with
    /// the front matter of their SKILL.md.
    pub(crate) async fn start(toml: &str, skills: &[(&str, &str)]) -> Self {
        Self::start_prepared(toml, skills, |_| {}).await
    }

    /// The same; `prepare` gets the path of the state directory before it is made.
    pub(crate) async fn start_prepared(
        toml: &str,
        skills: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("skilld-")
            .tempdir()
            .expect("temp dir");
        let root = dir.path().join("skills");
        std::fs::create_dir(&root).expect("mkdir");
        for (name, front) in skills {
            let text = format!("---\n{front}\n---\n# Body\n");
            std::fs::create_dir(root.join(name)).expect("mkdir");
            std::fs::write(root.join(name).join("SKILL.md"), text).expect("write");
        }
        let base = format!(
            "state_dir = {:?}\nengine.guest_path = {:?}\nskills.roots = [{root:?}]\npools.default.warm = 1\n\
             pools.default.warm_up = []\n",
            dir.path().join("state"),
            guest_path(),
        );
        let config = Config::from_toml(&(base + toml))
            .expect("configuration")
            .config;
        prepare(&config.state_dir);
        Self::serve(config, Arc::new(FakeEngine::new()), dir).await
    }

    async fn serve(config: Config, engine: Arc<FakeEngine>, dir: tempfile::TempDir) -> Self {
        let endpoint = format!("unix:{}", config.socket.display());
        let server = Server::start(config.clone(), Arc::clone(&engine) as _)
            .await
            .expect("started");
        let (stop, signals) = mpsc::channel(2);
        let run = Tasks::default().spawn(server.run(signals));
        let client = Client::connect(&endpoint).await.expect("connected");
        Self {
            client,
            stop,
            run,
            engine,
            config,
            dir,
        }
    }

    /// Stops and starts again on the same state and the same engine; `between` sees the state directory.
    pub(crate) async fn restart(self, between: impl FnOnce(&Path)) -> Self {
        let stopped = self.stopped().await;
        between(&stopped.config.state_dir);
        stopped.start_again().await
    }

    /// Stops, and starts again although that must fail.
    pub(crate) async fn restart_in_vain(self) -> (skilld::error::Error, Stopped) {
        let stopped = self.stopped().await;
        let engine = Arc::clone(&stopped.engine);
        let started = Server::start(stopped.config.clone(), engine as _).await;
        (started.expect_err("it must not start"), stopped)
    }

    /// Stops, and keeps what it leaves.
    pub(crate) async fn stopped(self) -> Stopped {
        for _ in 0..2 {
            // It stops at the first when nothing is open.
            let _ended = self.stop.send(()).await;
        }
        assert!(self.run.await.expect("no panic"), "stopped in time");
        Stopped {
            config: self.config,
            engine: self.engine,
            dir: self.dir,
        }
    }

    /// Where it keeps what it has.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.config.state_dir
    }

    /// Claims a workspace and returns its name.
    pub(crate) async fn workspace(&self) -> String {
        let created = self
            .client
            .create_workspace(CreateWorkspaceRequest::default())
            .await;
        created.expect("claimed").name
    }

    /// Asks the server to drain and then at once to stop; `true` if everything ended in time.
    pub(crate) async fn stop(self) -> bool {
        stop(self.stop, self.run).await
    }
}

async fn stop(signals: mpsc::Sender<()>, run: JoinHandle<bool>) -> bool {
    signals.send(()).await.expect("running");
    // The second one comes too late when there is nothing to wait for.
    signals.send(()).await.unwrap_or_default();
    run.await.expect("no panic")
}

/// The guest: as the Makefile says, or beside this test's own build, or where `make guest` puts it.
fn guest_path() -> PathBuf {
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
        "no guest to test with; run `make guest`"
    );
    config.engine.guest_path
}

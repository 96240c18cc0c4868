//! The front door: listener, limits, health, reflection, and the order of start and stop.
//!
//! ```text
//! start   state directory and its lock → engine → listener → skills → pools, adopting what is left → serve
//!
//! signal  → drain: health NOT_SERVING, new work is refused, open calls go on
//! no open call that cannot be resumed, or drain_timeout, or a second signal
//!         → stop: open streams end with UNAVAILABLE, the socket closes, tasks return
//! all tasks returned, or stop_timeout → exit; 1 if something had to be abandoned
//! ```
//!
//! Workspaces, containers and running execs stay: stopping is how a daemon is upgraded. The listener comes before the
//! pools, so that a start which fails leaves no container; who connects meanwhile waits. A signal ends a start as well.

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic_health::server::HealthReporter;

use crate::config::{Config, ServerConfig};
use crate::engine::Engine;
use crate::engine::docker::DockerEngine;
use crate::error::{Error, Result};
use crate::rpc::publish;
use crate::shutdown::Tasks;
use crate::telemetry;

mod authority;
mod body;
mod call;
pub mod cli;
mod connection;
mod connections;
mod health;
mod instance;
mod listener;
mod methods;
mod request;
mod services;

use call::CallLayer;
pub use call::OpenCalls;
use health::Health;
use instance::Instance;
use listener::Listener;
use methods::Methods;

/// A message of the largest usual size comes in one frame; HTTP/2's default would cut it into 16.
const FRAME_BYTES_MAX: u32 = (256 << 10) + 1024;
/// HTTP/2 windows for what clients send. A Unix socket has no latency to hide: a stream's window covers what is
/// under way while a chunk is written, the connection's is the most memory that a client can take.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Streams that a client opened and reset at once, before it is cut off (CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 20;
/// Streams that a client made us reset, before it is cut off (CVE-2025-8671). tonic's default is no limit.
const LOCAL_RESETS_MAX: usize = 1024;
/// Wishes to end that are remembered: one drains, one stops.
const SIGNALS_MAX: usize = 2;

/// A server that listens and serves. Tests start many side by side.
#[derive(Debug)]
pub struct Server {
    config: Arc<Config>,
    tasks: Tasks,
    open: OpenCalls,
    /// Ends connections whose clients do not.
    cut: CancellationToken,
    serving: JoinHandle<Result<()>>,
    /// Dropped last: the next daemon may start on the state directory once this one is gone.
    _instance: Instance,
}

/// What a start came to.
#[derive(Debug)]
enum Started {
    Serving(Server),
    /// It was told to end before it served.
    Interrupted {
        clean: bool,
    },
}

/// What serves, without what it stands on.
#[derive(Debug)]
struct Door {
    open: OpenCalls,
    cut: CancellationToken,
    serving: JoinHandle<Result<()>>,
}

/// Runs the daemon in this process until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start; the message says what to do.
pub fn main(config: Config) -> Result<ExitCode> {
    let line_limit = telemetry::init(&config)?;
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Io {
            operation: "start the runtime".into(),
            source,
        })?;
    let stop_timeout = config.server.stop_timeout;
    let clean = runtime.block_on(async {
        Tasks::default().spawn(line_limit.clone().report_for_ever());
        let mut signals = signals()?;
        let engine = tokio::select! {
            engine = DockerEngine::connect(&config.engine.docker_host, config.engine.timeout) => engine?,
            _ = signals.recv() => return Ok(true),
        };
        let started = Server::start_unless(config, Arc::new(engine), signals.recv()).await?;
        Ok::<_, Error>(match started {
            Started::Serving(server) => server.run(signals).await,
            Started::Interrupted { clean } => clean,
        })
    });
    // Blocking work that does not return is abandoned.
    runtime.shutdown_timeout(stop_timeout);
    line_limit.report();
    Ok(if clean? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Gives a copied state directory an id of its own and empties its slots; returns what was done, for people.
///
/// # Errors
/// When the directory cannot be used, or another daemon uses it.
pub fn adopt_copy(config: &Config) -> Result<String> {
    instance::adopt_copy(&config.state_dir)
}

// === impl Server ===

impl Server {
    /// Starts everything, in order. When this returns the socket accepts, and clients are served.
    ///
    /// # Errors
    /// The first step that failed. What was started before it is stopped.
    pub async fn start(config: Config, engine: Arc<dyn Engine>) -> Result<Self> {
        match Self::start_unless(config, engine, std::future::pending::<()>()).await? {
            Started::Serving(server) => Ok(server),
            Started::Interrupted { .. } => Err(Error::Draining),
        }
    }

    /// The same, unless `interrupt` comes first: then what was started is stopped.
    async fn start_unless(
        config: Config,
        engine: Arc<dyn Engine>,
        interrupt: impl Future,
    ) -> Result<Started> {
        let config = Arc::new(config);
        let tasks = Tasks::default();
        let state_dir = config.state_dir.clone();
        let instance = tasks.blocking(move || Instance::take(&state_dir)).await?;
        let started = tokio::select! {
            started = Self::start_with(&config, engine, &tasks, instance.id()) => Some(started),
            _ = interrupt => None,
        };
        if let Some(Ok(door)) = started {
            return Ok(Started::Serving(Self {
                config,
                tasks,
                open: door.open,
                cut: door.cut,
                serving: door.serving,
                _instance: instance,
            }));
        }
        tasks.drain.cancel();
        tasks.stop.cancel();
        let ended = tokio::time::timeout(config.server.stop_timeout, tasks.finished()).await;
        let clean = ended.is_ok();
        // Only now may another daemon have the state directory.
        drop(instance);
        match started {
            Some(Err(error)) => Err(error),
            _ => {
                tracing::info!(clean, "ended while starting");
                Ok(Started::Interrupted { clean })
            }
        }
    }

    async fn start_with(
        config: &Arc<Config>,
        engine: Arc<dyn Engine>,
        tasks: &Tasks,
        id: &str,
    ) -> Result<Door> {
        crate::fetch::install_crypto_provider();
        let info = engine.describe().await?;
        telemetry::announce(config, id, &info);
        let listener = Listener::bind(&config.socket, config.server.socket_mode)?;
        let services = services::boot(config, Arc::clone(&engine), info, tasks, id).await?;
        let (available, is_available) = watch::channel(true);
        let (methods, reporter) = (Arc::new(Methods::new()), HealthReporter::new());
        let health = Health {
            reporter: reporter.clone(),
            methods: Arc::clone(&methods),
            engine,
            pools: services.registry.healthy(),
            skills: services.skills.readable(),
            available,
            artifacts: services.artifacts.clone(),
            tasks: tasks.clone(),
        };
        let services = Arc::new(services);
        tasks.spawn(publish::sweep(Arc::clone(&services)));
        let routes = services::routes(services, is_available, reporter)?;

        let (open, cut) = (OpenCalls::default(), CancellationToken::new());
        let calls = CallLayer::new(
            methods,
            open.clone(),
            config.server.unary_timeout,
            tasks.stop.clone(),
        );
        tasks.spawn(health.run());
        let incoming = listener.connections(&config.server, cut.clone());
        let stop = tasks.stop.clone().cancelled_owned();
        let served = limits(&config.server).layer(calls).add_routes(routes);
        let serving = tasks.spawn(async move {
            served
                .serve_with_incoming_shutdown(incoming, stop)
                .await
                .map_err(|error| Error::Internal(format!("serve: {error}")))
        });
        tracing::info!(socket = %config.socket.display(), "serving");
        Ok(Door { open, cut, serving })
    }

    /// Owner of all tasks of this server.
    #[must_use]
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Serves until the first message, drains, and stops. A second message cuts the drain short. True if everything
    /// ended in time.
    pub async fn run(mut self, mut signals: mpsc::Receiver<()>) -> bool {
        tokio::select! {
            _ = signals.recv() => {}
            _ = &mut self.serving => tracing::error!("serving ended by itself"),
        }
        let config = &self.config.server;
        tracing::info!(open_calls = self.open.count(), timeout = ?config.drain_timeout, "draining");
        self.tasks.drain.cancel();
        tokio::select! {
            () = self.open.none() => {}
            Some(()) = signals.recv() => tracing::info!("second signal"),
            () = tokio::time::sleep(config.drain_timeout) => {
                tracing::warn!(open_calls = self.open.count(), "drain timeout");
            }
        }
        tracing::info!(open_calls = self.open.count(), "stopping");
        self.tasks.stop.cancel();
        let clean = self.stopped(config.stop_timeout).await;
        tracing::info!(clean, "stopped");
        clean
    }

    /// Waits for all tasks. Clients that neither read nor go away are cut off half-way.
    async fn stopped(&self, timeout: Duration) -> bool {
        if tokio::time::timeout(timeout / 2, self.tasks.finished())
            .await
            .is_ok()
        {
            return true;
        }
        tracing::info!(
            open_calls = self.open.count(),
            "cutting connections that are left"
        );
        self.cut.cancel();
        let clean = tokio::time::timeout(timeout / 2, self.tasks.finished())
            .await
            .is_ok();
        if !clean {
            tracing::error!(
                tasks = self.tasks.running(),
                "abandoning tasks that did not return"
            );
        }
        clean
    }
}

/// What hardening asks of HTTP/2; tonic's defaults leave most of it unlimited.
fn limits(config: &ServerConfig) -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .max_concurrent_streams(config.streams_max)
        .http2_max_header_list_size(config.header_bytes_max)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS_MAX))
        .http2_max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES_MAX)
        .http2_adaptive_window(Some(false))
        .http2_keepalive_interval(Some(config.keepalive_interval))
        .http2_keepalive_timeout(Some(config.keepalive_timeout))
}

/// One message for each SIGTERM and SIGINT.
fn signals() -> Result<mpsc::Receiver<()>> {
    let failed = |source| Error::Io {
        operation: "listen for signals".into(),
        source,
    };
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let (sender, receiver) = mpsc::channel(SIGNALS_MAX);
    // Not among the tasks that an end waits for: it is there to cut that short.
    let forward = async move {
        loop {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
            if sender.send(()).await.is_err() {
                return;
            }
        }
    };
    Tasks::default().spawn(forward);
    Ok(receiver)
}

/// Every connection and every guest takes a descriptor; the usual soft limit of 1024 is for programs that use
/// select(2).
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

//! gRPC server: listener, limits, health, reflection, and the order of start and stop.
//!
//! ```text
//! start   state directory, lock → engine → preconditions → listener → skills → pools, adopting what is left → serve
//!
//! signal  → drain: health NOT_SERVING, new work is refused, open calls go on
//! all calls ended that clients can't resume, or drain_timeout, or a second signal
//!         → stop: open streams end with UNAVAILABLE, the socket closes, tasks return
//! all tasks returned, or stop_timeout → exit; code 1 if a task had to be abandoned
//! ```
//!
//! Workspaces, containers and running execs stay: an upgrade stops the old daemon and starts the new one. The listener
//! is bound before the pools start, so that a start which fails there leaves no container; clients that connect
//! meanwhile wait. A signal ends a start as well.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

use crate::access::AccessControl;
use crate::audit::AuditLog;
use crate::config::{Config, ServerConfig};
use crate::doctor;
use crate::engine::Engine;
use crate::engine::docker::connect_engine;
use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::rpc::skill_publish;
use crate::shutdown::Tasks;
use crate::telemetry;
use crate::usage::UsageLedger;
use crate::workspace::registry::WorkspaceRegistry;

mod audited_body;
mod authority_rewriter;
mod bound_listeners;
mod call_audit;
mod call_gate;
mod call_layer;
mod call_metrics;
mod call_trace;
pub mod cli;
mod connection;
mod connection_stream;
mod connections;
mod file_watch;
mod health;
mod http2_settings;
mod instance;
mod listener;
mod methods;
mod metrics_listener;
mod metrics_sources;
mod open_calls;
mod preconditions;
mod reflection;
mod refusal_table;
mod request_body;
mod response_body;
mod response_budget;
mod response_status;
mod service_manager;
mod services;
mod trace_export;
mod unix_socket;

use bound_listeners::{BoundAddresses, BoundListeners};
use call_gate::CallGate;
use call_layer::CallLayer;
use call_metrics::CallMetricsLayer;
use connection::Connection;
use connections::ConnectionTable;
use file_watch::FileWatch;
use health::HealthMonitor;
use http2_settings::http2_builder;
use instance::InstanceLock;
use methods::MethodTable;
use metrics_sources::MetricsSources;
pub use open_calls::OpenCalls;
use refusal_table::RefusalTable;
use service_manager::{ServiceState, report_state};
use trace_export::TraceExport;

/// Number of signals to queue: the first one drains, the second one stops.
const SIGNALS_MAX: usize = 2;

/// Server that listens and serves. Tests start several in one process.
#[derive(Debug)]
pub struct Server {
    config: Arc<Config>,
    tasks: Tasks,
    audit: Option<AuditLog>,
    traces: Option<TraceExport>,
    open: OpenCalls,
    /// Ends connections that are still open when tasks should have returned.
    cut: CancellationToken,
    serving: JoinHandle<Result<()>>,
    addresses: BoundAddresses,
    /// Lock on the state directory, dropped last: then another daemon may start on it.
    _instance: InstanceLock,
}

/// Outcome of a start.
#[derive(Debug)]
enum StartupOutcome {
    Serving(Server),
    /// Start that a signal ended. `clean` is `true` if all tasks returned in time.
    Interrupted {
        clean: bool,
    },
}

/// Parts of a server that serves, without the lock on its state directory.
#[derive(Debug)]
struct ServingParts {
    audit: Option<AuditLog>,
    traces: Option<TraceExport>,
    open: OpenCalls,
    cut: CancellationToken,
    serving: JoinHandle<Result<()>>,
    addresses: BoundAddresses,
}

/// Runs the daemon in this process until SIGTERM or SIGINT.
///
/// # Errors
/// The step of the start that failed; the message says what to do.
pub fn main(config: Config) -> Result<ExitCode> {
    let line_limit = telemetry::init_logging(&config)?;
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::io("start the runtime", source))?;
    let stop_timeout = config.server.stop_timeout;
    let clean = runtime.block_on(async {
        Tasks::default().spawn(line_limit.clone().report_periodically());
        let mut signals = listen_for_signals()?;
        let engine = &config.engine;
        let engine = tokio::select! {
            engine = connect_engine(&engine.docker_host, engine.timeout, engine.docker_config.clone()) => engine?,
            _ = signals.recv() => return Ok(true),
        };
        let started = Server::start_unless_interrupted(config, engine, signals.recv()).await?;
        Ok::<_, Error>(match started {
            StartupOutcome::Serving(server) => {
                report_state(ServiceState::Ready);
                server.run(signals).await
            }
            StartupOutcome::Interrupted { clean } => clean,
        })
    });
    // Blocking work that does not return in time is abandoned.
    runtime.shutdown_timeout(stop_timeout);
    line_limit.report();
    Ok(if clean? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Gives a copied state directory an id of its own and removes its slots. Returns a message that says what was done.
///
/// # Errors
/// [`Error`] if the directory cannot be used, or another daemon uses it.
pub fn adopt_copy(config: &Config) -> Result<String> {
    instance::adopt_copy(&config.state_dir)
}

// === impl Server ===

impl Server {
    /// Starts everything, in order. When this returns the socket accepts, and clients are served.
    ///
    /// # Errors
    /// The first step that failed; the steps before it are undone.
    pub async fn start(config: Config, engine: Arc<dyn Engine>) -> Result<Self> {
        match Self::start_unless_interrupted(config, engine, std::future::pending::<()>()).await? {
            StartupOutcome::Serving(server) => Ok(server),
            StartupOutcome::Interrupted { .. } => Err(Error::Draining),
        }
    }

    /// Starts everything, unless `interrupt` completes first: then the steps so far are undone.
    async fn start_unless_interrupted(
        config: Config,
        engine: Arc<dyn Engine>,
        interrupt: impl Future,
    ) -> Result<StartupOutcome> {
        let config = Arc::new(config);
        let tasks = Tasks::default();
        let state_dir = config.state_dir.clone();
        let instance = tasks
            .blocking(move || InstanceLock::acquire(&state_dir))
            .await?;
        let started = tokio::select! {
            started = Self::start_parts(&config, engine, &tasks, &instance.id) => Some(started),
            _ = interrupt => None,
        };
        if let Some(Ok(parts)) = started {
            return Ok(StartupOutcome::Serving(Self {
                config,
                tasks,
                audit: parts.audit,
                traces: parts.traces,
                open: parts.open,
                cut: parts.cut,
                serving: parts.serving,
                addresses: parts.addresses,
                _instance: instance,
            }));
        }
        tasks.drain.cancel();
        tasks.stop.cancel();
        let ended = tokio::time::timeout(config.server.stop_timeout, tasks.finished()).await;
        let clean = ended.is_ok();
        // All tasks have ended, so another daemon may use the state directory now.
        drop(instance);
        match started {
            Some(Err(error)) => Err(error),
            _ => {
                tracing::info!(clean, "ended while starting");
                Ok(StartupOutcome::Interrupted { clean })
            }
        }
    }

    async fn start_parts(
        config: &Arc<Config>,
        engine: Arc<dyn Engine>,
        tasks: &Tasks,
        id: &str,
    ) -> Result<ServingParts> {
        crate::fetch::install_crypto_provider();
        let info = engine.describe().await?;
        engine.prepare(&config.state_dir).await?;
        telemetry::log_startup(config, id, &info);
        doctor::capacity::warn_of_promises(config);
        preconditions::require_all(config, tasks).await?;
        let hangup = file_watch::listen_for_hangups()?;
        let metrics = Arc::<Metrics>::default();
        let listeners = bind_listeners(config, &metrics, tasks).await?;
        let access = Arc::clone(&listeners.access);
        let audit = AuditLog::open(&config.audit, &config.state_dir).await?;
        let traces = TraceExport::start(config, id, &metrics)?;
        let server = &config.server;
        let table = ConnectionTable::new(server.connections_max, server.connections_per_user_max());
        let (tls, files) = (listeners.tls(), (Arc::clone(&access), audit.clone()));
        let watch = FileWatch::new(hangup, files, tls.clone(), table.clone(), tasks.clone());
        let usage = services::open_usage(config, tasks).await?;
        let services = services::boot_services(
            config,
            Arc::clone(&engine),
            info,
            tasks,
            id,
            (Arc::clone(&access), audit.clone(), usage.clone(), &metrics),
        )
        .await?;
        let (available, is_available) = watch::channel(true);
        let (methods, reporter) = (Arc::new(MethodTable::new()), HealthReporter::new());
        let health = HealthMonitor::new(&services, (&methods, &reporter), engine, available).await;
        let (registry, services) = (services.registry.clone(), Arc::new(services));
        tasks.spawn(skill_publish::sweep_store(Arc::clone(&services)));
        tasks.spawn(skill_publish::sweep_after_workspaces(Arc::clone(&services)));
        let routes = services::build_routes(Arc::clone(&services), is_available, reporter)?;

        let (open, cut) = (OpenCalls::default(), CancellationToken::new());
        let measured = CallMetricsLayer::new(&methods, &metrics, traces.as_ref());
        let calls = CallLayer::new(
            methods,
            make_gate((&access, usage), registry, audit.as_ref(), tasks),
            open.clone(),
            server,
            tasks.stop.clone(),
        );
        tasks.spawn(health.run());
        let addresses = listeners.addresses();
        let sources = MetricsSources {
            services,
            tls,
            audit: audit.clone(),
        };
        metrics_listener::serve_metrics(listeners.metrics, (sources, metrics), &table, tasks);
        tasks.spawn(watch.run());
        let incoming = bound_listeners::accept_connections(
            listeners.api,
            &table,
            server.handshake_timeout,
            &cut,
        );
        let serving = spawn_api(server, tasks, (measured, calls), routes, incoming);
        telemetry::log_serving(config, &addresses.tcp, &addresses.metrics);
        Ok(ServingParts {
            audit,
            traces,
            open,
            cut,
            serving,
            addresses,
        })
    }

    /// Returns the tracker of all tasks of this server.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Returns the addresses of the TCP listeners, with the ports that were taken.
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.addresses.tcp
    }

    /// Returns the addresses of the listeners of metrics, with the ports that were taken.
    pub fn metrics_addresses(&self) -> &[SocketAddr] {
        &self.addresses.metrics
    }

    /// Serves until the first message, then drains and stops. A second message ends the drain early. Returns `true` if
    /// all tasks ended in time.
    pub async fn run(mut self, mut signals: mpsc::Receiver<()>) -> bool {
        tokio::select! {
            _ = signals.recv() => {}
            _ = &mut self.serving => tracing::error!("serving ended by itself"),
        }
        report_state(ServiceState::Stopping);
        let config = &self.config.server;
        tracing::info!(open_calls = self.open.count(), timeout = ?config.drain_timeout, "draining");
        self.tasks.drain.cancel();
        tokio::select! {
            () = self.open.wait_for_none() => {}
            Some(()) = signals.recv() => tracing::info!("second signal"),
            () = tokio::time::sleep(config.drain_timeout) => {
                tracing::warn!(open_calls = self.open.count(), "drain timeout");
            }
        }
        tracing::info!(open_calls = self.open.count(), "stopping");
        self.tasks.stop.cancel();
        let clean = self.wait_for_tasks(config.stop_timeout).await;
        if let Some(audit) = &self.audit {
            audit.close().await;
        }
        if let Some(traces) = self.traces.take() {
            traces.close().await;
        }
        tracing::info!(clean, "stopped");
        clean
    }

    /// Waits for all tasks, and closes the remaining connections after half of `timeout`.
    async fn wait_for_tasks(&self, timeout: Duration) -> bool {
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

/// Binds all listeners, in a thread that may block.
async fn bind_listeners(
    config: &Arc<Config>,
    metrics: &Arc<Metrics>,
    tasks: &Tasks,
) -> Result<BoundListeners> {
    let (config, metrics) = (Arc::clone(config), Arc::clone(metrics));
    let bind = move || BoundListeners::bind(&config, metrics);
    tasks.blocking(bind).await
}

/// Makes the gate of all calls. A task writes the records of refused ones until the daemon stops.
fn make_gate(
    (access, usage): (&Arc<AccessControl>, UsageLedger),
    registry: WorkspaceRegistry,
    audit: Option<&AuditLog>,
    tasks: &Tasks,
) -> CallGate {
    access.set_workspace_lookup(move |tenant, bound| registry.has_bound(tenant, bound));
    let refusals = RefusalTable::start(audit.cloned(), tasks);
    CallGate::new(Arc::clone(access), audit.cloned(), (refusals, usage))
}

/// Serves the API on accepted connections, until the daemon stops.
fn spawn_api(
    config: &ServerConfig,
    tasks: &Tasks,
    (measured, calls): (CallMetricsLayer, CallLayer),
    routes: Routes,
    incoming: impl Stream<Item = Result<Connection, Infallible>> + Send + Unpin + 'static,
) -> JoinHandle<Result<()>> {
    let stop = tasks.stop.clone().cancelled_owned();
    let served = http2_builder(config)
        .layer(measured)
        .layer(calls)
        .add_routes(routes);
    tasks.spawn(async move {
        served
            .serve_with_incoming_shutdown(incoming, stop)
            .await
            .map_err(|error| Error::Internal(format!("serve: {error}")))
    })
}

/// Returns a channel that receives one message for each SIGTERM and SIGINT.
fn listen_for_signals() -> Result<mpsc::Receiver<()>> {
    let failed = |source| Error::io("listen for signals", source);
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    // SIGHUP must not end the process from here on. Until files are open, a SIGHUP has nothing to reload.
    drop(file_watch::listen_for_hangups()?);
    let (sender, receiver) = mpsc::channel(SIGNALS_MAX);
    // The task has a tracker of its own: a stop must not wait for it.
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

/// Raises the soft limit of open files to the hard limit. A client's connection takes two descriptors, a guest takes up
/// to four, and the usual soft limit of 1024 is for programs that use select(2).
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

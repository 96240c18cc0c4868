//! Reports health over gRPC: SERVING while the engine answers, every pool can serve, and the daemon does not drain.
//!
//! The status is the same for the server and each of its services, with two additions: ArtifactService needs an
//! artifact store that answers, and SkillService needs every root of skills to be readable.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{pending, ready, select_all};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_check_response::ServingStatus as WireStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::{HealthReporter, HealthService};

use super::methods::MethodTable;
use crate::artifacts::Artifacts;
use crate::engine::Engine;
use crate::error::Chain;
use crate::rpc::ServiceDependencies;
use crate::shutdown::{RefusedWork, Tasks};

/// Interval between pings of the engine. An engine that ends is noticed at once by its event stream; pings notice one
/// that hangs.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// Time after which a ping without an answer means that the engine is unavailable. An engine under load takes seconds;
/// a shorter time would make the health flap.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between pings of an artifact store that answers. Requests to a rented bucket cost money.
const STORE_INTERVAL: Duration = Duration::from_secs(30);

/// Interval between pings of an artifact store that does not answer.
const STORE_INTERVAL_DOWN: Duration = Duration::from_secs(5);

/// Full name of the service that needs the artifact store.
const ARTIFACT_SERVICE: &str = "skilld.v1.ArtifactService";

/// Full name of the service that needs the roots of skills: an unreadable root would otherwise just look empty.
const SKILL_SERVICE: &str = "skilld.v1.SkillService";

/// Health service of tonic, on which clients may also watch a service that does not exist.
#[derive(Debug)]
pub(super) struct StandardHealth(HealthService);

/// Makes the health service, which shows what `reporter` is told.
pub(super) fn health_service(reporter: HealthReporter) -> HealthServer<StandardHealth> {
    let service = HealthService::from_health_reporter(reporter);
    HealthServer::new(StandardHealth(service))
}

#[tonic::async_trait]
impl Health for StandardHealth {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.0.check(request).await
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watched = self.0.watch(request).await;
        let changes = watched.map(|response| response.map(|changes| changes.boxed()));
        // The protocol wants the stream to stay open. All services are known before the first call is served.
        Ok(changes.unwrap_or_else(|_unknown| {
            let status = WireStatus::ServiceUnknown.into();
            let unknown = HealthCheckResponse { status };
            let first = stream::once(ready(Ok(unknown)));
            Response::new(first.chain(stream::pending()).boxed())
        }))
    }
}

/// Task that watches the daemon's dependencies and reports its health.
#[derive(Debug)]
pub(super) struct HealthMonitor {
    reporter: HealthReporter,
    methods: Arc<MethodTable>,
    engine: Arc<dyn Engine>,
    /// Receivers, one per pool: `true` while the pool can serve.
    pools: Vec<watch::Receiver<bool>>,
    /// Result of the most recent ping of the engine, also for GetServerInfo.
    available: watch::Sender<bool>,
    artifacts: Artifacts,
    /// `true` while every root of skills can be read.
    skills: watch::Receiver<bool>,
    tasks: Tasks,
    /// Latest report of each service.
    reported: HashMap<String, bool>,
}

impl HealthMonitor {
    /// Makes the monitor of services and the engine, and reports every service for the first time; `available` gets the
    /// result of each ping.
    pub(super) async fn new(
        services: &ServiceDependencies,
        (methods, reporter): (&Arc<MethodTable>, &HealthReporter),
        engine: Arc<dyn Engine>,
        available: watch::Sender<bool>,
    ) -> Self {
        let mut monitor = Self {
            reporter: reporter.clone(),
            methods: Arc::clone(methods),
            engine,
            pools: services.registry.pools_healthy(),
            skills: services.skills.of_daemon().is_readable(),
            available,
            artifacts: services.artifacts.clone(),
            tasks: services.tasks.clone(),
            // The reporter itself begins with a server that serves.
            reported: HashMap::from([(String::new(), true)]),
        };
        let parts = (
            *monitor.artifacts.answers().borrow(),
            *monitor.skills.borrow(),
        );
        monitor.report(monitor.is_serving(), parts).await;
        monitor
    }

    /// Reports health until the server stops. A drain is reported as NOT_SERVING at once.
    pub(super) async fn run(mut self) {
        let (drain, stop) = (self.tasks.drain.clone(), self.tasks.stop.clone());
        let mut store = self.artifacts.answers();
        let mut refused = self.tasks.watch_refused();
        let pings = ping_store_periodically(self.artifacts.clone());
        self.tasks
            .spawn(stop.clone().run_until_cancelled_owned(pings));
        loop {
            let parts = (*store.borrow_and_update(), *self.skills.borrow_and_update());
            self.report(self.is_serving(), parts).await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = drain.cancelled(), if !drain.is_cancelled() => {}
                Ok(()) = refused.changed() => {}
                () = any_changed(&mut self.pools) => {}
                Ok(()) = store.changed() => {}
                Ok(()) = self.skills.changed() => {}
                () = tokio::time::sleep(PING_INTERVAL) => self.ping().await,
            }
        }
    }

    fn is_serving(&self) -> bool {
        let pools = self.pools.iter().all(|pool| *pool.borrow());
        pools && *self.available.borrow() && !self.tasks.refuses(RefusedWork::Workspaces)
    }

    async fn ping(&self) {
        let answer = tokio::select! {
            () = self.tasks.stop.cancelled() => return,
            () = self.tasks.drain.cancelled(), if !self.tasks.drain.is_cancelled() => return,
            answer = tokio::time::timeout(PING_TIMEOUT, self.engine.ping()) => answer,
        };
        let (available, why) = match answer {
            Ok(Ok(())) => (true, String::new()),
            Ok(Err(error)) => (false, Chain(&error).to_string()),
            Err(_) => (false, "no answer in time".to_owned()),
        };
        if self.available.send_replace(available) != available {
            if available {
                tracing::info!("the engine answers again");
            } else {
                tracing::warn!(error = %why, "the engine does not answer");
            }
        }
    }

    /// Reports the status of each service that has another one than in its latest report.
    async fn report(&mut self, serving: bool, (artifacts, skills): (bool, bool)) {
        let status = |serving: bool| match serving {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        let (artifacts, skills) = (serving && artifacts, serving && skills);
        let mut is_changed = false;
        let services = self.methods.services.iter().map(|service| {
            let serving = match service.as_str() {
                ARTIFACT_SERVICE => artifacts,
                SKILL_SERVICE => skills,
                _ => serving,
            };
            (service.clone(), serving)
        });
        let all = [(String::new(), serving)].into_iter().chain(services);
        for (service, serving) in all {
            // A status is sent to watchers even if it is the one before.
            if self.reported.insert(service.clone(), serving) != Some(serving) {
                is_changed = true;
                self.reporter
                    .set_service_status(service, status(serving))
                    .await;
            }
        }
        if is_changed {
            tracing::info!(
                status = %status(serving),
                artifacts = %status(artifacts),
                skills = %status(skills),
                "health"
            );
        }
    }
}

/// Pings the artifact store periodically. The results of other requests are noticed too. Never returns.
async fn ping_store_periodically(artifacts: Artifacts) {
    loop {
        let interval = match *artifacts.answers().borrow() {
            true => STORE_INTERVAL,
            false => STORE_INTERVAL_DOWN,
        };
        tokio::time::sleep(interval).await;
        artifacts.ping().await;
    }
}

/// Waits until one of the values changes. A receiver whose sender was dropped never changes.
async fn any_changed(pools: &mut [watch::Receiver<bool>]) {
    if pools.is_empty() {
        return pending().await;
    }
    let changes = pools.iter_mut().map(|pool| {
        async {
            if pool.changed().await.is_err() {
                pending::<()>().await;
            }
        }
        .boxed()
    });
    select_all(changes).await;
}

//! Health: SERVING while the engine answers, every pool can serve, and nothing drains; for the server as a whole
//! and for each of its services alike, but for ArtifactService, whose store has to answer too,
//! and SkillService, which needs every root.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{pending, select_all};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::methods::Methods;
use crate::artifacts::Artifacts;
use crate::engine::Engine;
use crate::error::Chain;
use crate::shutdown::Tasks;

/// Between two questions to the engine. It also tells when it is gone by ending its event stream; this is for the
/// times when it hangs.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// An engine that takes longer to say that it is there is of no use.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for the store of artifacts, which costs money where it is rented, …
const STORE_INTERVAL: Duration = Duration::from_secs(30);

/// … and for one that did not answer.
const STORE_INTERVAL_DOWN: Duration = Duration::from_secs(5);

/// Its service.
const ARTIFACT_SERVICE: &str = "skilld.v1.ArtifactService";

/// The service that needs the roots of skills: one that cannot be read would otherwise just look empty.
const SKILL_SERVICE: &str = "skilld.v1.SkillService";

/// What health depends on.
#[derive(Debug)]
pub(super) struct Health {
    pub(super) reporter: HealthReporter,
    pub(super) methods: Arc<Methods>,
    pub(super) engine: Arc<dyn Engine>,
    /// One per pool: true while it can serve.
    pub(super) pools: Vec<watch::Receiver<bool>>,
    /// Whether the engine answered the last time, for GetServerInfo.
    pub(super) available: watch::Sender<bool>,
    pub(super) artifacts: Artifacts,
    /// Whether every root of skills can be read.
    pub(super) skills: watch::Receiver<bool>,
    pub(super) tasks: Tasks,
}

impl Health {
    /// Runs until the server stops; a drain makes it say NOT_SERVING at once.
    pub(super) async fn run(mut self) {
        let (drain, stop) = (self.tasks.drain.clone(), self.tasks.stop.clone());
        let mut said = None;
        let mut store = self.artifacts.answers();
        self.tasks
            .spawn(ask_store(self.artifacts.clone(), stop.clone()));
        loop {
            let parts = (*store.borrow_and_update(), *self.skills.borrow_and_update());
            let serving = (self.serving(), parts);
            if said != Some(serving) {
                self.say(serving.0, parts).await;
                said = Some(serving);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = drain.cancelled(), if !drain.is_cancelled() => {}
                () = changed(&mut self.pools) => {}
                Ok(()) = store.changed() => {}
                Ok(()) = self.skills.changed() => {}
                () = tokio::time::sleep(PING_INTERVAL) => self.ping().await,
            }
        }
    }

    fn serving(&self) -> bool {
        let pools = self.pools.iter().all(|pool| *pool.borrow());
        pools && *self.available.borrow() && !self.tasks.drain.is_cancelled()
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

    async fn say(&self, serving: bool, (artifacts, skills): (bool, bool)) {
        let status = |serving: bool| match serving {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        let (artifacts, skills) = (serving && artifacts, serving && skills);
        tracing::info!(
            status = %status(serving),
            artifacts = %status(artifacts),
            skills = %status(skills),
            "health"
        );
        self.reporter.set_service_status("", status(serving)).await;
        for service in &self.methods.services {
            let serving = match service.as_str() {
                ARTIFACT_SERVICE => artifacts,
                SKILL_SERVICE => skills,
                _ => serving,
            };
            self.reporter
                .set_service_status(service, status(serving))
                .await;
        }
    }
}

/// Asks the store of artifacts from time to time whether it is there; other requests say so too.
async fn ask_store(artifacts: Artifacts, stop: CancellationToken) {
    loop {
        let interval = match *artifacts.answers().borrow() {
            true => STORE_INTERVAL,
            false => STORE_INTERVAL_DOWN,
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = artifacts.ping() => {}
        }
    }
}

/// Waits until one of them changes. Those whose sender is gone never do.
async fn changed(pools: &mut [watch::Receiver<bool>]) {
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

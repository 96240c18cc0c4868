//! Health: SERVING while the engine answers, every pool can serve, and nothing drains; for the server as a whole
//! and for each of its services alike.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{pending, select_all};
use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::methods::Methods;
use crate::engine::Engine;
use crate::error::Chain;
use crate::shutdown::Tasks;

/// Between two questions to the engine. It also tells when it is gone by ending its event stream; this is for the
/// times when it hangs.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// An engine that takes longer to say that it is there is of no use.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

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
    pub(super) tasks: Tasks,
}

impl Health {
    /// Runs until the server stops; a drain makes it say NOT_SERVING at once.
    pub(super) async fn run(mut self) {
        let (drain, stop) = (self.tasks.drain.clone(), self.tasks.stop.clone());
        let mut said = None;
        loop {
            let serving = self.serving();
            if said != Some(serving) {
                self.say(serving).await;
                said = Some(serving);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = drain.cancelled(), if !drain.is_cancelled() => {}
                () = changed(&mut self.pools) => {}
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

    async fn say(&self, serving: bool) {
        let status = if serving {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        tracing::info!(%status, "health");
        self.reporter.set_service_status("", status).await;
        for service in &self.methods.services {
            self.reporter.set_service_status(service, status).await;
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

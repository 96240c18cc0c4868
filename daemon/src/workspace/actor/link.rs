//! The part of a slot's task that deals with its guest: telling it what it is, noticing its loss.

use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as pb;
use tokio::time::Instant;

use super::Actor;
use crate::error::{Chain, Error, Result};
use crate::guest::{Link, Socket};
use crate::workspace::Failure;
use crate::workspace::record::Claim;
use crate::workspace::slot;
use crate::workspace::state::{Cause, Event};

/// Longest wait for an unary answer of a guest.
const GUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a guest may take to connect again before it counts as lost.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(2);

impl Actor {
    /// The guest's connection broke: the container died, or the guest will connect again.
    pub(super) async fn on_link_lost(&mut self) {
        self.link = None;
        let Some(id) = self.record.container_id.clone() else {
            return;
        };
        match self.context.engine.inspect(&id).await {
            Ok(None) => {
                let message = "the container was removed by somebody else";
                self.lose(Cause::ContainerLost, message.into()).await;
            }
            Ok(Some(state)) if !state.running => {
                let (cause, what) = if state.oom_killed {
                    (Cause::OomKilled, "was killed for its memory")
                } else {
                    (Cause::ContainerLost, "ended")
                };
                self.lose(
                    cause,
                    format!("the container {what}, exit code {}", state.exit_code),
                )
                .await;
            }
            Ok(Some(state)) => self.reconnect(state.pid).await,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "engine does not say what became of the container");
                self.reconnect(0).await;
            }
        }
    }

    pub(super) async fn reconnect(&mut self, pid: i32) {
        let expected = self.context.expected(&self.record, pid);
        let connected = match Socket::bind(&self.dir.join("run")) {
            Ok(socket) => tokio::time::timeout(RECONNECT_TIMEOUT, socket.accept(&expected)).await,
            Err(error) => Ok(Err(error)),
        };
        match connected {
            Ok(Ok(link)) => {
                tracing::info!("guest connected again");
                self.link = Some(link);
            }
            Ok(Err(error)) => self.lose(Cause::GuestLost, error.to_string()).await,
            Err(_) => {
                let message =
                    format!("the guest did not connect again within {RECONNECT_TIMEOUT:?}");
                self.lose(Cause::GuestLost, message).await;
            }
        }
    }

    pub(super) async fn check(&mut self) {
        let Some(id) = self.record.container_id.clone() else {
            return;
        };
        match self.context.engine.inspect(&id).await {
            Ok(Some(state)) if state.running => {}
            Ok(_) => self.on_link_lost().await,
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "engine does not say how the container is");
            }
        }
    }

    pub(super) async fn lose(&mut self, cause: Cause, message: String) {
        tracing::warn!(?cause, message, "slot is lost");
        self.failure = Some(Failure {
            cause,
            message,
            time: SystemTime::now(),
        });
        self.retention = Some(Instant::now() + self.context.config.workspaces.failed_retention);
        self.apply(Event::Lost(cause)).await;
    }

    pub(super) async fn has_running_execs(&self) -> bool {
        let Some(link) = &self.link else { return false };
        let mut guest = link.client.clone();
        let request = pb::HelloRequest {
            generation: skilld_proto::guest::GENERATION,
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        match tokio::time::timeout(GUEST_TIMEOUT, guest.hello(request)).await {
            Ok(Ok(hello)) => hello.into_inner().running_execs > 0,
            _ => false,
        }
    }

    /// Tells the guest which workspace it is. Doing it again changes nothing.
    pub(super) fn configure(
        &self,
        link: Link,
        claim: &Claim,
    ) -> impl Future<Output = Result<()>> + use<> {
        let request = slot::configure_request(&self.context, &claim.workspace);
        let workspace = claim.workspace.clone();
        async move {
            let mut guest = link.client;
            match tokio::time::timeout(GUEST_TIMEOUT, guest.configure(request)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(status)) => Err(Error::from_guest(&workspace, &status)),
                Err(_) => Err(Error::GuestLost {
                    workspace,
                    why: "no answer in time".into(),
                }),
            }
        }
    }
}

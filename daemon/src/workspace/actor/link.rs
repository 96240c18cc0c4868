//! The part of a slot's task that deals with its guest: telling it what it is, noticing its loss.

use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as pb;
use tokio::time::Instant;

use super::Actor;
use crate::engine::ContainerState;
use crate::error::{Error, Result};
use crate::exec::PATH;
use crate::guest::Link;
use crate::workspace::Failure;
use crate::workspace::record::Claim;
use crate::workspace::slot;
use crate::workspace::state::{Cause, Event, State};

/// Longest wait for an unary answer of a guest.
pub(super) const GUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How a slot was lost.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) cause: Cause,
    pub(super) message: String,
}

impl Actor {
    /// The engine said that the container has ended.
    pub(super) async fn on_container_ended(&mut self, state: Option<ContainerState>) {
        if self.state == State::Quarantined && state.is_none() {
            tracing::info!("a quarantined container is gone");
            self.apply(Event::ContainerGone).await;
            return;
        }
        if self.removal_overdue.is_some() && state.is_none() {
            self.on_overdue_removal().await;
            return;
        }
        if matches!(self.state, State::Ready | State::Claimed) {
            self.link = None;
            let loss = ended(state);
            if let Some(reconnect) = self.reconnect.take() {
                self.refuse(reconnect, &loss);
            }
            self.lose(loss.cause, loss.message, SystemTime::now()).await;
        }
    }

    pub(super) async fn lose(&mut self, cause: Cause, message: String, time: SystemTime) {
        tracing::warn!(?cause, message, "slot is lost");
        let age = time.elapsed().unwrap_or_default();
        let retention = self.context.config.workspaces.failed_retention;
        self.failure = Some(Failure {
            cause,
            message,
            time,
        });
        self.retention = Some(Instant::now() + retention.saturating_sub(age));
        self.apply(Event::Lost(cause)).await;
    }

    /// How long nothing has run: zero while an exec does. `None` if the guest does not say.
    pub(super) async fn idle_time(&self) -> Option<Duration> {
        let mut guest = self.link.as_ref()?.client.clone();
        let request = pb::HelloRequest {
            generation: skilld_proto::guest::GENERATION,
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let hello = tokio::time::timeout(GUEST_TIMEOUT, guest.hello(request)).await;
        let hello = hello.ok()?.ok()?.into_inner();
        if hello.running_execs > 0 {
            return Some(Duration::ZERO);
        }
        let since = hello
            .idle_time
            .and_then(|idle| Duration::try_from(idle).ok());
        Some(since.unwrap_or(Duration::MAX))
    }

    /// Runs the pool's program once, so that the first command finds it in the kernel's caches.
    pub(super) async fn warm_up(&self, link: &Link) -> Result<()> {
        let argv = self.pool.config().warm_up.clone();
        if argv.is_empty() {
            return Ok(());
        }
        let timeout = self.context.config.engine.boot_timeout;
        let request = pb::WarmUpRequest {
            argv,
            env: vec![
                format!("PATH={PATH}"),
                "HOME=/tmp".into(),
                "LANG=C.UTF-8".into(),
            ],
            timeout: timeout.try_into().ok(),
        };
        let mut guest = link.client.clone();
        // The guest ends it at the timeout; this is for a guest that does not.
        let warmed = tokio::time::timeout(timeout + GUEST_TIMEOUT, guest.warm_up(request)).await;
        let why = match warmed {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(status)) => status.message().to_owned(),
            Err(_) => "no answer in time".to_owned(),
        };
        let workspace = format!("slot {}", self.record.number);
        Err(Error::GuestLost {
            workspace,
            why: format!("warm_up did not end well: {why}"),
        })
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

pub(super) fn ended(state: Option<ContainerState>) -> Loss {
    let (cause, message) = match state {
        None => (
            Cause::ContainerLost,
            "the container was removed by somebody else".to_owned(),
        ),
        Some(state) if state.oom_killed => {
            let code = state.exit_code;
            (
                Cause::OomKilled,
                format!("the container was killed for its memory, exit code {code}"),
            )
        }
        Some(state) => (
            Cause::ContainerLost,
            format!("the container ended, exit code {}", state.exit_code),
        ),
    };
    Loss { cause, message }
}

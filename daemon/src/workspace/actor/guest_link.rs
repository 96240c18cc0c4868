//! Guest of a slot: its configuration, its warm-up and its loss.

use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as pb;
use tokio::time::Instant;

use super::SlotActor;
use crate::engine::ContainerState;
use crate::error::{Error, Result};
use crate::guest::GuestLink;
use crate::workspace::WorkspaceFailure;
use crate::workspace::record::WorkspaceClaim;
use crate::workspace::slot_provisioning;
use crate::workspace::slot_state_machine::{LossCause, SlotEvent, SlotState};

/// Longest wait for the answer of a guest to a unary call.
pub(super) const GUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Loss of a slot: cause, and message for users.
#[derive(Debug)]
pub(super) struct SlotLoss {
    pub(super) cause: LossCause,
    pub(super) message: String,
}

impl SlotActor {
    /// Handles the engine's report that the container has ended; `None` if it was removed.
    pub(super) async fn on_container_ended(&mut self, state: Option<ContainerState>) {
        if self.state == SlotState::Quarantined && state.is_none() {
            tracing::info!("a quarantined container is gone");
            self.apply(SlotEvent::ContainerGone).await;
            return;
        }
        if self.removal_overdue.is_some() && state.is_none() {
            self.on_overdue_removal().await;
            return;
        }
        if matches!(self.state, SlotState::Ready | SlotState::Claimed) {
            self.link = None;
            let loss = container_loss(state);
            if let Some(reconnect) = self.reconnect.take() {
                self.refuse_waiting(reconnect, &loss);
            }
            self.lose(loss.cause, loss.message, SystemTime::now()).await;
        }
    }

    pub(super) async fn lose(&mut self, cause: LossCause, message: String, time: SystemTime) {
        tracing::warn!(?cause, message, "slot is lost");
        let age = time.elapsed().unwrap_or_default();
        let retention = self.context.config.workspaces.failed_retention;
        self.failure = Some(WorkspaceFailure {
            cause,
            message,
            time,
        });
        self.retention = Some(Instant::now() + retention.saturating_sub(age));
        self.apply(SlotEvent::Lost(cause)).await;
    }

    /// Asks the guest for the time since its last exec ended, zero while one runs. Returns `None` if it does not
    /// answer.
    pub(super) async fn ask_idle_time(&self) -> Option<Duration> {
        let mut guest = self.link.as_ref()?.client.clone();
        let request = pb::HelloRequest {
            generation: skilld_proto::guest::GENERATION,
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let hello = tokio::time::timeout(GUEST_TIMEOUT, guest.hello(request))
            .await
            .ok()?
            .ok()?
            .into_inner();
        if hello.running_execs > 0 {
            return Some(Duration::ZERO);
        }
        let since = hello
            .idle_duration
            .and_then(|idle| Duration::try_from(idle).ok());
        Some(since.unwrap_or(Duration::MAX))
    }

    /// Runs the pool's `warm_up` command once, so that the kernel's caches have its files before the first exec.
    pub(super) async fn warm_up(&self, link: &GuestLink) -> Result<()> {
        let argv = self.pool.config.warm_up.clone();
        if argv.is_empty() {
            return Ok(());
        }
        let timeout = self.context.config.engine.boot_timeout;
        let request = pb::WarmUpRequest {
            argv,
            env: vec![
                format!("PATH={}", self.record.image_env.path()),
                "HOME=/tmp".into(),
                "LANG=C.UTF-8".into(),
            ],
            timeout: timeout.try_into().ok(),
        };
        let mut guest = link.client.clone();
        // The guest itself stops the command at the timeout; this bounds a guest that does not.
        let warmed = tokio::time::timeout(timeout + GUEST_TIMEOUT, guest.warm_up(request)).await;
        let why = match warmed {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(status)) => status.message().to_owned(),
            Err(_) => "no answer in time".to_owned(),
        };
        let workspace = format!("slot {}", self.record.number);
        let why = format!("warm_up did not end well: {why}");
        Err(Error::guest_lost(workspace, why))
    }

    /// Configures the guest as this workspace. A repetition changes nothing.
    pub(super) fn configure(
        &self,
        link: GuestLink,
        claim: &WorkspaceClaim,
    ) -> impl Future<Output = Result<()>> + use<> {
        let request = slot_provisioning::configure_request(&self.context, &claim.workspace);
        let workspace = claim.workspace.clone();
        async move {
            let mut guest = link.client;
            match tokio::time::timeout(GUEST_TIMEOUT, guest.configure(request)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(status)) => Err(Error::from_guest(&workspace, &status)),
                Err(_) => Err(Error::guest_lost(workspace, "no answer in time")),
            }
        }
    }
}

/// Returns the loss that the end of a container means; `None` stands for a removed container.
pub(super) fn container_loss(state: Option<ContainerState>) -> SlotLoss {
    let (cause, message) = match state {
        None => (
            LossCause::ContainerLost,
            "another program removed the container".to_owned(),
        ),
        Some(state) if state.oom_killed => {
            let code = state.exit_code;
            (
                LossCause::OomKilled,
                format!("the container was killed for its memory, exit code {code}"),
            )
        }
        Some(state) => (
            LossCause::ContainerLost,
            format!("the container ended, exit code {}", state.exit_code),
        ),
    };
    SlotLoss { cause, message }
}

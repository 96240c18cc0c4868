//! The part of a slot's task that deals with its container: making it, removing it, forgetting it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as pb;
use skilld_proto::v1::exec_result::Reason;
use tokio::time::Instant;

use super::reconnect::Wait;
use super::{Actor, answer};
use crate::engine::LABEL_UID;
use crate::error::{Chain, Error, Result};
use crate::fault::{self, Point};
use crate::guest::{Link, Socket};
use crate::workspace::state::{Event, State};
use crate::workspace::{WorkspaceId, reconcile, slot};

/// Between tries to remove a container while the engine is away: the first and the longest wait.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// An engine that takes longer to answer a ping is away.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Least time for the last try to remove a container, which begins when `engine.remove_timeout` is over.
const LAST_TRY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a guest may take to kill what runs. Its container is removed either way.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

impl Actor {
    /// Directory, container, guest: each step leaves something that the next start can clean up.
    pub(super) async fn boot(&mut self) -> Result<Link> {
        let context = Arc::clone(&self.context);
        let _turn = context.boots.acquire().await.map_err(|_| Error::Draining)?;
        let started = Instant::now();
        fault::reach(Point::BootBegun);
        let (dir, record) = (self.dir.as_path().to_owned(), self.record.clone());
        let guest_path = context.config.engine.guest_path.clone();
        context
            .tasks
            .blocking(move || slot::prepare(&dir, &record, &guest_path))
            .await?;
        fault::reach(Point::BootPrepared);
        let socket = Socket::bind(&self.dir.join("run"))?;
        fault::reach(Point::BootListening);

        let spec = slot::container(&context, self.pool.config(), &self.record);
        // A daemon that stops waits for this: a container that comes into being afterwards would be missed by the next
        // start. The engine's deadline bounds it.
        let engine = Arc::clone(&context.engine);
        let creating = context
            .tasks
            .spawn(async move { engine.create(&spec).await });
        let id = creating
            .await
            .map_err(|error| Error::Internal(format!("create container: {error}")))??;
        fault::reach(Point::BootCreated);
        self.record.container_id = Some(id.clone());
        self.persist().await?;
        fault::reach(Point::BootCreationRecorded);
        context.engine.start(&id).await?;
        fault::reach(Point::BootStarted);
        self.check_uid(&id).await?;
        fault::reach(Point::BootUidChecked);
        let timeout = context.config.engine.boot_timeout;
        let wait = Wait {
            context: Arc::clone(&context),
            record: self.record.clone(),
            timeout,
            pause_timeout: timeout,
        };
        let link = wait.link(socket).await.map_err(|lost| Error::GuestLost {
            workspace: format!("slot {}", self.record.number),
            why: lost.message,
        })?;
        fault::reach(Point::BootConnected);
        self.warm_up(&link).await?;
        fault::reach(Point::BootWarmedUp);
        let boot_ms = started.elapsed().as_millis();
        tracing::debug!(boot_ms, "slot is warm");
        Ok(link)
    }

    /// No other instance's container may have the same uid. Both look after they have made theirs, so at least one of
    /// two sees the other, and gives up.
    async fn check_uid(&self, container_id: &str) -> Result<()> {
        let uid = self.record.uid.to_string();
        let all = self.context.engine.list(None).await?;
        let clash = all
            .iter()
            .any(|other| other.id != container_id && other.labels.get(LABEL_UID) == Some(&uid));
        if clash {
            self.context
                .with_numbers(|numbers| numbers.avoid([self.record.uid]));
            let message = format!("uid {uid} belongs to another instance's container");
            return Err(Error::Engine {
                operation: "give a container a uid of its own",
                message,
            });
        }
        Ok(())
    }

    /// Kills what runs and removes the container. On failure it is tried again until it works.
    pub(super) async fn remove_container(&mut self) {
        (self.reconnect, self.pause_over) = (None, None);
        if let Some(link) = self.link.take() {
            let mut guest = link.client;
            let reason = if self.expired {
                Reason::WorkspaceExpired
            } else {
                Reason::KilledByClient
            };
            let asked = guest.shutdown(pb::ShutdownRequest {
                reason: reason.into(),
            });
            // The container's end is what counts; this only makes it quick for a guest that is well.
            let told = tokio::time::timeout(SHUTDOWN_TIMEOUT, asked).await;
            tracing::trace!(
                ok = matches!(told, Ok(Ok(_))),
                "guest was told to shut down"
            );
            if self.state == State::Closing {
                fault::reach(Point::DeleteTold);
            }
        }
        // A creation whose answer did not come in time may have worked: then the name finds it.
        let name = slot::container_name(&self.context, self.record.number);
        let container = self.record.container_id.as_ref().unwrap_or(&name);
        let since = *self.removing_since.get_or_insert_with(Instant::now);
        let limit = self.context.config.engine.remove_timeout;
        let left = limit.saturating_sub(since.elapsed());
        let patience = left.max(LAST_TRY_TIMEOUT.min(limit));
        match reconcile::remove_within(&self.context, container, patience).await {
            Ok(()) => {
                match self.state {
                    State::Closing => fault::reach(Point::DeleteRemoved),
                    State::Failed(_) => fault::reach(Point::LossRemoved),
                    State::Booting
                    | State::Ready
                    | State::Claimed
                    | State::Quarantined
                    | State::Removed => {}
                }
                (self.retry, self.removal_overdue) = (None, None);
                self.record.container_id = None;
                Box::pin(self.apply(Event::ContainerGone)).await;
                // A failed workspace without a container takes no place in its pool.
                self.pool.fill();
            }
            Err(error) => self.on_not_removed(&error).await,
        }
    }

    /// Tries again later, for ever while the engine is away. An engine that answers and cannot remove the container is given
    /// `engine.remove_timeout` in all, so that whoever deletes a workspace gets an answer.
    async fn on_not_removed(&mut self, error: &Error) {
        let ping = tokio::time::timeout(PING_TIMEOUT, self.context.engine.ping()).await;
        self.engine_away = !matches!(ping, Ok(Ok(())));
        if self.engine_away {
            self.removing_since = None;
        }
        let limit = self.context.config.engine.remove_timeout;
        let left = self
            .removing_since
            .map(|since| limit.saturating_sub(since.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            self.give_up_removal(error).await;
            return;
        }
        let wait = self
            .retry
            .map_or(RETRY.0, |(_, wait)| (wait * 2).min(RETRY.1));
        // The last try comes when the time is over, not up to a whole wait later.
        let next = left.map_or(wait, |left| left.min(wait));
        tracing::warn!(error = %Chain(error), retry_in = ?next, "container was not removed");
        self.retry = Some((Instant::now() + next, wait));
        if self.engine_away {
            self.refuse_deletes();
        }
    }

    /// Leaves the container to the reconciler. A slot that was closing is quarantined; a failed workspace stays listed.
    async fn give_up_removal(&mut self, error: &Error) {
        let (uid, id) = (self.record.uid, self.record.container_id.as_deref());
        tracing::error!(
            uid,
            container_id = id,
            error = %Chain(error),
            "the engine does not remove a container: its slot and uid are quarantined"
        );
        self.retry = None;
        if self.state == State::Closing {
            Box::pin(self.apply(Event::GiveUp)).await;
            self.answer_deletes();
        } else {
            self.removal_overdue = Some(SystemTime::now());
            self.publish();
        }
    }

    /// The reconciler found that the container of a failed workspace is gone.
    pub(super) async fn on_overdue_removal(&mut self) {
        tracing::info!("the container of a failed workspace is gone");
        (self.removal_overdue, self.record.container_id) = (None, None);
        self.apply(Event::ContainerGone).await;
        self.pool.fill();
    }

    /// The workspace is gone for its clients; its container is the operator's business.
    pub(super) fn answer_deletes(&mut self) {
        for waiter in self.deleting.drain(..) {
            answer(waiter, Ok(()));
        }
    }

    /// The name can be used again, and nothing of the workspace is listed.
    pub(super) fn release(&mut self) {
        let Some(claim) = self.record.claim.take() else {
            return;
        };
        let id = WorkspaceId::new(claim.workspace);
        self.context.directory.remove(&id, self.record.number);
        tracing::info!(workspace_id = %id, "workspace is gone; its container is quarantined");
    }

    pub(super) fn refuse_deletes(&mut self) {
        for waiter in self.deleting.drain(..) {
            let message = "the container is removed as soon as it answers".to_owned();
            answer(waiter, Err(Error::EngineUnavailable { message }));
        }
    }

    pub(super) async fn forget(&mut self) {
        let dir = Arc::clone(&self.dir);
        if let Err(error) = self.context.tasks.blocking(move || slot::erase(&dir)).await {
            // The record says Closing, so the next start tries again.
            tracing::error!(error = %Chain(&error), "slot directory is left");
        }
        fault::reach(Point::DeleteErased);
        if let Some(claim) = &self.record.claim {
            let id = WorkspaceId::new(claim.workspace.clone());
            self.context.directory.remove(&id, self.record.number);
            tracing::info!(workspace_id = %id, "workspace is gone");
        }
        fault::reach(Point::DeleteForgotten);
        self.context
            .with_numbers(|numbers| numbers.give_back(self.record.number));
        self.pool.gone(self.record.number);
        fault::reach(Point::DeleteDone);
    }
}

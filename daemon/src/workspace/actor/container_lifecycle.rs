//! Container of a slot: its boot, its removal and the end of the slot.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as pb;
use skilld_proto::v1::ExitReason;
use tokio::time::Instant;

use super::reconnect::GuestWait;
use super::{SlotActor, answer};
use crate::engine::LABEL_UID;
use crate::error::{Chain, Error, Result};
use crate::fault;
use crate::guest::{GuestLink, GuestSocket};
use crate::pool::SlotReport;
use crate::workspace::slot_state_machine::{SlotEvent, SlotState};
use crate::workspace::{orphan_removals, slot_disk, slot_provisioning};

/// First wait before the next attempt to remove a container.
const RETRY_WAIT_MIN: Duration = Duration::from_millis(250);
/// Longest wait between two attempts to remove a container.
const RETRY_WAIT_MAX: Duration = Duration::from_secs(15);
/// Time after which an engine that does not answer a ping counts as away.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Least time for the last attempt to remove a container, which begins when `engine.remove_timeout` is over.
const LAST_TRY_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for a guest to kill its execs. The container is removed either way.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

impl SlotActor {
    /// Ends the slot. Its lease is closed first, so that no request with an earlier snapshot starts another command.
    pub(super) async fn end(&mut self, event: SlotEvent) {
        if let Some(lease) = &self.lease {
            lease.close();
        }
        self.expired |= event == SlotEvent::Expire;
        self.apply(event).await;
        if event == SlotEvent::Delete && self.retry.is_some() && self.engine_away {
            self.refuse_deletes();
        }
        if self.state == SlotState::Quarantined {
            self.answer_deletes();
        }
    }

    /// Creates directory and container and connects to the guest. The next start can clean up after an interruption at
    /// any step.
    pub(super) async fn boot(&mut self) -> Result<GuestLink> {
        let context = Arc::clone(&self.context);
        let _turn = context.boots.acquire().await.map_err(|_| Error::Draining)?;
        let started = Instant::now();
        fault::reach("boot.begun");
        let (dir, record) = (self.dir.as_path().to_owned(), self.record.clone());
        let guest_path = context.config.engine.guest_path.clone();
        context
            .tasks
            .blocking(move || slot_provisioning::create_slot_dir(&dir, &record, &guest_path))
            .await?;
        fault::reach("boot.prepared");
        let device = slot_disk::attach_new_disk(&context, &self.record).await?;
        let socket = GuestSocket::bind(&self.dir.join("run"))?;
        fault::reach("boot.listening");

        let spec = slot_provisioning::container_spec(
            &context,
            &self.pool.config,
            &self.record,
            device.as_ref().map(|device| device.path.as_path()),
        );
        // In a task of its own, for which a stopping daemon waits: the next start would miss a container that appears
        // later. The engine's deadline bounds it.
        let engine = Arc::clone(&context.engine);
        let creating = context
            .tasks
            .spawn(async move { engine.create(&spec).await });
        let id = creating
            .await
            .map_err(|error| Error::Internal(format!("create container: {error}")))??;
        fault::reach("boot.created");
        self.record.container_id = Some(id.clone());
        self.persist().await?;
        fault::reach("boot.creation_recorded");
        context.engine.start(&id).await?;
        // The container has it mounted.
        drop(device);
        fault::reach("boot.started");
        self.check_uid(&id).await?;
        fault::reach("boot.uid_checked");
        let timeout = context.config.engine.boot_timeout;
        let wait = GuestWait {
            context: Arc::clone(&context),
            record: self.record.clone(),
            timeout,
            pause_timeout: timeout,
        };
        let link = wait.wait_for_link(socket).await.map_err(|lost| {
            Error::guest_lost(format!("slot {}", self.record.number), lost.message)
        })?;
        fault::reach("boot.connected");
        self.warm_up(&link).await?;
        fault::reach("boot.warmed_up");
        let boot_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(boot_ms, "slot is warm");
        Ok(link)
    }

    /// Checks that no container of another instance has the same uid. Every instance checks after it created its
    /// container, so at least one of two sees the other and gives up.
    async fn check_uid(&self, container_id: &str) -> Result<()> {
        let uid = self.record.uid.to_string();
        let all = self.context.engine.list(None).await?;
        let clash = all
            .iter()
            .any(|other| other.id != container_id && other.labels.get(LABEL_UID) == Some(&uid));
        if clash {
            self.context.slots.avoid_uids([self.record.uid]);
            let message = format!("uid {uid} belongs to another instance's container");
            return Err(Error::engine("give a container a uid of its own", message));
        }
        Ok(())
    }

    /// Kills running execs and removes the container. A failed attempt is repeated later.
    pub(super) async fn remove_container(&mut self) {
        (self.reconnect, self.pause_over) = (None, None);
        if let Some(link) = self.link.take() {
            let mut guest = link.client;
            let reason = if self.expired {
                ExitReason::WorkspaceExpired
            } else {
                ExitReason::KilledByClient
            };
            let asked = guest.shutdown(pb::ShutdownRequest {
                reason: reason.into(),
            });
            // Optional: the removal ends everything, but a guest that answers ends its execs with the right reason.
            let answer = tokio::time::timeout(SHUTDOWN_TIMEOUT, asked).await;
            tracing::trace!(
                ok = matches!(answer, Ok(Ok(_))),
                "asked the guest to shut down"
            );
            if self.state == SlotState::Closing {
                fault::reach("delete.told");
            }
        }
        // A creation whose answer was lost may have worked; its container is found by name.
        let name = slot_provisioning::container_name(&self.context, self.record.number);
        let container = self.record.container_id.as_ref().unwrap_or(&name);
        let since = *self.removing_since.get_or_insert_with(Instant::now);
        let limit = self.context.config.engine.remove_timeout;
        let left = limit.saturating_sub(since.elapsed());
        let patience = left.max(LAST_TRY_TIMEOUT.min(limit));
        match orphan_removals::remove_within(&*self.context.engine, container, patience).await {
            Ok(()) => {
                match self.state {
                    SlotState::Closing => fault::reach("delete.removed"),
                    SlotState::Failed(_) => fault::reach("loss.removed"),
                    SlotState::Booting
                    | SlotState::Ready
                    | SlotState::Claimed
                    | SlotState::Quarantined
                    | SlotState::Removed => {}
                }
                (self.retry, self.removal_overdue) = (None, None);
                self.record.container_id = None;
                Box::pin(self.apply(SlotEvent::ContainerGone)).await;
                self.vacate().await;
            }
            Err(error) => self.on_not_removed(&error).await,
        }
    }

    /// Schedules the next attempt. While the engine is away, attempts go on for ever. An engine that answers gets
    /// `engine.remove_timeout` in total, so that callers that delete a workspace get an answer.
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
            .map_or(RETRY_WAIT_MIN, |(_, wait)| (wait * 2).min(RETRY_WAIT_MAX));
        // The last attempt comes exactly when the time is over.
        let next = left.map_or(wait, |left| left.min(wait));
        tracing::warn!(error = %Chain(error), retry_in = ?next, "container was not removed");
        self.retry = Some((Instant::now() + next, wait));
        if self.engine_away {
            self.refuse_deletes();
        }
    }

    /// Leaves the container to the reconciler. A closing slot is quarantined; a failed workspace stays listed.
    async fn give_up_removal(&mut self, error: &Error) {
        let (uid, id) = (self.record.uid, self.record.container_id.as_deref());
        tracing::error!(
            uid,
            container_id = id,
            error = %Chain(error),
            "the engine does not remove a container: its slot and uid are quarantined"
        );
        self.retry = None;
        if self.state == SlotState::Closing {
            Box::pin(self.apply(SlotEvent::GiveUp)).await;
            self.answer_deletes();
        } else {
            self.removal_overdue = Some(SystemTime::now());
            self.publish();
        }
    }

    /// Handles the reconciler's report that the container of a failed workspace is gone.
    pub(super) async fn on_overdue_removal(&mut self) {
        tracing::info!("the container of a failed workspace is gone");
        (self.removal_overdue, self.record.container_id) = (None, None);
        self.apply(SlotEvent::ContainerGone).await;
        self.vacate().await;
    }

    /// Frees what the container of a failed workspace had: its disk, and its place in the pool.
    async fn vacate(&mut self) {
        if let SlotState::Failed(_) = self.state {
            slot_disk::release_device(&self.context, &self.record).await;
            slot_disk::delete_disk(&self.context, self.record.number).await;
            self.report(SlotReport::Vacated).await;
        }
    }

    /// Answers the callers that wait for the end. A quarantined container remains a problem for the operator only.
    fn answer_deletes(&mut self) {
        for waiter in self.deleting.drain(..) {
            answer(waiter, Ok(()));
        }
    }

    /// Frees the name of a quarantined workspace and removes it from listings.
    pub(super) fn release(&mut self) {
        let Some(claim) = self.record.claim.take() else {
            return;
        };
        let (key, number) = (claim.key(), self.record.number);
        let workspaces = &self.context.workspaces;
        workspaces.quarantine(number, claim.tenant.clone(), self.record.limits);
        workspaces.remove(&key, number);
        self.record.quarantine_tenant = Some(claim.tenant);
        tracing::info!(workspace_id = %key.id, tenant = %key.tenant, "workspace is gone; its container is quarantined");
    }

    fn refuse_deletes(&mut self) {
        for waiter in self.deleting.drain(..) {
            let message = "the container is removed as soon as it answers".to_owned();
            answer(waiter, Err(Error::EngineUnavailable { message }));
        }
    }

    pub(super) async fn forget(&mut self) {
        slot_disk::release_device(&self.context, &self.record).await;
        let dir = Arc::clone(&self.dir);
        if let Err(error) = self
            .context
            .tasks
            .blocking(move || slot_provisioning::erase_slot_dir(&dir))
            .await
        {
            // The record says Closing, so the next start tries again.
            tracing::error!(error = %Chain(&error), "slot directory is left");
        }
        fault::reach("delete.erased");
        if let Some(claim) = &self.record.claim {
            let key = claim.key();
            self.context.workspaces.remove(&key, self.record.number);
            tracing::info!(workspace_id = %key.id, tenant = %key.tenant, "workspace is gone");
        }
        self.context.workspaces.end_quarantine(self.record.number);
        fault::reach("delete.forgotten");
        // Only now: the next slot with this number has the same directory and disk.
        self.context.slots.remove(self.record.number);
        self.report(SlotReport::Removed).await;
        fault::reach("delete.done");
    }
}

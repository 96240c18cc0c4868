//! Starts the tasks of slots: new ones for a pool, and those of an earlier daemon.

use std::sync::Arc;

use crate::engine::ContainerLimits;
use crate::error::{Chain, Result};
use crate::pool::{Pool, SlotLauncher};
use crate::workspace::Slot;
use crate::workspace::actor::{AdoptedSlot, SlotActor};
use crate::workspace::record::{SlotPhase, SlotRecord};
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace::slot_provisioning;
use crate::workspace::slot_state_machine::SlotState;

/// Launcher that runs each slot as a task over the daemon's engine.
#[derive(Debug)]
pub struct WorkspaceLauncher(pub Arc<SharedSlotContext>);

impl SlotLauncher for WorkspaceLauncher {
    fn launch(&self, pool: &Arc<Pool>, limits: ContainerLimits) -> Result<u32> {
        let (context, image) = (&self.0, pool.require_image()?);
        let (number, uid) = context.slots.take_number()?;
        let config = &pool.config;
        let record =
            slot_provisioning::new_record(&context.config, config, limits, image, number, uid);
        let (actor, slot) = SlotActor::new(
            Arc::clone(context),
            Arc::clone(pool),
            record,
            SlotState::Booting,
        );
        context.slots.insert(slot);
        context.tasks.spawn(actor.run_new());
        Ok(number)
    }

    fn discard(&self, number: u32) {
        let Some(slot) = self.0.slots.get(number) else {
            return;
        };
        self.0.tasks.spawn(async move {
            if let Err(error) = slot.delete().await {
                tracing::warn!(slot = number, error = %Chain(&error), "unused slot is removed later");
            }
        });
    }
}

/// Starts the task of a slot that an earlier daemon made.
pub async fn launch_adopted(
    context: &Arc<SharedSlotContext>,
    pool: &Arc<Pool>,
    record: SlotRecord,
    found: AdoptedSlot,
) -> Slot {
    let state = match record.phase {
        SlotPhase::Claimed | SlotPhase::Failed { .. } => SlotState::Claimed,
        SlotPhase::Booting | SlotPhase::Ready | SlotPhase::Closing => SlotState::Booting,
        SlotPhase::Quarantined { .. } => SlotState::Quarantined,
    };
    let holder = record.claim.as_ref().map(|claim| claim.tenant.clone());
    pool.adopt(record.number, matches!(found, AdoptedSlot::Warm(_)), holder)
        .await;
    let (actor, slot) = SlotActor::new(Arc::clone(context), Arc::clone(pool), record, state);
    context.slots.insert(slot.clone());
    context.tasks.spawn(actor.run_adopted(found));
    slot
}

//! Writes the record and the metadata file of a slot.

use std::sync::Arc;
use std::time::SystemTime;

use skilld_common::unix_time::unix_ms;

use super::SlotActor;
use crate::error::{Chain, Result};
use crate::fault;
use crate::workspace::record::{self, SlotPhase};
use crate::workspace::slot_provisioning;
use crate::workspace::slot_state_machine::SlotState;

impl SlotActor {
    /// Returns the phase that the record stores for the current state.
    pub(super) fn record_phase(&self) -> SlotPhase {
        match self.state {
            SlotState::Booting => SlotPhase::Booting,
            SlotState::Ready => SlotPhase::Ready,
            SlotState::Claimed => SlotPhase::Claimed,
            SlotState::Closing | SlotState::Removed => SlotPhase::Closing,
            SlotState::Quarantined => SlotPhase::Quarantined {
                time_ms: unix_ms(SystemTime::now()),
            },
            SlotState::Failed(cause) => {
                let time = self
                    .failure
                    .as_ref()
                    .map_or_else(SystemTime::now, |failure| failure.time);
                SlotPhase::Failed {
                    cause,
                    time_ms: unix_ms(time),
                }
            }
        }
    }

    /// Writes the record and the metadata file. The disk has them a moment later; see `record.rs`.
    pub(super) async fn persist(&self) -> Result<()> {
        let (dir, record) = (Arc::clone(&self.dir), self.record.clone());
        let write = move || {
            if let Some(claim) = &record.claim {
                let metadata = slot_provisioning::metadata_json(&record, claim);
                record::overwrite_file(
                    &dir.join(slot_provisioning::METADATA),
                    metadata.as_bytes(),
                )?;
                fault::reach("claim.metadata");
            }
            record.write(&dir)
        };
        let tasks = &self.context.tasks;
        tasks.blocking(write).await?;
        let (dir, syncing) = (Arc::clone(&self.dir), tasks.clone());
        tasks.spawn(async move {
            if let Err(error) = syncing.blocking(move || record::sync_record(&dir)).await {
                tracing::error!(error = %Chain(&error), "slot record may not survive a power cut");
            }
        });
        Ok(())
    }

    /// Writes the metadata file again: the end of an earlier daemon may have interrupted its write.
    pub(super) async fn rewrite_metadata(&self) {
        let Some(claim) = &self.record.claim else {
            return;
        };
        let (path, text) = (
            self.dir.join(slot_provisioning::METADATA),
            slot_provisioning::metadata_json(&self.record, claim),
        );
        let write = move || record::overwrite_file(&path, text.as_bytes());
        if let Err(error) = self.context.tasks.blocking(write).await {
            tracing::error!(error = %Chain(&error), "the workspace's metadata file was not written");
        }
    }
}

//! The part of a slot's task that writes the slot down: its record, and what the commands see of it.

use std::sync::Arc;
use std::time::SystemTime;

use super::Actor;
use crate::error::{Chain, Result};
use crate::fault::{self, Point};
use crate::workspace::lease::unix_ms;
use crate::workspace::record::{self, Phase};
use crate::workspace::slot;
use crate::workspace::state::State;

impl Actor {
    /// Phase of the record that this state is.
    pub(super) fn phase(&self) -> Phase {
        match self.state {
            State::Booting => Phase::Booting,
            State::Ready => Phase::Ready,
            State::Claimed => Phase::Claimed,
            State::Closing | State::Removed => Phase::Closing,
            State::Quarantined => Phase::Quarantined {
                time_ms: unix_ms(SystemTime::now()),
            },
            State::Failed(cause) => {
                let time = self
                    .failure
                    .as_ref()
                    .map_or_else(SystemTime::now, |failure| failure.time);
                Phase::Failed {
                    cause,
                    time_ms: unix_ms(time),
                }
            }
        }
    }

    /// Writes the record, and what the commands see of it. The disk has it a moment later; see `record.rs`.
    pub(super) async fn persist(&self) -> Result<()> {
        let (dir, record) = (Arc::clone(&self.dir), self.record.clone());
        let write = move || {
            if let Some(claim) = &record.claim {
                let metadata = slot::metadata(&record, claim);
                record::overwrite(&dir.join(slot::METADATA), metadata.as_bytes())?;
                fault::reach(Point::ClaimMetadata);
            }
            record.write(&dir)
        };
        let tasks = &self.context.tasks;
        tasks.blocking(write).await?;
        let (dir, syncing) = (Arc::clone(&self.dir), tasks.clone());
        tasks.spawn(async move {
            if let Err(error) = syncing.blocking(move || record::sync(&dir)).await {
                tracing::error!(error = %Chain(&error), "slot record may not survive a power cut");
            }
        });
        Ok(())
    }

    /// Writes again what the commands see of the record: the end of a daemon may have left it half written.
    pub(super) async fn mend_metadata(&self) {
        let Some(claim) = &self.record.claim else {
            return;
        };
        let (path, text) = (
            self.dir.join(slot::METADATA),
            slot::metadata(&self.record, claim),
        );
        let write = move || record::overwrite(&path, text.as_bytes());
        if let Err(error) = self.context.tasks.blocking(write).await {
            tracing::error!(error = %Chain(&error), "the workspace's metadata file was not written");
        }
    }
}

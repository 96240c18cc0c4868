//! A warm slot between the pool and the request that takes it.

use std::sync::Arc;

use super::Pool;
use crate::error::{Error, Result};
use crate::workspace::Slot;

/// A warm slot that a request has taken. Dropped without [`Reserved::take`] it goes back.
#[derive(Debug)]
pub struct Reserved {
    pub(super) slot: Option<Slot>,
    pub(super) pool: Arc<Pool>,
    /// Of the pool's own size: others can use it too.
    pub(super) common: bool,
}

impl Reserved {
    /// The slot, while it is reserved.
    ///
    /// # Errors
    /// Never: it is there until [`Reserved::take`] consumes this.
    pub fn slot(&self) -> Result<&Slot> {
        let gone = || Error::Internal("slot was taken already".into());
        self.slot.as_ref().ok_or_else(gone)
    }

    /// The slot, for good.
    ///
    /// # Errors
    /// Never: it can be taken once and this consumes it.
    pub fn take(mut self) -> Result<Slot> {
        self.slot
            .take()
            .ok_or_else(|| Error::Internal("slot was taken twice".into()))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        if self.common {
            self.pool.give_back(&slot);
        } else {
            let tasks = self.pool.context.tasks.clone();
            tasks.spawn(async move {
                if let Err(error) = slot.delete().await {
                    tracing::warn!(slot = slot.number(), %error, "unused slot goes later");
                }
            });
        }
    }
}

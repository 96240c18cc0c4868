//! What images have, asked of a guest once per image, when somebody wants to know: in a container that nobody's command
//! ran in, so that nobody could have had a hand in the answer. (The image is read-only for commands anyway.)

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skilld_proto::guest::v1::InventoryRequest;

use super::Pool;
use crate::error::{Error, Result};
use crate::exec::PATH;
use crate::skills::preflight::Inventory;

/// Longest wait for a guest that looks. It gives up sooner itself.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Inventories by the image's id.
#[derive(Debug, Default)]
pub struct Inventories {
    known: Mutex<HashMap<String, Arc<Inventory>>>,
}

impl Inventories {
    /// What is known of an image.
    #[must_use]
    pub fn get(&self, image_id: &str) -> Option<Arc<Inventory>> {
        self.known().get(image_id).cloned()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Arc<Inventory>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// What the pool's image has. The first one who asks waits for a warm container, which then goes back.
    ///
    /// # Errors
    /// As [`Pool::claim`]; `WorkspaceNotReady` when the container was lost meanwhile; `NotImplemented` when its guest
    /// cannot say, being of an earlier release.
    pub async fn inventory(self: &Arc<Self>) -> Result<Arc<Inventory>> {
        let (inventories, image_id) = (&self.context.inventories, &self.image.id);
        if let Some(inventory) = inventories.get(image_id) {
            return Ok(inventory);
        }
        // It goes back when it is dropped, so nobody's command runs in it until its guest has answered.
        let reserved = self.claim().await?;
        let mut guest = reserved.slot()?.guest().await?;
        let request = InventoryRequest {
            path: PATH.to_owned(),
        };
        let why = match tokio::time::timeout(TIMEOUT, guest.inventory(request)).await {
            Ok(Ok(answer)) => {
                let inventory = Arc::new(Inventory::from(answer.into_inner()));
                let mut known = inventories.known();
                known.insert(image_id.clone(), Arc::clone(&inventory));
                return Ok(inventory);
            }
            Ok(Err(status)) => status.to_string(),
            Err(_) => format!("no answer within {TIMEOUT:?}"),
        };
        tracing::debug!(image_id, why, "image was not looked into");
        Err(Error::NotImplemented {
            what: "looking into an image with a guest of an earlier release",
        })
    }
}

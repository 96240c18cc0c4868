//! What images have, asked of a guest once per image: in a container that nobody's command ran in, so that nobody could
//! have had a hand in the answer. (The image is read-only for commands anyway.)

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skilld_proto::guest::v1::InventoryRequest;

use super::Pool;
use crate::error::{Error, Result};
use crate::exec::PATH;
use crate::guest::Link;
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

    /// Asks a guest whose container has run nothing for anybody, unless its image is known. A guest that cannot say is
    /// no reason to do without its container.
    pub async fn learn(&self, image_id: &str, link: &Link) {
        if self.known().contains_key(image_id) {
            return;
        }
        let mut guest = link.client.clone();
        let request = InventoryRequest {
            path: PATH.to_owned(),
        };
        match tokio::time::timeout(TIMEOUT, guest.inventory(request)).await {
            Ok(Ok(answer)) => {
                let inventory = Arc::new(Inventory::from(answer.into_inner()));
                self.known().insert(image_id.to_owned(), inventory);
            }
            Ok(Err(status)) => tracing::debug!(image_id, %status, "image was not looked into"),
            Err(_) => tracing::debug!(image_id, "image was not looked into in time"),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Arc<Inventory>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// What the pool's image has. If no container of it has booted yet, one is awaited, and goes back.
    ///
    /// # Errors
    /// As [`Pool::claim`]; `NotImplemented` when its guests are of an earlier release.
    pub async fn inventory(self: &Arc<Self>) -> Result<Arc<Inventory>> {
        let known = || self.context.inventories.get(&self.image.id);
        if let Some(inventory) = known() {
            return Ok(inventory);
        }
        drop(self.claim().await?);
        known().ok_or(Error::NotImplemented {
            what: "looking into an image with a guest of an earlier release",
        })
    }
}

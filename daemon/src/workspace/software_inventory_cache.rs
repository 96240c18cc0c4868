//! Programs and packages of images, listed once for each image. A guest inspects an image when a client first asks for
//! what a skill lacks. It does so in a container in which no command has run, so that no command can have changed the answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use skilld_proto::guest::v1::{InventoryRequest, InventoryResponse};
use tonic::Code;

use crate::error::{Error, Result};
use crate::exec::ImageEnvironment;
use crate::guest::GuestClient;
use crate::pool::Pool;
use crate::skills::preflight::ImageInventory;
use crate::workspace::slot_table::SlotTable;

/// Longest wait for a guest's answer: some 200,000 entries from a slow disk.
const INVENTORY_TIMEOUT: Duration = Duration::from_secs(60);

/// Inventories by image id.
#[derive(Debug, Default)]
pub struct SoftwareInventoryCache {
    known: Mutex<HashMap<String, Arc<ImageInventory>>>,
}

impl SoftwareInventoryCache {
    /// Returns the inventory of a pool's image; `None` if no guest was asked for it yet, or the pool has no image.
    pub fn find(&self, pool: &Pool) -> Option<Arc<ImageInventory>> {
        self.known.lock().get(&pool.image()?.id).map(Arc::clone)
    }

    /// Returns the inventory of a pool's image. The first call reserves a warm slot and asks its guest.
    ///
    /// # Errors
    /// As [`Pool::claim`] and [`ask_inventory`]; `WorkspaceNotReady` when the slot was lost meanwhile.
    pub async fn find_or_ask(&self, pool: &Pool, slots: &SlotTable) -> Result<Arc<ImageInventory>> {
        let image = pool.require_image()?;
        let image_id = &image.id;
        if let Some(inventory) = self.known.lock().get(image_id) {
            return Ok(Arc::clone(inventory));
        }
        // The reservation keeps commands out of the slot until the guest has answered; then the slot returns.
        let reservation = pool.claim(pool.config.limits()).await?;
        let guest = slots.reserved(&reservation)?.guest().await?;
        let path = ImageEnvironment::new(&image.env).path();
        let found = ask_inventory(guest, reservation.number, path).await?;
        let inventory = Arc::new(ImageInventory {
            programs: found.programs.into_iter().collect(),
            python_packages: found.python_packages.into_iter().collect(),
            python_modules: found.python_modules.into_iter().collect(),
            node_packages: found.node_packages.into_iter().collect(),
        });
        self.known
            .lock()
            .insert(image_id.clone(), Arc::clone(&inventory));
        Ok(inventory)
    }
}

/// Asks the guest of a slot for the programs and packages of its image. `path` is the search path of programs.
///
/// # Errors
/// `NotImplemented` when the guest is of a release that can't inspect images; `GuestLost` when it does not answer in time.
pub(super) async fn ask_inventory(
    mut guest: GuestClient,
    slot: u32,
    path: String,
) -> Result<InventoryResponse> {
    let workspace = format!("slot {slot}");
    let request = InventoryRequest { path };
    match tokio::time::timeout(INVENTORY_TIMEOUT, guest.inventory(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) if status.code() == Code::Unimplemented => Err(Error::NotImplemented {
            what: "looking into an image with a guest of an earlier release",
        }),
        Ok(Err(status)) => Err(Error::from_guest(&workspace, &status)),
        Err(_) => Err(Error::guest_lost(
            workspace,
            format!("no answer within {INVENTORY_TIMEOUT:?}"),
        )),
    }
}

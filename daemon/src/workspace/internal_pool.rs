//! Containers for work of the daemon itself: pools that no request can name. A caller takes a slot, runs commands in
//! its container, and drops it.
//!
//! A slot of an internal pool never becomes a workspace. It stays unclaimed, so no listing contains it, and it is used
//! once. After a stop or a crash the next daemon removes it, because no configured pool has its pool's name.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use skilld_proto::guest::v1 as guest;
use skilld_proto::guest::v1::put_files_request::Payload;
use skilld_proto::v1 as pb;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::PoolConfig;
use crate::engine::ImageInfo;
use crate::error::{Chain, Error, Result};
use crate::guest::{ARCHIVE_ENTRIES_MAX, GuestClient};
use crate::pool::Pool;
use crate::shutdown::RefusedWork;
use crate::workspace::Slot;
use crate::workspace::launcher::WorkspaceLauncher;
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace::slot_provisioning;

mod internal_command;

pub use internal_command::{CommandEnd, InternalCommand};

/// Prefix of the names of internal pools. A configured pool cannot have such a name.
const NAME_PREFIX: &str = "internal:";
/// Longest wait for the answer to a call that configures a guest.
const CONFIGURE_TIMEOUT: Duration = Duration::from_secs(5);

/// Pool without warm slots that only its owner uses. Dropping it ends the pool; slots that were taken stay usable.
#[derive(Debug)]
pub struct InternalPool {
    context: Arc<SharedSlotContext>,
    pool: Arc<Pool>,
    _end: DropGuard,
}

/// Container of an internal pool that its owner uses alone. Dropping it removes the container in a task.
#[derive(Debug)]
pub struct InternalSlot {
    context: Arc<SharedSlotContext>,
    slot: Slot,
    pub(super) guest: GuestClient,
    _in_use: DropGuard,
}

impl InternalPool {
    /// Starts a pool of this image. `template` gives everything else: the limits of a container, its OCI runtime, the
    /// program that warms it up, and `max`, the number of slots at the same time.
    pub async fn start(
        context: &Arc<SharedSlotContext>,
        name: &str,
        image: ImageInfo,
        template: &PoolConfig,
    ) -> Self {
        let config = PoolConfig {
            name: format!("{NAME_PREFIX}{name}"),
            image: image.reference.clone(),
            warm: 0,
            // Each claim boots its slot.
            claim_timeout: template.claim_timeout + context.config.engine.boot_timeout,
            ..template.clone()
        };
        // A drain boots nothing any more, and the pool ends with its owner.
        let stop = context.tasks.drain.child_token();
        let mut tasks = context.tasks.clone();
        tasks.stop = stop.clone();
        let launcher = Arc::new(WorkspaceLauncher(Arc::clone(context)));
        let metrics = Arc::clone(&context.metrics);
        let pool = Pool::start(&tasks, config, image, launcher, metrics);
        pool.open().await;
        Self {
            context: Arc::clone(context),
            pool,
            _end: stop.drop_guard(),
        }
    }

    /// Boots a slot and configures its guest, so that commands can run in it.
    ///
    /// # Errors
    /// [`Error::Image`] when a container of the image does not start; [`Error::PoolExhausted`] when `max` slots are in
    /// use for too long; [`Error::EngineUnavailable`]; [`Error::Draining`].
    pub async fn take_slot(&self) -> Result<InternalSlot> {
        if self.context.tasks.refuses(RefusedWork::Execs) {
            return Err(Error::Draining);
        }
        let limits = self.pool.config.limits();
        let reservation = tokio::select! {
            reservation = self.pool.claim(limits) => reservation?,
            why = self.pool.wait_for_failed_boot() => {
                let (image, why) = (self.pool.config.image.clone(), format!("no container of it starts: {why}"));
                return Err(Error::image(image, why));
            }
        };
        let slot = self.context.slots.reserved(&reservation)?;
        reservation.keep();
        let in_use = CancellationToken::new();
        self.remove_after_use(slot.clone(), in_use.clone());
        let _in_use = in_use.drop_guard();
        let guest = slot.guest().await?;
        let taken = InternalSlot {
            context: Arc::clone(&self.context),
            slot,
            guest,
            _in_use,
        };
        taken.configure().await?;
        Ok(taken)
    }

    /// Removes a slot once its owner has dropped it. When the daemon stops first, the next one removes the slot.
    fn remove_after_use(&self, slot: Slot, in_use: CancellationToken) {
        let stop = self.context.tasks.stop.clone();
        self.context.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => return,
                () = in_use.cancelled() => {}
            }
            if let Err(error) = slot.delete().await {
                tracing::warn!(slot = slot.number, error = %Chain(&error), "internal slot is removed later");
            }
        });
    }
}

impl InternalSlot {
    /// Returns the number of the slot.
    pub fn number(&self) -> u32 {
        self.slot.number
    }

    /// Returns the PATH of commands without a skill.
    pub fn search_path(&self) -> String {
        self.slot.snapshot().record.image_env.path()
    }

    /// Writes one file, or unpacks an archive, beneath /workspace. `header.path` is relative to it and normalised; each
    /// piece of `data` has at most 1 MiB.
    ///
    /// # Errors
    /// The guest's error, for instance for a full disk; [`Error::GuestLost`] when the container has ended.
    pub async fn stage_files(
        &self,
        header: pb::StageFilesHeader,
        data: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<pb::StageFilesResponse> {
        let header = guest::PutFilesHeader {
            file: Some(header),
            entries_max: ARCHIVE_ENTRIES_MAX,
            bytes_max: self.context.config.files.stage_bytes_max,
        };
        let payloads = stream::iter([Payload::Header(header)]).chain(data.map(Payload::Data));
        let requests = payloads.map(|payload| guest::PutFilesRequest {
            payload: Some(payload),
        });
        let staged = self
            .guest
            .clone()
            .put_files(requests)
            .await
            .map_err(|status| Error::from_guest(&self.name(), &status))?;
        Ok(staged.into_inner())
    }

    /// Configures the guest, which accepts commands and files only after that.
    async fn configure(&self) -> Result<()> {
        let id = format!("internal-{}", self.slot.number);
        let request = slot_provisioning::configure_request(&self.context, &id);
        let mut guest = self.guest.clone();
        let configured = tokio::time::timeout(CONFIGURE_TIMEOUT, guest.configure(request)).await;
        match configured {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(Error::from_guest(&self.name(), &status)),
            Err(_) => Err(Error::guest_lost(
                self.name(),
                format!("no answer within {CONFIGURE_TIMEOUT:?}"),
            )),
        }
    }

    fn name(&self) -> String {
        format!("slot {}", self.slot.number)
    }
}

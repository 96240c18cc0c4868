//! Disk of a slot whose pool has `storage = "disk"`. This module checks what the host needs for the
//! disk, makes it before the container, and removes it after the container.
//!
//! The file lies in the slot's directory and is deleted with it. Its loop device needs no record: the kernel frees it with
//! the container's mount. One that was attached and never used is freed before the directory is deleted, or, if the daemon
//! was killed, by the next start.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{Config, WorkspaceStorage};
use crate::engine::EngineInfo;
use crate::engine::workspace_disk::{
    self, BackingFiles, DiskGeometry, DiskOptions, GeometryFault, LoopDevice, find_host_fault,
};
use crate::error::{Chain, Error, Result, tolerate};
use crate::workspace::record::SlotRecord;
use crate::workspace::shared_slot_context::SharedSlotContext;

/// Checks that this host can have workspaces on disk, if a pool wants them. Blocks.
///
/// # Errors
/// [`Error::Start`] with what to install or to change.
pub fn require_host_support(config: &Config, info: &EngineInfo) -> Result<()> {
    let mut pools = config.pools.iter();
    let on_disk = pools.find(|pool| pool.storage == WorkspaceStorage::Disk);
    let Some((pool, fault)) = on_disk.zip(find_host_fault(info)) else {
        return Ok(());
    };
    let why = format!(
        "pool {name} has storage = \"disk\", and {fault}; or set pools.{name}.storage = \"tmpfs\"",
        name = pool.name
    );
    Err(Error::start("a pool's storage", why))
}

/// Makes the file system of a new slot and attaches it to a loop device, for the time until its container has it mounted.
/// Returns `None` for a workspace in memory.
///
/// # Errors
/// When the host's disk is full or would have less than its reserve left, or a program of the host fails.
pub async fn attach_new_disk(
    context: &Arc<SharedSlotContext>,
    record: &SlotRecord,
) -> Result<Option<LoopDevice>> {
    if record.storage != WorkspaceStorage::Disk {
        return Ok(None);
    }
    let limits = record.limits;
    let geometry =
        DiskGeometry::fit(limits.disk_bytes, limits.inodes).map_err(|fault| limit_error(&fault))?;
    let options = DiskOptions {
        owner: record.uid,
        reserve_bytes: context.config.workspaces.disk_reserve_bytes,
    };
    let path = disk_path(context, record.number);
    let tasks = context.tasks.clone();
    // In a task of its own, for which a stopping daemon waits, so that no step of a program is cut off.
    let making = context.tasks.spawn(async move {
        workspace_disk::create_disk(&tasks, &path, geometry, options).await?;
        LoopDevice::attach(&tasks, &path).await
    });
    let made = making
        .await
        .map_err(|error| Error::Internal(format!("make the disk of a workspace: {error}")))?;
    made.map(Some)
}

/// Deletes the disk of a slot without a container, whose directory stays for a while. Its space is free as soon as the
/// kernel has ended the mount.
pub async fn delete_disk(context: &SharedSlotContext, number: u32) {
    let path = disk_path(context, number);
    let delete = move || {
        let deleted = tolerate(io::ErrorKind::NotFound, std::fs::remove_file(&path));
        deleted.map_err(|source| Error::io(format!("delete {}", path.display()), source))
    };
    if let Err(error) = context.tasks.blocking(delete).await {
        // It is deleted with the directory.
        tracing::error!(error = %Chain(&error), "the disk of a lost workspace is left for now");
    }
}

/// Frees a loop device over the disk of a slot whose container is gone, if an attempt to attach one left it.
pub async fn release_device(context: &SharedSlotContext, record: &SlotRecord) {
    if record.storage != WorkspaceStorage::Disk {
        return;
    }
    let path = disk_path(context, record.number);
    let find = move || Ok(BackingFiles::find(&[path], None));
    release(context.tasks.blocking(find).await).await;
}

/// Frees the loop devices that a daemon left which was killed while it attached them.
pub async fn release_left_devices(context: &SharedSlotContext) {
    let slots_dir = context.slots_dir();
    let mut pools = context.config.pools.iter();
    let has_disk_pools = pools.any(|pool| pool.storage == WorkspaceStorage::Disk);
    let list = move || {
        let entries = std::fs::read_dir(&slots_dir)
            .into_iter()
            .flatten()
            .flatten();
        let files: Vec<_> = entries
            .map(|entry| entry.path().join(workspace_disk::FILE_NAME))
            .filter(|file| file.exists())
            .collect();
        let has_disks = !files.is_empty() || has_disk_pools;
        let deleted_in = has_disks.then_some(slots_dir.as_path());
        Ok(BackingFiles::find(&files, deleted_in))
    };
    release(context.tasks.blocking(list).await).await;
}

async fn release(files: Result<BackingFiles>) {
    let released = match files {
        Ok(files) => workspace_disk::release_devices(&files).await,
        Err(error) => Err(error),
    };
    if let Err(error) = released {
        tracing::warn!(error = %Chain(&error), "loop devices of workspaces may be left: see `losetup --list`");
    }
}

/// Makes the error of a requested limit that no file system can enforce.
pub fn limit_error(fault: &GeometryFault) -> Error {
    let (field, why) = match fault {
        GeometryFault::Size(why) => ("limits.disk_bytes", why),
        GeometryFault::Inodes(why) => ("limits.inodes", why),
    };
    Error::LimitUnsupported {
        field: field.to_owned(),
        why: why.clone(),
    }
}

fn disk_path(context: &SharedSlotContext, number: u32) -> PathBuf {
    context.slot_dir(number).join(workspace_disk::FILE_NAME)
}

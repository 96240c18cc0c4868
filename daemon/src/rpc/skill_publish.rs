//! Receives the archive of a PublishSkill stream, and runs the task that removes unused skills from the store.

use std::collections::HashSet;
use std::fs::File;
use std::io::Seek;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use skilld_proto::v1 as pb;
use tokio::io::AsyncWriteExt;
use tonic::Streaming;

use super::convert::skill_publish as wire;
use super::{SharedDependencies, upload};
use crate::access::Caller;
use crate::error::{Chain, Error, Result};
use crate::skills::Skill;

/// Interval between removals of unused skills, if no call wakes the task.
const SWEEP_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Size in bytes by which an archive may exceed what its files count: a tar ends with up to 10 KiB of zeros.
const ARCHIVE_OVERHEAD_BYTES: u64 = 64 << 10;
/// Maximum duration of a whole upload, as a multiple of `server.upload_timeout`.
const UPLOAD_TIMES: u32 = 10;

/// Receives a stream to its end and publishes the skill in it, within the tenant's quota of published bytes.
///
/// # Errors
/// See `PublishSkill` in the API.
pub async fn receive_archive(
    shared: &SharedDependencies,
    caller: &Caller,
    mut client: Streaming<pb::PublishSkillRequest>,
) -> Result<Skill> {
    let first = upload::first_message(&mut client, shared, "header").await?;
    let wanted = wire::publish(&first)?;
    let patience = shared.config.server.upload_timeout;
    let busy = Error::deadline("waiting for other archives to be published");
    let permit = shared.publishes.acquire(caller.tenant().as_str());
    let Ok(permit) = tokio::time::timeout(patience, permit).await else {
        return Err(busy);
    };
    let (skills, bytes_quota) = (shared.skills.of(caller), caller.limits().published_bytes);
    let file = skills.create_upload().await?;
    let limit = archive_limit(shared, caller);
    let bytes = write_archive(shared, client, file, &wanted.sha256, limit);
    let slow = |_| Error::deadline("receiving an archive (ten times server.upload_timeout)");
    let file = tokio::time::timeout(patience * UPLOAD_TIMES, bytes)
        .await
        .map_err(slow)??;
    // Unpacking goes on when the client is gone, and keeps its permit until its end.
    let owner = Arc::clone(shared);
    let publish = shared.tasks.spawn(async move {
        let _permit = permit;
        let published = skills
            .publish(wanted.name, file, wanted.kind, bytes_quota)
            .await;
        if published.is_err() {
            remove_orphans(&owner).await;
        }
        published
    });
    publish
        .await
        .map_err(|error| Error::Internal(format!("publishing: {error}")))?
        .map_err(Error::from)
}

/// Returns the maximum size of an archive of a caller in bytes, and the error of a larger one.
fn archive_limit(shared: &SharedDependencies, caller: &Caller) -> (u64, Error) {
    let limit = shared.config.skills.options.bytes_max;
    let tenant = caller.tenant();
    let quota = caller.limits().published_bytes;
    // What is larger than the quota allows is not even received: its files would count more.
    match quota.filter(|quota| quota.saturating_add(ARCHIVE_OVERHEAD_BYTES) < limit) {
        Some(quota) => {
            let used = shared.skills.of_daemon().published_bytes(tenant.as_str());
            let error = Error::tenant_quota(tenant, "published_bytes", used, quota);
            (quota + ARCHIVE_OVERHEAD_BYTES, error)
        }
        None => {
            let what = "bytes of the archive (skills.bytes_max)";
            (limit, Error::limit_exceeded(what, limit))
        }
    }
}

/// Writes the stream's bytes to `file`, and checks their number and their checksum.
async fn write_archive(
    shared: &SharedDependencies,
    mut client: Streaming<pb::PublishSkillRequest>,
    file: File,
    sha256: &str,
    (bytes_max, too_large): (u64, Error),
) -> Result<File> {
    let failed = |source| Error::io("receive an archive", source);
    let mut file = tokio::fs::File::from_std(file);
    let (mut hash, mut bytes) = (Sha256::new(), 0_u64);
    while let Some(message) = upload::next_message(&mut client, shared).await? {
        let data = wire::data(message)?;
        bytes += data.len() as u64;
        if bytes > bytes_max {
            return Err(too_large);
        }
        hash.update(&data);
        file.write_all(&data).await.map_err(failed)?;
    }
    let actual = HEXLOWER.encode(&hash.finalize());
    if !sha256.is_empty() && sha256 != actual {
        return Err(Error::ChecksumMismatch {
            expected: sha256.to_owned(),
            actual,
        });
    }
    file.flush().await.map_err(failed)?;
    let mut archive = file.into_std().await;
    archive.rewind().map_err(failed)?;
    Ok(archive)
}

/// Removes unused skills and environments from their stores, periodically and when
/// [`super::ServiceDependencies::sweep`] is notified, until the daemon stops.
pub async fn sweep_store(shared: SharedDependencies) {
    // Each sweep looks through the stores, and `skills.keep_unused` may be a millisecond.
    let interval = SWEEP_INTERVAL
        .min(shared.config.skills.options.keep_unused)
        .max(Duration::from_millis(100));
    loop {
        tokio::select! {
            () = shared.tasks.stop.cancelled() => return,
            () = shared.sweep.notified() => {}
            () = tokio::time::sleep(interval) => {}
        }
        let (skills, registry) = (shared.skills.of_daemon(), &shared.registry);
        if let Err(error) = shared.environments.collect(skills, registry).await {
            tracing::warn!(error = %Chain(&error), "unused environments could not be removed");
        }
        if let Err(error) = skills.collect(staged_digests(&shared)).await {
            tracing::warn!(%error, "unused skills could not be removed from the store");
        }
    }
}

/// Removes the files of deleted publications when the last workspace that has them ends, until the daemon stops.
pub async fn sweep_after_workspaces(shared: SharedDependencies) {
    loop {
        tokio::select! {
            () = shared.tasks.stop.cancelled() => return,
            () = shared.registry.context.workspaces.wait_for_removal() => {}
        }
        remove_orphans(&shared).await;
    }
}

/// Removes the files of deleted publications, and those of publications that failed. What stays counts for its tenant.
pub(super) async fn remove_orphans(shared: &SharedDependencies) {
    let skills = shared.skills.of_daemon();
    if let Err(error) = skills.remove_orphans(staged_digests(shared)).await {
        tracing::warn!(%error, "a deleted skill could not be removed from the store");
    }
}

/// Returns the digests of the skills that workspaces have.
fn staged_digests(shared: &SharedDependencies) -> HashSet<String> {
    let mut staged = HashSet::new();
    for workspace in shared.registry.list_all() {
        if let Some(claim) = &workspace.snapshot().record.claim {
            let digests = claim.skills.values().map(|skill| &skill.digest);
            staged.extend(digests.map(|digest| digest.trim_start_matches("sha256:").to_owned()));
        }
    }
    staged
}

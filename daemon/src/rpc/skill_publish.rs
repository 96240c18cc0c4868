//! Receives the archive of a PublishSkill stream, and runs the task that removes unused skills from the store.

use std::collections::HashSet;
use std::fs::File;
use std::io::Seek;
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
    let busy = Error::Deadline {
        doing: "waiting for other archives to be published (skills.publishes_max)",
    };
    let permit = shared.publishes.acquire(caller.tenant());
    let Ok(Ok(permit)) = tokio::time::timeout(patience, permit).await else {
        return Err(busy);
    };
    let (skills, bytes_quota) = (shared.skills.of(caller), caller.limits().published_bytes);
    let file = skills.create_upload().await?;
    let bytes = write_archive(shared, client, file, &wanted.sha256);
    let slow = |_| Error::Deadline {
        doing: "receiving an archive (ten times server.upload_timeout)",
    };
    let file = tokio::time::timeout(patience * UPLOAD_TIMES, bytes)
        .await
        .map_err(slow)??;
    // Unpacking goes on when the client is gone, and keeps its permit until its end.
    let publish = shared.tasks.spawn(async move {
        let _permit = permit;
        skills
            .publish(wanted.name, file, wanted.kind, bytes_quota)
            .await
    });
    publish
        .await
        .map_err(|error| Error::Internal(format!("publishing: {error}")))?
        .map_err(Error::from)
}

/// Writes the stream's bytes to `file`, and checks their number and their checksum.
async fn write_archive(
    shared: &SharedDependencies,
    mut client: Streaming<pb::PublishSkillRequest>,
    file: File,
    sha256: &str,
) -> Result<File> {
    let failed = |source| Error::Io {
        operation: "receive an archive".to_owned(),
        source,
    };
    let limit = shared.config.skills.publish_bytes_max;
    let mut file = tokio::fs::File::from_std(file);
    let (mut hash, mut bytes) = (Sha256::new(), 0_u64);
    while let Some(message) = upload::next_message(&mut client, shared).await? {
        let data = wire::data(message)?;
        bytes += data.len() as u64;
        if bytes > limit {
            let what = "bytes of the archive (skills.publish_bytes_max)".to_owned();
            return Err(Error::LimitExceeded { what, limit });
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
    let mut file = file.into_std().await;
    file.rewind().map_err(failed)?;
    Ok(file)
}

/// Removes unused skills and environments from their stores, periodically and when
/// [`super::ServiceDependencies::sweep`] is notified, until the daemon stops.
pub async fn sweep_store(shared: SharedDependencies) {
    let interval = SWEEP_INTERVAL.min(shared.config.skills.options.keep_unused);
    loop {
        tokio::select! {
            () = shared.tasks.stop.cancelled() => return,
            () = shared.sweep.notified() => {}
            () = tokio::time::sleep(interval.max(Duration::from_millis(100))) => {}
        }
        let workspaces = shared.registry.list_all().into_iter();
        let claims = workspaces.filter_map(|workspace| workspace.snapshot().record.claim.clone());
        let digests = claims.flat_map(|claim| claim.skills.into_values());
        let staged = digests.map(|digest| digest.trim_start_matches("sha256:").to_owned());
        let staged: HashSet<String> = staged.collect();
        let (skills, registry) = (shared.skills.of_daemon(), &shared.registry);
        if let Err(error) = shared.environments.collect(skills, registry).await {
            tracing::warn!(error = %Chain(&error), "unused environments could not be removed");
        }
        if let Err(error) = skills.collect(staged).await {
            tracing::warn!(%error, "unused skills could not be removed from the store");
        }
    }
}

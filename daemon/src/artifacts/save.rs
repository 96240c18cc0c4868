//! Steps of a save: its permit, the bytes with their room within the tenant's quotas, then the record.

use bytes::Bytes;
use futures::Stream;
use tokio_util::sync::CancellationToken;

use super::byte_ledger::SaveRoom;
use super::publish::{PublishOutcome, repeated_with_other_bytes};
use super::upload::{ArtifactUpload, WrittenData};
use super::{
    Artifact, ArtifactName, ArtifactQuotas, ArtifactScope, ArtifactsState, SaveOptions, key,
};
use crate::access::{TenantName, TenantPermit};
use crate::error::{Error, Result};
use crate::fault;

impl ArtifactsState {
    pub(super) async fn save<S>(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        save: SaveOptions,
        data: S,
        gone: CancellationToken,
    ) -> Result<Artifact>
    where
        S: Stream<Item = Result<Bytes>> + Send,
    {
        let stop = &self.store.tasks.stop;
        let (tenant, quotas) = (scope.tenant(), self.quotas(scope.tenant()));
        let wait = async {
            let room = self.begin_room(scope, name, &save, quotas).await?;
            Ok::<_, Error>((room, self.acquire_permit(tenant).await?))
        };
        let (mut room, _permit) = tokio::select! {
            begun = wait => begun?,
            () = gone.cancelled() => return Err(CANCELLED),
            () = stop.cancelled() => return Err(Error::Draining),
        };
        let mut upload = ArtifactUpload::begin(&self.store, scope, name).await?;
        fault::reach("save.marked");
        let take_room = |size| self.take_room(&mut room, tenant, name, size);
        let written = self
            .write(&mut upload, name, &save, (data, take_room), &gone)
            .await;
        let written = match written {
            Ok(written) => written,
            Err(error) => {
                // Its room counts until the bytes are gone.
                upload.abort().await;
                return Err(error);
            }
        };
        fault::reach("save.written");
        match self
            .publish(scope, name, save, (&written, room), &mut upload)
            .await
        {
            Ok(PublishOutcome::New(artifact)) => Ok(artifact),
            Ok(PublishOutcome::Repeated(artifact)) => {
                upload.abort().await;
                Ok(artifact)
            }
            // The version may exist, so marker and bytes stay until the cleanup has checked.
            Err(error @ Error::StorageUnsure { .. }) => Err(error),
            Err(error) => {
                upload.abort().await;
                Err(error)
            }
        }
    }

    /// Returns the quotas of a tenant's artifacts as they are now.
    pub(super) fn quotas(&self, tenant: &TenantName) -> ArtifactQuotas {
        let Some(access) = &self.access else {
            return ArtifactQuotas::default();
        };
        match access.limits(tenant) {
            Some(limits) => ArtifactQuotas {
                bytes: limits.artifact_bytes,
                versions: limits.artifacts,
            },
            // The tenant was removed from the file, unless authentication is off. A save of it may be running.
            None => ArtifactQuotas {
                bytes: (!access.tenants().is_empty()).then_some(0),
                versions: None,
            },
        }
    }

    /// Takes room for an empty version, unless the save repeats an earlier one.
    async fn begin_room(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        save: &SaveOptions,
        quotas: ArtifactQuotas,
    ) -> Result<SaveRoom> {
        // The first save may have taken the last room.
        if quotas.bytes.or(quotas.versions).is_some()
            && let Some(first) = self.find_repeated(scope, name, save).await?
        {
            return Ok(SaveRoom::Repeated { size: first.size });
        }
        // Before the permit, so that tenants without a quota do not wait for the count.
        if quotas.bytes.is_some() {
            self.ledger.wait_until_counted(self.patience).await;
        }
        let empty = key::held_bytes(name, 0);
        let room = self.ledger.reserve(scope.tenant(), empty, quotas)?;
        Ok(SaveRoom::Reserved(room))
    }

    /// Takes room for a save of this size so far, within the limits of one artifact and of its tenant. An upload may take
    /// hours, in which the quotas may change.
    fn take_room(
        &self,
        room: &mut SaveRoom,
        tenant: &TenantName,
        name: &ArtifactName,
        size: u64,
    ) -> Result<()> {
        if size > self.bytes_max {
            let what = "the artifact (artifacts.bytes_max)";
            return Err(Error::limit_exceeded(what, self.bytes_max));
        }
        match room {
            SaveRoom::Reserved(room) => room.grow(key::held_bytes(name, size), self.quotas(tenant)),
            SaveRoom::Repeated { size: first } if size > *first => Err(repeated_with_other_bytes()),
            SaveRoom::Repeated { .. } => Ok(()),
        }
    }

    /// Writes the bytes and waits until they are safe.
    async fn write<S>(
        &self,
        upload: &mut ArtifactUpload,
        name: &ArtifactName,
        save: &SaveOptions,
        (data, take_room): (S, impl FnMut(u64) -> Result<()> + Send),
        gone: &CancellationToken,
    ) -> Result<WrittenData>
    where
        S: Stream<Item = Result<Bytes>> + Send,
    {
        let stop = &self.store.tasks.stop;
        let written = tokio::select! {
            written = upload.receive(name, data, take_room) => written,
            () = gone.cancelled() => Err(CANCELLED),
            () = stop.cancelled() => Err(Error::Draining),
        };
        let written = check_digest(save.sha256.as_deref(), written?)?;
        // The store completes a write that has begun, even if no one waits. A cleanup before its end would miss the
        // bytes, so this waits also for a caller that has gone away.
        tokio::select! {
            finished = upload.finish() => finished?,
            () = stop.cancelled() => return Err(Error::Draining),
        }
        if gone.is_cancelled() {
            return Err(CANCELLED);
        }
        upload.check_age()?;
        Ok(written)
    }

    /// Waits for a permit to save.
    async fn acquire_permit(&self, tenant: &TenantName) -> Result<TenantPermit> {
        tokio::time::timeout(self.patience, self.saves.acquire(tenant.as_str()))
            .await
            .map_err(|_| Error::quota_exceeded("saves of artifacts at once", self.saves_max as u64))
    }
}

/// Error for a caller that has gone away.
pub(super) const CANCELLED: Error = Error::deadline("saving the artifact");

fn check_digest(sha256: Option<&str>, written: WrittenData) -> Result<WrittenData> {
    match sha256 {
        Some(expected) if !expected.eq_ignore_ascii_case(&written.sha256) => {
            Err(Error::ChecksumMismatch {
                expected: expected.to_owned(),
                actual: written.sha256,
            })
        }
        _ => Ok(written),
    }
}

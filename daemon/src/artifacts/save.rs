//! Steps of a save: its permit and its room within the tenant's quota, the bytes, then the record.

use bytes::Bytes;
use futures::Stream;
use tokio_util::sync::CancellationToken;

use super::upload::{ArtifactUpload, WrittenData};
use super::{Artifact, ArtifactName, ArtifactScope, ArtifactsState, SaveOptions};
use crate::access::{TenantName, TenantPermit};
use crate::error::{Error, Result};
use crate::fault::{self, Point};

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
        let (tenant, quota) = (scope.tenant(), self.quota(scope.tenant()));
        let wait = async {
            // Before the permit, so that tenants without a quota do not wait for the count.
            if quota.is_some() {
                self.ledger.wait_until_counted(self.patience).await;
            }
            self.ledger.check_room(tenant, 0, quota)?;
            self.acquire_permit(tenant).await
        };
        let _permit = tokio::select! {
            permit = wait => permit?,
            () = gone.cancelled() => return Err(CANCELLED),
            () = stop.cancelled() => return Err(Error::Draining),
        };
        let mut upload = ArtifactUpload::begin(&self.store, scope, name).await?;
        fault::reach(Point::SaveMarked);
        let check_size = |size| self.check_size(tenant, size, quota);
        let written = self
            .write(&mut upload, name, &save, (data, check_size), &gone)
            .await;
        let written = written.and_then(|written| {
            // An upload may take hours, in which the quota may have changed.
            let room = self
                .ledger
                .reserve(tenant, written.size, self.quota(tenant))?;
            Ok((written, room))
        });
        let (written, room) = match written {
            Ok(written) => written,
            Err(error) => {
                upload.abort().await;
                return Err(error);
            }
        };
        fault::reach(Point::SaveWritten);
        match self
            .publish(scope, name, save.mime_type, (&written, room), &mut upload)
            .await
        {
            Ok(artifact) => Ok(artifact),
            // The version may exist, so marker and bytes stay until the cleanup has checked.
            Err(error @ Error::StorageUnsure { .. }) => Err(error),
            Err(error) => {
                upload.abort().await;
                Err(error)
            }
        }
    }

    /// Returns the quota of a tenant's artifacts in bytes, as it is now; `None` if they are not limited.
    pub(super) fn quota(&self, tenant: &TenantName) -> Option<u64> {
        let access = self.access.as_ref()?;
        match access.limits(tenant) {
            Some(limits) => limits.artifact_bytes,
            // The tenant was removed from the file, unless authentication is off. Its collections may be pending.
            None => (!access.tenants().is_empty()).then_some(0),
        }
    }

    /// Checks the size of a save so far against the limits of one artifact and of its tenant.
    fn check_size(&self, tenant: &TenantName, size: u64, quota: Option<u64>) -> Result<()> {
        if size > self.bytes_max {
            return Err(Error::LimitExceeded {
                what: "the artifact (artifacts.bytes_max)".into(),
                limit: self.bytes_max,
            });
        }
        self.ledger.check_room(tenant, size, quota)
    }

    /// Writes the bytes and waits until they are safe.
    async fn write<S>(
        &self,
        upload: &mut ArtifactUpload,
        name: &ArtifactName,
        save: &SaveOptions,
        (data, check_size): (S, impl Fn(u64) -> Result<()> + Send),
        gone: &CancellationToken,
    ) -> Result<WrittenData>
    where
        S: Stream<Item = Result<Bytes>> + Send,
    {
        let stop = &self.store.tasks.stop;
        let written = tokio::select! {
            written = upload.receive(name, data, check_size) => written,
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
        let permit = tokio::time::timeout(self.patience, self.saves.acquire(tenant)).await;
        let permit = permit.map_err(|_| Error::QuotaExceeded {
            subject: "saves of artifacts at once (artifacts.saves_max)".into(),
            limit: self.saves_max as u64,
        });
        permit?.map_err(|_| Error::Draining)
    }
}

/// Error for a caller that has gone away.
pub(super) const CANCELLED: Error = Error::Deadline {
    doing: "saving the artifact",
};

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

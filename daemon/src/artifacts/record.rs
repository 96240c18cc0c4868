//! Record of one version, which makes it visible. It is written once, atomically, after the bytes are safe.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::Artifact;
use super::backend::{ArtifactBackend, SMALL_BYTES_MAX, invisible_operation};
use super::key;
use super::name::{ArtifactName, ArtifactScope};
use crate::error::{Error, Result};

/// Stored metadata of one artifact version, with the id of its bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct VersionRecord {
    name: String,
    app: String,
    user: String,
    session: String,
    version: u64,
    /// Id of the save, which is the key of the bytes.
    pub(super) data: String,
    size: u64,
    mime_type: String,
    sha256: String,
    create_time_ms: u64,
}

impl VersionRecord {
    /// Creates the record of a new version. `data` is the id of its bytes.
    pub(super) fn new(artifact: &Artifact, data: &str) -> Self {
        let since = artifact.create_time.duration_since(SystemTime::UNIX_EPOCH);
        let create_time_ms = since.unwrap_or_default().as_millis();
        Self {
            name: artifact.name.as_str().to_owned(),
            app: artifact.scope.app().to_owned(),
            user: artifact.scope.user().to_owned(),
            session: artifact.scope.session().to_owned(),
            version: artifact.version,
            data: data.to_owned(),
            size: artifact.size,
            mime_type: artifact.mime_type.clone(),
            sha256: artifact.sha256.clone(),
            create_time_ms: u64::try_from(create_time_ms).unwrap_or(u64::MAX),
        }
    }

    /// Encodes the record as JSON, at most [`SMALL_BYTES_MAX`] long.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let text = serde_json::to_vec(self);
        let text = text.map_err(|error| Error::Internal(format!("record: {error}")))?;
        if text.len() as u64 > SMALL_BYTES_MAX {
            let bytes = text.len();
            return Err(Error::Internal(format!("a record of {bytes} bytes")));
        }
        Ok(text)
    }

    /// Reads the record of one version; `None` if it does not exist.
    ///
    /// # Errors
    /// `Storage`; `ArtifactDamaged` for a record that is unreadable or of another version.
    pub(super) async fn read(
        store: &ArtifactBackend,
        scope: &ArtifactScope,
        name: &ArtifactName,
        version: u64,
    ) -> Result<Option<Self>> {
        let path = key::version_key(&key::name_key(&store.base, scope, name), version);
        let Some(text) = store
            .read_object(invisible_operation("read a record"), &path)
            .await?
        else {
            return Ok(None);
        };
        let damaged = |why: String| Error::ArtifactDamaged {
            name: name.as_str().to_owned(),
            version,
            why,
        };
        let text = text.ok_or_else(|| damaged("it is too large".into()))?;
        let record: Self =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        let id = record.data.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if record.name != name.as_str() || record.version != version || !id {
            return Err(damaged("it is another one's".into()));
        }
        Ok(Some(record))
    }

    /// Converts the record. `scope` and `name` are those under which it was found.
    pub(super) fn artifact(&self, scope: &ArtifactScope, name: &ArtifactName) -> Artifact {
        Artifact {
            name: name.clone(),
            scope: scope.of(name),
            version: self.version,
            size: self.size,
            mime_type: self.mime_type.clone(),
            sha256: self.sha256.clone(),
            create_time: SystemTime::UNIX_EPOCH + Duration::from_millis(self.create_time_ms),
        }
    }
}

//! The record of one version: what makes it visible. Written once, as a whole, after its bytes are safe.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::Artifact;
use super::key;
use super::name::{Name, Scope};
use super::store::{SMALL_BYTES_MAX, Store, harmless};
use crate::error::{Error, Result};

/// As it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    name: String,
    app: String,
    user: String,
    session: String,
    version: u64,
    /// Id of the save; the bytes are under it.
    pub(super) data: String,
    size: u64,
    mime_type: String,
    sha256: String,
    create_time_ms: u64,
}

impl Record {
    /// Of what is published now.
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

    /// As JSON, of a size that is read again.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let text = serde_json::to_vec(self);
        let text = text.map_err(|error| Error::Internal(format!("record: {error}")))?;
        if text.len() as u64 > SMALL_BYTES_MAX {
            let bytes = text.len();
            return Err(Error::Internal(format!("a record of {bytes} bytes")));
        }
        Ok(text)
    }

    /// The record of one version; `None` if there is none.
    ///
    /// # Errors
    /// `Storage`; `ArtifactDamaged` for one that is not of this version.
    pub(super) async fn read(
        store: &Store,
        scope: &Scope,
        name: &Name,
        version: u64,
    ) -> Result<Option<Self>> {
        let path = key::version(&key::name(&store.base, scope, name), version);
        let Some(text) = store.read(harmless("read a record"), &path).await? else {
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

    /// What it says. `scope` and `name` are those that it was found under.
    pub(super) fn artifact(&self, scope: &Scope, name: &Name) -> Artifact {
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

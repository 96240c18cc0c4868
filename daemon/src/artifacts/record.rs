//! Record of one version of an artifact, which makes the version visible. It is written once, atomically, after the
//! bytes are safe.

use std::time::SystemTime;

use bytes::Bytes;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use skilld_common::unix_time::{from_unix_ms, unix_ms};

use super::Artifact;
use super::backend::{ArtifactBackend, SMALL_BYTES_MAX, StoreOperation, invisible_operation};
use super::key;
use super::name::{ArtifactName, ArtifactScope, RequestedScope};
use crate::access::TenantName;
use crate::error::{Error, Result};

const READ: StoreOperation = invisible_operation("read a record");
/// Reason why a record is damaged that lies under another version's key.
const FOREIGN_RECORD: &str = "it describes another version";

/// Stored metadata of one artifact version, with the id of its bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct VersionRecord {
    name: String,
    #[serde(default)]
    tenant: TenantName,
    app: String,
    user: String,
    session: String,
    version: u64,
    /// Id of the save, which is the key of the bytes.
    pub(super) data: String,
    pub(super) size: u64,
    mime_type: String,
    pub(super) sha256: String,
    create_time_ms: u64,
    /// Idempotency key of the save; `None` if it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) request_id: Option<String>,
}

/// Names one version of an artifact of any tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ArtifactVersionId {
    /// Effective scope of the artifact.
    pub scope: ArtifactScope,
    /// Name of the artifact.
    pub name: ArtifactName,
    /// Version number.
    pub version: u64,
}

/// Version that a walk over all records has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundVersion {
    pub(super) id: ArtifactVersionId,
    /// Id of the save, by which the version differs from another one that got its number after a deletion.
    pub(super) data: String,
    /// Size in bytes.
    pub(super) size: u64,
    pub(super) create_time: SystemTime,
}

impl VersionRecord {
    /// Creates the record of a new version. `data` is the id of its bytes.
    pub(super) fn new(artifact: &Artifact, data: &str) -> Self {
        Self {
            name: artifact.name.as_str().to_owned(),
            tenant: artifact.scope.tenant().clone(),
            app: artifact.scope.app().to_owned(),
            user: artifact.scope.user().to_owned(),
            session: artifact.scope.session().to_owned(),
            version: artifact.version,
            data: data.to_owned(),
            size: artifact.size,
            mime_type: artifact.mime_type.clone(),
            sha256: artifact.sha256.clone(),
            create_time_ms: unix_ms(artifact.create_time),
            request_id: None,
        }
    }

    /// Encodes the record as JSON, at most [`SMALL_BYTES_MAX`] long.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let text = serde_json::to_vec(self)
            .map_err(|error| Error::Internal(format!("record: {error}")))?;
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
        let Some(text) = store.read_object(READ, &path).await? else {
            return Ok(None);
        };
        let record = Self::decode(text).and_then(|record| {
            let id = record.data.bytes().all(|byte| byte.is_ascii_alphanumeric());
            let is_own = record.name == name.as_str() && record.version == version && id;
            is_own
                .then_some(record)
                .ok_or_else(|| FOREIGN_RECORD.to_owned())
        });
        record.map(Some).map_err(|why| Error::ArtifactDamaged {
            name: name.as_str().to_owned(),
            version,
            why,
        })
    }

    /// Decodes what was read of a record; `None` if it was too large to read.
    fn decode(text: Option<Bytes>) -> Result<Self, String> {
        let text = text.ok_or("it is too large")?;
        serde_json::from_slice(&text).map_err(|error| error.to_string())
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
            create_time: self.create_time(),
        }
    }

    fn create_time(&self) -> SystemTime {
        from_unix_ms(self.create_time_ms)
    }
}

impl FoundVersion {
    /// Returns the bytes that count for the version.
    pub(super) fn held_bytes(&self) -> u64 {
        key::held_bytes(&self.id.name, self.size)
    }

    /// Reads the record with a key; `None` if it does not exist.
    ///
    /// # Errors
    /// `Storage`; `ArtifactDamaged` for a record that is unreadable or belongs to another key.
    pub(super) async fn read(store: &ArtifactBackend, key: &Path) -> Result<Option<Self>> {
        let Some(text) = store.read_object(READ, key).await? else {
            return Ok(None);
        };
        let found = VersionRecord::decode(text).and_then(|record| {
            let id = ArtifactVersionId::of_record(&record).map_err(|error| error.to_string())?;
            let records = key::name_key(&store.base, &id.scope, &id.name);
            if key::version_key(&records, id.version) != *key {
                return Err(FOREIGN_RECORD.to_owned());
            }
            Ok(Self {
                id,
                size: record.size,
                create_time: record.create_time(),
                data: record.data,
            })
        });
        found.map(Some).map_err(|why| Error::ArtifactDamaged {
            name: key.to_string(),
            version: key
                .filename()
                .and_then(key::read_version)
                .unwrap_or_default(),
            why,
        })
    }
}

impl ArtifactVersionId {
    fn of_record(record: &VersionRecord) -> Result<Self> {
        let scope = RequestedScope::parse("scope", &record.app, &record.user, &record.session)?;
        Ok(Self {
            scope: scope.of_tenant(&record.tenant),
            name: ArtifactName::parse("name", &record.name)?,
            version: record.version,
        })
    }
}

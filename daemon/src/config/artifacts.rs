//! Section `[artifacts]`: the store of artifacts, how long they are kept, and credentials for an S3-compatible server.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::Deserializer;
use url::Url;

use super::values;

/// Maximum length of the key prefix in a bucket, in bytes: with the daemon's own part a key stays below S3's 1,024.
const PREFIX_BYTES_MAX: usize = 64;
/// Maximum size of a credentials file, in bytes. A valid file has three lines.
const CREDENTIALS_FILE_BYTES_MAX: u64 = 64 << 10;
/// Variables that a credentials file may set.
const CREDENTIAL_NAMES: [&str; 3] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
];

/// Section `[artifacts]`: storage, limits and retention of artifacts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactsConfig {
    /// Directory or bucket that holds the artifacts.
    #[serde(rename = "url", deserialize_with = "artifact_storage")]
    pub storage: ArtifactStorage,
    /// URL of the S3 server; `None` leaves it to the environment.
    #[serde(deserialize_with = "endpoint_url")]
    pub endpoint: Option<String>,
    /// Region of the bucket; `None` leaves it to the environment.
    #[serde(deserialize_with = "values::optional_text")]
    pub region: Option<String>,
    /// `true` if the S3 server may be reached without TLS.
    pub allow_http: bool,
    /// Credentials read from a file; missing ones come from the environment.
    #[serde(rename = "credentials_file", deserialize_with = "read_credentials")]
    pub credentials: S3Credentials,
    /// File of certificate authorities (PEM) that are trusted beside those of the system, from `skills.package_ca_file`.
    #[serde(skip)]
    pub ca_file: Option<PathBuf>,
    /// Deadline of one request to the storage.
    #[serde(deserialize_with = "values::time")]
    pub timeout: Duration,
    /// Maximum size of one artifact, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub bytes_max: u64,
    /// Maximum number of concurrent saves. Each needs up to 8 MiB of memory, 1 MiB with a directory.
    #[serde(skip, default = "values::number::<32>")]
    pub saves_max: usize,
    /// Age from which on a version is removed; `None` keeps all.
    #[serde(deserialize_with = "values::optional_time")]
    pub retention_age: Option<Duration>,
    /// Number of newest versions of an artifact that are kept; 0 keeps all.
    pub retention_versions: u64,
    /// Size to which the artifacts of a tenant are reduced, in bytes; `None` keeps all.
    #[serde(deserialize_with = "values::optional_size")]
    pub retention_bytes: Option<u64>,
}

/// Directory or bucket that holds artifacts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArtifactStorage {
    /// `artifacts/` in the state directory, private to this daemon.
    StateDir,
    /// Directory that several daemons may share.
    Directory(PathBuf),
    /// Bucket of an S3-compatible server.
    Bucket {
        /// Name of the bucket.
        bucket: String,
        /// Prefix of all keys; may be empty.
        prefix: String,
    },
}

/// Credentials for an S3 server, by the names of their environment variables. `Debug` never shows the values.
#[derive(Clone, Default)]
pub struct S3Credentials(pub BTreeMap<String, String>);

impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Credentials({:?})", self.0.keys())
    }
}

fn artifact_storage<'de, D: Deserializer<'de>>(source: D) -> Result<ArtifactStorage, D::Error> {
    values::parsed(source, |text| {
        // The message leaves the value out because it may hold credentials.
        let message = "must be empty, file:///DIR or s3://BUCKET/PREFIX, with nothing else in it";
        parse_storage(text).ok_or_else(|| message.to_owned())
    })
}

fn parse_storage(text: &str) -> Option<ArtifactStorage> {
    if text.is_empty() {
        return Some(ArtifactStorage::StateDir);
    }
    let url = Url::parse(text).ok()?;
    let is_plain = !has_credentials(&url)
        && url.port().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    match url.scheme() {
        _ if !is_plain => None,
        "file" => url.to_file_path().ok().map(ArtifactStorage::Directory),
        "s3" => {
            let bucket = url.host_str()?.to_owned();
            let prefix = url.path().trim_matches('/').to_owned();
            let is_valid = !bucket.is_empty() && is_key_prefix(&prefix);
            is_valid.then_some(ArtifactStorage::Bucket { bucket, prefix })
        }
        _ => None,
    }
}

fn is_key_prefix(prefix: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    let mut segments = prefix.split('/');
    prefix.len() <= PREFIX_BYTES_MAX
        && prefix.bytes().all(is_allowed)
        && (prefix.is_empty() || segments.all(|part| !matches!(part, "" | "." | "..")))
}

fn endpoint_url<'de, D: Deserializer<'de>>(source: D) -> Result<Option<String>, D::Error> {
    values::parsed(source, |text| {
        if text.is_empty() {
            return Ok(None);
        }
        let is_plain =
            |url: &Url| matches!(url.scheme(), "http" | "https") && !has_credentials(url);
        // Whether http:// is permitted depends on allow_http; the range checks decide.
        let message = "must be https://HOST[:PORT], or http:// with artifacts.allow_http";
        let url = Url::parse(text).ok().filter(is_plain);
        url.map(|_| Some(text.to_owned()))
            .ok_or_else(|| message.to_owned())
    })
}

fn has_credentials(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

fn read_credentials<'de, D: Deserializer<'de>>(source: D) -> Result<S3Credentials, D::Error> {
    values::parsed(source, |file| {
        if file.is_empty() {
            return Ok(S3Credentials::default());
        }
        let path = values::absolute_path(file)?;
        let shown = path.display();
        let failed = |error: std::io::Error| format!("{shown}: {error}");
        if std::fs::metadata(&path).map_err(failed)?.len() > CREDENTIALS_FILE_BYTES_MAX {
            return Err(format!("{shown} is too large"));
        }
        parse_credentials(&std::fs::read_to_string(&path).map_err(failed)?).map_err(|line| {
            format!(
                "line {line} of {shown} sets none of {}",
                CREDENTIAL_NAMES.join(", ")
            )
        })
    })
}

/// Parses lines of `NAME=VALUE`.
///
/// # Errors
/// The number of the first line that sets none of [`CREDENTIAL_NAMES`].
fn parse_credentials(text: &str) -> Result<S3Credentials, usize> {
    let mut credentials = BTreeMap::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let assignment = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = assignment
            .split_once('=')
            .filter(|(name, _)| CREDENTIAL_NAMES.contains(&name.trim()))
            .ok_or(index + 1)?;
        let unquoted = value.trim().trim_matches(['"', '\'']);
        credentials.insert(name.trim().to_owned(), unquoted.to_owned());
    }
    Ok(S3Credentials(credentials))
}

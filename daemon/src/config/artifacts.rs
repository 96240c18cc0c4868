//! The section `[artifacts]`: where they are kept, and who may ask there.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use bytesize::ByteSize;
use url::Url;

use super::check::{Check, absolute};
use super::raw::RawArtifacts;
use super::{ArtifactsConfig, ArtifactsPlace};

/// Longest prefix in a bucket, bytes: with what we add to it a key stays below S3's 1,024.
const PREFIX_BYTES_MAX: usize = 64;
/// Largest file of credentials: three lines.
const CREDENTIALS_BYTES_MAX: u64 = 64 << 10;
/// What such a file may hold.
const CREDENTIALS: [&str; 3] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
];

/// Who we are to an S3 server. Its values are never shown.
#[derive(Clone, Default)]
pub struct Credentials(pub BTreeMap<String, String>);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?})", self.0.keys())
    }
}

pub(super) fn artifacts(check: &mut Check<'_>, raw: &RawArtifacts) -> ArtifactsConfig {
    let (low, high) = (ByteSize::b(1), ByteSize::gib(64));
    ArtifactsConfig {
        place: place(check, raw),
        timeout: check.time("artifacts.timeout", &raw.timeout),
        bytes_max: check.bytes_within("artifacts.bytes_max", &raw.bytes_max, low, high),
        saves_max: check.count("artifacts.saves_max", raw.saves_max, 1),
    }
}

fn place(check: &mut Check<'_>, raw: &RawArtifacts) -> ArtifactsPlace {
    if raw.url.is_empty() {
        return ArtifactsPlace::StateDir;
    }
    let url = Url::parse(&raw.url).ok();
    let plain = |url: &Url| {
        url.username().is_empty()
            && url.password().is_none()
            && url.port().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    };
    match url.filter(plain) {
        Some(url) if url.scheme() == "file" => match url.to_file_path() {
            Ok(path) => ArtifactsPlace::Directory(path),
            Err(()) => refuse(check),
        },
        Some(url) if url.scheme() == "s3" => s3(check, &url, raw),
        _ => refuse(check),
    }
}

fn refuse(check: &mut Check<'_>) -> ArtifactsPlace {
    // The value is not repeated: somebody may have written credentials into it.
    let message = "must be empty, file:///DIR or s3://BUCKET/PREFIX, with nothing else in it";
    check.fault("artifacts.url", message);
    ArtifactsPlace::StateDir
}

fn s3(check: &mut Check<'_>, url: &Url, raw: &RawArtifacts) -> ArtifactsPlace {
    let bucket = url.host_str().unwrap_or_default().to_owned();
    let prefix = url.path().trim_matches('/').to_owned();
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    let segments = || prefix.split('/');
    let good = prefix.len() <= PREFIX_BYTES_MAX
        && prefix.bytes().all(harmless)
        && (prefix.is_empty() || segments().all(|part| !matches!(part, "" | "." | "..")));
    if bucket.is_empty() || !good {
        return refuse(check);
    }
    let endpoint = Url::parse(&raw.endpoint).ok();
    let allowed = endpoint.as_ref().is_some_and(|url| {
        url.username().is_empty()
            && url.password().is_none()
            && (url.scheme() == "https" || (url.scheme() == "http" && raw.allow_http))
    });
    if !raw.endpoint.is_empty() && !allowed {
        let message = "must be https://HOST[:PORT], or http:// with artifacts.allow_http";
        check.fault("artifacts.endpoint", message);
    }
    ArtifactsPlace::S3 {
        bucket,
        prefix,
        endpoint: Some(raw.endpoint.clone()).filter(|endpoint| !endpoint.is_empty()),
        region: Some(raw.region.clone()).filter(|region| !region.is_empty()),
        allow_http: raw.allow_http,
        credentials: credentials(check, &raw.credentials_file),
    }
}

fn credentials(check: &mut Check<'_>, file: &str) -> Credentials {
    const KEY: &str = "artifacts.credentials_file";
    if file.is_empty() {
        return Credentials::default();
    }
    let path: PathBuf = absolute(check, KEY, file);
    let text = match std::fs::metadata(&path) {
        Ok(about) if about.len() <= CREDENTIALS_BYTES_MAX => std::fs::read_to_string(&path),
        Ok(_) => {
            check.fault(KEY, format!("{} is too large", path.display()));
            return Credentials::default();
        }
        Err(error) => Err(error),
    };
    let text = text.unwrap_or_else(|error| {
        check.fault(KEY, format!("{}: {error}", path.display()));
        String::new()
    });
    let mut found = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        match line.split_once('=') {
            Some((key, value)) if CREDENTIALS.contains(&key.trim()) => {
                let value = value.trim().trim_matches(['"', '\'']);
                found.insert(key.trim().to_owned(), value.to_owned());
            }
            _ => {
                let message = format!(
                    "line {} of {} sets none of {}",
                    index + 1,
                    path.display(),
                    CREDENTIALS.join(", ")
                );
                check.fault(KEY, message);
            }
        }
    }
    Credentials(found)
}

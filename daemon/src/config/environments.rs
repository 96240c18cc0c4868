//! Options of skills' environments, from section `[skills]`: when they are built, and where packages come from.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::Deserializer;
use skilld_skills::fetch::IndexHost;
use url::Url;

use super::values;

/// Occasion on which the environment of a skill is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentBuilds {
    /// When the skill is staged and its environment is missing, and on PrepareSkill.
    Stage,
    /// On PrepareSkill only.
    Prepare,
    /// Never; containers have no environments.
    Never,
}

/// Memory of the programs of a build, in bytes, beside that of the files that it makes.
const BUILD_PROGRAMS_BYTES: u64 = 1 << 30;
/// Maximum size of a file of certificate authorities, in bytes. That of a system has 300 KiB.
const CA_FILE_BYTES_MAX: u64 = 4 << 20;
/// Begin of a certificate in PEM.
const PEM_BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Permission bits of a directory that every user can list and enter.
const READABLE_MODE: u32 = 0o005;

/// Index of packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageIndex {
    /// URL as configured.
    pub url: String,
    /// Host and port of the URL.
    pub host: IndexHost,
}

/// Options of skills' environments.
#[derive(Debug, Clone)]
pub struct EnvironmentOptions {
    /// Occasion on which an environment is built.
    pub builds: EnvironmentBuilds,
    /// Directory of wheels from which Python packages are installed.
    pub wheelhouse: Option<PathBuf>,
    /// URL of an index of Python packages (PEP 503).
    pub package_index: Option<PackageIndex>,
    /// URL of a registry of Node.js packages.
    pub node_package_index: Option<PackageIndex>,
    /// Hosts that a build may reach besides those of the two indexes.
    pub package_hosts: Vec<IndexHost>,
    /// File of certificate authorities (PEM) that builds trust beside those of their image.
    pub ca_file: Option<PathBuf>,
    /// `true` if a build may compile source distributions, which runs code of the packages.
    pub source_builds: bool,
    /// Maximum size of all environments together, in bytes.
    pub disk_bytes: u64,
    /// Maximum number of builds at the same time.
    pub builds_max: usize,
    /// Maximum duration of one build.
    pub build_timeout: Duration,
    /// Size of a build's workspace, in bytes.
    pub build_disk_bytes: u64,
}

impl EnvironmentOptions {
    /// Returns `true` if containers have environments.
    pub fn is_enabled(&self) -> bool {
        self.builds != EnvironmentBuilds::Never
    }

    /// Returns the memory of a build's container, in bytes. The workspace counts towards it.
    pub fn build_memory_bytes(&self) -> u64 {
        self.build_disk_bytes.saturating_add(BUILD_PROGRAMS_BYTES)
    }

    /// Returns `true` if builds have packages beside those of the image.
    pub fn has_package_source(&self) -> bool {
        let has_index = self.package_index.is_some() || self.node_package_index.is_some();
        has_index || self.wheelhouse.is_some()
    }

    /// Returns the hosts that a build may reach; none without an index.
    pub fn allowed_hosts(&self) -> Vec<IndexHost> {
        let mut hosts: Vec<IndexHost> = [&self.package_index, &self.node_package_index]
            .into_iter()
            .flatten()
            .map(|index| index.host.clone())
            .collect();
        if !hosts.is_empty() {
            hosts.extend(self.package_hosts.iter().cloned());
        }
        hosts
    }

    /// Returns the reason for which containers cannot use the configured directory of wheels; `None` if they can, or if
    /// none is configured. Blocks.
    pub fn wheelhouse_fault(&self) -> Option<String> {
        let dir = self.wheelhouse.as_deref().filter(|_| self.is_enabled())?;
        shared_dir_fault(dir, "skills.wheelhouse")
    }

    /// Returns the certificate authorities that builds trust beside those of their image, in PEM; none if no file is
    /// configured. Blocks.
    ///
    /// # Errors
    /// What is wrong with the file, and what to do.
    pub fn read_authorities(&self) -> Result<Vec<u8>, String> {
        self.ca_file
            .as_deref()
            .map_or(Ok(Vec::new()), read_authorities)
    }

    /// Returns the directory of wheels that containers can use; `None` where nothing is built. Blocks.
    pub fn usable_wheelhouse(&self) -> Option<&Path> {
        let wheelhouse = self.wheelhouse.as_deref().filter(|_| self.is_enabled());
        wheelhouse.filter(|_| self.wheelhouse_fault().is_none())
    }
}

/// Returns the reason for which containers cannot use a directory of the operator that a key names; `None` if they can.
/// Blocks.
pub(super) fn shared_dir_fault(dir: &Path, key: &str) -> Option<String> {
    let fault = match fs::metadata(dir) {
        Err(error) => format!("cannot be read ({error}): create it"),
        Ok(found) if !found.is_dir() => "is not a directory: name one".to_owned(),
        Ok(found) if found.mode() & READABLE_MODE != READABLE_MODE => {
            "is not readable for all users, and commands run as users of their own: `chmod -R a+rX` it"
                .to_owned()
        }
        Ok(_) => return None,
    };
    Some(format!("{} {fault}, or set {key} to \"\"", dir.display()))
}

/// Reads a file of certificate authorities in PEM. Blocks.
///
/// # Errors
/// What is wrong with the file, and what to do.
pub fn read_authorities(path: &Path) -> Result<Vec<u8>, String> {
    let mut pem = Vec::new();
    let read = fs::File::open(path)
        .and_then(|file| file.take(CA_FILE_BYTES_MAX + 1).read_to_end(&mut pem));
    let has_certificate = || pem.windows(PEM_BEGIN.len()).any(|part| part == PEM_BEGIN);
    let why = match read {
        Err(error) => format!("cannot be read ({error})"),
        Ok(bytes) if bytes as u64 > CA_FILE_BYTES_MAX => {
            format!("is larger than {CA_FILE_BYTES_MAX} bytes")
        }
        Ok(_) if !has_certificate() => "has no certificate in PEM".to_owned(),
        Ok(_) => return Ok(pem),
    };
    Err(format!(
        "{} {why}: name a file of certificates in PEM",
        path.display()
    ))
}

/// Deserializes the URL of an index; the empty text means `None`.
pub(super) fn package_index<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<Option<PackageIndex>, D::Error> {
    values::parsed(source, |text| match text {
        "" => Ok(None),
        text => parse_package_index(text).map(Some),
    })
}

/// Deserializes the hosts that builds may reach besides those of the indexes.
pub(super) fn package_hosts<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<Vec<IndexHost>, D::Error> {
    values::list(source, IndexHost::parse)
}

fn parse_package_index(text: &str) -> Result<PackageIndex, String> {
    let url = Url::parse(text).map_err(|error| format!("{text:?} is not a URL: {error}"))?;
    let host = url.host_str().unwrap_or_default();
    if !matches!(url.scheme(), "http" | "https") || host.is_empty() {
        return Err(format!("{text:?} is not of the form https://HOST/PATH"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        let host = url.host_str().unwrap_or_default();
        return Err(format!(
            "the URL of {host} has credentials, which messages of builds would show: use an index that needs none"
        ));
    }
    let host = match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    Ok(PackageIndex {
        url: text.to_owned(),
        host: IndexHost::parse(&host)?,
    })
}

//! Options of the crate skilld-skills. The daemon fills them from its configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fetch::{FetchError, WebUrl};
use crate::held_bytes::OBJECT_BYTES;
use crate::parse::added_packages::AddedPackages;
use crate::parse::finding::quote_excerpt;
use crate::skill_path::{SKILL_PATH_BYTES_MAX, normalise_skill_path};

/// Maximum duration of an attempt to fetch a root: an index may name a thousand archives.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Options of sources, store and catalogue.
#[derive(Debug, Clone)]
pub struct SkillsOptions {
    /// Roots in the order in which they win.
    pub roots: Vec<SkillRoot>,
    /// Maximum depth of a folder below a root.
    pub depth_max: usize,
    /// Maximum number of directories of one root.
    pub dirs_max: usize,
    /// Maximum number of directory entries of one root.
    pub entries_max: usize,
    /// Maximum number of directories that are watched for changes; 0 watches none.
    pub watches_max: usize,
    /// Maximum number of files of one skill.
    pub files_max: u64,
    /// Maximum size of one skill, in bytes.
    pub bytes_max: u64,
    /// Maximum size of a SKILL.md, in bytes.
    pub skill_md_bytes_max: u64,
    /// Maximum number of skills in all.
    pub skills_max: usize,
    /// Time for which unreferenced content stays in the store after its last use.
    pub keep_unused: Duration,
    /// Packages that the operator adds to what skills state, by the name of the skill.
    pub packages: BTreeMap<String, AddedPackages>,
    /// `true` to add the packages that a skill's text installs and its scripts import.
    pub infers_packages: bool,
    /// Roots that are URLs.
    pub remote: RemoteOptions,
    /// Held by a test to make every scan hang.
    #[cfg(test)]
    pub(crate) scan_gate: std::sync::Arc<std::sync::Mutex<()>>,
}

/// Options of roots that are fetched from servers: intervals, and bounds on what is fetched.
#[derive(Debug, Clone)]
pub struct RemoteOptions {
    /// Interval between two requests to a server for changes.
    pub refresh_interval: Duration,
    /// `true` to allow addresses that are not public.
    pub allow_private_addresses: bool,
    /// `true` to fetch from URLs in cards that clients publish.
    pub published_urls: bool,
    /// `true` to allow these to lead to addresses that are not public.
    pub published_private_addresses: bool,
    /// Bounds of a root, unpacked, all of its skills together. Its bytes are also the maximum of one download.
    pub archive: ArchiveBounds,
    /// Timeouts and proxy of each fetch.
    pub fetch: crate::fetch::FetchOptions,
}

/// Bounds of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveBounds {
    /// Maximum size of all files, unpacked, in bytes.
    pub bytes: u64,
    /// Maximum size of one file, unpacked, in bytes.
    pub file_bytes: u64,
    /// Maximum number of files, links and directories, including directories that are only part of a name.
    pub entries: u64,
    /// Maximum number of names in a path.
    pub depth: usize,
    /// Maximum number of unpacked bytes for each packed one.
    pub ratio: u64,
}

impl SkillsOptions {
    /// Depth of folders that are searched: real collections need 3, and other readers of skills use 6. A folder that is
    /// deeper can be a root of its own.
    pub const DEPTH_MAX: usize = 6;
    /// Directories of one root that are read, so that a root of / by mistake costs seconds and not hours. Ten thousand
    /// skills have about 40,000.
    pub const DIRS_MAX: usize = 100_000;
    /// Directory entries of one root that are read, for the same reason.
    pub const ENTRIES_MAX: usize = 1_000_000;
    /// Directories that are watched. Each costs about 1 KiB of the kernel's memory, and changes in others are found by
    /// the next interval scan.
    pub const WATCHES_MAX: usize = 65_536;
    /// Size of a SKILL.md in bytes. It goes into a prompt, so a larger one is a mistake.
    pub const SKILL_MD_BYTES_MAX: u64 = 1 << 20;
    /// Skills of a tenant, more than any collection has. Each costs about 4 KiB of memory and the size of its front
    /// matter.
    pub const SKILLS_MAX: usize = 100_000;
}

impl RemoteOptions {
    /// Returns the maximum duration of an attempt to fetch a root, in which a single fetch has its full time.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        ATTEMPT_TIMEOUT.max(self.fetch.timeout)
    }
}

impl ArchiveBounds {
    /// Returns the bounds of a root whose files have at most this many bytes. Each entry takes at least a block of the
    /// disk. Skills are at most 32 directories deep, and text and tables reach ratios of 20 to 50.
    pub fn of_root(bytes: u64) -> Self {
        Self {
            bytes,
            file_bytes: bytes,
            entries: bytes / OBJECT_BYTES,
            depth: 32,
            ratio: 200,
        }
    }

    /// Returns these bounds, lowered to what a quota of bytes on disk permits to hold.
    pub(crate) fn within(self, bytes_quota: Option<u64>) -> Self {
        let quota = bytes_quota.unwrap_or(u64::MAX);
        Self {
            bytes: self.bytes.min(quota),
            file_bytes: self.file_bytes.min(quota),
            entries: self.entries.min(quota / OBJECT_BYTES),
            ..self
        }
    }
}

/// Configured root of skills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkillRoot {
    /// Directory of this host.
    Dir {
        /// Text as configured.
        text: String,
        /// Absolute path.
        path: PathBuf,
    },
    /// Archive, index or skill card on a server.
    Url {
        /// URL and folder, without the URL's query, which may hold secrets, and without the pin.
        text: String,
        /// URL with query and pin.
        url: WebUrl,
        /// Folder of the archive that has the skills, relative to its top; empty for the whole archive.
        folder: String,
    },
}

impl SkillRoot {
    /// Returns the root as configured, without secrets.
    pub fn text(&self) -> &str {
        match self {
            Self::Dir { text, .. } | Self::Url { text, .. } => text,
        }
    }

    /// Parses a root on a server: a URL, and after `#` a pin `sha256=HEX`, a folder of the archive, or both with `&`
    /// between them.
    ///
    /// # Errors
    /// `Url` for what is no URL to fetch, and for a folder that is not a relative path without `..`.
    pub fn parse_url(text: &str) -> Result<Self, FetchError> {
        let (base, fragment) = text.trim().split_once('#').unwrap_or((text.trim(), ""));
        let (pinned, folder) = match fragment.split_once('&') {
            Some((pin, folder)) if pin.starts_with("sha256=") => (format!("{base}#{pin}"), folder),
            None if fragment.starts_with("sha256=") => (text.to_owned(), ""),
            _ => (base.to_owned(), fragment),
        };
        let url: WebUrl = pinned.parse()?;
        let Ok(folder) = normalise_skill_path("roots", folder) else {
            let why = format!(
                "{} is no folder of an archive: after # write a relative path of at most {SKILL_PATH_BYTES_MAX} bytes, \
                 without .. and backslashes",
                quote_excerpt(folder)
            );
            return Err(FetchError::refused(url.to_string(), why));
        };
        let text = match folder.as_str() {
            "" => url.to_string(),
            folder => format!("{url}#{folder}"),
        };
        Ok(Self::Url { text, url, folder })
    }

    /// Makes a root of a directory.
    pub fn dir(path: &Path) -> Self {
        Self::Dir {
            text: path.display().to_string(),
            path: path.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SkillsOptions {
        /// Options with the defaults of the daemon's configuration and no roots.
        pub(crate) fn for_tests() -> Self {
            let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
            Self {
                roots: Vec::new(),
                depth_max: Self::DEPTH_MAX,
                dirs_max: Self::DIRS_MAX,
                entries_max: Self::ENTRIES_MAX,
                watches_max: Self::WATCHES_MAX,
                files_max: 5000,
                bytes_max: 256 << 20,
                skill_md_bytes_max: Self::SKILL_MD_BYTES_MAX,
                skills_max: Self::SKILLS_MAX,
                keep_unused: minutes(24 * 60),
                packages: BTreeMap::new(),
                infers_packages: false,
                scan_gate: std::sync::Arc::default(),
                remote: RemoteOptions {
                    refresh_interval: minutes(10),
                    allow_private_addresses: false,
                    published_urls: false,
                    published_private_addresses: false,
                    archive: ArchiveBounds::of_root(256 << 20),
                    fetch: crate::fetch::FetchOptions {
                        connect_timeout: minutes(5),
                        timeout: minutes(5),
                        proxy: None,
                        ca_file: None,
                    },
                },
            }
        }
    }
}

//! Versions of skills and how one is chosen.
//!
//! A version is whatever Cargo, npm or Python would call one: `1`, `v1.2`, `1.10.0`, `2.0.0-beta.1`, `2.0b1`,
//! `1.0.post1`, `1.0.0+build`. All of them stand in one total order. Text that is none of these is a version too,
//! but can be asked for by its own text only. Pure.

use std::cmp::Ordering;
use std::str::FromStr;

use pep440_rs::{LocalSegment, PrereleaseKind};

mod specifier;

pub use specifier::{BadSpecifier, Specifier};

/// Bytes of a version or a specifier.
pub const TEXT_BYTES_MAX: usize = 128;

/// A version that can be compared. Its text decides between versions that are otherwise equal, so that the order
/// is total.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    public: Public,
    /// What follows `+`.
    local: Vec<LocalSegment>,
    text: String,
}

/// A version without what follows `+`. The order of the fields is the order of versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Public {
    epoch: u64,
    /// Without zeros at its end: 1 and 1.0.0 are the same.
    release: Vec<u64>,
    phase: Phase,
    post: Option<u64>,
    dev: Dev,
}

/// Where before its release a version stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// `1.0.dev3`, before all others.
    Dev,
    /// `1.0a1`, `1.0.0-alpha.1`, `1.0.0-next.7`: as Semantic Versioning compares them.
    Pre(semver::Prerelease),
    Final,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Dev {
    Number(u64),
    None,
}

/// Whether a version can stand in errors and page tokens, whatever it is.
pub(super) fn is_nameable(text: &str) -> bool {
    text.len() <= TEXT_BYTES_MAX && !text.contains(char::is_control)
}

impl Version {
    /// Reads a version; `None` if it is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let plain = without_v(text);
        if !plain.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let read = pep440_rs::Version::from_str(plain).ok();
        // What Python takes for the post-release of 1.0.0-1 is a pre-release to all others.
        let read = read.filter(|version| version.post().is_none() || plain.contains("post"));
        let (public, local) = match read {
            Some(version) => Public::of_python(&version)?,
            None => Public::of_semver(plain)?,
        };
        Some(Self {
            public,
            local,
            text: plain.to_owned(),
        })
    }

    /// Whether it comes before the release that it is named after.
    #[must_use]
    pub fn is_prerelease(&self) -> bool {
        self.public.phase != Phase::Final || self.public.dev != Dev::None
    }

    /// As it is written, without a leading `v`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Public {
    fn of_python(version: &pep440_rs::Version) -> Option<(Self, Vec<LocalSegment>)> {
        let phase = match (version.pre(), version.post(), version.dev()) {
            (Some(pre), _, _) => {
                let kind = match pre.kind {
                    PrereleaseKind::Alpha => "alpha",
                    PrereleaseKind::Beta => "beta",
                    PrereleaseKind::Rc => "rc",
                };
                Phase::Pre(semver::Prerelease::new(&format!("{kind}.{}", pre.number)).ok()?)
            }
            (None, None, Some(_)) => Phase::Dev,
            (None, _, _) => Phase::Final,
        };
        let public = Self {
            epoch: version.epoch(),
            release: significant(version.release()),
            phase,
            post: version.post(),
            dev: version.dev().map_or(Dev::None, Dev::Number),
        };
        Some((public, version.local().to_vec()))
    }

    /// `X[.Y[.Z]]-PRE[+BUILD]`, with a pre-release that Python does not know.
    fn of_semver(text: &str) -> Option<(Self, Vec<LocalSegment>)> {
        let (text, build) = text.split_once('+').unwrap_or((text, ""));
        let (release, pre) = text.split_once('-')?;
        let release = release
            .split('.')
            .map(|part| part.parse().ok())
            .collect::<Option<Vec<u64>>>()?;
        semver::BuildMetadata::new(build).ok()?;
        let public = Self {
            epoch: 0,
            release: significant(&release),
            phase: Phase::Pre(
                semver::Prerelease::new(pre)
                    .ok()
                    .filter(|pre| !pre.is_empty())?,
            ),
            post: None,
            dev: Dev::None,
        };
        let local = build.split('.').filter(|part| !part.is_empty());
        let local = local.map(|part| LocalSegment::String(part.to_owned()));
        Some((public, local.collect()))
    }

    /// The same without pre-release and what else follows the release.
    fn release_only(&self) -> (u64, &[u64]) {
        (self.epoch, &self.release)
    }
}

fn significant(release: &[u64]) -> Vec<u64> {
    let mut release = release.to_vec();
    while release.last() == Some(&0) {
        release.pop();
    }
    release
}

/// `v1.2` → `1.2`.
fn without_v(text: &str) -> &str {
    match text.strip_prefix(['v', 'V']) {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => rest,
        _ => text,
    }
}

/// Compares versions as texts, highest last: those that are not versions before all others, and none before these.
#[must_use]
pub fn compare(a: &str, b: &str) -> Ordering {
    let key = |text: &str| (!text.trim().is_empty(), Version::parse(text));
    key(a).cmp(&key(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests;

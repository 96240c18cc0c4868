//! Versions of skills and how one is chosen.
//!
//! A version is whatever Cargo, npm or Python would call one: `1`, `v1.2`, `1.10.0`, `2.0.0-beta.1`, `2.0b1`,
//! `1.0.post1`, `1.0.0+build`. All of them stand in one total order. Text that is none of these is a version too,
//! but can be asked for by its own text only. Pure.

use std::cmp::Ordering;
use std::str::FromStr;

use pep440_rs::LocalSegment;

use crate::parse::finding::quote_excerpt;

mod specifier;

pub use specifier::{Specifier, SpecifierError};

/// Maximum length of a version or a specifier, in bytes.
pub const TEXT_BYTES_MAX: usize = 128;
/// Number of a pre-release for which PEP 440 has no word: it comes after all numbered ones of the same stage.
const UNNAMED_STAGE: u32 = u32::MAX;

/// Version that can be compared. Its text decides between versions that are otherwise equal, so that the order
/// is total.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    public: PublicVersion,
    /// Segments after `+`.
    local: Vec<LocalSegment>,
    text: String,
}

/// Version without what follows `+`. The order of the fields is the order of versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PublicVersion {
    version: pep440_rs::Version,
    /// Pre-release for which PEP 440 has no word, such as `next.7`; else empty.
    unnamed: semver::Prerelease,
}

/// Returns `true` if a version may appear in errors and page tokens.
pub(crate) fn is_nameable(text: &str) -> bool {
    text.len() <= TEXT_BYTES_MAX && !text.contains(char::is_control)
}

/// Returns the message of a finding for a version that is not one.
pub(crate) fn describe_unreadable(text: &str) -> String {
    format!(
        "the version {} is not one that can be compared",
        quote_excerpt(text)
    )
}

impl Version {
    /// Parses a version; returns `None` if the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let plain = without_v(text);
        // Python reads 1.0.0-1 as a post-release, everybody else as a pre-release.
        let python = pep440_rs::Version::from_str(plain)
            .ok()
            .filter(|version| !version.is_post() || plain.contains("post"));
        let (version, unnamed) = match python {
            Some(version) => (version, semver::Prerelease::EMPTY),
            None => parse_semver(plain)?,
        };
        Some(Self {
            local: version.local().to_vec(),
            public: PublicVersion {
                version: version.without_local(),
                unnamed,
            },
            text: plain.to_owned(),
        })
    }

    /// Returns `true` if the version precedes the release that it is named after.
    pub fn is_prerelease(&self) -> bool {
        self.public.version.any_prerelease()
    }

    /// Returns the version as written, without a leading `v`.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Parses `X[.Y[.Z]]-PRE[+BUILD]` with a pre-release that PEP 440 does not know. It comes after the stage (development,
/// alpha, beta, release candidate) whose word precedes it in the order of Semantic Versioning.
fn parse_semver(text: &str) -> Option<(pep440_rs::Version, semver::Prerelease)> {
    let build = text.find('+').unwrap_or(text.len());
    let (public, build) = text.split_at(build);
    let (release, pre) = public.split_once('-')?;
    let stage = match pre {
        // Digits precede all words.
        word if word < "alpha" => ".dev",
        word if word < "beta" => "a",
        word if word < "rc" => "b",
        _ => "rc",
    };
    let is_release = |release: &str| release.chars().all(|c| c.is_ascii_digit() || c == '.');
    let unnamed = semver::Prerelease::new(pre)
        .ok()
        .filter(|pre| !pre.is_empty() && is_release(release))?;
    let version = format!("{release}{stage}{UNNAMED_STAGE}{build}");
    Some((pep440_rs::Version::from_str(&version).ok()?, unnamed))
}

/// Removes the `v` of `v1.2`.
fn without_v(text: &str) -> &str {
    match text.strip_prefix(['v', 'V']) {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => rest,
        _ => text,
    }
}

/// Compares versions as texts, highest last: those that are not versions before all others, and none before these.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    let key = |text: &str| (!text.trim().is_empty(), Version::parse(text));
    key(a).cmp(&key(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests;

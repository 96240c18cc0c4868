//! A skill as it is listed, and how it is judged.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::finding::Findings;
use super::{Content, FrontMatter, Problem, Profile};

/// Whether a skill can be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SkillState {
    /// Yes.
    #[default]
    Loaded,
    /// Yes; see its problems.
    LoadedWithWarnings,
    /// No; see its problems.
    Rejected,
    /// An earlier one has its name and version.
    Shadowed,
}

/// A skill as it is listed.
#[derive(Debug, Clone, Default)]
pub struct Skill {
    /// From its documents; of one that has none that can be used, its folder's name.
    pub name: String,
    /// Other names that it answers to: `parent/child` for a skill within a skill.
    pub aliases: Vec<String>,
    /// The root that it came from, as configured; empty for a published one.
    pub root: String,
    /// Place of that root among all.
    pub rank: usize,
    /// Its folder as it was found and what a link led to, the URL that it was fetched from, or empty for a published
    /// one. For people.
    pub source: String,
    /// Its folder as it was found, links included.
    pub found_at: PathBuf,
    /// The same relative to its root; empty for a published one.
    pub within: String,
    /// Its folder, without links on the way.
    pub dir: PathBuf,
    /// Folders within it, relative to it, that are skills themselves: no part of this one.
    pub nested: Vec<PathBuf>,
    /// Its folder is in the store and never changes.
    pub fixed: bool,
    /// Whether it can be used.
    pub state: SkillState,
    /// Default where it could not be read. Shared: a list of ten thousand copies none of it.
    pub front_matter: Arc<FrontMatter>,
    /// `None` where it could not be read, or was not looked at.
    pub content: Option<Content>,
    /// Why it is rejected or shadowed, and warnings; errors first.
    pub problems: Vec<Problem>,
    /// Change of its SKILL.md, or when it was published.
    pub update_time: Option<SystemTime>,
    /// Of its documents.
    pub(crate) findings: Findings,
    /// Other problems, whatever the profile.
    pub(crate) others: Vec<Problem>,
    /// An earlier one has its name and version.
    pub(crate) shadowed: bool,
}

/// Where a skill stands among all, whatever comes and goes around it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// The place of its root among all.
    pub rank: usize,
    /// Its version.
    pub version: String,
    /// Its source.
    pub source: String,
    /// Its folder in its root: all skills of a remote one have the same source.
    pub within: String,
}

/// What skills are sorted by: name, place of the root, version (the highest first), source, folder in the root.
pub(super) type Key<'a> = (&'a str, usize, &'a str, &'a str, &'a str);

impl Place {
    pub(super) fn key(&self) -> Key<'_> {
        (
            &self.name,
            self.rank,
            &self.version,
            &self.source,
            &self.within,
        )
    }
}

impl Skill {
    /// Where it stands.
    #[must_use]
    pub fn place(&self) -> Place {
        let (name, rank, version, source, within) = self.key();
        Place {
            name: name.to_owned(),
            rank,
            version: version.to_owned(),
            source: source.to_owned(),
            within: within.to_owned(),
        }
    }

    pub(super) fn key(&self) -> Key<'_> {
        (
            &self.name,
            self.rank,
            &self.front_matter.version,
            &self.source,
            &self.within,
        )
    }

    /// Whether commands can use it.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        matches!(
            self.state,
            SkillState::Loaded | SkillState::LoadedWithWarnings
        )
    }

    /// Sets state and problems as a profile sees them.
    pub fn judge(&mut self, profile: Profile) {
        let findings = self.findings.problems(profile).into_iter();
        let findings = findings.map(|problem| problem.about(&self.found_at));
        let mut problems: Vec<Problem> = self.others.iter().cloned().chain(findings).collect();
        problems.sort_by_key(|problem| !problem.is_error());
        self.state = match problems.first() {
            Some(problem) if problem.is_error() => SkillState::Rejected,
            _ if self.shadowed => SkillState::Shadowed,
            Some(_) => SkillState::LoadedWithWarnings,
            None => SkillState::Loaded,
        };
        self.problems = problems;
    }
}

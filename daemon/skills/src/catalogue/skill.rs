//! A skill as the catalogue lists it, and how a profile judges it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::content_store::content_hashing::ContentSummary;
use crate::parse::document::Document;
use crate::parse::finding::{Findings, ValidationProfile};
use crate::parse::front_matter::FrontMatter;
use crate::parse::problem::Problem;
use crate::parse::skill_ref::{folder_name, scoped_name};
use crate::parse::version::Version;
use crate::skill_path::decompose_path;
use crate::sources::plugin_root::PluginRoot;

/// Code of the problem of a shadowed skill.
pub(crate) const SHADOWED: &str = "skill.shadowed";

/// State of a skill in the catalogue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SkillState {
    /// Usable, without problems.
    #[default]
    Loaded,
    /// Usable; its problems are warnings.
    LoadedWithWarnings,
    /// Unusable; at least one problem is an error.
    Rejected,
    /// A skill that comes first has the same name and version.
    Shadowed,
}

/// A skill as the catalogue lists it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Skill {
    /// Name from its documents; the folder's name if they give none.
    pub name: String,
    /// Other names: `plugin:name` for a skill of a plugin, `parent/child` for a skill within a skill.
    pub aliases: Vec<String>,
    /// Root as configured; empty for a published skill.
    pub root: String,
    /// Position of the root among all sources, which decides who shadows whom.
    pub rank: usize,
    /// Origin of the skill, for people: its folder (and the target of a link), its URL, or empty if published.
    pub source: String,
    /// Folder as it was found, links included.
    pub found_at: PathBuf,
    /// `found_at` relative to the root; empty for a published skill.
    pub within: String,
    /// Folder without links.
    pub dir: PathBuf,
    /// Folders within `dir`, relative to it, that are skills themselves and no part of this one.
    pub nested: Vec<PathBuf>,
    /// skill-card.json of a folder above, which belongs to the skill.
    pub outer_card: Option<Arc<[u8]>>,
    /// `true` if `dir` has the files that were fetched for a card.
    pub is_fetched: bool,
    /// Plugin that it belongs to.
    pub plugin: Option<Arc<PluginRoot>>,
    /// `true` if `dir` is in the store and never changes.
    pub is_stored: bool,
    /// State that its problems lead to.
    pub state: SkillState,
    /// Front matter; the default if it could not be read.
    pub front_matter: Arc<FrontMatter>,
    /// Digest and size; `None` if the files could not be read or the skill is rejected.
    pub content: Option<ContentSummary>,
    /// Reasons for the state, and warnings; errors first.
    pub problems: Vec<Problem>,
    /// Modification time of its document, or time of the publication.
    pub update_time: Option<SystemTime>,
    /// Findings of its documents, which a profile turns into problems.
    pub findings: Findings,
    /// Problems that do not depend on the profile.
    pub other_problems: Vec<Problem>,
    /// `true` if a skill that comes first has the same name and version.
    pub is_shadowed: bool,
}

/// Position in a listing that stays valid while skills come and go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageCursor {
    /// Name of the last skill of the page.
    pub name: String,
    /// Rank of its root.
    pub rank: usize,
    /// Version of the last skill.
    pub version: String,
    /// Source of the last skill.
    pub source: String,
    /// Folder in the root: all skills of a remote root have the same source.
    pub within: String,
}

/// Fields by which `compare_keys` sorts a listing: name, rank of the root, version, source, and folder in the root.
pub(crate) type SortKey<'a> = (&'a str, usize, &'a str, &'a str, &'a str);

impl PageCursor {
    pub(crate) fn sort_key(&self) -> SortKey<'_> {
        let Self {
            name,
            rank,
            version,
            source,
            within,
        } = self;
        (name, *rank, version, source, within)
    }
}

impl Skill {
    /// Returns the cursor of a page that ends with this skill.
    pub fn cursor(&self) -> PageCursor {
        PageCursor {
            name: self.name.clone(),
            rank: self.rank,
            version: self.front_matter.version.clone(),
            source: self.source.clone(),
            within: self.within.clone(),
        }
    }

    pub(crate) fn sort_key(&self) -> SortKey<'_> {
        let version = &self.front_matter.version;
        (&self.name, self.rank, version, &self.source, &self.within)
    }

    /// Returns the name of its plugin; empty if it belongs to none.
    pub fn plugin_name(&self) -> &str {
        self.plugin.as_ref().map_or("", |plugin| &plugin.name)
    }

    /// Returns `true` if a name in a request is that of the plugin and the skill, so that no other skill is meant.
    pub(crate) fn is_scoped_as(&self, wanted: &str) -> bool {
        let scoped = self
            .plugin
            .as_ref()
            .map(|plugin| scoped_name(&plugin.name, &self.name));
        scoped.is_some_and(|scoped| {
            self.name != wanted && (scoped == wanted || folder_name(&scoped) == wanted)
        })
    }

    /// Returns a skill as it is used under a name, which may be its scoped one.
    pub(crate) fn named_as(skill: &Arc<Self>, name: &str) -> Arc<Self> {
        match skill.is_scoped_as(name) {
            true => Arc::new(Self::clone(skill).into_scoped()),
            false => Arc::clone(skill),
        }
    }

    /// Returns the skill as it is used under its scoped name: named like the folder that it is staged in, and shadowed
    /// by no other.
    fn into_scoped(mut self) -> Self {
        let scoped = scoped_name(self.plugin_name(), &self.name);
        self.name = folder_name(&scoped).into_owned();
        self.is_shadowed = false;
        self.other_problems
            .retain(|problem| problem.code != SHADOWED);
        self.judge(ValidationProfile::Lenient);
        self
    }

    /// Returns `true` if commands can use the skill.
    pub fn is_usable(&self) -> bool {
        matches!(
            self.state,
            SkillState::Loaded | SkillState::LoadedWithWarnings
        )
    }

    /// Returns `true` if its version precedes a release.
    pub(crate) fn is_prerelease(&self) -> bool {
        let version = Version::parse(&self.front_matter.version);
        version.is_some_and(|version| version.is_prerelease())
    }

    /// Returns the digest of its content; empty if the content is not known.
    pub fn digest(&self) -> &str {
        self.content
            .as_ref()
            .map_or("", |content| content.digest.as_str())
    }

    /// Takes what the documents say. `dir` has the files that a card may list.
    pub(crate) fn apply_document(&mut self, document: Document, dir: &Path) {
        // A card's paths are composed, and those of a folder that macOS made are not.
        let is_there = |path: String| dir.join(path).symlink_metadata().is_ok();
        let has_file = |path: &str| is_there(path.to_owned()) || is_there(decompose_path(path));
        let card = document.front_matter.card.as_ref();
        self.other_problems
            .extend(card.and_then(|card| card.missing(has_file)));
        self.front_matter = Arc::new(document.front_matter);
        self.findings = document.findings;
    }

    /// Takes the content of the skill's files, or the problem for which there is none, and judges the skill again.
    pub(crate) fn apply_content(&mut self, content: Result<ContentSummary, Problem>) {
        match &content {
            Ok(content) => self.other_problems.extend(content.warnings(&self.found_at)),
            Err(problem) => {
                let located = problem.clone().about(&self.found_at);
                self.other_problems.push(located);
            }
        }
        self.content = content.ok();
        self.judge(ValidationProfile::Lenient);
    }

    /// Sets state and problems as a profile judges them.
    pub fn judge(&mut self, profile: ValidationProfile) {
        let findings = self
            .findings
            .problems(profile)
            .into_iter()
            .map(|problem| problem.about(&self.found_at));
        let others = self.other_problems.iter().cloned();
        let mut problems: Vec<Problem> = others.chain(findings).collect();
        problems.sort_by_key(|problem| !problem.is_error());
        self.state = match problems.first() {
            Some(problem) if problem.is_error() => SkillState::Rejected,
            _ if self.is_shadowed => SkillState::Shadowed,
            Some(_) => SkillState::LoadedWithWarnings,
            None => SkillState::Loaded,
        };
        self.problems = problems;
    }
}

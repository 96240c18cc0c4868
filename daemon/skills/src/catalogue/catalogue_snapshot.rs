//! The catalogue of one scan: every skill of every source, immutable once published.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::folder_precedence::compare_folders;
use super::skill::{PageCursor, Skill, SortKey};
use super::source_scan_result::SourceScanResult;
use crate::content_store::link_policy::LinkPolicy;
use crate::parse::problem::Problem;
use crate::parse::skill_name::normalise_name;
use crate::parse::skill_ref::{SkillRef, folder_name};
use crate::parse::version;
use crate::skill_scope::SkillScope;

use super::search::SearchIndex;

/// Every skill and problem that one scan found.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// Number of this snapshot; grows with every change.
    pub generation: u64,
    /// Skills sorted by name, rank of the root, version from high to low, precedence of the folder, and source.
    pub skills: Vec<Arc<Skill>>,
    /// Problems that belong to no skill.
    pub problems: Vec<Problem>,
    /// `true` if every root could be read.
    pub is_readable: bool,
    /// Indices into `skills` by alias.
    aliases: HashMap<String, Vec<usize>>,
    /// Directories to which links of the scanned folders may lead.
    pub(crate) link_policy: Arc<LinkPolicy>,
    /// Search index; built by the first search.
    index: OnceLock<SearchIndex>,
    /// Scans of all sources, from which the views of tenants are made; empty in a view.
    pub(super) scans: Vec<Arc<SourceScanResult>>,
    /// Views of tenants that were asked for.
    views: Mutex<HashMap<SkillScope, Arc<OnceLock<Arc<Catalogue>>>>>,
    /// `true` if this is the view of a tenant.
    pub(crate) is_view: bool,
}

impl Catalogue {
    /// Sorts the skills and builds the table of aliases.
    pub(crate) fn new(
        mut skills: Vec<Arc<Skill>>,
        problems: Vec<Problem>,
        is_readable: bool,
        link_policy: Arc<LinkPolicy>,
    ) -> Self {
        skills.sort_by(|a, b| compare_keys(a.sort_key(), b.sort_key()));
        let mut aliases: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, skill) in skills.iter().enumerate() {
            for alias in &skill.aliases {
                if let Cow::Owned(folder) = folder_name(alias) {
                    aliases.entry(folder).or_default().push(index);
                }
                aliases.entry(alias.clone()).or_default().push(index);
            }
        }
        Self {
            generation: 0,
            skills,
            problems,
            is_readable,
            aliases,
            link_policy,
            index: OnceLock::new(),
            scans: Vec::new(),
            views: Mutex::default(),
            is_view: false,
        }
    }

    /// Returns the catalogue with the scans that it was made of.
    pub(crate) fn with_scans(self, scans: Vec<Arc<SourceScanResult>>) -> Self {
        Self { scans, ..self }
    }

    /// Returns what a scope sees of a catalogue of all sources, if [`make_view`](super::catalogue_assembly::make_view)
    /// has made it.
    pub(crate) fn known_view(this: &Arc<Self>, scope: &SkillScope) -> Option<Arc<Self>> {
        match scope {
            SkillScope::Single => Some(Arc::clone(this)),
            SkillScope::Tenant { .. } => this.view_cell(scope).get().map(Arc::clone),
        }
    }

    /// Returns the place of a tenant's view.
    pub(super) fn view_cell(&self, scope: &SkillScope) -> Arc<OnceLock<Arc<Self>>> {
        let mut views = self.views.lock();
        Arc::clone(views.entry(scope.clone()).or_default())
    }

    /// Returns the problems of what tenants other than the default one published.
    pub(crate) fn problems_of_other_tenants(&self) -> Vec<Problem> {
        let scans = self.scans.iter().filter(|scan| scan.is_of_other_tenant());
        let problems = scans.flat_map(|scan| {
            let of_skills = scan.folders.iter().flat_map(|folder| match &folder.skill {
                Ok(skill) => skill.problems.clone(),
                Err(problem) => vec![problem.clone()],
            });
            scan.problems.iter().cloned().chain(of_skills)
        });
        problems.collect()
    }

    /// Returns all skills that have a name, in order; those with such an alias if none has the name.
    pub(crate) fn named(&self, name: &str) -> Vec<&Arc<Skill>> {
        let start = self
            .skills
            .partition_point(|skill| skill.name.as_str() < name);
        let named: Vec<_> = self
            .skills
            .iter()
            .skip(start)
            .take_while(|skill| skill.name == name)
            .collect();
        if !named.is_empty() {
            return named;
        }
        let indices = self.aliases.get(name).into_iter().flatten();
        indices
            .filter_map(|index| self.skills.get(*index))
            .collect()
    }

    /// Returns all skills that a reference names: by id or alias, else by the name that people see, unless several ids
    /// have that.
    pub(crate) fn named_by(&self, wanted: &SkillRef) -> Vec<&Arc<Skill>> {
        let named = self.named(&wanted.name);
        if !named.is_empty() {
            return named;
        }
        let name = normalise_name(&wanted.written);
        let is_titled = |skill: &&Arc<Skill>| {
            let title = &skill.front_matter.display_name;
            !title.is_empty() && normalise_name(title) == name
        };
        let titled: Vec<_> = self.skills.iter().filter(is_titled).collect();
        let is_same = |pair: &[&Arc<Skill>]| matches!(pair, [a, b] if a.name == b.name);
        if titled.windows(2).all(is_same) {
            titled
        } else {
            Vec::new()
        }
    }

    /// Returns the index of the first skill after a cursor, whose skill may be gone.
    pub(crate) fn index_after(&self, cursor: &PageCursor) -> usize {
        self.skills.partition_point(|skill| {
            compare_keys(skill.sort_key(), cursor.sort_key()) != Ordering::Greater
        })
    }

    /// Returns the problems of all roots and skills.
    pub(crate) fn all_problems(&self) -> impl Iterator<Item = &Problem> {
        let of_skills = self.skills.iter().flat_map(|skill| &skill.problems);
        self.problems.iter().chain(of_skills)
    }

    /// Returns the search index of this snapshot.
    pub(crate) fn index(&self) -> &SearchIndex {
        self.index.get_or_init(|| SearchIndex::new(&self.skills))
    }

    /// Returns `true` if both snapshots have the same skills and problems.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let mut pairs = self.skills.iter().zip(&other.skills);
        self.skills.len() == other.skills.len()
            && self.is_readable == other.is_readable
            && pairs.all(|(a, b)| Arc::ptr_eq(a, b) || a == b)
            && self.problems == other.problems
            && self.link_policy == other.link_policy
            && has_same_publications(&self.scans, &other.scans)
    }
}

/// Returns `true` if tenants other than the default one published the same.
fn has_same_publications(a: &[Arc<SourceScanResult>], b: &[Arc<SourceScanResult>]) -> bool {
    let of_others = |scans: &[Arc<SourceScanResult>]| -> Vec<Arc<SourceScanResult>> {
        scans
            .iter()
            .filter(|scan| scan.is_of_other_tenant())
            .cloned()
            .collect()
    };
    let (a, b) = (of_others(a), of_others(b));
    let mut pairs = a.iter().zip(&b);
    a.len() == b.len() && pairs.all(|(a, b)| a.is_same(b))
}

/// Orders skills by name, rank of the root, version from high to low, precedence of the folder, and source.
fn compare_keys(a: SortKey<'_>, b: SortKey<'_>) -> Ordering {
    (a.0, a.1)
        .cmp(&(b.0, b.1))
        .then_with(|| version::compare_versions(b.2, a.2))
        .then_with(|| compare_folders(a.4, b.4))
        .then_with(|| a.3.cmp(b.3))
}

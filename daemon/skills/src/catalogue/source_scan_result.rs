//! Result of scanning one source: its folders with their skills, of which catalogues are assembled.

use std::sync::Arc;

use super::skill::Skill;
use super::source_ingest::IngestedFolder;
use crate::parse::problem::Problem;
use crate::skill_scope::DEFAULT_TENANT;
use crate::sources::skill_source::SkillSource;

/// Result of scanning one source.
#[derive(Debug)]
pub(crate) struct SourceScanResult {
    pub(crate) source: SkillSource,
    /// Folders in the order in which they were found.
    pub(crate) folders: Vec<IngestedFolder>,
    /// Problems that belong to no folder.
    pub(crate) problems: Vec<Problem>,
    /// `true` if the source could be read.
    pub(crate) is_readable: bool,
}

impl SourceScanResult {
    /// Returns `true` if a tenant other than the default one published what was scanned.
    pub(crate) fn is_of_other_tenant(&self) -> bool {
        let tenant = self.source.tenant.as_deref();
        tenant.is_some_and(|tenant| tenant != DEFAULT_TENANT)
    }

    /// Returns `true` if both scans have the same skills and problems.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let mut pairs = self.folders.iter().zip(&other.folders);
        self.source.tenant == other.source.tenant
            && self.problems == other.problems
            && self.folders.len() == other.folders.len()
            && pairs.all(|(a, b)| match (&a.skill, &b.skill) {
                (Ok(a), Ok(b)) => Arc::ptr_eq(a, b) || a == b,
                (Err(a), Err(b)) => a == b,
                (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
            })
    }

    /// Returns a copy whose skills have another rank.
    pub(crate) fn with_rank(&self, rank: usize) -> Self {
        let folders = self.folders.iter().cloned().map(|mut folder| {
            folder.skill = folder.skill.map(|skill| {
                Arc::new(Skill {
                    rank,
                    ..Skill::clone(&skill)
                })
            });
            folder
        });
        Self {
            source: self.source.clone(),
            folders: folders.collect(),
            problems: self.problems.clone(),
            is_readable: self.is_readable,
        }
    }

    /// Returns `true` if folders of this scan are listed in the same way when a source has them.
    pub(super) fn has_origin_of(&self, source: &SkillSource) -> bool {
        let before = &self.source;
        (&before.root, &before.origin) == (&source.root, &source.origin)
    }
}

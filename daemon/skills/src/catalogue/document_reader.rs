//! Reads the documents of a folder: SKILL.md and skill-card.json, of a root or of the store.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use super::skill::{Skill, SkillState};
use crate::content_store::ContentStore;
use crate::content_store::link_policy::LinkPolicy;
use crate::parse::document::{self, Document};
use crate::parse::finding::ValidationProfile;
use crate::parse::problem::Problem;
use crate::parse::skill_card;
use crate::sources::root_walk::{FoundFolder, find_documents};

/// Reads a skill from the store. It is rejected if its documents cannot be used or its files were altered.
pub(crate) fn read_stored_skill(store: &ContentStore, digest: &str, name: &str) -> Skill {
    let dir = store.dir(digest);
    let mut skill = Skill {
        name: name.to_owned(),
        found_at: dir.clone(),
        dir: dir.clone(),
        is_stored: true,
        ..Skill::default()
    };
    match read_stored_documents(&dir, store.skill_md_bytes_max, name) {
        Ok(document) => skill.apply_document(document, &dir),
        Err(problem) => skill.other_problems.push(problem),
    }
    for problem in &mut skill.other_problems {
        *problem = problem.clone().about(&dir);
    }
    skill.judge(ValidationProfile::Lenient);
    if skill.state != SkillState::Rejected {
        skill.apply_content(store.verified_content(digest));
    }
    skill
}

/// Reads the documents of a folder of the store.
pub(crate) fn read_stored_documents(
    dir: &Path,
    skill_md_bytes_max: u64,
    folder_name: &str,
) -> Result<Document, Problem> {
    let policy = LinkPolicy::new(vec![dir.to_owned()]);
    let found = find_documents(&policy, dir);
    DocumentReader::new(&policy, skill_md_bytes_max).read_documents(&found, folder_name)
}

/// Reads SKILL.md and skill-card.json of one folder, through links that the policy allows.
#[derive(Debug)]
pub(crate) struct DocumentReader<'a> {
    link_policy: &'a LinkPolicy,
    skill_md_bytes_max: u64,
    /// Warnings about documents that lie in another folder.
    pub(crate) problems: Vec<Problem>,
    /// Modification time of the first document.
    pub(crate) modified: Option<SystemTime>,
}

impl<'a> DocumentReader<'a> {
    pub(crate) fn new(link_policy: &'a LinkPolicy, skill_md_bytes_max: u64) -> Self {
        Self {
            link_policy,
            skill_md_bytes_max,
            problems: Vec::new(),
            modified: None,
        }
    }

    pub(crate) fn read_documents(
        &mut self,
        found: &FoundFolder,
        name: &str,
    ) -> Result<Document, Problem> {
        let (document, bytes_max) = (found.document.as_deref(), self.skill_md_bytes_max);
        let skill_md = document.map(|file| self.read_file(&found.dir, file, bytes_max));
        let card = match &found.outer_card {
            Some(card) => Some(Ok(card.to_vec())),
            None => found.has_card.then(|| {
                let bytes_max = skill_card::BYTES_MAX as u64;
                self.read_file(&found.dir, skill_card::FILE_NAME, bytes_max)
            }),
        };
        let (skill_md, card) = (skill_md.transpose()?, card.transpose()?);
        Ok(document::parse_documents(
            skill_md.as_deref(),
            card.as_deref(),
            name,
        ))
    }

    fn read_file(&mut self, dir: &Path, name: &str, bytes_max: u64) -> Result<Vec<u8>, Problem> {
        let path = dir.join(name);
        let unreadable = |error: io::Error| {
            Problem::error("skill.unreadable", format!("cannot read {name}: {error}"))
        };
        let metadata = fs::symlink_metadata(&path).map_err(unreadable)?;
        let real = if metadata.is_symlink() {
            path.canonicalize().map_err(unreadable)?
        } else {
            path
        };
        if !self.link_policy.allows(&real) {
            let message = format!(
                "{name} is a link that leads out of the roots, to {}",
                real.display()
            );
            return Err(Problem::error("skill.link_outside", message));
        }
        let metadata = fs::symlink_metadata(&real).map_err(unreadable)?;
        if !metadata.is_file() {
            let message = format!("{name} is not a regular file");
            return Err(Problem::error("skill.special_file", message));
        }
        if !real.starts_with(dir) {
            let message = format!("{name} is a link; taken is {}", real.display());
            self.problems
                .push(Problem::warning("skill.linked_document", message));
        }
        self.modified = self.modified.or(metadata.modified().ok());
        let file = self.link_policy.open_file(&real).map_err(unreadable)?;
        let mut bytes = Vec::new();
        let mut bounded = file.take(bytes_max + 1);
        bounded.read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > bytes_max {
            let message = format!("{name} has more than {bytes_max} bytes");
            return Err(Problem::error("skill.too_large", message));
        }
        Ok(bytes)
    }
}

//! One skill by what a request calls it: looked at, or taken into the store.

use std::sync::Arc;

use super::content::Folder;
use super::documents::Documents;
use super::resolve::{find, not_found};
use super::{Catalogue, Inner, Problem, Profile, Select, Skill, SkillRef, SkillState, Staged};
use crate::error::{Error, Result};

impl Inner {
    /// A skill as a profile sees it, and the body of its SKILL.md.
    pub(super) fn get(&self, wanted: &SkillRef, profile: Profile) -> Result<(Skill, String)> {
        let catalogue = self.catalogue();
        let mut skill = match &wanted.select {
            Select::Digest(digest) => self.by_digest(&catalogue, wanted, digest)?,
            Select::Current | Select::Version(_) => self.with_content(find(&catalogue, wanted)?),
        };
        let mut body = String::new();
        if skill.state != SkillState::Rejected {
            let Folder { dir, trust, .. } = self.roots.folder(&skill);
            let document = Documents::read(self.skill_md_bytes_max, &dir, &trust, &skill.name);
            body = document.map(|document| document.body).unwrap_or_default();
        }
        skill.judge(profile);
        Ok((skill, body))
    }

    /// One that has this digest now, or had it when it was taken into the store.
    fn by_digest(&self, catalogue: &Catalogue, wanted: &SkillRef, digest: &str) -> Result<Skill> {
        for skill in catalogue.named(&wanted.name) {
            let skill = self.with_content(skill);
            let content = skill.content.as_ref();
            if content.is_some_and(|content| content.digest == digest) {
                return Ok(skill);
            }
        }
        let missing = || not_found(catalogue, wanted);
        let name = wanted.name.rsplit('/').next().unwrap_or_default();
        let folder = Folder::stored(&self.store.dir(digest));
        let document = Documents::read(self.skill_md_bytes_max, &folder.dir, &folder.trust, name);
        let document = document.map_err(|_| missing())?;
        if document.front_matter.name != name {
            return Err(missing());
        }
        let content = self.store.inspect(&folder).map_err(|_| missing())?;
        let mut skill = Skill {
            name: name.to_owned(),
            found_at: folder.dir.clone(),
            dir: folder.dir,
            fixed: true,
            content: Some(content),
            front_matter: document.front_matter,
            findings: document.findings,
            ..Skill::default()
        };
        skill.judge(Profile::Lenient);
        Ok(skill)
    }

    /// Makes sure that a skill is in the store.
    pub(super) fn stored(&self, catalogue: &Catalogue, wanted: &SkillRef) -> Result<Staged> {
        let skill = match &wanted.select {
            Select::Digest(digest) => Arc::new(self.by_digest(catalogue, wanted, digest)?),
            Select::Current | Select::Version(_) => Arc::clone(find(catalogue, wanted)?),
        };
        let invalid = |problem: &Problem| Error::SkillInvalid {
            name: wanted.to_string(),
            problem: format!("{}: {}", problem.code, problem.message),
        };
        let error = skill.problems.iter().find(|problem| problem.is_error());
        if let (SkillState::Rejected, Some(problem)) = (skill.state, error) {
            return Err(invalid(problem));
        }
        let content = match skill.content.clone().filter(|_| skill.fixed) {
            Some(content) => content,
            None => self
                .store
                .take(&self.roots.folder(&skill))?
                .map_err(|problem| invalid(&problem))?,
        };
        Ok(Staged {
            name: skill.name.clone(),
            version: skill.front_matter.version.clone(),
            digest: content.digest,
            files: content.files,
            bytes: content.bytes,
            unchanged: false,
        })
    }
}

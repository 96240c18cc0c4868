//! One skill by what a request calls it: looked at, or taken into the store.

use std::sync::Arc;

use super::content::Folder;
use super::documents::Documents;
use super::resolve::{find, not_found};
use super::store::Lease;
use super::{
    Catalogue, Content, Inner, Problem, Profile, Select, Skill, SkillRef, SkillState, Staged,
};
use crate::error::{Error, Result};
use crate::paths;

impl Inner {
    /// A skill as a profile sees it, and the body of its SKILL.md with placeholders of its folder replaced.
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
            let read = document.map(|document| document.body).unwrap_or_default();
            body = paths::resolve_placeholders(&read, &skill.name);
        }
        skill.judge(profile);
        Ok((skill, body))
    }

    /// One that has this digest now, or had it when it was taken into the store.
    fn by_digest(&self, catalogue: &Catalogue, wanted: &SkillRef, digest: &str) -> Result<Skill> {
        match self.with_digest(catalogue, wanted, digest) {
            Some(skill) => Ok(skill),
            None => self.once_stored(catalogue, wanted, digest),
        }
    }

    fn with_digest(&self, catalogue: &Catalogue, wanted: &SkillRef, digest: &str) -> Option<Skill> {
        for skill in catalogue.named(&wanted.name) {
            let skill = self.with_content(skill);
            let content = skill.content.as_ref();
            if content.is_some_and(|content| content.digest == digest) {
                return Some(skill);
            }
        }
        None
    }

    /// What is in the store, whatever became of the root that it came from.
    fn once_stored(&self, catalogue: &Catalogue, wanted: &SkillRef, digest: &str) -> Result<Skill> {
        let missing = || not_found(catalogue, wanted);
        let name = wanted.name.rsplit('/').next().unwrap_or_default();
        let folder = Folder::stored(&self.store.dir(digest));
        let document = Documents::read(self.skill_md_bytes_max, &folder.dir, &folder.trust, name);
        let document = document.map_err(|_| missing())?;
        // One that says no name has the one that it was stored under.
        let known = self.store.known_as(digest);
        let is_it = known.iter().any(|known| known == name);
        if !is_it && (!known.is_empty() || document.front_matter.name != name) {
            return Err(missing());
        }
        let content = self.store.inspect(&folder).map_err(|_| missing())?;
        let mut skill = Skill {
            name: name.to_owned(),
            found_at: folder.dir.clone(),
            dir: folder.dir,
            fixed: true,
            content: Some(content),
            front_matter: Arc::new(document.front_matter),
            findings: document.findings,
            ..Skill::default()
        };
        skill.judge(Profile::Lenient);
        Ok(skill)
    }

    /// Makes sure that a skill is in the store, whole, and stays there.
    pub(super) fn stored(
        &self,
        catalogue: &Catalogue,
        wanted: &SkillRef,
    ) -> Result<(Staged, Lease)> {
        let skill = match &wanted.select {
            Select::Digest(digest) => {
                // The store comes first: what a root has now may be broken.
                if let Some(lease) = self.store.lease(digest)
                    && self.store.is_intact(digest)?
                    && let Ok(skill) = self.once_stored(catalogue, wanted, digest)
                    && let Some(content) = skill.content.clone()
                {
                    return Ok((staged(&skill, content), lease));
                }
                let skill = self.with_digest(catalogue, wanted, digest);
                Arc::new(skill.ok_or_else(|| not_found(catalogue, wanted))?)
            }
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
        let folder = self.roots.folder(&skill);
        let taken = self.store.take(&folder, &skill.name)?;
        let (content, lease) = taken.map_err(|problem| invalid(&problem))?;
        Ok((staged(&skill, content), lease))
    }
}

fn staged(skill: &Skill, content: Content) -> Staged {
    Staged {
        name: skill.name.clone(),
        version: skill.front_matter.version.clone(),
        digest: content.digest,
        files: content.files,
        bytes: content.bytes,
        unchanged: false,
        own_links: content.own_links,
    }
}

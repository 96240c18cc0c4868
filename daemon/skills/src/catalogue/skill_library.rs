//! Reads one skill: resolves a reference in a snapshot, leases its content in the store, and reads from there.
//!
//! A bare name selects the highest version in the first root that has the name, a pre-release only if no root has
//! anything else; a specifier selects the highest version that fits over all roots.

use std::path::Path;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::catalogue_snapshot::Catalogue;
use super::document_reader::{read_stored_documents, read_stored_skill};
use super::environment_need_reader::read_environment_need;
use super::name_suggestions::skill_not_found;
use super::plugin_library::{PluginLibrary, SharedFiles};
use super::preflight::{Need, collect_needs, infer_packages};
use super::skill::{Skill, SkillState};
use crate::content_store::content_hashing::{ContentSource, ContentSummary, IngestError};
use crate::content_store::digest_cache::DigestCache;
use crate::content_store::link_policy::LinkPolicy;
use crate::content_store::skill_files::{FileContent, Manifest, SkillFile};
use crate::content_store::staged_skill::{PluginFiles, StagedSkill};
use crate::content_store::{ContentStore, DAMAGED, Lease};
use crate::environments::remembered_packages::RememberedPackages;
use crate::error::{Error, Result};
use crate::parse::added_packages::AddedPackages;
use crate::parse::document::Document;
use crate::parse::environment_need::EnvironmentNeed;
use crate::parse::finding::ValidationProfile;
use crate::parse::problem::Problem;
use crate::parse::skill_ref::{SkillRef, VersionRef, folder_name};
use crate::parse::version::Specifier;
use crate::placeholders::{self, SkillFolder};
use crate::skill_path::resolve_in_plugin;
use crate::skills_options::SkillsOptions;
use crate::sources::Sources;

/// Path of a file to read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SkillFilePath<'a> {
    /// Relative to the skill's folder; `../` leads to what the skill shares within its plugin.
    InSkill(&'a str),
    /// Relative to the folder of the skill's plugin; to the skill's folder if the skill is staged without a plugin.
    InPlugin(&'a str),
}

impl SkillFilePath<'_> {
    /// Returns the path in the plugin, or in the skill if it is staged without one.
    fn resolve(self, plugin: Option<&PluginFiles>) -> Result<String> {
        match (self, plugin) {
            (Self::InSkill(path), Some(plugin)) => {
                resolve_in_plugin(&plugin.skill_path_text(), path)
            }
            (Self::InPlugin(path) | Self::InSkill(path), _) => resolve_in_plugin("", path),
        }
    }
}

/// Returns `true` if a normalised path leads out of the folder that it is relative to.
fn leads_up(path: &str) -> bool {
    path.split('/').next() == Some("..")
}

/// Catalogue as a tenant sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TenantView<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) catalogue: &'a Catalogue,
}

/// Resolves, reads, publishes and deletes skills, given a snapshot of the catalogue.
#[derive(Debug)]
pub(crate) struct SkillLibrary {
    pub(crate) store: Arc<ContentStore>,
    pub(crate) sources: Arc<Sources>,
    pub(crate) options: SkillsOptions,
    /// Manifests that were read.
    pub(crate) manifests: DigestCache<Manifest>,
    /// Packages that tenants added to skills.
    pub(crate) remembered: RememberedPackages,
    /// Needs for an environment, by the digest of the skill and that of the packages that are added.
    pub(crate) environment_needs: DigestCache<EnvironmentNeed>,
    /// Needs of an image that were collected.
    pub(crate) needs: DigestCache<Vec<Need>>,
    /// Shared files of plugins.
    pub(crate) plugins: PluginLibrary,
}

impl SkillLibrary {
    /// Returns a skill and the body of its SKILL.md.
    pub(crate) fn get(
        &self,
        catalogue: &Catalogue,
        wanted: &SkillRef,
        profile: ValidationProfile,
    ) -> Result<(Skill, String)> {
        let mut skill = Skill::clone(&*self.resolve(catalogue, wanted)?);
        let mut body = String::new();
        if skill.state != SkillState::Rejected {
            let folder = self.plugins.workspace_folder(catalogue, &skill)?;
            body = self.read_body(&skill, &folder);
        }
        skill.judge(profile);
        Ok((skill, body))
    }

    /// Returns the body of a skill's SKILL.md, with the placeholders for its folder replaced.
    pub(super) fn read_body(&self, skill: &Skill, folder: &SkillFolder) -> String {
        let document = self.read_documents(skill);
        let read = document.map(|document| document.body).unwrap_or_default();
        placeholders::resolve_placeholders(&read, folder)
    }

    /// Returns the skill that a reference selects: a listed one, else by its digest one that only the store has. A
    /// skill that was given with its plugin has the name of its folder in a workspace.
    pub(super) fn resolve(&self, catalogue: &Catalogue, wanted: &SkillRef) -> Result<Arc<Skill>> {
        let listed = match &wanted.version {
            VersionRef::Digest(digest) => match find_digest(catalogue, wanted, digest) {
                Some(skill) => skill,
                // The store does not know whose content it is.
                None if catalogue.is_view => return Err(skill_not_found(catalogue, wanted)),
                None => return self.find_stored(catalogue, wanted, digest).map(Arc::new),
            },
            VersionRef::Current | VersionRef::Matching(_) => find_skill(catalogue, wanted)?,
        };
        Ok(Skill::named_as(listed, &wanted.name))
    }

    /// Reads the documents of a skill from the store; from its folder if the store could not take it.
    fn read_documents(&self, skill: &Skill) -> Result<Document, Problem> {
        let stored = self.store.dir(skill.digest());
        let is_stored = !skill.digest().is_empty() && stored.is_dir();
        let dir: &Path = if is_stored { &stored } else { &skill.dir };
        read_stored_documents(dir, self.store.skill_md_bytes_max, &skill.name)
    }

    /// Finds a digest in the store, whatever became of the folder that it came from.
    fn find_stored(&self, catalogue: &Catalogue, wanted: &SkillRef, digest: &str) -> Result<Skill> {
        let folder = folder_name(&wanted.name);
        let name = folder.rsplit('/').next().unwrap_or_default();
        let skill = read_stored_skill(&self.store, digest, name);
        // A skill whose documents give no name has the one that it was stored under.
        let names = self.store.names(digest);
        let has_name = match names.as_slice() {
            [] => skill.front_matter.name == name,
            names => names.iter().any(|known| known == name),
        };
        if has_name && skill.content.is_some() {
            Ok(skill)
        } else {
            Err(skill_not_found(catalogue, wanted))
        }
    }

    /// Makes sure that a skill is in the store, and leases it there.
    pub(crate) fn lease(
        &self,
        catalogue: &Catalogue,
        wanted: &SkillRef,
    ) -> Result<(StagedSkill, Lease)> {
        let skill = self.resolve(catalogue, wanted)?;
        self.lease_resolved(catalogue, &skill, wanted)
    }

    fn lease_resolved(
        &self,
        catalogue: &Catalogue,
        skill: &Skill,
        wanted: &SkillRef,
    ) -> Result<(StagedSkill, Lease)> {
        let error = skill.problems.iter().find(|problem| problem.is_error());
        if let (SkillState::Rejected, Some(problem)) = (skill.state, error) {
            return Err(skill_invalid(wanted, problem));
        }
        let (content, lease) = self.lease_content(catalogue, skill, wanted)?;
        let staged = StagedSkill::new(&skill.name, &skill.front_matter, content);
        Ok((staged, lease))
    }

    /// Leases the content of a listed skill. Content that the store lost is copied from the skill's folder again.
    fn lease_content(
        &self,
        catalogue: &Catalogue,
        skill: &Skill,
        wanted: &SkillRef,
    ) -> Result<(ContentSummary, Lease)> {
        if let Some(content) = &skill.content
            && let Some(lease) = self.store.lease_intact(&content.digest)?
        {
            self.store.add_name(&content.digest, &skill.name)?;
            return Ok((content.clone(), lease));
        }
        if skill.is_stored {
            // Content without a record is collected, which may have happened since it was found.
            if !self.sources.references(skill.digest()) {
                return Err(skill_not_found(catalogue, wanted));
            }
            let problem = self.store.verified_content(skill.digest()).err();
            let problem =
                problem.unwrap_or_else(|| Problem::error(DAMAGED, "it was removed from the store"));
            return Err(skill_invalid(wanted, &problem));
        }
        let link_policy =
            LinkPolicy::of_skill(&catalogue.link_policy, &skill.dir, skill.is_fetched);
        let folder = ContentSource {
            dir: skill.dir.clone(),
            nested: skill.nested.clone(),
            link_policy,
            card: skill.outer_card.clone(),
        };
        let copied = self.store.copy(&folder, &skill.name);
        copied.map_err(|error| match error {
            IngestError::Skill(problem) => skill_invalid(wanted, &problem),
            IngestError::Host(error) => error,
        })
    }

    /// Returns the files of a skill.
    pub(crate) fn list_files(
        &self,
        catalogue: &Catalogue,
        wanted: &SkillRef,
    ) -> Result<Arc<Manifest>> {
        let (skill, _lease) = self.lease(catalogue, wanted)?;
        self.manifest(&skill)
    }

    /// Opens a file of a skill, or one that it shares within its plugin.
    pub(crate) fn open_file(
        &self,
        catalogue: &Catalogue,
        wanted: &SkillRef,
        path: SkillFilePath<'_>,
        is_workspace_text: bool,
    ) -> Result<(SkillFile, FileContent)> {
        let resolved = self.resolve(catalogue, wanted)?;
        let (skill, _lease) = self.lease_resolved(catalogue, &resolved, wanted)?;
        let plugin = match path {
            SkillFilePath::InSkill(path) if !leads_up(path) => None,
            SkillFilePath::InSkill(_) | SkillFilePath::InPlugin(_) => {
                match self.plugins.lease_files(catalogue, &resolved)? {
                    SharedFiles::Leased(files, lease, _problem) => Some((files, lease)),
                    SharedFiles::None | SharedFiles::Refused(_) => None,
                }
            }
        };
        let resolved_path = path.resolve(plugin.as_ref().map(|(plugin, _lease)| plugin))?;
        let path = resolved_path.as_str();
        let (own, shared) = match &plugin {
            None => (Some(path), None),
            Some((plugin, _lease)) => {
                let own = path.strip_prefix(&plugin.skill_path_text());
                (own.and_then(|own| own.strip_prefix('/')), Some(plugin))
            }
        };
        let (manifest, path, up) = match (own, shared) {
            (None, Some(plugin)) => {
                let up = "../".repeat(plugin.skill_path.components().count());
                (self.plugin_manifest(plugin)?, path, up)
            }
            (own, _) => (self.manifest(&skill)?, own.unwrap_or(path), String::new()),
        };
        let mut file = manifest.find(path)?.clone();
        let opened = manifest.open(&file)?;
        file.path.insert_str(0, &up);
        let content = if is_workspace_text {
            let folder = self.plugins.workspace_folder(catalogue, &resolved)?;
            FileContent::with_workspace_paths(opened, &mut file, &folder)?
        } else {
            FileContent::Stored(opened)
        };
        Ok((file, content))
    }

    /// Returns what a skill needs of an image.
    pub(crate) fn needs(&self, catalogue: &Catalogue, wanted: &SkillRef) -> Result<Arc<Vec<Need>>> {
        let (skill, _lease) = self.lease(catalogue, wanted)?;
        self.needs_of(&skill)
    }

    fn needs_of(&self, skill: &StagedSkill) -> Result<Arc<Vec<Need>>> {
        self.needs.get_or_read(&skill.digest, || {
            let document = self.stored_document(skill)?;
            let stated = self.stated_need(skill)?;
            collect_needs(
                &document.front_matter,
                &*self.manifest(skill)?,
                &stated.node_packages,
            )
        })
    }

    /// Makes sure that a skill is in the store with everything that staging needs, also the files that it shares within
    /// its plugin, and leases it there.
    pub(crate) fn lease_to_stage(
        &self,
        view: TenantView<'_>,
        wanted: &SkillRef,
    ) -> Result<(StagedSkill, Vec<Lease>)> {
        let resolved = self.resolve(view.catalogue, wanted)?;
        let (mut skill, lease) = self.lease_with_need(view, &resolved, wanted)?;
        let mut leases = vec![lease];
        match self.plugins.lease_files(view.catalogue, &resolved)? {
            SharedFiles::None => {}
            SharedFiles::Leased(files, lease, problem) => {
                skill.plugin = Some(files);
                skill.problems.extend(problem);
                leases.push(lease);
            }
            SharedFiles::Refused(problem) => skill.problems.push(problem),
        }
        Ok((skill, leases))
    }

    /// Leases a skill and finds out which packages it needs for a tenant.
    fn lease_with_need(
        &self,
        view: TenantView<'_>,
        skill: &Skill,
        wanted: &SkillRef,
    ) -> Result<(StagedSkill, Lease)> {
        let (mut staged, lease) = self.lease_resolved(view.catalogue, skill, wanted)?;
        staged.added_packages = self.added_packages(view.tenant, &staged.name)?;
        staged.environment_need = self.resolve_need(&staged)?;
        Ok((staged, lease))
    }

    /// Returns the packages that a skill needs: those that its files state, those that were added to it, and those that
    /// are inferred from its text if the operator permits this.
    fn resolve_need(&self, skill: &StagedSkill) -> Result<Arc<EnvironmentNeed>> {
        let added = &skill.added_packages;
        if added.is_empty() && !self.options.infers_packages {
            return self.stated_need(skill);
        }
        let added_digest = HEXLOWER.encode(&Sha256::digest(added.texts().join("\n")));
        let key = format!("{} {added_digest}", skill.digest);
        self.environment_needs.get_or_read(&key, || {
            let mut need = self.stated_need(skill)?.with_added(added);
            if self.options.infers_packages {
                need = need.with_inferred(&infer_packages(&self.needs_of(skill)?));
            }
            // This thread may block; those that ask for the digest later must not.
            let _computed = need.digest();
            Ok(need)
        })
    }

    /// Returns the packages that a skill's files state.
    fn stated_need(&self, skill: &StagedSkill) -> Result<Arc<EnvironmentNeed>> {
        self.environment_needs.get_or_read(&skill.digest, || {
            read_environment_need(&*self.manifest(skill)?)
        })
    }

    /// Returns the packages that the operator and a tenant add to a skill.
    fn added_packages(&self, tenant: &str, skill: &str) -> Result<AddedPackages> {
        let configured = self.options.packages.get(skill).cloned();
        let remembered = self.remembered.find(tenant, skill)?;
        Ok(configured.unwrap_or_default().merged(&remembered))
    }

    /// Replaces the packages that a tenant adds to a skill.
    pub(crate) fn remember_packages(
        &self,
        view: TenantView<'_>,
        wanted: &SkillRef,
        packages: AddedPackages,
    ) -> Result<()> {
        let skill = self.resolve(view.catalogue, wanted)?;
        self.remembered.replace(view.tenant, &skill.name, packages)
    }

    /// Returns a skill as staging it would report it, with the packages that it needs.
    pub(crate) fn environment_need(
        &self,
        view: TenantView<'_>,
        wanted: &SkillRef,
    ) -> Result<StagedSkill> {
        let skill = self.resolve(view.catalogue, wanted)?;
        let (skill, _lease) = self.lease_with_need(view, &skill, wanted)?;
        Ok(skill)
    }

    /// Returns `true` if a listed skill that answers to a name has the need with this digest, or cannot be read now.
    pub(crate) fn is_needed(&self, view: TenantView<'_>, name: &str, need: &str) -> bool {
        let wanted = SkillRef {
            name: name.to_owned(),
            written: name.to_owned(),
            version: VersionRef::Current,
        };
        view.catalogue.named(name).into_iter().any(|skill| {
            match self.lease_with_need(view, &Skill::named_as(skill, name), &wanted) {
                Ok((skill, _lease)) => skill.environment_need.digest() == need,
                Err(error) => matches!(error, Error::Io { .. }),
            }
        })
    }

    /// Returns the files of leased content; those that its card names, if it has a card that names any.
    pub(super) fn manifest(&self, skill: &StagedSkill) -> Result<Arc<Manifest>> {
        self.manifests.get_or_read(&skill.digest, || {
            let dir = self.store.dir(&skill.digest);
            let manifest =
                Manifest::read(&dir).map_err(Error::io(format!("read {}", dir.display())))?;
            let document = self.stored_document(skill)?;
            Ok(match document.front_matter.card {
                Some(card) => manifest.restricted(|path| card.allows(path)),
                None => manifest,
            })
        })
    }

    fn plugin_manifest(&self, plugin: &PluginFiles) -> Result<Arc<Manifest>> {
        self.manifests.get_or_read(&plugin.digest, || {
            let dir = self.store.dir(&plugin.digest);
            Manifest::read(&dir).map_err(Error::io(format!("read {}", dir.display())))
        })
    }

    fn stored_document(&self, skill: &StagedSkill) -> Result<Document> {
        let dir = self.store.dir(&skill.digest);
        let document = read_stored_documents(&dir, self.store.skill_md_bytes_max, &skill.name);
        document.map_err(|problem| Error::SkillInvalid {
            name: skill.name.clone(),
            problem: problem.message,
        })
    }
}

/// Returns the skill that a reference selects; its digest is ignored. A rejected skill is selected only where no usable
/// one is.
///
/// # Errors
/// `SkillNotFound`.
pub(crate) fn find_skill<'a>(
    catalogue: &'a Catalogue,
    wanted: &SkillRef,
) -> Result<&'a Arc<Skill>> {
    let named = catalogue.named_by(wanted);
    let in_state = |is_wanted: &dyn Fn(&Skill) -> bool| -> Vec<&'a Arc<Skill>> {
        named
            .iter()
            .copied()
            .filter(|skill| is_wanted(skill))
            .collect()
    };
    let mut usable = in_state(&|skill| {
        let is_scoped = || skill.is_scoped_as(&wanted.name);
        skill.is_usable() || skill.state == SkillState::Shadowed && is_scoped()
    });
    let rejected = in_state(&|skill| skill.state == SkillState::Rejected);
    let found = match &wanted.version {
        VersionRef::Matching(specifier) => {
            choose_version(&usable, specifier).or_else(|| choose_version(&rejected, specifier))
        }
        VersionRef::Current | VersionRef::Digest(_) => {
            let stable = usable.iter().find(|skill| !skill.is_prerelease());
            let first_root = stable.or(usable.first()).map(|skill| skill.rank);
            usable.retain(|skill| Some(skill.rank) == first_root);
            choose_version(&usable, &Specifier::any()).or(rejected.first().copied())
        }
    };
    found.ok_or_else(|| skill_not_found(catalogue, wanted))
}

fn choose_version<'a>(skills: &[&'a Arc<Skill>], specifier: &Specifier) -> Option<&'a Arc<Skill>> {
    let versions = skills
        .iter()
        .map(|skill| skill.front_matter.version.as_str());
    skills.get(specifier.choose(versions)?).copied()
}

/// Returns the listed skill that has a digest.
fn find_digest<'a>(
    catalogue: &'a Catalogue,
    wanted: &SkillRef,
    digest: &str,
) -> Option<&'a Arc<Skill>> {
    let mut named = catalogue.named_by(wanted).into_iter();
    named.find(|skill| skill.digest() == digest)
}

fn skill_invalid(wanted: &SkillRef, problem: &Problem) -> Error {
    Error::SkillInvalid {
        name: wanted.to_string(),
        problem: format!("{}: {}", problem.code, problem.message),
    }
}

//! Staging of skills: their leases, their copies in a workspace and the packages that they need.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::Skills;
use crate::catalogue::catalogue_snapshot::Catalogue;
use crate::catalogue::skill_library::{SkillLibrary, TenantView};
use crate::content_store::Lease;
use crate::content_store::staged_skill::{self, StagedSkill, StagingEffect, WritableStaging};
use crate::environments::environment_record::PreparedEnvironment;
use crate::error::Result;
use crate::parse::added_packages::AddedPackages;
use crate::parse::skill_ref::SkillRef;
use crate::skill_scope::{DEFAULT_TENANT, SkillScope};

/// Skills to stage, whose content stays in the store as long as this exists.
#[derive(Debug)]
pub struct LeasedSkills {
    skills: Vec<StagedSkill>,
    leases: Vec<Lease>,
}

impl LeasedSkills {
    /// Returns the skills as their staging will report them, in the order of the request.
    pub fn skills(&self) -> &[StagedSkill] {
        &self.skills
    }
}

fn view<'a>(tenant: &'a str, catalogue: &'a Catalogue) -> TenantView<'a> {
    TenantView { tenant, catalogue }
}

impl Skills {
    /// Makes sure that skills are in the store with everything that staging needs, and keeps them there.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub async fn lease_to_stage(&self, wanted: Vec<SkillRef>) -> Result<LeasedSkills> {
        let tenant = self.scope.tenant().to_owned();
        self.read(move |library, catalogue| {
            let leased = wanted
                .iter()
                .map(|wanted| library.lease_to_stage(view(&tenant, catalogue), wanted));
            let (skills, leases): (Vec<_>, Vec<_>) =
                leased.collect::<Result<Vec<_>>>()?.into_iter().unzip();
            Ok(LeasedSkills {
                skills,
                leases: leases.into_iter().flatten().collect(),
            })
        })
        .await
    }

    /// Returns the effect that staging these skills in `slots/<slot>/skills/` would have on the disk; as writable copies if
    /// `is_writable`.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub async fn examine_staging(
        &self,
        slot_skills_dir: &Path,
        leased: &LeasedSkills,
        is_writable: bool,
    ) -> Result<StagingEffect> {
        let (target, skills) = (slot_skills_dir.to_owned(), leased.skills.clone());
        let examine = move || Ok(staged_skill::examine_staging(&target, &skills, is_writable));
        self.blocking(examine).await
    }

    /// Puts skills into `slots/<slot>/skills/`, all or none; answers in the order of the request. Commands that use an
    /// older version keep what they have open.
    ///
    /// # Errors
    /// `Invalid` for two versions of one skill; `Io`.
    pub async fn stage(
        &self,
        slot_skills_dir: &Path,
        leased: LeasedSkills,
    ) -> Result<Vec<StagedSkill>> {
        let (target, library) = (slot_skills_dir.to_owned(), Arc::clone(&self.library));
        let stage = move || {
            let LeasedSkills {
                skills,
                leases: _leases,
            } = leased;
            staged_skill::stage_skills(&library.store, &target, skills)
        };
        self.blocking(stage).await
    }

    /// Prepares writable copies of skills for a workspace, all or none; the guest has to get them before
    /// [`Self::publish_writable`]. `intact` has the workspace's writable copies that still exist: path → time of the
    /// latest modification.
    ///
    /// # Errors
    /// `Invalid` for two versions of one skill; `Io`.
    pub async fn prepare_writable(
        &self,
        slot_skills_dir: &Path,
        leased: LeasedSkills,
        intact: BTreeMap<String, SystemTime>,
    ) -> Result<WritableStaging> {
        let (target, library) = (slot_skills_dir.to_owned(), Arc::clone(&self.library));
        let prepare = move || {
            let LeasedSkills {
                skills,
                leases: _leases,
            } = leased;
            staged_skill::prepare_writable(&library.store, &target, skills, &intact)
        };
        self.blocking(prepare).await
    }

    /// Makes `slots/<slot>/skills/` lead to the writable copies that the guest has now, all or none.
    ///
    /// # Errors
    /// `Io`.
    pub async fn publish_writable(
        &self,
        slot_skills_dir: &Path,
        staging: WritableStaging,
    ) -> Result<Vec<StagedSkill>> {
        let target = slot_skills_dir.to_owned();
        self.tasks
            .blocking(move || staged_skill::publish_writable(&target, staging))
            .await
    }

    /// Makes Node.js packages available to the skills in `slots/<slot>/skills/` that are staged with them. `packages` has
    /// [`StagedSkill::node_packages_name`] and the path of the packages in the container, `None` if they are missing.
    ///
    /// # Errors
    /// `Io`.
    pub async fn link_node_packages(
        &self,
        slot_skills_dir: &Path,
        packages: Vec<(String, Option<String>)>,
    ) -> Result<()> {
        let target = slot_skills_dir.to_owned();
        self.tasks
            .blocking(move || staged_skill::link_node_packages(&target, &packages))
            .await
    }

    /// Returns a skill as staging it would report it, with the packages that it needs.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub async fn environment_need(&self, wanted: SkillRef) -> Result<StagedSkill> {
        let tenant = self.scope.tenant().to_owned();
        self.read(move |library, catalogue| {
            library.environment_need(view(&tenant, catalogue), &wanted)
        })
        .await
    }

    /// Replaces the packages that the scope's tenant added to a skill, which count for its name from now on. With no
    /// packages it has none but those of the operator.
    ///
    /// # Errors
    /// `SkillNotFound`, `LimitExceeded`, `Io`.
    pub async fn remember_packages(&self, wanted: SkillRef, packages: AddedPackages) -> Result<()> {
        let tenant = self.scope.tenant().to_owned();
        self.read(move |library, catalogue| {
            library.remember_packages(view(&tenant, catalogue), &wanted, packages)
        })
        .await
    }

    /// Returns the names of the environments that a skill of their tenant still needs for which they were prepared.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub async fn find_needed(&self, prepared: Vec<PreparedEnvironment>) -> Result<HashSet<String>> {
        let mut of_tenants: BTreeMap<String, Vec<PreparedEnvironment>> = BTreeMap::new();
        for environment in prepared {
            let tenant = environment.key.tenant.clone();
            of_tenants.entry(tenant).or_default().push(environment);
        }
        let mut needed = HashSet::new();
        for (tenant, prepared) in of_tenants {
            let scope = match tenant.as_str() {
                DEFAULT_TENANT => SkillScope::Single,
                name => SkillScope::Tenant {
                    name: name.to_owned(),
                    roots: None,
                },
            };
            let find = move |library: &SkillLibrary, catalogue: &Catalogue| {
                let is_needed = |environment: &PreparedEnvironment| {
                    let view = view(&environment.key.tenant, catalogue);
                    let mut skills = environment.skills.iter();
                    skills.any(|skill| library.is_needed(view, skill, &environment.key.need))
                };
                let needed = prepared.into_iter().filter(is_needed);
                Ok(needed
                    .map(|environment| environment.name)
                    .collect::<Vec<_>>())
            };
            // The daemon's own work waits for no tenant's turn.
            let skills = Self {
                scope,
                ..self.clone()
            };
            needed.extend(skills.read(find).await?);
        }
        Ok(needed)
    }

    /// Removes the replaced versions in `slots/<slot>/skills/`, which no command may use any more.
    ///
    /// # Errors
    /// `Io` when the slot is gone.
    pub async fn remove_replaced(&self, slot_skills_dir: &Path) -> Result<()> {
        let target = slot_skills_dir.to_owned();
        self.tasks
            .blocking(move || staged_skill::remove_replaced(&target))
            .await
    }
}

//! Staging of skills: finds or builds their environments, then publishes and records them in a workspace.
//!
//! Until a build ends, the workspace keeps what it has, and other stagings get their turn. A client that disconnects ends
//! the wait. A staging that has begun to publish runs to its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::convert::environment::mounted_environment;
use super::{SharedDependencies, staging_room, writable_skills};
use crate::access::TenantName;
use crate::engine::ImageInfo;
use crate::environments::{EnvironmentRequest, NOT_MOUNTED, StagedEnvironment};
use crate::error::{Error, Result};
use crate::exec::StagedSkillRecord;
use crate::fault;
use crate::skills::{
    EnvironmentNeed, LeasedSkills, PluginFiles, Problem, SkillRef, Skills, StagedSkill,
};
use crate::workspace::record::{SlotRecord, WorkspaceClaim};
use crate::workspace::{Workspace, WorkspaceGrant};
use crate::workspace_paths;

/// Skills that can be published in a workspace.
pub(super) struct SkillStaging {
    workspace: Workspace,
    grant: WorkspaceGrant,
    leased: LeasedSkills,
    /// Environments of the skills, in their order.
    environments: Vec<StagedEnvironment>,
    /// `true` to stage the skills as copies that commands can write.
    writable: bool,
}

impl SkillStaging {
    /// Leases the skills of a request from `source`, and finds or builds their environments. Missing ones are waited for until
    /// `wait_deadline`.
    pub(super) async fn prepare(
        shared: &SharedDependencies,
        source: &Skills,
        workspace: Workspace,
        skills: Vec<SkillRef>,
        writable: bool,
        wait_deadline: Instant,
    ) -> Result<Self> {
        let grant = workspace.grant().await?;
        let leased = source.lease_to_stage(skills).await?;
        let slot = &grant.view.record;
        let tenant = &workspace.key.tenant;
        let skills = (tenant, leased.skills());
        let environments = find_environments(shared, slot, skills, wait_deadline).await?;
        Ok(Self {
            workspace,
            grant,
            leased,
            environments,
            writable,
        })
    }

    /// Stages and records the skills within the tenant's quota, and removes the versions that they replaced unless processes
    /// in the workspace may use them. Goes on to its end if the future is dropped.
    pub(super) async fn run(
        self,
        shared: &SharedDependencies,
    ) -> Result<Vec<(StagedSkill, StagedEnvironment)>> {
        let staging = self.publish(Arc::clone(shared));
        let staged = shared.tasks.spawn(staging).await;
        staged.map_err(|error| Error::Internal(format!("staging: {error}")))?
    }

    async fn publish(
        self,
        shared: SharedDependencies,
    ) -> Result<Vec<(StagedSkill, StagedEnvironment)>> {
        let (workspace, grant, leased) = (&self.workspace, &self.grant, self.leased);
        // Stagings of one workspace run one after the other, so that its record matches its directory.
        let _turn = workspace.lock_skill_staging().await;
        link_node_packages(&shared, workspace, leased.skills(), &self.environments).await?;
        let place = (workspace, grant);
        staging_room::reserve_staging(&shared, place, &leased, self.writable).await?;
        let staged = if self.writable {
            writable_skills::stage_writable(&shared, workspace, grant, leased).await
        } else {
            let target = workspace.skills_dir();
            let skills = shared.skills.working_for(&workspace.key.tenant);
            let staged = skills.stage(&target, leased).await;
            staged.map_err(Error::from)
        };
        let staged = match staged {
            Ok(staged) => staged,
            Err(error) => {
                staging_room::settle_staging(&shared, workspace, grant).await;
                // If the workspace is being removed, report that instead of the failed write.
                workspace.grant().await?;
                return Err(error);
            }
        };
        let is_changed = staged.iter().any(|skill| !skill.unchanged);
        let with_environments: Vec<_> = staged.into_iter().zip(self.environments).collect();
        let recorded = record_staged_skills(workspace, &with_environments).await;
        if recorded.is_ok() {
            fault::reach("stage.recorded");
        }
        if is_changed {
            staging_room::settle_staging(&shared, workspace, grant).await;
        }
        recorded.map(|()| with_environments)
    }
}

/// Finds or builds the environments of a tenant's skills, in their order.
async fn find_environments(
    shared: &SharedDependencies,
    slot: &SlotRecord,
    (tenant, skills): (&TenantName, &[StagedSkill]),
    wait_deadline: Instant,
) -> Result<Vec<StagedEnvironment>> {
    let has_none = |need: &EnvironmentNeed| need.is_empty() && need.problems.is_empty();
    if skills.iter().all(|skill| has_none(&skill.environment_need)) {
        return Ok(vec![StagedEnvironment::default(); skills.len()]);
    }
    let is_enabled = shared.config.skills.environments.is_enabled();
    if is_enabled && !slot.has_shared_dir(workspace_paths::ENVIRONMENTS_DIR) {
        return Ok(skills.iter().map(environment_without_mount).collect());
    }
    let registry = &shared.registry;
    // A workspace of a pool that is no longer configured belongs to the default pool.
    let pool = registry
        .pool(Some(&slot.pool))
        .or_else(|_| registry.pool(None))?;
    let finds = skills.iter().map(|skill| {
        let request = EnvironmentRequest {
            tenant: tenant.clone(),
            skill: skill.name.clone(),
            need: Arc::clone(&skill.environment_need),
            pool: Arc::clone(pool),
            image: ImageInfo {
                reference: slot.image.clone(),
                id: slot.image_id.clone(),
                // The build has to find the same Python as the commands.
                env: slot.image_env.pairs(),
                ..ImageInfo::default()
            },
        };
        async move {
            shared
                .environments
                .find_for_staging(&request, wait_deadline)
                .await
        }
    });
    Ok(futures::future::join_all(finds).await)
}

/// Makes the Node.js packages of environments available to `import` in the skills, and those of missing environments
/// unavailable.
async fn link_node_packages(
    shared: &SharedDependencies,
    workspace: &Workspace,
    skills: &[StagedSkill],
    environments: &[StagedEnvironment],
) -> Result<()> {
    let staged = skills.iter().zip(environments);
    let packages: Vec<_> = staged
        .filter(|(skill, _)| !skill.environment_need.node_projects.is_empty())
        .map(|(skill, environment)| {
            let record = environment.record.as_deref();
            let path = record.and_then(|record| mounted_environment(record).node_packages_path());
            (skill.node_packages_name(), path)
        })
        .collect();
    if packages.is_empty() {
        return Ok(());
    }
    let target = workspace.skills_dir();
    Ok(shared
        .skills
        .of_daemon()
        .link_node_packages(&target, packages)
        .await?)
}

/// Returns the result for a skill in a container that an earlier configuration made, without a mount for environments.
fn environment_without_mount(skill: &StagedSkill) -> StagedEnvironment {
    if skill.environment_need.is_empty() {
        return StagedEnvironment::default();
    }
    let name = &skill.name;
    let message = format!(
        "the packages of skill {name} cannot be used in this workspace, which was created before the daemon built \
         environments: create a new workspace"
    );
    StagedEnvironment {
        record: None,
        problems: vec![Problem::warning(NOT_MOUNTED, message)],
    }
}

/// Records the staged skills of a workspace, unless the record has them already: a record costs a write to disk.
async fn record_staged_skills(
    workspace: &Workspace,
    staged: &[(StagedSkill, StagedEnvironment)],
) -> Result<()> {
    let record = |(skill, environment): &(StagedSkill, StagedEnvironment)| {
        let record = StagedSkillRecord {
            digest: format!("sha256:{}", skill.digest),
            environment: environment.record.as_deref().map(mounted_environment),
            path_in_plugin: skill.plugin.as_ref().map(PluginFiles::skill_path_text),
            writable_path: skill.writable_path.clone(),
        };
        (skill.name.clone(), record)
    };
    let records: BTreeMap<String, StagedSkillRecord> = staged.iter().map(record).collect();
    let view = workspace.snapshot();
    let is_recorded = |claim: &WorkspaceClaim| {
        let mut records = records.iter();
        records.all(|(name, record)| claim.skills.get(name) == Some(record))
    };
    if view.record.claim.as_ref().is_some_and(is_recorded) {
        return Ok(());
    }
    workspace.record_skills(records).await
}

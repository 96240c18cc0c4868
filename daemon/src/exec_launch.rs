//! Prepares the launch of an exec in a workspace that has granted it. It finds the script, resolves the command with
//! its environment and limits, and reserves the exec within the quota of its tenant. `rpc/exec.rs` sends the result to
//! the guest.

mod writable_script;

use std::collections::BTreeMap;
use std::sync::Arc;

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;

use crate::config::ExecConfig;
use crate::engine::EngineInfo;
use crate::error::Result;
use crate::exec::{self, ExecContext, StagedSkillRecord, StartMode, script};
use crate::shutdown::Tasks;
use crate::workspace::running_execs::CountedExec;
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace::{Workspace, WorkspaceGrant, WorkspaceId};
use crate::workspace_paths;
use writable_script::find_writable_script;

/// Request for an exec whose fields were checked.
#[derive(Debug)]
pub struct ExecRequest {
    /// Workspace of the exec.
    pub workspace: WorkspaceId,
    /// Id of the exec.
    pub exec_id: String,
    /// `true` if the daemon chose the id, so that the request can repeat no other.
    pub is_new: bool,
    /// Digest of the spec, by which a guest recognises a repeated request.
    pub digest: Vec<u8>,
    /// Specification of the exec.
    pub spec: pb::ExecSpec,
}

/// Dependencies of a launch: the workspace with its grant, the configuration and the limits of the exec.
#[derive(Debug, Clone, Copy)]
pub struct ExecLauncher<'a> {
    /// Workspace of the exec.
    pub workspace: &'a Workspace,
    /// Grant for the exec.
    pub grant: &'a WorkspaceGrant,
    /// Configured defaults and limits of execs.
    pub config: &'a ExecConfig,
    /// Abilities of the container engine.
    pub engine: &'a EngineInfo,
    /// Tracker of blocking work.
    pub tasks: &'a Tasks,
    /// State that slots share.
    pub context: &'a Arc<SharedSlotContext>,
    /// Maximum number of running execs of the tenant; `None` without a limit.
    pub execs_max: Option<u64>,
}

impl ExecLauncher<'_> {
    /// Returns the request for the guest, and the unit of the tenant's quota of running execs that the exec takes; `None`
    /// for a repeated request that takes none.
    ///
    /// # Errors
    /// Those of [`exec::resolve_exec`] and of finding the script; `TenantQuota`.
    pub async fn prepare_launch(
        self,
        request: ExecRequest,
        start: StartMode,
    ) -> Result<(guest::StartExecRequest, Option<CountedExec>)> {
        let ExecRequest {
            exec_id,
            is_new,
            digest,
            spec,
            ..
        } = request;
        let (no_env, no_skills) = (BTreeMap::new(), BTreeMap::new());
        let record = &self.grant.view.record;
        let claim = record.claim.as_ref();
        let skills = claim.map_or(&no_skills, |claim| &claim.skills);
        let script = self.find_script(&spec, skills).await?;
        let context = ExecContext {
            image_env: &record.image_env,
            cpu_millis: self.engine.usable_cpu_millis(record.limits.cpu_millis),
            env: claim.map_or(&no_env, |claim| &claim.env),
            skills,
            has_wheelhouse: record.has_shared_dir(workspace_paths::WHEELHOUSE_DIR),
            script: script.as_ref(),
            config: self.config,
        };
        let request = exec::resolve_exec(exec_id, digest, spec, start, context)?;
        // A request whose id the daemon chose repeats none.
        let grant = (!is_new).then_some(self.grant);
        let (workspace, limit) = (self.workspace, self.execs_max);
        let counted =
            CountedExec::reserve(self.context, workspace, &request.exec_id, limit, grant).await?;
        Ok((request, counted))
    }

    /// Finds the script of a spec in the staged copy of its skill.
    async fn find_script(
        self,
        spec: &pb::ExecSpec,
        skills: &BTreeMap<String, StagedSkillRecord>,
    ) -> Result<Option<script::ScriptProgram>> {
        let staged = exec::require_staged_skill(&spec.skill, skills)?;
        let (Some(script), Some(staged)) = (&spec.script, staged) else {
            return Ok(None);
        };
        let (skill, path) = (spec.skill.clone(), script.path.clone());
        if let Some(copy) = &staged.writable_path {
            let found = find_writable_script(self.grant, &skill, copy, &path);
            return found.await.map(Some);
        }
        let root = self.workspace.skills_dir().join(&skill);
        let find = move || script::find_script(&skill, &root, &path);
        self.tasks.blocking(find).await.map(Some)
    }
}

//! Prepares the launch of an exec, which `rpc/exec.rs` then sends to the guest.
//!
//! It gets the workspace's grant, finds the script, resolves the command with its environment and limits, and reserves
//! the exec within the quota of its tenant.

mod writable_script;

use std::collections::BTreeMap;

use skilld_common::names::strip_skill_prefix;
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;

use crate::access::Caller;
use crate::config::ExecConfig;
use crate::engine::EngineInfo;
use crate::error::{Error, Result};
use crate::exec::{self, ExecContext, StagedSkillRecord, StartMode, script};
use crate::shutdown::{RefusedWork, Tasks};
use crate::workspace::registry::WorkspaceRegistry;
use crate::workspace::running_execs::ExecReservation;
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
    /// Format of the output in events.
    pub format: pb::OutputFormat,
}

/// Dependencies of a launch. Launches nothing itself: the caller sends the prepared request to the guest.
#[derive(Debug, Clone, Copy)]
pub struct ExecLauncher<'a> {
    /// Finds the workspace.
    pub registry: &'a WorkspaceRegistry,
    /// Configured defaults and limits of execs.
    pub config: &'a ExecConfig,
    /// Abilities of the container engine.
    pub engine: &'a EngineInfo,
    /// Tracker of blocking work, which refuses new execs while the daemon drains.
    pub tasks: &'a Tasks,
}

/// Exec that is ready for the guest.
#[derive(Debug)]
pub struct PreparedLaunch {
    /// Grant of the workspace.
    pub grant: WorkspaceGrant,
    /// Request for the guest.
    pub request: guest::StartExecRequest,
    /// Unit of the tenant's quota of running execs; `None` for a repeated request that takes none. Dropped after the
    /// guest's answer of any kind, because the exec may have started.
    pub reservation: Option<ExecReservation>,
}

impl ExecLauncher<'_> {
    /// Gets the grant of the workspace, and prepares the exec in it.
    ///
    /// # Errors
    /// `Draining`; those of the grant, of [`exec::resolve_exec`] and of finding the script; `TenantQuota`.
    pub async fn prepare_launch(
        self,
        caller: &Caller,
        request: ExecRequest,
        start: StartMode,
    ) -> Result<PreparedLaunch> {
        if self.tasks.refuses(RefusedWork::Execs) {
            return Err(Error::Draining);
        }
        let workspace = self.registry.get(caller, &request.workspace)?;
        let grant = workspace.grant().await?;
        let ExecRequest {
            exec_id,
            is_new,
            digest,
            spec,
            format,
            ..
        } = request;
        let (no_env, no_skills) = (BTreeMap::new(), BTreeMap::new());
        let record = &grant.view.record;
        let claim = record.claim.as_ref();
        let skills = claim.map_or(&no_skills, |claim| &claim.skills);
        let script = self
            .find_script((&workspace, &grant), &spec, skills)
            .await?;
        let context = ExecContext {
            image_env: &record.image_env,
            cpu_millis: self.engine.usable_cpu_millis(record.limits.cpu_millis),
            env: claim.map_or(&no_env, |claim| &claim.env),
            skills,
            has_wheelhouse: record.has_shared_dir(workspace_paths::WHEELHOUSE_DIR),
            has_fonts: record.has_shared_dir(workspace_paths::FONTS_DIR),
            script: script.as_ref(),
            config: self.config,
        };
        let mut prepared = exec::resolve_exec(exec_id, digest, spec, start, context)?;
        prepared.set_format(format);
        // A request whose id the daemon chose repeats none.
        let repeated = (!is_new).then_some(&grant);
        let (slots, limit) = (&self.registry.context, caller.limits().execs);
        let reservation =
            ExecReservation::reserve(slots, &workspace, &prepared.exec_id, limit, repeated).await?;
        Ok(PreparedLaunch {
            grant,
            request: prepared,
            reservation,
        })
    }

    /// Finds the script of a spec in the staged copy of its skill.
    async fn find_script(
        self,
        (workspace, grant): (&Workspace, &WorkspaceGrant),
        spec: &pb::ExecSpec,
        skills: &BTreeMap<String, StagedSkillRecord>,
    ) -> Result<Option<script::ScriptProgram>> {
        let skill = strip_skill_prefix(&spec.skill);
        let staged = exec::require_staged_skill(skill, skills)?;
        let (Some(script), Some(staged)) = (&spec.script, staged) else {
            return Ok(None);
        };
        let (skill, path) = (skill.to_owned(), script.path.clone());
        if let Some(copy) = &staged.writable_path {
            let found = find_writable_script(grant, &skill, copy, &path);
            return found.await.map(Some);
        }
        let root = workspace.skills_dir().join(&skill);
        let find = move || script::find_script(&skill, &root, &path);
        self.tasks.blocking(find).await.map(Some)
    }
}

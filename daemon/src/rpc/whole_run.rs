//! RunExec that also claims a workspace, prepares it, stages skills and inputs, and sends the files that the command
//! left.
//!
//! Each step is repeatable with the ids of the request, so a repeated request continues where the first one ended, also
//! after a restart of the daemon. A call that claimed a workspace and fails before the start deletes it, and so does the
//! end of the last stream of a run. A stream that breaks leaves it to a repeated request and to its idle timeout; so does
//! a call that breaks while the workspace is being claimed or the exec is being started.

use std::sync::Arc;

use futures::{Stream, StreamExt, TryStreamExt, stream};
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{self as pb, ErrorReason};
use tokio::time::Instant;
use tonic::Code;

use super::SharedDependencies;
use super::convert::run::{ReachedPosition, RunPlan, TemplatePlan};
use super::convert::{self, file as file_wire, input as input_wire};
use super::exec::{ExecRpc, start_prepared};
use super::relay::{RelayedStream, relay_stream};
use super::run_outputs::{RunEvents, RunOutputs, event_message};
use super::skill_staging::SkillStaging;
use super::workspace::visible_message;
use crate::access::Caller;
use crate::error::{Chain, Error, Result};
use crate::exec::StartMode;
use crate::exec_launch::ExecRequest;
use crate::inputs::InputSource;
use crate::telemetry::trace_span::in_child_span;
use crate::workspace::run_table::{RunKey, RunStreamGuard, RunTurn};
use crate::workspace::slot_state_machine::SlotState;
use crate::workspace::{SlotSnapshot, Workspace, WorkspaceGrant};

/// Turn of a request, and the workspace that it claimed. If the guard is dropped before the start, the workspace is
/// deleted, and the turn ends with the deletion.
struct ClaimGuard<'a> {
    shared: &'a SharedDependencies,
    turn: Option<RunTurn>,
    /// `None` if an earlier request claimed the workspace, and once the start was requested.
    claimed: Option<Workspace>,
}

impl ExecRpc {
    /// Does what a plan says. Returns the name of the exec, and its events.
    pub(super) async fn run_whole(
        &self,
        caller: &Caller,
        mut plan: RunPlan,
        wait_deadline: Instant,
    ) -> Result<(String, RelayedStream<pb::ExecEvent>)> {
        require_rights(caller, &plan)?;
        let shared = &self.0;
        let key = RunKey {
            tenant: caller.tenant().clone(),
            exec: convert::exec_name(&plan.exec.workspace.name(), &plan.exec.exec_id),
        };
        let run = shared.runs.activate(&key);
        // The workspace stays while this request attaches.
        let stream = Arc::clone(&run).open_stream();
        let mut guard = ClaimGuard {
            shared,
            turn: Some(run.take_turn().await),
            claimed: None,
        };
        let template = plan.template.take();
        let is_temporary = template.as_ref().is_some_and(|template| !template.keep);
        // A request can be repeated only with an id that the client knows.
        let is_repeatable = template.is_some() && !plan.exec.is_new;
        let mut first = Vec::new();
        let workspace = match template {
            Some(template) => find_or_claim(caller, template, (&key, &plan), &mut guard).await?,
            None => shared.registry.get(caller, &plan.exec.workspace)?,
        };
        if guard.claimed.is_some() {
            first.push(Event::Workspace(visible_message(caller, &workspace)));
        }
        let exec_id = plan.exec.exec_id.clone();
        let is_known = !plan.exec.is_new && is_exec_known(&workspace, &exec_id).await?;
        if !is_known && plan.position.is_none() {
            let staged = self.stage_all(caller, &workspace, &mut plan, wait_deadline);
            let staged = staged.await?;
            first.extend(staged.map(Event::Staged));
        }
        let outputs = RunOutputs::new(shared, workspace.key.clone(), plan.outputs, plan.position);
        let (grant, events) = match plan.position {
            Some(position) => {
                let format = plan.exec.format.into();
                attach_exec(&workspace, &exec_id, format, position).await?
            }
            None => {
                let remembered = is_repeatable.then_some(&key);
                self.start_run(caller, plan.exec, remembered, &mut guard)
                    .await?
            }
        };
        drop(guard);
        let first = first.into_iter().map(|event| Ok(event_message(event)));
        let whole = stream::iter(first).chain(outputs.follow(events, grant));
        let temporary = is_temporary.then_some(workspace);
        let ended = end_with_deletion(shared, whole, stream, temporary);
        Ok((key.exec, ended))
    }

    /// Stages the skills and the inputs of a plan, with the setup between them; `None` if it has nothing of that.
    async fn stage_all(
        &self,
        caller: &Caller,
        workspace: &Workspace,
        plan: &mut RunPlan,
        wait_deadline: Instant,
    ) -> Result<Option<pb::StagedEvent>> {
        let shared = &self.0;
        let skills = std::mem::take(&mut plan.skills);
        let inputs = std::mem::take(&mut plan.inputs);
        if skills.is_empty() && inputs.is_empty() && plan.setup.is_none() {
            return Ok(None);
        }
        let mut staged = pb::StagedEvent::default();
        if !skills.is_empty() {
            let (source, place) = (shared.skills.of(caller), workspace.clone());
            let writable = plan.writable_skills;
            let staging =
                SkillStaging::prepare(shared, &source, place, skills, writable, wait_deadline);
            let staging = in_child_span("find environments", staging).await?;
            let skills = in_child_span("stage skills", staging.run(shared)).await?;
            staged.skills = file_wire::staged_skills_message(&skills).skills;
        }
        let scope = plan.scope.clone().of_tenant(caller.tenant());
        if let Some(setup) = plan.setup.take() {
            let setup = self.run_setup(caller, workspace, setup, scope.clone());
            staged.setup_ran = setup.await?;
        }
        if !inputs.is_empty() {
            let (inputs, grant): (Arc<[_]>, _) = (inputs.into(), workspace.grant().await?);
            let staging = shared
                .inputs
                .stage(workspace.clone(), grant, Arc::clone(&inputs), scope);
            let files = in_child_span("stage inputs", staging).await?;
            staged.inputs = input_wire::staged_inputs_message(&inputs, files).inputs;
        }
        Ok(Some(staged))
    }

    /// Starts the exec of a run, or attaches to it. From the request to the guest on, the exec may run: the run is
    /// remembered under a key and its workspace stays, unless the answer proves that nothing was started.
    async fn start_run(
        &self,
        caller: &Caller,
        exec: ExecRequest,
        remembered: Option<&RunKey>,
        guard: &mut ClaimGuard<'_>,
    ) -> Result<(WorkspaceGrant, RunEvents)> {
        let name = exec.workspace.name();
        let prepared = self.prepare_exec(caller, exec, StartMode::Run).await?;
        let runs = &self.0.runs;
        let claimed = guard.claimed.take();
        let added = remembered.filter(|key| runs.add_started(key));
        match start_prepared(prepared).await {
            Ok((grant, events)) => {
                let events = events.map_err(move |status| Error::from_guest(&name, &status));
                Ok((grant, events.boxed()))
            }
            Err(error) => {
                if !may_have_started(&error) {
                    added.into_iter().for_each(|key| runs.remove_started(key));
                    guard.claimed = claimed;
                }
                Err(error)
            }
        }
    }
}

/// Returns `true` if an error of a start does not prove that nothing was started.
fn may_have_started(error: &Error) -> bool {
    !matches!(
        error.kind().0,
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::Unavailable
    )
}

/// Finds the workspace that an earlier request of the run claimed, or claims one, which is then in the guard.
async fn find_or_claim(
    caller: &Caller,
    template: TemplatePlan,
    (key, plan): (&RunKey, &RunPlan),
    guard: &mut ClaimGuard<'_>,
) -> Result<Workspace> {
    let shared = guard.shared;
    let taken = || Error::IdTaken {
        name: key.exec.clone(),
    };
    let found = shared.registry.get(caller, &plan.exec.workspace);
    let is_ended = |view: &SlotSnapshot| view.state == SlotState::Closing;
    match found {
        Ok(found) if !is_ended(&found.snapshot()) => {
            let view = found.snapshot();
            let claim = view.record.claim.as_ref();
            let is_own = claim.is_some_and(|claim| claim.request == template.create.request);
            is_own.then_some(found).ok_or_else(taken)
        }
        found if plan.position.is_some() => {
            let name = plan.exec.workspace.name();
            Err(found.err().unwrap_or(Error::WorkspaceNotFound { name }))
        }
        _ if shared.runs.was_started(key) => Err(taken()),
        _ => {
            let workspace = claim_workspace(shared, caller, template).await?;
            guard.claimed = Some(workspace.clone());
            Ok(workspace)
        }
    }
}

/// Refuses what a token of one workspace does not permit.
fn require_rights(caller: &Caller, plan: &RunPlan) -> Result<()> {
    let setup_inputs = plan.setup.iter().flat_map(|setup| &setup.inputs);
    let mut inputs = plan.inputs.iter().chain(setup_inputs);
    let loads = inputs.any(|input| matches!(input.source, InputSource::Artifact(_)));
    let saves = plan
        .outputs
        .as_ref()
        .is_some_and(|outputs| outputs.save_as.is_some());
    if loads || saves || plan.template.is_some() {
        caller.require_whole_tenant()?;
    }
    Ok(())
}

/// Claims the workspace of a template.
async fn claim_workspace(
    shared: &SharedDependencies,
    caller: &Caller,
    template: TemplatePlan,
) -> Result<Workspace> {
    shared.access.count_create(caller)?;
    let registry = &shared.registry;
    let pool = registry.granted_pool(caller, template.create.pool.as_deref())?;
    registry.create(Arc::clone(pool), template.create).await
}

/// Returns `true` if the guest knows an exec, which an earlier try of the request started.
async fn is_exec_known(workspace: &Workspace, exec_id: &str) -> Result<bool> {
    let grant = workspace.grant().await?;
    let request = guest::GetExecRequest {
        exec_id: exec_id.to_owned(),
    };
    match grant.call(grant.guest.clone().get_exec(request)).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind().1 == ErrorReason::ExecNotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Attaches to the exec of an earlier stream, behind the output that it sent.
async fn attach_exec(
    workspace: &Workspace,
    exec_id: &str,
    format: i32,
    position: ReachedPosition,
) -> Result<(WorkspaceGrant, RunEvents)> {
    let grant = workspace.grant().await?;
    let request = guest::AttachExecRequest {
        exec_id: exec_id.to_owned(),
        offsets: Some(position.offsets),
        format,
        ..guest::AttachExecRequest::default()
    };
    let attached = grant.call(grant.guest.clone().attach_exec(request)).await?;
    let id = grant.name();
    let events = attached
        .into_inner()
        .map_err(move |status| Error::from_guest(&id, &status));
    Ok((grant, events.boxed()))
}

/// Adds the end of a temporary workspace to its stream, if the run has no other one. The client does not wait for it.
fn end_with_deletion(
    shared: &SharedDependencies,
    events: impl Stream<Item = Result<pb::ExecEvent>> + Send + 'static,
    stream: RunStreamGuard,
    temporary: Option<Workspace>,
) -> RelayedStream<pb::ExecEvent> {
    let shared = Arc::clone(shared);
    // Never polled after an error.
    let end = stream::once(async move {
        // tonic polls until there is nothing, and only then hands over what it has encoded. If the connection refuses that,
        // it drops the stream.
        tokio::task::yield_now().await;
        if let (true, Some(workspace)) = (stream.end(), temporary) {
            spawn_deletion(&shared, workspace, None);
        }
        None
    });
    let events = events.map(Some).chain(end);
    relay_stream(events.filter_map(std::future::ready), ())
}

/// Deletes a workspace in a task of its own, in which a turn ends with it. It counts for its tenant until it is gone.
fn spawn_deletion(shared: &SharedDependencies, workspace: Workspace, turn: Option<RunTurn>) {
    shared.tasks.spawn(async move {
        let _held = turn;
        if let Err(error) = workspace.delete().await {
            tracing::warn!(workspace = %workspace.id(), error = %Chain(&error), "workspace is removed later");
        }
    });
}

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        if let Some(workspace) = self.claimed.take() {
            spawn_deletion(self.shared, workspace, self.turn.take());
        }
    }
}

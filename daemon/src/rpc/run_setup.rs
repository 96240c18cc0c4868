//! Preparation of a workspace by the `setup` of a RunExec: once for each workspace, and again if its content differs.
//!
//! A separate task runs the setup to its end, also if the client leaves. Meanwhile the record says that the workspace
//! has no setup: after a crash, or a failure, the next call runs all of it again.

use std::sync::Arc;

use futures::TryStreamExt;
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{self as pb, OutputStream, output_event};

use super::convert;
use super::convert::run::SetupPlan;
use super::exec::{ExecRpc, start_prepared};
use crate::access::Caller;
use crate::artifacts::ArtifactScope;
use crate::audit::SETUP_COMMANDS_MAX;
use crate::error::{Error, Result};
use crate::exec::StartMode;
use crate::exec_launch::ExecRequest;
use crate::telemetry::trace_span::in_child_span;
use crate::workspace::Workspace;
use crate::workspace::record::SetupRecord;

/// Number of bytes at the end of a command's stderr that an error has. A message travels in the headers of an answer.
const STDERR_BYTES: usize = 512;

impl ExecRpc {
    /// Runs a setup, unless it is the last one that the workspace had. Returns `true` if it was run. Waits for one that
    /// runs.
    ///
    /// # Errors
    /// `SetupFailed`; those of staging inputs and of starting execs.
    pub(super) async fn run_setup(
        &self,
        caller: &Caller,
        workspace: &Workspace,
        plan: SetupPlan,
        scope: ArtifactScope,
    ) -> Result<bool> {
        let turn = workspace.lock_setup().await;
        let view = workspace.snapshot();
        let last = view.record.claim.as_ref().map(|claim| claim.setup.clone());
        let last = last.unwrap_or_default();
        if last.digest == plan.digest {
            return Ok(false);
        }
        let (rpc, caller, workspace) = (self.clone(), caller.clone(), workspace.clone());
        let task = async move {
            let _turn = turn;
            rpc.run_commands(&caller, &workspace, plan, scope, last)
                .await
        };
        let ran = in_child_span("run the setup", self.0.tasks.spawn(task)).await;
        ran.map_err(|error| Error::Internal(format!("running a setup: {error}")))?
            .map(|()| true)
    }

    /// Stages the inputs of a setup, runs its commands and records it. `last` is the record of the one before.
    async fn run_commands(
        &self,
        caller: &Caller,
        workspace: &Workspace,
        plan: SetupPlan,
        scope: ArtifactScope,
        last: SetupRecord,
    ) -> Result<()> {
        if last.digest.is_empty() && !last.run_id.is_empty() {
            self.end_commands(workspace, &last.run_id).await?;
        }
        let mut record = SetupRecord {
            run_id: uuid::Uuid::now_v7().simple().to_string(),
            digest: String::new(),
        };
        workspace.record_setup(record.clone()).await?;
        if !plan.inputs.is_empty() {
            let grant = workspace.grant().await?;
            let inputs: Arc<[_]> = plan.inputs.into();
            let staging = self.0.inputs.stage(workspace.clone(), grant, inputs, scope);
            staging.await?;
        }
        for (index, command) in plan.commands.into_iter().enumerate() {
            let exec = ExecRequest {
                workspace: workspace.id().clone(),
                exec_id: command_id(&record.run_id, index),
                ..command
            };
            self.run_command(caller, exec).await?;
        }
        record.digest = plan.digest;
        workspace.record_setup(record).await
    }

    /// Ends the commands of a setup that was interrupted, so that none runs beside those of the next one.
    async fn end_commands(&self, workspace: &Workspace, run_id: &str) -> Result<()> {
        let grant = workspace.grant().await?;
        for index in 0..SETUP_COMMANDS_MAX {
            let request = guest::KillExecRequest {
                exec_id: command_id(run_id, index),
                grace: None,
                reason: pb::ExitReason::KilledByClient.into(),
            };
            let killed = grant.call(grant.guest.clone().kill_exec(request)).await;
            if let Err(error) = killed {
                let is_unknown = error.kind().1 == pb::ErrorReason::ExecNotFound;
                return is_unknown.then_some(()).ok_or(error);
            }
        }
        Ok(())
    }

    /// Runs one command to its end.
    async fn run_command(&self, caller: &Caller, exec: ExecRequest) -> Result<()> {
        let name = convert::exec_name(&exec.workspace.name(), &exec.exec_id);
        // The command must not wait for a reader: a client may not come back to its output.
        let prepared = self.prepare_exec(caller, exec, StartMode::Detached).await?;
        let (grant, mut events) = start_prepared(prepared).await?;
        let (mut result, mut stderr) = (None, Vec::new());
        while let Some(event) = events
            .try_next()
            .await
            .map_err(|status| Error::from_guest(&grant.name(), &status))?
        {
            if let Some(Event::Exited(exited)) = event.event {
                result = exited.result;
            } else if let Some(Event::Output(output)) = event.event {
                keep_end(&mut stderr, output);
            }
        }
        let Some(result) = result else {
            let why = "the events of a setup command ended before its end";
            return Err(Error::guest_lost(grant.name(), why));
        };
        if result.success {
            return Ok(());
        }
        let failure = result.spawn_failure.clone().unwrap_or_default().message;
        let said = match failure.is_empty() {
            true => String::from_utf8_lossy(&stderr).into_owned(),
            false => failure,
        };
        Err(Error::SetupFailed {
            exec: name,
            exit_code: result.exit_code,
            stderr_end: plain_end(&said),
        })
    }
}

/// Returns the id of the exec of a command.
fn command_id(run_id: &str, index: usize) -> String {
    format!("setup-{run_id}-{}", index + 1)
}

/// Keeps the last bytes of stderr.
fn keep_end(stderr: &mut Vec<u8>, output: pb::OutputEvent) {
    if output.stream() != OutputStream::Stderr {
        return;
    }
    if let Some(output_event::Content::Data(data)) = output.content {
        stderr.extend_from_slice(&data);
        let over = stderr.len().saturating_sub(STDERR_BYTES);
        stderr.drain(..over);
    }
}

/// Returns the end of a text on one line, without control characters.
fn plain_end(text: &str) -> String {
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    let line = words.join(" ");
    let start = line.ceil_char_boundary(line.len().saturating_sub(STDERR_BYTES));
    line.get(start..).unwrap_or_default().to_owned()
}

//! Preparation of a workspace by the `setup` of a RunExec: once for each workspace, and again if its content differs.

use std::sync::Arc;

use futures::TryStreamExt;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{self as pb, OutputStream, output_event};

use super::convert;
use super::convert::run::SetupPlan;
use super::exec::{ExecRpc, start_prepared};
use crate::access::Caller;
use crate::artifacts::ArtifactScope;
use crate::error::{Error, Result};
use crate::exec::StartMode;
use crate::exec_launch::ExecRequest;
use crate::telemetry::trace_span::in_child_span;
use crate::workspace::Workspace;
use crate::workspace::record::SetupRecord;

/// Number of bytes at the end of a command's stderr that an error has.
const STDERR_BYTES: usize = 2048;
/// Number of hex digits of the content's digest in the ids of execs.
const ID_DIGITS: usize = 12;

impl ExecRpc {
    /// Runs a setup, unless it is the last one that the workspace had. Returns `true` if it was run. A repeated call finds
    /// the execs of one that was interrupted.
    pub(super) async fn run_setup(
        &self,
        caller: &Caller,
        workspace: &Workspace,
        plan: SetupPlan,
        scope: ArtifactScope,
    ) -> Result<bool> {
        let _turn = workspace.lock_setup().await;
        let view = workspace.snapshot();
        let last = view.record.claim.as_ref().map(|claim| claim.setup.clone());
        let last = last.unwrap_or_default();
        if last.digest == plan.digest {
            return Ok(false);
        }
        if !plan.inputs.is_empty() {
            let grant = workspace.grant().await?;
            let inputs: Arc<[_]> = plan.inputs.into();
            let staging = self.0.inputs.stage(workspace.clone(), grant, inputs, scope);
            in_child_span("stage inputs of the setup", staging).await?;
        }
        let run = last.run_count + 1;
        let digits = plan.digest.get(..ID_DIGITS).unwrap_or_default();
        for (index, command) in plan.commands.into_iter().enumerate() {
            let exec = ExecRequest {
                workspace: workspace.id().clone(),
                exec_id: format!("setup-{run}-{digits}-{}", index + 1),
                is_new: false,
                ..command
            };
            let running = self.run_command(caller, exec);
            if let Err(error) = in_child_span("run the setup", running).await {
                if matches!(error, Error::SetupFailed { .. }) {
                    // The next call starts other execs.
                    let failed = SetupRecord {
                        run_count: run,
                        digest: String::new(),
                    };
                    workspace.record_setup(failed).await?;
                }
                return Err(error);
            }
        }
        let done = SetupRecord {
            run_count: run,
            digest: plan.digest,
        };
        workspace.record_setup(done).await?;
        Ok(true)
    }

    /// Runs one command to its end.
    async fn run_command(&self, caller: &Caller, exec: ExecRequest) -> Result<()> {
        let name = convert::exec_name(&exec.workspace.name(), &exec.exec_id);
        // Nobody reads its output if the client has gone away.
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
        let reason = result.reason().as_str_name();
        let reason = reason.trim_start_matches("EXIT_REASON_");
        let failure = result.spawn_failure.unwrap_or_default().message;
        let said = String::from_utf8_lossy(&stderr);
        Err(Error::SetupFailed {
            exec: name,
            code: result.exit_code,
            outcome: format!("{reason}, exit code {}", result.exit_code),
            said: format!("{failure}{}", said.trim()),
        })
    }
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

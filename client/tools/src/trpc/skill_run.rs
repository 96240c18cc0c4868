//! `skill_run`: a command in a skill to its end, and the files that it left. Three calls to the daemon on a session that
//! has run before: the skill is staged (or was), the command runs, its files are collected.
//!
//! ```text
//! prepared_run (arguments, policy ─► look-up ─► staging) ─► exec_run ─► run_outcome ─► output_files ─► state
//! ```

use serde_json::Value;

use super::decode;
use super::prepared_run::PreparedRun;
use super::run_result::{RunResult, artifacts_delta};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::exec_run::run_exec;
use crate::output_collection::failure_warning;
use crate::run_outcome::RunOutcome;

pub(super) async fn run_command(call: CallContext<'_>, arguments: Value) -> CallResult {
    let mut prepared = PreparedRun::new(call, decode(arguments)?)?;
    let reference = prepared.look_up(call).await?;
    let workspace = prepared.stage(call, &reference).await?;
    let PreparedRun { plan, mut spec, .. } = prepared;
    spec.stdin_data = prepared.arguments.stdin.clone().into();
    spec.planned_collect = plan.planned_spec(call.context);
    let finished = run_exec(call, workspace, prepared.exec_id, spec)
        .await
        .map_err(|error| plan.error_translator().translate(error))?;
    let mut outcome = RunOutcome::new(&call.tools.options, finished);
    outcome.add_preparation_warnings(prepared.warnings, prepared.package_warning);
    let exec = outcome.exec_name.clone();
    let mut result = RunResult::new(outcome, prepared.staged_inputs);
    if let Err(error) = plan.collect(call.context, &exec, &mut result).await {
        result.warnings.push(failure_warning(&error));
    }
    let delta = artifacts_delta(call, &result.artifact_files);
    Ok(ToolAnswer::with(&result, delta))
}

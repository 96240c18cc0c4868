//! `skill_run`: a command in a skill to its end, and the files that it left. Three calls to the daemon on a session that
//! has run before: the skill is staged (or was), the command runs, its files are collected.

use serde_json::Value;
use skilld_client::Error;
use tonic::Code;

use super::output_files::CollectPlan;
use super::run_result::{RunResult, record_artifacts};
use super::skill_command::{RunArguments, prepare_command};
use super::{command_policy, decode};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::exec_run::{run_exec, text_stdin};

pub(super) async fn run_command(call: CallContext<'_>, arguments: Value) -> CallResult {
    let run: RunArguments = decode(arguments)?;
    let prepared = prepare_command(call, &run).await?;
    let plan = CollectPlan::new(call, &run);
    let mut spec = prepared.spec;
    spec.stdin = (!run.stdin.is_empty()).then(|| text_stdin(&run.stdin));
    spec.planned_collect = plan.planned_spec(*call);
    let finished = run_exec(call, prepared.workspace, prepared.exec_id, spec).await;
    let finished = finished.map_err(|error| plan.argument_names().translate(error))?;
    command_policy::check_start(call, Some(&finished.result))?;
    let exec = finished.name.clone();
    let mut result = RunResult::with_output(&call.tools.options, finished, prepared.staged);
    result.warnings.extend(prepared.warnings);
    if result.may_lack_packages() {
        result.warnings.extend(prepared.package_warning);
    }
    let mut collected = plan.collect(*call, &exec, false, &mut result).await;
    if collected.as_ref().is_err_and(may_repeat) {
        // Artifacts saved before the error are reported here: they are not saved again.
        collected = plan.collect(*call, &exec, false, &mut result).await;
    }
    if let Err(error) = collected {
        // The command's output must not be lost for that.
        let warning = format!("its files could not be collected: {error}");
        result.warnings.push(warning);
    }
    let delta = record_artifacts(call, &result.artifact_files);
    Ok(ToolAnswer::with(&result, delta))
}

/// Returns `true` if the connection failed, not the request.
fn may_repeat(error: &Error) -> bool {
    error
        .code()
        .is_none_or(|code| matches!(code, Code::Unavailable | Code::Aborted | Code::Unknown))
}

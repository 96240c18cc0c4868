//! `skill_run`: a command in a skill to its end, and the files that it left. One call to the daemon on a session that
//! has run before, if the skill is loaded: it stages the skill and the inputs, runs the command and collects its files.
//!
//! ```text
//! prepared_run (arguments, policy ─► look-up ─► run) ─► run_outcome ─► output_files ─► state
//! ```

use serde_json::Value;

use super::decode;
use super::prepared_run::PreparedRun;
use super::run_result::{RunResult, artifacts_delta};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::output_collection::failure_warning;
use crate::run_outcome::RunOutcome;

pub(super) async fn run_command(call: CallContext<'_>, arguments: Value) -> CallResult {
    let mut prepared = PreparedRun::new(call, decode(arguments)?)?;
    let reference = prepared.look_up(call).await?;
    let mut finished = prepared.run(call, &reference).await?;
    let outputs = finished.outputs.take();
    let mut outcome = RunOutcome::new(&call.tools.options, finished);
    outcome.add_preparation_warnings(prepared.warnings, prepared.package_warning);
    let mut result = RunResult::new(outcome, prepared.staged_inputs);
    match outputs {
        Some(Ok(collected)) => prepared
            .plan
            .add_files(call.context, collected, &mut result),
        Some(Err(error)) => result.warnings.push(failure_warning(&error)),
        None => {}
    }
    let delta = artifacts_delta(call, &result.artifact_files);
    Ok(ToolAnswer::with(&result, delta))
}

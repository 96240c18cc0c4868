//! `skill_run`: a command in a skill to its end, and the files that it left. Three calls to the daemon on a session that
//! has run before: the skill is staged (or was), the command runs, its files are collected.

use serde_json::json;
use skilld_proto::v1::RunExecRequest;

use crate::Error;
use crate::state::{ARTIFACTS, Delta, SessionState};
use crate::tools::follow::{self, Ended};
use crate::tools::trpc::collect::{self, Plan};
use crate::tools::trpc::prepare::{self, Prepared, Run};
use crate::tools::trpc::result::{ArtifactFile, RunResult, StagedFile};
use crate::tools::trpc::{ALIASES, ids, policy};
use crate::tools::{Answer, Call, Inner, Session, ToolError, arguments};

pub(super) async fn run(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let run: Run = arguments::decode(call.arguments, ALIASES)?;
    let mut prepared = prepare::prepare(tools, session, state, "skill_run", &call.id, &run).await?;
    if !run.stdin.is_empty() {
        prepared.spec.stdin = Some(stdin(&run.stdin));
    }
    let plan = Plan::of(tools, &run);
    prepared.spec.planned_collect = plan.planned(tools, session);
    let Prepared {
        workspace,
        exec,
        spec,
        staged,
        warnings,
    } = prepared;
    let asked = spec.timeout;
    let name = ids::exec_name(&workspace, &exec);
    let events = tools.client.run_resuming(RunExecRequest {
        workspace,
        exec_id: exec,
        spec: Some(spec),
        ..RunExecRequest::default()
    });
    let ended = follow::follow(events, tools.options.output_bytes_max, &call.id).await;
    let ended = ended.map_err(|error| plan.arguments().translate(error))?;
    policy::started("skill_run", Some(&ended.result))?;
    let clamped = ended.clamped(asked);
    let mut result = result(ended, staged);
    result.warnings.extend(warnings.into_iter().chain(clamped));
    let mut collected = collect::collect(tools, session, &name, &plan, false, &mut result).await;
    if collected.as_ref().is_err_and(may_repeat) {
        // What was saved by then is not saved again, and would not be told of otherwise.
        collected = collect::collect(tools, session, &name, &plan, false, &mut result).await;
    }
    if let Err(error) = collected {
        // What it did and said must not be lost for that.
        let warning = format!("its files could not be collected: {error}");
        result.warnings.push(warning);
    }
    Ok(Answer {
        delta: artifacts(&call.id, &result.artifact_files),
        result: json!(result),
    })
}

/// Returns `true` if the connection failed, not the request.
fn may_repeat(error: &Error) -> bool {
    use tonic::Code;
    error
        .code()
        .is_none_or(|code| matches!(code, Code::Unavailable | Code::Aborted | Code::Unknown))
}

/// Returns the result of a command without its files, which are collected later.
pub(super) fn result(ended: Ended, staged: Vec<StagedFile>) -> RunResult {
    let mut result = RunResult {
        staged_inputs: staged,
        ..RunResult::default()
    };
    result.ended(&ended.result);
    result.stdout = ended.output.stdout.text("stdout", &mut result.warnings);
    result.stderr = ended.output.stderr.text("stderr", &mut result.warnings);
    result
}

/// Returns the change of state that records saved artifacts where the reference systems look for them. `merge` combines
/// those of calls side by side.
pub(super) fn artifacts(call: &str, files: &[ArtifactFile]) -> Delta {
    let mut delta = Delta::new();
    if !files.is_empty() {
        let saved = json!({"tool_call_id": call, "artifacts": files});
        delta.set(ARTIFACTS, saved);
    }
    delta
}

pub(super) fn stdin(text: &str) -> skilld_proto::v1::Stdin {
    let data = text.as_bytes().to_vec().into();
    skilld_proto::v1::Stdin {
        source: Some(skilld_proto::v1::stdin::Source::Data(data)),
    }
}

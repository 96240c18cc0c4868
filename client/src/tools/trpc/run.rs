//! `skill_run`: a command in a skill to its end, and the files that it left. Three calls to the daemon on a session that
//! has run before: the skill is staged (or was), the command runs, its files are collected.

use serde_json::json;
use skilld_proto::v1::RunExecRequest;

use crate::state::{ARTIFACTS, Delta, SessionState};
use crate::tools::trpc::collect::{self, Plan};
use crate::tools::trpc::follow::{self, Ended};
use crate::tools::trpc::prepare::{self, Prepared, Run};
use crate::tools::trpc::result::{ArtifactFile, RunResult, StagedFile};
use crate::tools::trpc::{ALIASES, ids};
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
    let Prepared {
        workspace,
        exec,
        spec,
        staged,
    } = prepared;
    let asked = spec.timeout;
    let name = ids::exec_name(&workspace, &exec);
    let events = tools.client.run_resuming(RunExecRequest {
        workspace,
        exec_id: exec,
        spec: Some(spec),
        ..RunExecRequest::default()
    });
    let ended = follow::follow(events, tools.options.output_bytes_max, &call.id).await?;
    let in_force = ended.spec.timeout;
    let mut result = result(ended, staged);
    if let (Some(asked), Some(in_force)) = (asked, in_force)
        && in_force.seconds < asked.seconds
    {
        let seconds = in_force.seconds;
        let warning = format!("timeout: the server permits {seconds} s, which was in force");
        result.warnings.push(warning);
    }
    let collected = collect::collect(tools, session, &name, &plan, false, &mut result).await;
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

/// What a command said and how it ended; its files come later.
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

/// For the state: what was saved, under a key of the call, so that calls side by side do not overwrite each other, and
/// under the one where the reference systems look for it.
pub(super) fn artifacts(call: &str, files: &[ArtifactFile]) -> Delta {
    let mut delta = Delta::new();
    if !files.is_empty() {
        let saved = json!({"tool_call_id": call, "artifacts": files});
        if !call.is_empty() {
            delta.set(format!("{ARTIFACTS}:{call}"), saved.clone());
        }
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

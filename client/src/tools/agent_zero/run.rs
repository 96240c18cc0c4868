//! The method execute_script.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use skilld_proto::v1::Skill;

use super::{Arguments, names};
use crate::state::{Scope, SessionState, agent_zero};
use crate::tools::scripts::{self, Cwd, Ran, Style};
use crate::tools::{Answer, Inner, Session, ToolError, lookup, material};

/// What `execute_script` returns.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Executed {
    /// For the model.
    text: String,
    #[serde(flatten)]
    ran: Ran,
}

pub(super) async fn execute(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    arguments: Arguments,
    call_id: &str,
) -> Result<Answer, ToolError> {
    let style = Style::read(&arguments.arg_style)?;
    let cwd = Cwd::read(&arguments.cwd)?;
    let args = scripts::args(arguments.script_args)?;
    if arguments.script_path.trim().is_empty() {
        return Err(ToolError::arguments(
            "script_path is empty: use one that the method load shows",
        ));
    }
    let scope = agent_zero::scope(&session.agent);
    let skill = names::find_loaded(tools, state, scope, &arguments.skill_name).await?;
    if tools.options.require_loaded && !is_loaded(tools, state, scope, &skill).await? {
        return Err(ToolError::NotLoaded {
            tool: super::NAME,
            skill: lookup::id(&skill),
        });
    }
    let run = scripts::Run {
        skill: lookup::id(&skill),
        reference: lookup::pinned(&skill),
        path: arguments.script_path,
        argv: arguments.argv,
        args,
        style,
        cwd,
        stdin: arguments.stdin,
        timeout: arguments.timeout,
        tool: super::NAME,
        call_id: call_id.to_owned(),
    };
    let ran = scripts::run(tools, session, run).await?;
    let text = text(&ran);
    Ok(Answer::of(json!(Executed { text, ran })))
}

/// This content of it is what was loaded.
async fn is_loaded(
    tools: &Inner,
    state: &SessionState,
    scope: Scope<'_>,
    skill: &Skill,
) -> Result<bool, ToolError> {
    let id = lookup::id(skill);
    if !material::active(state, scope, &tools.options).contains(&id) {
        return Ok(false);
    }
    let loaded = lookup::skill(tools, &agent_zero::reference(state, scope, &id)).await?;
    Ok(loaded.digest == skill.digest)
}

/// As the model reads it: both streams apart, and how it ended before them.
fn text(ran: &Ran) -> String {
    let mut text = match ran.succeeded() {
        true => format!("Executed script: {}/{}\n", ran.skill, ran.script),
        false => format!("Error: script failed: {}/{}\n", ran.skill, ran.script),
    };
    let ended = match (ran.exit_code, ran.signal) {
        (Some(code), _) if ran.outcome == "exited" => format!("exit code {code}"),
        (Some(code), _) => format!("{}, exit code {code}", ran.outcome),
        (None, Some(signal)) => format!("{}, signal {signal}", ran.outcome),
        (None, None) => ran.outcome.clone(),
    };
    text += &format!("Ended: {ended}, after {} ms\n", ran.duration_ms);
    for warning in &ran.warnings {
        text += &format!("Note: {warning}\n");
    }
    for (name, output) in [("Output", &ran.stdout), ("Error output", &ran.stderr)] {
        if !output.is_empty() {
            text += &format!("\n{name}:\n{}\n", output.trim_end_matches('\n'));
        }
    }
    if ran.stdout.is_empty() && ran.stderr.is_empty() {
        text += "\nIt printed nothing.\n";
    }
    if !ran.files.is_empty() {
        text += "\nFiles written:\n";
    }
    for file in &ran.files {
        text += &format!(
            "- {} ({} bytes, {})\n",
            file.path, file.size, file.mime_type
        );
    }
    text
}

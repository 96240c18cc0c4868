//! `run_skill_script`: a script of a skill, as the daemon runs them.

use serde_json::json;

use super::arguments::{Run, Skill};
use super::resolve;
use crate::state::sherma::Loaded;
use crate::tools::scripts::{self, Style};
use crate::tools::{Answer, Inner, Session, ToolError, lookup};

pub(super) async fn call(
    tools: &Inner,
    session: &Session,
    loads: &Loaded,
    run: Run,
    call_id: &str,
) -> Result<Answer, ToolError> {
    let skill = Skill {
        skill_id: run.skill_id,
        version: run.version,
    };
    let style = Style::read(&run.arg_style)?;
    let found = resolve::skill(tools, loads, &skill).await?;
    if tools.options.require_loaded && !resolve::is_loaded(loads, &found) {
        return Err(ToolError::NotLoaded {
            tool: "run_skill_script",
            skill: lookup::id(&found),
        });
    }
    let ran = scripts::run(
        tools,
        session,
        scripts::Run {
            skill: lookup::id(&found),
            reference: lookup::pinned(&found),
            path: run.script_path,
            argv: run.argv,
            args: scripts::args(run.script_args)?,
            style,
            cwd: scripts::Cwd::default(),
            stdin: run.stdin,
            timeout: run.timeout,
            tool: "run_skill_script",
            call_id: call_id.to_owned(),
        },
    )
    .await?;
    Ok(Answer::of(json!(ran)))
}

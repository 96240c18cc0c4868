//! `run_skill_script`: a script of a skill, as the daemon runs them.

use serde_json::json;

use super::arguments::{Run, Skill};
use super::files;
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
    if tools.options.require_loaded && loads.get(skill.skill_id.trim()).is_none() {
        return Err(ToolError::HostLacks {
            skill: skill.skill_id,
            what: "to be loaded with load_skill_md first".into(),
        });
    }
    let style = Style::read(&run.arg_style)?;
    let reference = files::reference(tools, loads, &skill).await?;
    let found = lookup::skill(tools, &reference).await?;
    let ran = scripts::run(
        tools,
        session,
        scripts::Run {
            skill: lookup::id(&found),
            reference: lookup::pinned(&found),
            path: run.script_path,
            argv: run.argv,
            args: run.script_args,
            style,
            cwd: scripts::Cwd::default(),
            stdin: run.stdin,
            timeout: run.timeout,
            exec_id: session.exec_id("run_skill_script", call_id),
        },
    )
    .await?;
    Ok(Answer::of(json!(ran)))
}

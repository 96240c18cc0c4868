//! The trpc family: its sixteen tools, under the names and with the arguments of trpc-agent-go and trpc-agent-python.
//!
//! ```text
//! call ──► knowledge, load                  skills: what there is, what is loaded        SkillService, session state
//!      ──► run, exec, shell ──► policy      what may run                                 here
//!                           ──► stage       skills and inputs                            FileService
//!                           ──► ../follow   a command's events, in constant memory       ExecService
//!                           ──► collect     the files that this command changed          FileService
//!      ──► poll             ──► terminal    a command that goes on, byte by byte         ExecService, session state
//!      ──► read, save                       files by reference                           FileService, ArtifactService
//! ```

mod collect;
mod editor;
mod evict;
mod exec;
mod hint;
mod ids;
mod knowledge;
mod lines;
mod load;
mod loads;
mod look;
mod mistake;
mod offer;
mod piece;
mod policy;
mod poll;
mod prepare;
mod read;
mod result;
mod run;
mod save;
mod sessions;
mod shell;
mod skills;
mod stage;
mod uploads;

pub(crate) use offer::{all, check, has_tool};
pub(crate) use uploads::uploads;

use serde_json::{Value, json};

use crate::state::SessionState;
use crate::tools::{Answer, Call, Definition, Inner, Session, ToolError, arguments, lookup};

/// Other systems' names of fields, wherever a tool has the field.
const ALIASES: &[(&str, &str)] = &[
    ("skill_name", "skill"),
    ("src", "from"),
    ("dst", "to"),
    ("cmd", "command"),
    ("yield_time_ms", "yield_ms"),
    ("yield_ms", "yield_time_ms"),
    ("timeout_sec", "timeout"),
    ("timeout", "timeout_sec"),
    ("pty", "tty"),
    ("append_newline", "submit"),
    ("path", "file_name"),
    ("file_path", "file_name"),
    ("file_name", "path"),
];

pub(crate) async fn definitions(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
) -> Result<Vec<Definition>, ToolError> {
    let names = lookup::names(tools).await?;
    let mut definitions = offer::definitions(&tools.options, &names);
    for name in loads::offered(tools, session, state, Some(&names)).await? {
        // A host's tool never takes the place of one of ours.
        if offer::find(&name).is_none()
            && let Some(definition) = tools.host.definition(&name)
        {
            definitions.push(definition.clone());
        }
    }
    Ok(definitions)
}

pub(crate) async fn call(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let tool = call.name.as_str();
    let runs = matches!(tool, "skill_run" | "skill_exec" | "workspace_exec");
    let mut answer = make(tools, session, state, call).await?;
    if runs {
        let is_new = tools.workspaces.warning(session).map(str::to_owned);
        warn(&mut answer, is_new);
    }
    Ok(answer)
}

/// Adds warnings to a result.
fn warn(answer: &mut Answer, more: impl IntoIterator<Item = String>) {
    let more: Vec<Value> = more.into_iter().map(Value::from).collect();
    if more.is_empty() {
        return;
    }
    if let Some(result) = answer.result.as_object_mut()
        && let Some(warnings) = result
            .entry("warnings")
            .or_insert_with(|| json!([]))
            .as_array_mut()
    {
        warnings.extend(more);
    }
}

async fn make(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let offered = offer::offers(&tools.options, &call.name);
    match call.name.as_str() {
        "skill_list" if offered => knowledge::list(tools, call).await,
        "skill_list_tools" if offered => knowledge::list_tools(tools, call).await,
        "skill_list_docs" if offered => knowledge::list_docs(tools, call).await,
        "skill_load" if offered => load::load(tools, session, state, call).await,
        "skill_select_docs" if offered => load::select_docs(tools, session, state, call).await,
        "skill_select_tools" if offered => load::select_tools(tools, session, state, call).await,
        "skill_run" if offered => run::run(tools, session, state, call).await,
        "skill_exec" if offered => exec::exec(tools, session, state, call).await,
        "workspace_exec" if offered => shell::exec(tools, session, state, call).await,
        "skill_write_stdin" | "workspace_write_stdin" if offered => {
            poll::write(tools, session, state, call).await
        }
        "skill_poll_session" if offered => poll::poll(tools, session, state, call).await,
        "skill_kill_session" | "workspace_kill_session" if offered => {
            poll::kill(tools, session, state, call).await
        }
        "workspace_save_artifact" if offered => save::save(tools, session, call).await,
        "read_file" if offered => read::read(tools, session, call).await,
        _ => host(tools, session, state, call).await,
    }
}

/// A tool of the host, if one of the skills that are loaded brought it up.
async fn host(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let is_ours = offer::find(&call.name).is_some();
    let offered = if is_ours || tools.host.definition(&call.name).is_none() {
        Vec::new()
    } else {
        loads::offered(tools, session, state, None).await?
    };
    if offered.contains(&call.name) {
        let arguments = arguments::object(call.arguments)?.into();
        let result = tools.host.call(&call.name, arguments).await?;
        return Ok(Answer::of(result));
    }
    let ours = offer::names(&tools.options).map(str::to_owned);
    Err(ToolError::UnknownTool {
        name: call.name,
        known: ours.chain(offered).collect(),
    })
}

//! Table of the family's tools: names, descriptions, arguments and results.

use super::doc_and_tool_selection::{
    SelectDocsArguments, SelectDocsResult, SelectToolsArguments, SelectToolsResult,
};
use super::read_file::{ReadArguments, ReadResult};
use super::run_arguments::RunArguments;
use super::run_result::RunResult;
use super::save_artifact::{SaveArguments, SaveResult};
use super::session_poll::SessionResult;
use super::session_tools::{KillArguments, KillResult, PollArguments, WriteArguments};
use super::skill_listing::{ListArguments, ListResult, SkillArguments, ToolsResult};
use super::skill_load::{LoadArguments, LoadResult};
use super::workspace_exec::{ShellArguments, ShellResult};
use super::{
    command_policy, doc_and_tool_selection, read_file, save_artifact, session_tools, skill_exec,
    skill_listing, skill_load, skill_run, workspace_exec,
};
use crate::builtin_tool::{BuiltinTool, check_tools};
use crate::skill_list_page::PathList;
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;

/// Tools that start a command.
pub(super) const COMMAND_TOOLS: [&str; 3] = ["skill_run", "skill_exec", "workspace_exec"];
/// Arguments of `skill_exec` that `skill_run` does not have.
const INTERACTIVE_ARGUMENTS: &[&str] = &["tty", "eof", "yield_ms", "poll_lines"];
/// Fields of a session's result that a killed session does not have.
const RUNNING_SESSION_FIELDS: &[&str] = &["more", "unwritten_bytes", "reason", "interaction"];
/// Fields of a killed session's result that a workspace's session does not have.
const KILLED_WORKSPACE_FIELDS: &[&str] =
    &["more", "unwritten_bytes", "reason", "interaction", "result"];

/// Tools of the family, in the order in which they are offered.
pub(super) static TOOLS: [BuiltinTool; 16] = [
    BuiltinTool::new::<ListArguments, ListResult>(
        "skill_list",
        "Lists the skills that you can load, or finds some by words. Each is a folder with instructions, documents and \
         scripts for one kind of task.",
        |call, arguments| Box::pin(skill_listing::list_skills(call, arguments)),
    ),
    BuiltinTool::new::<SkillArguments, ToolsResult>(
        "skill_list_tools",
        "Lists the names of the tools that a skill adds to your tools when it is loaded.",
        |call, arguments| Box::pin(skill_listing::list_tools(call, arguments)),
    )
    .requiring(&["skill"]),
    BuiltinTool::new::<LoadArguments, LoadResult>(
        "skill_load",
        "Loads a skill: its instructions are in your context from then on. Load a skill before you use it, and only \
         those documents of it that you need.",
        |call, arguments| Box::pin(skill_load::load_skill(call, arguments)),
    )
    .requiring(&["skill"]),
    BuiltinTool::new::<SelectToolsArguments, SelectToolsResult>(
        "skill_select_tools",
        "Chooses which of the tools of a skill, as skill_list_tools names them, are among your tools once the skill is \
         loaded.",
        |call, arguments| Box::pin(doc_and_tool_selection::select_tools(call, arguments)),
    )
    .requiring(&["skill"]),
    BuiltinTool::new::<SkillArguments, PathList>(
        "skill_list_docs",
        "Lists the names of the documents that a skill has beside its instructions, without their text. \
         skill_select_docs puts documents into your context.",
        |call, arguments| Box::pin(skill_listing::list_docs(call, arguments)),
    )
    .requiring(&["skill"]),
    BuiltinTool::new::<SelectDocsArguments, SelectDocsResult>(
        "skill_select_docs",
        "Chooses which documents of a skill, as skill_list_docs names them, are in your context beside its instructions.",
        |call, arguments| Box::pin(doc_and_tool_selection::select_docs(call, arguments)),
    )
    .requiring(&["skill"]),
    BuiltinTool::new::<RunArguments, RunResult>(
        "skill_run",
        "Runs a command of a skill to its end, in an isolated workspace that the whole conversation shares. It starts in \
         the skill's folder; what it makes belongs in $OUTPUT_DIR (out/), files that were given as inputs are in \
         $INPUTS_DIR (inputs/). Ask for files with output_files, for instance [\"$OUTPUT_DIR/**\"]; only those that this \
         run made or changed are returned. There is no network: nothing can be installed or downloaded.",
        |call, arguments| Box::pin(skill_run::run_command(call, arguments)),
    )
    .running()
    .requiring(&["skill", "command"])
    .hiding(INTERACTIVE_ARGUMENTS, &[]),
    BuiltinTool::new::<RunArguments, SessionResult>(
        "skill_exec",
        "Starts a command of a skill that asks for input or takes long, in the workspace of the conversation and from \
         the skill's folder. Returns what it printed so far and a session_id: type with skill_write_stdin, read on with \
         skill_poll_session, end it with skill_kill_session. There is no network.",
        |call, arguments| Box::pin(skill_exec::start_skill_command(call, arguments)),
    )
    .running()
    .needing("skill_run")
    .requiring(&["skill", "command"]),
    BuiltinTool::new::<WriteArguments, SessionResult>(
        "skill_write_stdin",
        "Types text into a command that skill_exec started and returns what the command prints then. submit adds a \
         newline; eof ends the command's input.",
        |call, arguments| Box::pin(session_tools::write_stdin(call, arguments)),
    )
    .running()
    .needing("skill_exec")
    .requiring(&["session_id"]),
    BuiltinTool::new::<PollArguments, SessionResult>(
        "skill_poll_session",
        "Returns what a command that skill_exec started printed since the last call, and its result once it has ended.",
        |call, arguments| Box::pin(session_tools::poll_session(call, arguments)),
    )
    .running()
    .needing("skill_exec")
    .requiring(&["session_id"]),
    BuiltinTool::new::<KillArguments, KillResult>(
        "skill_kill_session",
        "Kills a command that skill_exec started, with all its processes, and returns the end of its output.",
        |call, arguments| Box::pin(session_tools::kill_session(call, arguments)),
    )
    .running()
    .needing("skill_exec")
    .requiring(&["session_id"])
    .hiding(&[], RUNNING_SESSION_FIELDS),
    BuiltinTool::new::<ShellArguments, ShellResult>(
        "workspace_exec",
        "Runs a shell command in the workspace of the conversation, which has loaded skills in skills/NAME, and returns \
         its output and exit code. There is no network: nothing can be installed or downloaded. With background, tty or \
         yield_time_ms it returns early with a session_id while the command runs on: read and type with \
         workspace_write_stdin.",
        |call, arguments| Box::pin(workspace_exec::run_shell(call, arguments)),
    )
    .in_workspace()
    .requiring(&["command"])
    .hiding(&[], &["result"]),
    BuiltinTool::new::<WriteArguments, SessionResult>(
        "workspace_write_stdin",
        "Types text, or nothing, into a command that workspace_exec left running, and returns what the command printed \
         since the last call.",
        |call, arguments| Box::pin(session_tools::write_stdin(call, arguments)),
    )
    .in_workspace()
    .needing("workspace_exec")
    .requiring(&["session_id"])
    .hiding(&[], &["result"]),
    BuiltinTool::new::<KillArguments, KillResult>(
        "workspace_kill_session",
        "Kills a command that workspace_exec left running, with all its processes, and returns the end of its output.",
        |call, arguments| Box::pin(session_tools::kill_session(call, arguments)),
    )
    .in_workspace()
    .needing("workspace_exec")
    .requiring(&["session_id"])
    .hiding(&[], KILLED_WORKSPACE_FIELDS),
    BuiltinTool::new::<SaveArguments, SaveResult>(
        "workspace_save_artifact",
        "Saves a file of the workspace as the next version of an artifact. Artifacts outlive the workspace; read them \
         with read_file as artifact://NAME@VERSION.",
        |call, arguments| Box::pin(save_artifact::save_artifact(call, arguments)),
    )
    .in_workspace()
    .requiring(&["path"]),
    BuiltinTool::new::<ReadArguments, ReadResult>(
        "read_file",
        "Reads a text file, or some of its lines: a file of the workspace, an artifact, or a file of a skill, from this \
         turn or an earlier one.",
        |call, arguments| Box::pin(read_file::read_file(call, arguments)),
    )
    .in_workspace()
    .requiring(&["file_name"]),
];

/// Checks that the options do not contradict each other. Returns the names of the tools that they offer.
pub(crate) fn check(options: &ToolOptions) -> ToolResult<Vec<&'static str>> {
    let offered = check_tools(&TOOLS, options)?;
    let offers = |name| offered.contains(&name);
    if options.require_loaded && offers("skill_run") && !offers("skill_load") {
        return Err(ToolError::Options {
            problem: "require_loaded: skill_run needs skill_load then".into(),
        });
    }
    command_policy::check_lists(options)?;
    Ok(offered)
}

//! Annotations of the tools: a title, and hints by which a client decides what to ask its user about. Tools that a
//! skill's MCP server brings have none, since nothing is known of them.

use rmcp::model::ToolAnnotations;
use skilld_tools::Family;

use crate::commands::mcp::write_file_tool;

/// Effect of a call on its environment, which is the session: its workspace, its artifacts and its loaded skills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToolEffect {
    /// The tool changes nothing.
    Reads,
    /// Adds or selects; the same call again changes nothing more.
    Selects,
    /// Adds something with every call.
    Adds,
    /// Replaces or ends something; the same call again changes nothing more.
    Replaces,
    /// Runs a command, which can change every file of the workspace.
    Runs,
}

use ToolEffect::{Adds, Reads, Replaces, Runs, Selects};

/// Name, title and effect of a tool.
type AnnotationRow = (&'static str, &'static str, ToolEffect);

const TRPC: [AnnotationRow; 16] = [
    ("skill_list", "List skills", Reads),
    ("skill_list_tools", "List a skill's tools", Reads),
    ("skill_load", "Load a skill", Selects),
    ("skill_select_tools", "Select a skill's tools", Selects),
    ("skill_list_docs", "List a skill's documents", Reads),
    ("skill_select_docs", "Select a skill's documents", Selects),
    ("skill_run", "Run a skill's command", Runs),
    ("skill_exec", "Start a skill's command", Runs),
    ("skill_write_stdin", "Type into a skill's command", Runs),
    (
        "skill_poll_session",
        "Read a skill's command's output",
        Adds,
    ),
    ("skill_kill_session", "End a skill's command", Replaces),
    ("workspace_exec", "Run a command in the workspace", Runs),
    ("workspace_write_stdin", "Type into a command", Runs),
    ("workspace_kill_session", "End a command", Replaces),
    (
        "workspace_save_artifact",
        "Save a file as an artifact",
        Adds,
    ),
    ("read_file", "Read a file", Reads),
];

const SHERMA: [AnnotationRow; 10] = [
    ("list_skills", "List skills", Reads),
    ("load_skill_md", "Load a skill", Selects),
    ("unload_skill", "Unload a skill", Selects),
    ("list_skill_resources", "List a skill's references", Reads),
    ("load_skill_resource", "Read a skill's reference", Reads),
    ("list_skill_assets", "List a skill's assets", Reads),
    ("load_skill_asset", "Read a skill's asset", Reads),
    ("list_skill_scripts", "List a skill's scripts", Reads),
    ("run_skill_script", "Run a skill's script", Runs),
    ("search_skills", "Search skills", Reads),
];

const AGENT_ZERO: [AnnotationRow; 1] = [("skills_tool", "Use skills", Runs)];

const UPLOAD: AnnotationRow = (
    write_file_tool::NAME,
    "Write a file into the workspace",
    Replaces,
);

/// Tools that can reach servers of others: inputs of a command may be URLs, and loading a skill can connect the MCP
/// servers that its card names. Workspaces themselves have no network.
const LEADING_OUT: [&str; 3] = ["skill_run", "skill_exec", "load_skill_md"];

/// Returns the annotations of a family's tool; none for a tool of a skill's MCP server, which may have the name of
/// another family's tool.
pub(crate) fn of_tool(family: Family, name: &str) -> Option<ToolAnnotations> {
    let rows: &[AnnotationRow] = match family {
        Family::Trpc => &TRPC,
        Family::Sherma => &SHERMA,
        Family::AgentZero => &AGENT_ZERO,
    };
    let (_, title, effect) = rows
        .iter()
        .chain([&UPLOAD])
        .find(|(tool, ..)| *tool == name)?;
    let annotations = ToolAnnotations::with_title(*title)
        .read_only(*effect == Reads)
        .destructive(matches!(effect, Replaces | Runs))
        .idempotent(matches!(effect, Reads | Selects | Replaces))
        .open_world(LEADING_OUT.contains(&name));
    Some(annotations)
}

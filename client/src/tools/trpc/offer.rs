//! The tools of the family, their descriptions and the schemas of their arguments and results.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::tools::trpc::{knowledge, load, look, policy, poll, prepare, read, result, save, shell};
use crate::tools::{Definition, Inner, Options, Profile, ToolError, arguments};

/// Names in a schema at most: beyond it a list helps no model.
const NAMES_MAX: usize = 256;
/// Programs that a description names.
const COMMANDS_SHOWN: usize = 20;

/// One tool.
pub(super) struct Tool {
    pub(super) name: &'static str,
    description: &'static str,
    /// Starts, changes or reads what runs: not for those who only read skills.
    runs: bool,
    /// Useless without this one.
    needs: Option<&'static str>,
    required: &'static [&'static str],
    /// Fields of the arguments that another tool has.
    hidden: &'static [&'static str],
    parameters: fn() -> Value,
    returns: fn() -> Value,
}

/// Description of `command` while commands are restricted.
const RESTRICTED_COMMAND: &str = "One program and its arguments, without a shell.";
const INTERACTIVE: &[&str] = &["tty", "eof", "yield_ms", "poll_lines"];

static TOOLS: [Tool; 16] = [
    Tool {
        name: "skill_list",
        description: "Lists the skills that you can load. Each is a folder with instructions, documents and scripts for one \
                      kind of task.",
        runs: false,
        needs: None,
        required: &[],
        hidden: &[],
        parameters: arguments::schema::<knowledge::ListArguments>,
        returns: arguments::result_schema::<knowledge::ListResult>,
    },
    Tool {
        name: "skill_list_tools",
        description: "Lists the names of the tools that a skill adds to your tools when it is loaded.",
        runs: false,
        needs: None,
        required: &["skill"],
        hidden: &[],
        parameters: arguments::schema::<knowledge::SkillArguments>,
        returns: arguments::result_schema::<knowledge::ToolsResult>,
    },
    Tool {
        name: "skill_load",
        description: "Loads a skill: its instructions are in your context from then on. Load a skill before you use it, \
                      and only those documents of it that you need.",
        runs: false,
        needs: None,
        required: &["skill"],
        hidden: &[],
        parameters: arguments::schema::<load::LoadArguments>,
        returns: arguments::result_schema::<load::LoadResult>,
    },
    Tool {
        name: "skill_select_tools",
        description: "Chooses which of the tools of a skill, as skill_list_tools names them, are among your tools once the \
                      skill is loaded.",
        runs: false,
        needs: None,
        required: &["skill"],
        hidden: &[],
        parameters: arguments::schema::<load::SelectToolsArguments>,
        returns: arguments::result_schema::<load::SelectToolsResult>,
    },
    Tool {
        name: "skill_list_docs",
        description: "Lists the names of the documents that a skill has beside its instructions, without their text. \
                      skill_select_docs puts documents into your context.",
        runs: false,
        needs: None,
        required: &["skill"],
        hidden: &[],
        parameters: arguments::schema::<knowledge::SkillArguments>,
        returns: arguments::result_schema::<Vec<String>>,
    },
    Tool {
        name: "skill_select_docs",
        description: "Chooses which documents of a skill, as skill_list_docs names them, are in your context beside its \
                      instructions.",
        runs: false,
        needs: None,
        required: &["skill"],
        hidden: &[],
        parameters: arguments::schema::<load::SelectDocsArguments>,
        returns: arguments::result_schema::<load::SelectDocsResult>,
    },
    Tool {
        name: "skill_run",
        description: "Runs a command of a skill to its end, in an isolated workspace that the whole conversation shares. \
                      It starts in the skill's folder, which is read-only; what it makes belongs in $OUTPUT_DIR (out/), \
                      the user's files are in $INPUTS_DIR (inputs/). Ask for files with output_files, for instance \
                      [\"$OUTPUT_DIR/**\"]; only those that this run made or changed are returned.",
        runs: true,
        needs: None,
        required: &["skill", "command"],
        hidden: INTERACTIVE,
        parameters: arguments::schema::<prepare::Run>,
        returns: arguments::result_schema::<result::RunResult>,
    },
    Tool {
        name: "skill_exec",
        description: "Starts a command of a skill that asks for input or takes long, in the workspace of the conversation \
                      and from the skill's folder. Returns what it printed so far and a session_id: type with \
                      skill_write_stdin, read on with skill_poll_session, end it with skill_kill_session.",
        runs: true,
        needs: Some("skill_run"),
        required: &["skill", "command"],
        hidden: &[],
        parameters: arguments::schema::<prepare::Run>,
        returns: arguments::result_schema::<look::SessionResult>,
    },
    Tool {
        name: "skill_write_stdin",
        description: "Types text into a command that skill_exec started and returns what the command prints then. submit \
                      adds a newline; eof ends the command's input.",
        runs: true,
        needs: Some("skill_exec"),
        required: &["session_id"],
        hidden: &[],
        parameters: arguments::schema::<poll::WriteArguments>,
        returns: arguments::result_schema::<look::SessionResult>,
    },
    Tool {
        name: "skill_poll_session",
        description: "Returns what a command that skill_exec started printed since the last call, and its result once it \
                      has ended.",
        runs: true,
        needs: Some("skill_exec"),
        required: &["session_id"],
        hidden: &[],
        parameters: arguments::schema::<poll::PollArguments>,
        returns: arguments::result_schema::<look::SessionResult>,
    },
    Tool {
        name: "skill_kill_session",
        description: "Kills a command that skill_exec started, with all its processes, and returns the end of its output.",
        runs: true,
        needs: Some("skill_exec"),
        required: &["session_id"],
        hidden: &[],
        parameters: arguments::schema::<poll::KillArguments>,
        returns: arguments::result_schema::<poll::KillResult>,
    },
    Tool {
        name: "workspace_exec",
        description: "Runs a shell command in the workspace of the conversation, outside of any skill, and returns its \
                      output and exit code. With background, tty or yield_time_ms it returns early with a session_id \
                      while the command runs on: read and type with workspace_write_stdin.",
        runs: true,
        needs: None,
        required: &["command"],
        hidden: &[],
        parameters: arguments::schema::<shell::ShellArguments>,
        returns: arguments::result_schema::<shell::ShellResult>,
    },
    Tool {
        name: "workspace_write_stdin",
        description: "Types text, or nothing, into a command that workspace_exec left running, and returns what the command \
                      printed since the last call.",
        runs: true,
        needs: Some("workspace_exec"),
        required: &["session_id"],
        hidden: &[],
        parameters: arguments::schema::<poll::WriteArguments>,
        returns: workspace_session_schema::<look::SessionResult>,
    },
    Tool {
        name: "workspace_kill_session",
        description: "Kills a command that workspace_exec left running, with all its processes, and returns the end of its \
                      output.",
        runs: true,
        needs: Some("workspace_exec"),
        required: &["session_id"],
        hidden: &[],
        parameters: arguments::schema::<poll::KillArguments>,
        returns: workspace_session_schema::<poll::KillResult>,
    },
    Tool {
        name: "workspace_save_artifact",
        description: "Saves a file of the workspace as the next version of an artifact. Artifacts outlive the workspace; read \
                      them with read_file as artifact://NAME@VERSION.",
        runs: true,
        needs: None,
        required: &["path"],
        hidden: &[],
        parameters: arguments::schema::<save::SaveArguments>,
        returns: arguments::result_schema::<save::SaveResult>,
    },
    Tool {
        name: "read_file",
        description: "Reads a text file, or some of its lines: a file of the workspace, an artifact, or a file of a skill, \
                      from this turn or an earlier one.",
        runs: true,
        needs: None,
        required: &["file_name"],
        hidden: &[],
        parameters: arguments::schema::<read::ReadArguments>,
        returns: arguments::result_schema::<read::ReadResult>,
    },
];

/// A tool of this family, offered or not.
pub(super) fn find(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

/// Whether the options offer a tool.
pub(super) fn offers(options: &Options, name: &str) -> bool {
    names(options).any(|offered| offered == name)
}

/// Returns `true` if the host or this family has a tool of this name to offer.
pub(crate) fn has_tool(tools: &Inner, name: &str) -> bool {
    tools.host.definition(name).is_some() || offers(&tools.options, name)
}

/// Names of what the options offer.
pub(super) fn names(options: &Options) -> impl Iterator<Item = &'static str> {
    let offered = TOOLS.iter().filter(|tool| match &options.tools {
        Some(_) => options.lists(tool.name),
        None => options.profile == Profile::Full || !tool.runs,
    });
    offered.map(|tool| tool.name)
}

/// Names of all of them.
pub(crate) fn all() -> Vec<&'static str> {
    TOOLS.iter().map(|tool| tool.name).collect()
}

/// Says which options contradict each other.
pub(crate) fn check(options: &Options) -> Result<(), ToolError> {
    let wrong = |problem: String| Err(ToolError::Options { problem });
    let offered: Vec<&Tool> = names(options).filter_map(find).collect();
    for tool in &offered {
        if let Some(needed) = tool.needs
            && !offers(options, needed)
        {
            return wrong(format!("tools: {} needs {needed}", tool.name));
        }
        if tool.runs && options.profile == Profile::KnowledgeOnly {
            let name = tool.name;
            return wrong(format!(
                "tools: {name} is nothing for the profile knowledge_only"
            ));
        }
    }
    if options.require_loaded && offers(options, "skill_run") && !offers(options, "skill_load") {
        return wrong("require_loaded: skill_run needs skill_load then".into());
    }
    policy::check(options)
}

/// Returns the definitions of the offered tools, in a fixed order.
pub(super) fn definitions(options: &Options, skills: &BTreeSet<String>) -> Vec<Definition> {
    let offered = names(options).filter_map(find);
    offered
        .map(|tool| tool.definition(options, skills))
        .collect()
}

impl Tool {
    fn definition(&self, options: &Options, skills: &BTreeSet<String>) -> Definition {
        let mut description = self.description.to_owned();
        if matches!(self.name, "skill_run" | "skill_exec" | "workspace_exec") {
            description.push_str(&restricted(options));
        }
        Definition {
            name: self.name.to_owned(),
            description,
            parameters: self.parameters(options, skills),
            returns: brief(tidy((self.returns)())),
        }
    }

    fn parameters(&self, options: &Options, skills: &BTreeSet<String>) -> Value {
        let mut schema = tidy((self.parameters)());
        let Some(fields) = schema.as_object_mut() else {
            return schema;
        };
        fields.remove("description");
        if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
            properties.retain(|name, _| !self.hidden.contains(&name.as_str()));
            if policy::is_active(options)
                && let Some(command) = properties.get_mut("command").and_then(Value::as_object_mut)
            {
                command.insert("description".into(), RESTRICTED_COMMAND.into());
            }
            if (1..=NAMES_MAX).contains(&skills.len())
                && let Some(skill) = properties.get_mut("skill").and_then(Value::as_object_mut)
            {
                skill.insert("enum".into(), json!(skills));
            }
        }
        if !self.required.is_empty() {
            fields.insert("required".into(), json!(self.required));
        }
        schema
    }
}

/// Returns the part of a description that names the host's rules; empty without any.
fn restricted(options: &Options) -> String {
    if !policy::is_active(options) {
        return String::new();
    }
    let mut text =
        " Commands are restricted: one program with its arguments, without a shell.".to_owned();
    let allowed: BTreeSet<&str> = options
        .allowed_commands
        .iter()
        .map(String::as_str)
        .collect();
    if !allowed.is_empty() {
        let shown: Vec<&str> = allowed.iter().copied().take(COMMANDS_SHOWN).collect();
        text.push_str(" Allowed: ");
        text.push_str(&shown.join(", "));
        if allowed.len() > shown.len() {
            text.push_str(&format!(" (+{} more)", allowed.len() - shown.len()));
        }
        text.push('.');
    }
    text
}

/// Returns the schema of what a session's tool gives, without `result`: only a skill's command has one.
fn workspace_session_schema<T: JsonSchema>() -> Value {
    let mut schema = arguments::result_schema::<T>();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    if let Some(properties) = properties {
        properties.retain(|name, _| name != "result");
    }
    schema
}

/// Removes the keywords of a schema that tell a model nothing.
fn tidy(schema: Value) -> Value {
    match schema {
        Value::Object(map) => {
            let noise = ["title", "default", "format", "minimum"];
            let kept = map
                .into_iter()
                .filter(|(key, _)| !noise.contains(&key.as_str()));
            Value::Object(kept.map(tidy_keyword).collect())
        }
        Value::Array(items) => items.into_iter().map(tidy).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema,
    }
}

fn tidy_keyword((key, value): (String, Value)) -> (String, Value) {
    let value = match (key.as_str(), value) {
        // Names of fields are no keywords.
        ("properties", Value::Object(fields)) => {
            let fields = fields.into_iter().map(|(name, value)| (name, tidy(value)));
            Value::Object(fields.collect())
        }
        ("description", Value::String(text)) => text.replace('\n', " ").into(),
        // A field that is null is one that is left out.
        ("type", Value::Array(types)) => {
            let mut types = types.into_iter().filter(|kind| kind != "null");
            match (types.next(), types.next()) {
                (Some(kind), None) => kind,
                (first, second) => first.into_iter().chain(second).chain(types).collect(),
            }
        }
        (_, value) => tidy(value),
    };
    (key, value)
}

/// Removes the descriptions from the schema of a result: a model reads the result itself, whose fields say what they are,
/// and the schemas of all tools are part of every list of tools.
fn brief(schema: Value) -> Value {
    match schema {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(key, _)| key != "description");
            let kept = kept.map(|(key, value)| match (key.as_str(), value) {
                // Names of fields are no keywords.
                ("properties", Value::Object(fields)) => {
                    let fields = fields.into_iter().map(|(name, value)| (name, brief(value)));
                    (key, Value::Object(fields.collect()))
                }
                (_, value) => (key, brief(value)),
            });
            Value::Object(kept.collect())
        }
        Value::Array(items) => items.into_iter().map(brief).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema,
    }
}

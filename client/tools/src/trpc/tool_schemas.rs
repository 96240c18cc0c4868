//! Definitions of the family's tools as models read them, with the host's rules.

use std::collections::BTreeSet;

use serde_json::Value;

use super::command_policy;
use super::tool_table::COMMAND_TOOLS;
use crate::builtin_tool::{BuiltinTool, properties_mut};
use crate::tool_definition::ToolDefinition;
use crate::tool_options::ToolOptions;

/// Maximum number of programs that a description names; as many as in trpc-agent-go.
const COMMANDS_SHOWN: usize = 20;
/// Description of `command` while commands are restricted.
const RESTRICTED_COMMAND: &str = "One program and its arguments, without a shell.";
/// Sentences about the folder in which commands of a skill start.
const READ_ONLY_FOLDER: &str = " The skill's folder is read-only.";
const WRITABLE_FOLDER: &str =
    " The skill's folder is a copy of this conversation that commands can write.";

/// Returns the definition of a tool under the options of the host.
pub(super) fn build_definition(tool: &BuiltinTool, options: &ToolOptions) -> ToolDefinition {
    let mut definition = tool.definition();
    if COMMAND_TOOLS.contains(&tool.name) {
        definition.description += &describe_restriction(options);
    }
    if tool.name == "skill_run" {
        definition.description += match options.writable_skills {
            true => WRITABLE_FOLDER,
            false => READ_ONLY_FOLDER,
        };
    }
    if command_policy::is_active(options)
        && let Some(properties) = properties_mut(&mut definition.parameters)
        && let Some(Value::Object(command)) = properties.get_mut("command")
    {
        command.insert("description".into(), RESTRICTED_COMMAND.into());
    }
    definition
}

/// Returns the part of a description that names the host's rules; empty without any.
fn describe_restriction(options: &ToolOptions) -> String {
    if !command_policy::is_active(options) {
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
        text += &format!(" Allowed: {}", shown.join(", "));
        if allowed.len() > shown.len() {
            text += &format!(" (+{} more)", allowed.len() - shown.len());
        }
        text.push('.');
    }
    text
}

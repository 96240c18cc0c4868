//! Definitions of the family's tools as models read them: schemas without keywords that tell a model nothing, with the
//! names of the skills and the host's rules.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::command_policy;
use super::tool_table::COMMAND_TOOLS;
use crate::builtin_tool::BuiltinTool;
use crate::tool_definition::ToolDefinition;
use crate::tool_options::ToolOptions;

/// Maximum number of skills' names in a schema. Names have at most 64 bytes, so all of them have at most 4 KiB. A model
/// finds more of them in the overview of its prompt and with `skill_list`.
const NAMES_MAX: usize = 64;
/// Maximum number of programs that a description names.
const COMMANDS_SHOWN: usize = 20;
/// Description of `command` while commands are restricted.
const RESTRICTED_COMMAND: &str = "One program and its arguments, without a shell.";
/// Sentences about the folder in which commands of a skill start.
const READ_ONLY_FOLDER: &str = " The skill's folder is read-only.";
const WRITABLE_FOLDER: &str =
    " The skill's folder is a copy of this conversation that commands can write.";
/// Keywords that tell a model nothing.
const NOISE: [&str; 4] = ["title", "default", "format", "minimum"];
/// Keywords that are left out of the schema of a result: a model reads the result itself, whose fields say what they
/// are, and the schemas of all tools are part of every list of tools.
const RESULT_NOISE: [&str; 5] = ["title", "default", "format", "minimum", "description"];

/// Returns the definitions of the offered tools for a model that may use these skills. The schemas of all tools are in
/// every request, so that only one of them lists the skills' names: that of `skill_load`, or else of the first tool that
/// takes a skill.
pub(super) fn build_definitions(
    tools: &[&BuiltinTool],
    options: &ToolOptions,
    skills: &BTreeSet<String>,
) -> Vec<ToolDefinition> {
    let definitions = tools.iter().map(|tool| build_definition(tool, options));
    let mut definitions: Vec<ToolDefinition> = definitions.collect();
    if !(1..=NAMES_MAX).contains(&skills.len()) {
        return definitions;
    }
    const SKILL: &str = "/properties/skill";
    let takes_skill = |tool: &ToolDefinition| tool.parameters.pointer(SKILL).is_some();
    let loads = |tool: &ToolDefinition| tool.name == "skill_load";
    let find = |is_one: &dyn Fn(&ToolDefinition) -> bool| definitions.iter().position(is_one);
    let naming = find(&loads).or_else(|| find(&takes_skill));
    let naming = naming.and_then(|naming| definitions.get_mut(naming));
    if let Some(Value::Object(field)) = naming.and_then(|tool| tool.parameters.pointer_mut(SKILL)) {
        field.insert("enum".into(), json!(skills));
    }
    definitions
}

/// Returns the definition of a tool, without names of skills.
fn build_definition(tool: &BuiltinTool, options: &ToolOptions) -> ToolDefinition {
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
    let mut parameters = reduce_schema(definition.parameters, &NOISE);
    if let Some(fields) = parameters.as_object_mut() {
        fields.remove("description");
        if !tool.required.is_empty() {
            fields.insert("required".into(), json!(tool.required));
        }
    }
    if let Some(properties) = properties_mut(&mut parameters) {
        properties.retain(|name, _| !tool.hidden_arguments.contains(&name.as_str()));
        if command_policy::is_active(options)
            && let Some(Value::Object(command)) = properties.get_mut("command")
        {
            command.insert("description".into(), RESTRICTED_COMMAND.into());
        }
    }
    let mut returns = reduce_schema(definition.returns, &RESULT_NOISE);
    if let Some(properties) = properties_mut(&mut returns) {
        properties.retain(|name, _| !tool.hidden_results.contains(&name.as_str()));
    }
    ToolDefinition {
        parameters,
        returns,
        ..definition
    }
}

fn properties_mut(schema: &mut Value) -> Option<&mut Map<String, Value>> {
    schema.get_mut("properties")?.as_object_mut()
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

/// Removes keywords from a schema, at any depth.
fn reduce_schema(schema: Value, noise: &[&str]) -> Value {
    match schema {
        Value::Object(map) => {
            let kept = map
                .into_iter()
                .filter(|(key, _)| !noise.contains(&key.as_str()));
            let kept = kept.map(|(key, value)| {
                let value = reduce_keyword(&key, value, noise);
                (key, value)
            });
            Value::Object(kept.collect())
        }
        Value::Array(items) => {
            let items = items.into_iter();
            items.map(|item| reduce_schema(item, noise)).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema,
    }
}

fn reduce_keyword(key: &str, value: Value, noise: &[&str]) -> Value {
    match (key, value) {
        // Names of fields are no keywords.
        ("properties", Value::Object(fields)) => {
            let fields = fields.into_iter();
            let fields = fields.map(|(name, value)| (name, reduce_schema(value, noise)));
            Value::Object(fields.collect())
        }
        ("description", Value::String(text)) => text.replace('\n', " ").into(),
        // A field that is null is one that is left out.
        ("type", Value::Array(mut types)) => {
            types.retain(|kind| kind != "null");
            match types.len() {
                1 => types.remove(0),
                _ => types.into(),
            }
        }
        (_, value) => reduce_schema(value, noise),
    }
}

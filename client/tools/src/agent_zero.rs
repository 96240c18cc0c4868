//! Agent Zero's one tool, `skills_tool`, with its methods: list, search, load, read_file, execute_script. Every answer
//! has a text, as that system's models read it, and beside it fields for programs.

mod execute_script_method;
mod list_and_search_methods;
mod load_method;
mod read_file_method;
mod skill_name_resolution;

pub(crate) use load_method::load_skill;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::arguments::{decode, result_schema, schema};
use crate::call_context::{CallContext, CallResult, SessionContext, ToolsetContext};
use crate::script_run::ARG_STYLES;
use crate::tool_definition::{Profile, ToolCall, ToolDefinition};
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;

/// Name of the tool.
const NAME: &str = "skills_tool";
/// Methods of the tool; the last one runs something.
const METHODS: [&str; 5] = ["list", "search", "load", "read_file", EXECUTE];
/// Method that runs a script.
const EXECUTE: &str = "execute_script";
/// Alternative names that models give to fields.
const ALIASES: [(&str, &str); 6] = [
    ("skill", "skill_name"),
    ("name", "skill_name"),
    ("path", "file_path"),
    ("script", "script_path"),
    ("args", "script_args"),
    ("action", "method"),
];

/// Arguments of every method; each takes those that it knows.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct MethodArguments {
    /// Method to call.
    method: String,
    /// search: words.
    query: String,
    /// The skill, as list shows it; name@version for another version than the loaded or the current one.
    skill_name: String,
    /// read_file: relative to the skill's folder.
    file_path: String,
    /// list, search, read_file: where to go on, `next_offset` of the call before; in a file the first byte.
    offset: u64,
    /// execute_script: relative to the skill's folder.
    script_path: String,
    /// execute_script: arguments as data, names to values in this order. true is a bare flag, false and null are left
    /// out, a list is several values. They are in the environment too, as SKILL_ARG_*.
    #[schemars(with = "Map<String, Value>")]
    script_args: Option<Value>,
    /// execute_script: how script_args become words: positional (default), named (--key value), named_repeated (a list
    /// repeats its flag), env (no words).
    arg_style: String,
    /// execute_script: arguments as words, before those of script_args: sub-commands, flags, anything.
    argv: Vec<String>,
    /// execute_script: what the script reads from its standard input.
    stdin: Option<String>,
    /// execute_script: in seconds.
    timeout: Option<f64>,
    /// execute_script: where it starts: workspace (default), skill_root or script_dir.
    cwd: String,
}

/// Returns the definition of the tool, if the options offer it.
pub(crate) fn definitions(context: SessionContext<'_>) -> Vec<ToolDefinition> {
    let methods = offered_methods(context.tools);
    let running = match methods.contains(&EXECUTE) {
        true => ", execute_script (run a script that came with it; there is no network)",
        false => "",
    };
    let definition = ToolDefinition {
        name: NAME.into(),
        description: format!(
            "Skills: instructions, documents and scripts for special tasks. Methods: list (what there is), search (by \
             words), load (the instructions of one and its files), read_file (a document of it){running}."
        ),
        parameters: build_parameters(&methods, context.tools.options.writable_skills),
        returns: build_returns(&methods),
    };
    let is_offered = context.tools.options.lists(NAME);
    is_offered.then_some(definition).into_iter().collect()
}

/// Checks that the options do not contradict each other. Returns the names of the tools that they offer.
pub(crate) fn check(options: &ToolOptions) -> ToolResult<Vec<&'static str>> {
    options.check(&[NAME])?;
    options.check_script_family()?;
    Ok(options.lists(NAME).then_some(NAME).into_iter().collect())
}

/// Returns the schema of the arguments, with the fields of the offered methods only.
fn build_parameters(methods: &[&str], writable_skills: bool) -> Value {
    let mut parameters = schema::<MethodArguments>();
    if let Some(Value::String(cwd)) = parameters.pointer_mut("/properties/cwd/description") {
        *cwd += match writable_skills {
            true => " The script can write the skill's own folders.",
            false => " The skill's own folders are read-only.",
        };
    }
    if let Some(parameters) = parameters.as_object_mut() {
        parameters.insert("required".into(), json!(["method"]));
    }
    if let Some(Value::Object(method)) = parameters.pointer_mut("/properties/method") {
        method.insert("enum".into(), json!(methods));
    }
    if let Some(Value::Object(fields)) = parameters.pointer_mut("/properties")
        && !methods.contains(&EXECUTE)
    {
        fields.retain(|_, field| {
            let description = field.get("description").and_then(Value::as_str);
            !description.is_some_and(|description| description.starts_with(EXECUTE))
        });
    }
    parameters
}

/// Returns the schema of the result: one alternative for each method, all of them with `text`.
fn build_returns(methods: &[&str]) -> Value {
    let mut any_of = vec![
        result_schema::<list_and_search_methods::ListResult>(),
        result_schema::<list_and_search_methods::SearchResult>(),
        result_schema::<load_method::LoadResult>(),
        result_schema::<read_file_method::ReadResult>(),
    ];
    if methods.contains(&EXECUTE) {
        any_of.push(result_schema::<execute_script_method::ExecuteResult>());
    }
    json!({"type": "object", "required": ["text"], "anyOf": any_of})
}

/// Makes one call.
pub(crate) async fn call(context: SessionContext<'_>, call: ToolCall) -> CallResult {
    let tools = context.tools;
    let is_offered = tools.options.lists(NAME);
    if call.name != NAME || !is_offered {
        return Err(ToolError::UnknownTool {
            name: call.name,
            known: is_offered.then(|| NAME.into()).into_iter().collect(),
        });
    }
    let request = CallContext {
        context,
        tool: NAME,
        id: &call.id,
    };
    call_method(request, call.arguments)
        .await
        .map(|answer| answer.fitting(context))
        .map_err(|error| add_choices(tools, error))
}

async fn call_method(call: CallContext<'_>, arguments: Value) -> CallResult {
    let arguments: MethodArguments = decode(arguments, &ALIASES)?;
    let method = arguments.method.trim().to_lowercase();
    if !offered_methods(call.tools).contains(&method.as_str()) {
        let problem = format!("unknown method {:?}", arguments.method);
        return Err(ToolError::arguments(problem));
    }
    match method.as_str() {
        "list" => list_and_search_methods::list_skills(call, arguments.offset).await,
        "search" => {
            let MethodArguments { query, offset, .. } = &arguments;
            list_and_search_methods::search_skills(call, query, *offset).await
        }
        "load" => load_skill(call, &arguments.skill_name).await,
        "read_file" => read_file_method::read_file(call, &arguments).await,
        _ => execute_script_method::execute_script(call, arguments).await,
    }
}

/// Adds the possible values to the error of a wrong argument.
fn add_choices(tools: &ToolsetContext, error: ToolError) -> ToolError {
    let ToolError::InvalidArguments { mut problem } = error else {
        return error;
    };
    let methods = offered_methods(tools);
    let styles = match methods.contains(&EXECUTE) {
        true => ARG_STYLES.map(|(name, _)| name).to_vec(),
        false => Vec::new(),
    };
    for (field, names) in [("method", methods), ("arg_style", styles)] {
        let known = names.join(", ");
        if !problem.contains(&known) {
            problem += &format!("; {field} is one of {known}");
        }
    }
    ToolError::InvalidArguments { problem }
}

fn offered_methods(tools: &ToolsetContext) -> Vec<&'static str> {
    let runs = tools.options.profile == Profile::Full;
    let methods = METHODS.into_iter();
    methods
        .filter(|method| runs || *method != EXECUTE)
        .collect()
}

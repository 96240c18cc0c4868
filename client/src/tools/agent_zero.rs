//! Agent Zero's one tool, `skills_tool`, with its methods: list, search, load, read_file, execute_script. Every answer
//! has a text, as that system's models read it, and beside it what a program wants to know.

mod list;
mod load;
mod marked;
mod names;
mod run;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::state::SessionState;
use crate::tools::arguments::{decode, result_schema, schema};
use crate::tools::scripts::Style;
use crate::tools::{Answer, Call, Definition, Inner, Profile, Session, ToolError};

pub(crate) const NAME: &str = "skills_tool";
const METHODS: [&str; 5] = ["list", "search", "load", "read_file", EXECUTE];
const EXECUTE: &str = "execute_script";
/// Other names that models give to a field.
const ALIASES: [(&str, &str); 6] = [
    ("skill", "skill_name"),
    ("name", "skill_name"),
    ("path", "file_path"),
    ("script", "script_path"),
    ("args", "script_args"),
    ("action", "method"),
];

/// Arguments of every method; each takes what it knows.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Arguments {
    /// What to do.
    method: String,
    /// search: words.
    query: String,
    /// The skill, as list shows it; name@version for another version than the loaded or the current one.
    skill_name: String,
    /// read_file: relative to the skill's folder.
    file_path: String,
    /// read_file: the first byte, for a file that comes in parts.
    offset: u64,
    /// execute_script: relative to the skill's folder.
    script_path: String,
    /// execute_script: arguments as data, names to values in this order. true is a bare flag, false and null are left
    /// out, a list is several values. They are in the environment too, as SKILL_ARG_*.
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
    /// execute_script: where it starts: workspace (default), skill_root or script_dir. The skill's own folders are
    /// read-only.
    cwd: String,
}

#[expect(clippy::unused_async, reason = "other families ask the daemon here")]
pub(crate) async fn definitions(
    tools: &Inner,
    _session: &Session,
    _state: &SessionState,
) -> Result<Vec<Definition>, ToolError> {
    if !is_offered(tools) {
        return Ok(Vec::new());
    }
    let methods = methods(tools);
    let running = if methods.contains(&EXECUTE) {
        ", execute_script (run a script that came with it)"
    } else {
        ""
    };
    Ok(vec![Definition {
        name: NAME.into(),
        description: format!(
            "Skills: instructions, documents and scripts for special tasks. Methods: list (what there is), search (by \
             words), load (the instructions of one and its files), read_file (a document of it){running}."
        ),
        parameters: parameters(&methods),
        returns: returns(&methods),
    }])
}

/// Those of the methods that there are.
fn parameters(methods: &[&str]) -> Value {
    let mut parameters = schema::<Arguments>();
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
            let what = field.get("description").and_then(Value::as_str);
            !what.is_some_and(|what| what.starts_with(EXECUTE))
        });
    }
    parameters
}

/// One schema for each method; all of them have the text.
fn returns(methods: &[&str]) -> Value {
    let mut any_of = vec![
        result_schema::<list::Listed>(),
        result_schema::<list::Found>(),
        result_schema::<load::Loaded>(),
        result_schema::<load::Content>(),
    ];
    if methods.contains(&EXECUTE) {
        any_of.push(result_schema::<run::Executed>());
    }
    json!({"type": "object", "required": ["text"], "anyOf": any_of})
}

pub(crate) async fn call(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    if call.name != NAME || !is_offered(tools) {
        let known = if is_offered(tools) {
            vec![NAME.into()]
        } else {
            Vec::new()
        };
        return Err(ToolError::UnknownTool {
            name: call.name,
            known,
        });
    }
    let done = perform(tools, session, state, call).await;
    done.map_err(|error| with_choices(tools, error))
}

async fn perform(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let arguments: Arguments = decode(call.arguments, &ALIASES)?;
    let method = arguments.method.trim().to_lowercase();
    match method.as_str() {
        method if !methods(tools).contains(&method) => Err(ToolError::arguments(format!(
            "unknown method {:?}",
            arguments.method
        ))),
        "list" => list::list(tools).await,
        "search" => list::search(tools, &arguments.query).await,
        "load" => load::load(tools, session, state, &arguments.skill_name).await,
        "read_file" => load::read_file(tools, session, state, &arguments).await,
        _ => run::execute(tools, session, state, arguments, &call.id).await,
    }
}

/// Who gets an argument wrong reads what there is to choose from.
fn with_choices(tools: &Inner, error: ToolError) -> ToolError {
    let ToolError::InvalidArguments { mut problem } = error else {
        return error;
    };
    let methods = methods(tools);
    let styles = match methods.contains(&EXECUTE) {
        true => Style::NAMES.map(|(name, _)| name).to_vec(),
        false => Vec::new(),
    };
    for (field, names) in [("method", methods), ("arg_style", styles)] {
        let names = names.join(", ");
        if !problem.contains(&names) {
            problem += &format!("; {field} is one of {names}");
        }
    }
    ToolError::InvalidArguments { problem }
}

fn is_offered(tools: &Inner) -> bool {
    tools.options.lists(NAME)
}

fn methods(tools: &Inner) -> Vec<&'static str> {
    let runs = tools.options.profile == Profile::Full;
    let methods = METHODS.iter().copied();
    methods
        .filter(|method| runs || *method != EXECUTE)
        .collect()
}

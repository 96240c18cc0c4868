//! The method execute_script.

use serde_json::{Map, Value, json};

use super::{Arguments, names};
use crate::tools::scripts::{self, Cwd, Ran, Style};
use crate::tools::{Answer, Inner, Session, ToolError, lookup};

pub(super) async fn execute(
    tools: &Inner,
    session: &Session,
    arguments: Arguments,
    call_id: &str,
) -> Result<Answer, ToolError> {
    let style = Style::read(&arguments.arg_style)?;
    let cwd = Cwd::read(&arguments.cwd)?;
    let args = script_args(arguments.script_args)?;
    if arguments.script_path.trim().is_empty() {
        return Err(ToolError::arguments(
            "script_path is empty: use one that the method load shows",
        ));
    }
    let skill = names::find(tools, &arguments.skill_name).await?;
    let run = scripts::Run {
        skill: lookup::id(&skill),
        reference: lookup::pinned(&skill),
        path: arguments.script_path,
        argv: arguments.argv,
        args,
        style,
        cwd,
        stdin: arguments.stdin,
        timeout: arguments.timeout,
        exec_id: session.exec_id("skills_tool", call_id),
    };
    let ran = scripts::run(tools, session, run).await?;
    let mut result = json!({ "text": text(&ran) });
    if let (Some(result), Value::Object(fields)) = (result.as_object_mut(), json!(ran)) {
        result.extend(fields);
    }
    Ok(Answer::of(result))
}

/// A map, or text that is one.
fn script_args(given: Option<Value>) -> Result<Map<String, Value>, ToolError> {
    let wanted =
        "script_args must be a map of names to values, or JSON text of one; words belong into argv";
    match given {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(args)) => Ok(args),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(Map::new()),
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(Value::Object(args)) => Ok(args),
            Ok(_) => Err(ToolError::arguments(wanted)),
            Err(error) => Err(ToolError::arguments(format!("{wanted}: {error}"))),
        },
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_)) => {
            Err(ToolError::arguments(wanted))
        }
    }
}

/// As the model reads it: both streams apart, and how it ended before them.
fn text(ran: &Ran) -> String {
    let mut text = match ran.succeeded() {
        true => format!("Executed script: {}/{}\n", ran.skill, ran.script),
        false => format!("Error: script failed: {}/{}\n", ran.skill, ran.script),
    };
    let ended = match (ran.exit_code, ran.signal) {
        (Some(code), _) if ran.outcome == "exited" => format!("exit code {code}"),
        (Some(code), _) => format!("{}, exit code {code}", ran.outcome),
        (None, Some(signal)) => format!("{}, signal {signal}", ran.outcome),
        (None, None) => ran.outcome.clone(),
    };
    text += &format!("Ended: {ended}, after {} ms\n", ran.duration_ms);
    for warning in &ran.warnings {
        text += &format!("Note: {warning}\n");
    }
    for (name, output) in [("Output", &ran.stdout), ("Error output", &ran.stderr)] {
        if !output.is_empty() {
            text += &format!("\n{name}:\n{}\n", output.trim_end_matches('\n'));
        }
    }
    if ran.stdout.is_empty() && ran.stderr.is_empty() {
        text += "\nIt printed nothing.\n";
    }
    if !ran.files.is_empty() {
        text += "\nFiles written:\n";
    }
    for file in &ran.files {
        text += &format!(
            "- {} ({} bytes, {})\n",
            file.path, file.size, file.mime_type
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_in_a_string_are_read_and_what_is_no_map_is_refused() {
        let read = |given: Value| script_args(Some(given)).map_err(|error| error.to_string());
        let args = read(json!(r#"{"z": 1, "a": [true]}"#)).expect("a map");
        // In the order in which they are written.
        assert_eq!(json!(args).to_string(), r#"{"z":1,"a":[true]}"#);
        assert!(script_args(None).expect("none").is_empty());
        assert!(read(json!("")).expect("none").is_empty());
        for given in [
            json!("a b"),
            json!("[1]"),
            json!([1]),
            json!(1),
            json!(true),
        ] {
            let error = read(given.clone()).expect_err("refused");
            assert!(
                error.contains("script_args must be a map"),
                "{given}: {error}"
            );
        }
    }
}

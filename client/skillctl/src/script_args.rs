//! `--script` of `skillctl exec` and `run`: a script of a skill, its arguments as data.

use clap::{Args, ValueEnum};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::Value as Json;
use skilld_client::v1::{ArgStyle, ExecSpec, Script, ScriptArg, ScriptCwd};

#[derive(Debug, Args)]
pub(crate) struct ScriptArgs {
    /// Run this script of the skill by its interpreter, PATH relative to the skill's root; what follows -- are its
    /// first arguments. It starts in the skill's root, as other commands do.
    #[arg(long, value_name = "PATH")]
    script: Option<String>,
    /// An argument of the script, as data: JSON, or text where it is no JSON; may be repeated. It is in the
    /// environment too, as SKILL_ARG_KEY.
    #[arg(long = "arg", value_name = "KEY=VALUE", value_parser = parse_script_arg, requires = "script")]
    args: Vec<ScriptArg>,
    /// Conversion of arguments to words: their values, or `--key value`.
    #[arg(long, value_name = "STYLE", value_enum, default_value_t = Style::Positional, requires = "script")]
    arg_style: Style,
    /// Directory in which the script starts, unless --cwd is given.
    #[arg(long, value_name = "PLACE", value_enum, default_value_t = Cwd::SkillRoot, requires = "script")]
    script_cwd: Cwd,
}

/// Command line's form of `ArgStyle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Style {
    Positional,
    Named,
    NamedRepeated,
    Env,
}

/// Command line's form of `ScriptCwd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cwd {
    /// work/ of the workspace.
    Work,
    /// The skill's root.
    SkillRoot,
    /// The script's own directory.
    ScriptDir,
}

impl ScriptArgs {
    /// Makes a spec that runs the script, if one is asked for; `command` are its first arguments then.
    pub(crate) fn apply(&self, spec: &mut ExecSpec, command: &[String]) {
        let Some(path) = &self.script else { return };
        spec.argv.clear();
        spec.shell.clear();
        let mut script = Script {
            path: path.clone(),
            argv: command.to_vec(),
            args: self.args.clone(),
            ..Default::default()
        };
        script.set_arg_style(match self.arg_style {
            Style::Positional => ArgStyle::Positional,
            Style::Named => ArgStyle::Named,
            Style::NamedRepeated => ArgStyle::NamedRepeated,
            Style::Env => ArgStyle::Env,
        });
        script.set_cwd(match self.script_cwd {
            Cwd::Work => ScriptCwd::Workspace,
            Cwd::SkillRoot => ScriptCwd::SkillRoot,
            Cwd::ScriptDir => ScriptCwd::ScriptDir,
        });
        spec.script = Some(script);
    }
}

/// Parses `KEY=VALUE`.
fn parse_script_arg(text: &str) -> Result<ScriptArg, String> {
    let (key, text) = crate::values::parse_pair(text)?;
    let mut arg = ScriptArg {
        key,
        ..Default::default()
    };
    match serde_json::from_str::<Json>(text.as_str()) {
        // As it is written, not as it would be printed.
        Ok(Json::Number(_)) => text.trim().clone_into(&mut arg.literal),
        Ok(json) => arg.value = Some(proto_value(json)),
        Err(_) => arg.value = Some(proto_value(Json::String(text))),
    }
    Ok(arg)
}

fn proto_value(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => Kind::ListValue(ListValue {
            values: items.into_iter().map(proto_value).collect(),
        }),
        Json::Object(fields) => Kind::StructValue(Struct {
            fields: fields
                .into_iter()
                .map(|(key, item)| (key, proto_value(item)))
                .collect(),
        }),
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_json_or_text() {
        let text = |text: &str| Some(Kind::StringValue(text.to_owned()));
        for (given, kind, literal) in [
            ("k=x y", text("x y"), ""),
            ("k=", text(""), ""),
            ("k=a=b", text("a=b"), ""),
            ("k=007", text("007"), ""),
            ("k=true", Some(Kind::BoolValue(true)), ""),
            ("k=\"true\"", text("true"), ""),
            ("k=null", Some(Kind::NullValue(0)), ""),
            ("k=1.10", None, "1.10"),
            ("k=-5", None, "-5"),
            ("k={broken", text("{broken"), ""),
        ] {
            let made = parse_script_arg(given).expect(given);
            assert_eq!(made.key, "k");
            assert_eq!(made.value.and_then(|value| value.kind), kind, "{given}");
            assert_eq!(made.literal, literal, "{given}");
        }
        let list = parse_script_arg("k=[1,\"a\"]")
            .expect("a list")
            .value
            .and_then(|value| value.kind);
        assert!(matches!(list, Some(Kind::ListValue(list)) if list.values.len() == 2));
        assert!(parse_script_arg("k").is_err() && parse_script_arg("=x").is_err());
    }
}

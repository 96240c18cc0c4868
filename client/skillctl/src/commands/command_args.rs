//! Command that `skillctl exec` and `run` execute: a program, shell text, or a script of a skill and its arguments.

use clap::{Args, ValueEnum};
use prost_types::Duration;
use serde_json::Value as Json;
use skilld_client::to_proto_value;
use skilld_client::v1::{ExecScript, ExecSpec, ScriptArg, ScriptArgStyle, ScriptCwd};

use crate::output::value_formats;

#[derive(Clone, Debug, Args)]
pub(crate) struct CommandArgs {
    /// Run this script of the skill by its interpreter, PATH relative to the skill's root; what follows -- are its
    /// first arguments. It starts in the skill's root, as other commands do.
    #[arg(long, value_name = "PATH")]
    script: Option<String>,
    /// An argument of the script, as data: JSON, or text where it is no JSON; may be repeated. It is in the
    /// environment too, as SKILL_ARG_KEY.
    #[arg(long = "arg", value_name = "KEY=VALUE", value_parser = parse_script_arg, requires = "script")]
    args: Vec<ScriptArg>,
    /// Conversion of arguments to words: their values, or `--key value`.
    #[arg(long, value_name = "STYLE", value_enum, default_value_t = ArgStyleValue::Positional, requires = "script")]
    arg_style: ArgStyleValue,
    /// Directory in which the script starts, unless --cwd is given.
    #[arg(long, value_name = "PLACE", value_enum, default_value_t = ScriptCwdValue::SkillRoot, requires = "script")]
    script_cwd: ScriptCwdValue,
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "script",
        value_name = "COMMAND"
    )]
    command: Vec<String>,
}

/// Command line's form of `ScriptArgStyle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ArgStyleValue {
    Positional,
    Named,
    NamedRepeated,
    Env,
}

/// Command line's form of `ScriptCwd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScriptCwdValue {
    /// work/ of the workspace.
    Work,
    /// The skill's root.
    SkillRoot,
    /// The script's own directory.
    ScriptDir,
}

impl CommandArgs {
    /// Returns `true` if a script of a skill runs.
    pub(crate) fn has_script(&self) -> bool {
        self.script.is_some()
    }

    /// Returns the spec of the command or script. With `stdin` its stdin stays open for this program's input.
    pub(crate) fn spec(
        self,
        env: &[(String, String)],
        timeout: Option<Duration>,
        stdin: bool,
    ) -> ExecSpec {
        let mut spec = ExecSpec {
            env: value_formats::to_map(env),
            timeout,
            open_stdin: stdin,
            ..Default::default()
        };
        let Some(path) = self.script else {
            match <[String; 1]>::try_from(self.command) {
                Ok([text]) if is_shell_text(&text) => spec.shell = text,
                Ok([program]) => spec.argv = vec![program],
                Err(words) => spec.argv = words,
            }
            return spec;
        };
        let mut script = ExecScript {
            path,
            argv: self.command,
            args: self.args,
            ..Default::default()
        };
        script.set_arg_style(match self.arg_style {
            ArgStyleValue::Positional => ScriptArgStyle::Positional,
            ArgStyleValue::Named => ScriptArgStyle::Named,
            ArgStyleValue::NamedRepeated => ScriptArgStyle::NamedRepeated,
            ArgStyleValue::Env => ScriptArgStyle::Env,
        });
        script.set_cwd(match self.script_cwd {
            ScriptCwdValue::Work => ScriptCwd::Workspace,
            ScriptCwdValue::SkillRoot => ScriptCwd::SkillRoot,
            ScriptCwdValue::ScriptDir => ScriptCwd::ScriptDir,
        });
        spec.script = Some(script);
        spec
    }
}

/// Returns `true` if the only word of a command is for a shell: it has a character that only a shell understands.
fn is_shell_text(word: &str) -> bool {
    word.contains(|c: char| c.is_whitespace() || "|&;<>()$`\\\"'*?[]#~=%{}!".contains(c))
}

/// Parses an argument of a script, `KEY=VALUE`: the value is JSON, or text if it is no JSON.
fn parse_script_arg(text: &str) -> Result<ScriptArg, String> {
    let (key, text) = value_formats::parse_pair(text)?;
    let mut arg = ScriptArg {
        key,
        ..Default::default()
    };
    match serde_json::from_str::<Json>(text.as_str()) {
        // As it is written, not as it would be printed.
        Ok(Json::Number(_)) => text.trim().clone_into(&mut arg.literal),
        Ok(json) => arg.value = Some(to_proto_value(json)),
        Err(_) => arg.value = Some(to_proto_value(Json::String(text))),
    }
    Ok(arg)
}

#[cfg(test)]
mod tests {
    use prost_types::value::Kind;

    use super::*;

    #[test]
    fn one_argument_with_shell_characters_is_for_a_shell() {
        for text in ["echo hi", "a|b", "ls *.csv", "$SKILL_DIR/run", "x=1"] {
            assert!(is_shell_text(text), "{text}");
        }
        for text in ["ls", "./run.sh", "/usr/bin/python3", "a-b_c.d"] {
            assert!(!is_shell_text(text), "{text}");
        }
        let words = vec!["echo".to_owned(), "a b".to_owned()];
        let args = CommandArgs {
            script: None,
            args: Vec::new(),
            arg_style: ArgStyleValue::Positional,
            script_cwd: ScriptCwdValue::SkillRoot,
            command: words.clone(),
        };
        assert_eq!(args.spec(&[], None, false).argv, words);
    }

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

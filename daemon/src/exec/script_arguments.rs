//! Converts a script's `args` into command-line arguments and environment variables. Pure.
//!
//! No value ever becomes part of a shell command or of program source. In styles that name the key, a value that begins
//! with a dash cannot become an option.

use std::collections::HashMap;

use prost_types::value::Kind;
use serde_json::Value;
use skilld_proto::v1 as pb;

use crate::error::{Error, Result, Violation};

/// Maximum number of entries in `Script.args`.
const ARGUMENTS_MAX: usize = 256;
/// Maximum length of a script argument's key, in bytes.
const KEY_BYTES_MAX: usize = 64;
/// Maximum length of a script argument or of `NAME=value`, in bytes.
const TEXT_BYTES_MAX: usize = super::ARG_BYTES_MAX;
/// Prefix of the environment variables that hold a script's arguments.
pub const VARIABLE_PREFIX: &str = "SKILL_ARG_";
/// Largest integer that a JSON number represents exactly: 2^53.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Arguments and environment variables of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandArguments {
    /// Command-line arguments. Those of a script exclude the script's path.
    pub argv: Vec<String>,
    /// Environment variables of the command, as names and values.
    pub env: Vec<(String, String)>,
}

/// Builds a script's arguments and variables from its `argv` and `args`.
///
/// # Errors
///
/// `Invalid` with all violations.
pub fn build_script_arguments(script: &pb::ExecScript) -> Result<CommandArguments> {
    let mut builder = ArgumentsBuilder {
        style: pb::ScriptArgStyle::Unspecified,
        out: CommandArguments {
            argv: script.argv.clone(),
            env: Vec::new(),
        },
        variables: HashMap::new(),
        violations: Vec::new(),
    };
    match pb::ScriptArgStyle::try_from(script.arg_style) {
        Ok(style) => builder.style = style,
        Err(_) => builder.add_violation(
            "spec.script.arg_style",
            "is not a value that this server knows",
        ),
    }
    if script.args.len() > ARGUMENTS_MAX {
        let count = script.args.len();
        builder.add_violation(
            "spec.script.args",
            format!("{count} arguments; at most {ARGUMENTS_MAX}"),
        );
    }
    for (index, arg) in script.args.iter().take(ARGUMENTS_MAX).enumerate() {
        builder.add_argument(&format!("spec.script.args[{index}]"), arg);
    }
    if builder.violations.is_empty() {
        Ok(builder.out)
    } else {
        Err(Error::Invalid(builder.violations))
    }
}

/// Returns the name of the environment variable for a key: `max-rows` gives `SKILL_ARG_MAX_ROWS`.
fn variable_name(key: &str) -> String {
    format!(
        "{VARIABLE_PREFIX}{}",
        key.to_ascii_uppercase().replace('-', "_")
    )
}

/// Builder that collects a script's arguments and variables, and the violations in them.
struct ArgumentsBuilder {
    style: pb::ScriptArgStyle,
    out: CommandArguments,
    /// Variable name → argument key that uses it, to find collisions.
    variables: HashMap<String, String>,
    violations: Vec<Violation>,
}

/// Value of a script argument, converted to text.
enum ArgumentValue {
    Null,
    Bool(bool),
    Text(String),
    /// Items, each with `true` if it is a number, which no script takes for an option; then the whole list as JSON.
    List(Vec<(String, bool)>, String),
}

impl ArgumentsBuilder {
    fn add_violation(&mut self, field: impl Into<String>, description: impl Into<String>) {
        self.violations.push(Violation::new(field, description));
    }

    fn add_argument(&mut self, field: &str, arg: &pb::ScriptArg) {
        if !is_valid_key(&arg.key) {
            let message = format!("must be [A-Za-z][A-Za-z0-9_-]*, at most {KEY_BYTES_MAX} bytes");
            self.add_violation(format!("{field}.key"), message);
            return;
        }
        let name = variable_name(&arg.key);
        if let Some(other) = self.variables.insert(name.clone(), arg.key.clone()) {
            let message = format!("{:?} and {other:?} are the same variable {name}", arg.key);
            self.add_violation(format!("{field}.key"), message);
            return;
        }
        let given = match parse_value(arg) {
            Ok(given) => given,
            Err((part, message)) => return self.add_violation(format!("{field}.{part}"), message),
        };
        let value = match &given {
            ArgumentValue::Null => String::new(),
            ArgumentValue::Bool(value) => value.to_string(),
            ArgumentValue::Text(text) | ArgumentValue::List(_, text) => text.clone(),
        };
        if value.contains('\0') {
            return self.add_violation(format!("{field}.value"), "has a NUL byte");
        }
        if name.len() + value.len() + 1 > TEXT_BYTES_MAX {
            let message = format!(
                "{} bytes; at most {TEXT_BYTES_MAX} with its name",
                value.len()
            );
            return self.add_violation(format!("{field}.value"), message);
        }
        self.out.env.push((name, value));
        match self.style {
            pb::ScriptArgStyle::Unspecified | pb::ScriptArgStyle::Positional => {
                self.push_positional(given);
            }
            pb::ScriptArgStyle::Named => self.push_key_then_items(field, &arg.key, given),
            pb::ScriptArgStyle::NamedRepeated => self.push_key_per_item(&arg.key, given),
            pb::ScriptArgStyle::Env => {}
        }
    }

    fn push_positional(&mut self, given: ArgumentValue) {
        let argv = &mut self.out.argv;
        match given {
            ArgumentValue::Null | ArgumentValue::Bool(false) => {}
            ArgumentValue::Bool(true) => argv.push("true".to_owned()),
            ArgumentValue::Text(text) => argv.push(text),
            ArgumentValue::List(items, _) => argv.extend(items.into_iter().map(|(item, _)| item)),
        }
    }

    fn push_key_then_items(&mut self, field: &str, key: &str, given: ArgumentValue) {
        let ArgumentValue::List(mut items, _) = given else {
            return self.push_key_per_item(key, given);
        };
        match items.len() {
            0 => {}
            1 => items
                .drain(..)
                .for_each(|(item, _)| self.push_option(key, item)),
            _ if items
                .iter()
                .any(|(item, number)| item.starts_with('-') && !number) =>
            {
                let message = "has an item that begins with a dash, which the script would take for an option: use \
                               NAMED_REPEATED, or give it in argv";
                self.add_violation(format!("{field}.value"), message);
            }
            _ => {
                self.out.argv.push(option_name(key));
                self.out
                    .argv
                    .extend(items.into_iter().map(|(item, _)| item));
            }
        }
    }

    fn push_key_per_item(&mut self, key: &str, given: ArgumentValue) {
        match given {
            ArgumentValue::Null | ArgumentValue::Bool(false) => {}
            ArgumentValue::Bool(true) => self.out.argv.push(option_name(key)),
            ArgumentValue::Text(text) => self.push_option(key, text),
            ArgumentValue::List(items, _) => items
                .into_iter()
                .for_each(|(item, _)| self.push_option(key, item)),
        }
    }

    fn push_option(&mut self, key: &str, value: String) {
        if value.starts_with('-') {
            self.out.argv.push(format!("{}={value}", option_name(key)));
        } else {
            self.out.argv.extend([option_name(key), value]);
        }
    }
}

/// Returns the command-line option for an argument's key, spelt like the key: scripts that parse `--max_rows` know no
/// `--max-rows`.
fn option_name(key: &str) -> String {
    format!("--{key}")
}

/// Returns `true` if an argument's key has the permitted syntax and length.
fn is_valid_key(key: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    key.len() <= KEY_BYTES_MAX
        && key.starts_with(|first: char| first.is_ascii_alphabetic())
        && key.bytes().all(good)
}

/// Parses the value of a script argument. An error names the invalid field of the argument and the problem.
fn parse_value(arg: &pb::ScriptArg) -> Result<ArgumentValue, (&'static str, String)> {
    let kind = arg.value.as_ref().and_then(|value| value.kind.as_ref());
    let kind = match (kind, arg.literal.as_str()) {
        (Some(_), literal) if !literal.is_empty() => {
            return Err((
                "literal",
                "is given with value: give one of them".to_owned(),
            ));
        }
        (None, "") => {
            let message = "is missing; null leaves the argument out".to_owned();
            return Err(("value", message));
        }
        (None, literal) if is_json_number(literal) => {
            return Ok(ArgumentValue::Text(literal.to_owned()));
        }
        (None, _) => return Err(("literal", "is not a JSON number".to_owned())),
        (Some(kind), _) => kind,
    };
    let faulty = |message| ("value", message);
    Ok(match kind {
        Kind::NullValue(_) => ArgumentValue::Null,
        Kind::BoolValue(value) => ArgumentValue::Bool(*value),
        Kind::StringValue(text) => ArgumentValue::Text(text.clone()),
        Kind::NumberValue(_) | Kind::StructValue(_) => {
            ArgumentValue::Text(to_json(kind).map_err(faulty)?.to_string())
        }
        Kind::ListValue(list) => {
            let whole = to_json(kind).map_err(faulty)?.to_string();
            let items = list
                .values
                .iter()
                .map(|item| match &item.kind {
                    Some(Kind::StringValue(text)) => Ok((text.clone(), false)),
                    Some(kind @ Kind::NumberValue(_)) => Ok((to_json(kind)?.to_string(), true)),
                    Some(kind) => Ok((to_json(kind)?.to_string(), false)),
                    None => Ok(("null".to_owned(), false)),
                })
                .collect::<Result<Vec<_>, String>>()
                .map_err(faulty)?;
            if items.iter().any(|(item, _)| item.contains('\0')) {
                return Err(("value", "has a NUL byte".to_owned()));
            }
            ArgumentValue::List(items, whole)
        }
    })
}

/// Returns `true` if a text is exactly one JSON number, of any size.
fn is_json_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let is_exponent_valid =
        exponent.is_none_or(|text| digits(text.strip_prefix(['+', '-']).unwrap_or(text)));
    let unsigned = mantissa.strip_prefix('-').unwrap_or(mantissa);
    let (whole, fraction) = match unsigned.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (unsigned, None),
    };
    let leading_zero = whole.len() > 1 && whole.starts_with('0');
    is_exponent_valid && fraction.is_none_or(digits) && digits(whole) && !leading_zero
}

/// Converts a protobuf value to JSON. Whole numbers become integers.
fn to_json(kind: &Kind) -> Result<Value, String> {
    let inner = |value: &prost_types::Value| match &value.kind {
        Some(kind) => to_json(kind),
        None => Ok(Value::Null),
    };
    Ok(match kind {
        Kind::NullValue(_) => Value::Null,
        Kind::BoolValue(value) => Value::Bool(*value),
        Kind::StringValue(text) => Value::String(text.clone()),
        Kind::NumberValue(number) => Value::Number(to_json_number(*number)?),
        Kind::ListValue(list) => {
            Value::Array(list.values.iter().map(inner).collect::<Result<_, _>>()?)
        }
        Kind::StructValue(fields) => Value::Object(
            fields
                .fields
                .iter()
                .map(|(key, value)| Ok((key.clone(), inner(value)?)))
                .collect::<Result<_, String>>()?,
        ),
    })
}

/// Converts a number to JSON, whole numbers as integers.
fn to_json_number(number: f64) -> Result<serde_json::Number, String> {
    if number.fract() == 0.0 && number.abs() <= EXACT_MAX {
        #[expect(clippy::cast_possible_truncation, reason = "a whole number that fits")]
        return Ok(serde_json::Number::from(number as i64));
    }
    let message = || "has a number that JSON cannot represent".to_owned();
    serde_json::Number::from_f64(number).ok_or_else(message)
}

#[cfg(test)]
mod tests;

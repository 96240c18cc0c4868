//! A script's arguments as data: what `Script.args` become on its command line and in its environment. Pure.
//!
//! Nothing is ever put into a shell's text or a program's source: what comes out are words and variables. A value
//! that begins with a dash cannot become an option where a style names the key.

use std::collections::HashMap;

use prost_types::value::Kind;
use serde_json::Value;
use skilld_proto::v1 as pb;

use crate::error::{Error, Result, Violation};

/// Most arguments as data.
const ARGS_MAX: usize = 256;
/// Longest key, bytes.
const KEY_BYTES_MAX: usize = 64;
/// Longest argument, and longest `NAME=value`, bytes: Linux's MAX_ARG_STRLEN.
const TEXT_BYTES_MAX: usize = (128 << 10) - 1;
/// In front of a key in the environment.
pub const PREFIX: &str = "SKILL_ARG_";
/// Integers up to here are exact in a JSON number.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// What a script gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    /// After the script's path.
    pub argv: Vec<String>,
    /// Names and values.
    pub env: Vec<(String, String)>,
}

/// Makes a script's arguments out of its `argv` and its `args`.
///
/// # Errors
/// `Invalid` with every fault.
pub fn arguments(script: &pb::Script) -> Result<Arguments> {
    let mut made = Maker {
        style: pb::ArgStyle::Unspecified,
        out: Arguments {
            argv: script.argv.clone(),
            env: Vec::new(),
        },
        variables: HashMap::new(),
        faults: Vec::new(),
    };
    match pb::ArgStyle::try_from(script.arg_style) {
        Ok(style) => made.style = style,
        Err(_) => made.fault(
            "spec.script.arg_style",
            "is not a value that this server knows",
        ),
    }
    if script.args.len() > ARGS_MAX {
        let count = script.args.len();
        made.fault(
            "spec.script.args",
            format!("{count} arguments; at most {ARGS_MAX}"),
        );
    }
    for (index, arg) in script.args.iter().take(ARGS_MAX).enumerate() {
        made.add(&format!("spec.script.args[{index}]"), arg);
    }
    if made.faults.is_empty() {
        Ok(made.out)
    } else {
        Err(Error::Invalid(made.faults))
    }
}

/// The variable of a key.
fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase().replace('-', "_"))
}

struct Maker {
    style: pb::ArgStyle,
    out: Arguments,
    /// Variable → the key that it was made of.
    variables: HashMap<String, String>,
    faults: Vec<Violation>,
}

/// A value, and how it reads as one word.
enum Given {
    Null,
    Bool(bool),
    Text(String),
    /// Items, and whether each is a number: one that is cannot be taken for an option.
    List(Vec<(String, bool)>, String),
}

impl Maker {
    fn fault(&mut self, field: impl Into<String>, description: impl Into<String>) {
        self.faults.push(Violation::new(field, description));
    }

    fn add(&mut self, field: &str, arg: &pb::ScriptArg) {
        if !is_key(&arg.key) {
            let message = format!("must be [A-Za-z][A-Za-z0-9_-]*, at most {KEY_BYTES_MAX} bytes");
            self.fault(format!("{field}.key"), message);
            return;
        }
        let name = variable(&arg.key);
        if let Some(other) = self.variables.insert(name.clone(), arg.key.clone()) {
            let message = format!("{:?} and {other:?} are the same variable {name}", arg.key);
            self.fault(format!("{field}.key"), message);
            return;
        }
        let given = match given(arg) {
            Ok(given) => given,
            Err((part, message)) => return self.fault(format!("{field}.{part}"), message),
        };
        let value = match &given {
            Given::Null => String::new(),
            Given::Bool(value) => value.to_string(),
            Given::Text(text) | Given::List(_, text) => text.clone(),
        };
        if value.contains('\0') {
            return self.fault(format!("{field}.value"), "has a NUL byte");
        }
        if name.len() + value.len() + 1 > TEXT_BYTES_MAX {
            let message = format!(
                "{} bytes; at most {TEXT_BYTES_MAX} with its name",
                value.len()
            );
            return self.fault(format!("{field}.value"), message);
        }
        self.out.env.push((name, value));
        match self.style {
            pb::ArgStyle::Unspecified | pb::ArgStyle::Positional => self.positional(given),
            pb::ArgStyle::Named => self.named(field, &arg.key, given),
            pb::ArgStyle::NamedRepeated => self.repeated(&arg.key, given),
            pb::ArgStyle::Env => {}
        }
    }

    fn positional(&mut self, given: Given) {
        let argv = &mut self.out.argv;
        match given {
            Given::Null | Given::Bool(false) => {}
            Given::Bool(true) => argv.push("true".to_owned()),
            Given::Text(text) => argv.push(text),
            Given::List(items, _) => argv.extend(items.into_iter().map(|(item, _)| item)),
        }
    }

    fn named(&mut self, field: &str, key: &str, given: Given) {
        let Given::List(mut items, _) = given else {
            return self.repeated(key, given);
        };
        match items.len() {
            0 => {}
            1 => items.drain(..).for_each(|(item, _)| self.pair(key, item)),
            _ if items
                .iter()
                .any(|(item, number)| item.starts_with('-') && !number) =>
            {
                let message = "has an item that begins with a dash, which the script would take for an option: use \
                               NAMED_REPEATED, or give it in argv";
                self.fault(format!("{field}.value"), message);
            }
            _ => {
                self.out.argv.push(flag(key));
                self.out
                    .argv
                    .extend(items.into_iter().map(|(item, _)| item));
            }
        }
    }

    fn repeated(&mut self, key: &str, given: Given) {
        match given {
            Given::Null | Given::Bool(false) => {}
            Given::Bool(true) => self.out.argv.push(flag(key)),
            Given::Text(text) => self.pair(key, text),
            Given::List(items, _) => items.into_iter().for_each(|(item, _)| self.pair(key, item)),
        }
    }

    fn pair(&mut self, key: &str, value: String) {
        if value.starts_with('-') {
            self.out.argv.push(format!("{}={value}", flag(key)));
        } else {
            self.out.argv.extend([flag(key), value]);
        }
    }
}

/// Returns the option for a key, spelt as the key is: scripts that parse `--max_rows` know no `--max-rows`.
fn flag(key: &str) -> String {
    format!("--{key}")
}

fn is_key(key: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    key.len() <= KEY_BYTES_MAX
        && key.starts_with(|first: char| first.is_ascii_alphabetic())
        && key.bytes().all(good)
}

/// The value of an argument, or the part of it that is wrong and why.
fn given(arg: &pb::ScriptArg) -> Result<Given, (&'static str, String)> {
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
        (None, literal) if is_number(literal) => return Ok(Given::Text(literal.to_owned())),
        (None, _) => return Err(("literal", "is not a number as JSON has it".to_owned())),
        (Some(kind), _) => kind,
    };
    let faulty = |message| ("value", message);
    Ok(match kind {
        Kind::NullValue(_) => Given::Null,
        Kind::BoolValue(value) => Given::Bool(*value),
        Kind::StringValue(text) => Given::Text(text.clone()),
        Kind::NumberValue(_) | Kind::StructValue(_) => {
            Given::Text(json(kind).map_err(faulty)?.to_string())
        }
        Kind::ListValue(list) => {
            let whole = json(kind).map_err(faulty)?.to_string();
            let items = list.values.iter().map(|item| match &item.kind {
                Some(Kind::StringValue(text)) => Ok((text.clone(), false)),
                Some(kind @ Kind::NumberValue(_)) => Ok((json(kind)?.to_string(), true)),
                Some(kind) => Ok((json(kind)?.to_string(), false)),
                None => Ok(("null".to_owned(), false)),
            });
            let items: Result<Vec<_>, String> = items.collect();
            let items = items.map_err(faulty)?;
            if items.iter().any(|(item, _)| item.contains('\0')) {
                return Err(("value", "has a NUL byte".to_owned()));
            }
            Given::List(items, whole)
        }
    })
}

/// Whether a text is one number as JSON has it, of any size, and nothing else.
fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let exponent =
        exponent.is_none_or(|text| digits(text.strip_prefix(['+', '-']).unwrap_or(text)));
    let mantissa = mantissa.strip_prefix('-').unwrap_or(mantissa);
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let leading_zero = whole.len() > 1 && whole.starts_with('0');
    exponent && fraction.is_none_or(digits) && digits(whole) && !leading_zero
}

/// As JSON, with whole numbers as such.
fn json(kind: &Kind) -> Result<Value, String> {
    let inner = |value: &prost_types::Value| match &value.kind {
        Some(kind) => json(kind),
        None => Ok(Value::Null),
    };
    Ok(match kind {
        Kind::NullValue(_) => Value::Null,
        Kind::BoolValue(value) => Value::Bool(*value),
        Kind::StringValue(text) => Value::String(text.clone()),
        Kind::NumberValue(number) => Value::Number(self::number(*number)?),
        Kind::ListValue(list) => {
            Value::Array(list.values.iter().map(inner).collect::<Result<_, _>>()?)
        }
        Kind::StructValue(fields) => {
            let fields = fields.fields.iter();
            let fields = fields.map(|(key, value)| Ok((key.clone(), inner(value)?)));
            Value::Object(fields.collect::<Result<_, String>>()?)
        }
    })
}

fn number(number: f64) -> Result<serde_json::Number, String> {
    if number.fract() == 0.0 && number.abs() <= EXACT_MAX {
        #[expect(clippy::cast_possible_truncation, reason = "a whole number that fits")]
        return Ok(serde_json::Number::from(number as i64));
    }
    let message = || "has a number that JSON does not have".to_owned();
    serde_json::Number::from_f64(number).ok_or_else(message)
}

#[cfg(test)]
mod tests;

//! Reads arguments as models and clients write them, into a checked and typed value. They come as an object or JSON
//! text of one, with keys in any case, other systems' names for a field, and values as text, where clients pass lists,
//! numbers and maps so. The schemas that models get are in `schema`.

mod schema;

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value, json};

pub(crate) use schema::reduce_arguments;
pub use schema::{result_schema, schema};

use crate::tool_error::ToolError;

/// Largest number up to which each whole one has a floating-point number of its own.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
/// Longest text that a message repeats, in characters.
const SHOWN_CHARS_MAX: usize = 80;

/// Reads arguments, at any depth.
///
/// * A key stands for the field whose name differs from it in case, `_` or `-` only, as `MaxFiles` and `yieldMs` do.
///   Other names of a field are its serde aliases, which are given here since serde does not tell them: pairs of alias
///   and field, which hold wherever there is such a field. Unknown keys are left aside, as the reference systems do.
/// * null counts as not given, and so does an empty text where no text is wanted.
/// * JSON text that parses to the wanted type is that value, a number such as `60.0` is a whole one, a number or a
///   truth value where a text is wanted is its text, and one value where a list is wanted is a list of one.
/// * An empty list where a map is wanted is an empty map, and a text where an object with a field `from` is wanted is
///   that field. For certain fields see `adapt_value`.
///
/// # Errors
///
/// [`ToolError::InvalidArguments`] names the argument of another type and what it should be.
pub fn decode<T: DeserializeOwned + JsonSchema>(
    arguments: Value,
    aliases: &[(&str, &str)],
) -> Result<T, ToolError> {
    let schema = schema::full_schema::<T>();
    let known = Value::Object(read_fields(argument_object(arguments)?, &schema, aliases));
    T::deserialize(&known).map_err(|error| {
        let fault = find_mismatch(&known, &schema, "");
        ToolError::arguments(fault.unwrap_or_else(|| error.to_string()))
    })
}

/// Reads the values of an object, under the names of the schema's fields.
fn read_fields(
    given: Map<String, Value>,
    schema: &Value,
    aliases: &[(&str, &str)],
) -> Map<String, Value> {
    let Some(fields) = schema_keyword(schema, "properties").and_then(Value::as_object) else {
        return read_map(given, schema, aliases);
    };
    let mut known: HashMap<&String, ((bool, KeyMatch), Value)> = HashMap::new();
    for (key, value) in given {
        let Some((field, spelling)) = find_field(fields, &key, aliases) else {
            continue;
        };
        let Some(value) = fields
            .get(field)
            .and_then(|schema| read_value(adapt_value(field, value), schema, aliases))
        else {
            continue;
        };
        // A text that is not empty counts first, then the nearest spelling, and of several the first.
        let rank = (value.as_str() == Some(""), spelling);
        if known.get(field).is_none_or(|(other, _)| rank < *other) {
            known.insert(field, (rank, value));
        }
    }
    fields
        .keys()
        .filter_map(|field| {
            let (_, value) = known.remove(field)?;
            Some((field.clone(), value))
        })
        .collect()
}

/// Returns the value of a field as a text where clients give another one whose meaning is plain: the words of a command,
/// an object as the text of a file or of stdin, and seconds with their unit.
fn adapt_value(field: &str, value: Value) -> Value {
    match (field, value) {
        ("command", Value::Array(words)) => {
            let text = join_words(&words);
            text.map_or(Value::Array(words), Value::String)
        }
        ("content" | "stdin", Value::Object(fields)) => {
            Value::String(Value::Object(fields).to_string())
        }
        ("timeout" | "timeout_sec", Value::String(text)) => {
            let seconds = text
                .trim()
                .strip_suffix('s')
                .map(str::trim_end)
                .filter(|seconds| seconds.parse::<f64>().is_ok());
            Value::String(seconds.map_or_else(|| text.clone(), str::to_owned))
        }
        (_, value) => value,
    }
}

/// Returns a list of words as a shell command, quoted where that is needed; `None` if it is no such list. One text alone
/// is a command already.
fn join_words(words: &[Value]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(Value::as_str).collect::<Option<_>>()?;
    match words.as_slice() {
        [] => None,
        [command] => Some((*command).to_owned()),
        // Each of them is a command: their words would be quoted as one.
        [first, ..] if first.contains(char::is_whitespace) => None,
        words => shlex::try_join(words.iter().copied()).ok(),
    }
}

/// Finds the field that a key names.
fn find_field<'a>(
    fields: &'a Map<String, Value>,
    key: &str,
    aliases: &[(&str, &str)],
) -> Option<(&'a String, KeyMatch)> {
    if let Some((field, _)) = fields.get_key_value(key) {
        return Some((field, KeyMatch::Exact));
    }
    let folded = fold_key(key);
    if let Some(field) = fields.keys().find(|field| fold_key(field) == folded) {
        return Some((field, KeyMatch::Alike));
    }
    let field = aliases
        .iter()
        .filter(|(alias, _)| fold_key(alias) == folded)
        .find_map(|(_, field)| fields.get_key_value(*field));
    field.map(|(field, _)| (field, KeyMatch::Alias))
}

/// Distance between a key and the name of a field; the nearest spelling wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KeyMatch {
    Exact,
    Alike,
    Alias,
}

/// Reads the values of a map with keys of the caller's own. One with values of any type stays as it is.
fn read_map(
    given: Map<String, Value>,
    schema: &Value,
    aliases: &[(&str, &str)],
) -> Map<String, Value> {
    let values = schema_keyword(schema, "additionalProperties");
    let Some(values) = values.filter(|values| values.is_object()) else {
        return given;
    };
    given
        .into_iter()
        .filter_map(|(key, value)| Some((key, read_value(value, values, aliases)?)))
        .collect()
}

/// Reads one value as the type that its schema has; `None` if it counts as not given. A value that cannot be that type
/// stays as it is.
fn read_value(value: Value, schema: &Value, aliases: &[(&str, &str)]) -> Option<Value> {
    let types = permitted_types(schema);
    let wants = |kind: &str| types.contains(&kind);
    let value = match value {
        Value::Null => return None,
        // Some languages have one empty value for both.
        Value::Array(items) if items.is_empty() && wants("object") && !wants("array") => {
            return None;
        }
        Value::String(text) if !(types.is_empty() || wants("string")) => read_text(text, &types)?,
        Value::Bool(_) | Value::Number(_) if wants("string") && !has_type(&value, &types) => {
            Value::String(value.to_string())
        }
        Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => value,
    };
    let value = match wants("array") && !has_type(&value, &types) {
        true => Value::Array(vec![value]),
        false => value,
    };
    let fields = schema_keyword(schema, "properties");
    let is_source = fields.is_some_and(|fields| fields.get("from").is_some());
    let value = match value.is_string() && is_source {
        true => json!({"from": value}),
        false => value,
    };
    Some(match value {
        Value::Array(items) => match schema_keyword(schema, "items") {
            Some(schema) => items
                .into_iter()
                .filter_map(|item| read_value(item, schema, aliases))
                .collect(),
            None => Value::Array(items),
        },
        Value::Object(map) => Value::Object(read_fields(map, schema, aliases)),
        Value::Number(number) if wants("integer") => {
            whole_number(&number).unwrap_or(Value::Number(number))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    })
}

/// Reads a text where another type is wanted: the value that it is the JSON text of, if that has a wanted type. `None`
/// if it is empty or `null`.
fn read_text(text: String, types: &[&str]) -> Option<Value> {
    let json = text.trim();
    if json.is_empty() {
        return None;
    }
    // Python writes True.
    let json = match types.contains(&"boolean") {
        true => json.to_ascii_lowercase(),
        false => json.to_owned(),
    };
    match serde_json::from_str(&json) {
        Ok(Value::Null) => None,
        Ok(value) if has_type(&value, types) => Some(value),
        Ok(_) | Err(_) => Some(Value::String(text)),
    }
}

/// Returns `true` if a value has one of these types. Each number may be a whole one.
fn has_type(value: &Value, types: &[&str]) -> bool {
    types.contains(&type_name(value)) || (value.is_number() && types.contains(&"integer"))
}

/// Describes the first value that is of no type that the schema has, by its place in the arguments.
fn find_mismatch(value: &Value, schema: &Value, place: &str) -> Option<String> {
    let types = permitted_types(schema);
    if let Some(wanted) = wanted_types(value, schema, &types) {
        let shown = match value {
            Value::String(text) if text.chars().count() > SHOWN_CHARS_MAX => "a text",
            Value::Object(_) => "an object",
            Value::Array(_) => "a list",
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                &value.to_string()
            }
        };
        return Some(format!("{place} must be {wanted}, not {shown}"));
    }
    match value {
        Value::Object(map) => {
            let fields = schema_keyword(schema, "properties");
            map.iter().find_map(|(key, value)| {
                let field = fields.and_then(|fields| fields.get(key));
                let schema = field.or_else(|| schema_keyword(schema, "additionalProperties"))?;
                let place = match place {
                    "" => key.clone(),
                    place => format!("{place}.{key}"),
                };
                find_mismatch(value, schema, &place)
            })
        }
        Value::Array(items) => {
            let schema = schema_keyword(schema, "items")?;
            items
                .iter()
                .enumerate()
                .find_map(|(index, item)| find_mismatch(item, schema, &format!("{place}[{index}]")))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Returns the types that a value should have, if it has none of them.
fn wanted_types(value: &Value, schema: &Value, types: &[&str]) -> Option<String> {
    let has = |kind: &str| types.contains(&kind);
    let minimum = schema_keyword(schema, "minimum").filter(|_| has("integer"));
    let is_whole = has("integer") && (value.is_i64() || value.is_u64());
    let is_large = value.as_f64() >= minimum.and_then(Value::as_f64);
    let fits = has(type_name(value)) || (is_whole && is_large);
    if fits || types.is_empty() {
        return None;
    }
    let mut words = types
        .iter()
        .filter_map(|kind| describe_type(kind))
        .collect::<Vec<_>>()
        .join(" or ");
    if let Some(minimum) = minimum {
        words.push_str(&format!(" from {minimum} on"));
    }
    Some(words)
}

/// Returns a number without a fraction that is written with one as a whole number.
fn whole_number(number: &Number) -> Option<Value> {
    let value = number
        .as_f64()
        .filter(|_| !(number.is_i64() || number.is_u64()))?;
    let is_whole = value.fract() == 0.0 && value.abs() <= EXACT_MAX;
    let digits = is_whole.then(|| format!("{value:.0}"))?;
    digits.parse::<i64>().ok().map(Value::from)
}

/// Returns the types that a schema permits; empty if it permits all.
fn permitted_types(schema: &Value) -> Vec<&str> {
    let alternatives = schema.get("anyOf").and_then(Value::as_array);
    let own = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind.as_str()],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let mut all = own;
    for alternative in alternatives.into_iter().flatten() {
        let kinds = permitted_types(alternative);
        if kinds.is_empty() {
            return Vec::new();
        }
        all.extend(kinds);
    }
    all
}

/// Returns the type of a value, as schemas call it.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn describe_type(kind: &str) -> Option<&'static str> {
    match kind {
        "boolean" => Some("true or false"),
        "integer" => Some("a whole number"),
        "number" => Some("a number"),
        "string" => Some("a text"),
        "array" => Some("a list"),
        "object" => Some("an object"),
        _ => None,
    }
}

/// Returns a keyword of a schema, or of one of its alternatives, as an optional value has them.
fn schema_keyword<'a>(schema: &'a Value, keyword: &str) -> Option<&'a Value> {
    let alternatives = || schema.get("anyOf").and_then(Value::as_array);
    schema.get(keyword).or_else(|| {
        let mut alternatives = alternatives()?.iter();
        alternatives.find_map(|schema| schema.get(keyword))
    })
}

fn fold_key(name: &str) -> String {
    let letters = name.chars().filter(|letter| !matches!(letter, '_' | '-'));
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Returns arguments as an object, which may be JSON in a string.
pub(crate) fn argument_object(arguments: Value) -> Result<Map<String, Value>, ToolError> {
    match arguments {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        // Some models, and some frameworks, pass JSON in a string.
        Value::String(text) if text.trim().is_empty() => Ok(Map::new()),
        // Programs of Windows begin files with a byte order mark.
        Value::String(text) => match serde_json::from_str(text.trim_start_matches('\u{feff}')) {
            Ok(Value::Object(map)) => Ok(map),
            Ok(_) => Err(ToolError::arguments("not an object")),
            Err(error) => Err(ToolError::arguments(format!("not JSON: {error}"))),
        },
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            Err(ToolError::arguments("not an object"))
        }
    }
}

#[cfg(test)]
mod tests;

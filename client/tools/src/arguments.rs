//! Reads arguments as models write them: an object or a string that holds one, keys in any case, other systems' names
//! for a field. The result is a checked and typed value.

use std::collections::HashMap;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};

use crate::tool_error::ToolError;

/// Largest number up to which each whole one has a floating-point number of its own.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
/// Longest text that a message repeats, in characters.
const SHOWN_CHARS_MAX: usize = 80;

/// Reads arguments, at any depth. A key stands for the field whose name differs from it in case, `_` or `-` only, as
/// `MaxFiles` and `yieldMs` do; null is the same as nothing; unknown keys are left aside, as the reference systems do.
/// Other names of a field are its serde aliases, which are given here since serde does not tell them: pairs of alias
/// and field, which hold wherever there is such a field. A number such as `60.0` is a whole one; a value of another
/// type than the schema has is an error that names the argument.
///
/// # Errors
///
/// [`ToolError::InvalidArguments`] names the argument and what it should be.
pub fn decode<T: DeserializeOwned + JsonSchema>(
    arguments: Value,
    aliases: &[(&str, &str)],
) -> Result<T, ToolError> {
    let schema = schema::<T>();
    let known = Value::Object(rename_keys(argument_object(arguments)?, &schema, aliases));
    T::deserialize(&known).map_err(|error| {
        let fault = find_mismatch(&known, &schema, "");
        ToolError::arguments(fault.unwrap_or_else(|| error.to_string()))
    })
}

/// Renames the keys of an object to the fields of the schema.
fn rename_keys(
    given: Map<String, Value>,
    schema: &Value,
    aliases: &[(&str, &str)],
) -> Map<String, Value> {
    let Some(fields) = schema_keyword(schema, "properties").and_then(Value::as_object) else {
        // A map of the caller's own keys.
        return given;
    };
    let mut known: HashMap<&String, (KeyMatch, Value)> = HashMap::new();
    for (key, value) in given {
        let by_name = |name: &&String| fold_key(name) == fold_key(&key);
        let by_alias = || {
            aliases
                .iter()
                .filter(|(alias, _)| fold_key(alias) == fold_key(&key))
                .find_map(|(_, field)| fields.get_key_value(*field))
                .map(|(field, _)| (field, KeyMatch::Alias))
        };
        let found = match fields.get_key_value(&key) {
            Some((field, _)) => Some((field, KeyMatch::Exact)),
            None => fields
                .keys()
                .find(by_name)
                .map(|field| (field, KeyMatch::Alike))
                .or_else(by_alias),
        };
        // The nearest spelling counts, and of several the first.
        if let Some((field, spelling)) = found
            && !value.is_null()
            && known.get(field).is_none_or(|(other, _)| spelling < *other)
        {
            known.insert(field, (spelling, value));
        }
    }
    let fields = fields.iter().filter_map(|(field, schema)| {
        let (_, value) = known.remove(field)?;
        Some((field.clone(), rename_nested(value, schema, aliases)))
    });
    fields.collect()
}

/// Distance between a key and the name of a field; the nearest spelling wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KeyMatch {
    Exact,
    Alike,
    Alias,
}

fn rename_nested(value: Value, schema: &Value, aliases: &[(&str, &str)]) -> Value {
    match value {
        Value::Object(map) => Value::Object(rename_keys(map, schema, aliases)),
        Value::Array(items) => match schema_keyword(schema, "items") {
            Some(schema) => {
                let items = items.into_iter();
                items
                    .map(|item| rename_nested(item, schema, aliases))
                    .collect()
            }
            None => Value::Array(items),
        },
        Value::Number(number) if permitted_types(schema).contains(&"integer") => {
            whole_number(&number).unwrap_or(Value::Number(number))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
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
            let mut items = items.iter().enumerate();
            items
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
    let words = types.iter().filter_map(|kind| describe_type(kind));
    let mut words = words.collect::<Vec<_>>().join(" or ");
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

/// Returns the JSON Schema of arguments of a type, with everything inlined: models read no references.
#[must_use]
pub fn schema<T: JsonSchema>() -> Value {
    root_schema::<T>(inline_settings())
}

/// Returns the schema of a result: unlike an argument, a field that may be left out is not required.
#[must_use]
pub fn result_schema<T: JsonSchema>() -> Value {
    root_schema::<T>(inline_settings().for_serialize())
}

fn inline_settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    })
}

fn root_schema<T: JsonSchema>(settings: SchemaSettings) -> Value {
    settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

/// Returns arguments as an object, which may be JSON in a string.
pub(crate) fn argument_object(arguments: Value) -> Result<Map<String, Value>, ToolError> {
    match arguments {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        // Some models, and some frameworks, pass JSON in a string.
        Value::String(text) if text.trim().is_empty() => Ok(Map::new()),
        Value::String(text) => match serde_json::from_str(&text) {
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
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
    #[serde(default)]
    struct Run {
        skill: String,
        yield_ms: u64,
    }

    #[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
    #[serde(default)]
    struct Outer {
        outputs: Option<Outputs>,
        inputs: Vec<Input>,
        env: std::collections::BTreeMap<String, String>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
    #[serde(default)]
    struct Outputs {
        max_files: u64,
        inline: bool,
    }

    #[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
    #[serde(default)]
    struct Input {
        from: String,
        to: String,
    }

    #[test]
    fn inner_keys_may_be_spelled_in_any_way_too_and_keys_of_maps_are_left_alone() {
        let arguments = json!({
            "Outputs": {"MaxFiles": 3, "max_files": 0, "maxfiles": 9, "Inline": true, "other": 1},
            "inputs": [{"src": "a", "DST": "b"}, {"From": "c", "to": null}],
            "env": {"MaxFiles": "x", "src": "y"},
        });
        let read: Outer =
            decode(arguments, &[("src", "from"), ("dst", "to")]).expect("is understood");
        let input = |from: &str, to: &str| Input {
            from: from.into(),
            to: to.into(),
        };
        let outputs = Outputs {
            max_files: 0,
            inline: true,
        };
        assert_eq!(read.outputs, Some(outputs));
        assert_eq!(read.inputs, [input("a", "b"), input("c", "")]);
        assert_eq!(read.env.keys().collect::<Vec<_>>(), ["MaxFiles", "src"]);
    }

    fn run(arguments: Value) -> Result<Run, String> {
        decode(
            arguments,
            &[("skill_name", "skill"), ("yield_time_ms", "yield_ms")],
        )
        .map_err(|error| error.to_string())
    }

    #[test]
    fn keys_may_be_in_any_case_or_another_systems() {
        let wanted = Run {
            skill: "a".into(),
            yield_ms: 5,
        };
        for arguments in [
            json!({"skill": "a", "yield_ms": 5}),
            json!({"Skill": "a", "YIELD_MS": 5}),
            json!({"skill_name": "a", "yield_time_ms": 5}),
            json!({"skill": "a", "skill_name": "b", "yield_ms": 5}),
            json!({"skill_name": "b", "skill": "a", "yield_ms": 5}),
            // In any order: as it is spelt, else nearly so, else by another name.
            json!({"skill_name": "b", "Skill": "a", "yield_ms": 5}),
            json!({"Skill": "a", "skill_name": "b", "yield_ms": 5}),
            json!({"SKILL": "b", "skill": "a", "yieldMs": 7, "yield_ms": 5}),
            json!({"Skill": "a", "SKILL": "b", "yield_ms": 5}),
            json!(r#"{"skill": "a", "yield_ms": 5, "unknown": [1]}"#),
        ] {
            assert_eq!(run(arguments.clone()).as_ref(), Ok(&wanted), "{arguments}");
        }
        assert_eq!(run(json!({"skill": null})), Ok(Run::default()));
        assert_eq!(run(json!("")), Ok(Run::default()));
    }

    #[test]
    fn what_is_no_object_or_has_a_wrong_type_is_said() {
        for (arguments, said) in [
            (json!([1]), "not an object"),
            (json!("{"), "not JSON"),
            (json!("[1]"), "not an object"),
            (
                json!({"yield_ms": "5"}),
                "yield_ms must be a whole number from 0 on, not \"5\"",
            ),
            (
                json!({"yield_ms": 1.5}),
                "yield_ms must be a whole number from 0 on, not 1.5",
            ),
            (json!({"yield_ms": -1}), "from 0 on, not -1"),
            (json!({"Skill": [1]}), "skill must be a text, not a list"),
        ] {
            let error = run(arguments.clone()).expect_err("refused");
            assert!(error.starts_with("invalid args: "), "{error}");
            assert!(error.contains(said), "{arguments}: {error}");
        }
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
        for (given, wanted) in [(json!(60.0), 60), (json!(6e1), 60), (json!(-0.0), 0)] {
            let read = run(json!({"yield_ms": given})).expect("a whole number");
            assert_eq!(read.yield_ms, wanted);
        }
        for given in [json!(0.5), json!(1e300), json!(-60.0)] {
            assert!(run(json!({"yield_ms": given})).is_err(), "{given}");
        }
    }

    #[test]
    fn an_argument_of_a_wrong_type_is_named_wherever_it_is() {
        for (given, said) in [
            (
                json!({"outputs": {"MaxFiles": "many"}}),
                "outputs.max_files must be a whole number from 0 on, not \"many\"",
            ),
            (json!({"outputs": 3}), "outputs must be an object, not 3"),
            (
                json!({"inputs": [{"from": "a"}, {"src": true}]}),
                "inputs[1].from must be a text, not true",
            ),
            (
                json!({"inputs": ["a"]}),
                "inputs[0] must be an object, not \"a\"",
            ),
            (json!({"env": {"A": 1}}), "env.A must be a text, not 1"),
        ] {
            let read = decode::<Outer>(given.clone(), &[("src", "from")]);
            let error = read.expect_err("refused").to_string();
            assert_eq!(error, format!("invalid args: {said}"), "{given}");
        }
    }

    #[derive(serde::Serialize, JsonSchema)]
    struct Ran {
        exit_code: i32,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    }

    #[test]
    fn a_result_may_lack_what_is_left_out_when_it_is_empty() {
        assert_eq!(result_schema::<Ran>()["required"], json!(["exit_code"]));
    }

    #[test]
    fn a_schema_says_what_a_field_is() {
        let schema = schema::<Run>();
        assert_eq!(schema["properties"]["skill"]["type"], "string");
        assert_eq!(schema["type"], "object");
    }
}

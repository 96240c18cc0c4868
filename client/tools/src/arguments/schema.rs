//! JSON Schemas of arguments and results, generated from their types or given by an MCP server. They are reduced to
//! what the providers of all models take: one type for each value, and no keyword that some of them refuse.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Keywords that some providers refuse or that tell a model nothing.
const NOISE: [&str; 6] = [
    "$schema", "title", "default", "format", "minimum", "maximum",
];
/// Keywords about one type of several, and this type.
const TYPE_KEYWORDS: [(&str, &str); 4] = [
    ("items", "array"),
    ("properties", "object"),
    ("required", "object"),
    ("additionalProperties", "object"),
];
/// Keywords that are left out of the schema of a result: a model reads the result itself, whose fields say what they
/// are, and the schemas of all tools are part of every list of tools.
const RESULT_NOISE: [&str; 6] = [
    "title",
    "default",
    "format",
    "minimum",
    "maximum",
    "description",
];

/// Returns the JSON Schema of arguments of a type, with everything inlined: models read no references.
#[must_use]
pub fn schema<T: JsonSchema>() -> Value {
    let mut schema = reduce_schema(full_schema::<T>(), &NOISE);
    if let Some(schema) = schema.as_object_mut() {
        // Of the type, not of the tool.
        schema.retain(|key, _| key != "description");
    }
    schema
}

/// Reduces the schema of arguments that an MCP server gives.
pub(crate) fn reduce_arguments(schema: Value) -> Value {
    reduce_schema(schema, &NOISE)
}

/// Returns the schema of a result: unlike an argument, a field that may be left out is not required.
#[must_use]
pub fn result_schema<T: JsonSchema>() -> Value {
    reduce_schema(
        root_schema::<T>(inline_settings().for_serialize()),
        &RESULT_NOISE,
    )
}

/// Returns the schema of arguments of a type with all that reading them needs.
pub(super) fn full_schema<T: JsonSchema>() -> Value {
    root_schema::<T>(inline_settings())
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

/// Removes keywords from a schema, at any depth, and gives each value one type.
fn reduce_schema(schema: Value, noise: &[&str]) -> Value {
    match schema {
        Value::Object(map) => {
            let required = map.get("required").cloned().unwrap_or_default();
            let is_required = |name: &str| {
                let mut names = required.as_array().into_iter().flatten();
                names.any(|required| required == name)
            };
            let kept = map
                .into_iter()
                .filter(|(key, _)| !noise.contains(&key.as_str()))
                .map(|(key, value)| {
                    let value = match (key.as_str(), value) {
                        // Names of fields and definitions are no keywords, and neither are the keys of data.
                        ("properties" | "patternProperties", Value::Object(fields)) => {
                            reduce_fields(fields, &is_required, noise)
                        }
                        ("$defs" | "definitions", Value::Object(definitions)) => {
                            reduce_fields(definitions, &|_: &str| true, noise)
                        }
                        ("const" | "enum" | "examples" | "dependentRequired", data) => data,
                        ("description", Value::String(text)) => text.replace('\n', " ").into(),
                        ("type", Value::Array(kinds)) => single_type(kinds),
                        (_, value) => reduce_schema(value, noise),
                    };
                    (key, value)
                });
            Value::Object(with_alternatives(kept.collect()))
        }
        Value::Array(items) => items
            .into_iter()
            .map(|item| reduce_schema(item, noise))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema,
    }
}

/// Reduces the schemas of fields. A field that is null is one that is left out, unless it is required.
fn reduce_fields(
    fields: Map<String, Value>,
    is_required: &dyn Fn(&str) -> bool,
    noise: &[&str],
) -> Value {
    let reduced = fields.into_iter().map(|(name, field)| {
        let kinds = field.get("type").and_then(Value::as_array);
        let is_nullable = kinds.is_some_and(|kinds| kinds.contains(&json!("null")));
        let mut field = reduce_schema(field, noise);
        if !is_required(&name) {
            field = without_null(field);
        } else if is_nullable {
            field = json!({"anyOf": [field, {"type": "null"}]});
        }
        (name, field)
    });
    Value::Object(reduced.collect())
}

/// Returns the only type of a list that is not null, else the list.
fn single_type(mut kinds: Vec<Value>) -> Value {
    kinds.retain(|kind| kind != "null");
    match kinds.len() {
        0 => "null".into(),
        1 => kinds.remove(0),
        _ => kinds.into(),
    }
}

/// Returns a schema whose several types are alternatives with one type and its keywords each.
fn with_alternatives(mut schema: Map<String, Value>) -> Map<String, Value> {
    if let Some(Value::Array(kinds)) = schema.get("type")
        && !schema.contains_key("anyOf")
    {
        let alternatives: Value = kinds
            .clone()
            .into_iter()
            .map(|kind| {
                let keywords = TYPE_KEYWORDS.iter().filter(|(_, owner)| kind == *owner);
                let own: Vec<(String, Value)> = keywords
                    .filter_map(|(keyword, _)| schema.remove_entry(*keyword))
                    .collect();
                let type_entry = ("type".to_owned(), kind);
                Value::Object(std::iter::once(type_entry).chain(own).collect())
            })
            .collect();
        schema.remove("type");
        schema.insert("anyOf".into(), alternatives);
    }
    schema
}

/// Returns a schema with the keywords of its only alternative that is not null, if it has just one.
fn without_null(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut()
        && let Some(only) = take_only_alternative(fields)
    {
        fields.remove("anyOf");
        for (key, value) in only {
            fields.entry(key).or_insert(value);
        }
    }
    schema
}

/// Takes the keywords of the only alternative that is not null; `None` if there is no or another one.
fn take_only_alternative(schema: &mut Map<String, Value>) -> Option<Map<String, Value>> {
    let alternatives = schema.get_mut("anyOf")?.as_array_mut()?.iter_mut();
    let mut others = alternatives.filter(|schema| schema.get("type") != Some(&json!("null")));
    match (others.next(), others.next()) {
        (Some(Value::Object(only)), None) => Some(std::mem::take(only)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, JsonSchema)]
    struct RanCommand {
        /// Code of the end.
        exit_code: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    }

    #[test]
    fn a_result_may_lack_what_is_left_out_when_it_is_empty() {
        let schema = result_schema::<RanCommand>();
        assert_eq!(schema["required"], json!(["exit_code"]));
        let integer = json!({"type": "integer"});
        let nullable = json!({"anyOf": [integer.clone(), {"type": "null"}]});
        assert_eq!(schema["properties"]["exit_code"], nullable);
        assert_eq!(schema["properties"]["signal"], integer);
    }

    #[derive(Default, serde::Serialize, serde::Deserialize, JsonSchema)]
    #[serde(default)]
    struct SampleArguments {
        /// A name
        /// in two lines.
        title: String,
        /// Seconds.
        timeout: Option<f64>,
        counts: Vec<u32>,
    }

    #[test]
    fn arguments_have_one_type_each_and_no_noise() {
        let wanted = json!({
            "type": "object",
            "properties": {
                "title": {"description": "A name in two lines.", "type": "string"},
                "timeout": {"description": "Seconds.", "type": "number"},
                "counts": {"type": "array", "items": {"type": "integer"}},
            },
        });
        assert_eq!(schema::<SampleArguments>(), wanted);
    }

    #[test]
    fn a_servers_schema_is_reduced_as_ours_are() {
        let given = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "title": "searchArguments",
            "properties": {
                "title": {
                    "anyOf": [{"type": "string"}, {"type": "null"}], "default": null, "title": "Title",
                    "description": "A name.",
                },
                "limit": {"type": ["integer", "null"], "minimum": 1, "format": "uint"},
                "key": {"type": ["string", "integer", "null"]},
                "of": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "nothing": {"type": ["null"]},
                "either": {"anyOf": [{"type": "string"}, {"type": "boolean"}, {"type": "null"}]},
                "rows": {
                    "type": ["array", "string", "object"], "description": "Rows.",
                    "items": {"type": "integer", "minimum": 0},
                    "properties": {"title": {"type": "string", "title": "Title"}},
                    "required": ["title"], "additionalProperties": false,
                },
            },
            "required": ["of"],
        });
        let row = json!({
            "type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"],
            "additionalProperties": false,
        });
        let list = json!({"type": "array", "items": {"type": "integer"}});
        let wanted = json!({
            "type": "object",
            "properties": {
                "title": {"type": "string", "description": "A name."},
                "limit": {"type": "integer"},
                "key": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "of": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "nothing": {"type": "null"},
                "either": {"anyOf": [{"type": "string"}, {"type": "boolean"}, {"type": "null"}]},
                "rows": {"anyOf": [list, {"type": "string"}, row], "description": "Rows."},
            },
            "required": ["of"],
        });
        assert_eq!(reduce_arguments(given), wanted);
    }

    #[test]
    fn names_and_data_in_a_servers_schema_are_no_keywords() {
        let data = json!([{"title": "a", "default": 1}]);
        let given = json!({
            "type": "object",
            "properties": {
                "at": {"$ref": "#/$defs/format"},
                "mode": {"enum": data, "examples": data, "title": "Mode"},
                "kind": {"const": {"format": "x"}},
            },
            "$defs": {"format": {"type": ["string", "null"], "title": "Format"}},
            "definitions": {"title": {"type": "string", "default": ""}},
            "patternProperties": {"default": {"type": ["integer", "null"], "minimum": 1}},
            "dependentRequired": {"title": ["mode"]},
        });
        let wanted = json!({
            "type": "object",
            "properties": {
                "at": {"$ref": "#/$defs/format"},
                "mode": {"enum": data, "examples": data},
                "kind": {"const": {"format": "x"}},
            },
            "$defs": {"format": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            "definitions": {"title": {"type": "string"}},
            "patternProperties": {"default": {"type": "integer"}},
            "dependentRequired": {"title": ["mode"]},
        });
        assert_eq!(reduce_arguments(given), wanted);
    }
}

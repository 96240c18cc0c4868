//! Check of a result against its JSON Schema, as far as the tools' schemas go.

use serde_json::{Map, Value};

/// Returns the first fault with its place.
pub(crate) fn fits(value: &Value, schema: &Value) -> Result<(), String> {
    let Some(schema) = schema.as_object() else {
        return Ok(());
    };
    if let Some(kinds) = schema.get("anyOf").and_then(Value::as_array) {
        let wrong: Vec<String> = kinds
            .iter()
            .filter_map(|kind| fits(value, kind).err())
            .collect();
        return match wrong.len() < kinds.len() {
            true => Ok(()),
            false => Err(wrong.join(", and ")),
        };
    }
    let kinds = match schema.get("type") {
        None => return Ok(()),
        Some(Value::Array(kinds)) => kinds.clone(),
        Some(kind) => vec![kind.clone()],
    };
    if !kinds.iter().any(|kind| is_of(value, kind)) {
        return Err(format!("{value} is none of {kinds:?}"));
    }
    match value {
        Value::Object(fields) => fields_fit(fields, schema),
        Value::Array(items) => {
            let of_items = schema.get("items").unwrap_or(&Value::Null);
            items.iter().try_for_each(|item| fits(item, of_items))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn fields_fit(fields: &Map<String, Value>, schema: &Map<String, Value>) -> Result<(), String> {
    let known = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let missing = required
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .find(|name| !fields.contains_key(*name));
    if let Some(name) = missing {
        return Err(format!("{name} is missing"));
    }
    for (name, value) in fields {
        let schema = known
            .and_then(|known| known.get(name))
            .or_else(|| schema.get("additionalProperties"));
        let Some(schema) = schema else {
            return Err(format!("{name} is no field of it"));
        };
        fits(value, schema).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

fn is_of(value: &Value, kind: &Value) -> bool {
    match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("null") => value.is_null(),
        _ => false,
    }
}

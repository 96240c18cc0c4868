//! Converts JSON from and to protobuf's JSON values, which skill cards and arguments of scripts travel as.

use prost_types::value::Kind;
use prost_types::{Struct, Value as Wire};
use serde_json::{Map, Value};
use skilld_client::to_proto_value;
use skilld_client::v1::ScriptArg;

/// Converts a map to JSON, its keys sorted.
pub(crate) fn to_json_map(fields: &Struct) -> Map<String, Value> {
    fields
        .fields
        .iter()
        .map(|(key, value)| (key.clone(), to_json(value)))
        .collect()
}

fn to_json(value: &Wire) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => Value::Bool(*value),
        Some(Kind::NumberValue(value)) => Value::from(*value),
        Some(Kind::StringValue(text)) => Value::String(text.clone()),
        Some(Kind::ListValue(list)) => list.values.iter().map(to_json).collect(),
        Some(Kind::StructValue(fields)) => Value::Object(to_json_map(fields)),
    }
}

/// Converts one argument of a script. A number keeps its literal: `1.0` does not become `1`.
pub(crate) fn to_script_arg(key: String, value: Value) -> ScriptArg {
    let literal = value.as_number().map(ToString::to_string);
    ScriptArg {
        key,
        value: literal.is_none().then(|| to_proto_value(value)),
        literal: literal.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_keeps_its_literal_and_all_else_its_type() {
        for (given, literal) in [(json!(1.0), "1.0"), (json!(3), "3"), (json!(-0.5), "-0.5")] {
            let made = to_script_arg("k".into(), given);
            assert_eq!((made.literal.as_str(), made.value), (literal, None));
        }
        for given in [
            json!(null),
            json!(true),
            json!("1.0"),
            json!(["a", 1.5, {"b": null}]),
            json!({"k": [1.5], "l": "x"}),
        ] {
            let made = to_script_arg("k".into(), given.clone());
            assert_eq!(made.value.as_ref().map(to_json), Some(given));
        }
    }
}

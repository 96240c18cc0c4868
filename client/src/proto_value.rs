//! Converts JSON to protobuf's JSON values, which arguments of scripts travel as.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::Value as Json;

/// Converts a JSON value to protobuf's form of it. A number becomes a `double`.
#[must_use]
pub fn to_proto_value(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => Kind::ListValue(ListValue {
            values: items.into_iter().map(to_proto_value).collect(),
        }),
        Json::Object(fields) => Kind::StructValue(Struct {
            fields: fields
                .into_iter()
                .map(|(key, item)| (key, to_proto_value(item)))
                .collect(),
        }),
    };
    Value { kind: Some(kind) }
}

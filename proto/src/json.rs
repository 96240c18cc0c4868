//! Converts JSON to protobuf's JSON values, which front matter, skill cards and arguments of scripts travel as.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::{Map, Value as Json};

/// Converts a JSON value to protobuf's form of it. A number becomes a `double`. The recursion is as deep as the value,
/// whose depth every parser limits.
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
        Json::Object(fields) => Kind::StructValue(to_proto_struct(fields)),
    };
    Value { kind: Some(kind) }
}

/// Converts a JSON object to protobuf's form of it, as [`to_proto_value`] does.
#[must_use]
pub fn to_proto_struct(fields: Map<String, Json>) -> Struct {
    Struct {
        fields: fields
            .into_iter()
            .map(|(key, field)| (key, to_proto_value(field)))
            .collect(),
    }
}

//! Arguments as data: names to values, in the order in which they are given.

use serde_json::{Map, Value};

use crate::tools::ToolError;

/// A map, or text that is one.
pub(crate) fn args(given: Option<Value>) -> Result<Map<String, Value>, ToolError> {
    let wanted =
        "script_args must be a map of names to values, or JSON text of one; words belong into argv";
    match given {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(args)) => Ok(args),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(Map::new()),
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(Value::Object(args)) => Ok(args),
            Ok(_) => Err(ToolError::arguments(wanted)),
            Err(error) => Err(ToolError::arguments(format!("{wanted}: {error}"))),
        },
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_)) => {
            Err(ToolError::arguments(wanted))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_in_a_string_are_read_and_what_is_no_map_is_refused() {
        let read = |given: Value| args(Some(given)).map_err(|error| error.to_string());
        let map = read(json!(r#"{"z": 1, "a": [true]}"#)).expect("a map");
        // In the order in which they are written.
        assert_eq!(json!(map).to_string(), r#"{"z":1,"a":[true]}"#);
        assert!(args(None).expect("none").is_empty());
        assert!(read(json!("")).expect("none").is_empty());
        for given in [
            json!("a b"),
            json!("[1]"),
            json!([1]),
            json!(1),
            json!(true),
        ] {
            let error = read(given.clone()).expect_err("refused");
            assert!(
                error.contains("script_args must be a map"),
                "{given}: {error}"
            );
        }
    }
}

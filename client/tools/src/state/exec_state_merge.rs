//! Merges the states that parallel branches recorded about a command that continues between calls. Where branches that
//! ran side by side touched the same command, the one that read furthest wins, so that no byte is returned twice.

use serde_json::Value;

/// Prefix of the key of a command, before its id.
pub(crate) const EXEC: &str = "temp:skill:exec:";
/// Fields with the number of bytes that were returned.
const OFFSETS: [&str; 2] = ["stdout", "stderr"];

/// Merges the memories of one command from several branches, in any order; `None` for values of another form.
pub(super) fn merge_exec(values: &[&Value]) -> Option<Value> {
    let has_result = |value: &Value| value.get("result").is_some_and(|result| !result.is_null());
    let furthest = values
        .iter()
        .max_by_key(|value| (has_result(value), offsets(value), value.to_string()))?;
    let mut merged = furthest.as_object()?.clone();
    for name in OFFSETS {
        let largest = values.iter().map(|value| number(value, name)).max()?;
        merged.insert(name.to_owned(), largest.into());
    }
    let ended = values
        .iter()
        .any(|value| value.get("ended") == Some(&Value::Bool(true)));
    merged.insert("ended".to_owned(), ended.into());
    Some(merged.into())
}

fn offsets(value: &Value) -> [u64; 2] {
    OFFSETS.map(|name| number(value, name))
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::state::{SessionState, StateDelta, merge_all};

    fn branch(stdout: u64, stderr: u64, end: Option<bool>) -> StateDelta {
        let mut delta = StateDelta::new();
        let result = end.map(|_| json!({"exit_code": 0}));
        let ended = end == Some(true);
        let value = json!({"stdout": stdout, "stderr": stderr, "ended": ended, "result": result});
        delta.set(format!("{EXEC}x"), value);
        delta
    }

    #[test]
    fn merging_a_commands_branches_keeps_the_larger_offsets() {
        let branches = [branch(9, 20, Some(false)), branch(10, 3, None)];
        let base = SessionState::new();
        for order in [[0, 1], [1, 0]] {
            let merged = merge_all(&base, &order.map(|at| &branches[at]));
            let (_, value) = merged.iter().next().expect("a command");
            assert_eq!(
                *value,
                json!({"stdout": 10, "stderr": 20, "ended": false, "result": {"exit_code": 0}})
            );
        }
    }

    proptest! {
        #[test]
        fn no_offset_falls_and_no_end_is_forgotten(
            branches in proptest::collection::vec((0_u64..30, 0_u64..30, any::<Option<bool>>()), 1..5),
        ) {
            let deltas: Vec<StateDelta> = branches.iter().map(|(out, err, end)| branch(*out, *err, *end)).collect();
            let base = SessionState::new();
            let merged = merge_all(&base, &deltas.iter().collect::<Vec<_>>());
            let back = merge_all(&base, &deltas.iter().rev().collect::<Vec<_>>());
            prop_assert_eq!(&merged, &back);
            let (_, value) = merged.iter().next().expect("a command");
            let largest = |of: fn(&(u64, u64, Option<bool>)) -> u64| branches.iter().map(of).max();
            prop_assert_eq!(value["stdout"].as_u64(), largest(|branch| branch.0));
            prop_assert_eq!(value["stderr"].as_u64(), largest(|branch| branch.1));
            let ends = branches.iter().filter_map(|(_, _, end)| *end);
            prop_assert_eq!(value["ended"] == json!(true), ends.clone().any(|end| end));
            prop_assert_eq!(value["result"].is_null(), ends.count() == 0);
        }
    }
}

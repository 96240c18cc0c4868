//! Artifacts that a call saved. They outlive a session that is not kept, whose id is random: without it they cannot be found.

use std::collections::BTreeSet;

use serde_json::Value;
use skilld_tools::Session;

/// Maximum number of artifacts that a note names.
const NAMED_MAX: usize = 10;

/// Returns the artifacts that a result says were saved, as NAME@VERSION.
pub(crate) fn find_saved_artifacts(result: &Value) -> BTreeSet<String> {
    let mut saved = BTreeSet::new();
    add_saved(result, &mut saved);
    saved
}

fn add_saved(value: &Value, saved: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                // Other fields, as `from`, name artifacts that were read.
                let reference = value
                    .as_str()
                    .filter(|_| matches!(key.as_str(), "ref" | "artifact"))
                    .and_then(|text| text.strip_prefix("artifact://"));
                saved.extend(reference.map(str::to_owned));
                add_saved(value, saved);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_saved(item, saved)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns a note with the command that loads the first of the artifacts that a result says were saved; `None` if there
/// are none.
pub(crate) fn saved_artifacts_note(session: &Session, result: &Value) -> Option<String> {
    let saved = find_saved_artifacts(result);
    let first = saved.first()?;
    let names: Vec<&str> = saved.iter().take(NAMED_MAX).map(String::as_str).collect();
    let others = match saved.len() > NAMED_MAX {
        true => " and others",
        false => "",
    };
    let mut words = vec!["skillctl", "artifact", "load", first.as_str()];
    for (flag, value) in [
        ("--app", &session.app),
        ("--user", &session.user),
        ("--session", &session.session),
    ] {
        if !value.is_empty() {
            words.extend([flag, value.as_str()]);
        }
    }
    // Names have no zero byte.
    let command = shlex::try_join(words.iter().copied()).unwrap_or_else(|_| words.join(" "));
    Some(format!(
        "saved the artifacts {}{others} in a session that is not kept; load them with: {command}",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_was_saved_is_named_and_the_command_loads_it() {
        let session = Session {
            app: "skillctl".into(),
            session: "s1".into(),
            ..Session::default()
        };
        let result = json!({
            "staged_inputs": [{"from": "artifact://old@1"}],
            "stdout": "artifact://printed@1",
            "output_files": [{"ref": "workspace://out/a b", "artifact": "artifact://out/a b@0"}],
            "artifact_files": [{"name": "out/a b", "version": 0, "ref": "artifact://out/a b@0"}],
        });
        let note = "saved the artifacts out/a b@0 in a session that is not kept; load them with: \
                    skillctl artifact load 'out/a b@0' --app skillctl --session s1";
        assert_eq!(
            saved_artifacts_note(&session, &result).as_deref(),
            Some(note)
        );
        assert_eq!(
            saved_artifacts_note(&session, &json!({"stdout": "artifact://x@1"})),
            None
        );
        let many: Vec<_> = (10..40)
            .map(|number| json!({"ref": format!("artifact://out/{number}@0")}))
            .collect();
        let note = saved_artifacts_note(&session, &json!(many)).unwrap_or_default();
        assert!(
            note.contains(", out/19@0 and others in a session"),
            "{note}"
        );
    }
}

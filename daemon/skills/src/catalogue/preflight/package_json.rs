//! Reads the dependencies of a package.json. Pure.

use serde_json::Value;

/// Maximum length of a package's name, in bytes.
const NAME_BYTES_MAX: usize = 214;
/// Maximum number of packages of one file; further ones are not looked for.
const DEPENDENCIES_MAX: usize = 1000;

/// Returns the names beneath `dependencies` of a package.json, sorted; none if it is not understood. Dependencies of
/// development are not needed to run.
pub(super) fn read_dependencies(text: &str) -> Vec<String> {
    let Ok(package) = serde_json::from_str::<Value>(text) else {
        return Vec::new();
    };
    let names = package.get("dependencies").and_then(Value::as_object);
    let names = names.into_iter().flat_map(|all| all.keys());
    let names = names.filter(|name| is_name(name)).cloned();
    let mut names: Vec<String> = names.take(DEPENDENCIES_MAX).collect();
    // The order of serde_json's maps depends on a feature that any other crate may enable.
    names.sort_unstable();
    names
}

fn is_name(name: &str) -> bool {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '@' | '/' | '.' | '_' | '-' | '~');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_to_run_counts() {
        let text = r#"{"dependencies": {"commander": "^1", "@scope/x": "*", "bad name\n": "1"},
            "devDependencies": {"eslint": "1"}, "peerDependencies": {"react": "1"}}"#;
        assert_eq!(read_dependencies(text), ["@scope/x", "commander"]);
        let many: String = (0..30_000).map(|n| format!("\"p{n}\": \"1\",")).collect();
        let many = format!("{{\"dependencies\": {{{}}}}}", many.trim_end_matches(','));
        assert_eq!(read_dependencies(&many).len(), DEPENDENCIES_MAX);
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{",
            "null",
            "[]",
            r#"{"dependencies": []}"#,
            r#"{"dependencies": 1}"#,
            &deep,
        ] {
            assert_eq!(read_dependencies(text), Vec::<String>::new());
        }
    }
}

//! What a package.json says. Pure.

use serde_json::Value;

/// Longest name of a package.
const NAME_BYTES_MAX: usize = 214;
/// Packages that one file may ask for; more are not looked for.
const DEPENDENCIES_MAX: usize = 1000;

/// Names beneath `dependencies`, sorted; none if it is not understood. Those of development are not needed to run.
pub(super) fn dependencies(text: &str) -> Vec<String> {
    let Ok(package) = serde_json::from_str::<Value>(text) else {
        return Vec::new();
    };
    let names = package.get("dependencies").and_then(Value::as_object);
    let names = names.into_iter().flat_map(|all| all.keys());
    let names = names.filter(|name| is_name(name)).cloned();
    let mut names: Vec<String> = names.take(DEPENDENCIES_MAX).collect();
    // Whether a map keeps the order of its text is up to a feature of serde_json, which any other crate may turn on.
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
        assert_eq!(dependencies(text), ["@scope/x", "commander"]);
        let many: String = (0..30_000).map(|n| format!("\"p{n}\": \"1\",")).collect();
        let many = format!("{{\"dependencies\": {{{}}}}}", many.trim_end_matches(','));
        assert_eq!(dependencies(&many).len(), DEPENDENCIES_MAX);
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
            assert_eq!(dependencies(text), Vec::<String>::new());
        }
    }
}

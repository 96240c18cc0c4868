//! Reads the dependencies of a package.json. Pure.

use serde_json::Value;

/// Maximum length of a package's name, in bytes: npm accepts no longer one.
const NAME_BYTES_MAX: usize = 214;
/// Maximum number of packages of one file; further ones are not looked for.
const DEPENDENCIES_MAX: usize = 1000;

/// Returns the names beneath `dependencies` of a package.json, sorted; none if it is not understood. Dependencies of
/// development are not needed to run.
pub(super) fn read_dependencies(text: &str) -> Vec<String> {
    let Ok(package) = serde_json::from_str::<Value>(text) else {
        return Vec::new();
    };
    let dependencies = package.get("dependencies").and_then(Value::as_object);
    let keys = dependencies.into_iter().flat_map(|all| all.keys());
    let valid = keys.filter(|name| is_name(name)).take(DEPENDENCIES_MAX);
    let mut names: Vec<String> = valid.cloned().collect();
    // The order of serde_json's maps depends on a feature that any other crate may enable.
    names.sort_unstable();
    names
}

/// Returns the package of an import's or an installation's specifier: `@scope/x` for `@scope/x/lib/run.js`, `x` for
/// `x@^1` and `npm:x`. `None` for a path, an address or an alias of a project's own folders.
pub(super) fn package_of_specifier(specifier: &str) -> Option<String> {
    let specifier = specifier.strip_prefix("npm:").unwrap_or(specifier);
    let end = match specifier.strip_prefix('@') {
        Some(scoped) => scoped.find('/')? + 2,
        None => 0,
    };
    let rest = specifier.get(end..)?;
    let length = rest.find(['/', '@']).unwrap_or(rest.len());
    let name = specifier.get(..end + length)?;
    let is_start = |text: &str| text.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_scope = end != 2 && (end == 0 || is_start(specifier.get(1..)?));
    (is_scope && is_start(rest) && is_name(name)).then(|| name.to_owned())
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
    fn specifier_names_its_package() {
        for (specifier, expected) in [
            ("docx", Some("docx")),
            ("csv-parse/sync", Some("csv-parse")),
            ("@scope/x/lib/run.js", Some("@scope/x")),
            ("@scope/x@1.2", Some("@scope/x")),
            ("x@^1", Some("x")),
            ("npm:chalk@5", Some("chalk")),
            ("lodash.merge", Some("lodash.merge")),
            ("./x", None),
            ("../x", None),
            ("/x", None),
            (".", None),
            ("@/x/y", None),
            ("~/x", None),
            ("#x", None),
            ("@scope", None),
            ("https://x.example/y.js", None),
            ("", None),
            ("@", None),
            ("a b", None),
        ] {
            assert_eq!(
                package_of_specifier(specifier).as_deref(),
                expected,
                "{specifier:?}"
            );
        }
    }

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

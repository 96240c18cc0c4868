//! Reads a package.json, and takes out of it what no build may see. Pure.

use serde_json::{Map, Value};
use skilld_common::excerpts::cut_chars;

use crate::parse::added_packages::is_node_name;

/// Maximum number of packages that one package.json may name.
const DEPENDENCIES_MAX: usize = 1000;
/// Maximum number of characters of a name or a specifier in a message.
const SHOWN_CHARS_MAX: usize = 100;
/// Keys of a package.json whose packages npm installs.
const DEPENDENCY_KEYS: [&str; 4] = [
    "dependencies",
    "devDependencies",
    "optionalDependencies",
    "peerDependencies",
];
/// Endings of the names of packed packages.
const ARCHIVE_ENDINGS: [&str; 3] = [".tgz", ".tar.gz", ".tar"];

/// Source of a package that a package.json names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DependencySource<'a> {
    /// A version from the package index.
    Index,
    /// A folder or archive, by its path relative to the folder of the package.json.
    Local(&'a str),
    /// A place that no build reaches. The reason completes a sentence that begins with the specifier.
    Refused(&'static str),
}

/// Package that a package.json names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependency {
    /// Key of the package.json that has it.
    key: &'static str,
    /// Name of the package.
    pub(crate) name: String,
    /// Version, range or place; `None` if it is no text.
    specifier: Option<String>,
    /// `true` if programs must do without it.
    pub(crate) is_optional: bool,
}

/// Parsed package.json.
#[derive(Debug, Clone, Default)]
pub(crate) struct PackageJson {
    fields: Map<String, Value>,
    is_changed: bool,
}

impl PackageJson {
    /// Parses a package.json.
    ///
    /// # Errors
    /// Returns the end of a sentence that begins with the path of the file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim_start_matches('\u{feff}');
        let parsed: Value =
            serde_json::from_str(text).map_err(|error| format!("is not valid JSON: {error}"))?;
        let Value::Object(fields) = parsed else {
            return Err("is no JSON object".to_owned());
        };
        let package = Self {
            fields,
            is_changed: false,
        };
        match package.dependencies().len() {
            0..=DEPENDENCIES_MAX => Ok(package),
            _ => Err(format!("names more than {DEPENDENCIES_MAX} packages")),
        }
    }

    /// Returns the packages that npm installs, sorted by key and name. Peers that may be missing are none of them.
    pub(crate) fn dependencies(&self) -> Vec<Dependency> {
        let mut dependencies = Vec::new();
        for key in DEPENDENCY_KEYS {
            let named = self.fields.get(key).and_then(Value::as_object);
            let mut named: Vec<_> = named.into_iter().flatten().collect();
            // The order of serde_json's maps depends on a feature that any other crate may enable.
            named.sort_by_key(|(name, _)| *name);
            let wanted = named
                .into_iter()
                .filter(|(name, _)| !self.is_optional_peer(key, name));
            dependencies.extend(wanted.map(|(name, specifier)| Dependency {
                key,
                name: name.clone(),
                specifier: specifier.as_str().map(str::to_owned),
                is_optional: key == "optionalDependencies",
            }));
        }
        dependencies
    }

    fn is_optional_peer(&self, key: &str, name: &str) -> bool {
        let meta = || {
            self.fields
                .get("peerDependenciesMeta")?
                .get(name)?
                .get("optional")?
                .as_bool()
        };
        key == "peerDependencies" && meta() == Some(true)
    }

    /// Takes a package out.
    pub(crate) fn remove(&mut self, dependency: &Dependency) {
        let named = self.fields.get_mut(dependency.key);
        if let Some(named) = named.and_then(Value::as_object_mut) {
            named.remove(&dependency.name);
            self.is_changed = true;
        }
    }

    /// Takes replacements of packages out that do not come from the index, and returns their names.
    pub(crate) fn remove_refused_overrides(&mut self) -> Vec<String> {
        let mut removed = Vec::new();
        if let Some(Value::Object(overrides)) = self.fields.get_mut("overrides") {
            remove_refused(overrides, &mut removed);
        }
        self.is_changed |= !removed.is_empty();
        removed
    }

    /// Returns the patterns of the folders that are packages of their own; `None` if it has none.
    pub(crate) fn workspaces(&self) -> Option<Vec<&str>> {
        let stated = self.fields.get("workspaces")?;
        let patterns = stated.get("packages").unwrap_or(stated).as_array()?;
        Some(patterns.iter().filter_map(Value::as_str).collect())
    }

    /// Names the folders that are packages of their own, relative to its folder.
    pub(crate) fn set_workspaces(&mut self, folders: Vec<String>) {
        let folders = folders.into_iter().map(Value::String).collect();
        self.fields
            .insert("workspaces".to_owned(), Value::Array(folders));
        self.is_changed = true;
    }

    /// Returns the content for a build: that of the file, unless something was taken out.
    pub(crate) fn into_content(self, text: String) -> Vec<u8> {
        match self.is_changed {
            true => Value::Object(self.fields).to_string().into_bytes(),
            false => text.into_bytes(),
        }
    }
}

impl Dependency {
    /// Returns the source of the package.
    pub(crate) fn source(&self) -> DependencySource<'_> {
        if !is_node_name(&self.name) {
            return DependencySource::Refused("belongs to a name that no package can have");
        }
        match &self.specifier {
            Some(specifier) => classify_specifier(specifier),
            None => DependencySource::Refused("is no version"),
        }
    }

    /// Describes it for messages.
    pub(crate) fn describe(&self) -> String {
        let shown = |text: &str| cut_chars(text, SHOWN_CHARS_MAX).escape_debug().to_string();
        let specifier = self
            .specifier
            .as_deref()
            .map_or_else(|| "…".to_owned(), shown);
        format!("\"{}\": \"{specifier}\"", shown(&self.name))
    }
}

/// Returns the source that a specifier of npm leads to.
fn classify_specifier(specifier: &str) -> DependencySource<'_> {
    let specifier = specifier.trim();
    let alias = specifier.strip_prefix("npm:");
    let path = specifier.strip_prefix("file:");
    if specifier.contains(char::is_control) {
        return DependencySource::Refused("has control characters");
    }
    if let Some(alias) = alias {
        return match package_of_specifier(alias).is_some() && !alias.contains([':', '\\']) {
            true => DependencySource::Index,
            false => DependencySource::Refused("names no package of an index"),
        };
    }
    if let Some(path) = path.or_else(|| specifier.starts_with('.').then_some(specifier)) {
        return classify_path(path);
    }
    if specifier.starts_with(['/', '\\']) || specifier.starts_with("~/") || is_drive(specifier) {
        return classify_path("/");
    }
    match specifier.split_once(':') {
        Some(("http" | "https", _)) => {
            DependencySource::Refused("is an address: name a version that the package index has")
        }
        Some((protocol, _)) if protocol.starts_with("git") => REPOSITORY,
        Some(_) => DependencySource::Refused(
            "has a protocol that builds do not have: name a version, or a folder of the skill as file:FOLDER",
        ),
        None if is_archive_name(specifier) => classify_path(specifier),
        None if specifier.contains('/') => REPOSITORY,
        None => DependencySource::Index,
    }
}

const REPOSITORY: DependencySource<'_> =
    DependencySource::Refused("is a repository: name a version that the package index has");

fn classify_path(path: &str) -> DependencySource<'_> {
    match path.starts_with(['/', '~']) || path.contains('\\') || is_drive(path) {
        true => DependencySource::Refused("is no path relative to the package.json"),
        false => DependencySource::Local(path),
    }
}

/// Returns `true` for the name of a packed package.
pub(crate) fn is_archive_name(name: &str) -> bool {
    ARCHIVE_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Returns `true` for a path that begins with a drive of Windows.
fn is_drive(path: &str) -> bool {
    matches!(path.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic())
}

/// Takes everything out of `overrides`, at any depth, that does not come from the index. serde_json bounds the depth.
fn remove_refused(overrides: &mut Map<String, Value>, removed: &mut Vec<String>) {
    overrides.retain(|name, value| {
        let is_kept = match value {
            Value::Object(nested) => {
                remove_refused(nested, removed);
                true
            }
            // `$NAME` is the version of the root's dependency.
            Value::String(specifier) => classify_specifier(specifier) == DependencySource::Index,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => false,
        };
        if !is_kept {
            removed.push(cut_chars(name, SHOWN_CHARS_MAX).escape_debug().to_string());
        }
        is_kept
    });
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
    (is_scope && is_start(rest) && is_node_name(name)).then(|| name.to_owned())
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
    fn specifiers_lead_to_the_index_the_skill_or_nowhere() {
        for specifier in [
            "",
            "*",
            "^1.2.3",
            ">=1 <3 || 5.x",
            "~1.2",
            "latest",
            "1.0.0 - 2.0.0",
            "npm:chalk@5",
            "npm:@scope/x@^1",
        ] {
            assert_eq!(
                classify_specifier(specifier),
                DependencySource::Index,
                "{specifier:?}"
            );
        }
        for (specifier, path) in [
            ("file:../lib", "../lib"),
            ("file:lib", "lib"),
            ("./lib", "./lib"),
            ("..", ".."),
            ("vendor/x-1.0.0.tgz", "vendor/x-1.0.0.tgz"),
        ] {
            assert_eq!(
                classify_specifier(specifier),
                DependencySource::Local(path),
                "{specifier:?}"
            );
        }
        for specifier in [
            "git+https://x.example/y.git",
            "git://x.example/y",
            "github:user/repo",
            "user/repo#main",
            "git@x.example:y.git",
            "https://x.example/y.tgz",
            "link:../x",
            "portal:../x",
            "workspace:*",
            "jsr:@x/y",
            "npm:../x",
            "npm:x@file:y",
            "file:///etc",
            "file:~/x",
            "file:..\\x",
            "file:c:/x",
            "/etc",
            "~/x",
            "C:\\x",
            "1.0.0\n",
            "a\u{0}b",
        ] {
            let source = classify_specifier(specifier);
            let is_control = specifier == "1.0.0\n";
            // npm trims, too.
            let is_expected = matches!(source, DependencySource::Refused(_)) != is_control;
            assert!(is_expected, "{specifier:?}: {source:?}");
        }
    }

    #[test]
    fn everything_that_npm_installs_is_named_once_per_key() {
        let text = r#"{"dependencies": {"commander": "^1", "@scope/x": "*"}, "devDependencies": {"tsx": "4"},
            "optionalDependencies": {"fsevents": "2"}, "peerDependencies": {"react": "1", "vue": "3"},
            "peerDependenciesMeta": {"vue": {"optional": true}}}"#;
        let package = PackageJson::parse(text).expect("valid");
        let dependencies = package.dependencies();
        let names: Vec<_> = dependencies
            .iter()
            .map(|one| (one.name.as_str(), one.is_optional))
            .collect();
        assert_eq!(
            names,
            [
                ("@scope/x", false),
                ("commander", false),
                ("tsx", false),
                ("fsevents", true),
                ("react", false)
            ]
        );
        assert_eq!(package.into_content(text.to_owned()), text.as_bytes());
        let many: Vec<String> = (0..1001).map(|n| format!("\"p{n}\": \"1\"")).collect();
        let many = format!("{{\"dependencies\": {{{}}}}}", many.join(","));
        let deep = "[".repeat(100_000);
        for (text, reason) in [
            (many.as_str(), "names more than 1000 packages"),
            (&deep, "is not valid JSON: recursion limit exceeded"),
            ("", "is not valid JSON: EOF"),
            ("[]", "is no JSON object"),
        ] {
            let error = PackageJson::parse(text).expect_err("refused");
            assert!(error.starts_with(reason), "{error}");
        }
        for text in ["{}", r#"{"dependencies": []}"#, r#"{"dependencies": 1}"#] {
            assert_eq!(PackageJson::parse(text).expect("valid").dependencies(), []);
        }
    }

    #[test]
    fn refused_parts_are_taken_out_and_the_rest_stays() {
        let text = r#"{"dependencies": {"a": "1", "b": "git://x/y"}, "devDependencies": {"b": "2"},
            "overrides": {"c": "1", "d": "file:/etc", "e": {"f": "github:x/y", "g": "$a"}}}"#;
        let mut package = PackageJson::parse(text).expect("valid");
        let dependencies = package.dependencies();
        assert_eq!(dependencies[1].describe(), r#""b": "git://x/y""#);
        package.remove(&dependencies[1]);
        assert_eq!(package.remove_refused_overrides(), ["d", "f"]);
        let left: Value =
            serde_json::from_slice(&package.into_content(text.to_owned())).expect("JSON");
        let expected = r#"{"dependencies": {"a": "1"}, "devDependencies": {"b": "2"},
            "overrides": {"c": "1", "e": {"g": "$a"}}}"#;
        assert_eq!(left, expected.parse::<Value>().expect("JSON"));
    }
}

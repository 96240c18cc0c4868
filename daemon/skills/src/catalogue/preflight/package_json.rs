//! Reads a package.json, and takes out of it what no build may see. Pure.

use serde_json::{Map, Value};

use crate::parse::npm_specifier::{
    DEPENDENCY_KEYS, DependencySource, classify_specifier, is_node_name, shown,
};

/// Maximum number of packages that one package.json may name.
const DEPENDENCIES_MAX: usize = 1000;
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

    /// Returns its own name, if it has one.
    pub(crate) fn name(&self) -> Option<String> {
        Some(self.fields.get("name")?.as_str()?.to_owned())
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
        let specifier = self
            .specifier
            .as_deref()
            .map_or_else(|| "…".to_owned(), shown);
        format!("\"{}\": \"{specifier}\"", shown(&self.name))
    }
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
            removed.push(shown(name));
        }
        is_kept
    });
}

#[cfg(test)]
mod tests {
    use super::*;

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

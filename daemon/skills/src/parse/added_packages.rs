//! Packages that are added to those that a skill states: by a caller, by the operator, or inferred from its text. Pure.
//!
//! Added ones come from the configured indexes only, like stated ones: neither URLs nor files nor options pass.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::environment_need::{EnvironmentNeed, InferredRequirement, NodeProject};
use super::npm_specifier::{DEPENDENCY_KEYS, DependencySource, classify_specifier, is_node_name};
use super::requirement_line::{check_requirement, normalised_name, without_variant};

/// Maximum number of packages in one list of those that are added to a skill.
pub const ADDED_PACKAGES_MAX: usize = 100;
/// Beginning of a package of Node.js in a list of packages of both kinds.
const NODE_PREFIX: &str = "npm:";
/// Maximum length of a range of versions in bytes.
const RANGE_BYTES_MAX: usize = 256;
/// Range of versions that every version fits.
const ANY_VERSION: &str = "*";

/// Packages that are added to a skill, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedPackages {
    /// Requirements of Python packages (PEP 508).
    pub python: Vec<String>,
    /// Packages of Node.js: name → range of versions.
    pub node: BTreeMap<String, String>,
}

/// Packages that a skill's text shows it to use, and that are neither stated nor added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InferredPackages {
    /// Packages of Python with the modules from which they were inferred.
    pub(crate) python: Vec<InferredRequirement>,
    /// Names of Node.js packages.
    pub(crate) node: Vec<String>,
}

impl AddedPackages {
    /// Returns `true` if nothing is added.
    pub fn is_empty(&self) -> bool {
        self.python.is_empty() && self.node.is_empty()
    }

    /// Adds a Python package: a requirement (PEP 508) without a URL.
    ///
    /// # Errors
    /// Returns the reason for people, as the end of a sentence that begins with the requirement.
    pub fn add_python(&mut self, text: &str) -> Result<(), &'static str> {
        let requirement = check_requirement(text)?;
        self.python.push(requirement);
        self.python.sort();
        self.python.dedup();
        Ok(())
    }

    /// Adds a Node.js package: `NAME` or `NAME@RANGE`.
    ///
    /// # Errors
    /// Returns the reason for people, as the end of a sentence that begins with the package.
    pub fn add_node(&mut self, text: &str) -> Result<(), &'static str> {
        let (name, range) = check_node_package(text)?;
        self.node.insert(name, range);
        Ok(())
    }

    /// Adds a package of either kind; one of Node.js begins with `npm:`.
    ///
    /// # Errors
    /// As [`Self::add_python`] and [`Self::add_node`].
    pub fn add(&mut self, text: &str) -> Result<(), &'static str> {
        match text.strip_prefix(NODE_PREFIX) {
            Some(package) => self.add_node(package),
            None => self.add_python(text),
        }
    }

    /// Returns these packages and those of `later`. Requirements of both count; of a Node.js package the later range.
    #[must_use]
    pub fn merged(mut self, later: &Self) -> Self {
        self.python.extend(later.python.iter().cloned());
        self.python.sort();
        self.python.dedup();
        self.node.extend(later.node.clone());
        self
    }

    /// Returns the normalised names (PEP 503) of the Python packages.
    pub fn python_names(&self) -> impl Iterator<Item = String> {
        self.python
            .iter()
            .map(|requirement| normalised_name(requirement))
    }

    /// Returns the packages as [`Self::add`] takes them, those of Python first.
    pub fn texts(&self) -> Vec<String> {
        let node = self.node.iter().map(|(name, range)| match range.as_str() {
            ANY_VERSION => format!("{NODE_PREFIX}{name}"),
            range => format!("{NODE_PREFIX}{name}@{range}"),
        });
        self.python.iter().cloned().chain(node).collect()
    }
}

impl EnvironmentNeed {
    /// Returns this need with packages that are added to it. Python requirements count beside those that the skill
    /// states; a Node.js package that is added replaces a stated one of the same name.
    #[must_use]
    pub fn with_added(&self, added: &AddedPackages) -> Self {
        let mut need = self.unhashed();
        need.requirements.extend(added.python.iter().cloned());
        need.requirements.sort();
        need.requirements.dedup();
        if !added.node.is_empty() {
            change_root_project(&mut need, |root| {
                root.add_dependencies("dependencies", &added.node);
            });
        }
        need
    }

    /// Returns this need with inferred packages, except for those that are stated or added already. A build leaves out
    /// those that it cannot install.
    #[must_use]
    pub(crate) fn with_inferred(&self, inferred: &InferredPackages) -> Self {
        let mut need = self.unhashed();
        let mut known: HashSet<String> =
            need.requirements.iter().map(|line| family(line)).collect();
        for package in &inferred.python {
            let is_valid = check_requirement(&package.requirement).is_ok();
            if is_valid && known.insert(family(&package.requirement)) {
                need.requirements.push(package.requirement.clone());
                need.inferred.push(package.clone());
            }
        }
        need.requirements.sort();
        let projects = need.node_projects.iter();
        let stated: HashSet<String> = projects.flat_map(NodeProject::package_names).collect();
        let node: BTreeMap<String, String> = inferred
            .node
            .iter()
            .filter(|name| !stated.contains(*name))
            .filter_map(|name| check_node_package(name).ok())
            .collect();
        if !node.is_empty() {
            change_root_project(&mut need, |root| {
                root.add_dependencies("optionalDependencies", &node);
            });
        }
        if need.inferred.is_empty() && node.is_empty() {
            return need;
        }
        let mut certain = self.unhashed();
        if !node.is_empty() {
            // The links of the skill have the numbers of the projects, so both needs have the same ones.
            change_root_project(&mut certain, |_root| {});
        }
        need.certain = Some(Arc::new(certain));
        need
    }
}

/// Returns the name that a requirement and the variants of its package share.
fn family(requirement: &str) -> String {
    without_variant(&normalised_name(requirement)).to_owned()
}

/// Changes the project of the skill's own folder, which is made if the skill has none.
fn change_root_project(need: &mut EnvironmentNeed, change: impl FnOnce(&mut NodeProject)) {
    let projects = &mut need.node_projects;
    let has_root = projects
        .first()
        .is_some_and(|first| first.folder.is_empty());
    let mut root = match has_root {
        true => projects.remove(0),
        false => NodeProject {
            package_json: b"{}".to_vec(),
            has_added: true,
            ..NodeProject::default()
        },
    };
    change(&mut root);
    projects.insert(0, root);
}

impl NodeProject {
    /// Adds dependencies to a section of the package.json, in place of those of the same names in any section.
    fn add_dependencies(&mut self, section: &str, added: &BTreeMap<String, String>) {
        let mut package = self.parsed_package();
        for other in DEPENDENCY_KEYS {
            if let Some(Value::Object(stated)) = package.get_mut(other) {
                stated.retain(|name, _| !added.contains_key(name));
            }
        }
        let stated = package.entry(section).or_insert_with(|| Map::new().into());
        if !stated.is_object() {
            *stated = Map::new().into();
        }
        if let Value::Object(stated) = stated {
            let ranges = added
                .iter()
                .map(|(name, range)| (name.clone(), range.as_str().into()));
            stated.extend(ranges);
        }
        self.package_json = Value::Object(package).to_string().into_bytes();
        self.has_added = true;
    }

    /// Returns the names of the packages that the package.json names.
    fn package_names(&self) -> Vec<String> {
        let package = self.parsed_package();
        let sections = DEPENDENCY_KEYS.iter().filter_map(|key| package.get(*key));
        let named = sections.filter_map(Value::as_object).flat_map(Map::keys);
        named.cloned().collect()
    }

    fn parsed_package(&self) -> Map<String, Value> {
        serde_json::from_slice(&self.package_json).unwrap_or_default()
    }
}

/// Checks `NAME` or `NAME@RANGE` and returns both; without a range, every version fits.
fn check_node_package(text: &str) -> Result<(String, String), &'static str> {
    const NO_PACKAGE: &str =
        "names a path, a URL or a repository: name a package and its versions instead";
    let text = text.trim();
    // The first character may be that of a scope.
    let mut separators = text.char_indices().skip(1).filter(|(_, c)| *c == '@');
    let at = separators.next().map_or(text.len(), |(at, _)| at);
    let (name, rest) = text.split_at_checked(at).unwrap_or_default();
    let range = rest.strip_prefix('@').map_or(ANY_VERSION, str::trim);
    let is_place = name.contains([':', '\\', '#']) || name.starts_with(['.', '/', '~']);
    if is_place || name.trim_start_matches('@').matches('/').count() > 1 {
        return Err(NO_PACKAGE);
    }
    if !is_node_name(name) {
        return Err(
            "is not the name of a Node.js package: write NAME or @SCOPE/NAME, with @VERSIONS behind it if needed",
        );
    }
    // An alias would be another package.
    if classify_specifier(range) != DependencySource::Index || range.contains(':') {
        return Err(NO_PACKAGE);
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || " .^~<>=|*+_-".contains(c);
    if range.is_empty() || range.len() > RANGE_BYTES_MAX || !range.chars().all(plain) {
        return Err(
            "has versions that are not understood: write them like 9, ^9.1, 9.1.1 or latest",
        );
    }
    Ok((name.to_owned(), range.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(texts: &[&str]) -> AddedPackages {
        let mut added = AddedPackages::default();
        for text in texts {
            added.add(text).expect("a package");
        }
        added
    }

    fn project(folder: &str, package_json: &str) -> NodeProject {
        NodeProject {
            folder: folder.to_owned(),
            package_json: package_json.into(),
            ..NodeProject::default()
        }
    }

    fn stated_need(requirements: &[&str], node_projects: Vec<NodeProject>) -> EnvironmentNeed {
        let mut need = EnvironmentNeed::default();
        need.requirements = requirements.iter().map(ToString::to_string).collect();
        need.node_projects = node_projects;
        need
    }

    fn package(need: &EnvironmentNeed) -> Value {
        serde_json::from_slice(&need.node_projects[0].package_json).expect("JSON")
    }

    #[test]
    fn packages_of_both_kinds_are_read_as_they_are_shown() {
        let texts = [
            "pandas>=2,<3",
            "simpy",
            "npm:@scope/x@~1.2 || 2",
            "npm:JSONStream",
            "npm:docx@9",
        ];
        let packages = added(&texts);
        let expected = [
            "pandas>=2,<3",
            "simpy",
            "npm:@scope/x@~1.2 || 2",
            "npm:JSONStream",
            "npm:docx@9",
        ];
        assert_eq!(packages.texts(), expected);
        assert_eq!(
            added(&["simpy", "simpy", "npm:docx", "npm:docx@9"]).texts(),
            ["simpy", "npm:docx@9"]
        );
    }

    #[test]
    fn paths_urls_repositories_and_options_are_refused() {
        let place = "names a path, a URL or a repository";
        let long = format!("npm:{}", "a".repeat(215));
        for (text, reason) in [
            ("..", "names a file"),
            ("-e .", "option of pip"),
            ("--index-url https://evil.example", "option of pip"),
            ("git+https://evil.example/x.git", "a URL or a repository"),
            ("", "is not a package's name"),
            ("npm:..", place),
            ("npm:./x", place),
            ("npm:/etc", place),
            ("npm:~/x", place),
            ("npm:a/b/c", place),
            ("npm:https://evil.example/x.tgz", place),
            ("npm:git+https://evil.example/x", place),
            ("npm:github:a/b", place),
            ("npm:x@npm:y", place),
            ("npm:x@file:../y", place),
            ("npm:x@a/b", place),
            ("npm:x@..", place),
            ("npm:x@y.tgz", place),
            (
                "npm:--registry=https",
                "is not the name of a Node.js package",
            ),
            ("npm:-g", "is not the name of a Node.js package"),
            ("npm:a/b", "is not the name of a Node.js package"),
            ("npm:@scope", "is not the name of a Node.js package"),
            ("npm:@../x", "is not the name of a Node.js package"),
            ("npm:", "is not the name of a Node.js package"),
            ("npm:x y", "is not the name of a Node.js package"),
            (&long, "is not the name of a Node.js package"),
            ("npm:x@", "has versions that are not understood"),
            ("npm:x@1#main", "has versions that are not understood"),
            ("npm:x@Y.TGZ", place),
            ("npm:x@$(id)", "has versions that are not understood"),
        ] {
            let refused = AddedPackages::default().add(text).expect_err(text);
            assert!(refused.contains(reason), "{text}: {refused}");
        }
    }

    #[test]
    fn added_packages_make_a_need_of_their_own() {
        let stated = EnvironmentNeed::default();
        let need = stated.with_added(&added(&["simpy", "npm:docx@9"]));
        assert_eq!(need.requirements, ["simpy"]);
        assert_eq!(
            package(&need),
            serde_json::json!({"dependencies": {"docx": "9"}})
        );
        assert!(need.node_projects[0].has_added && need.node_projects[0].folder.is_empty());
        assert_ne!(need.digest(), stated.digest());
        assert_eq!(
            stated.with_added(&AddedPackages::default()).digest(),
            stated.digest()
        );
    }

    #[test]
    fn an_added_node_package_wins_over_the_stated_one() {
        let text = r#"{"name": "x", "dependencies": {"docx": "8", "a": "1"}, "devDependencies": {"b": "1"}}"#;
        let stated = stated_need(&["simpy<4"], vec![project("", text), project("web", "{}")]);
        let need = stated.with_added(&added(&["simpy>=3", "npm:docx@9", "npm:b"]));
        assert_eq!(need.requirements, ["simpy<4", "simpy>=3"]);
        let expected = serde_json::json!({"name": "x", "dependencies": {"docx": "9", "a": "1", "b": "*"}, "devDependencies": {}});
        assert_eq!(package(&need), expected);
        assert_eq!(need.node_projects.len(), 2);
        let below = stated_need(&[], vec![project("web", "{}")]);
        let folders = below.with_added(&added(&["npm:docx"])).node_projects;
        assert_eq!(
            folders
                .iter()
                .map(|project| project.folder.as_str())
                .collect::<Vec<_>>(),
            ["", "web"]
        );
    }

    #[test]
    fn an_inferred_package_is_left_out_where_it_is_stated() {
        let stated = stated_need(
            &["Opencv_Python-headless==4"],
            vec![project(
                "web",
                r#"{"devDependencies": {"tsx": "4"}, "scripts": {"docx": "x"}}"#,
            )],
        );
        let requirement = |requirement: &str, module: &str| InferredRequirement {
            requirement: requirement.to_owned(),
            module: module.to_owned(),
        };
        let inferred = InferredPackages {
            python: vec![
                requirement("opencv-python", "cv2"),
                requirement("pyyaml", "yaml"),
                requirement("pyyaml", ""),
                requirement("-e .", ""),
            ],
            node: ["tsx", "docx", "../x"].map(str::to_owned).to_vec(),
        };
        let need = stated.with_inferred(&inferred);
        assert_eq!(need.requirements, ["Opencv_Python-headless==4", "pyyaml"]);
        assert_eq!(need.inferred, [requirement("pyyaml", "yaml")]);
        let certain = need.certain.as_ref().expect("a need");
        assert_eq!(certain.requirements, stated.requirements);
        assert_eq!(package(certain), serde_json::json!({}));
        assert_eq!(certain.node_projects.len(), need.node_projects.len());
        assert_eq!(
            stated.with_inferred(&InferredPackages::default()).certain,
            None
        );
        assert_eq!(
            package(&need),
            serde_json::json!({"optionalDependencies": {"docx": "*"}})
        );
    }
}

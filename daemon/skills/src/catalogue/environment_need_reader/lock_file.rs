//! Checks a lock file of npm: packages come from the package index or from the skill's own folder. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::parse::npm_specifier::{DependencySource, classify_path, is_node_name, shown};
use crate::skill_path::resolve_in_plugin;

/// Names of lock files, in the order in which npm looks for them.
pub(super) const LOCK_NAMES: [&str; 2] = ["npm-shrinkwrap.json", "package-lock.json"];
/// Maximum number of packages of a lock file. Large ones of the public collections have 2,000.
const PACKAGES_MAX: usize = 20_000;

/// Folder of packages, in the place of each.
const MODULES: &str = "node_modules/";

/// Places that the packages of a lock file may have.
pub(super) struct LockedPlaces<'a> {
    /// Folder of the lock file, relative to the skill's root.
    pub(super) folder: &'a str,
    /// Folders and archives of local packages, relative to the skill's root.
    pub(super) local: &'a BTreeSet<String>,
    /// Names of dependencies that were taken out of every package.json, so that npm ignores them here unless another
    /// package needs them.
    pub(super) refused: BTreeSet<&'a str>,
}

/// Lock file, as far as it is checked.
#[derive(Deserialize)]
struct LockFile {
    packages: Option<LockedPackages>,
}

/// Packages by their place.
struct LockedPackages(Vec<(String, LockedPackage)>);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LockedPackage {
    resolved: Option<String>,
    link: bool,
    dependencies: NamedPackages,
    optional_dependencies: NamedPackages,
    peer_dependencies: NamedPackages,
}

/// Packages by name.
type NamedPackages = BTreeMap<String, IgnoredAny>;

impl LockedPackage {
    fn needed_names(&self) -> impl Iterator<Item = &str> {
        let peers = self.peer_dependencies.keys();
        let optional = self.optional_dependencies.keys();
        let needed = self.dependencies.keys().chain(optional).chain(peers);
        needed.map(String::as_str)
    }
}

impl<'de> Deserialize<'de> for LockedPackages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PackageVisitor;
        impl<'de> Visitor<'de> for PackageVisitor {
            type Value = LockedPackages;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("packages by their place")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut packages = Vec::new();
                while let Some(package) = map.next_entry()? {
                    if packages.len() >= PACKAGES_MAX {
                        return Err(A::Error::custom(format!(
                            "more than {PACKAGES_MAX} packages"
                        )));
                    }
                    packages.push(package);
                }
                Ok(LockedPackages(packages))
            }
        }
        deserializer.deserialize_map(PackageVisitor)
    }
}

/// Checks a lock file.
///
/// # Errors
/// Returns the end of a sentence that begins with the path of the file.
pub(super) fn check_lock(text: &str, mut places: LockedPlaces<'_>) -> Result<(), String> {
    const ADVICE: &str = "write it anew with `npm install --package-lock-only`";
    let text = text.trim_start_matches('\u{feff}');
    if has_conflict_markers(text) {
        return Err(format!(
            "has the markers of a merge conflict: resolve it, or {ADVICE}"
        ));
    }
    let lock: LockFile = serde_json::from_str(text)
        .map_err(|error| format!("is not understood: {error}: {ADVICE}"))?;
    let Some(LockedPackages(packages)) = lock.packages else {
        return Err(format!(
            "is not of version 2 or 3: {ADVICE} of npm 7 or later"
        ));
    };
    let installed = packages.iter().filter(|(place, _)| place.contains(MODULES));
    let (dropped, kept): (Vec<_>, Vec<_>) =
        installed.partition(|(place, _)| places.is_dropped(place));
    let needed = kept.iter().flat_map(|(_, package)| package.needed_names());
    let needed: BTreeSet<&str> = needed.collect();
    places.refused.retain(|name| !needed.contains(name));
    let dropped = dropped.iter().filter(|(place, _)| places.is_dropped(place));
    let dropped: BTreeSet<&str> = dropped
        .filter_map(|(_, package)| package.resolved.as_deref())
        .collect();
    for (place, package) in &packages {
        let start = place.split(MODULES).next().unwrap_or_default();
        let is_dropped =
            places.resolve(start).is_none() && dropped.contains(start.trim_end_matches('/'));
        let reason = places.refuse_package(place, package);
        if let Some(reason) = reason.filter(|_| !is_dropped) {
            return Err(format!(
                "{reason}; {ADVICE} once package.json names no such package"
            ));
        }
    }
    Ok(())
}

/// Returns `true` for the text that git leaves where two versions of a file differ.
fn has_conflict_markers(text: &str) -> bool {
    let mut wanted = ["<<<<<<<", "=======", ">>>>>>>"].iter().peekable();
    for line in text.lines() {
        if wanted
            .peek()
            .is_some_and(|marker| line.starts_with(**marker))
        {
            wanted.next();
        }
    }
    wanted.peek().is_none()
}

impl LockedPlaces<'_> {
    /// Returns the reason for which a package is refused.
    fn refuse_package(&self, place: &str, package: &LockedPackage) -> Option<String> {
        let mut names = place.split(MODULES).map(|name| name.trim_end_matches('/'));
        // A folder of the skill, or its root, is before the first one.
        let starts_within = names
            .next()
            .is_none_or(|start| self.resolve(start).is_some());
        if !starts_within || !names.all(is_node_name) {
            return Some(format!(
                "has {}, which is the place of no package",
                shown(place)
            ));
        }
        let resolved = package.resolved.as_deref()?;
        let is_fine = match (package.link, resolved.strip_prefix("file:")) {
            (true, _) => self.is_local(resolved),
            (false, Some(archive)) => self.is_local(archive),
            (false, None) => resolved.starts_with("https://") || resolved.starts_with("http://"),
        };
        (!is_fine && !self.is_dropped(place)).then(|| {
            format!(
                "takes the package {} from {}: packages come from the package index or from the skill's own folder",
                shown(package_name(place)),
                shown(resolved)
            )
        })
    }

    /// Returns `true` for the place of a package that no package needs any more.
    fn is_dropped(&self, place: &str) -> bool {
        self.refused.contains(package_name(place))
    }

    fn is_local(&self, path: &str) -> bool {
        self.resolve(path)
            .is_some_and(|path| self.local.contains(&path))
    }

    /// Returns a path relative to the lock file as one relative to the skill's root; `None` if it leads out of the skill.
    fn resolve(&self, path: &str) -> Option<String> {
        match classify_path(path) {
            DependencySource::Local(path) => resolve_in_plugin(self.folder, path).ok(),
            DependencySource::Index | DependencySource::Refused(_) => None,
        }
    }
}

/// Returns the name of the package at a place.
fn package_name(place: &str) -> &str {
    place.rsplit(MODULES).next().unwrap_or(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        let local = BTreeSet::from(["lib".to_owned(), "scripts/x.tgz".to_owned()]);
        let places = LockedPlaces {
            folder: "scripts",
            local: &local,
            refused: BTreeSet::from(["taken-out", "second"]),
        };
        check_lock(text, places)
    }

    fn lock(packages: &str) -> String {
        format!("{{\"lockfileVersion\": 3, \"packages\": {{\"\": {{}}, {packages}}}}}")
    }

    #[test]
    fn packages_of_the_index_and_of_the_skill_are_accepted() {
        for packages in [
            r#""node_modules/x": {"version": "1.0.0"}"#,
            r#""node_modules/@a/x/node_modules/y": {"resolved": "https://r.example/y.tgz"}"#,
            r#""node_modules/lib": {"resolved": "../lib", "link": true}, "../lib": {"version": "1.0.0"}"#,
            r#""node_modules/x": {"resolved": "file:x.tgz", "integrity": "sha512-x"}"#,
            r#""node_modules/taken-out": {"resolved": "../../etc", "link": true}"#,
            r#""node_modules/taken-out": {"resolved": "../../x", "link": true}, "../../x": {"version": "1.0.0"},
                "../../x/node_modules/y": {"resolved": "https://r.example/y.tgz"}"#,
            r#""node_modules/taken-out": {"resolved": "git+ssh://x.example/y", "dependencies": {"second": "1"}},
                "node_modules/second": {"resolved": "git+ssh://x.example/z"}"#,
            r#""": {"dependencies": {"taken-out": "git+ssh://x.example/y"}},
                "node_modules/taken-out": {"resolved": "git+ssh://x.example/y"}"#,
        ] {
            assert_eq!(check(&lock(packages)), Ok(()), "{packages}");
        }
    }

    #[test]
    fn broken_and_hostile_lock_files_are_refused_with_the_reason() {
        let conflict =
            lock("\n<<<<<<< ours\n\"a\": {},\n=======\n\"b\": {},\n>>>>>>> theirs\n\"c\": {}");
        let many: Vec<String> = (0..20_001)
            .map(|n| format!("\"node_modules/p{n}\": {{}}"))
            .collect();
        for (text, reason) in [
            (
                conflict.as_str(),
                "has the markers of a merge conflict: resolve it, or write it anew",
            ),
            ("{", "is not understood: EOF"),
            ("[]", "is not understood: invalid length"),
            (&"[".repeat(100_000), "is not understood: "),
            (
                &lock(&many.join(",")),
                "is not understood: more than 20000 packages",
            ),
            (
                r#"{"lockfileVersion": 1, "dependencies": {}}"#,
                "is not of version 2 or 3: write it anew",
            ),
            (
                &lock(r#""node_modules/../../x": {}"#),
                "has node_modules/../../x, which is the place of no package",
            ),
            (
                &lock(r#""node_modules/a/../../b": {}"#),
                "has node_modules/a/../../b, which",
            ),
            (
                &lock(r#""../../../opt/node_modules/x": {}"#),
                "has ../../../opt/node_modules/x, which",
            ),
            (
                &lock(r#""/etc/node_modules/x": {}"#),
                "has /etc/node_modules/x, which",
            ),
            (&lock(r#""../../x": {}"#), "has ../../x, which"),
            (
                &lock(
                    r#""node_modules/taken-out": {"resolved": "git://x.example/y"},
                        "node_modules/x": {"dependencies": {"taken-out": "1"}}"#,
                ),
                "takes the package taken-out from git://x.example/y: ",
            ),
            (
                &lock(r#""node_modules/x": {"resolved": "/lib", "link": true}"#),
                "takes the package x from /lib: ",
            ),
            (
                &lock(r#""node_modules/x": {"resolved": "file:/../lib"}"#),
                "takes the package x from file:/../lib: ",
            ),
            (
                &lock(r#""node_modules/x": {"resolved": "../../..", "link": true}"#),
                "takes the package x from ../../..: packages come from",
            ),
            (
                &lock(r#""node_modules/x": {"resolved": "file:/etc/passwd"}"#),
                "takes the package x from file:/etc/passwd: ",
            ),
            (
                &lock(r#""node_modules/x": {"resolved": "git+https://x.example/y.git#1"}"#),
                "takes the package x from git+https://x.example/y.git#1: ",
            ),
        ] {
            let error = check(text).expect_err("refused");
            assert!(error.starts_with(reason), "{error}");
            assert!(error.len() < 500, "{error}");
        }
    }
}

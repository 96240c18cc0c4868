//! Checks a lock file of npm: packages come from the package index or from the skill's own folder. Pure.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use skilld_common::excerpts::cut_chars;

use crate::parse::added_packages::is_node_name;
use crate::skill_path::resolve_in_plugin;

/// Names of lock files, in the order in which npm looks for them.
pub(super) const LOCK_NAMES: [&str; 2] = ["npm-shrinkwrap.json", "package-lock.json"];
/// Maximum number of packages of a lock file. Large ones of the public collections have 2,000.
const PACKAGES_MAX: usize = 20_000;
/// Maximum number of characters of a name or a place in a message.
const SHOWN_CHARS_MAX: usize = 100;

/// Places that the packages of a lock file may have.
pub(super) struct LockedPlaces<'a> {
    /// Folder of the lock file, relative to the skill's root.
    pub(super) folder: &'a str,
    /// Folders and archives of local packages, relative to the skill's root.
    pub(super) local: &'a BTreeSet<String>,
    /// Names of dependencies that were taken out of the package.json, so that npm ignores them here.
    pub(super) refused: &'a BTreeSet<String>,
}

/// Lock file, as far as it is checked.
#[derive(Deserialize)]
struct LockFile {
    packages: Option<LockedPackages>,
}

/// Packages by their place.
struct LockedPackages(Vec<(String, LockedPackage)>);

#[derive(Deserialize)]
struct LockedPackage {
    #[serde(default)]
    resolved: Option<String>,
    #[serde(default)]
    link: bool,
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
pub(super) fn check_lock(text: &str, places: &LockedPlaces<'_>) -> Result<(), String> {
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
    for (place, package) in &packages {
        if let Some(reason) = places.refuse_package(place, package) {
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
        let names = place
            .split("node_modules/")
            .skip(1)
            .map(|name| name.trim_end_matches('/'));
        let names: Vec<&str> = names.collect();
        if names.iter().any(|name| !is_node_name(name)) {
            return Some(format!(
                "has {}, which is the place of no package",
                shown(place)
            ));
        }
        let name = names.last().copied().unwrap_or(place);
        let resolved = package.resolved.as_deref()?;
        let is_fine = match (package.link, resolved.strip_prefix("file:")) {
            (true, _) => self.is_local(resolved),
            (false, Some(archive)) => self.is_local(archive),
            (false, None) => resolved.starts_with("https://") || resolved.starts_with("http://"),
        };
        let is_refused = self.refused.contains(name);
        (!is_fine && !is_refused).then(|| {
            format!(
                "takes the package {} from {}: packages come from the package index or from the skill's own folder",
                shown(name),
                shown(resolved)
            )
        })
    }

    fn is_local(&self, path: &str) -> bool {
        resolve_in_plugin(self.folder, path).is_ok_and(|path| self.local.contains(&path))
    }
}

fn shown(text: &str) -> String {
    cut_chars(text, SHOWN_CHARS_MAX).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        let local = BTreeSet::from(["lib".to_owned(), "scripts/x.tgz".to_owned()]);
        let refused = BTreeSet::from(["taken-out".to_owned()]);
        let places = LockedPlaces {
            folder: "scripts",
            local: &local,
            refused: &refused,
        };
        check_lock(text, &places)
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
            r#""node_modules/taken-out": {"resolved": "git+ssh://x.example/y"}"#,
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
            ("[]", "is not understood: invalid type"),
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

//! Where things are in the store. All of it is made of `a-z`, `0-9` and `/`, whatever the names are:
//!
//! ```text
//! index/<scope>/<name>/<version>    the record of one version: small, and written last
//! data/<xx>/<id>                    the bytes that a record points to
//! pending/<id>                      a save that is under way, or that was interrupted
//! ```
//!
//! `<scope>` is a sha256, so that scopes of any length are apart and none can name another one's keys. `<name>` is
//! base32 with an alphabet in ASCII order: the keys' order is the names' order, no two names differ in case only, and
//! nothing needs an escape. It is cut into components below the 255 bytes of a file name; all but the last one end with
//! `z`, which is not in the alphabet. `<version>` counts down, so that the newest one comes first.

use data_encoding::BASE32_DNSSEC as BASE32;
use object_store::path::{Path, PathPart};
use sha2::{Digest, Sha256};

use super::name::{Name, Scope, VERSION_MAX};

/// The only tenant of this version.
const TENANT: &str = "default";
/// Bytes of a name in one component: 200 characters.
const COMPONENT_BYTES: usize = 125;
/// Ends a component that another one follows.
const CONTINUED: char = 'z';
/// Digits of a version.
const VERSION_DIGITS: usize = 19;

/// Where the records of a scope are.
pub(super) fn scope(base: &Path, scope: &Scope) -> Path {
    let mut hash = Sha256::new();
    for part in [TENANT, scope.app(), scope.user(), scope.session()] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let key = BASE32.encode(&hash.finalize());
    join(&join(base, "index"), &key)
}

/// Where the records of an artifact are.
pub(super) fn name(base: &Path, of: &Scope, name: &Name) -> Path {
    // What belongs to a user and what belongs to the session "" differ in their names.
    let components = components(name);
    components
        .iter()
        .fold(scope(base, &of.of(name)), |key, part| join(&key, part))
}

/// The record of one version, beneath [`name`].
pub(super) fn version(name: &Path, version: u64) -> Path {
    join(name, &version_component(version))
}

/// Bytes of a save.
pub(super) fn data(base: &Path, id: &str) -> Path {
    // The end of the id is random: the files of a local store spread evenly.
    let shard = id.get(id.len().saturating_sub(2)..).unwrap_or_default();
    join(&join(&join(base, "data"), shard), id)
}

/// All saves that are under way.
pub(super) fn pending(base: &Path) -> Path {
    join(base, "pending")
}

/// Adds a component.
pub(super) fn join(path: &Path, part: &str) -> Path {
    path.clone().join(PathPart::from(part))
}

/// A name as components.
pub(super) fn components(name: &Name) -> Vec<String> {
    let chunks = name.as_str().as_bytes().chunks(COMPONENT_BYTES);
    let mut components: Vec<String> = chunks
        .map(|chunk| format!("{}{CONTINUED}", BASE32.encode(chunk)))
        .collect();
    if let Some(last) = components.last_mut() {
        last.pop();
    }
    components
}

/// The name back from its components; `None` if it is none of ours.
pub(super) fn read_name(components: &[String]) -> Option<Name> {
    let mut bytes = Vec::new();
    for component in components {
        let text = component.strip_suffix(CONTINUED).unwrap_or(component);
        bytes.extend(BASE32.decode(text.as_bytes()).ok()?);
    }
    Name::parse("name", &String::from_utf8(bytes).ok()?).ok()
}

/// Whether another component follows this one.
pub(super) fn is_continued(component: &str) -> bool {
    component.ends_with(CONTINUED)
}

/// The last component of a record's key.
pub(super) fn version_component(version: u64) -> String {
    let down = VERSION_MAX.saturating_sub(version);
    format!("{down:0VERSION_DIGITS$}")
}

/// The version back; `None` if it is none.
pub(super) fn read_version(component: &str) -> Option<u64> {
    let digits = component.len() == VERSION_DIGITS && component.bytes().all(|b| b.is_ascii_digit());
    let down: u64 = component.parse().ok().filter(|_| digits)?;
    VERSION_MAX.checked_sub(down)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Name {
        Name::parse("name", text).expect(text)
    }

    fn key(text: &str) -> String {
        components(&parsed(text)).join("/")
    }

    #[test]
    fn the_order_of_keys_is_the_order_of_names() {
        let filler = "m".repeat(COMPONENT_BYTES);
        let mut names: Vec<String> = [
            "a",
            "a b",
            "a-b",
            "a.b",
            "a/b",
            "a0",
            "aa",
            "A",
            "B",
            "b",
            "~",
            "user:a",
            "user:b",
            "é",
            "\u{1f980}",
            "0",
            "@",
            "a!",
            "Z",
            "z",
            "zz",
        ]
        .map(str::to_owned)
        .into();
        names.extend(["", "a", "b", "z", "/x"].map(|tail| format!("{filler}{tail}")));
        names.extend(["", "1"].map(|tail| format!("{filler}{filler}{tail}")));
        names.push("m".repeat(COMPONENT_BYTES - 1));
        names.push(format!("{}n", "m".repeat(COMPONENT_BYTES - 1)));
        let mut by_name = names.clone();
        by_name.sort();
        let mut by_key = names;
        // Records lie beneath the name: what decides is the whole key.
        by_key.sort_by_key(|name| format!("{}/0", key(name)));
        assert_eq!(by_key, by_name);
    }

    #[test]
    fn every_name_has_a_key_of_its_own_that_fits_and_reads_back() {
        let mut seen = std::collections::BTreeSet::new();
        let longest = "\u{1f980}".repeat(128);
        for name in [
            "a", "A", "user:a", "C:\\x", "%2e%2e", "a#1", "...", "CON", &longest,
        ] {
            let parts = components(&parsed(name));
            assert_eq!(read_name(&parts).expect(name).as_str(), name);
            for part in &parts {
                assert!(part.len() <= 201, "{part}");
                let harmless = |b: u8| b.is_ascii_digit() || b.is_ascii_lowercase();
                assert!(part.bytes().all(harmless), "{part}");
            }
            assert!(seen.insert(parts.join("/").to_lowercase()), "{name}");
        }
        let base = Path::from("p".repeat(64));
        let whole = version(&name(&base, &Scope::default(), &parsed(&longest)), 0);
        assert!(whole.as_ref().len() <= 1024, "{}", whole.as_ref().len());
    }

    #[test]
    fn versions_count_down() {
        assert!(version_component(1) < version_component(0));
        for number in [0, 1, 17, VERSION_MAX] {
            assert_eq!(read_version(&version_component(number)), Some(number));
        }
        for bad in [
            "",
            "1",
            "9223372036854775807#1",
            "9223372036854775808",
            "+223372036854775807",
        ] {
            assert_eq!(read_version(bad), None, "{bad}");
        }
    }

    #[test]
    fn scopes_are_apart_and_a_user_s_artifacts_are_in_no_session() {
        let base = Path::default();
        let scope_of = |app: &str, user: &str, session: &str| {
            Scope::parse("scope", app, user, session).expect("good")
        };
        let parts = ["", "a", "ab", "b", "a/b"];
        let mut seen = std::collections::BTreeSet::new();
        for app in parts {
            for user in parts {
                for session in parts {
                    let key = scope(&base, &scope_of(app, user, session));
                    assert!(seen.insert(key.to_string()), "{app} {user} {session}");
                }
            }
        }
        let of =
            |session: &str, text: &str| name(&base, &scope_of("a", "u", session), &parsed(text));
        assert_eq!(of("1", "user:x"), of("2", "user:x"));
        assert_ne!(of("1", "x"), of("2", "x"));
    }
}

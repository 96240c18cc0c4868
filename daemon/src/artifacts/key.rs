//! Keys of objects in the store. They consist of `a-z`, `0-9` and `/` for any artifact name:
//!
//! ```text
//! index/<scope>/<name>/<version>    record of one version: small, and written last
//! index/<scope>/<name>/0<version>   high-water mark: empty, for the highest number that retention removed
//! data/<xx>/<id>                    bytes that a record refers to
//! pending/<id>                      marker of a save that is running or was interrupted
//! ```
//!
//! `<scope>` is a SHA-256, so that scopes of any length differ and none can address another one's keys. `<name>` is
//! base32 with an alphabet in ASCII order: keys sort like names, no two differ only in case, and nothing needs an
//! escape. It is split into components of less than 255 bytes, the limit of a file name. All but the last end with `z`,
//! which is not in the alphabet. `<version>` counts down, so that the newest version comes first.

use data_encoding::BASE32_DNSSEC as BASE32;
use object_store::path::{Path, PathPart};
use sha2::{Digest, Sha256};

use super::name::{ArtifactName, ArtifactScope, VERSION_MAX};
use crate::skills::held_bytes;

/// Maximum number of name bytes in one component; base32 makes 200 characters of them.
const COMPONENT_BYTES: usize = 125;
/// Last character of a component that another one follows.
const CONTINUED: char = 'z';
/// Number of digits of a version in a key, with leading zeros: as many as [`VERSION_MAX`] has.
const VERSION_DIGITS: usize = 19;

/// Character before the version in the key of a high-water mark. Keys of these come before those of records, which begin
/// with `9`.
const HIGH_WATER: char = '0';

/// Returns the key prefix of all records.
pub(super) fn index_key(base: &Path) -> Path {
    join_key(base, "index")
}

/// Returns the key prefix of all records of a scope.
pub(super) fn scope_key(base: &Path, scope: &ArtifactScope) -> Path {
    let mut hash = Sha256::new();
    for part in [
        scope.tenant().as_str(),
        scope.app(),
        scope.user(),
        scope.session(),
    ] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let key = BASE32.encode(&hash.finalize());
    join_key(&index_key(base), &key)
}

/// Returns the key prefix of all records of an artifact.
pub(super) fn name_key(base: &Path, of: &ArtifactScope, name: &ArtifactName) -> Path {
    // A user's artifacts share their prefix with those of the session "": their names tell them apart.
    let components = name_components(name);
    components
        .iter()
        .fold(scope_key(base, &of.of(name)), |key, part| {
            join_key(&key, part)
        })
}

/// Returns the key of a version's record, beneath [`name_key`].
pub(super) fn version_key(name_key: &Path, version: u64) -> Path {
    join_key(name_key, &version_component(version))
}

/// Returns the key of the high-water mark that all numbers up to a version were given, beneath [`name_key`].
pub(super) fn high_water_key(name_key: &Path, version: u64) -> Path {
    join_key(
        name_key,
        &format!("{HIGH_WATER}{}", version_component(version)),
    )
}

/// Returns the key of the bytes of a save.
pub(super) fn data_key(base: &Path, id: &str) -> Path {
    // The end of the id is random, so the files of a local store spread evenly.
    let shard = id.get(id.len().saturating_sub(2)..).unwrap_or_default();
    join_key(&join_key(&join_key(base, "data"), shard), id)
}

/// Returns the key prefix of all markers.
pub(super) fn markers_key(base: &Path) -> Path {
    join_key(base, "pending")
}

/// Returns the bytes that count for a version of an artifact with contents of this size: those of its two files, and of
/// the directories that these need in a store of files.
pub(super) fn held_bytes(name: &ArtifactName, size: u64) -> u64 {
    let components = name.as_str().len().div_ceil(COMPONENT_BYTES);
    let files_and_scope = 3;
    held_bytes::held_bytes(size, files_and_scope + components as u64)
}

/// Appends a component to a key.
pub(super) fn join_key(path: &Path, part: &str) -> Path {
    path.clone().join(PathPart::from(part))
}

/// Encodes a name as key components.
pub(super) fn name_components(name: &ArtifactName) -> Vec<String> {
    let chunks = name.as_str().as_bytes().chunks(COMPONENT_BYTES);
    let mut components: Vec<String> = chunks
        .map(|chunk| format!("{}{CONTINUED}", BASE32.encode(chunk)))
        .collect();
    if let Some(last) = components.last_mut() {
        last.pop();
    }
    components
}

/// Decodes a name from its key components; `None` for foreign keys.
pub(super) fn read_name(components: &[String]) -> Option<ArtifactName> {
    let mut bytes = Vec::new();
    for component in components {
        let text = component.strip_suffix(CONTINUED).unwrap_or(component);
        bytes.extend(BASE32.decode(text.as_bytes()).ok()?);
    }
    ArtifactName::parse("name", &String::from_utf8(bytes).ok()?).ok()
}

/// Returns `true` if another component follows this one.
pub(super) fn is_continued(component: &str) -> bool {
    component.ends_with(CONTINUED)
}

/// Encodes a version as the last component of its record's key.
pub(super) fn version_component(version: u64) -> String {
    let down = VERSION_MAX.saturating_sub(version);
    format!("{down:0VERSION_DIGITS$}")
}

/// Decodes a version from its component; `None` for anything else.
pub(super) fn read_version(component: &str) -> Option<u64> {
    let digits = component.len() == VERSION_DIGITS && component.bytes().all(|b| b.is_ascii_digit());
    let down: u64 = component.parse().ok().filter(|_| digits)?;
    VERSION_MAX.checked_sub(down)
}

/// Decodes the version of a high-water mark from its component; `None` for anything else.
pub(super) fn read_high_water(component: &str) -> Option<u64> {
    read_version(component.strip_prefix(HIGH_WATER)?)
}

#[cfg(test)]
mod tests {
    use super::super::name::RequestedScope;
    use super::*;
    use crate::access::TenantName;

    fn parsed(text: &str) -> ArtifactName {
        ArtifactName::parse("name", text).expect(text)
    }

    fn key(text: &str) -> String {
        name_components(&parsed(text)).join("/")
    }

    #[test]
    fn keys_sort_like_names() {
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
        // Records lie beneath the name, so the whole key decides.
        by_key.sort_by_key(|name| format!("{}/0", key(name)));
        assert_eq!(by_key, by_name);
    }

    #[test]
    fn every_name_has_a_unique_key_that_fits_and_decodes() {
        let mut seen = std::collections::BTreeSet::new();
        let longest = "\u{1f980}".repeat(128);
        for name in [
            "a", "A", "user:a", "C:\\x", "%2e%2e", "a#1", "...", "CON", &longest,
        ] {
            let parts = name_components(&parsed(name));
            assert_eq!(read_name(&parts).expect(name).as_str(), name);
            for part in &parts {
                assert!(part.len() <= 201, "{part}");
                let is_harmless = |b: u8| b.is_ascii_digit() || b.is_ascii_lowercase();
                assert!(part.bytes().all(is_harmless), "{part}");
            }
            assert!(seen.insert(parts.join("/").to_lowercase()), "{name}");
        }
        let base = Path::from("p".repeat(64));
        let whole = version_key(
            &name_key(&base, &ArtifactScope::default(), &parsed(&longest)),
            0,
        );
        assert!(whole.as_ref().len() <= 1024, "{}", whole.as_ref().len());
    }

    #[test]
    fn a_version_counts_every_file_and_directory_that_it_needs() {
        let long = "x".repeat(512);
        let texts = ["a", &long[..125], &long[..126], long.as_str()];
        for (text, directories) in texts.into_iter().zip([2_usize, 2, 3, 6]) {
            let name = parsed(text);
            let scope = ArtifactScope::default();
            let key = version_key(&name_key(&Path::default(), &scope, &name), 0);
            // Beneath `index/`, and without the record.
            assert_eq!(key.parts().count() - 2, directories, "{text}");
            let held = held_bytes(&name, 7);
            assert_eq!(held, 7 + (2 + directories as u64) * 4096, "{text}");
        }
    }

    #[test]
    fn versions_count_down() {
        assert!(version_component(1) < version_component(0));
        for number in [0, 1, 17, VERSION_MAX] {
            assert_eq!(read_version(&version_component(number)), Some(number));
            let mark = high_water_key(&Path::default(), number);
            assert_eq!(read_high_water(mark.as_ref()), Some(number));
            assert_eq!(read_version(mark.as_ref()), None);
            assert!(mark < version_key(&Path::default(), 1 << 50));
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
    fn scopes_have_different_keys_and_user_artifacts_no_session() {
        let base = Path::default();
        let scope_of = |app: &str, user: &str, session: &str| {
            RequestedScope::parse("scope", app, user, session)
                .expect("good")
                .of_tenant(&TenantName::default())
        };
        let parts = ["", "a", "ab", "b", "a/b"];
        let mut seen = std::collections::BTreeSet::new();
        for app in parts {
            for user in parts {
                for session in parts {
                    let key = scope_key(&base, &scope_of(app, user, session));
                    assert!(seen.insert(key.to_string()), "{app} {user} {session}");
                }
            }
        }
        let of = |session: &str, text: &str| {
            name_key(&base, &scope_of("a", "u", session), &parsed(text))
        };
        assert_eq!(of("1", "user:x"), of("2", "user:x"));
        assert_ne!(of("1", "x"), of("2", "x"));
    }
}

//! Plans the destinations of inputs: safe names and paths that do not collide. Pure.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use skilld_common::names::base_name;

use super::{InputDestination, InputSource, InputSpec, scope_parts};
use crate::artifacts::{ArtifactRef, ArtifactScope};
use crate::error::{Error, Result};
use crate::workspace::record;
use crate::workspace_paths;

/// Folder of inputs without a requested destination.
pub const DEFAULT_FOLDER: &str = "work/inputs";
/// Name of an input whose own name has no usable character.
const NAMELESS: &str = "upload";
/// Maximum length of a file name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Maximum length of an extension that a shortened name keeps, in bytes.
const EXTENSION_BYTES_MAX: usize = 32;

/// Planned destination of one input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedDestination {
    /// Path relative to the workspace.
    pub(super) path: String,
    /// Record of the same source at this path; `None` if it was not staged here.
    pub(super) before: Option<record::InputRecord>,
    /// Version of the artifact that the workspace had before, if the client pinned it.
    pub(super) pinned: Option<u64>,
}

/// Plans the destinations of a request's inputs.
///
/// # Errors
/// [`Error::Invalid`] when two inputs request the same path, [`Error::ReadOnly`] when one requests a read-only path.
pub(super) fn plan_destinations(
    inputs: &[InputSpec],
    recorded: &[record::InputRecord],
    scope: &ArtifactScope,
) -> Result<Vec<PlannedDestination>> {
    let mut wanted: HashMap<String, &str> = HashMap::new();
    for input in inputs {
        let Some(path) = explicit_path(input) else {
            continue;
        };
        // Only folder and name together may name a read-only path.
        workspace_paths::check_writable(&path)?;
        if let Some(other) = wanted.insert(path.clone(), &input.field) {
            let problem = format!("{path} is where {other} goes too");
            return Err(Error::invalid(format!("{}.to", input.field), problem));
        }
    }
    // Results may be copied to a file system that does not distinguish `A` from `a`.
    let mut taken: HashSet<String> = wanted.keys().map(|path| path.to_lowercase()).collect();
    let mut targets = Vec::with_capacity(inputs.len());
    for input in inputs {
        let digest = OnceCell::new();
        let same = recorded.iter().rev().find(|record| {
            is_source(input, record, scope, &digest)
                && match explicit_path(input) {
                    Some(path) => record.path == path,
                    // A path that an earlier request named explicitly does not bind this one.
                    None => is_default_path(&record.path, &input.name),
                }
        });
        let path = match (explicit_path(input), same) {
            (Some(path), _) => path,
            (None, Some(record)) if taken.insert(record.path.to_lowercase()) => record.path.clone(),
            (None, _) => free_default_path(&input.name, &mut taken, recorded),
        };
        targets.push(PlannedDestination {
            before: same.filter(|record| record.path == path).cloned(),
            pinned: input
                .pin
                .then(|| pinned_version(input, recorded, scope))
                .flatten(),
            path,
        });
    }
    Ok(targets)
}

/// Returns the path that a request names explicitly.
fn explicit_path(input: &InputSpec) -> Option<String> {
    match &input.to {
        InputDestination::Default => None,
        InputDestination::Path(path) => Some(path.clone()),
        InputDestination::Folder(folder) if folder.is_empty() => Some(input.name.clone()),
        InputDestination::Folder(folder) => Some(format!("{folder}/{}", input.name)),
    }
}

/// Returns `true` if a record has the same source and name: the same reference, or the same bytes. `digest` caches the
/// SHA-256 of the bytes.
fn is_source(
    input: &InputSpec,
    record: &record::InputRecord,
    scope: &ArtifactScope,
    digest: &OnceCell<String>,
) -> bool {
    if record.name != input.name {
        return false;
    }
    match &input.source {
        InputSource::Data(data) => {
            record.from.is_empty()
                && record.size == data.len() as u64
                && record.sha256 == *digest.get_or_init(|| sha256_hex(data))
        }
        InputSource::Artifact(artifact) => {
            record.from == input.from && record.scope == scope_parts(scope, artifact)
        }
        // URLs of different files may differ in their queries only.
        InputSource::Url(_) => {
            record.url_sha256 == *digest.get_or_init(|| url_sha256(&input.source))
        }
        // The record does not list an archive's files, so a repeated archive is unpacked again.
        InputSource::Archive(_) => false,
        InputSource::Host(_) | InputSource::Workspace(_) | InputSource::Skill { .. } => {
            record.from == input.from
        }
    }
}

/// Returns the version of an artifact that the workspace had most recently.
fn pinned_version(
    input: &InputSpec,
    recorded: &[record::InputRecord],
    scope: &ArtifactScope,
) -> Option<u64> {
    let InputSource::Artifact(wanted) = &input.source else {
        return None;
    };
    let scope = scope_parts(scope, wanted);
    let same = recorded.iter().rev().find(|record| {
        record.version.is_some()
            && record.scope == scope
            && ArtifactRef::parse("from", &record.from).is_ok_and(|other| other.name == wanted.name)
    });
    same.and_then(|record| record.version)
}

/// Returns a path in the default folder that no other input has.
fn free_default_path(
    name: &str,
    taken: &mut HashSet<String>,
    recorded: &[record::InputRecord],
) -> String {
    let used: HashSet<String> = recorded
        .iter()
        .map(|record| record.path.to_lowercase())
        .collect();
    for number in 1_u64.. {
        let path = default_path(name, number);
        let key = path.to_lowercase();
        if !used.contains(&key) && taken.insert(key) {
            return path;
        }
    }
    format!("{DEFAULT_FOLDER}/{name}")
}

/// Returns the path in the default folder for the `number`-th input of a name: `a.csv`, `a_2.csv`, `a_3.csv`.
fn default_path(name: &str, number: u64) -> String {
    let (stem, extension) = split_extension(name);
    let number = match number {
        1 => String::new(),
        _ => format!("_{number}"),
    };
    let room = NAME_BYTES_MAX.saturating_sub(number.len() + extension.len());
    let kept = stem
        .get(..stem.floor_char_boundary(room))
        .unwrap_or_default();
    format!("{DEFAULT_FOLDER}/{kept}{number}{extension}")
}

/// Returns `true` if `path` is one that [`default_path`] makes of `name`.
fn is_default_path(path: &str, name: &str) -> bool {
    let file = base_name(path);
    let (stem, _) = split_extension(file);
    let number = stem.rsplit_once('_').and_then(|(_, n)| n.parse().ok());
    path == default_path(name, 1) || number.is_some_and(|n| path == default_path(name, n))
}

/// Splits a name before its extension, which is empty if it has none or a very long one.
fn split_extension(name: &str) -> (&str, &str) {
    match name.rfind('.') {
        Some(dot) if dot > 0 && name.len() - dot <= EXTENSION_BYTES_MAX => name.split_at(dot),
        _ => (name, ""),
    }
}

/// Sanitises a file name: returns its last component without control and invisible characters. The result is never
/// empty and at most 255 bytes long; its extension is kept.
pub fn safe_name(name: &str) -> String {
    let unix_name = name.replace('\\', "/");
    let last = unix_name.trim().trim_end_matches('/').rsplit('/').next();
    let visible: String = last
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control() && !is_invisible(*c))
        .collect();
    let kept = visible.trim();
    if matches!(kept, "" | "." | "..") {
        return NAMELESS.to_owned();
    }
    if kept.len() <= NAME_BYTES_MAX {
        return kept.to_owned();
    }
    let dot = kept
        .rfind('.')
        .filter(|dot| kept.len() - dot <= EXTENSION_BYTES_MAX);
    let (stem, extension) = kept.split_at(dot.unwrap_or(kept.len()));
    let room = stem.floor_char_boundary(NAME_BYTES_MAX - extension.len());
    format!("{}{extension}", stem.get(..room).unwrap_or_default())
}

/// Returns `true` for zero-width characters and those that change the direction of text.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Returns the SHA-256 of a whole URL, by which URLs are compared; empty for other sources.
pub(super) fn url_sha256(source: &InputSource) -> String {
    match source {
        InputSource::Url(url) => sha256_hex(url.url().as_str().as_bytes()),
        InputSource::Data(_)
        | InputSource::Archive(_)
        | InputSource::Artifact(_)
        | InputSource::Host(_)
        | InputSource::Workspace(_)
        | InputSource::Skill { .. } => String::new(),
    }
}

/// Returns the SHA-256 of bytes as 64 hex digits.
pub(super) fn sha256_hex(data: &[u8]) -> String {
    #[cfg(test)]
    tests::HASHED.with(|hashed| hashed.set(hashed.get() + 1));
    HEXLOWER.encode(&Sha256::digest(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        /// Number of digests that this test has computed.
        pub(super) static HASHED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    fn data(name: &str, bytes: &'static [u8]) -> InputSpec {
        InputSpec {
            field: format!("inputs[{name}]"),
            from: String::new(),
            source: InputSource::Data(bytes.into()),
            to: InputDestination::Default,
            name: name.to_owned(),
            link: false,
            pin: false,
            sha256: String::new(),
        }
    }

    fn host(from: &str, to: InputDestination) -> InputSpec {
        InputSpec {
            from: from.to_owned(),
            source: InputSource::Host(from.trim_start_matches("host://").to_owned()),
            to,
            ..data(&safe_name(from), b"")
        }
    }

    fn record(path: &str, from: &str, bytes: &[u8]) -> record::InputRecord {
        record::InputRecord {
            path: path.to_owned(),
            from: from.to_owned(),
            name: safe_name(path),
            sha256: sha256_hex(bytes),
            size: bytes.len() as u64,
            ..record::InputRecord::default()
        }
    }

    fn paths(inputs: &[InputSpec], recorded: &[record::InputRecord]) -> Vec<String> {
        let targets =
            plan_destinations(inputs, recorded, &ArtifactScope::default()).expect("a plan");
        targets.into_iter().map(|target| target.path).collect()
    }

    #[test]
    fn names_are_sanitised() {
        for (given, expected) in [
            ("a.csv", "a.csv"),
            ("/srv/files/a.csv", "a.csv"),
            ("C:\\files\\a b.csv", "a b.csv"),
            ("dir/", "dir"),
            ("", "upload"),
            ("  ", "upload"),
            ("..", "upload"),
            ("a/..", "upload"),
            ("\u{202e}fdp.exe", "fdp.exe"),
            ("a\nb\u{0}c.txt", "abc.txt"),
            (".bashrc", ".bashrc"),
            ("héllo 世界.txt", "héllo 世界.txt"),
        ] {
            assert_eq!(safe_name(given), expected, "{given:?}");
        }
        let long = safe_name(&format!("{}.csv", "é".repeat(300)));
        assert!(long.len() <= 255 && long.ends_with("é.csv"), "{long}");
    }

    #[test]
    fn taken_names_get_a_number_before_the_extension() {
        let inputs = [
            data("a.csv", b"1"),
            data("A.csv", b"2"),
            data("a.csv", b"3"),
        ];
        assert_eq!(
            paths(&inputs, &[]),
            [
                "work/inputs/a.csv",
                "work/inputs/A_2.csv",
                "work/inputs/a_3.csv"
            ]
        );
        let recorded = [record("work/inputs/a.csv", "", b"other")];
        assert_eq!(
            paths(&inputs[..1], &recorded),
            ["work/inputs/a_2.csv"],
            "other bytes of that name are there"
        );
        let explicit = host(
            "host:///x/b",
            InputDestination::Path("work/inputs/a.csv".into()),
        );
        assert_eq!(
            paths(&[data("a.csv", b"1"), explicit], &[]),
            ["work/inputs/a_2.csv", "work/inputs/a.csv"],
            "a place that is asked for is kept free, whatever the order"
        );
        let long = "x".repeat(255);
        let twice = paths(&[data(&long, b"1"), data(&long, b"2")], &[]);
        assert!(twice[1].ends_with("x_2") && twice[1].len() == twice[0].len());
    }

    #[test]
    fn same_source_keeps_its_path() {
        let records = [
            record("work/inputs/a.csv", "", b"1"),
            record("work/inputs/a_2.csv", "", b"2"),
            record("work/inputs/data.bin", "host:///x/data.bin", b"x"),
        ];
        let recorded: Vec<_> = records
            .into_iter()
            .zip(["a.csv", "a.csv", "data.bin"])
            .map(|(record, name)| record::InputRecord {
                name: name.to_owned(),
                ..record
            })
            .collect();
        let inputs = [
            data("a.csv", b"2"),
            data("b.csv", b"2"),
            host("host:///x/data.bin", InputDestination::Default),
            host("host:///y/data.bin", InputDestination::Default),
        ];
        assert_eq!(
            paths(&inputs, &recorded),
            [
                "work/inputs/a_2.csv",
                "work/inputs/b.csv",
                "work/inputs/data.bin",
                "work/inputs/data_2.bin"
            ]
        );
    }

    #[test]
    fn input_without_destination_goes_to_the_default_folder() {
        let named = |path: &str| record::InputRecord {
            name: "a.csv".to_owned(),
            ..record(path, "host:///x/a.csv", b"x")
        };
        let input = [host("host:///x/a.csv", InputDestination::Default)];
        let explicit = [
            named("work/inputs/renamed.csv"),
            named("out/copy.csv"),
            named("work/a.csv"),
        ];
        assert_eq!(paths(&input, &explicit), ["work/inputs/a.csv"]);
        // Where it was put without being asked to, it stays.
        let both = [named("work/inputs/a_2.csv"), named("out/copy.csv")];
        assert_eq!(paths(&input, &both), ["work/inputs/a_2.csv"]);
        let targets = plan_destinations(&input, &both, &ArtifactScope::default()).expect("a plan");
        let before = targets[0].before.as_ref().expect("on record");
        assert_eq!(before.path, "work/inputs/a_2.csv");
    }

    #[test]
    fn urls_that_differ_in_their_query_are_different_sources() {
        let input = |url: &str| InputSpec {
            from: "https://files.invalid/get".to_owned(),
            source: InputSource::Url(url.parse().expect("a URL")),
            ..data("get", b"")
        };
        let first = input("https://files.invalid/get?id=1");
        let recorded = [record::InputRecord {
            name: "get".to_owned(),
            url_sha256: url_sha256(&first.source),
            ..record("work/inputs/get", &first.from, b"1")
        }];
        let second = input("https://files.invalid/get?id=2");
        assert_eq!(
            paths(&[second, first], &recorded),
            ["work/inputs/get_2", "work/inputs/get"]
        );
    }

    #[test]
    fn bytes_are_hashed_once_for_any_number_of_records() {
        let other = |number: u32| record(&format!("work/{number}/a.csv"), "", b"22");
        let recorded: Vec<_> = (0..100).map(other).collect();
        HASHED.set(0);
        paths(&[data("a.csv", b"11")], &recorded);
        assert_eq!(HASHED.get(), 1);
        paths(&[data("b.csv", b"11"), data("a.csv", b"111")], &recorded);
        assert_eq!(HASHED.get(), 1, "name and size tell enough");
    }

    #[test]
    fn numbered_names_respect_the_length_limit() {
        let long = format!("a.{}", "x".repeat(253));
        for path in paths(&[data(&long, b"1"), data(&long, b"2")], &[]) {
            let name = path.strip_prefix("work/inputs/").expect("beneath");
            assert!(name.len() <= NAME_BYTES_MAX, "{} bytes", name.len());
        }
    }

    #[test]
    fn no_input_goes_to_the_daemons_metadata() {
        for to in [
            InputDestination::Folder(String::new()),
            InputDestination::Path("metadata.json".into()),
        ] {
            let input = host("host:///x/metadata.json", to);
            let error =
                plan_destinations(&[input], &[], &ArtifactScope::default()).expect_err("refused");
            assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
        }
        let input = host("host:///x/metadata.json", InputDestination::Default);
        assert_eq!(paths(&[input], &[]), ["work/inputs/metadata.json"]);
    }

    #[test]
    fn two_inputs_with_one_destination_are_refused() {
        let inputs = [
            host("host:///x/a", InputDestination::Path("work/a".into())),
            host("host:///y/a", InputDestination::Folder("work".into())),
        ];
        let error = plan_destinations(&inputs, &[], &ArtifactScope::default())
            .expect_err("both go to work/a");
        assert!(error.to_string().contains("work/a is where"), "{error}");
    }
}

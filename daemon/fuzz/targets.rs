//! Fuzz targets: functions that pass hostile bytes to the daemon's parsers of skills and requests, and check the
//! invariants of the result. Not part of a shipped daemon.
//!
//! The tests below run the targets over the corpus and over mutations of it. A target is one function here, one file in
//! `fuzz_targets/`, one folder in `corpus/`, and one entry in `Cargo.toml`, the Makefile and `TARGETS`.

use crate::skills::document::{self, Document};
use crate::skills::{ValidationProfile, is_name};

mod archive;
mod paths;

pub use archive::archive;
pub use paths::paths;

/// Folder names, of which the first byte of the data selects one.
const FOLDER_NAMES: [&str; 5] = ["skill", "My Skill", "", "..", "é"];
/// SKILL.md that accompanies a card if the first byte of the data is odd.
const SAMPLE_SKILL_MD: &[u8] = b"---\nname: skill\ndescription: Does it.\n---\nBody.\n";

/// Parses a SKILL.md and checks its invariants. The first byte selects the folder's name.
pub fn front_matter(data: &[u8]) {
    if let Some((first, skill_md)) = data.split_first() {
        let dir = FOLDER_NAMES
            .get(usize::from(*first) % FOLDER_NAMES.len())
            .copied();
        check_document(Some(skill_md), None, dir.unwrap_or_default());
    }
}

/// Parses a skill card and checks its invariants. An odd first byte adds a SKILL.md.
pub fn card(data: &[u8]) {
    if let Some((first, card)) = data.split_first() {
        let skill_md = (first & 1 == 1).then_some(SAMPLE_SKILL_MD);
        check_document(skill_md, Some(card), "skill");
    }
}

/// Parses the documents of a skill folder and checks their invariants.
pub fn check_document(skill_md: Option<&[u8]>, card: Option<&[u8]>, dir: &str) -> Document {
    let document = document::parse_documents(skill_md, card, dir);
    let front = &document.front_matter;
    let refused = document.refusal(ValidationProfile::Lenient).is_some();
    assert!(
        is_name(&front.name) || front.name.is_empty() && refused,
        "{:?} became a name",
        front.name
    );
    assert!(
        refused || !front.description.is_empty(),
        "a skill says nothing of itself"
    );
    assert!(
        !refused || document.refusal(ValidationProfile::Spec).is_some(),
        "the specification is laxer"
    );
    // U+FFFD has three bytes and replaces one invalid byte, or half of a UTF-16 unit.
    let read = skill_md.map_or(0, <[u8]>::len);
    assert!(document.body.len() <= 3 * read, "a body grew");
    assert!(
        front.description.chars().count() <= 4096,
        "a description has no bound"
    );
    for text in [&front.name, &front.display_name, &front.description] {
        assert!(is_safe_to_print(text), "{text:?} hides something");
    }
    for profile in [ValidationProfile::Lenient, ValidationProfile::Spec] {
        let problems = document.problems(profile);
        assert!(problems.len() <= 128, "{} problems", problems.len());
        for problem in problems {
            assert!(
                problem.message.len() <= 1024 && is_safe_to_print(&problem.message),
                "{problem:?}"
            );
        }
    }
    if let Some(card) = &front.card {
        let escapes = |file: &String| {
            file.starts_with('/') || file.split('/').any(|name| matches!(name, "" | "." | ".."))
        };
        assert!(
            !card.files.iter().flatten().any(escapes),
            "{:?} leads out",
            card.files
        );
    }
    document
}

/// Returns `true` if text has no control characters and no characters that change the text direction.
fn is_safe_to_print(text: &str) -> bool {
    !text.contains(|c: char| {
        c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    /// Fuzz target that panics if an invariant is violated.
    type FuzzTarget = fn(&[u8]);

    const TARGETS: [(&str, FuzzTarget); 4] = [
        ("front_matter", front_matter),
        ("card", card),
        ("archive", archive),
        ("paths", paths),
    ];

    /// Reads the corpus of a target: former failures, and one example of each kind.
    fn read_corpus(target: &str) -> Vec<Vec<u8>> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/corpus")
            .join(target);
        let entries = std::fs::read_dir(&directory).expect("a corpus");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut paths: Vec<_> = paths.collect();
        paths.sort();
        let files = paths
            .iter()
            .map(|path| std::fs::read(path).expect("a file"));
        files.collect()
    }

    #[test]
    fn every_corpus_file_passes_its_target() {
        for (name, target) in TARGETS {
            let files = read_corpus(name);
            assert!(!files.is_empty(), "{name} has no corpus");
            for file in files {
                target(&file);
            }
        }
    }

    #[test]
    fn mutated_corpus_files_pass_their_target() {
        let changes = proptest::collection::vec((any::<Index>(), any::<u8>()), 0..6);
        let pick = (
            any::<Index>(),
            any::<Index>(),
            any::<Index>(),
            any::<Index>(),
            changes,
        );
        for (name, target) in TARGETS {
            let files = read_corpus(name);
            let config = ProptestConfig {
                cases: 2_000,
                failure_persistence: None,
                ..ProptestConfig::default()
            };
            let mut runner = proptest::test_runner::TestRunner::new(config);
            let ran = runner.run(&pick, |(one, other, cut, from, changes)| {
                let (one, other) = (one.get(&files), other.get(&files));
                let mut data = one[..cut.index(one.len() + 1)].to_vec();
                data.extend(&other[from.index(other.len() + 1)..]);
                for (at, byte) in changes
                    .iter()
                    .filter(|_| !data.is_empty())
                    .cloned()
                    .collect::<Vec<_>>()
                {
                    let at = at.index(data.len());
                    data[at] = byte;
                }
                target(&data);
                Ok(())
            });
            ran.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    /// Generates documents of typical front matter lines in random order.
    fn document_lines() -> impl Strategy<Value = String> {
        let line = prop_oneof![
            Just("---"),
            Just("..."),
            Just("name: a"),
            Just("description: b: c"),
            Just("description: >-"),
            Just("  text"),
            Just("allowed-tools: [Read"),
            Just("tags: [x, y]"),
            Just("metadata:"),
            Just("  requires: {bins: [x]}"),
            Just(""),
            Just("# Title"),
            Just("Tools:"),
            Just("- x"),
            Just("x: &a [*a]"),
            Just("\u{feff}"),
            Just("```"),
            Just("<!--"),
            Just("-->"),
            Just("\"k\": v"),
            Just("{"),
            Just("? x"),
            Just("version: 1.10"),
            Just("\tx"),
            Just("<<: *a"),
        ];
        proptest::collection::vec(line, 0..24).prop_map(|lines| lines.join("\n"))
    }

    proptest! {
        #[test]
        fn documents_of_any_bytes_satisfy_the_invariants(bytes in proptest::collection::vec(any::<u8>(), 0..300), dir in "\\PC{0,12}") {
            check_document(Some(&bytes), None, &dir);
            check_document(None, Some(&bytes), &dir);
        }

        #[test]
        fn documents_of_any_lines_satisfy_the_invariants(text in document_lines(), card in document_lines()) {
            check_document(Some(text.as_bytes()), None, "skill");
            check_document(Some(format!("---\n{text}").as_bytes()), None, "skill");
            check_document(Some(text.as_bytes()), Some(card.as_bytes()), "skill");
        }

        #[test]
        fn any_yaml_satisfies_the_invariants(yaml in "[a-c:&*|>'\"\\[\\]{}!#%@` \\n\\t.?,-]{0,120}") {
            let text = format!("---\nname: a\ndescription: b\n{yaml}\n---\n");
            check_document(Some(text.as_bytes()), None, "skill");
        }
    }

    #[test]
    fn checks_reject_unsafe_text_and_accept_a_valid_skill() {
        for text in ["a\u{7}b", "a\u{202e}b", "a\nb"] {
            assert!(!is_safe_to_print(text));
        }
        let read = check_document(Some(SAMPLE_SKILL_MD), None, "skill");
        assert_eq!(
            (read.front_matter.name.as_str(), read.body.as_str()),
            ("skill", "Body.\n")
        );
    }
}

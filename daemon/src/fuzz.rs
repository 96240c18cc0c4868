//! What the fuzz targets in `fuzz/` call: hostile bytes for what the daemon reads of skills and of requests, and what must
//! hold whatever they are. It is not in the daemon that is shipped. The tests below do the same with the corpus, and with
//! its files cut and changed. A target is one function here, one file in `fuzz/fuzz_targets/`, one folder in
//! `fuzz/corpus/`, one entry in `fuzz/Cargo.toml`, in the Makefile and in `TARGETS` below.

use crate::skills::document::{self, Document};
use crate::skills::{Profile, is_name};

mod archive;
mod paths;

pub use archive::archive;
pub use paths::paths;

/// Names of folders; the first byte of the data chooses one.
const DIRS: [&str; 5] = ["skill", "My Skill", "", "..", "é"];
/// Beside a card, if its first byte says so.
const SKILL_MD: &[u8] = b"---\nname: skill\ndescription: Does it.\n---\nBody.\n";

/// A SKILL.md after a byte that chooses its folder's name.
pub fn front_matter(data: &[u8]) {
    if let Some((first, skill_md)) = data.split_first() {
        let dir = DIRS.get(usize::from(*first) % DIRS.len()).copied();
        document(Some(skill_md), None, dir.unwrap_or_default());
    }
}

/// A card after a byte that says whether a SKILL.md is beside it.
pub fn card(data: &[u8]) {
    if let Some((first, card)) = data.split_first() {
        let skill_md = (first & 1 == 1).then_some(SKILL_MD);
        document(skill_md, Some(card), "skill");
    }
}

/// Reads a folder's documents, and checks what holds for all of them.
pub fn document(skill_md: Option<&[u8]>, card: Option<&[u8]>, dir: &str) -> Document {
    let document = document::read(skill_md, card, dir);
    let front = &document.front_matter;
    let refused = document.refusal(Profile::Lenient).is_some();
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
        !refused || document.refusal(Profile::Spec).is_some(),
        "the specification is laxer"
    );
    // U+FFFD has three bytes and stands for one, and for half of a unit of UTF-16.
    let read = skill_md.map_or(0, <[u8]>::len);
    assert!(document.body.len() <= 3 * read, "a body grew");
    assert!(
        front.description.chars().count() <= 4096,
        "a description has no bound"
    );
    for text in [&front.name, &front.display_name, &front.description] {
        assert!(is_harmless(text), "{text:?} hides something");
    }
    for profile in [Profile::Lenient, Profile::Spec] {
        let problems = document.problems(profile);
        assert!(problems.len() <= 128, "{} problems", problems.len());
        for problem in problems {
            assert!(
                problem.message.len() <= 1024 && is_harmless(&problem.message),
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

/// Nothing that a terminal would obey, and no text turned around.
fn is_harmless(text: &str) -> bool {
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

    type Target = fn(&[u8]);

    const TARGETS: [(&str, Target); 4] = [
        ("front_matter", front_matter),
        ("card", card),
        ("archive", archive),
        ("paths", paths),
    ];

    /// The corpus of a target: what once failed, and one of each kind.
    fn corpus(target: &str) -> Vec<Vec<u8>> {
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
    fn the_corpus_still_passes() {
        for (name, target) in TARGETS {
            let files = corpus(name);
            assert!(!files.is_empty(), "{name} has no corpus");
            for file in files {
                target(&file);
            }
        }
    }

    #[test]
    fn the_corpus_passes_cut_and_changed_and_mixed() {
        let changes = proptest::collection::vec((any::<Index>(), any::<u8>()), 0..6);
        let pick = (
            any::<Index>(),
            any::<Index>(),
            any::<Index>(),
            any::<Index>(),
            changes,
        );
        for (name, target) in TARGETS {
            let files = corpus(name);
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

    /// Documents for the properties: lines that front matter is made of, in any order.
    fn lines() -> impl Strategy<Value = String> {
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
        fn any_bytes_are_read_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..300), dir in "\\PC{0,12}") {
            document(Some(&bytes), None, &dir);
            document(None, Some(&bytes), &dir);
        }

        #[test]
        fn any_lines_are_read_within_bounds(text in lines(), card in lines()) {
            document(Some(text.as_bytes()), None, "skill");
            document(Some(format!("---\n{text}").as_bytes()), None, "skill");
            document(Some(text.as_bytes()), Some(card.as_bytes()), "skill");
        }

        #[test]
        fn any_yaml_is_read_within_bounds(yaml in "[a-c:&*|>'\"\\[\\]{}!#%@` \\n\\t.?,-]{0,120}") {
            let text = format!("---\nname: a\ndescription: b\n{yaml}\n---\n");
            document(Some(text.as_bytes()), None, "skill");
        }
    }

    #[test]
    fn the_checks_would_fail() {
        for text in ["a\u{7}b", "a\u{202e}b", "a\nb"] {
            assert!(!is_harmless(text));
        }
        let read = document(Some(SKILL_MD), None, "skill");
        assert_eq!(
            (read.front_matter.name.as_str(), read.body.as_str()),
            ("skill", "Body.\n")
        );
    }
}

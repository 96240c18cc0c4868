//! Compares every name of the API with the words that a language, its standard headers or its generators keep for
//! themselves. The words are in `reserved/`, one file for each language.

use std::collections::BTreeSet;

use crate::api_names::{ApiName, NameForm, NameKind, list_names, public_files};
use crate::samples;

/// List of a language's words.
struct WordList {
    /// Name of the language.
    language: &'static str,
    /// Text of the file. A line `[field oneof: camel]` says which kinds of names the words below concern, and in which
    /// form; lines that begin with `#` are comments.
    text: &'static str,
}

macro_rules! word_lists {
    ($($language:literal),*) => {
        &[$(WordList {
            language: $language,
            text: include_str!(concat!("reserved/", $language, ".txt")),
        }),*]
    };
}

const WORD_LISTS: &[WordList] = word_lists![
    "cpp",
    "macros",
    "java",
    "kotlin",
    "csharp",
    "go",
    "python",
    "ruby",
    "php",
    "swift",
    "javascript",
    "rust",
    "objc"
];

/// Name that a list has and that the API keeps.
struct Exception {
    /// Name of the language.
    language: &'static str,
    /// Name as the .proto files have it.
    name: &'static str,
    /// Reason for which it does no harm.
    #[expect(dead_code, reason = "for readers")]
    reason: &'static str,
}

const EXCEPTIONS: &[Exception] = &[
    Exception {
        language: "macros",
        name: "timeout",
        reason: "curses alone has it, and leaves it out with NCURSES_NOMACROS; every API calls a time limit so",
    },
    Exception {
        language: "objc",
        name: "data",
        reason: "protoc writes data_p",
    },
    Exception {
        language: "objc",
        name: "description",
        reason: "protoc writes description_p; a standard name (AIP-148)",
    },
    Exception {
        language: "objc",
        name: "id",
        reason: "protoc writes id_p",
    },
    Exception {
        language: "swift",
        name: "description",
        reason: "SwiftProtobuf writes description_p; a standard name (AIP-148)",
    },
    Exception {
        language: "swift",
        name: "ERROR_REASON_INTERNAL",
        reason: "SwiftProtobuf writes it in backticks, and its users `.internal`",
    },
];

/// Words of one section of a list.
struct Section<'a> {
    kinds: Vec<NameKind>,
    form: NameForm,
    words: BTreeSet<&'a str>,
}

/// Name that is reserved.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Collision {
    language: &'static str,
    name: String,
    place: String,
    /// Name as the generator writes it.
    written: String,
}

fn parse_sections(text: &str) -> Vec<Section<'_>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let head = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        if let Some((kinds, form)) = head.and_then(|head| head.split_once(": ")) {
            sections.push(Section {
                kinds: kinds.split(' ').map(parse_kind).collect(),
                form: parse_form(form),
                words: BTreeSet::new(),
            });
        } else if let Some(section) = sections.last_mut() {
            section.words.extend(line.split_whitespace());
        } else {
            assert!(line.is_empty(), "a word before the first section: {line}");
        }
    }
    sections
}

fn parse_kind(text: &str) -> NameKind {
    match text {
        "field" => NameKind::Field,
        "oneof" => NameKind::Oneof,
        "type" => NameKind::Type,
        "value" => NameKind::Value,
        "rpc" => NameKind::Rpc,
        other => panic!("{other} is not a kind of name"),
    }
}

fn parse_form(text: &str) -> NameForm {
    match text {
        "written" => NameForm::Written,
        "camel" => NameForm::Camel,
        "pascal" => NameForm::Pascal,
        "snake" => NameForm::Snake,
        "lower" => NameForm::Lower,
        other => panic!("{other} is not a form of a name"),
    }
}

/// Returns the names that a language's list has.
fn find_collisions(list: &WordList, names: &[ApiName]) -> BTreeSet<Collision> {
    let mut found = BTreeSet::new();
    for section in parse_sections(list.text) {
        for name in names
            .iter()
            .filter(|name| section.kinds.contains(&name.kind))
        {
            let written = name.in_form(section.form);
            if section.words.contains(written.as_str()) {
                found.insert(Collision {
                    language: list.language,
                    name: name.name.clone(),
                    place: name.place.clone(),
                    written,
                });
            }
        }
    }
    found
}

fn is_excepted(collision: &Collision) -> bool {
    EXCEPTIONS
        .iter()
        .any(|known| known.language == collision.language && known.name == collision.name)
}

#[test]
fn no_name_is_a_reserved_word_of_a_language() {
    let names = list_names(&public_files());
    assert!(names.len() > 700, "{}", names.len());
    let all: BTreeSet<Collision> = WORD_LISTS
        .iter()
        .flat_map(|list| find_collisions(list, &names))
        .collect();
    let new: Vec<_> = all.iter().filter(|found| !is_excepted(found)).collect();
    assert!(
        new.is_empty(),
        "rename them, or add them to EXCEPTIONS with the reason for which they do no harm: {new:#?}"
    );
    for known in EXCEPTIONS {
        let is_met =
            |found: &Collision| found.language == known.language && found.name == known.name;
        assert!(
            all.iter().any(is_met),
            "{} is not reserved in {} any more: remove its exception",
            known.name,
            known.language
        );
    }
}

#[test]
fn every_list_has_its_source_and_words() {
    for list in WORD_LISTS {
        assert!(list.text.starts_with("# "), "{}", list.language);
        let sections = parse_sections(list.text);
        assert!(!sections.is_empty(), "{}", list.language);
        for section in sections {
            assert!(
                !section.words.is_empty(),
                "{}: a section without words",
                list.language
            );
        }
    }
}

#[test]
fn reserved_words_are_found_in_every_kind_of_name() {
    let file = samples::file_of_reserved_names();
    let names = list_names(&[file]);
    let found: BTreeSet<(&str, String)> = WORD_LISTS
        .iter()
        .flat_map(|list| find_collisions(list, &names))
        .map(|found| (found.language, found.name))
        .collect();
    for (language, name) in samples::RESERVED_NAMES {
        let expected = (*language, (*name).to_owned());
        assert!(found.contains(&expected), "{language} {name}: {found:#?}");
    }
}

//! Rules about words: how a doc comment may begin, which words are no names of types and modules, and what names a
//! test.

use crate::source::{Finding, SourceFile, is_identifier_char, leading_identifier};

/// First words of a summary line that only make sense beside the identifier, or that name no subject at all.
const FORBIDDEN_OPENINGS: &[&str] = &[
    "As",
    "How",
    "It",
    "Its",
    "Nobody",
    "None",
    "Nothing",
    "Of",
    "One",
    "Somebody",
    "Something",
    "That",
    "Their",
    "There",
    "They",
    "Those",
    "Until",
    "What",
    "Whatever",
    "Whether",
    "Who",
    "Whoever",
    "Whom",
    "Whose",
];

/// Prepositions and adverbs of place, which name no thing.
const PREPOSITIONS: &[&str] = &[
    "about", "above", "across", "after", "against", "along", "among", "around", "aside", "before",
    "behind", "below", "beneath", "beside", "between", "beyond", "by", "down", "during", "except",
    "for", "from", "in", "inside", "into", "near", "of", "off", "on", "onto", "out", "outside",
    "over", "per", "since", "through", "to", "toward", "towards", "under", "until", "up", "upon",
    "via", "with", "within", "without",
];

/// Participles that do not end in `-ed` or `-ing`.
const IRREGULAR_PARTICIPLES: &[&str] = &[
    "begun",
    "bound",
    "brought",
    "built",
    "chosen",
    "done",
    "driven",
    "fallen",
    "felt",
    "found",
    "given",
    "gone",
    "grown",
    "heard",
    "held",
    "hidden",
    "kept",
    "known",
    "laid",
    "left",
    "lent",
    "lost",
    "made",
    "meant",
    "paid",
    "said",
    "seen",
    "sent",
    "shown",
    "spent",
    "spoken",
    "taken",
    "thought",
    "told",
    "torn",
    "understood",
    "woken",
    "worn",
    "written",
];

/// Nouns that end in `-ed` or `-ing`.
const NOUNS: &[&str] = &[
    "binding",
    "building",
    "encoding",
    "ending",
    "feed",
    "finding",
    "heading",
    "indexing",
    "listing",
    "logging",
    "mapping",
    "naming",
    "need",
    "opening",
    "ordering",
    "padding",
    "ping",
    "polling",
    "publishing",
    "restaging",
    "ring",
    "routing",
    "scheduling",
    "seed",
    "setting",
    "spacing",
    "speed",
    "spelling",
    "staging",
    "string",
    "testing",
    "thing",
    "timing",
    "tracing",
    "warning",
];

/// Maximum length of a test's name, in characters.
const TEST_NAME_CHARS_MAX: usize = 60;

/// First words of a test's name that begin a clause and no claim.
const FORBIDDEN_TEST_OPENINGS: &[&str] = &["as", "how", "of", "that", "what", "when", "where"];

/// Keywords that declare a type.
const TYPE_KEYWORDS: &[&str] = &["struct ", "enum ", "union ", "trait ", "type "];

/// Returns a finding for every doc comment whose first word is forbidden. Knows Rust and proto files.
pub(crate) fn check_openings(file: &SourceFile<'_>) -> Vec<Finding> {
    let markers: &[&str] = match file.path.ends_with(".proto") {
        true => &["//"],
        false => &["///", "//!"],
    };
    let comment = |line: &'_ str| -> Option<(usize, String)> {
        let trimmed = line.trim_start();
        markers.iter().enumerate().find_map(|(kind, marker)| {
            let rest = trimmed.strip_prefix(marker)?;
            (!rest.starts_with('/')).then(|| (kind, rest.trim().to_owned()))
        })
    };
    let mut findings = Vec::new();
    let mut previous = None;
    for (index, line) in file.text.lines().enumerate() {
        let current = comment(line);
        let kind = current.as_ref().map(|(kind, _)| *kind);
        let begins = kind.is_some() && kind != previous;
        previous = kind;
        let Some((_, text)) = current.filter(|_| begins) else {
            continue;
        };
        let word = leading_identifier(&text);
        if FORBIDDEN_OPENINGS.contains(&word) {
            let message = format!(
                "a summary line must not begin with `{word}`: say what the item is (a noun phrase) or does \
                 (`Returns …`), so that it stands alone"
            );
            findings.push(file.finding(index + 1, message));
        }
    }
    findings
}

/// Returns a finding for every type, and for the module of the file, that is named by a participle or a preposition.
pub(crate) fn check_names(file: &SourceFile<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let stem = file.path.rsplit('/').next().unwrap_or_default();
    let module = stem.strip_suffix(".rs").unwrap_or_default();
    if is_participle_or_preposition(module) {
        let message = format!("module `{module}` is named by no noun: name what it owns");
        findings.push(file.finding(1, message));
    }
    for (index, line) in file.text.lines().enumerate() {
        let Some(name) = declared_type(line) else {
            continue;
        };
        let is_one_word = name.chars().filter(|char| char.is_uppercase()).count() == 1;
        if is_one_word && is_participle_or_preposition(&name.to_lowercase()) {
            let message =
                format!("type `{name}` is named by no noun: name its subject and its role");
            findings.push(file.finding(index + 1, message));
        }
    }
    findings
}

/// Returns a finding for every test whose name is too long or begins like no claim.
pub(crate) fn check_test_names(file: &SourceFile<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_test = false;
    for (index, line) in file.text.lines().enumerate() {
        let line = line.trim_start();
        is_test |= is_test_attribute(line);
        let Some(name) = declared_function(line) else {
            continue;
        };
        if !std::mem::take(&mut is_test) {
            continue;
        }
        let length = name.chars().count();
        if length > TEST_NAME_CHARS_MAX {
            let message = format!(
                "the name of a test has {length} characters, at most {TEST_NAME_CHARS_MAX} are allowed: claim one \
                 thing (subject, verb, object) and leave the details to its body"
            );
            findings.push(file.finding(index + 1, message));
        }
        let word = name.split('_').next().unwrap_or_default();
        if FORBIDDEN_TEST_OPENINGS.contains(&word) {
            let message = format!(
                "the name of a test must not begin with `{word}`: make it a claim (subject, verb, object) such as \
                 `unchanged_index_files_are_not_fetched`"
            );
            findings.push(file.finding(index + 1, message));
        }
    }
    findings
}

/// Returns `true` if a line is `#[test]` or the `test` of a runtime, with or without arguments.
fn is_test_attribute(line: &str) -> bool {
    let Some(attribute) = line.strip_prefix("#[") else {
        return false;
    };
    let is_in_path = |char: char| is_identifier_char(char) || char == ':';
    let path = attribute.split(|char| !is_in_path(char)).next();
    path.is_some_and(|path| path == "test" || path.ends_with("::test"))
}

/// Returns the name of the function that a line declares, if it is private as those of tests are.
fn declared_function(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("async ").unwrap_or(line);
    rest.strip_prefix("fn ").map(leading_identifier)
}

/// Returns the name of the type that a line declares. Associated types (`type Item = …;` in an `impl`) are indented
/// and belong to their trait.
fn declared_type(line: &str) -> Option<&str> {
    let (mut rest, is_indented) = (line.trim_start(), line.starts_with(' '));
    if let Some(visible) = rest.strip_prefix("pub") {
        rest = match visible.strip_prefix('(') {
            Some(scope) => scope.split_once(')')?.1.trim_start(),
            None => visible.trim_start(),
        };
    }
    let keyword = TYPE_KEYWORDS
        .iter()
        .find(|keyword| rest.starts_with(**keyword))?;
    if is_indented && *keyword == "type " {
        return None;
    }
    let name = leading_identifier(rest.get(keyword.len()..)?);
    name.starts_with(char::is_uppercase).then_some(name)
}

/// Returns `true` if a lower-case word is no noun.
fn is_participle_or_preposition(word: &str) -> bool {
    let is_regular = (word.ends_with("ed") || word.ends_with("ing")) && !word.contains('_');
    PREPOSITIONS.contains(&word)
        || IRREGULAR_PARTICIPLES.contains(&word)
        || (is_regular && !NOUNS.contains(&word))
}

#[test]
fn summary_lines_that_do_not_stand_alone_are_found() {
    let count = |path, text: &str| check_openings(&SourceFile { path, text }).len();
    for text in [
        "/// Of a name, bytes.\nconst A: u8 = 1;\n",
        "//! What a file is for.\n",
        "    /// It.\n    a: u8,\n",
        "/// Whether it runs.\nfn a() -> bool {}\n/// Returns `true`.\nfn b() -> bool {}\n",
        "//! A file.\n/// None.\nfn a() {}\n",
    ] {
        assert_eq!(count("client/src/a.rs", text), 1, "{text:?}");
    }
    for text in [
        "/// Maximum length of a name, in bytes.\n",
        "/// Returns the name.\n/// It may be empty.\n",
        "/// `None` if the pool is empty.\n",
        "/// One-shot timer.\n".replace("One", "Single").as_str(),
        "// Of a plain comment the rule knows nothing.\n",
        "/// Ofen.\n",
    ] {
        assert_eq!(count("client/src/a.rs", text), 0, "{text:?}");
    }
    let proto =
        "// Whether the exec runs.\nbool running = 1;\n// Name of the exec.\n// It is unique.\n";
    assert_eq!(count("proto/skilld/v1/exec.proto", proto), 1);
}

#[test]
fn types_named_by_participles_or_prepositions_are_found() {
    let found = |text: &str| {
        let path = "client/src/a.rs";
        check_names(&SourceFile { path, text }).len()
    };
    for text in [
        "enum Said {\n",
        "pub(crate) struct Placing(u8);\n",
        "pub struct Within<'a> {\n",
        "    struct Noted;\n",
        "pub type Prepared = u8;\n",
    ] {
        assert_eq!(found(text), 1, "{text:?}");
    }
    for text in [
        "struct ParsedFrontMatter {\n",
        "struct Setting;\n",
        "enum Speed {\n",
        "    type Served = u8;\n",
        "    Exited(u8),\n",
        "fn told() {}\n",
    ] {
        assert_eq!(found(text), 0, "{text:?}");
    }
}

#[test]
fn modules_named_by_participles_or_prepositions_are_found() {
    let found = |path| check_names(&SourceFile { path, text: "" }).len();
    for path in [
        "daemon/src/workspace/within.rs",
        "daemon/src/beneath.rs",
        "client/src/told.rs",
        "client/src/resuming.rs",
    ] {
        assert_eq!(found(path), 1, "{path}");
    }
    for path in [
        "daemon/src/pool.rs",
        "daemon/src/staging.rs",
        "a/exec_of.rs",
    ] {
        assert_eq!(found(path), 0, "{path}");
    }
}

#[test]
fn test_names_that_are_too_long_or_no_claim_are_found() {
    let found = |text: &str| -> Vec<String> {
        let path = "client/src/a.rs";
        let findings = check_test_names(&SourceFile { path, text });
        findings.iter().map(Finding::to_string).collect()
    };
    let named = |length| format!("#[test]\nfn {}() {{}}\n", "a".repeat(length));
    let (fits, long) = (named(60), named(61));
    for (text, expected) in [
        (
            "#[test]\nfn what_is_new_is_fetched() {}\n",
            "a.rs:2: the name of a test must not begin with `what`",
        ),
        (
            "    #[tokio::test(start_paused = true)]\n    async fn of_two_the_later_counts() {\n",
            "begin with `of`",
        ),
        (
            "#[tokio::test]\n// Why.\n#[cfg(unix)]\nasync fn when_full_it_waits() {}\n",
            "a.rs:4: the name of a test must not begin with `when`",
        ),
        (long.as_str(), "has 61 characters"),
    ] {
        let found = found(text);
        let is_expected = matches!(found.as_slice(), [one] if one.contains(expected));
        assert!(is_expected, "{text:?}: {found:?}");
    }
    for text in [
        "#[test]\nfn unchanged_index_files_are_not_fetched() {}\n",
        "#[test]\nfn whatever_is_lost_is_counted() {}\n",
        "#[test]\nfn a_claim_holds() {}\nfn of_helper() {}\n",
        "#[cfg(test)]\nfn when_full() {}\n",
        fits.as_str(),
    ] {
        assert_eq!(found(text), [""; 0], "{text:?}");
    }
}

//! Test that the tables of the documentation list exactly the problem codes that the daemon can report.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Prefixes of problem codes, which name the subject.
const SUBJECTS: [&str; 9] = [
    "archive.",
    "card.",
    "container.",
    "image.",
    "pool.",
    "published.",
    "root.",
    "skill.",
    "state.",
];

fn is_code(text: &str) -> bool {
    let name = SUBJECTS
        .iter()
        .find_map(|subject| text.strip_prefix(subject));
    name.is_some_and(|name| {
        let is_snake_case =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        // `skill.md` is a file name.
        name != "md" && !name.is_empty() && name.bytes().all(is_snake_case)
    })
}

/// Collects the codes among the string literals of the daemon's sources, except tests.
fn codes_in_sources(dir: &Path, codes: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if path.is_dir() && name != "tests" {
            codes_in_sources(&path, codes);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let text = fs::read_to_string(&path).expect("text");
            let product = text
                .split("\n#[cfg(test)]\nmod tests {")
                .next()
                .unwrap_or_default();
            let lines = product
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            let literals = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
            codes.extend(literals.filter(|text| is_code(text)).map(str::to_owned));
        }
    }
}

/// Collects the codes in the first cells of table rows.
fn codes_in_tables(document: &Path, codes: &mut BTreeSet<String>) {
    let text = fs::read_to_string(document).expect("a document");
    let cells = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split('|').next());
    let words = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    codes.extend(words.filter(|word| is_code(word)).map(str::to_owned));
}

#[test]
fn every_problem_code_is_documented_and_no_other() {
    let daemon = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut reported, mut documented) = (BTreeSet::new(), BTreeSet::new());
    codes_in_sources(&daemon.join("src"), &mut reported);
    codes_in_sources(&daemon.join("skills/src"), &mut reported);
    assert!(reported.len() > 60, "{reported:?}");
    for document in ["docs/problems.md", "docs/images.md"] {
        codes_in_tables(&daemon.join("..").join(document), &mut documented);
    }
    let undocumented: Vec<_> = reported.difference(&documented).collect();
    let unknown: Vec<_> = documented.difference(&reported).collect();
    assert!(
        undocumented.is_empty() && unknown.is_empty(),
        "add a row to a table in docs/problems.md or docs/images.md for {undocumented:?}, and take out {unknown:?}"
    );
}

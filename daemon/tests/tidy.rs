//! House rules that neither the compiler nor clippy knows, over every tracked file of the repository. Each message
//! says what to do; each rule has a test on sample input beside it, in `tidy/`.
//!
//! Modules in reading order: `source` (a file as the rules see it), `shape` (rules about one file), `language` (words),
//! `imports` (a parser for paths), `layers` (who may use whom, import cycles).

#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/language.rs"]
mod language;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/shape.rs"]
mod shape;
#[path = "tidy/source.rs"]
mod source;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use source::{Finding, SourceFile};

/// Entries of the repository's top level; all of them must exist.
const TOP_LEVEL: &[&str] = &[
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "client",
    "clippy.toml",
    "common",
    "daemon",
    "deny.toml",
    "deploy",
    "docs",
    "images",
    "proto",
    "rustfmt.toml",
    "skills",
    "tests",
];

/// Kind of finding that old code may still have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Debt {
    /// Summary lines that do not stand alone.
    Openings,
    /// Types and modules named by a participle or a preposition.
    Names,
    /// Modules in an import cycle, and imports from a root that is for others.
    Cycles,
    /// Files of tests that are too long.
    TestLength,
}

/// Maximum number of findings of each kind in a directory that is not rewritten yet. These numbers only ever fall;
/// everywhere else it is 0.
const DEBTS: &[(Debt, &str, usize)] = &[
    (Debt::Names, "daemon", 4),
    (Debt::TestLength, "client", 3),
    (Debt::TestLength, "daemon", 3),
];

#[test]
fn the_repository_keeps_the_house_rules() {
    let paths = repository_files();
    let mut findings = Vec::new();
    for path in &paths {
        let text = || read_text(path);
        if path.ends_with(".rs") {
            let file = SourceFile {
                path,
                text: &text(),
            };
            findings.extend(shape::check_file_shape(&file));
            findings.extend(layers::check_daemon_layers(&file));
            findings.extend(language::check_test_names(&file));
        } else if path.ends_with("Cargo.toml") {
            findings.extend(layers::check_dependencies(path, &text()));
        } else if path.ends_with(".md") || path == "daemon/default.toml" {
            let file = SourceFile {
                path,
                text: &text(),
            };
            findings.extend(shape::check_prose_width(&file));
        }
    }
    findings.extend(layers::check_architecture_diagram(&read_text(
        "ARCHITECTURE.md",
    )));
    let top: BTreeSet<&str> = paths
        .iter()
        .filter_map(|path| path.split('/').next())
        .collect();
    findings.extend(check_top_level(&top));
    assert!(findings.is_empty(), "\n{}\n", join(&findings));
}

#[test]
fn debts_do_not_grow() {
    let paths = repository_files();
    let texts: Vec<(&str, String)> = paths
        .iter()
        .filter(|path| path.ends_with(".rs") || path.ends_with(".proto"))
        .map(|path| (path.as_str(), read_text(path)))
        .collect();
    let files: Vec<SourceFile<'_>> = texts
        .iter()
        .map(|(path, text)| SourceFile { path, text })
        .collect();
    let rust: Vec<SourceFile<'_>> = files
        .iter()
        .filter(|file| file.path.ends_with(".rs"))
        .copied()
        .collect();
    let debts = [
        (
            Debt::Openings,
            files.iter().flat_map(language::check_openings).collect(),
        ),
        (
            Debt::Names,
            rust.iter().flat_map(language::check_names).collect(),
        ),
        (Debt::Cycles, check_cycles(&rust)),
        (
            Debt::TestLength,
            rust.iter().flat_map(shape::check_test_length).collect(),
        ),
    ];
    let mut excess = Vec::new();
    for (debt, findings) in &debts {
        // `cargo test -p skilld --test tidy -- --nocapture` lists what is left to do.
        println!("{debt:?}: {}\n{}", findings.len(), join(findings));
        excess.extend(exceeded(*debt, findings, DEBTS));
    }
    assert!(excess.is_empty(), "\n{}\n", excess.join("\n"));
}

/// Returns the findings of all crates: the files beneath each `src/` are one.
fn check_cycles(files: &[SourceFile<'_>]) -> Vec<Finding> {
    let product = files.iter().filter(|file| file.is_product());
    let crates: BTreeSet<&str> = product
        .filter_map(|file| {
            let end = file.path.find("/src/")? + "/src".len();
            file.path.get(..end)
        })
        .collect();
    let check = |directory: &&str| layers::check_import_cycles(directory, files);
    let cycles = crates.iter().flat_map(check);
    cycles.chain(layers::check_root_imports(files)).collect()
}

/// Returns a text for every directory with more findings than the table allows, with the findings themselves.
fn exceeded(debt: Debt, findings: &[Finding], table: &[(Debt, &str, usize)]) -> Vec<String> {
    let limits: Vec<(&str, usize)> = table
        .iter()
        .filter(|(kind, ..)| *kind == debt)
        .map(|(_, directory, limit)| (*directory, *limit))
        .collect();
    // The most specific directory counts; the empty one is everywhere else.
    let home = |finding: &Finding| {
        let homes = limits.iter().filter(|(directory, _)| {
            let rest = finding.path.strip_prefix(directory);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        let home = homes.max_by_key(|(directory, _)| directory.len());
        home.map_or("", |(directory, _)| *directory)
    };
    let mut excess = Vec::new();
    for (directory, limit) in limits.iter().copied().chain([("", 0)]) {
        let here: Vec<Finding> = findings
            .iter()
            .filter(|finding| home(finding) == directory)
            .cloned()
            .collect();
        if here.len() > limit {
            let (count, list) = (here.len(), join(&here));
            let place = if directory.is_empty() {
                "elsewhere"
            } else {
                directory
            };
            excess.push(format!(
                "{debt:?}: {count} findings in {place}, at most {limit} are allowed:\n{list}"
            ));
        }
    }
    excess
}

fn check_top_level(entries: &BTreeSet<&str>) -> Vec<Finding> {
    let designed: BTreeSet<&str> = TOP_LEVEL.iter().copied().collect();
    let finding = |entry: &str, message: &str| Finding {
        path: entry.to_owned(),
        line: 0,
        message: message.to_owned(),
    };
    let strange = entries
        .difference(&designed)
        .map(|entry| finding(entry, "put it beneath one of the folders of the top level"));
    let missing = designed
        .difference(entries)
        .map(|entry| finding(entry, "must exist at the top level"));
    strange.chain(missing).collect()
}

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the paths of tracked files, and of new ones that are not ignored, as they are in the work tree.
fn repository_files() -> Vec<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(repository_root())
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .expect("run git: the house rules are checked over tracked files");
    assert!(
        output.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let listing = String::from_utf8(output.stdout).expect("file names are UTF-8");
    listing
        .split('\0')
        .filter(|name| !name.is_empty() && repository_root().join(name).is_file())
        .map(str::to_owned)
        .collect()
}

fn read_text(path: &str) -> String {
    std::fs::read_to_string(repository_root().join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn join(findings: &[Finding]) -> String {
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    lines.join("\n")
}

#[test]
fn debts_count_for_the_most_specific_directory() {
    let finding = |path: &str| Finding {
        path: path.to_owned(),
        line: 1,
        message: String::new(),
    };
    let table = [
        (Debt::Names, "client", 1),
        (Debt::Names, "client/tools", 0),
        (Debt::Openings, "daemon", 9),
    ];
    let count = |paths: &[&str]| {
        let findings: Vec<Finding> = paths.iter().map(|path| finding(path)).collect();
        exceeded(Debt::Names, &findings, &table).len()
    };
    assert_eq!(count(&["client/src/a.rs"]), 0);
    assert_eq!(count(&["client/src/a.rs", "client/src/b.rs"]), 1);
    assert_eq!(count(&["client/tools/src/a.rs"]), 1);
    assert_eq!(count(&["clients/a.rs"]), 1);
    assert_eq!(count(&["daemon/src/a.rs"]), 1);
}

#[test]
fn strange_and_missing_entries_of_the_top_level_are_found() {
    let all: BTreeSet<&str> = TOP_LEVEL.iter().copied().collect();
    assert!(check_top_level(&all).is_empty());
    let mut strange = all.clone();
    strange.insert("scripts");
    let found = join(&check_top_level(&strange));
    assert_eq!(
        found,
        "scripts: put it beneath one of the folders of the top level"
    );
    let mut missing = all;
    missing.remove("README.md");
    let found = join(&check_top_level(&missing));
    assert_eq!(found, "README.md: must exist at the top level");
}

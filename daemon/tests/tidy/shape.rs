//! Rules about one file at a time: its comment, its length, which libraries it names, and what it must not contain.

use std::path::Path;

use crate::source::{Finding, SourceFile, has_word, leading_identifier, without_strings};

/// Maximum length of a product file without its test module, in lines.
const PRODUCT_LINES_MAX: usize = 500;

/// Maximum length of a file of tests, in lines.
const TEST_LINES_MAX: usize = 600;

/// Maximum length of a line of prose in a document, in characters.
const PROSE_COLUMNS_MAX: usize = 120;

/// Library name → places in the daemon that may name it.
const LIBRARY_HOMES: &[(&str, &[&str])] = &[
    ("bollard", &["daemon/src/engine/docker"]),
    ("figment", &["daemon/src/config"]),
    ("anyhow", &["daemon/src/main.rs"]),
];

/// Returns the findings of every rule of this module for one Rust file.
pub(crate) fn check_file_shape(file: &SourceFile<'_>) -> Vec<Finding> {
    let rules: [fn(&SourceFile<'_>) -> Vec<Finding>; 9] = [
        begins_with_module_comment,
        functional_tests_say_why_they_need_docker,
        product_file_is_not_too_long,
        file_is_not_mod_rs,
        libraries_stay_in_their_place,
        status_is_built_in_error_rs,
        unsafe_is_in_sys_rs,
        nothing_is_left_undone,
        no_path_of_a_build_machine,
    ];
    rules.iter().flat_map(|rule| rule(file)).collect()
}

/// Returns a finding for a file of tests that is too long.
pub(crate) fn check_test_length(file: &SourceFile<'_>) -> Vec<Finding> {
    let lines = file.text.lines().count();
    if file.is_product() || lines <= TEST_LINES_MAX {
        return Vec::new();
    }
    let message = format!("over {TEST_LINES_MAX} lines of tests: split it by subject");
    vec![file.finding(lines, message)]
}

/// Returns a finding for each line of prose that is too long: in documents, and in comments of the default
/// configuration. Tables and indented or fenced blocks are no prose.
pub(crate) fn check_prose_width(file: &SourceFile<'_>) -> Vec<Finding> {
    let is_document =
        file.path.ends_with(".md") && (file.path.starts_with("docs/") || !file.path.contains('/'));
    // Generated, with one line per paragraph.
    let is_generated = file.path == "docs/configuration.md";
    let is_configuration = file.path == "daemon/default.toml";
    if !is_configuration && (!is_document || is_generated) {
        return Vec::new();
    }
    let mut is_fenced = false;
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        let is_prose = match is_configuration {
            true => line.starts_with('#'),
            false => !is_fence && !is_fenced && !line.starts_with('|') && !line.starts_with("    "),
        };
        if is_prose && line.chars().count() > PROSE_COLUMNS_MAX {
            let message = format!("over {PROSE_COLUMNS_MAX} columns: break the line");
            findings.push(file.finding(index + 1, message));
        }
    }
    findings
}

fn begins_with_module_comment(file: &SourceFile<'_>) -> Vec<Finding> {
    if file.text.starts_with("//!") {
        return Vec::new();
    }
    let message = "begin with `//!`: what this file owns and what it never does";
    vec![file.finding(1, message)]
}

/// Returns a finding if a functional test does not say why it needs Docker. A test with Docker costs seconds, so an
/// in-process suite proves what it can.
fn functional_tests_say_why_they_need_docker(file: &SourceFile<'_>) -> Vec<Finding> {
    let is_functional = file.path.starts_with("tests/e2e/functional/");
    let says_why = |line: &str| line.starts_with("//! Docker: ");
    if !is_functional || file.text.lines().any(says_why) {
        return Vec::new();
    }
    let message = "say in a line `//! Docker: …` what no test in process can refuse or break, or move the tests there";
    vec![file.finding(1, message)]
}

fn product_file_is_not_too_long(file: &SourceFile<'_>) -> Vec<Finding> {
    let lines = file.product_line_count();
    if !file.is_product() || lines <= PRODUCT_LINES_MAX {
        return Vec::new();
    }
    let message = format!("over {PRODUCT_LINES_MAX} lines: split it by what it owns");
    vec![file.finding(lines, message)]
}

fn file_is_not_mod_rs(file: &SourceFile<'_>) -> Vec<Finding> {
    if Path::new(file.path)
        .file_name()
        .is_none_or(|name| name != "mod.rs")
    {
        return Vec::new();
    }
    vec![file.finding(1, "name it after its folder: `foo.rs` beside `foo/`")]
}

fn libraries_stay_in_their_place(file: &SourceFile<'_>) -> Vec<Finding> {
    if !file.path.starts_with("daemon/src/") {
        return Vec::new();
    }
    let strange = LIBRARY_HOMES
        .iter()
        .filter(|(_, homes)| !homes.iter().any(|home| file.path.starts_with(home)));
    strange
        .flat_map(|(word, homes)| {
            let message = format!(
                "`{word}` is named only in {}: ask for what you need there",
                homes.join(", ")
            );
            file.findings_where(&message, |line| has_word(line, word))
        })
        .collect()
}

fn status_is_built_in_error_rs(file: &SourceFile<'_>) -> Vec<Finding> {
    let is_home = ["daemon/src/error.rs", "daemon/src/error/"]
        .iter()
        .any(|home| file.path.starts_with(home));
    if !file.path.starts_with("daemon/src/") || !file.is_product() || is_home {
        return Vec::new();
    }
    let message = "build no `Status` here: return an `Error`; error.rs maps it, with its reason";
    file.findings_where(message, |line| {
        line.split("Status::").skip(1).any(|rest| {
            let name = leading_identifier(rest);
            let is_call = rest
                .get(name.len()..)
                .is_some_and(|rest| rest.starts_with('('));
            is_call && name.starts_with(char::is_lowercase) && !name.starts_with("from")
        })
    })
}

fn unsafe_is_in_sys_rs(file: &SourceFile<'_>) -> Vec<Finding> {
    if file.path == "images/guest/src/sys.rs" {
        return Vec::new();
    }
    file.findings_where(
        "`unsafe` belongs into images/guest/src/sys.rs, with its reason",
        |line| has_word(&without_strings(line), "unsafe"),
    )
}

fn nothing_is_left_undone(file: &SourceFile<'_>) -> Vec<Finding> {
    file.findings_where(
        "do it, or leave it out: no ignored tests, no stubs",
        |line| {
            let line = without_strings(line);
            ["#[ignore", "todo!(", "unimplemented!("]
                .iter()
                .any(|word| line.contains(word))
        },
    )
}

fn no_path_of_a_build_machine(file: &SourceFile<'_>) -> Vec<Finding> {
    // Written in pieces, so that this file keeps its own rule.
    let roots = [
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
        concat!("/Us", "ers/"),
        concat!("/tmp/", "wt"),
    ];
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let is_found = roots.iter().any(|root| {
            line.match_indices(root).any(|(at, _)| {
                let before = line.get(..at).and_then(|head| head.chars().next_back());
                before.is_none_or(|char| " \"'`(=,<".contains(char))
            })
        });
        if is_found {
            let message = "this path exists on one machine only: make it relative";
            findings.push(file.finding(index + 1, message));
        }
    }
    findings
}

#[track_caller]
fn check_shape(path: &str, text: &str, expected: &[&str]) {
    let found = check_file_shape(&SourceFile { path, text });
    assert_eq!(found.len(), expected.len(), "{path}: {text:?}: {found:#?}");
    for (finding, expected) in found.iter().zip(expected) {
        let shown = finding.to_string();
        assert!(shown.contains(expected), "{shown}\n  lacks {expected}");
    }
}

#[test]
fn files_without_a_comment_or_with_too_many_lines_are_found() {
    check_shape("client/src/a.rs", "//! Owns a.\n", &[]);
    check_shape(
        "client/src/a.rs",
        "fn a() {}\n",
        &["client/src/a.rs:1: begin with `//!`"],
    );
    let long = format!("//! Long.\n{}", "fn a() {}\n".repeat(500));
    check_shape("client/src/a.rs", &long, &["over 500 lines"]);
    check_shape("client/src/a/tests.rs", &long, &[]);
    let tested = format!(
        "//! Short.\n#[cfg(test)]\nmod tests {{\n{}}}\n",
        "fn a() {}\n".repeat(500)
    );
    check_shape("client/src/a.rs", &tested, &[]);
    check_shape(
        "client/src/a/mod.rs",
        "//! A.\n",
        &["name it after its folder"],
    );
}

#[test]
fn functional_tests_without_a_reason_for_docker_are_found() {
    let path = "tests/e2e/functional/a.rs";
    check_shape(path, "//! Tests a.\n", &["//! Docker: "]);
    check_shape(path, "//! Tests a.\n//! Docker: its mounts.\n", &[]);
    check_shape("tests/e2e/crash/a.rs", "//! Tests a.\n", &[]);
}

#[test]
fn files_of_tests_over_600_lines_are_found() {
    let text = "fn a() {}\n".repeat(601);
    let found = |path| check_test_length(&SourceFile { path, text: &text }).len();
    assert_eq!(found("daemon/tests/pool.rs"), 1);
    assert_eq!(found("client/src/a/tests.rs"), 1);
    assert_eq!(found("client/src/a.rs"), 0);
}

#[test]
fn prose_over_120_columns_is_found() {
    let found = |path, text: &str| -> Vec<usize> {
        let findings = check_prose_width(&SourceFile { path, text });
        findings.iter().map(|finding| finding.line).collect()
    };
    let (fits, long) = ("ä".repeat(120), "ä".repeat(121));
    for path in ["README.md", "docs/exec.md"] {
        assert_eq!(found(path, &format!("# A\n\n{fits}\n{long}\n")), [4]);
        let blocks = format!("| {long} |\n\n    {long}\n\n```sh\n{long}\n```\n* {long}\n");
        assert_eq!(found(path, &blocks), [8]);
    }
    let comment = format!("# {long}\na = \"{long}\"\n# {fits}\n");
    assert_eq!(found("daemon/default.toml", &comment), [1, 3]);
    for path in ["docs/configuration.md", "skills/a/SKILL.md", "daemon/a.rs"] {
        assert_eq!(found(path, &long), [0; 0]);
    }
}

#[test]
fn libraries_and_statuses_out_of_place_are_found() {
    // Without a message the text is allowed. A `\n` is a line break.
    let cases = r#"
        daemon/src/pool.rs: use bollard::Docker; => pool.rs:2: `bollard` is named only in
        daemon/src/pool.rs: // bollard =>
        daemon/src/engine/docker/create.rs: use bollard::Docker; =>
        daemon/src/rpc/exec.rs: use figment::Figment; => `figment` is named only in
        daemon/src/server.rs: use anyhow::Result; => `anyhow` is named only in
        daemon/src/rpc.rs: fn a() { Status::not_found("x") } => build no `Status`
        daemon/src/rpc.rs: fn a() { tonic::Status::new(code, "x") } => build no `Status`
        daemon/src/rpc.rs: fn a(s: Status) { Status::from(Error::Draining) } =>
        daemon/src/error.rs: fn a() { Status::not_found("x") } =>
        daemon/src/rpc.rs: #[cfg(test)]\nmod tests { fn a() { Status::ok("") } } =>
    "#;
    for case in cases.trim().lines() {
        let (path, rest) = case.trim().split_once(": ").expect("a path");
        let (text, message) = rest.split_once(" =>").expect("a case");
        let text = format!("//! A.\n{}\n", text.replace("\\n", "\n"));
        let expected: Vec<&str> = Some(message.trim())
            .filter(|text| !text.is_empty())
            .into_iter()
            .collect();
        check_shape(path, &text, &expected);
    }
}

#[test]
fn unsafe_code_outside_sys_rs_is_found() {
    check_shape(
        "client/src/a.rs",
        "//! A.\nunsafe { a() }\n",
        &["`unsafe` belongs into"],
    );
    check_shape(
        "client/src/a.rs",
        "//! A.\n#![forbid(unsafe_code)]\nconst A: &str = \"unsafe\";\n",
        &[],
    );
    check_shape("images/guest/src/sys.rs", "//! A.\nunsafe { a() }\n", &[]);
}

#[test]
fn stubs_ignored_tests_and_paths_of_a_machine_are_found() {
    let ignored = format!("//! A.\n#[{}]\nfn a() {{}}\n", "ignore");
    check_shape("daemon/tests/a.rs", &ignored, &["no ignored tests"]);
    for stub in ["todo", "unimplemented"] {
        let text = format!("//! A.\nfn a() {{ {stub}!() }}\n");
        check_shape("client/src/a.rs", &text, &["no stubs"]);
    }
    let path = format!("//! A.\nconst A: &str = \"/{}/x\";\n", "work");
    check_shape("client/src/a.rs", &path, &["exists on one machine only"]);
    check_shape(
        "client/src/a.rs",
        "//! A.\nconst A: &str = \"/workspace/work/x $A/work/x\";\n",
        &[],
    );
}

//! Tests of which packages are read from a skill's files.

use std::fs;
use std::path::Path;

use super::*;

mod node_projects;

/// Reads the need of a skill with these files.
fn read_need(files: &[(&str, &str)]) -> EnvironmentNeed {
    let dir = tempfile::tempdir().expect("temp dir");
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("mkdir");
        fs::write(path, text).expect("write");
    }
    let manifest = Manifest::read(dir.path()).expect("manifest");
    read_environment_need(&manifest).expect("read")
}

fn messages(need: &EnvironmentNeed) -> Vec<&str> {
    let problems = need.problems.iter();
    problems.map(|problem| problem.message.as_str()).collect()
}

#[test]
fn requirements_of_all_files_are_merged() {
    let need = read_need(&[
        (
            "requirements.txt",
            "\u{feff}# tools\npandas>=2  # tables\n\nsix==1.17.0 \\\n  --hash=sha256:\
             0000000000000000000000000000000000000000000000000000000000000000\n",
        ),
        ("sub/requirements.txt", "pandas>=2\n"),
        (
            "pyproject.toml",
            "[project]\ndependencies = [\"rich ~= 13.0\"]\n",
        ),
        (
            "scripts/report.py",
            "# /// script\n# requires-python = \">=3.11\"\n# dependencies = [\"httpx\", \"rich ~= 13.0\"]\n# ///\n\
             import httpx\n",
        ),
        ("tests/requirements.txt", "pytest\n"),
        (
            "templates/app/pyproject.toml",
            "[project]\ndependencies = [\"flask\"]\n",
        ),
    ]);
    let zeros = "0".repeat(64);
    assert_eq!(
        need.requirements,
        [
            "httpx".to_owned(),
            "pandas>=2".to_owned(),
            "rich ~= 13.0".to_owned(),
            format!("six==1.17.0 --hash=sha256:{zeros}"),
        ]
    );
    assert_eq!(messages(&need), Vec::<&str>::new());
}

#[test]
fn skill_without_requirements_needs_no_environment() {
    let need = read_need(&[
        ("SKILL.md", "# x\n"),
        ("requirements.txt", "# none\n\n"),
        ("package.json", "{\"type\": \"module\"}"),
        ("pyproject.toml", "[tool.ruff]\nline-length = 100\n"),
        ("scripts/x.py", "import json\n"),
    ]);
    assert!(need.is_empty(), "{need:?}");
}

#[test]
fn refused_requirements_are_named_with_file_and_line() {
    let need = read_need(&[(
        "requirements.txt",
        "pandas\n--index-url https://evil.example/simple\n-e .\ngit+https://evil.example/x.git\n",
    )]);
    let messages = messages(&need);
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert!(messages[0].starts_with("requirements.txt:2: \"--index-url"));
    assert!(messages[1].starts_with("requirements.txt:3: \"-e .\" is an option"));
    assert!(messages[2].starts_with("requirements.txt:4: \"git+https"));
    assert!(!need.is_empty());
}

#[test]
fn a_file_that_cannot_be_parsed_is_a_problem() {
    for (path, text, message) in [
        (
            "pyproject.toml",
            "[project\n",
            "pyproject.toml is not valid TOML: ",
        ),
        (
            "package.json",
            "{\"dependencies\": ",
            "package.json is not valid JSON: ",
        ),
        (
            "package.json",
            &format!("{{\"dependencies\": {{}}}}{}", " ".repeat(1 << 20)),
            "package.json is larger than 1048576 bytes",
        ),
    ] {
        let need = read_need(&[(path, text)]);
        let messages = messages(&need);
        assert_eq!(messages.len(), 1, "{path}: {messages:?}");
        assert!(messages[0].starts_with(message), "{messages:?}");
    }
}

#[test]
fn ten_thousand_requirements_are_one_problem() {
    let lines: Vec<String> = (0..10_000).map(|n| format!("package-{n}\n")).collect();
    let need = read_need(&[("requirements.txt", &lines.concat())]);
    assert_eq!(
        messages(&need),
        ["requirements.txt brings the skill to more than 1000 requirements"]
    );
    let wrong: Vec<String> = (0..10_000).map(|n| format!("-e ./{n}\n")).collect();
    let need = read_need(&[("requirements.txt", &wrong.concat())]);
    assert_eq!(need.problems.len(), PROBLEMS_MAX);
}

#[test]
fn digest_depends_on_every_part_and_not_on_the_order_of_files() {
    let digest = |files: &[(&str, &str)]| read_need(files).digest();
    let one = digest(&[("requirements.txt", "a\nb\n")]);
    assert_eq!(one, digest(&[("requirements.txt", "b\na # x\n")]));
    assert_eq!(one.len(), 64);
    assert_ne!(one, digest(&[("requirements.txt", "a\nb>1\n")]));
    let package = ("package.json", "{\"dependencies\": {\"docx\": \"^9\"}}");
    let locked = |lock| digest(&[package, ("package-lock.json", lock)]);
    let lock = "{\"packages\": {}}";
    assert_ne!(locked(lock), locked("{\"packages\": { }}"));
    assert_ne!(locked(lock), digest(&[package]));
    let moved = digest(&[("scripts/package.json", package.1)]);
    assert_ne!(moved, digest(&[package]));
}

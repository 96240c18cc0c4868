//! Tests of finding scripts and their interpreters.

use std::os::unix::fs::symlink;

use super::*;

fn skill(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temp dir");
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        fs::write(path, text).expect("write");
    }
    dir
}

/// Returns the interpreter of a skill's only file, or `None` if none is known.
fn runs(name: &str, text: &str) -> Option<String> {
    let dir = skill(&[(name, text)]);
    match find_script("s", dir.path(), name) {
        Ok(program) => Some(program.interpreter.join(" ")),
        Err(Error::Invalid(_)) => None,
        Err(other) => panic!("{name}: {other}"),
    }
}

#[test]
fn an_interpreter_is_chosen_by_the_extension_first() {
    for (name, expected) in [
        ("x.py", "python3"),
        ("x.PY", "python3"),
        ("a/b.sh", "bash"),
        ("x.bash", "bash"),
        ("x.zsh", "zsh"),
        ("x.js", "node"),
        ("x.mjs", "node"),
        ("x.cjs", "node"),
        ("x.ts", "tsx"),
        ("x.mts", "tsx"),
        ("x.rb", "ruby"),
        ("x.pl", "perl"),
        ("x.php", "php"),
        ("x.R", "Rscript"),
        ("x.ps1", "pwsh"),
        ("x.awk", "awk -f"),
        ("x.jq", "jq -f"),
    ] {
        assert_eq!(runs(name, "").as_deref(), Some(expected), "{name}");
        let other = "#!/usr/bin/env ruby\n";
        assert_eq!(runs(name, other).as_deref(), Some(expected), "{name}");
    }
}

#[test]
fn the_first_line_decides_if_the_extension_is_unknown() {
    for (line, expected) in [
        ("#!/usr/bin/env python3\n", Some("python3")),
        ("#!/opt/homebrew/bin/python3.12\n", Some("python3")),
        ("#!/home/me/venv/bin/python\r\nx", Some("python3")),
        ("#! /bin/bash -eu\n", Some("bash")),
        ("\u{feff}#!/bin/bash\n", Some("bash")),
        ("#!/bin/sh", Some("sh")),
        ("#!/bin/dash\n", Some("sh")),
        ("#!/usr/bin/env -S node --no-warnings\n", Some("node")),
        ("#!/usr/bin/env A=1 perl -w\n", Some("perl")),
        ("#!/usr/bin/env ts-node\n", Some("tsx")),
        ("#!/usr/bin/gawk -f\n", Some("awk -f")),
        // The kernel starts these by the line itself.
        ("#!/usr/bin/osascript\n", Some("")),
        ("#!/usr/bin/env -S uv run --script\n", Some("")),
        ("#! /usr/bin/sed -nf\n", Some("")),
        ("#!/usr/bin/python3.x\n", Some("")),
        // Without a program `env` would start the script again and again.
        ("#!/usr/bin/env\n", None),
        ("#!\n", None),
        ("#!/\n", None),
        ("#!python3;id\n", None),
        ("#!bin/tool\n", None),
        ("# no script", None),
        ("", None),
        ("\0\u{1}\u{2}", None),
    ] {
        assert_eq!(runs("tool", line).as_deref(), expected, "{line:?}");
        assert_eq!(runs("tool.xyz", line).as_deref(), expected, "{line:?}");
    }
}

#[test]
fn a_path_stays_in_the_skill() {
    for (path, expected) in [
        ("scripts/x.py", "scripts/x.py"),
        ("./scripts//x.py", "scripts/x.py"),
        ("x", "x"),
        ("-x.py", "-x.py"),
    ] {
        assert_eq!(normalise_script_path(path).expect(path), expected);
    }
    let deep = "d/".repeat(33) + "x";
    let long = "x/".repeat(256) + "x";
    let long_name = format!("a/{}", "x".repeat(256));
    for path in [
        "",
        ".",
        "/",
        "/etc/passwd",
        "..",
        "../x.py",
        "a/../../x.py",
        "a/../x.py",
        "a\\b",
        "a\nb",
        "a\0b",
        "scripts/",
        &deep,
        &long,
        &long_name,
    ] {
        let error = normalise_script_path(path).expect_err(path);
        assert!(matches!(error, Error::Invalid(_)), "{path:?}: {error}");
    }
}

#[test]
fn links_are_followed_within_the_skill_only() {
    let dir = skill(&[
        ("skills/s/lib/x.py", ""),
        ("out/x.py", ""),
        ("secret.py", ""),
    ]);
    let root = dir.path().join("skills/s");
    symlink("lib/x.py", root.join("inside.py")).expect("link");
    symlink("../../out", root.join("out")).expect("link");
    symlink("../../secret.py", root.join("outside.py")).expect("link");
    symlink(dir.path().join("secret.py"), root.join("absolute.py")).expect("link");
    symlink("loop.py", root.join("loop.py")).expect("link");
    assert_eq!(
        find_script("s", &root, "inside.py").expect("inside").path,
        "inside.py"
    );
    for path in ["out/x.py", "outside.py", "absolute.py", "loop.py"] {
        let error = find_script("s", &root, path).expect_err(path);
        assert!(matches!(error, Error::Invalid(_)), "{path}: {error}");
    }
    for folder in ["lib", "lib/."] {
        let error = find_script("s", &root, folder)
            .expect_err(folder)
            .to_string();
        assert!(error.contains("folder"), "{error}");
    }
}

#[test]
fn a_script_that_is_not_there_is_answered_with_similar_names() {
    let dir = skill(&[
        ("scripts/thumbnail.py", ""),
        ("scripts/other.sh", ""),
        ("SKILL.md", ""),
    ]);
    for wanted in [
        "thumbnail.py",
        "scripts/thumbnial.py",
        "scripts/Thumbnail.py",
    ] {
        match find_script("s", dir.path(), wanted) {
            Err(Error::ScriptNotFound { nearest, .. }) => {
                assert_eq!(
                    nearest.first().map(String::as_str),
                    Some("scripts/thumbnail.py"),
                    "{wanted}"
                );
            }
            other => panic!("{wanted}: {other:?}"),
        }
    }
    let error = find_script("s", dir.path(), "SKILL.md/x.py").expect_err("no folder");
    assert!(matches!(error, Error::ScriptNotFound { .. }), "{error}");
}

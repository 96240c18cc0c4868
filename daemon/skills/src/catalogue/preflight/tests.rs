//! Tests of preflight: requirements of skills against inventories of images.

use std::fs;

mod hostile_text;
mod labelled_skills;

use super::*;
use crate::content_store::skill_files::Manifest;
use crate::{FrontMatter, Requires};

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn image() -> ImageInventory {
    let set = |names: &[&str]| strings(names).into_iter().collect();
    ImageInventory {
        programs: set(&["bash", "jq", "node", "python3"]),
        python_packages: set(&["pyyaml", "requests"]),
        python_modules: set(&["json", "os", "requests", "subprocess", "sys", "yaml"]),
        node_packages: set(&["commander"]),
    }
}

/// Kind, name, whether it is an error, source.
type Row = (NeedKind, String, bool, String);

fn skill(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temp dir");
    let all = [("SKILL.md", "---\n")];
    for (path, text) in all.iter().chain(files) {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        fs::write(path, text).expect("write");
    }
    dir
}

fn check(front: &FrontMatter, files: &[(&str, &str)], env: &[&str]) -> Vec<Row> {
    let dir = skill(files);
    let manifest = Manifest::read(dir.path()).expect("manifest");
    let needs = collect_needs(front, &manifest).expect("collected");
    let found = find_unmet_needs(&needs, &image(), None, &strings(env));
    let row = |finding: UnmetNeed| {
        assert!(!finding.message.is_empty());
        let error = finding.severity == Severity::Error;
        (finding.kind, finding.name, error, finding.source)
    };
    found.into_iter().map(row).collect()
}

fn requires(bins: &[&str], any_bins: &[&str], env: &[&str]) -> FrontMatter {
    FrontMatter {
        requires: Requires {
            bins: strings(bins),
            any_bins: strings(any_bins),
            env: strings(env),
        },
        ..FrontMatter::default()
    }
}

fn compatible(text: &str) -> FrontMatter {
    FrontMatter {
        compatibility: text.to_owned(),
        ..FrontMatter::default()
    }
}

fn row(kind: NeedKind, name: &str, error: bool, source: &str) -> Row {
    (kind, name.to_owned(), error, source.to_owned())
}

#[test]
fn what_is_declared_and_missing_is_an_error() {
    let any = ["soffice", "libreoffice"];
    let front = requires(
        &["jq", "pandoc", "own"],
        &any,
        &["API_KEY", "HOME", "GIVEN"],
    );
    let found = check(&front, &[("bin/own", "#!/bin/bash\n")], &["GIVEN"]);
    let (bins, any, env) = (
        "metadata.requires.bins",
        "metadata.requires.anyBins",
        "metadata.requires.env",
    );
    assert_eq!(
        found,
        [
            row(NeedKind::Binary, "pandoc", true, bins),
            row(NeedKind::AnyBinary, "soffice, libreoffice", true, any),
            row(NeedKind::Env, "API_KEY", true, env),
        ]
    );
    let one = requires(&[], &["soffice", "jq"], &[]);
    assert_eq!(check(&one, &[], &[]), []);
}

#[test]
fn what_files_declare_is_an_error_and_what_they_import_a_warning() {
    let files = [
        ("requirements.txt", "PyYAML\npandas>=2\n"),
        (
            "package.json",
            r#"{"dependencies": {"commander": "1", "left-pad": "1", "shipped": "1"}}"#,
        ),
        (
            "node_modules/shipped/package.json",
            r#"{"dependencies": {"not-ours": "1"}}"#,
        ),
        (
            "scripts/run.py",
            "# /// script\n# dependencies = [\"rich\"]\n# ///\nimport json, numpy\nimport helper\nfrom lib.x import y\n\
             import requests\n",
        ),
        ("scripts/helper.py", "import os\nimport numpy\n"),
        ("lib/x.py", ""),
        ("assets/template.py", "import nothing_of_ours"),
        ("tests/test_x.py", "import pytest"),
    ];
    let found = check(&FrontMatter::default(), &files, &[]);
    assert_eq!(
        found,
        [
            row(
                NeedKind::PythonPackage,
                "pandas",
                true,
                "requirements.txt:2"
            ),
            row(NeedKind::PythonPackage, "rich", true, "scripts/run.py:1"),
            row(NeedKind::NodePackage, "left-pad", true, "package.json"),
            row(
                NeedKind::PythonModule,
                "numpy",
                false,
                "scripts/helper.py:2"
            ),
            row(NeedKind::Network, "requests", false, "scripts/run.py:7"),
        ]
    );
}

#[test]
fn interpreters_are_named_with_the_script_that_wants_them() {
    let files = [
        ("scripts/a.rb", "puts 1\n"),
        ("scripts/b.rb", "#!/usr/bin/env ruby\n"),
        ("scripts/c.ps1", "Write-Host x\n"),
        ("tool", "#!/usr/bin/env -S uv run\n"),
        ("scripts/ok.sh", "#!/bin/bash\n"),
    ];
    assert_eq!(
        check(&FrontMatter::default(), &files, &[]),
        [
            row(NeedKind::Interpreter, "ruby", true, "scripts/b.rb:1"),
            row(NeedKind::Interpreter, "uv", true, "tool:1"),
            row(NeedKind::Interpreter, "pwsh", false, "scripts/c.ps1:1"),
        ]
    );
}

#[test]
fn a_network_is_a_warning_since_no_workspace_has_one() {
    let found = check(&compatible("Needs network access."), &[], &[]);
    assert_eq!(
        found,
        [row(NeedKind::Network, "the skill", false, "compatibility")]
    );
    assert_eq!(
        check(&compatible("Works offline, no network."), &[], &[]),
        []
    );
    let found = check(&requires(&["curl"], &[], &[]), &[], &[]);
    let bins = "metadata.requires.bins";
    assert_eq!(
        found,
        [
            row(NeedKind::Binary, "curl", true, bins),
            row(NeedKind::Network, "curl", false, bins)
        ]
    );
}

#[test]
fn a_package_that_connects_wants_a_network_though_it_is_shipped() {
    let files = [
        ("scripts/a.mjs", "import axios from 'axios';\n"),
        ("node_modules/axios/package.json", "{}"),
    ];
    assert_eq!(
        check(&FrontMatter::default(), &files, &[]),
        [row(NeedKind::Network, "axios", false, "scripts/a.mjs:1")]
    );
}

#[test]
fn a_package_that_is_downloaded_to_run_wants_a_network_unless_it_is_there() {
    let document = |command: &str| format!("---\nname: x\n---\n```sh\n{command}\n```\n");
    let networks = |files: &[(&str, &str)]| -> Vec<String> {
        let found = check(&FrontMatter::default(), files, &[]).into_iter();
        let found = found.filter(|(kind, ..)| *kind == NeedKind::Network);
        found.map(|(_, name, ..)| name).collect()
    };
    let other = document("npx --yes left-pad x");
    assert_eq!(networks(&[("SKILL.md", &other)]), ["npx left-pad"]);
    let package = r#"{"dependencies": {"left-pad": "1"}}"#;
    let files = [("SKILL.md", other.as_str()), ("package.json", package)];
    assert_eq!(networks(&files), [""; 0]);
    assert_eq!(
        networks(&[("SKILL.md", &document("npx -y commander x"))]),
        [""; 0]
    );
}

#[test]
fn a_skill_of_documents_needs_nothing() {
    assert_eq!(
        check(
            &FrontMatter::default(),
            &[("references/x.md", "import nothing")],
            &[]
        ),
        []
    );
}

#[test]
fn an_environment_that_was_built_for_the_skill_counts_as_present() {
    let files = [
        ("requirements.txt", "pandas\nno-such\n"),
        (
            "scripts/a.py",
            "import pandas\nimport numpy\nimport other\n",
        ),
        ("scripts/b.sh", "ruff check .\nshellcheck x\n"),
        ("scripts/c.js", "require('docx'); require('sharp')\n"),
    ];
    let dir = skill(&files);
    let manifest = Manifest::read(dir.path()).expect("manifest");
    let needs = collect_needs(&FrontMatter::default(), &manifest).expect("collected");
    let set = |names: &[&str]| strings(names).into_iter().collect();
    let environment = ImageInventory {
        programs: set(&["ruff"]),
        python_packages: set(&["pandas", "numpy"]),
        python_modules: set(&["pandas", "numpy"]),
        node_packages: set(&["docx"]),
    };
    let names = |environment: Option<&ImageInventory>| -> Vec<String> {
        let found = find_unmet_needs(&needs, &image(), environment, &[]);
        found.into_iter().map(|finding| finding.name).collect()
    };
    let all = [
        "no-such",
        "pandas",
        "ruff",
        "shellcheck",
        "numpy",
        "other",
        "docx",
        "sharp",
    ];
    assert_eq!(names(None), all);
    assert_eq!(
        names(Some(&environment)),
        ["no-such", "shellcheck", "other", "sharp"]
    );
}

#[test]
fn programs_and_imports_are_warnings_with_their_lines() {
    let files = [
        (
            "scripts/run.sh",
            "#!/bin/bash\nmy_step() { echo; }\nmy_step\nhelper.sh\nlibreoffice x\nbash scripts/own.sh\n",
        ),
        ("scripts/helper.sh", "soffice y\nmagick z\n"),
        ("scripts/own.sh", "my_step\nown-tool\n"),
        ("bin/own-tool", "#!/bin/bash\n"),
        (
            "scripts/use.py",
            "import subprocess\nsubprocess.run(['ffmpeg', '-version'])\nimport cv2\n",
        ),
        (
            "scripts/use.mjs",
            "import x from 'left-pad';\nimport y from 'shipped';\n",
        ),
        ("scripts/node_modules/shipped/package.json", "{}"),
        ("scripts/test_use.py", "import hypothesis\n"),
        (
            "SKILL.md",
            "---\nname: x\n---\n```bash\npandoc x\n```\n`pip install opencv-python-headless rich`\n",
        ),
    ];
    let program = |name: &str, source: &str| row(NeedKind::Binary, name, false, source);
    let found = check(&FrontMatter::default(), &files, &[]);
    assert_eq!(
        found,
        [
            program("ffmpeg", "scripts/use.py:2"),
            program("libreoffice", "scripts/run.sh:5"),
            program("magick", "scripts/helper.sh:2"),
            program("pandoc", "SKILL.md:5"),
            row(
                NeedKind::PythonPackage,
                "opencv-python-headless",
                false,
                "SKILL.md:7"
            ),
            row(NeedKind::PythonPackage, "rich", false, "SKILL.md:7"),
            row(
                NeedKind::NodePackage,
                "left-pad",
                false,
                "scripts/use.mjs:1"
            ),
        ]
    );
}

#[test]
fn the_work_for_one_skill_is_bounded() {
    let long: String = (0..60_000).map(|n| format!("import m{n}\n")).collect();
    let names: Vec<String> = (0..600).map(|n| format!("scripts/s{n:03}.py")).collect();
    let mut files: Vec<(&str, &str)> = names
        .iter()
        .map(|name| (name.as_str(), "import json\n"))
        .collect();
    files.push(("scripts/0.py", &long));
    let found = check(&FrontMatter::default(), &files, &[]);
    assert!((1000..=2000).contains(&found.len()), "{}", found.len());
}

#[test]
fn what_is_not_there_is_needed_beside_few_and_many_files() {
    let packages: String = (0..1_000)
        .map(|n| format!("\"pa{n:03}\": \"1\","))
        .collect();
    let package = format!(
        "{{\"dependencies\": {{{}}}}}",
        packages.trim_end_matches(',')
    );
    let mut front = requires(&["only-here", "Only-Here"], &[], &[]);
    front
        .requires
        .bins
        .extend((0..200).map(|n| format!("b{n}")));
    for files in [20, 2_000] {
        let names: Vec<String> = (0..files).map(|n| format!("data/pa{n}.txt")).collect();
        let mut all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        all.push(("package.json", &package));
        all.push(("bin/only-here", ""));
        let dir = skill(&all);
        let manifest = Manifest::read(dir.path()).expect("manifest");
        let needs = collect_needs(&front, &manifest).expect("collected");
        // A program's name is what it is: the file in bin/ is no other one's.
        assert_eq!(needs.len(), 1_000 + 201);
    }
}

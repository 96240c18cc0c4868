//! Tests of preflight: requirements of skills against inventories of images.

use std::fs;

mod hostile_text;
mod labelled_skills;

use super::*;
use crate::catalogue::environment_need_reader::read_environment_need;
use crate::content_store::skill_files::Manifest;
use crate::error::Result;
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

fn collect(front: &FrontMatter, manifest: &Manifest) -> Result<Vec<Need>> {
    let stated = read_environment_need(manifest)?;
    collect_needs(front, manifest, &stated.node_packages)
}

fn check(front: &FrontMatter, files: &[(&str, &str)], env: &[&str]) -> Vec<Row> {
    let dir = skill(files);
    let manifest = Manifest::read(dir.path()).expect("manifest");
    let needs = collect(front, &manifest).expect("collected");
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
fn stated_needs_are_errors() {
    let any = ["soffice", "libreoffice"];
    let front = requires(
        &["jq", "pandoc", "own", "curl"],
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
            row(NeedKind::Binary, "curl", true, bins),
            row(NeedKind::Binary, "pandoc", true, bins),
            row(NeedKind::AnyBinary, "soffice, libreoffice", true, any),
            row(NeedKind::Env, "API_KEY", true, env),
        ]
    );
    let one = requires(&[], &["soffice", "jq"], &[]);
    assert_eq!(check(&one, &[], &[]), []);
}

#[test]
fn compatibility_names_programs_and_a_network() {
    let names = |text: &str| -> Vec<String> {
        let found = check(&compatible(text), &[], &[]);
        found.into_iter().map(|(_, name, ..)| name).collect()
    };
    let none: &[&str] = &[];
    // As long as the specification permits.
    let long = format!("{:500}pandoc", "Needs jq.");
    for (text, expected) in [
        (
            "Needs pandoc, make and network access.",
            &["pandoc", "the skill"][..],
        ),
        ("Python 3.11+, Internet.", &["the skill"]),
        ("no network needed", none),
        ("does not require a network", none),
        (
            "Works offline, without pandoc; the network is not used",
            none,
        ),
        ("neural networks; pandoc is optional", none),
        ("Brings the bundle.", none),
        (&long, none),
    ] {
        assert_eq!(names(text), expected, "{text}");
    }
}

/// Path and text of a file beside a SKILL.md that needs nothing, and the finding; empty for none.
#[rustfmt::skip]
const FILES: &[(&str, &str, &str)] = &[
    ("requirements.txt", "\u{feff}pandas\n", "error PythonPackage pandas requirements.txt:1"),
    ("requirements.txt", "PyYAML\npandas>=2\n", "error PythonPackage pandas requirements.txt:2"),
    ("sub/pyproject.toml", "[project]\ndependencies = [\"rich\"]\n", "error PythonPackage rich sub/pyproject.toml"),
    ("web/package.json", r#"{"dependencies": {"left-pad": "1"}}"#, "error NodePackage left-pad web/package.json"),
    ("package.json", r#"{"dependencies": {"commander": "1"}, "devDependencies": {"eslint": "1"}}"#,
        "error NodePackage eslint package.json"),
    ("a.py", "# /// script\n# dependencies = [\"rich\"]\n# ///\n", "error PythonPackage rich a.py:1"),
    ("scripts/a.rb", "#!/usr/bin/env ruby\n", "error Interpreter ruby scripts/a.rb:1"),
    ("scripts/a.ps1", "Write-Host x\n", "warning Interpreter pwsh scripts/a.ps1:1"),
    ("tool", "#!/usr/bin/env -S uv run\n", "error Interpreter uv tool:1"),
    ("a.py", "import json, numpy\nimport a\n", "warning PythonModule numpy a.py:1"),
    ("a.py", "\u{feff}import numpy\n", "warning PythonModule numpy a.py:1"),
    ("a.py", "try:\n  import x\nexcept ImportError:\n  exit('pip install x')\n", "warning PythonPackage x a.py:4"),
    ("a.py", "subprocess.run(['ffmpeg', '-version'])\n", "warning Binary ffmpeg a.py:1"),
    ("scripts/a.mjs", "import x from 'left-pad';\n", "warning NodePackage left-pad scripts/a.mjs:1"),
    ("scripts/a.sh", "set -e\nmy_step\nmagick x\n", "warning Binary magick scripts/a.sh:3"),
    ("SKILL.md", "---\n---\n```bash\npandoc x\n```\n", "warning Binary pandoc SKILL.md:4"),
    ("SKILL.md", "---\n---\n`pip install rich`\n", "warning PythonPackage rich SKILL.md:3"),
    ("SKILL.md", "---\n---\n`npm install -g docx`\n", "warning NodePackage docx SKILL.md:3"),
    ("SKILL.md", "---\n---\n```python\n!pip install rich\n```\n", "warning PythonPackage rich SKILL.md:4"),
    ("SKILL.md", "If pip install fails, try again.\nRunning npm install is required.\n", ""),
    ("SKILL.md", "Do not use pip install globally, and `uv` not to pip install x.\n", ""),
    // Nobody runs these when the skill is used.
    ("references/a.md", "```bash\npandoc x\n```\nimport nothing\n", ""),
    ("assets/a.py", "import numpy\n", ""),
    ("tests/test_a.py", "import pytest\n", ""),
    ("node_modules/x/package.json", r#"{"dependencies": {"left-pad": "1"}}"#, ""),
];

#[test]
fn files_need_what_they_state_import_and_call() {
    for (path, text, expected) in FILES {
        let needs = check(&FrontMatter::default(), &[(*path, *text)], &[]);
        let found = needs.into_iter().map(|(kind, name, is_error, source)| {
            let severity = if is_error { "error" } else { "warning" };
            format!("{severity} {kind:?} {name} {source}")
        });
        let listed = found.collect::<Vec<_>>().join(", ");
        assert_eq!(listed, *expected, "{path} {text}");
    }
}

#[test]
fn software_of_the_skill_itself_is_not_missing() {
    let files = [
        ("scripts/a.py", "import helper\nfrom examples.b import c\n"),
        ("scripts/helper.py", "import json\n"),
        // Imported, so that it runs.
        ("examples/b.py", "import numpy\n"),
        ("examples/d.py", "import scipy\n"),
        ("scripts/a.sh", "gh x\nruff check\n"),
        ("bin/gh", "#!/bin/bash\n"),
        ("requirements.txt", "ruff\n"),
        ("scripts/a.mjs", "import axios from 'axios';\n"),
        ("node_modules/axios/package.json", "{}"),
    ];
    assert_eq!(
        check(&FrontMatter::default(), &files, &[]),
        [
            row(NeedKind::PythonPackage, "ruff", true, "requirements.txt:1"),
            row(NeedKind::PythonModule, "numpy", false, "examples/b.py:1"),
        ]
    );
}

#[test]
fn one_thing_is_reported_once() {
    let files = [
        ("scripts/a.sh", "soffice x\n"),
        ("scripts/b.sh", "libreoffice y\n"),
        ("scripts/c.py", "import cv2\n"),
        ("SKILL.md", "`pip install opencv-python-headless`\n"),
        ("scripts/a.rb", "puts 1\n"),
        ("scripts/b.rb", "#!/usr/bin/env ruby\n"),
        ("scripts/d.mjs", "import x from 'x';\nimport y from 'y';\n"),
        ("scripts/e.mjs", "import y from 'y';\n"),
        ("scripts/node_modules/x/package.json", "{}"),
        // A package of that package.
        ("scripts/node_modules/x/node_modules/y/package.json", "{}"),
    ];
    let package = "opencv-python-headless";
    assert_eq!(
        check(&FrontMatter::default(), &files, &[]),
        [
            row(NeedKind::Interpreter, "ruby", true, "scripts/b.rb:1"),
            row(NeedKind::Binary, "libreoffice", false, "scripts/b.sh:1"),
            row(NeedKind::PythonPackage, package, false, "SKILL.md:1"),
            row(NeedKind::NodePackage, "y", false, "scripts/d.mjs:2"),
        ]
    );
}

#[test]
fn stated_programs_are_met_under_their_other_names() {
    let bins = ["bat", "powershell", "google-chrome-stable", "uvx"];
    let dir = skill(&[]);
    let manifest = Manifest::read(dir.path()).expect("manifest");
    let needs = collect(&requires(&bins, &[], &[]), &manifest).expect("collected");
    let programs = ["batcat", "pwsh", "chromium", "uv"];
    let image = ImageInventory {
        programs: strings(&programs).into_iter().collect(),
        ..image()
    };
    assert_eq!(find_unmet_needs(&needs, &image, None, &[]), []);
}

#[test]
fn imports_select_every_member_and_no_namesake() {
    let files = [
        (
            "scripts/run.py",
            "import utils\nfrom helpers import config\nfrom examples import a, b\nfrom demo import (\n  c,\n  d,\n)\n",
        ),
        ("scripts/utils.py", ""),
        ("scripts/helpers.py", ""),
        ("tests/utils.py", "import pytest\n"),
        ("examples/config.py", "import scipy\n"),
        ("examples/a.py", "import mod_a\n"),
        ("examples/b.py", "import mod_b\n"),
        ("demo/c.py", "import mod_c\n"),
        ("demo/d.py", "import mod_d\n"),
    ];
    let found = check(&FrontMatter::default(), &files, &[]).into_iter();
    let names: Vec<String> = found.map(|(_, name, ..)| name).collect();
    assert_eq!(names, ["mod_a", "mod_b", "mod_c", "mod_d"]);
}

#[test]
fn named_examples_count_without_other_scripts() {
    let files = [
        ("SKILL.md", "Run examples/a.py.\n"),
        ("examples/a.py", "import numpy\n"),
    ];
    let dir = skill(&files);
    let count_needs = || {
        let manifest = Manifest::read(dir.path()).expect("manifest");
        let needs = collect(&FrontMatter::default(), &manifest).expect("collected");
        find_unmet_needs(&needs, &image(), None, &[]).len()
    };
    assert_eq!(count_needs(), 1);
    // Such a skill loads, with a warning.
    let path = |name: &str| dir.path().join(name);
    fs::rename(path("SKILL.md"), path("skill.md")).expect("renamed");
    assert_eq!(count_needs(), 1);
    fs::write(path("run.sh"), "").expect("written");
    assert_eq!(count_needs(), 0);
}

#[test]
fn built_environment_counts_as_present() {
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
    let needs = collect(&FrontMatter::default(), &manifest).expect("collected");
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
fn many_node_packages_hide_no_interpreter() {
    let names: Vec<String> = (0..1000).map(|n| format!("\"p{n}\": \"1\"")).collect();
    let package = format!("{{\"dependencies\": {{{}}}}}", names.join(","));
    let front = FrontMatter::default();
    let mut files: Vec<(&str, &str)> = ["a/package.json", "b/package.json", "c/package.json"]
        .map(|path| (path, package.as_str()))
        .to_vec();
    files.push(("scripts/x.rb", "#!/usr/bin/env ruby\n"));
    let found = check(&front, &files, &[]);
    let is_ruby = |row: &Row| row.0 == NeedKind::Interpreter && row.1 == "ruby";
    assert!(found.iter().any(is_ruby), "{}", found.len());
}

#[test]
fn missing_software_is_needed_beside_many_files() {
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
        let needs = collect(&front, &manifest).expect("collected");
        // A program's name is what it is: the file in bin/ is no other one's.
        assert_eq!(needs.len(), 1_000 + 201);
    }
}

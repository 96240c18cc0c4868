//! Tests of the readers of Python requirements, with text that only resembles them.

use std::time::{Duration, Instant};

use super::*;
use crate::catalogue::preflight::python_imports;

fn names(found: &[LocatedName]) -> Vec<(&str, usize)> {
    found
        .iter()
        .map(|(name, line)| (name.as_str(), *line))
        .collect()
}

#[test]
fn modules_of_packages_with_another_name_are_known() {
    assert_eq!(likely_package_of("yaml"), "pyyaml");
    assert_eq!(likely_package_of("google.cloud.x_y"), "google-cloud-x-y");
}

#[test]
fn hostile_source_is_read_in_little_time() {
    // Less than a second is usual; what grows with the square of the length takes minutes.
    const DEADLINE: Duration = Duration::from_secs(60);
    for text in [
        "(".repeat(200_000),
        "'".repeat(200_001),
        "'''".repeat(70_000) + "'",
        "\\\n".repeat(100_000),
        "import a,".repeat(20_000),
        "import ".to_owned() + &"a".repeat(200_000),
        "\"\\".repeat(100_000),
        "from from import import\n".repeat(5000),
        "\0\u{1}\u{7f}\u{2028}".repeat(10_000),
        "# /// script\n".repeat(20_000),
    ] {
        let started = Instant::now();
        python_imports::find_imports(&text);
        read_script_block(&text);
        read_requirements(&text);
        read_project(&text);
        let elapsed = started.elapsed();
        let begin: String = text.chars().take(20).collect();
        assert!(elapsed < DEADLINE, "{begin:?}: {elapsed:?}");
    }
}

#[test]
fn a_scripts_own_block_is_read() {
    let block = |lines: &str| read_script_block(lines);
    let good = "#!/usr/bin/env -S uv run --script\n# /// script\n# requires-python = \">=3.11\"\n#\n\
        # dependencies = [\n#   \"requests<3\", \"Rich\",\n#   \"pywin32; sys_platform == 'win32'\",\n# ]\n# ///\nimport x\n";
    assert_eq!(names(&block(good)), [("requests", 2), ("rich", 2)]);
    for bad in [
        "",
        "# /// script\n# dependencies = [\"a\"]\n",
        "# /// script\n# dependencies = [\n# ///\n",
        "# /// script\nimport x\n# dependencies = [\"a\"]\n# ///\n",
        "# /// script\n# dependencies = \"a\"\n# ///\n",
        "# /// script\n# dependencies = [1, [\"a\"]]\n# ///\n",
        "# /// pyproject\n# dependencies = [\"a\"]\n# ///\n",
        " # /// script\n # dependencies = [\"a\"]\n # ///\n",
    ] {
        assert_eq!(block(bad), [], "{bad:?}");
    }
}

#[test]
fn requirements_are_names_whatever_follows() {
    let text = "# comment\nrequests==2.31 # why\nPyYAML>=6,<7\nmarkitdown[pptx] ~= 0.1\n\
        zope.interface ; python_version > '3'\npywin32 ; sys_platform == \"win32\"\n-r other.txt\n--index-url https://x\n\
        -e .\n./local\n/abs\ngit+https://example.org/x.git\nnamed @ https://example.org/x.whl\n\
        hashed==1 \\\n    --hash=sha256:abc\n\nspaced name\n$(rm)\nlast";
    let expected = [
        ("requests", 2),
        ("pyyaml", 3),
        ("markitdown", 4),
        ("zope-interface", 5),
        ("named", 13),
        ("hashed", 14),
        ("last", 19),
    ];
    assert_eq!(names(&read_requirements(text)), expected);
}

#[test]
fn projects_name_their_dependencies() {
    let pep = "[project]\ndependencies = [\"A_b.C>1\", 3]\n[project.optional-dependencies]\ndev = [\"pytest\"]\n";
    assert_eq!(names(&read_project(pep)), [("a-b-c", 0)]);
    let poetry = "[tool.poetry.dependencies]\npython = \"^3\"\nhttpx = \"*\"\nx = {version = \"1\", optional = true}\n";
    assert_eq!(names(&read_project(poetry)), [("httpx", 0)]);
    for bad in [
        "",
        "[project",
        "project = 1",
        "[project]\ndependencies = {}",
    ] {
        assert_eq!(read_project(bad), []);
    }
}

//! Chooses the files of a skill that preflight reads. These are its SKILL.md, its package files and the scripts that
//! run when the skill is used.

use crate::content_store::skill_files::{FilePurpose, Manifest, SkillFile, is_reference};

/// Folders whose files are no part of what runs: nobody needs what a template or a test needs.
#[rustfmt::skip]
const ASIDE: &[&str] = &[
    "__fixtures__", "__mocks__", "__tests__", "assets", "benchmarks", "boilerplate", "demo", "demos", "e2e", "eval",
    "evals", "example", "examples", "fixture", "fixtures", "sample", "samples", "scaffold", "scaffolds", "skeleton",
    "spec", "specs", "starter", "starters", "stubs", "template", "templates", "test", "test-data", "testdata", "tests",
];
/// Folders with packages of others, which bring or guard what they import.
#[rustfmt::skip]
const VENDORED: &[&str] = &[
    ".venv", "_vendor", "node_modules", "site-packages", "third_party", "vendor", "vendored", "venv",
];
/// Endings of names of files that only development needs.
const DEVELOPMENT_ENDINGS: [&str; 4] = [".test", ".spec", ".config", ".d"];

/// Use of a file in preflight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileUse {
    SkillMd,
    Requirements,
    PythonProject,
    Script,
}

/// File to read, with its use.
pub(crate) type SelectedFile<'a> = (&'a SkillFile, FileUse);

/// Returns the files to read, in their order. `document` is the text of SKILL.md.
pub(crate) fn select_files<'a>(manifest: &'a Manifest, document: &str) -> Vec<SelectedFile<'a>> {
    let files = manifest.files().iter();
    let used: Vec<SelectedFile<'_>> = files
        .filter_map(|file| Some((file, use_of_file(file)?)))
        .collect();
    let is_plain_script =
        |(file, used): &SelectedFile<'_>| *used == FileUse::Script && !is_aside(&file.path);
    // Some skills keep all of their scripts in such a folder, and tell to run them.
    let has_scripts = used.iter().any(is_plain_script);
    let is_wanted = |(file, _): &SelectedFile<'_>| {
        let name = file.path.rsplit('/').next().unwrap_or(&file.path);
        !is_aside(&file.path) || (!has_scripts && document.contains(name))
    };
    used.into_iter().filter(is_wanted).collect()
}

/// Returns the files named package.json of a skill, except for those of tests, templates and other packages.
pub(crate) fn select_node_packages(manifest: &Manifest) -> impl Iterator<Item = &SkillFile> {
    let is_package = |path: &str| path == "package.json" || path.ends_with("/package.json");
    let files = manifest.files().iter();
    files.filter(move |file| {
        file.is_text && is_package(&file.path) && !is_vendored(&file.path) && !is_aside(&file.path)
    })
}

fn use_of_file(file: &SkillFile) -> Option<FileUse> {
    if is_vendored(&file.path) || !file.is_text {
        return None;
    }
    match file.path.rsplit('/').next().unwrap_or(&file.path) {
        "requirements.txt" => Some(FileUse::Requirements),
        "pyproject.toml" => Some(FileUse::PythonProject),
        name if name.eq_ignore_ascii_case("SKILL.md") => Some(FileUse::SkillMd),
        // What shows how to do something does not run.
        _ if is_reference(&file.path) => None,
        _ => (file.purpose == FilePurpose::Script).then_some(FileUse::Script),
    }
}

/// Returns `true` for the path of a file of somebody else's package.
pub(super) fn is_vendored(path: &str) -> bool {
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    folders.split('/').any(|folder| VENDORED.contains(&folder))
}

/// Returns `true` for the path of a test, a fixture or an example.
fn is_aside(path: &str) -> bool {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    let is_python_test = stem.starts_with("test_") || stem.ends_with("_test") || stem == "conftest";
    let is_development = DEVELOPMENT_ENDINGS.iter().any(|end| stem.ends_with(end));
    folders.split('/').any(|folder| ASIDE.contains(&folder))
        || (is_python_test && matches!(ending, "py" | "sh" | "bats"))
        || is_development
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_fixtures_are_told_by_folder_and_by_name() {
        for path in [
            "tests/x.py",
            "scripts/__tests__/x.js",
            "spec/fixtures/x.sh",
            "evals/run.py",
            "scripts/test_x.py",
            "scripts/x_test.py",
            "conftest.py",
            "web/x.test.js",
            "web/x.spec.ts",
            "vite.config.ts",
            "types/x.d.ts",
        ] {
            assert!(is_aside(path), "{path}");
        }
        for path in [
            "scripts/x.py",
            "scripts/testing.py",
            "scripts/test.py",
            "scripts/latest.js",
            "contest.py",
            "protest/x.py",
            "scripts/config.js",
        ] {
            assert!(!is_aside(path), "{path}");
        }
    }
}

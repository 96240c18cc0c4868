//! House rules that neither the compiler nor clippy knows, over every tracked file of the repository. Each
//! message says what to do. `self_test` shows that every rule catches what it is there for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a file without its tests.
const LINES_MAX: usize = 500;

/// What may stand at the top of the repository, and whether it must.
const TOP_LEVEL: &[(&str, bool)] = &[
    (".ci", true),
    (".gitignore", true),
    ("ARCHITECTURE.md", true),
    ("CHANGELOG.md", true),
    ("CONTRIBUTING.md", true),
    ("Cargo.lock", true),
    ("Cargo.toml", true),
    ("LICENSE", true),
    ("Makefile", true),
    ("README.md", true),
    ("client", true),
    ("clippy.toml", true),
    ("daemon", true),
    ("deny.toml", true),
    ("docs", true),
    ("images", true),
    ("proto", true),
    ("rustfmt.toml", true),
    ("skills", true),
    ("tests", true),
];

/// Modules of the daemon from the bottom up: a module may use those of its own floor and of floors below.
const FLOORS: &[&[&str]] = &[
    &["error"],
    &["beneath", "fault", "mime", "shutdown", "similar", "paths"],
    &["engine", "fetch"],
    &["config"],
    &["telemetry", "exec", "guest", "skills", "artifacts"],
    &["pool", "workspace"],
    &["collect", "inputs"],
    &["rpc"],
    &["server", "fuzz"],
];

/// Crate → crates of ours that its `[dependencies]` may name.
const CRATES: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("images/guest", &["skilld-proto"]),
    ("daemon", &["skilld-proto"]),
    ("client", &["skilld-proto"]),
];

/// One tracked file.
struct File<'a> {
    path: &'a str,
    text: &'a str,
}

impl File<'_> {
    /// Not a test: beneath a `src/`, and not `tests.rs` or beneath a `tests/`.
    fn is_product(&self) -> bool {
        let in_tests = self.path.starts_with("tests/") || self.path.contains("/tests/");
        self.path.contains("src/") && !in_tests && !self.path.ends_with("/tests.rs")
    }

    /// Lines with their numbers, comments and test modules taken away.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let numbered = self.text.lines().enumerate();
        numbered
            .take(self.product_lines())
            .map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default()))
    }

    /// Number of lines before the tests, which are a module at the end of the file.
    fn product_lines(&self) -> usize {
        let lines: Vec<&str> = self.text.lines().map(str::trim).collect();
        let tests = lines.windows(2).position(|pair| {
            pair.first() == Some(&"#[cfg(test)]")
                && pair.last().is_some_and(|line| line.contains('{'))
        });
        tests.filter(|_| self.is_product()).unwrap_or(lines.len())
    }

    fn fault(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path)
    }

    /// A fault for every line of code that `is_bad`.
    fn faults(&self, what: &str, is_bad: impl Fn(&str) -> bool) -> Vec<String> {
        let bad = self.code().filter(|(_, line)| is_bad(line));
        bad.map(|(number, _)| self.fault(number, what)).collect()
    }
}

// === rules ===

fn begins_with_module_comment(file: &File<'_>) -> Vec<String> {
    if file.text.starts_with("//!") {
        return Vec::new();
    }
    vec![file.fault(
        1,
        "begin with `//!`: what this file owns and what it never does",
    )]
}

fn is_not_too_long(file: &File<'_>) -> Vec<String> {
    let lines = file.product_lines();
    if !file.is_product() || lines <= LINES_MAX {
        return Vec::new();
    }
    vec![file.fault(
        lines,
        &format!("over {LINES_MAX} lines: split it by what it owns"),
    )]
}

fn is_not_mod_rs(file: &File<'_>) -> Vec<String> {
    if Path::new(file.path)
        .file_name()
        .is_none_or(|name| name != "mod.rs")
    {
        return Vec::new();
    }
    vec![file.fault(1, "name it after its folder: `foo.rs` beside `foo/`")]
}

/// Code word → where in the daemon it may stand.
const HOMES: &[(&str, &[&str])] = &[
    ("bollard", &["daemon/src/engine/docker"]),
    ("figment", &["daemon/src/config"]),
    ("anyhow", &["daemon/src/main.rs"]),
];

fn libraries_stay_in_their_place(file: &File<'_>) -> Vec<String> {
    if !file.path.starts_with("daemon/src/") {
        return Vec::new();
    }
    let strange = HOMES
        .iter()
        .filter(|(_, homes)| !homes.iter().any(|home| file.path.starts_with(home)));
    strange
        .flat_map(|(word, homes)| {
            let what = format!(
                "`{word}` is named only in {}: ask for what you need there",
                homes.join(", ")
            );
            file.faults(&what, |line| has_word(line, word))
        })
        .collect()
}

fn status_is_made_in_error_rs(file: &File<'_>) -> Vec<String> {
    if !file.path.starts_with("daemon/src/")
        || !file.is_product()
        || file.path == "daemon/src/error.rs"
    {
        return Vec::new();
    }
    let what = "build no `Status` here: return an `Error`; error.rs maps it, with its reason";
    file.faults(what, |line| {
        line.split("Status::").skip(1).any(|rest| {
            let name: String = rest
                .chars()
                .take_while(|char| char.is_alphanumeric() || *char == '_')
                .collect();
            let made = rest
                .get(name.len()..)
                .is_some_and(|rest| rest.starts_with('('));
            let makes = name.starts_with(char::is_lowercase) && !name.starts_with("from");
            made && makes
        })
    })
}

fn unsafe_is_in_sys_rs(file: &File<'_>) -> Vec<String> {
    if file.path == "images/guest/src/sys.rs" {
        return Vec::new();
    }
    file.faults(
        "`unsafe` belongs into images/guest/src/sys.rs, with its reason",
        |line| has_word(&without_strings(line), "unsafe"),
    )
}

fn nothing_is_left_undone(file: &File<'_>) -> Vec<String> {
    file.faults(
        "do it, or leave it out: no ignored tests, no stubs",
        |line| {
            let line = without_strings(line);
            ["#[ignore", "todo!(", "unimplemented!("]
                .iter()
                .any(|word| line.contains(word))
        },
    )
}

fn no_path_of_a_build_machine(file: &File<'_>) -> Vec<String> {
    // In pieces, so that this file keeps its own rule.
    let roots = [
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
        concat!("/Us", "ers/"),
        concat!("/tmp/", "wt"),
    ];
    let mut faults = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let found = roots.iter().any(|root| {
            line.match_indices(root).any(|(at, _)| {
                let before = line.get(..at).and_then(|head| head.chars().next_back());
                before.is_none_or(|char| " \"'`(=,<".contains(char))
            })
        });
        if found {
            faults.push(file.fault(
                index + 1,
                "this path exists on one machine only: make it relative",
            ));
        }
    }
    faults
}

fn imports_point_down(file: &File<'_>) -> Vec<String> {
    let Some(own) = file.path.strip_prefix("daemon/src/") else {
        return Vec::new();
    };
    let own = own.split(['/', '.']).next().unwrap_or_default();
    let Some(floor) = floor(own) else {
        return Vec::new();
    };
    let above = |line: &str| {
        line.split("crate::").skip(1).find_map(|rest| {
            let name: String = rest
                .chars()
                .take_while(|char| char.is_alphanumeric() || *char == '_')
                .collect();
            (self::floor(&name)? > floor).then_some(name)
        })
    };
    file.code()
        .filter_map(|(number, line)| {
            let name = above(line)?;
            let what = format!(
                "`{own}` must not use `{name}`, which lies above it: pass in what it needs"
            );
            Some(file.fault(number, &what))
        })
        .collect()
}

fn every_module_has_a_floor(file: &File<'_>) -> Vec<String> {
    let Some(name) = file
        .path
        .strip_prefix("daemon/src/")
        .and_then(|name| name.strip_suffix(".rs"))
    else {
        return Vec::new();
    };
    if name.contains('/') || ["lib", "main"].contains(&name) || floor(name).is_some() {
        return Vec::new();
    }
    vec![file.fault(
        1,
        "a new module: add it to FLOORS in daemon/tests/tidy.rs and to the table in lib.rs",
    )]
}

fn crates_depend_as_designed(path: &str, text: &str) -> Vec<String> {
    let Some((_, allowed)) = CRATES
        .iter()
        .find(|(crate_path, _)| format!("{crate_path}/Cargo.toml") == path)
    else {
        return Vec::new();
    };
    let dependencies = text.split("[dependencies]").nth(1).unwrap_or_default();
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    let names = dependencies
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next());
    names
        .filter(|name| name.starts_with("skilld") && !allowed.contains(name))
        .map(|name| {
            format!("{path}: must not depend on {name}: see the table of crates in ARCHITECTURE.md")
        })
        .collect()
}

fn top_level_is_as_designed(entries: &BTreeSet<&str>) -> Vec<String> {
    let strange = entries
        .iter()
        .filter(|entry| !TOP_LEVEL.iter().any(|(name, _)| name == *entry));
    let strange =
        strange.map(|entry| format!("{entry}: put it beneath one of the folders of the top level"));
    let missing = TOP_LEVEL
        .iter()
        .filter(|(name, must)| *must && !entries.contains(name));
    strange
        .chain(missing.map(|(name, _)| format!("{name}: must exist at the top level")))
        .collect()
}

/// All rules for one Rust file.
fn tidy(path: &str, text: &str) -> Vec<String> {
    let file = File { path, text };
    let rules: [fn(&File<'_>) -> Vec<String>; 10] = [
        begins_with_module_comment,
        is_not_too_long,
        is_not_mod_rs,
        libraries_stay_in_their_place,
        status_is_made_in_error_rs,
        unsafe_is_in_sys_rs,
        nothing_is_left_undone,
        no_path_of_a_build_machine,
        imports_point_down,
        every_module_has_a_floor,
    ];
    rules.iter().flat_map(|rule| rule(&file)).collect()
}

// === words ===

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

fn has_word(line: &str, word: &str) -> bool {
    let part = |char: char| char.is_alphanumeric() || char == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|head| head.chars().next_back());
        let after = line
            .get(at + word.len()..)
            .and_then(|tail| tail.chars().next());
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

/// A line with the contents of its string literals left out.
fn without_strings(line: &str) -> String {
    line.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}

// === the repository ===

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Tracked files and new ones that are not ignored, as they are in the work tree.
fn files() -> Vec<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root())
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
    let names = String::from_utf8(output.stdout).expect("file names are UTF-8");
    let names = names
        .split('\0')
        .filter(|name| !name.is_empty() && root().join(name).is_file());
    names.map(str::to_owned).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_repository_keeps_the_house_rules() {
    let files = files();
    let mut faults = Vec::new();
    for path in &files {
        if path.ends_with(".rs") {
            faults.extend(tidy(path, &read(path)));
        } else if path.ends_with("Cargo.toml") {
            faults.extend(crates_depend_as_designed(path, &read(path)));
        }
    }
    let top = files
        .iter()
        .filter_map(|path| path.split('/').next())
        .collect();
    faults.extend(top_level_is_as_designed(&top));
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

// === the rules themselves ===

#[track_caller]
fn check(path: &str, text: &str, expected: &[&str]) {
    let found = tidy(path, text);
    assert_eq!(found.len(), expected.len(), "{path}: {text:?}: {found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{found}\n  lacks {expected}");
    }
}

#[test]
fn self_test_shape() {
    check("client/src/a.rs", "//! Owns a.\n", &[]);
    check(
        "client/src/a.rs",
        "fn a() {}\n",
        &["client/src/a.rs:1: begin with `//!`"],
    );
    let long = format!("//! Long.\n{}", "fn a() {}\n".repeat(500));
    check("client/src/a.rs", &long, &["over 500 lines"]);
    check("client/src/a/tests.rs", &long, &[]);
    let tested = format!(
        "//! Short.\n#[cfg(test)]\nmod tests {{\n{}}}\n",
        "fn a() {}\n".repeat(500)
    );
    check("client/src/a.rs", &tested, &[]);
    check(
        "client/src/a/mod.rs",
        "//! A.\n",
        &["name it after its folder"],
    );
}

#[test]
fn self_test_words() {
    check(
        "daemon/src/pool.rs",
        "//! A.\nuse bollard::Docker;\n",
        &["pool.rs:2: `bollard` is named only in"],
    );
    check("daemon/src/pool.rs", "//! A.\n// bollard\n", &[]);
    check(
        "daemon/src/engine/docker/create.rs",
        "//! A.\nuse bollard::Docker;\n",
        &[],
    );
    check(
        "daemon/src/rpc/exec.rs",
        "//! A.\nuse figment::Figment;\n",
        &["`figment` is named only in"],
    );
    check(
        "daemon/src/server.rs",
        "//! A.\nuse anyhow::Result;\n",
        &["`anyhow` is named only in"],
    );
    check(
        "daemon/src/rpc.rs",
        "//! A.\nfn a() { Status::not_found(\"x\") }\n",
        &["build no `Status`"],
    );
    check(
        "daemon/src/rpc.rs",
        "//! A.\nfn a() { tonic::Status::new(code, \"x\") }\n",
        &["build no `Status`"],
    );
    check(
        "daemon/src/rpc.rs",
        "//! A.\nfn a(s: Status) { Status::from(Error::Draining) }\n",
        &[],
    );
    check(
        "daemon/src/error.rs",
        "//! A.\nfn a() { Status::not_found(\"x\") }\n",
        &[],
    );
    check(
        "daemon/src/rpc.rs",
        "//! A.\n#[cfg(test)]\nmod tests { fn a() { Status::ok(\"\") } }\n",
        &[],
    );
    check(
        "client/src/a.rs",
        "//! A.\nunsafe { a() }\n",
        &["`unsafe` belongs into"],
    );
    check(
        "client/src/a.rs",
        "//! A.\n#![forbid(unsafe_code)]\nconst A: &str = \"unsafe\";\n",
        &[],
    );
    check("images/guest/src/sys.rs", "//! A.\nunsafe { a() }\n", &[]);
}

#[test]
fn self_test_leftovers() {
    let ignored = format!("//! A.\n#[{}]\nfn a() {{}}\n", "ignore");
    check("daemon/tests/a.rs", &ignored, &["no ignored tests"]);
    check(
        "client/src/a.rs",
        &format!("//! A.\nfn a() {{ {}!() }}\n", "todo"),
        &["no stubs"],
    );
    check(
        "client/src/a.rs",
        &format!("//! A.\nfn a() {{ {}!() }}\n", "unimplemented"),
        &["no stubs"],
    );
    let path = format!("//! A.\nconst A: &str = \"/{}/x\";\n", "work");
    check("client/src/a.rs", &path, &["exists on one machine only"]);
    check(
        "client/src/a.rs",
        "//! A.\nconst A: &str = \"/workspace/work/x $A/work/x\";\n",
        &[],
    );
}

#[test]
fn self_test_directions() {
    check(
        "daemon/src/pool.rs",
        "//! A.\nuse crate::rpc::convert;\n",
        &["`pool` must not use `rpc`"],
    );
    check(
        "daemon/src/config/raw.rs",
        "//! A.\nuse crate::telemetry;\n",
        &["`config` must not use `telemetry`"],
    );
    check(
        "daemon/src/error.rs",
        "//! A.\nuse crate::config::Config;\n",
        &["`error` must not use `config`"],
    );
    check(
        "daemon/src/rpc/exec.rs",
        "//! A.\nuse crate::workspace::Slot;\nuse crate::error::Error;\n",
        &[],
    );
    check("daemon/src/news.rs", "//! A.\n", &["add it to FLOORS"]);
    let guest = "[package]\n[dependencies]\nskilld-proto.workspace = true\nskilld-client.workspace = true\n";
    let found = crates_depend_as_designed("images/guest/Cargo.toml", guest);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("must not depend on skilld-client"));
    let development = "[dependencies]\nskilld-proto.workspace = true\n\n[dev-dependencies]\nskilld-client.workspace = true\n";
    assert!(crates_depend_as_designed("daemon/Cargo.toml", development).is_empty());
}

#[test]
fn self_test_top_level() {
    let all: BTreeSet<&str> = TOP_LEVEL.iter().map(|(name, _)| *name).collect();
    assert!(top_level_is_as_designed(&all).is_empty());
    let mut strange = all.clone();
    strange.insert("scripts");
    assert_eq!(
        top_level_is_as_designed(&strange),
        ["scripts: put it beneath one of the folders of the top level"]
    );
    let mut missing = all;
    missing.remove("README.md");
    assert_eq!(
        top_level_is_as_designed(&missing),
        ["README.md: must exist at the top level"]
    );
}

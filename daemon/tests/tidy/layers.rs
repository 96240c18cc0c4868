//! Rules about directions: which module and which crate may use which, that no modules use each other in a circle, and
//! where a crate's modules import from.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::{list_imports, module_path};
use crate::source::{Finding, SourceFile};

/// Modules of the daemon from the bottom up: a module may use those of its own layer and of the layers below.
const DAEMON_LAYERS: &[&[&str]] = &[
    &["error"],
    &[
        "fault",
        "host_paths",
        "metrics",
        "openat2",
        "shutdown",
        "workspace_paths",
    ],
    &["engine", "fetch"],
    &["config"],
    &["access"],
    &["usage"],
    &[
        "telemetry",
        "doctor",
        "exec",
        "guest",
        "skills",
        "artifacts",
        "audit",
    ],
    &["pool"],
    &["workspace"],
    &["collect", "inputs", "environments", "exec_launch"],
    &["rpc"],
    &["server"],
];

/// Crate → crates of ours that its `[dependencies]` may name.
const CRATES: &[(&str, &[&str])] = &[
    ("common", &[]),
    ("proto", &[]),
    ("images/guest", &["skilld-common", "skilld-proto"]),
    ("daemon/skills", &["skilld-common"]),
    (
        "daemon",
        &["skilld-common", "skilld-proto", "skilld-skills"],
    ),
    ("client", &["skilld-proto"]),
    (
        "client/tools",
        &["skilld-common", "skilld-proto", "skilld-client"],
    ),
    (
        "client/testing",
        &["skilld-proto", "skilld-client", "skilld-tools"],
    ),
    (
        "client/skillctl",
        &[
            "skilld-common",
            "skilld-proto",
            "skilld-client",
            "skilld-tools",
        ],
    ),
    ("client/python", &["skilld-client", "skilld-tools"]),
];

/// Crate → libraries that it must do without.
const BANNED_LIBRARIES: &[(&str, &[&str])] = &[
    ("daemon/skills", &["tonic", "tonic-types"]),
    ("client", &["clap", "rmcp", "reqwest"]),
    ("client/tools", &["clap"]),
];

/// Source directory of the crate whose root re-exports for others only.
const ROOT_IS_FOR_OTHERS: &str = "daemon/skills/src/";

/// Maximum number of modules that pass a name on, one to the next.
const ALIASES_MAX: usize = 4;

/// First module of the line in ARCHITECTURE.md that shows the daemon's layers from the top down.
const DIAGRAM_BEGINS: &str = "main → server → ";

/// Returns a finding for every use of a higher layer, and for a module of the daemon without a layer.
pub(crate) fn check_daemon_layers(file: &SourceFile<'_>) -> Vec<Finding> {
    let Some(path) = file.path.strip_prefix("daemon/src/") else {
        return Vec::new();
    };
    let module = module_path(path);
    let Some(own) = module.first().filter(|name| *name != "bin") else {
        return Vec::new();
    };
    let Some(layer) = daemon_layer(own) else {
        let message = format!(
            "module `{own}` has no layer: add it to DAEMON_LAYERS in daemon/tests/tidy/layers.rs, to the table in \
             lib.rs and to ARCHITECTURE.md"
        );
        return vec![file.finding(1, message)];
    };
    let mut findings = Vec::new();
    for import in list_imports(file, &module) {
        let above = import
            .target
            .first()
            .filter(|name| daemon_layer(name).is_some_and(|other| other > layer));
        if let Some(name) = above {
            let message = format!(
                "`{own}` must not use `{name}`, which lies above it: pass in what it needs"
            );
            findings.push(file.finding(import.line, message));
        }
    }
    findings
}

/// Returns findings for dependencies between our crates, or on libraries, that the design does not have.
pub(crate) fn check_dependencies(path: &str, text: &str) -> Vec<Finding> {
    let Some(directory) = path.strip_suffix("/Cargo.toml") else {
        return Vec::new();
    };
    if directory.starts_with("tests") || directory.ends_with("fuzz") {
        return Vec::new();
    }
    let manifest = SourceFile { path, text };
    let Some((_, allowed)) = CRATES.iter().find(|(name, _)| *name == directory) else {
        let message =
            "a new crate: add it to CRATES in daemon/tests/tidy/layers.rs and to ARCHITECTURE.md";
        return vec![manifest.finding(0, message)];
    };
    let banned: BTreeSet<&str> = BANNED_LIBRARIES
        .iter()
        .filter(|(name, _)| *name == directory)
        .flat_map(|(_, libraries)| *libraries)
        .copied()
        .collect();
    let dependencies = text
        .split("[dependencies]")
        .nth(1)
        .and_then(|rest| rest.split("\n[").next())
        .unwrap_or_default();
    let names = dependencies
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next());
    names
        .filter(|name| {
            banned.contains(name) || (name.starts_with("skilld") && !allowed.contains(name))
        })
        .map(|name| {
            let message =
                format!("must not depend on {name}: see the table of crates in ARCHITECTURE.md");
            manifest.finding(0, message)
        })
        .collect()
}

/// Returns a finding if the diagram of ARCHITECTURE.md has the daemon's layers in another order than the table.
pub(crate) fn check_architecture_diagram(text: &str) -> Vec<Finding> {
    let file = SourceFile {
        path: "ARCHITECTURE.md",
        text,
    };
    let line = text
        .lines()
        .enumerate()
        .find(|(_, line)| line.trim_start().starts_with(DIAGRAM_BEGINS));
    let Some((index, line)) = line else {
        let message =
            format!("show the daemon's layers in a line that begins with `{DIAGRAM_BEGINS}`");
        return vec![file.finding(0, message)];
    };
    let mut findings = Vec::new();
    let mut lowest: Option<(usize, String)> = None;
    for step in line.split('→').map(str::trim) {
        let names = step.trim_matches(['{', '}']).split(',').map(str::trim);
        let layers = names
            .filter_map(|name| Some((daemon_layer(name)?, name)))
            .collect::<Vec<_>>();
        for (layer, name) in &layers {
            if let Some((_, above)) = lowest.as_ref().filter(|(lowest, _)| layer > lowest) {
                let message = format!(
                    "the diagram has `{above}` above `{name}`, daemon/tests/tidy/layers.rs below it"
                );
                findings.push(file.finding(index + 1, message));
            }
        }
        lowest = layers
            .into_iter()
            .min()
            .map(|(layer, name)| (layer, name.to_owned()))
            .or(lowest);
    }
    findings
}

fn daemon_layer(module: &str) -> Option<usize> {
    DAEMON_LAYERS
        .iter()
        .position(|layer| layer.contains(&module))
}

/// Import between two siblings: the importing module, the imported one, and an example of the place.
type SiblingImports = BTreeMap<String, BTreeMap<String, String>>;

/// Returns a finding for every module that is part of an import cycle. The files are those of one crate, all of them
/// beneath `source_directory`.
///
/// Modules are compared with their siblings; `foo.rs` and `foo/` are one. A parent and its children may use each other,
/// since children are parts of their parent.
pub(crate) fn check_import_cycles(
    source_directory: &str,
    files: &[SourceFile<'_>],
) -> Vec<Finding> {
    let mut directories: BTreeMap<Vec<String>, SiblingImports> = BTreeMap::new();
    let aliases = list_aliases(source_directory, files);
    for file in files.iter().filter(|file| file.is_product()) {
        let Some(path) = file.path.strip_prefix(source_directory) else {
            continue;
        };
        let module = module_path(path.trim_start_matches('/'));
        for mut import in list_imports(file, &module) {
            for _ in 0..ALIASES_MAX {
                if let Some(path) = aliases.get(&import.target) {
                    import.target.clone_from(path);
                }
            }
            let shared = module
                .iter()
                .zip(&import.target)
                .take_while(|(own, other)| own == other)
                .count();
            let (Some(own), Some(other)) = (module.get(shared), import.target.get(shared)) else {
                continue;
            };
            let place = format!("{}:{}", file.path, import.line);
            let parent = module.iter().take(shared).cloned().collect();
            let siblings = directories.entry(parent).or_default();
            siblings
                .entry(own.clone())
                .or_default()
                .entry(other.clone())
                .or_insert(place);
        }
    }
    let mut findings = Vec::new();
    for (parent, siblings) in &directories {
        let mut directory = vec![source_directory.trim_end_matches('/')];
        directory.extend(parent.iter().map(String::as_str));
        findings.extend(cycles_of(&directory.join("/"), siblings));
    }
    findings
}

/// Returns the paths of names that modules import, by the path that the name has in the module: `pub use pool::Pool` in
/// the root makes `crate::Pool`, and a module's imports are its children's by `super::`.
fn list_aliases(
    source_directory: &str,
    files: &[SourceFile<'_>],
) -> BTreeMap<Vec<String>, Vec<String>> {
    let mut aliases = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_product()) {
        let Some(path) = file.path.strip_prefix(source_directory) else {
            continue;
        };
        let module = module_path(path.trim_start_matches('/'));
        let own = module
            .iter()
            .fold("crate::".to_owned(), |path, name| path + name + "::");
        let uses = file.text.lines().map(|line| {
            let Some((visibility, path)) = split_use(line) else {
                return line.to_owned();
            };
            // The paths of a module's own children begin with their names.
            match ["crate::", "super::"]
                .iter()
                .any(|root| path.starts_with(root))
            {
                true => line.to_owned(),
                false => format!("{visibility}use {own}{path}"),
            }
        });
        let text = uses.collect::<Vec<_>>().join("\n");
        let read = SourceFile {
            path: file.path,
            text: &text,
        };
        let lines: Vec<&str> = text.lines().collect();
        for import in list_imports(&read, &module) {
            let line = import
                .line
                .checked_sub(1)
                .and_then(|index| lines.get(index));
            let mut name = module.clone();
            name.extend(import.target.last().cloned());
            if line.is_some_and(|line| split_use(line).is_some()) && name != import.target {
                aliases.insert(name, import.target);
            }
        }
    }
    aliases
}

/// Splits a line that begins an import: what precedes `use`, and the path.
fn split_use(line: &str) -> Option<(&str, &str)> {
    let (visibility, path) = line.split_once("use ")?;
    let is_visibility =
        visibility.is_empty() || visibility.starts_with("pub") && visibility.ends_with(' ');
    is_visibility.then_some((visibility, path))
}

/// Returns a finding for every import from the root of a crate whose root re-exports for others only.
pub(crate) fn check_root_imports(files: &[SourceFile<'_>]) -> Vec<Finding> {
    let modules: Vec<_> = files
        .iter()
        .filter_map(|file| {
            let path = module_path(file.path.strip_prefix(ROOT_IS_FOR_OTHERS)?);
            Some((file, path)).filter(|(file, path)| file.is_product() && !path.is_empty())
        })
        .collect();
    let tops: BTreeSet<&String> = modules
        .iter()
        .filter_map(|(_, path)| path.first())
        .collect();
    let imports = modules.iter().flat_map(|(file, path)| {
        let imports = list_imports(file, path).into_iter();
        imports.map(move |import| (file, import))
    });
    let findings = imports.filter_map(|(file, import)| {
        let name = import.target.first().filter(|name| !tops.contains(name))?;
        // In an inline module `super` is its file.
        let mut lines = file.text.lines();
        let line = lines.nth(import.line.saturating_sub(1))?;
        let message = format!("import `{name}` from the module that owns it, not from lib.rs");
        line.contains("crate::")
            .then(|| file.finding(import.line, message))
    });
    findings.collect()
}

/// Returns the findings of one directory: every module that reaches itself through a sibling.
fn cycles_of(directory: &str, siblings: &SiblingImports) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (module, imports) in siblings {
        let cycle: Vec<&str> = siblings
            .keys()
            .map(String::as_str)
            .filter(|name| reaches(siblings, module, name) && reaches(siblings, name, module))
            .collect();
        let next = imports
            .iter()
            .find(|(next, _)| cycle.contains(&next.as_str()));
        if let Some((next, place)) = next {
            findings.push(Finding {
                path: format!("{directory}/{module}"),
                line: 0,
                message: format!(
                    "in an import cycle of {{{}}}: uses `{next}` at {place}",
                    cycle.join(", ")
                ),
            });
        }
    }
    findings
}

/// Returns `true` if imports lead from one sibling to another.
fn reaches(siblings: &SiblingImports, from: &str, to: &str) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(name) = open.pop() {
        if name == to {
            return true;
        }
        if seen.insert(name) {
            open.extend(
                siblings
                    .get(name)
                    .into_iter()
                    .flat_map(BTreeMap::keys)
                    .map(String::as_str),
            );
        }
    }
    false
}

#[test]
fn uses_of_a_higher_layer_are_found() {
    let found = |path, text: &str| {
        let found = check_daemon_layers(&SourceFile { path, text });
        found.iter().map(Finding::to_string).collect::<String>()
    };
    for (path, text, expected) in [
        (
            "daemon/src/pool.rs",
            "use crate::rpc::convert;\n",
            "daemon/src/pool.rs:1: `pool` must not use `rpc`",
        ),
        (
            "daemon/src/config/raw.rs",
            "use crate::{error::Error,\n    telemetry};\n",
            "`config` must not use `telemetry`",
        ),
        (
            "daemon/src/error.rs",
            "fn a() { crate::config::load() }\n",
            "`error` must not use `config`",
        ),
        ("daemon/src/news.rs", "//! A.\n", "has no layer"),
    ] {
        let found = found(path, text);
        assert!(found.contains(expected), "{path}: {found}");
    }
    let allowed = "use crate::workspace::Slot;\nuse crate::error::Error;\n";
    assert_eq!(found("daemon/src/rpc/exec.rs", allowed), "");
}

#[test]
fn dependencies_that_the_design_does_not_have_are_found() {
    let count = |path, text| check_dependencies(path, text).len();
    let client = "[package]\n[dependencies]\nskilld-proto.workspace = true\nskilld-client.workspace = true\n";
    assert_eq!(count("images/guest/Cargo.toml", client), 1);
    assert_eq!(count("client/tools/Cargo.toml", client), 0);
    let development = "[dependencies]\nskilld-proto.workspace = true\n\n[dev-dependencies]\nskilld-client.workspace = true\n";
    assert_eq!(count("daemon/Cargo.toml", development), 0);
    assert_eq!(
        count(
            "daemon/skills/Cargo.toml",
            "[dependencies]\ntonic.workspace = true\n"
        ),
        1
    );
    assert_eq!(count("daemon/new/Cargo.toml", ""), 1);
    assert_eq!(count("tests/Cargo.toml", client), 0);
}

#[test]
fn a_diagram_with_another_order_is_found() {
    let count = |text| check_architecture_diagram(text).len();
    assert_eq!(
        count(
            "    main → server → rpc → { collect } → workspace → pool → { skills } → { engine }\n"
        ),
        0
    );
    assert_eq!(count("    main → server → { pool } → rpc\n"), 1);
    assert_eq!(count("No diagram.\n"), 1);
}

#[test]
fn import_cycles_between_siblings_are_found() {
    let check = |sources: &[(&str, &str)]| {
        let files: Vec<SourceFile<'_>> = sources
            .iter()
            .map(|(path, text)| SourceFile { path, text })
            .collect();
        let found = check_import_cycles("client/src", &files);
        found
            .into_iter()
            .map(|found| found.path)
            .collect::<Vec<_>>()
    };
    let circle = [
        ("client/src/lib.rs", "mod a;\nmod b;\npub use c::Third;\n"),
        ("client/src/a/x.rs", "use crate::b::B;\n"),
        ("client/src/b/deep.rs", "use crate::Third;\n"),
        ("client/src/c.rs", "use super::a::A;\n"),
    ];
    assert_eq!(
        check(&circle),
        ["client/src/a", "client/src/b", "client/src/c"]
    );
    let nested = [
        ("client/src/a/one/x.rs", "use super::super::two::Two;\n"),
        ("client/src/a/two/y.rs", "fn t() { crate::a::one::f() }\n"),
    ];
    assert_eq!(check(&nested), ["client/src/a/one", "client/src/a/two"]);
    let single_files = [
        ("client/src/a/one.rs", "use super::two::Two;\n"),
        ("client/src/a/two.rs", "use super::one::One;\n"),
    ];
    assert_eq!(
        check(&single_files),
        ["client/src/a/one", "client/src/a/two"]
    );
    let through_parent = [
        ("client/src/a.rs", "mod one;\nmod two;\nuse two::Two;\n"),
        ("client/src/a/one.rs", "use super::Two;\n"),
        ("client/src/a/two.rs", "use super::one::One;\n"),
    ];
    assert_eq!(
        check(&through_parent),
        ["client/src/a/one", "client/src/a/two"]
    );
    let fine = [
        (
            "client/src/a.rs",
            "use crate::b::B;\nmod child;\nuse child::C;\n",
        ),
        ("client/src/a/child.rs", "use super::A;\nuse crate::b::B;\n"),
        (
            "client/src/b.rs",
            "//! B.\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
        ),
    ];
    assert_eq!(check(&fine), [""; 0]);
}

#[test]
fn imports_from_a_root_that_is_for_others_are_found() {
    let findings = check_root_imports(&[
        SourceFile {
            path: "daemon/skills/src/lib.rs",
            text: "mod parse;\npub use parse::problem::{self, Problem};\n",
        },
        SourceFile {
            path: "daemon/skills/src/parse/card.rs",
            text: "use crate::Problem;\nuse crate::problem::Severity;\nuse crate::parse::problem::Severity;\n",
        },
    ]);
    let found: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert_eq!(
        found,
        [
            "daemon/skills/src/parse/card.rs:1: import `Problem` from the module that owns it, not from lib.rs",
            "daemon/skills/src/parse/card.rs:2: import `problem` from the module that owns it, not from lib.rs",
        ]
    );
}

//! Tests of which folders of a skill have Node.js packages, and of what their package.json may not do.

use super::*;
use crate::parse::environment_need::NodeProject;
use crate::parse::problem::Severity;

/// package.json that names one package.
const ONE: &str = r#"{"dependencies": {"docx": "^9"}}"#;
const LOCK: &str = r#"{"lockfileVersion": 3, "packages": {}}"#;

fn folders(need: &EnvironmentNeed) -> Vec<&str> {
    let projects = need.node_projects.iter();
    projects.map(|project| project.folder.as_str()).collect()
}

fn local_paths(project: &NodeProject) -> Vec<&str> {
    let files = project.local_files.iter();
    files.map(|(path, _)| path.as_str()).collect()
}

/// Returns the package.json of the first project, with the order of its keys.
fn first_package(need: &EnvironmentNeed) -> serde_json::Value {
    let project = need.node_projects.first().expect("a project");
    serde_json::from_slice(&project.package_json).expect("JSON")
}

#[test]
fn each_folder_that_names_packages_is_a_project() {
    let dev = r#"{"devDependencies": {"tsx": "4"}}"#;
    let need = read_need(&[
        ("scripts/package.json", dev),
        ("scripts/package-lock.json", LOCK),
        ("package.json", ONE),
        (
            "a/b/package.json",
            r#"{"peerDependencies": {"react": "19"}}"#,
        ),
        (
            "c/package.json",
            r#"{"optionalDependencies": {"sharp": "1"}}"#,
        ),
        (
            "empty/package.json",
            r#"{"dependencies": {}, "type": "module"}"#,
        ),
        (
            "optional/package.json",
            r#"{"peerDependencies": {"x": "1"}, "peerDependenciesMeta": {"x": {"optional": true}}}"#,
        ),
        ("templates/app/package.json", ONE),
        ("tests/package.json", ONE),
        ("node_modules/x/package.json", ONE),
        ("own/package.json", ONE),
        ("own/node_modules/docx/index.js", ""),
    ]);
    // The root has packages of its own.
    assert_eq!(folders(&need), ["a/b", "c", "scripts"]);
    assert_eq!(messages(&need), Vec::<&str>::new());
    let scripts = need.node_projects.last().expect("a project");
    assert_eq!(
        (scripts.package_json.as_slice(), scripts.lock.as_slice()),
        (dev.as_bytes(), LOCK.as_bytes())
    );
    let root = read_need(&[("package.json", ONE), ("a/package.json", ONE)]);
    assert_eq!(folders(&root), ["", "a"]);
}

#[test]
fn folders_beyond_the_eighth_are_named_in_one_problem() {
    let paths: Vec<String> = (0..100).map(|n| format!("p{n:03}/package.json")).collect();
    let files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), ONE)).collect();
    let need = read_need(&files);
    assert_eq!(
        folders(&need),
        [
            "p000", "p001", "p002", "p003", "p004", "p005", "p006", "p007"
        ]
    );
    let [message] = messages(&need)[..] else {
        panic!("{:?}", need.problems);
    };
    assert!(
        message.starts_with("p008/package.json is beyond the 8 folders"),
        "{message}"
    );
    assert!(
        message.contains("p008, p009") && message.contains("p027 and 72 more"),
        "{message}"
    );
}

#[test]
fn npm_locks_count_and_foreign_ones_are_left_aside() {
    let shrinkwrap = r#"{"lockfileVersion": 2, "packages": {}}"#;
    let package = ("package.json", ONE);
    for (files, lock, warned) in [
        (
            &[("package-lock.json", LOCK), ("yarn.lock", "")][..],
            LOCK,
            None,
        ),
        (
            &[
                ("package-lock.json", LOCK),
                ("npm-shrinkwrap.json", shrinkwrap),
            ],
            shrinkwrap,
            None,
        ),
        (
            &[("yarn.lock", "# yarn"), ("bun.lock", "{}")],
            "",
            Some("bun.lock"),
        ),
        (&[("pnpm-lock.yaml", "x: 1")], "", Some("pnpm-lock.yaml")),
        (&[("bun.lockb", "\0\u{1}")], "", Some("bun.lockb")),
        (&[], "", None),
    ] {
        let need = read_need(&[&[package], files].concat());
        assert_eq!(need.node_projects[0].lock, lock.as_bytes(), "{files:?}");
        let problems: Vec<_> = need
            .problems
            .iter()
            .map(|one| (one.severity, one.code, one.subject.as_str()))
            .collect();
        let expected = warned.map(|name| (Severity::Warning, "environment.warning", name));
        assert_eq!(problems, Vec::from_iter(expected), "{files:?}");
        assert!(
            messages(&need)
                .iter()
                .all(|message| message.contains("npm install --package-lock-only"))
        );
    }
}

#[test]
fn a_broken_lock_or_package_loses_only_its_project() {
    let deep = format!("{{\"dependencies\": {}", "[".repeat(10_000));
    let large = format!("{ONE}{}", " ".repeat(10 << 20));
    let conflict = format!("{{\n<<<<<<< ours\n=======\n>>>>>>> theirs\n{}", &LOCK[1..]);
    for (files, message) in [
        (
            [
                ("scripts/package.json", ONE),
                ("scripts/package-lock.json", conflict.as_str()),
            ],
            "scripts/package-lock.json has the markers of a merge conflict: ",
        ),
        (
            [
                ("scripts/package.json", ONE),
                ("scripts/npm-shrinkwrap.json", "{\"lockfileVersion\": 1}"),
            ],
            "scripts/npm-shrinkwrap.json is not of version 2 or 3: ",
        ),
        (
            [
                ("scripts/package.json", ONE),
                ("scripts/package-lock.json", "lock"),
            ],
            "scripts/package-lock.json is not understood: ",
        ),
        (
            [("scripts/package.json", &deep), ("x", "")],
            "scripts/package.json is not valid JSON: recursion limit exceeded",
        ),
        (
            [("scripts/package.json", &large), ("x", "")],
            "scripts/package.json is larger than 1048576 bytes",
        ),
    ] {
        let others = [("package.json", ONE), ("requirements.txt", "pandas\n")];
        let need = read_need(&[&files[..], &others].concat());
        assert_eq!(folders(&need), [""], "{message}");
        assert_eq!(need.requirements, ["pandas"]);
        let found = messages(&need);
        assert!(
            found.len() == 1 && found[0].starts_with(message),
            "{message}: {found:?}"
        );
        assert!(need.problems[0].is_error());
    }
}

#[test]
fn refused_dependencies_are_named_and_the_rest_is_built() {
    let package = r#"{"dependencies": {"ok": "1", "up": "file:../../x", "abs": "file:/etc", "home": "~/x",
        "git": "git+ssh://git@x.example/y.git", "hub": "user/repo", "tar": "https://x.example/y.tgz",
        "linked": "link:./lib", "portal": "portal:./lib", "none": "file:./missing", "self": "file:.",
        "../../evil": "1", "number": 1}, "overrides": {"deep": {"x": "file:/etc"}}}"#;
    let lock = r#"{"packages": {"": {}, "node_modules/ok": {"resolved": "https://r.example/ok.tgz"},
        "node_modules/git": {"resolved": "git+ssh://git@x.example/y.git#1"},
        "node_modules/up": {"resolved": "../../x", "link": true}}}"#;
    let need = read_need(&[
        ("scripts/package.json", package),
        ("scripts/package-lock.json", lock),
    ]);
    let expected = serde_json::json!({"dependencies": {"ok": "1"}, "overrides": {"deep": {}}});
    assert_eq!(first_package(&need), expected);
    assert_eq!(need.node_projects[0].lock, lock.as_bytes());
    let messages = messages(&need);
    assert_eq!(messages.len(), 13, "{messages:#?}");
    for (name, reason) in [
        (r#""up": "file:../../x""#, "leads out of the skill"),
        (
            r#""abs": "file:/etc""#,
            "is no path relative to the package.json",
        ),
        (
            r#""git": "git+ssh://git@x.example/y.git""#,
            "is a repository: ",
        ),
        (r#""tar": "https://x.example/y.tgz""#, "is an address: "),
        (
            r#""linked": "link:./lib""#,
            "has a protocol that builds do not have: ",
        ),
        (
            r#""none": "file:./missing""#,
            "leads to no folder of the skill",
        ),
        (
            r#""self": "file:.""#,
            "leads to a folder that contains the package.json",
        ),
        (
            r#""../../evil": "1""#,
            "belongs to a name that no package can have",
        ),
        (
            r#""x" of overrides"#,
            "does not come from the package index",
        ),
    ] {
        let start = format!("scripts/package.json: {name} {reason}");
        assert!(
            messages.iter().any(|message| message.starts_with(&start)),
            "{start}: {messages:#?}"
        );
    }
    let all_refused = read_need(&[("package.json", r#"{"dependencies": {"up": "file:../x"}}"#)]);
    assert_eq!(
        (folders(&all_refused).len(), all_refused.problems.len()),
        (0, 1)
    );
}

#[test]
fn packages_of_the_skill_are_part_of_the_build() {
    let need = read_need(&[
        (
            "scripts/package.json",
            r#"{"dependencies": {"lib": "file:../lib", "packed": "file:packed-1.0.0.tgz"}}"#,
        ),
        ("scripts/packed-1.0.0.tgz", "bytes"),
        (
            "lib/package.json",
            r#"{"dependencies": {"other": "file:../other", "g": "git://x/y", "ms": "2"}}"#,
        ),
        ("lib/index.js", "lib"),
        ("lib/.npmrc", "registry=https://evil.example/"),
        ("lib/node_modules/ms/index.js", "own"),
        // The cycle ends.
        (
            "other/package.json",
            r#"{"dependencies": {"lib": "file:../lib"}}"#,
        ),
        ("other/npm-shrinkwrap.json", LOCK),
        ("unused/package.json", "{}"),
    ]);
    let project = need
        .node_projects
        .iter()
        .find(|project| project.folder == "scripts")
        .expect("a project");
    assert_eq!(
        local_paths(project),
        [
            "lib/index.js",
            "lib/package.json",
            "other/package.json",
            "scripts/packed-1.0.0.tgz"
        ]
    );
    let lib: serde_json::Value = serde_json::from_slice(&project.local_files[1].1).expect("JSON");
    assert_eq!(
        lib,
        serde_json::json!({"dependencies": {"other": "file:../other", "ms": "2"}})
    );
    // Both are projects of their own, too.
    let is_cycle = |message: &str| message.contains("contains the package.json itself");
    let mut messages = messages(&need);
    messages.retain(|message| !is_cycle(message));
    let [message] = messages[..] else {
        panic!("{messages:?}");
    };
    assert!(
        message.starts_with(r#"lib/package.json: "g": "git://x/y""#),
        "{message}"
    );
}

#[test]
fn workspaces_are_parts_of_their_root() {
    let need = read_need(&[
        (
            "package.json",
            r#"{"workspaces": ["packages/*", "!packages/c*", "../out", "deep/**"]}"#,
        ),
        (
            "packages/a/package.json",
            r#"{"name": "a", "dependencies": {"docx": "9", "b": "*"}}"#,
        ),
        ("packages/a/run.js", "a"),
        (
            "packages/b/package.json",
            r#"{"name": "b", "dependencies": {"bad": "file:../../.."}}"#,
        ),
        ("packages/cc/package.json", ONE),
        ("deep/x/y/package.json", r#"{"name": "y"}"#),
    ]);
    assert_eq!(folders(&need), ["", "packages/cc"]);
    assert_eq!(
        first_package(&need),
        serde_json::json!({"workspaces": ["deep/x/y", "packages/a", "packages/b"]})
    );
    let paths = local_paths(&need.node_projects[0]);
    let expected = [
        "deep/x/y/package.json",
        "packages/a/package.json",
        "packages/a/run.js",
        "packages/b/package.json",
    ];
    assert_eq!(paths, expected);
    // Packages that are workspaces come from no index.
    let needed = need.node_packages.iter();
    let needed: Vec<_> = needed
        .map(|(path, name)| (path.as_str(), name.as_str()))
        .collect();
    assert_eq!(
        needed,
        [
            ("packages/a/package.json", "docx"),
            ("packages/cc/package.json", "docx")
        ]
    );
    let messages = messages(&need);
    assert!(
        messages[0].starts_with("package.json names the workspace ../out, which leads"),
        "{messages:?}"
    );
    assert!(!need.problems[0].is_error());
    assert!(
        messages[1].starts_with(r#"packages/b/package.json: "bad": "file:../../..""#),
        "{messages:?}"
    );
}

#[test]
fn workspaces_that_need_no_packages_are_no_problem() {
    let files = [
        ("package.json", r#"{"workspaces": ["a"]}"#),
        ("a/package.json", "{}"),
        ("yarn.lock", ""),
    ];
    let need = read_need(&files);
    assert!(need.is_empty() && need.problems.is_empty(), "{need:?}");
}

#[test]
fn long_and_many_patterns_of_workspaces_are_left_out() {
    let long = "*".repeat(1 << 19);
    let patterns = |patterns: &str| {
        format!(r#"{{"workspaces": ["a/*", {patterns}], "dependencies": {{"x": "1"}}}}"#)
    };
    let many = vec![r#""b/*""#; 20].join(",");
    for (other, message) in [
        (
            format!("\"{long}\""),
            "package.json names the workspace ****",
        ),
        (
            many,
            "package.json names the workspace number 21, and 20 are read",
        ),
    ] {
        let need = read_need(&[
            ("package.json", &patterns(&other)),
            ("a/b/package.json", "{}"),
        ]);
        assert_eq!(local_paths(&need.node_projects[0]), ["a/b/package.json"]);
        let last = messages(&need).last().copied().unwrap_or_default();
        assert!(last.starts_with(message) && last.len() < 500, "{last}");
    }
}

#[test]
fn a_name_that_is_refused_once_and_wanted_elsewhere_is_checked() {
    let package =
        r#"{"dependencies": {"ok": "1", "x": "git://x.example/y"}, "devDependencies": {"x": "*"}}"#;
    let lock = r#"{"packages": {"": {}, "node_modules/x": {"resolved": "git://x.example/y"}}}"#;
    let need = read_need(&[("package.json", package), ("package-lock.json", lock)]);
    assert_eq!(folders(&need), [""; 0]);
    let last = messages(&need).last().copied().unwrap_or_default();
    let message = "package-lock.json takes the package x from git://x.example/y: ";
    assert!(last.starts_with(message), "{last}");
}

#[test]
fn a_folder_whose_name_npm_decodes_is_refused() {
    let package = r#"{"dependencies": {"ok": "1", "x": "file:lib%2f..", "y": "file:a?b"}}"#;
    let need = read_need(&[
        ("package.json", package),
        ("lib%2f../package.json", "{}"),
        ("a?b/package.json", "{}"),
    ]);
    let expected = serde_json::json!({"dependencies": {"ok": "1"}});
    assert_eq!(first_package(&need), expected);
    let messages = messages(&need);
    assert!(
        messages.len() == 2
            && messages
                .iter()
                .all(|one| one.contains("has %, ? or # in its path")),
        "{messages:?}"
    );
}

#[test]
fn packages_of_the_skill_have_bounded_size_and_count() {
    let large = "x".repeat(2 << 20);
    let many: Vec<String> = (0..501).map(|n| format!("many/{n}")).collect();
    let package = r#"{"dependencies": {"large": "file:large", "many": "file:many", "ok": "file:ok", "ms": "2"}}"#;
    let mut files = vec![
        ("package.json", package),
        ("large/package.json", "{}"),
        ("large/index.js", &large),
        ("large/second.js", "x"),
        ("many/package.json", "{}"),
        ("ok/package.json", "{}"),
        ("ok/index.js", "x"),
    ];
    files.extend(many.iter().map(|path| (path.as_str(), "")));
    let need = read_need(&files);
    assert_eq!(
        first_package(&need),
        serde_json::json!({"dependencies": {"ok": "file:ok", "ms": "2"}})
    );
    assert_eq!(
        local_paths(&need.node_projects[0]),
        ["ok/index.js", "ok/package.json"]
    );
    let messages = messages(&need);
    assert!(
        messages.len() == 2
            && messages
                .iter()
                .all(|one| one.contains("at most 2 MiB and 500 files")),
        "{messages:?}"
    );
}

#[test]
fn three_hundred_dependencies_are_fine_and_problems_bounded() {
    let many = |specifier: &str| {
        let named: Vec<String> = (0..300)
            .map(|n| format!("\"p{n}\": \"{specifier}\""))
            .collect();
        format!("{{\"dependencies\": {{{}}}}}", named.join(","))
    };
    let need = read_need(&[("package.json", &many("^1.0.0"))]);
    assert_eq!((folders(&need).len(), need.problems.len()), (1, 0));
    let need = read_need(&[("package.json", &many("user/repo"))]);
    assert_eq!(
        (folders(&need).len(), need.problems.len()),
        (0, PROBLEMS_MAX)
    );
}

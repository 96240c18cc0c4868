//! Report of preflight on skills with labels, beneath `daemon/skills/tests/preflight/`. It asserts no share: preflight
//! says what it found, and a run names the rest.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::catalogue::document_reader::read_stored_documents;

/// Skill, kind and name of something that is missing.
type MissingItem = (String, String, String);

/// Findings and labels of a group of skills.
struct LabelledGroup {
    skills: usize,
    found: BTreeSet<MissingItem>,
    labels: BTreeSet<MissingItem>,
}

fn data_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preflight")
}

fn read_table(name: &str) -> toml::Table {
    let path = data_directory().join(name);
    let text = fs::read_to_string(&path).expect("readable");
    text.parse().expect("TOML")
}

fn texts(table: &toml::Table, key: &str) -> Vec<String> {
    let items = table.get(key).and_then(toml::Value::as_array);
    let texts = items.into_iter().flatten().filter_map(toml::Value::as_str);
    texts.map(str::to_owned).collect()
}

fn inventory() -> ImageInventory {
    let table = read_table("inventory.toml");
    let set = |key: &str| texts(&table, key).into_iter().collect();
    ImageInventory {
        programs: set("programs"),
        python_packages: set("python_packages"),
        python_modules: set("python_modules"),
        node_packages: set("node_packages"),
    }
}

/// Returns a finding as labels name it: packages by their names, and a network without the program that wants it.
fn missing_item(skill: &str, finding: &UnmetNeed) -> MissingItem {
    let first = finding.name.split(", ").next().unwrap_or_default();
    let (kind, name) = match finding.kind {
        NeedKind::Interpreter => ("interpreter", first.to_owned()),
        NeedKind::Binary | NeedKind::AnyBinary => ("program", first.to_owned()),
        NeedKind::Env => ("env", first.to_owned()),
        NeedKind::PythonPackage | NeedKind::PythonModule => ("python", likely_package_of(first)),
        NeedKind::NodePackage => ("node", first.to_owned()),
        NeedKind::Network => ("network", String::new()),
    };
    (skill.to_owned(), kind.to_owned(), name)
}

fn find_missing(dir: &Path, skill: &str, inventory: &ImageInventory) -> Vec<MissingItem> {
    let document = read_stored_documents(dir, 1 << 20, skill).expect("a skill");
    let manifest = Manifest::read(dir).expect("manifest");
    let needs = collect(&document.front_matter, &manifest).expect("collected");
    let found = find_unmet_needs(&needs, inventory, None, &[]);
    found
        .iter()
        .map(|finding| missing_item(skill, finding))
        .collect()
}

fn labels_of(skill: &str, label: &toml::Table) -> Vec<MissingItem> {
    let kinds = ["program", "interpreter", "python", "node", "env"];
    let item = |kind: &str, name: String| (skill.to_owned(), kind.to_owned(), name);
    let mut labels: Vec<MissingItem> = kinds
        .iter()
        .flat_map(|kind| texts(label, kind).into_iter().map(|name| item(kind, name)))
        .collect();
    if label.get("network").and_then(toml::Value::as_bool) == Some(true) {
        labels.push(item("network", String::new()));
    }
    labels
}

/// Runs preflight on all skills of a folder. Each of them must have a label.
fn read_group(folder: &str, labels: &str) -> LabelledGroup {
    let inventory = inventory();
    let table = read_table(labels);
    let mut group = LabelledGroup {
        skills: 0,
        found: BTreeSet::new(),
        labels: BTreeSet::new(),
    };
    for entry in fs::read_dir(data_directory().join(folder)).expect("listed") {
        let dir = entry.expect("an entry").path();
        let skill = dir
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        let label = table
            .get(skill)
            .and_then(toml::Value::as_table)
            .unwrap_or_else(|| panic!("{labels} has no [{skill}]"));
        group.labels.extend(labels_of(skill, label));
        let either = texts(label, "either");
        let found = find_missing(&dir, skill, &inventory).into_iter();
        group
            .found
            .extend(found.filter(|(_, _, name)| !either.contains(name)));
        group.skills += 1;
    }
    assert_eq!(group.skills, table.len(), "skills with a label in {labels}");
    group
}

/// Prints every wrong and every missed finding, and the shares of what is right.
fn print_report(folder: &str, group: &LabelledGroup) {
    for (skill, kind, name) in group.found.difference(&group.labels) {
        println!("{folder}: false positive: {skill}: {kind} {name}");
    }
    for (skill, kind, name) in group.labels.difference(&group.found) {
        println!("{folder}: false negative: {skill}: {kind} {name}");
    }
    let right = group.found.intersection(&group.labels).count();
    println!(
        "{folder}: {} skills: {right} of {} findings are right, {right} of {} labels are found",
        group.skills,
        group.found.len(),
        group.labels.len()
    );
}

#[test]
fn labelled_skills_are_reported() {
    for (folder, labels) in [("skills", "labels.toml"), ("held-out", "held-out.toml")] {
        let group = read_group(folder, labels);
        print_report(folder, &group);
        assert!(!group.found.is_disjoint(&group.labels), "{folder}");
    }
}

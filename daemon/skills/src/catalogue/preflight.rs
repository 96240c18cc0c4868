//! Preflight: reports what a skill's files show that it needs and an image lacks, before anything runs.
//!
//! ```text
//! store's copy of a skill ─► need_collector.rs: stated requirements (front matter, PEP 723, requirements.txt,
//!                            pyproject.toml, package.json, first lines) and concluded ones (imports, known programs,
//!                            installation lines)
//! guest of a warm container ─► ImageInventory: programs and packages of the image, and of the skill's environment
//!                            requirements − inventories = findings
//! ```
//!
//! An unmet requirement is an error if the skill states it, and a warning if it was concluded, because a file may never
//! be used. Preflight runs nothing of the skill, and its work per skill is bounded. It reads lines and interprets no
//! language: nothing found means that nothing missing was found, and a run names what it lacks after all.

use std::collections::HashSet;

use skilld_common::names::base_name;

use crate::parse::problem::{Problem, Severity};
use crate::parse::requirement_line::without_variant;

mod commands;
pub(crate) mod file_selection;
mod inferred_packages;
mod install_lines;
mod need_collector;
mod node_imports;
pub(crate) mod package_json;
mod program_names;
mod python_imports;
pub(crate) mod python_requirements;
mod script_interpreter;

pub(crate) use inferred_packages::infer_packages;
pub(crate) use need_collector::collect_needs;
use need_collector::format_place;
use python_requirements::{is_module_of, likely_package_of};

/// Environment variables that every command has.
#[rustfmt::skip]
const ENVIRONMENT: &[&str] = &[
    "CLAUDE_PLUGIN_ROOT", "CLAUDE_PROJECT_DIR", "CLAUDE_SKILL_DIR", "HOME", "INPUTS_DIR", "LANG", "OUTPUT_DIR", "PATH",
    "PWD", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "RUN_DIR", "SHELL", "SKILLS_DIR", "SKILL_DIR", "SKILL_NAME",
    "SKILL_ROOT", "TMPDIR", "USER", "VIRTUAL_ENV", "WORKSPACE", "WORKSPACE_DIR", "WORK_DIR",
];

/// Programs and packages of an image, as its guest found them.
#[derive(Debug, Default)]
pub struct ImageInventory {
    /// Names of programs.
    pub programs: HashSet<String>,
    /// Normalised names of Python packages.
    pub python_packages: HashSet<String>,
    /// Top-level names of Python modules; empty without Python.
    pub python_modules: HashSet<String>,
    /// Names of Node.js packages.
    pub node_packages: HashSet<String>,
}

/// Kind of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NeedKind {
    /// A script's interpreter.
    Interpreter,
    /// A program.
    Binary,
    /// Any one of several programs.
    AnyBinary,
    /// An environment variable.
    Env,
    /// A distribution, by its normalised name.
    PythonPackage,
    /// A module that a file imports.
    PythonModule,
    /// A package of Node.js.
    NodePackage,
    /// Connections to elsewhere.
    Network,
}

/// Requirement of a skill on its image or workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Kind of the requirement.
    pub kind: NeedKind,
    /// Name of the requirement; several names if any one of them suffices.
    pub names: Vec<String>,
    /// Error where the skill states it.
    pub severity: Severity,
    /// A path in the skill and a line, or a key of its front matter.
    pub source: String,
}

impl Need {
    /// Returns the approximate size in memory, in bytes.
    pub(crate) fn size(&self) -> usize {
        let names = self
            .names
            .iter()
            .map(|name| size_of::<String>() + name.len());
        size_of::<Self>() + self.source.len() + names.sum::<usize>()
    }
}

/// Unmet requirement of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmetNeed {
    /// Kind of the requirement.
    pub kind: NeedKind,
    /// Name of the missing thing.
    pub name: String,
    /// Error if the skill states the requirement, else warning.
    pub severity: Severity,
    /// Path and line, or key, at which the requirement was found.
    pub source: String,
    /// Description of the problem and its remedy, for people.
    pub message: String,
}

impl ImageInventory {
    /// Returns `true` if the image, or an environment, has what a need names.
    fn has(&self, need: &Need, name: &str) -> bool {
        match need.kind {
            NeedKind::Interpreter => self.programs.contains(name),
            NeedKind::Binary | NeedKind::AnyBinary => {
                program_names::aliases_of(name).any(|alias| self.programs.contains(alias))
            }
            NeedKind::PythonPackage => {
                // Advice such as `pip install x` is followed by any package that has the module.
                let is_advice = need.severity == Severity::Warning;
                let is_module = |module: &String| is_module_of(module, name);
                self.python_packages.contains(name)
                    || (is_advice && self.python_modules.iter().any(is_module))
            }
            // The top-level module of a namespace may be another package's.
            NeedKind::PythonModule if name.contains('.') => {
                self.python_packages.contains(&likely_package_of(name))
            }
            NeedKind::PythonModule => self.python_modules.contains(name),
            NeedKind::NodePackage => self.node_packages.contains(name),
            // Workspaces have no network, and variables are no part of an image.
            NeedKind::Network | NeedKind::Env => false,
        }
    }
}

/// Returns the requirements that neither the image nor an environment that was built for the skill meets, errors first.
/// `env` are variables that the command will have.
pub fn find_unmet_needs(
    needs: &[Need],
    image: &ImageInventory,
    environment: Option<&ImageInventory>,
    env: &[String],
) -> Vec<UnmetNeed> {
    let inventories: Vec<_> = [Some(image), environment].into_iter().flatten().collect();
    // Without Python its modules are unknown; the missing interpreter is reported anyway.
    let has_modules = |inventory: &&ImageInventory| !inventory.python_modules.is_empty();
    let has_python = inventories.iter().any(has_modules);
    let is_met = |need: &Need, name: &str| {
        let is_given = || ENVIRONMENT.contains(&name) || env.iter().any(|given| given == name);
        (need.kind == NeedKind::Env && is_given())
            || (need.kind == NeedKind::PythonModule && !has_python)
            || inventories.iter().any(|found| found.has(need, name))
    };
    let is_unmet = |need: &&Need| !need.names.iter().any(|name| is_met(need, name));
    let missing = needs.iter().filter(is_unmet);
    let mut findings: Vec<UnmetNeed> = missing.map(make_finding).collect();
    let rank = |finding: &UnmetNeed| (finding.severity != Severity::Error, finding.kind);
    // Of several places with the same requirement, the first that states it is reported.
    findings.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.name.cmp(&b.name)));
    let mut seen = HashSet::new();
    findings.retain(|finding| seen.insert(finding_subject(finding)));
    findings
}

/// Returns a finding for a part of a skill's files that is refused, so that nothing is installed for it.
pub fn refusal_finding(problem: &Problem) -> UnmetNeed {
    let path = &problem.subject;
    let is_node = base_name(path).ends_with(".json");
    UnmetNeed {
        kind: match is_node {
            true => NeedKind::NodePackage,
            false => NeedKind::PythonPackage,
        },
        name: base_name(path).to_owned(),
        severity: problem.severity,
        source: format_place(path, problem.line),
        message: problem.message.clone(),
    }
}

/// Returns the kind and the name of what a finding is about. Findings about the same thing are reported once.
fn finding_subject(finding: &UnmetNeed) -> (NeedKind, String) {
    let name = &finding.name;
    match finding.kind {
        NeedKind::Interpreter | NeedKind::Binary => {
            let program = program_names::aliases_of(name).next().unwrap_or(name);
            (NeedKind::Binary, program.to_owned())
        }
        NeedKind::PythonPackage | NeedKind::PythonModule => {
            let package = likely_package_of(name);
            (
                NeedKind::PythonPackage,
                without_variant(&package).to_owned(),
            )
        }
        NeedKind::AnyBinary | NeedKind::Env | NeedKind::NodePackage | NeedKind::Network => {
            (finding.kind, name.clone())
        }
    }
}

fn make_finding(need: &Need) -> UnmetNeed {
    const POOL: &str = "use a pool whose image has it";
    let name = need.names.join(", ");
    let package = likely_package_of(&name);
    // Only what a skill states is installed for it.
    let is_stated = need.severity == Severity::Error;
    let add = format!("run `skillctl skill prepare NAME --package {package}`");
    #[rustfmt::skip]
    let message = match need.kind {
        NeedKind::Interpreter => format!("{name} is not in the image, and runs this script: {POOL}"),
        NeedKind::Binary => format!("{name} is not in the image: {POOL}, or put it into the skill's bin/"),
        NeedKind::AnyBinary => format!("none of {name} is in the image: use a pool whose image has one"),
        NeedKind::Env => format!("{name} is not set: give it to the command or the workspace"),
        NeedKind::PythonPackage if is_stated => format!(
            "the Python package {name} is not in the image and not installed for the skill: run \
             `skillctl skill prepare`, or {POOL}"
        ),
        NeedKind::PythonPackage => format!("the Python package {name} is not in the image: {POOL}, or {add}"),
        NeedKind::PythonModule if package == name => format!("the module {name} is not in the image: {POOL}, or {add}"),
        NeedKind::PythonModule => format!(
            "the module {name} (of the package {package}) is not in the image: {POOL}, or {add}"
        ),
        NeedKind::NodePackage if is_stated => format!(
            "the Node.js package {name} is not in the image and not installed for the skill: run \
             `skillctl skill prepare`, or {POOL}"
        ),
        NeedKind::NodePackage => format!(
            "the Node.js package {name} is not in the image and not in the skill's node_modules/: ship it \
             with the skill, {POOL}, or run `skillctl skill prepare NAME --npm {name}`"
        ),
        NeedKind::Network => format!("{name} wants a network, and workspaces have none"),
    };
    UnmetNeed {
        kind: need.kind,
        severity: need.severity,
        source: need.source.clone(),
        name,
        message,
    }
}

#[cfg(test)]
mod tests;

//! Preflight: what a skill needs and an image does not have, told before anything runs.
//!
//! ```text
//! store's copy of a skill ─► needs.rs: what it says it needs (front matter, PEP 723, requirements.txt, pyproject.toml,
//!                            package.json, first lines) and what follows from its files (endings, imports)
//! guest of a warm container ─► Inventory: what the image has
//!                            needs − inventory = findings
//! ```
//!
//! A need that the skill states is an error when it is not met; one that was concluded is a warning, because a file may
//! never be used. Nothing of the skill is run, and the work per skill is bounded.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use skilld_proto::guest::v1 as wire;

use super::Severity;

mod interpreter;
mod needs;
mod network;
mod node;
mod python;

pub(super) use needs::collect;

/// Skills whose needs are kept.
const KEPT_MAX: usize = 1000;
/// What every command has in its environment.
const ENVIRONMENT: [&str; 20] = [
    "CLAUDE_SKILL_DIR",
    "HOME",
    "INPUTS_DIR",
    "LANG",
    "OUTPUT_DIR",
    "PATH",
    "PWD",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "RUN_DIR",
    "SKILLS_DIR",
    "SKILL_DIR",
    "SKILL_NAME",
    "SKILL_ROOT",
    "TMPDIR",
    "USER",
    "VIRTUAL_ENV",
    "WORKSPACE",
    "WORKSPACE_DIR",
    "WORK_DIR",
];

/// What an image has.
#[derive(Debug, Default)]
pub struct Inventory {
    programs: HashSet<String>,
    python_packages: HashSet<String>,
    python_modules: HashSet<String>,
    node_packages: HashSet<String>,
}

/// What kind of thing is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A script's interpreter.
    Interpreter,
    /// A program.
    Binary,
    /// One of several programs.
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

/// Something that a skill needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Of what kind.
    pub kind: Kind,
    /// Its name; several where one of them will do.
    pub names: Vec<String>,
    /// Error where the skill states it.
    pub severity: Severity,
    /// A path in the skill and a line, or a key of its front matter.
    pub source: String,
}

/// A need that is not met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Of what kind.
    pub kind: Kind,
    /// What is missing.
    pub name: String,
    /// How much it matters.
    pub severity: Severity,
    /// Where the need was found.
    pub source: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// Needs of skills by digest: they follow from the content alone.
#[derive(Debug, Default)]
pub(super) struct Known {
    kept: Mutex<HashMap<String, Arc<Vec<Need>>>>,
}

impl Known {
    /// The needs of a digest, found by `find` if they are not known.
    pub(super) fn get<E>(
        &self,
        digest: &str,
        find: impl FnOnce() -> Result<Vec<Need>, E>,
    ) -> Result<Arc<Vec<Need>>, E> {
        let locked = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(needs) = locked().get(digest) {
            return Ok(Arc::clone(needs));
        }
        let needs = Arc::new(find()?);
        let mut kept = locked();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(digest.to_owned(), Arc::clone(&needs));
        Ok(needs)
    }
}

impl From<wire::InventoryResponse> for Inventory {
    fn from(found: wire::InventoryResponse) -> Self {
        let set = |names: Vec<String>| names.into_iter().collect();
        Self {
            programs: set(found.programs),
            python_packages: set(found.python_packages),
            python_modules: set(found.python_modules),
            node_packages: set(found.node_packages),
        }
    }
}

impl Inventory {
    fn has(&self, kind: Kind, name: &str, env: &[String]) -> bool {
        match kind {
            Kind::Interpreter | Kind::Binary | Kind::AnyBinary => self.programs.contains(name),
            Kind::Env => ENVIRONMENT.contains(&name) || env.iter().any(|given| given == name),
            Kind::PythonPackage => self.python_packages.contains(name),
            // Without Python nothing can be said of its modules, and that it is missing is said.
            Kind::PythonModule => {
                self.python_modules.is_empty() || self.python_modules.contains(name)
            }
            Kind::NodePackage => self.node_packages.contains(name),
            // Workspaces have none.
            Kind::Network => false,
        }
    }
}

/// What of `needs` is not met, errors first. `env` are variables that the command will have.
#[must_use]
pub fn findings(needs: &[Need], inventory: &Inventory, env: &[String]) -> Vec<Finding> {
    let missing = needs.iter().filter(|need| {
        let has = |name: &String| inventory.has(need.kind, name, env);
        !need.names.iter().any(has)
    });
    let mut findings: Vec<Finding> = missing.map(finding).collect();
    let rank = |finding: &Finding| (finding.severity != Severity::Error, finding.kind);
    // The same thing may be needed in many places; the first one that states it is named.
    findings.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.name.cmp(&b.name)));
    let mut seen = HashSet::new();
    findings.retain(|finding| seen.insert((finding.kind, finding.name.clone())));
    findings
}

fn finding(need: &Need) -> Finding {
    let name = need.names.join(", ");
    let message = match need.kind {
        Kind::Interpreter => {
            format!(
                "{name} is not in the image, and runs this script: use a pool whose image has it"
            )
        }
        Kind::Binary => {
            format!(
                "{name} is not in the image: use a pool whose image has it, or put it into the skill's bin/"
            )
        }
        Kind::AnyBinary => {
            format!("none of {name} is in the image: use a pool whose image has one")
        }
        Kind::Env => format!("{name} is not set: give it to the command or the workspace"),
        Kind::PythonPackage => format!(
            "the Python package {name} is not in the image, and nothing can be installed without a network: use a pool \
             whose image has it"
        ),
        Kind::PythonModule => match python::package(&name) {
            Some(package) => format!(
                "the module {name} (of the package {package}) is not in the image: use a pool whose image has it"
            ),
            None => format!("the module {name} is not in the image: use a pool whose image has it"),
        },
        Kind::NodePackage => format!(
            "the Node.js package {name} is not in the image and not in the skill's node_modules/: ship it with the skill, \
             or use a pool whose image has it"
        ),
        Kind::Network => format!("{name} wants a network, and workspaces have none"),
    };
    Finding {
        kind: need.kind,
        severity: need.severity,
        source: need.source.clone(),
        name,
        message,
    }
}

#[cfg(test)]
mod tests;

//! Record of a built environment, and the report that its build writes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::held_bytes::held_bytes;
use crate::parse::environment_need::NODE_PROJECTS_MAX;
use crate::skill_scope::DEFAULT_TENANT;

/// Version of the format of records and reports.
pub const VERSION: u32 = 1;

/// Maximum number of warnings in a report, and of characters of one.
const WARNINGS_MAX: usize = 20;
const WARNING_CHARS_MAX: usize = 300;

/// Everything that decides what a build installs, and the tenant for which it does. Tenants share no environment: what
/// one of them builds, rebuilds or removes changes nothing for another one, and tells it nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EnvironmentKey {
    /// Name of the tenant. Records of earlier releases have none, and belong to the default one.
    #[serde(default = "default_tenant")]
    pub tenant: String,
    /// Digest of the need, 64 hex digits.
    pub need: String,
    /// Id of the image that the environment is built for and in.
    pub image_id: String,
    /// Digest of the sources of packages, and of what a build may do with them.
    pub policy: String,
}

/// Record of one environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentRecord {
    /// Format version, [`VERSION`].
    pub version: u32,
    /// Name of its folder: 32 hex digits, random, so that a command cannot guess the folder of another workspace's skill.
    pub name: String,
    /// Key by which it is found.
    #[serde(flatten)]
    pub key: EnvironmentKey,
    /// Number of its files.
    pub files: u64,
    /// Size of its files in bytes.
    pub bytes: u64,
    /// Number of its files, links and directories; 0 in records of earlier releases.
    #[serde(default)]
    pub entries: u64,
    /// End of the build, in milliseconds since 1970.
    pub create_time_ms: u64,
    /// Packages that the build found.
    pub report: BuildReport,
}

/// Number of objects that an environment has beside those of its archive: its record, three links to the interpreter, and
/// a directory for these.
const ADDED_OBJECTS: u64 = 5;

impl EnvironmentRecord {
    /// Returns the bytes that count for the environment.
    pub fn held_bytes(&self) -> u64 {
        let entries = self.entries.max(self.files);
        held_bytes(self.bytes, entries.saturating_add(ADDED_OBJECTS))
    }
}

/// Environment that was built ahead of its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedEnvironment {
    /// Name of the environment.
    pub name: String,
    /// Key by which it is found.
    pub key: EnvironmentKey,
    /// Names of the skills that it was prepared for.
    pub skills: BTreeSet<String>,
}

/// Report of a build: `environment.json` at the beginning of its archive. Untrusted until it was checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildReport {
    /// Format version, [`VERSION`].
    pub version: u32,
    /// Python interpreter; `None` if the skill needs no Python package.
    pub python: Option<PythonInterpreter>,
    /// Python packages in the environment.
    #[serde(default)]
    pub packages: Vec<BuiltPackage>,
    /// Python packages that the image provides to the skill.
    #[serde(default)]
    pub provided: Vec<BuiltPackage>,
    /// Node.js packages in the environment.
    #[serde(default)]
    pub node_packages: Vec<BuiltPackage>,
    /// Node.js packages that the image provides to the skill.
    #[serde(default)]
    pub node_provided: Vec<BuiltPackage>,
    /// Number of folders of the skill that have Node.js packages: `node/0/node_modules` and so on in the environment.
    #[serde(default)]
    pub node_projects: u32,
    /// Top-level names of the modules that the environment adds to Python.
    #[serde(default)]
    pub python_modules: Vec<String>,
    /// Sentences for people about packages that may not work as the skill expects; at most 20 of 300 characters.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Python interpreter of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonInterpreter {
    /// Absolute path in the image.
    pub executable: String,
    /// Version, for instance `3.13.5`.
    pub version: String,
}

/// Package with its exact version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltPackage {
    /// Normalised name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Hashes of the files that it may have been installed from: `sha256:` and 64 hex digits, or `sha512-` and base64
    /// for a package of Node.js.
    #[serde(default)]
    pub hashes: Vec<String>,
}

impl BuildReport {
    /// Checks what the daemon uses of a report.
    ///
    /// # Errors
    /// Returns the reason for people.
    pub fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("has the version {}, not {VERSION}", self.version));
        }
        // One more than a skill states: packages that are added have the root's.
        if self.node_projects > NODE_PROJECTS_MAX + 1 {
            return Err(format!(
                "has {} folders of Node.js packages",
                self.node_projects
            ));
        }
        let is_line = |text: &String| {
            text.chars().count() <= WARNING_CHARS_MAX && !text.chars().any(char::is_control)
        };
        if self.warnings.len() > WARNINGS_MAX || !self.warnings.iter().all(is_line) {
            return Err(format!(
                "has more than {WARNINGS_MAX} warnings, or one that is no line of {WARNING_CHARS_MAX} characters"
            ));
        }
        let Some(python) = &self.python else {
            return Ok(());
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
        let is_path = python.executable.starts_with('/') && python.executable.chars().all(is_plain);
        if !is_path || python.executable.len() > 256 {
            return Err("names an interpreter that is not an absolute path".to_owned());
        }
        if python.minor_version().is_none() {
            return Err("names a version of Python that is not of the form 3.N.M".to_owned());
        }
        Ok(())
    }
}

impl PythonInterpreter {
    /// Returns the version without its last number, for instance `3.13`.
    pub fn minor_version(&self) -> Option<String> {
        let mut numbers = self.version.split('.');
        let (major, minor) = (numbers.next()?, numbers.next()?);
        let is_number = |text: &str| {
            (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        (is_number(major) && is_number(minor)).then(|| format!("{major}.{minor}"))
    }
}

fn default_tenant() -> String {
    DEFAULT_TENANT.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_a_report_are_few_and_short_lines() {
        let check = |warnings: Vec<String>| {
            let report = BuildReport {
                version: VERSION,
                warnings,
                ..BuildReport::default()
            };
            report.check().is_ok()
        };
        let longest = "é".repeat(WARNING_CHARS_MAX);
        assert!(check(vec![longest.clone(); WARNINGS_MAX]));
        assert!(!check(vec![String::new(); WARNINGS_MAX + 1]));
        assert!(!check(vec![longest + "x"]));
        assert!(!check(vec!["two\nlines".to_owned()]));
    }
}

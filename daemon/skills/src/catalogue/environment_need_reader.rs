//! Reads which packages a skill needs beyond its image. They are the Python requirements and the Node.js package that
//! its files state.
//!
//! Files of tests, templates and examples are left out, like in preflight.
//!
//! | file | read |
//! |---|---|
//! | `requirements.txt` | every line |
//! | `pyproject.toml` | `project.dependencies` |
//! | `*.py` | the block of inline script metadata (PEP 723) |
//! | `package.json` and `package-lock.json` of the skill's root | as they are, for npm |
//!
//! All Python requirements of a skill share one environment, so two scripts cannot need two versions of one package.

use std::collections::BTreeSet;
use std::io::Read;

use skilld_common::text_decoding::decode_text;

use super::preflight::file_selection::{FileUse, select_files};
use super::preflight::python_requirements::{ScriptMetadata, read_script_metadata};
use crate::content_store::skill_files::{self, Manifest, SkillFile};
use crate::error::Result;
use crate::parse::environment_need::EnvironmentNeed;
use crate::parse::problem::Problem;
use crate::parse::requirement_line::check_requirement;

/// Code of the problem of a requirement that a build must not see.
const REQUIREMENT_REFUSED: &str = "environment.requirement_refused";

/// Maximum number of requirements of one skill. The largest lock file of the public collections has 212.
const REQUIREMENTS_MAX: usize = 1000;
/// Maximum size in bytes of a file that states requirements; a longer one is refused.
const STATED_BYTES_MAX: u64 = 1 << 20;
/// Maximum size in bytes of a package-lock.json.
const LOCK_BYTES_MAX: u64 = 8 << 20;
/// Number of bytes at the beginning of a script that can hold its inline metadata.
const SCRIPT_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of problems of one skill; a file of 10,000 wrong lines has one cause.
const PROBLEMS_MAX: usize = 20;

/// Reads the need of a skill from its stored files.
///
/// # Errors
/// `Io` when the store cannot be read.
pub(crate) fn read_environment_need(manifest: &Manifest) -> Result<EnvironmentNeed> {
    let mut reader = NeedReader {
        manifest,
        requirements: BTreeSet::new(),
        need: EnvironmentNeed::default(),
    };
    // The bounds of a skill's content bound these files, too.
    for (file, file_use) in select_files(manifest, "") {
        match file_use {
            FileUse::Requirements => reader.requirements_file(file)?,
            FileUse::PythonProject => reader.project_file(file)?,
            FileUse::Script => reader.script(file)?,
            FileUse::NodePackage | FileUse::SkillMd => {}
        }
    }
    reader.node_package()?;
    Ok(reader.finish())
}

/// Reads the files of one skill.
struct NeedReader<'a> {
    manifest: &'a Manifest,
    requirements: BTreeSet<String>,
    need: EnvironmentNeed,
}

impl NeedReader<'_> {
    fn requirements_file(&mut self, file: &SkillFile) -> Result<()> {
        let Some(text) = self.read_text(file, STATED_BYTES_MAX)? else {
            return Ok(());
        };
        for (line, requirement) in join_continued_lines(&text) {
            self.requirement(&file.path, line, &requirement);
        }
        Ok(())
    }

    fn project_file(&mut self, file: &SkillFile) -> Result<()> {
        let Some(text) = self.read_text(file, STATED_BYTES_MAX)? else {
            return Ok(());
        };
        let document = match text.parse::<toml::Table>() {
            Ok(document) => document,
            Err(error) => {
                let (path, error) = (&file.path, error.message());
                self.problem(format!("{path} is not valid TOML: {error}"));
                return Ok(());
            }
        };
        let dependencies = document
            .get("project")
            .and_then(toml::Value::as_table)
            .and_then(|project| project.get("dependencies"))
            .and_then(toml::Value::as_array);
        let requirements = dependencies
            .into_iter()
            .flatten()
            .filter_map(toml::Value::as_str);
        for requirement in requirements {
            self.requirement(&file.path, 0, requirement);
        }
        Ok(())
    }

    fn script(&mut self, file: &SkillFile) -> Result<()> {
        let bytes = self.read_bytes(file, SCRIPT_BYTES_MAX)?;
        let text = decode_text(&bytes, false).text;
        if let Some(ScriptMetadata { line, dependencies }) = read_script_metadata(&text) {
            for requirement in dependencies {
                self.requirement(&file.path, line, &requirement);
            }
        }
        Ok(())
    }

    fn node_package(&mut self) -> Result<()> {
        let manifest = self.manifest;
        let Some(file) = manifest.find_exact("package.json") else {
            return Ok(());
        };
        // What the skill brings itself needs no installation.
        let brings_modules = manifest
            .files()
            .iter()
            .any(|file| file.path.split('/').next() == Some("node_modules"));
        let Some(package) = self.read_text(file, STATED_BYTES_MAX)? else {
            return Ok(());
        };
        let parsed = match serde_json::from_str::<serde_json::Value>(&package) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.problem(format!("package.json is not valid JSON: {error}"));
                return Ok(());
            }
        };
        let dependencies = parsed
            .get("dependencies")
            .and_then(|stated| stated.as_object());
        if brings_modules || dependencies.is_none_or(serde_json::Map::is_empty) {
            return Ok(());
        }
        self.need.package_json = package.into_bytes();
        match manifest.find_exact("package-lock.json") {
            Some(lock) if lock.size <= LOCK_BYTES_MAX => {
                let text = self.read_text(lock, LOCK_BYTES_MAX)?;
                self.need.package_lock = text.unwrap_or_default().into_bytes();
            }
            found => {
                let message = match found {
                    Some(_) => "package-lock.json is larger than 8 MiB",
                    None => {
                        "package.json names dependencies and the skill has no package-lock.json: run \
                         `npm install --package-lock-only` and add it to the skill"
                    }
                };
                self.problem(message.to_owned());
            }
        }
        Ok(())
    }

    /// Adds one requirement of a file.
    fn requirement(&mut self, path: &str, line: usize, text: &str) {
        if self.requirements.len() >= REQUIREMENTS_MAX {
            if self.requirements.len() == REQUIREMENTS_MAX {
                // One more than the maximum: reported once.
                self.requirements.insert(String::new());
                self.problem(format!(
                    "{path} brings the skill to more than {REQUIREMENTS_MAX} requirements"
                ));
            }
            return;
        }
        match check_requirement(text) {
            Ok(requirement) => {
                self.requirements.insert(requirement);
            }
            Err(reason) => {
                let place = match line {
                    0 => path.to_owned(),
                    line => format!("{path}:{line}"),
                };
                let excerpt: String = text.chars().take(100).collect();
                let shown = excerpt.escape_debug();
                self.problem(format!("{place}: \"{shown}\" {reason}"));
            }
        }
    }

    fn problem(&mut self, message: String) {
        if self.need.problems.len() < PROBLEMS_MAX {
            let problem = Problem::warning(REQUIREMENT_REFUSED, message);
            self.need.problems.push(problem);
        }
    }

    /// Reads a text file; one that is too large is a problem and not read.
    fn read_text(&mut self, file: &SkillFile, bytes_max: u64) -> Result<Option<String>> {
        if file.size > bytes_max {
            self.problem(format!("{} is larger than {bytes_max} bytes", file.path));
            return Ok(None);
        }
        let bytes = self.read_bytes(file, bytes_max)?;
        Ok(Some(decode_text(&bytes, true).text.into_owned()))
    }

    fn read_bytes(&self, file: &SkillFile, bytes_max: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut opened = self.manifest.open(file)?.take(bytes_max);
        opened
            .read_to_end(&mut bytes)
            .map_err(skill_files::unreadable)?;
        Ok(bytes)
    }

    fn finish(mut self) -> EnvironmentNeed {
        self.need.requirements = self.requirements.into_iter().collect();
        // This thread may block; those that ask for the digest later must not.
        let _computed = self.need.digest();
        self.need
    }
}

/// Returns the requirements of a requirements.txt with their lines: continued lines joined, comments removed.
fn join_continued_lines(text: &str) -> Vec<(usize, String)> {
    let mut requirements = Vec::new();
    let mut joined = String::new();
    let mut start = 0;
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        if joined.is_empty() {
            start = index + 1;
        }
        let is_comment = line.trim_start().starts_with('#');
        let uncommented = line.split_once(" #").map_or(line, |(before, _)| before);
        let content = if is_comment { "" } else { uncommented.trim() };
        if let Some(continued) = content.strip_suffix('\\') {
            joined += continued;
            joined.push(' ');
            continue;
        }
        joined += content;
        let requirement = std::mem::take(&mut joined);
        if !requirement.trim().is_empty() {
            requirements.push((start, requirement));
        }
    }
    if !joined.trim().is_empty() {
        requirements.push((start, joined));
    }
    requirements
}

#[cfg(test)]
mod tests;

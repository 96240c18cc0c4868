//! Reads which packages a skill needs beyond its image. They are the Python requirements and the Node.js packages that
//! its files state.
//!
//! Files of tests, templates and examples are left out, like in preflight.
//!
//! | file | read |
//! |---|---|
//! | `requirements.txt` | every line |
//! | `pyproject.toml` | `project.dependencies` |
//! | `*.py` | the block of inline script metadata (PEP 723) |
//! | `package.json`, `package-lock.json`, `npm-shrinkwrap.json` | of each folder, checked, for npm: `node_projects.rs` |
//!
//! A part that is refused becomes a problem of the skill; the other parts are installed.
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

mod local_packages;
mod lock_file;
mod node_projects;

use node_projects::{NodeDeclarations, read_node_projects};

/// Code of the problem of a requirement that a build must not see.
const REQUIREMENT_REFUSED: &str = "environment.requirement_refused";

/// Maximum number of requirements of one skill. The largest lock file of the public collections has 212.
const REQUIREMENTS_MAX: usize = 1000;
/// Maximum size in bytes of a file that states requirements; a longer one is refused.
const STATED_BYTES_MAX: u64 = 1 << 20;
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
        problems: ProblemList::default(),
    };
    // The bounds of a skill's content bound these files, too.
    for (file, file_use) in select_files(manifest, "") {
        match file_use {
            FileUse::Requirements => reader.requirements_file(file)?,
            FileUse::PythonProject => reader.project_file(file)?,
            FileUse::Script => reader.script(file)?,
            FileUse::SkillMd => {}
        }
    }
    Ok(reader.finish(read_node_projects(manifest)?))
}

/// Reads the files of one skill.
struct NeedReader<'a> {
    manifest: &'a Manifest,
    requirements: BTreeSet<String>,
    problems: ProblemList,
}

impl NeedReader<'_> {
    fn requirements_file(&mut self, file: &SkillFile) -> Result<()> {
        let Some(text) = read_text(self.manifest, file, STATED_BYTES_MAX, &mut self.problems)?
        else {
            return Ok(());
        };
        for (line, requirement) in join_continued_lines(&text) {
            self.requirement(&file.path, line, &requirement);
        }
        Ok(())
    }

    fn project_file(&mut self, file: &SkillFile) -> Result<()> {
        let Some(text) = read_text(self.manifest, file, STATED_BYTES_MAX, &mut self.problems)?
        else {
            return Ok(());
        };
        let document = match text.parse::<toml::Table>() {
            Ok(document) => document,
            Err(error) => {
                let reason = format!("is not valid TOML: {}", error.message());
                self.problems.refuse(&file.path, &reason);
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
        let bytes = read_bytes(self.manifest, file, SCRIPT_BYTES_MAX)?;
        let text = decode_text(&bytes, false).text;
        if let Some(ScriptMetadata { line, dependencies }) = read_script_metadata(&text) {
            for requirement in dependencies {
                self.requirement(&file.path, line, &requirement);
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
                let reason =
                    format!("brings the skill to more than {REQUIREMENTS_MAX} requirements");
                self.problems.refuse(path, &reason);
            }
            return;
        }
        match check_requirement(text) {
            Ok(requirement) => {
                self.requirements.insert(requirement);
            }
            Err(reason) => {
                let excerpt: String = text.chars().take(100).collect();
                let reason = format!("\"{}\" {reason}", excerpt.escape_debug());
                self.problems.refuse_line(path, line, &reason);
            }
        }
    }

    fn finish(mut self, node: NodeDeclarations) -> EnvironmentNeed {
        for problem in node.problems.0 {
            self.problems.add(problem);
        }
        let mut need = EnvironmentNeed::default();
        need.requirements = self.requirements.into_iter().collect();
        need.node_projects = node.projects;
        need.node_packages = node.packages;
        need.problems = self.problems.0;
        // This thread may block; those that ask for the digest later must not.
        let _computed = need.digest();
        need
    }
}

/// Problems of one skill's packages. The subject of each is a file of the skill.
#[derive(Debug, Default)]
struct ProblemList(Vec<Problem>);

impl ProblemList {
    /// Adds a file, or a part of it, that is refused. The reason completes a sentence that begins with the file.
    fn refuse(&mut self, path: &str, reason: &str) {
        self.refuse_line(path, 0, reason);
    }

    /// Adds a line that is refused; 0 is the file.
    fn refuse_line(&mut self, path: &str, line: usize, reason: &str) {
        let place = match line {
            0 => path.to_owned(),
            line => format!("{path}:{line}"),
        };
        // A reason that begins with a quotation names a part of the file.
        let separator = if reason.starts_with('"') { ": " } else { " " };
        self.add(Problem {
            subject: path.to_owned(),
            ..Problem::error(REQUIREMENT_REFUSED, format!("{place}{separator}{reason}")).at(line)
        });
    }

    fn add(&mut self, problem: Problem) {
        // Several projects may lead to one package of the skill's own folder.
        if self.0.len() < PROBLEMS_MAX && !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }
}

/// Reads a text file; one that is too large is a problem and not read.
fn read_text(
    manifest: &Manifest,
    file: &SkillFile,
    bytes_max: u64,
    problems: &mut ProblemList,
) -> Result<Option<String>> {
    if file.size > bytes_max {
        problems.refuse(&file.path, &format!("is larger than {bytes_max} bytes"));
        return Ok(None);
    }
    let bytes = read_bytes(manifest, file, bytes_max)?;
    Ok(Some(decode_text(&bytes, true).text.into_owned()))
}

fn read_bytes(manifest: &Manifest, file: &SkillFile, bytes_max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut opened = manifest.open(file)?.take(bytes_max);
    opened
        .read_to_end(&mut bytes)
        .map_err(skill_files::unreadable)?;
    Ok(bytes)
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

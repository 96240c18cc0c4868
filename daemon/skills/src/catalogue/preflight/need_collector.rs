//! Collects the requirements of a skill: stated in its front matter and its package files, or concluded from its
//! scripts and from the commands in its SKILL.md.

use std::collections::HashSet;
use std::io::Read;

use super::command_needs::{CommandPlace, ConcludedNeed, find_command_needs};
use super::file_selection::{FileUse, select_files};
use super::markdown_commands::{self, CodeKind};
use super::program_names::{is_ambiguous, is_known_program};
use super::{
    Need, NeedKind, has_word, network_signs, node_calls, package_json, python_calls,
    python_requirements, script_interpreter, shell_translation,
};
use crate::content_store::skill_files::{self, FilePurpose, Manifest, SkillFile};
use crate::error::Result;
use crate::parse::front_matter::FrontMatter;
use crate::parse::problem::Severity;
use crate::text_decoding::decode_text;

/// Maximum number of files of a skill that are read.
const FILES_MAX: usize = 500;
/// Maximum number of bytes that are read of all files.
const BYTES_MAX: usize = 8 << 20;
/// Maximum number of bytes that are read of one file.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Maximum number of requirements of one skill.
const NEEDS_MAX: usize = 2000;
/// Names of agents, which texts about compatibility also mention.
const AGENTS: &str = "claude codex copilot gemini";

/// Requirements of one skill so far.
struct NeedCollector<'a> {
    manifest: &'a Manifest,
    /// Modules that the skill itself has.
    own_modules: HashSet<&'a str>,
    /// Programs that the skill itself has: its scripts, and the functions that they define.
    own_programs: HashSet<String>,
    needs: Vec<Need>,
    /// Conclusions so far; each is drawn once.
    concluded: HashSet<(NeedKind, Vec<String>)>,
}

/// Returns everything that a skill requires of an image.
///
/// # Errors
/// `Io`.
pub(crate) fn collect_needs(front: &FrontMatter, manifest: &Manifest) -> Result<Vec<Need>> {
    let mut collector = NeedCollector {
        manifest,
        own_modules: find_own_modules(manifest),
        own_programs: find_own_programs(manifest),
        needs: Vec::new(),
        concluded: HashSet::new(),
    };
    collector.front_matter(front);
    let mut left = BYTES_MAX;
    let mut read_file = |file: &SkillFile| -> Result<String> {
        let mut bytes = Vec::new();
        let mut opened = manifest.open(file)?.take(FILE_BYTES_MAX.min(left as u64));
        opened
            .read_to_end(&mut bytes)
            .map_err(skill_files::unreadable)?;
        left = left.saturating_sub(bytes.len());
        Ok(decode_text(&bytes, false).text.into_owned())
    };
    let document = find_skill_md(manifest).map(&mut read_file).transpose()?;
    let document = document.unwrap_or_default();
    for (file, file_use) in select_files(manifest, &document)
        .into_iter()
        .take(FILES_MAX)
    {
        match file_use {
            FileUse::SkillMd if !file.path.contains('/') => {
                collector.document(&file.path, &document);
            }
            FileUse::SkillMd
            | FileUse::Makefile
            | FileUse::Requirements
            | FileUse::PythonProject
            | FileUse::NodePackage
            | FileUse::Script => {
                collector.file(&file.path, file_use, &read_file(file)?);
            }
        }
    }
    Ok(collector.finish())
}

/// Returns the names that an import may mean: a file, or a folder with one in it, wherever it is.
fn find_own_modules(manifest: &Manifest) -> HashSet<&str> {
    let paths = manifest.files().iter().map(|file| file.path.as_str());
    let modules = paths.filter_map(|path| path.strip_suffix(".py"));
    modules.flat_map(|path| path.split('/')).collect()
}

/// Returns the names under which commands may call the skill's own scripts.
fn find_own_programs(manifest: &Manifest) -> HashSet<String> {
    let files = manifest.files().iter();
    let scripts =
        files.filter(|file| file.purpose == FilePurpose::Script || file.path.starts_with("bin/"));
    let names = scripts.filter_map(|file| file.path.rsplit('/').next());
    names.map(str::to_owned).collect()
}

impl NeedCollector<'_> {
    fn add(&mut self, kind: NeedKind, names: &[&str], severity: Severity, source: &str) {
        let names = names.iter().map(|name| name.trim());
        let names: Vec<String> = names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        if !names.is_empty() && self.needs.len() < NEEDS_MAX {
            self.needs.push(Need {
                kind,
                names,
                severity,
                source: source.to_owned(),
            });
        }
    }

    /// Adds a conclusion, unless it was drawn before.
    fn conclude(&mut self, need: &ConcludedNeed, path: &str) {
        if self.needs.len() >= NEEDS_MAX {
            return;
        }
        let mut kind = need.kind;
        if kind == NeedKind::Binary && need.names.len() > 1 {
            kind = NeedKind::AnyBinary;
        }
        let is_own = |name: &String| {
            self.own_modules
                .contains(name.split('.').next().unwrap_or_default())
        };
        let is_import = matches!(kind, NeedKind::PythonModule | NeedKind::Network);
        if is_import && need.names.iter().any(is_own) {
            return;
        }
        let is_shipped = |name: &String| self.has_node_package(path, name);
        if kind == NeedKind::NodePackage && need.names.iter().any(is_shipped) {
            return;
        }
        if !self.concluded.insert((kind, need.names.clone())) {
            return;
        }
        let source = format_place(path, need.line);
        let names: Vec<&str> = need.names.iter().map(String::as_str).collect();
        self.add(kind, &names, Severity::Warning, &source);
    }

    /// Returns all requirements but the programs that the skill itself has.
    fn finish(mut self) -> Vec<Need> {
        let own = &self.own_programs;
        let is_program = |kind| {
            matches!(
                kind,
                NeedKind::Binary | NeedKind::AnyBinary | NeedKind::Network
            )
        };
        let is_concluded =
            |need: &Need| need.severity == Severity::Warning && is_program(need.kind);
        let packages: HashSet<String> = self
            .needs
            .iter()
            .filter(|need| matches!(need.kind, NeedKind::NodePackage | NeedKind::PythonPackage))
            .flat_map(|need| need.names.clone())
            .collect();
        // `npx x` downloads nothing where `x` is installed.
        let is_own = |name: &String| match name.split_once(' ') {
            Some((_, package)) => packages.contains(package),
            None => own.contains(name),
        };
        self.needs
            .retain(|need| !(is_concluded(need) && need.names.iter().any(is_own)));
        self.needs
    }

    fn front_matter(&mut self, front: &FrontMatter) {
        let requires = &front.requires;
        let key = |part: &str| format!("metadata.requires.{part}");
        for name in &requires.bins {
            // Commands find programs of the skill's own bin/ too.
            if self.manifest.find_exact(&format!("bin/{name}")).is_none() {
                self.add(NeedKind::Binary, &[name], Severity::Error, &key("bins"));
            }
            if network_signs::is_network_program(name) {
                self.add(NeedKind::Network, &[name], Severity::Warning, &key("bins"));
            }
        }
        let any: Vec<&str> = requires.any_bins.iter().map(String::as_str).collect();
        self.add(NeedKind::AnyBinary, &any, Severity::Error, &key("anyBins"));
        for name in &requires.env {
            self.add(NeedKind::Env, &[name], Severity::Error, &key("env"));
        }
        self.compatibility(&front.compatibility);
    }

    fn compatibility(&mut self, text: &str) {
        if network_signs::states_network(text) {
            let name = ["the skill"];
            self.add(NeedKind::Network, &name, Severity::Warning, "compatibility");
        }
        let text = text.to_lowercase();
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'));
        for word in words.filter(|word| !has_word(AGENTS, word)) {
            let is_denied = ["no", "without", "not need", "not require"]
                .iter()
                .any(|denial| text.contains(&format!("{denial} {word}")));
            if !is_denied
                && !text.contains("optional")
                && is_known_program(word)
                && !is_ambiguous(word)
            {
                self.add(
                    NeedKind::Binary,
                    &[word],
                    Severity::Warning,
                    "compatibility",
                );
            }
        }
    }

    fn document(&mut self, path: &str, text: &str) {
        for code in markdown_commands::find_code(text) {
            let needs = match code.kind {
                CodeKind::Shell => {
                    // A function in a document is none of another one's commands.
                    let mut functions = HashSet::new();
                    find_command_needs(
                        &code.text,
                        code.line,
                        CommandPlace::Document,
                        &mut functions,
                    )
                }
                CodeKind::Python => python_calls::find_python_needs(&code.text, code.line),
                CodeKind::Node => node_calls::find_node_needs(&code.text, code.line),
            };
            self.conclude_all(&needs, path);
        }
    }

    fn file(&mut self, path: &str, file_use: FileUse, text: &str) {
        match file_use {
            FileUse::Requirements => {
                self.python_packages(path, python_requirements::read_requirements(text));
            }
            FileUse::PythonProject => {
                self.python_packages(path, python_requirements::read_project(text));
            }
            FileUse::NodePackage => self.node_packages(path, text),
            FileUse::Script => self.script(path, text),
            // That of a skill within the skill.
            FileUse::SkillMd => self.document(path, text),
            FileUse::Makefile => {
                let needs = shell_needs(&shell_translation::translate_makefile(text));
                self.conclude_all(&needs, path);
            }
        }
    }

    fn python_packages(&mut self, path: &str, packages: Vec<python_requirements::LocatedName>) {
        for (name, line) in packages {
            let source = format_place(path, line);
            self.add(NeedKind::PythonPackage, &[&name], Severity::Error, &source);
        }
    }

    fn node_packages(&mut self, path: &str, text: &str) {
        for name in package_json::read_dependencies(text) {
            if !self.has_node_package(path, &name) {
                self.add(NeedKind::NodePackage, &[&name], Severity::Error, path);
            }
        }
    }

    /// Returns `true` if a file's folder, or one around it, has a package in its node_modules.
    fn has_node_package(&self, path: &str, name: &str) -> bool {
        let mut folder = path;
        while let Some((outer, _)) = folder.rsplit_once('/') {
            folder = outer;
            let place = format!("{folder}/node_modules/{name}/package.json");
            if self.manifest.find_exact(&place).is_some() {
                return true;
            }
        }
        let place = format!("node_modules/{name}/package.json");
        self.manifest.find_exact(&place).is_some()
    }

    fn script(&mut self, path: &str, text: &str) {
        let first = text.lines().next().unwrap_or_default();
        let first = first.trim_start_matches('\u{feff}');
        let Some((interpreter, is_stated)) = script_interpreter::find_interpreter(path, first)
        else {
            return;
        };
        let severity = if is_stated {
            Severity::Error
        } else {
            Severity::Warning
        };
        let source = format_place(path, 1);
        self.add(NeedKind::Interpreter, &[&interpreter], severity, &source);
        let needs = match interpreter.as_str() {
            "python3" | "uv" => {
                self.python_packages(path, python_requirements::read_script_block(text));
                python_calls::find_python_needs(text, 1)
            }
            "bash" | "sh" | "zsh" => {
                find_command_needs(text, 1, CommandPlace::Script, &mut self.own_programs)
            }
            "node" | "tsx" | "bun" => node_calls::find_node_needs(text, 1),
            "ruby" | "perl" => shell_needs(&shell_translation::translate_ruby_or_perl(text)),
            "pwsh" => shell_needs(&shell_translation::translate_powershell(text)),
            _ => Vec::new(),
        };
        self.conclude_all(&needs, path);
    }

    fn conclude_all(&mut self, needs: &[ConcludedNeed], path: &str) {
        for need in needs {
            self.conclude(need, path);
        }
    }
}

fn find_skill_md(manifest: &Manifest) -> Option<&SkillFile> {
    let files = manifest.files().iter();
    // An exact name comes before others.
    files
        .filter(|file| file.is_text && file.path.eq_ignore_ascii_case("SKILL.md"))
        .max_by_key(|file| file.path == "SKILL.md")
}

fn shell_needs(text: &str) -> Vec<ConcludedNeed> {
    find_command_needs(text, 1, CommandPlace::Script, &mut HashSet::new())
}

fn format_place(path: &str, line: usize) -> String {
    match line {
        0 => path.to_owned(),
        line => format!("{path}:{line}"),
    }
}

//! Collects the requirements of a skill. They are stated in its front matter and its package files, or concluded from
//! lines of its scripts and its SKILL.md.

use std::collections::{HashMap, HashSet};
use std::io::Read;

use skilld_common::names::base_name;
use skilld_common::text_decoding::decode_text;

use super::commands::{NumberedText, find_code, find_shell_programs, find_subprocess_programs};
use super::file_selection::{FileUse, SelectedFile, is_vendored, select_files};
use super::program_names::is_named_in_text;
use super::python_requirements::{LocatedName, read_project, read_requirements, read_script_block};
use super::script_interpreter::find_interpreter;
use super::{Need, NeedKind, install_lines, node_imports, python_imports};
use crate::content_store::skill_files::{Manifest, SkillFile, unreadable};
use crate::error::Result;
use crate::parse::front_matter::FrontMatter;
use crate::parse::problem::Severity;

/// Maximum number of files of a skill that are read.
const FILES_MAX: usize = 500;
/// Maximum number of bytes that are read of all files.
const BYTES_MAX: usize = 8 << 20;
/// Maximum number of bytes that are read of one file.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Maximum number of requirements of one skill.
const NEEDS_MAX: usize = 2000;
/// Maximum number of Node.js packages among these, so that there is room for what scripts need.
const NODE_PACKAGES_MAX: usize = 1000;
/// Maximum length of `compatibility` as the specification permits it, in characters. A longer text is read up to here.
const COMPATIBILITY_CHARS_MAX: usize = 500;

/// Words before a name in texts of skills that do without it.
const DENIALS: [&str; 4] = ["no", "not need", "not require", "without"];

/// Requirements of one skill so far.
struct NeedCollector<'a> {
    manifest: &'a Manifest,
    /// Modules that the skill itself has.
    own_modules: HashSet<&'a str>,
    /// Modules of the files that are selected from the beginning.
    selected_modules: HashSet<&'a str>,
    /// Files by the names of their modules. A file that is not selected is read if a script imports it.
    unread_modules: HashMap<&'a str, &'a SkillFile>,
    /// Packages in the skill's own node_modules folders.
    node_packages: HashSet<&'a str>,
    /// Files to read, in this order; a script adds the modules that it imports.
    files: Vec<SelectedFile<'a>>,
    needs: Vec<Need>,
    /// Packages that the skill states.
    packages: HashSet<String>,
    /// Conclusions so far; each is drawn once.
    concluded: HashSet<(NeedKind, String)>,
}

/// Returns everything that a skill requires of an image. `node_packages` has the packages that each package.json names:
/// path and name.
///
/// # Errors
/// `Io`.
pub(crate) fn collect_needs(
    front: &FrontMatter,
    manifest: &Manifest,
    node_packages: &[(String, String)],
) -> Result<Vec<Need>> {
    let mut left = BYTES_MAX;
    let mut read_file = |file: &SkillFile| -> Result<String> {
        let mut bytes = Vec::new();
        let mut opened = manifest.open(file)?.take(FILE_BYTES_MAX.min(left as u64));
        opened.read_to_end(&mut bytes).map_err(unreadable)?;
        left = left.saturating_sub(bytes.len());
        Ok(decode_text(&bytes, false).text.into_owned())
    };
    let documents = manifest.files().iter();
    let document = documents
        .filter(|file| file.is_text && file.path.eq_ignore_ascii_case("SKILL.md"))
        .max_by_key(|file| file.path == "SKILL.md");
    let text = document.map(&mut read_file).transpose()?;
    let files = select_files(manifest, &text.unwrap_or_default());
    let selected = files.iter().map(|(file, _)| *file);
    let mut collector = NeedCollector {
        manifest,
        own_modules: find_own_modules(manifest),
        selected_modules: selected.filter_map(module_name).collect(),
        unread_modules: find_modules(manifest),
        node_packages: find_node_packages(manifest),
        files,
        needs: Vec::new(),
        packages: HashSet::new(),
        concluded: HashSet::new(),
    };
    collector.front_matter(front);
    for (path, name) in node_packages.iter().take(NODE_PACKAGES_MAX) {
        collector.node_package(path, name);
    }
    for index in 0..FILES_MAX {
        let Some((file, file_use)) = collector.files.get(index).copied() else {
            break;
        };
        collector.file(&file.path, file_use, &read_file(file)?);
    }
    Ok(collector.finish())
}

/// Returns the names that an import may mean: a file, or a folder with one in it, wherever it is.
fn find_own_modules(manifest: &Manifest) -> HashSet<&str> {
    let paths = manifest.files().iter().map(|file| file.path.as_str());
    let modules = paths.filter_map(|path| path.strip_suffix(".py"));
    modules.flat_map(|path| path.split('/')).collect()
}

/// Returns the packages in the skill's own node_modules folders, wherever these are.
fn find_node_packages(manifest: &Manifest) -> HashSet<&str> {
    let paths = manifest.files().iter().map(|file| file.path.as_str());
    let folders = paths.filter_map(|path| path.strip_suffix("/package.json"));
    let packages = folders.filter_map(|folder| folder.split_once("node_modules/"));
    packages.map(|(_, name)| name).collect()
}

/// Returns the Python files of the skill by the names of their modules.
fn find_modules(manifest: &Manifest) -> HashMap<&str, &SkillFile> {
    let files = manifest.files().iter();
    let modules = files.filter(|file| file.is_text && !is_vendored(&file.path));
    modules
        .filter_map(|file| Some((module_name(file)?, file)))
        .collect()
}

fn module_name(file: &SkillFile) -> Option<&str> {
    base_name(&file.path).strip_suffix(".py")
}

impl NeedCollector<'_> {
    fn add(&mut self, kind: NeedKind, names: &[&str], severity: Severity, source: &str) {
        if !names.is_empty() && self.needs.len() < NEEDS_MAX {
            self.needs.push(Need {
                kind,
                names: names.iter().copied().map(str::to_owned).collect(),
                severity,
                source: source.to_owned(),
            });
        }
    }

    /// Adds a conclusion, unless it was drawn before or the skill brings what it names.
    fn conclude(&mut self, kind: NeedKind, name: &str, path: &str, line: usize) {
        let key = (kind, name.to_owned());
        if self.needs.len() >= NEEDS_MAX || self.concluded.contains(&key) {
            return;
        }
        let is_brought = (kind == NeedKind::Binary && self.has_program(name))
            || (kind == NeedKind::NodePackage && self.node_packages.contains(name));
        if !is_brought {
            self.add(kind, &[name], Severity::Warning, &format_place(path, line));
            self.concluded.insert(key);
        }
    }

    /// Returns all requirements but the concluded programs of stated packages: with these they are installed.
    fn finish(mut self) -> Vec<Need> {
        let packages = &self.packages;
        self.needs.retain(|need| {
            let is_program = need.kind == NeedKind::Binary && need.severity == Severity::Warning;
            !is_program || !need.names.iter().any(|name| packages.contains(name))
        });
        self.needs
    }

    fn front_matter(&mut self, front: &FrontMatter) {
        let requires = &front.requires;
        let key = |part: &str| format!("metadata.requires.{part}");
        for name in &requires.bins {
            if !self.has_program(name) {
                self.add(NeedKind::Binary, &[name], Severity::Error, &key("bins"));
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
        let beginning: String = text.chars().take(COMPATIBILITY_CHARS_MAX).collect();
        let text = beginning.to_lowercase();
        // `without a network` denies as `without network` does.
        let words: Vec<&str> = text
            .split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'))
            .filter(|word| !["", "a", "the"].contains(word))
            .collect();
        let phrases = words.join(" ");
        for word in words {
            let (kind, name, condition) = match word {
                "internet" | "network" => (NeedKind::Network, "the skill", "offline"),
                _ if is_named_in_text(word) => (NeedKind::Binary, word, "optional"),
                _ => continue,
            };
            let denies = |denial: &&str| phrases.contains(&format!("{denial} {word}"));
            if !phrases.contains(condition) && !DENIALS.iter().any(denies) {
                self.add(kind, &[name], Severity::Warning, "compatibility");
            }
        }
    }

    fn file(&mut self, path: &str, file_use: FileUse, text: &str) {
        match file_use {
            FileUse::Requirements => self.python_packages(path, read_requirements(text)),
            FileUse::PythonProject => self.python_packages(path, read_project(text)),
            FileUse::Script => self.script(path, text),
            FileUse::SkillMd => {
                let (shell, other) = find_code(text);
                self.conclude_all(NeedKind::Binary, find_shell_programs(&shell), path);
                self.installed_packages(path, &[shell, other].concat());
            }
        }
    }

    fn script(&mut self, path: &str, text: &str) {
        let lines: Vec<NumberedText<'_>> = text.lines().zip(1..).collect();
        let (first, _) = lines.first().copied().unwrap_or_default();
        let Some((interpreter, is_stated)) = find_interpreter(path, first) else {
            return;
        };
        let severity = match is_stated {
            true => Severity::Error,
            false => Severity::Warning,
        };
        let source = format_place(path, 1);
        self.add(NeedKind::Interpreter, &[&interpreter], severity, &source);
        match interpreter.as_str() {
            "python3" | "uv" => {
                self.python_packages(path, read_script_block(text));
                self.conclude_all(NeedKind::Binary, find_subprocess_programs(text), path);
                self.python_imports(path, text);
            }
            "bash" | "sh" | "zsh" => {
                self.conclude_all(NeedKind::Binary, find_shell_programs(&lines), path);
            }
            "node" | "tsx" | "bun" => {
                self.conclude_all(
                    NeedKind::NodePackage,
                    node_imports::find_imports(text),
                    path,
                );
            }
            _ => {}
        }
        self.installed_packages(path, &lines);
    }

    fn python_packages(&mut self, path: &str, packages: Vec<LocatedName>) {
        for (name, line) in packages {
            let source = format_place(path, line);
            self.add(NeedKind::PythonPackage, &[&name], Severity::Error, &source);
            self.packages.insert(name);
        }
    }

    fn node_package(&mut self, path: &str, name: &str) {
        if !self.node_packages.contains(name) {
            self.add(NeedKind::NodePackage, &[name], Severity::Error, path);
            self.packages.insert(name.to_owned());
        }
    }

    fn python_imports(&mut self, path: &str, text: &str) {
        for import in python_imports::find_imports(text) {
            let top = import.top_module();
            if top.is_empty() || self.own_modules.contains(top) {
                // What follows a selected module is defined there, and another file only has its name.
                let is_unread = |part: &&str| !self.selected_modules.contains(part);
                let parts = import.path.split('.').take_while(is_unread);
                let modules = parts.filter_map(|part| self.unread_modules.remove(part));
                self.files
                    .extend(modules.map(|file| (file, FileUse::Script)));
            } else {
                let module = import.package_module();
                self.conclude(NeedKind::PythonModule, module, path, import.line);
            }
        }
    }

    fn conclude_all(&mut self, kind: NeedKind, names: Vec<(impl AsRef<str>, usize)>, path: &str) {
        for (name, line) in names {
            self.conclude(kind, name.as_ref(), path, line);
        }
    }

    /// Adds the packages that lines of code tell to install.
    fn installed_packages(&mut self, path: &str, lines: &[NumberedText<'_>]) {
        for (kind, name, line) in install_lines::find_installed_packages(lines) {
            self.conclude(kind, &name, path, line);
        }
    }

    /// Returns `true` for a program of the skill's bin/, where commands find it.
    fn has_program(&self, name: &str) -> bool {
        self.manifest.find_exact(&format!("bin/{name}")).is_some()
    }
}

/// Names a file and a line of it; 0 is the whole file.
pub(super) fn format_place(path: &str, line: usize) -> String {
    match line {
        0 => path.to_owned(),
        line => format!("{path}:{line}"),
    }
}

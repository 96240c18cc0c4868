//! Collects the requirements of a skill. They are stated in its front matter and its package files, or concluded from
//! lines of its scripts and its SKILL.md.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::Path;

use skilld_common::text_decoding::decode_text;

use super::commands::{self, NamedProgram};
use super::file_selection::{FileUse, is_vendored, select_files};
use super::program_names::is_named_in_text;
use super::python_requirements::{LocatedName, read_project, read_requirements, read_script_block};
use super::script_interpreter::find_interpreter;
use super::{Need, NeedKind, install_lines, node_imports, package_json, python_imports};
use crate::content_store::skill_files::{self, Manifest, SkillFile};
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

/// Words before a name in texts of skills that do without it.
const DENIALS: [&str; 4] = ["no", "not need", "not require", "without"];

/// Requirements of one skill so far.
struct NeedCollector<'a> {
    manifest: &'a Manifest,
    /// Modules that the skill itself has.
    own_modules: HashSet<&'a str>,
    /// Modules of the skill that are read only if a script imports them.
    unread_modules: HashMap<&'a str, &'a SkillFile>,
    /// Files to read, in this order; a script adds the modules that it imports.
    files: Vec<(&'a SkillFile, FileUse)>,
    needs: Vec<Need>,
    /// Packages that the skill states.
    packages: HashSet<String>,
    /// Conclusions so far; each is drawn once.
    concluded: HashSet<(NeedKind, String)>,
}

/// Returns everything that a skill requires of an image.
///
/// # Errors
/// `Io`.
pub(crate) fn collect_needs(front: &FrontMatter, manifest: &Manifest) -> Result<Vec<Need>> {
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
    let document = manifest
        .find_exact("SKILL.md")
        .map(&mut read_file)
        .transpose()?;
    let files = select_files(manifest, &document.unwrap_or_default());
    let mut collector = NeedCollector {
        manifest,
        own_modules: find_own_modules(manifest),
        unread_modules: find_unread_modules(manifest, &files),
        files,
        needs: Vec::new(),
        packages: HashSet::new(),
        concluded: HashSet::new(),
    };
    collector.front_matter(front);
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

/// Returns the Python files that are not selected, for instance of a folder of examples, by the names of their modules.
fn find_unread_modules<'a>(
    manifest: &'a Manifest,
    selected: &[(&SkillFile, FileUse)],
) -> HashMap<&'a str, &'a SkillFile> {
    let selected_paths: HashSet<&str> = selected
        .iter()
        .map(|(file, _)| file.path.as_str())
        .collect();
    let unread = manifest.files().iter().filter(|file| {
        file.is_text && !is_vendored(&file.path) && !selected_paths.contains(file.path.as_str())
    });
    let modules = unread.filter_map(|file| {
        let name = file.path.rsplit('/').next()?;
        Some((name.strip_suffix(".py")?, file))
    });
    modules.collect()
}

impl NeedCollector<'_> {
    fn add(&mut self, kind: NeedKind, names: &[&str], severity: Severity, source: &str) {
        let names: Vec<String> = names
            .iter()
            .map(|name| name.trim())
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

    /// Adds a conclusion, unless it was drawn before or the skill brings what it names.
    fn conclude(&mut self, kind: NeedKind, name: &str, path: &str, line: usize) {
        let is_brought = (kind == NeedKind::Binary && self.has_program(name))
            || (kind == NeedKind::NodePackage && self.has_node_package(path, name));
        let is_full = self.needs.len() >= NEEDS_MAX;
        if !is_brought && !is_full && self.concluded.insert((kind, name.to_owned())) {
            self.add(kind, &[name], Severity::Warning, &format_place(path, line));
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
        let text = text.to_lowercase();
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
            FileUse::NodePackage => {
                for name in package_json::read_dependencies(text) {
                    if !self.has_node_package(path, &name) {
                        self.add(NeedKind::NodePackage, &[&name], Severity::Error, path);
                        self.packages.insert(name);
                    }
                }
            }
            FileUse::Script => self.script(path, text),
            FileUse::SkillMd => {
                let lines = commands::shell_block_lines(text);
                self.programs(path, commands::find_shell_programs(lines));
                self.installed_packages(path, text);
            }
        }
    }

    fn script(&mut self, path: &str, text: &str) {
        let first = text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches('\u{feff}');
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
                self.programs(path, commands::find_subprocess_programs(text));
                self.python_imports(path, text);
            }
            "bash" | "sh" | "zsh" => {
                let lines = text.lines().zip(1..);
                self.programs(path, commands::find_shell_programs(lines));
            }
            "node" | "tsx" | "bun" => {
                for (name, line) in node_imports::find_imports(text) {
                    self.conclude(NeedKind::NodePackage, &name, path, line);
                }
            }
            _ => {}
        }
        self.installed_packages(path, text);
    }

    fn python_packages(&mut self, path: &str, packages: Vec<LocatedName>) {
        for (name, line) in packages {
            let source = format_place(path, line);
            self.add(NeedKind::PythonPackage, &[&name], Severity::Error, &source);
            self.packages.insert(name);
        }
    }

    fn python_imports(&mut self, path: &str, text: &str) {
        for import in python_imports::find_imports(text) {
            let top = import.top_module();
            if top.is_empty() || self.own_modules.contains(top) {
                let parts = import.path.split('.');
                let unread = parts.filter_map(|part| self.unread_modules.remove(part));
                self.files
                    .extend(unread.map(|file| (file, FileUse::Script)));
            } else {
                let module = import.package_module();
                self.conclude(NeedKind::PythonModule, &module, path, import.line);
            }
        }
    }

    fn programs(&mut self, path: &str, programs: Vec<NamedProgram<'_>>) {
        for (name, line) in programs {
            self.conclude(NeedKind::Binary, name, path, line);
        }
    }

    /// Adds the packages that a text tells to install.
    fn installed_packages(&mut self, path: &str, text: &str) {
        for (kind, name, line) in install_lines::find_installed_packages(text) {
            self.conclude(kind, &name, path, line);
        }
    }

    /// Returns `true` for a program of the skill's bin/, where commands find it.
    fn has_program(&self, name: &str) -> bool {
        self.manifest.find_exact(&format!("bin/{name}")).is_some()
    }

    /// Returns `true` if a file's folder, or one around it, has a package in its node_modules.
    fn has_node_package(&self, path: &str, name: &str) -> bool {
        let mut folders = Path::new(path).ancestors().skip(1);
        folders.any(|folder| {
            let package = folder.join(format!("node_modules/{name}/package.json"));
            let place = package.to_str().unwrap_or_default();
            self.manifest.find_exact(place).is_some()
        })
    }
}

fn format_place(path: &str, line: usize) -> String {
    match line {
        0 => path.to_owned(),
        line => format!("{path}:{line}"),
    }
}

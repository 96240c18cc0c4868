//! Collects the requirements of a skill: stated in its front matter and its package files, or concluded from its
//! scripts.

use std::collections::HashSet;
use std::io::Read;

use super::{
    Need, NeedKind, has_word, network_signs, package_json, python_requirements, script_interpreter,
};
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
/// Folders whose files are no part of what runs: nobody needs what a template or a test needs.
const ASIDE: &str = "assets evals examples node_modules template templates test tests";

/// Requirements of one skill so far.
struct NeedCollector<'a> {
    manifest: &'a Manifest,
    /// Modules that the skill itself has.
    own_modules: HashSet<&'a str>,
    needs: Vec<Need>,
}

/// Returns everything that a skill requires of an image.
///
/// # Errors
/// `Io`.
pub(crate) fn collect_needs(front: &FrontMatter, manifest: &Manifest) -> Result<Vec<Need>> {
    let mut collector = NeedCollector {
        manifest,
        own_modules: find_own_modules(manifest),
        needs: Vec::new(),
    };
    collector.front_matter(front);
    let mut left = BYTES_MAX;
    let wanted = manifest.files().iter().filter(|file| is_wanted(file));
    for file in wanted.take(FILES_MAX) {
        let mut bytes = Vec::new();
        let mut opened = manifest.open(file)?.take(FILE_BYTES_MAX.min(left as u64));
        opened
            .read_to_end(&mut bytes)
            .map_err(skill_files::unreadable)?;
        left = left.saturating_sub(bytes.len());
        collector.file(&file.path, &String::from_utf8_lossy(&bytes));
    }
    Ok(collector.needs)
}

fn is_wanted(file: &SkillFile) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or(&file.path);
    let about = ["requirements.txt", "pyproject.toml", "package.json"].contains(&name);
    let is_script = file.purpose == skill_files::FilePurpose::Script;
    !is_aside(&file.path) && file.is_text && (about || is_script)
}

/// Returns `true` if a file lies in a folder of tests, templates or examples, so that the skill itself does not use it.
pub(crate) fn is_aside(path: &str) -> bool {
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    folders.split('/').any(|folder| has_word(ASIDE, folder))
}

/// Returns the names that an import may mean: a file, or a folder with one in it, wherever it is.
fn find_own_modules(manifest: &Manifest) -> HashSet<&str> {
    let paths = manifest.files().iter().map(|file| file.path.as_str());
    let modules = paths.filter_map(|path| path.strip_suffix(".py"));
    modules.flat_map(|path| path.split('/')).collect()
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
        if network_signs::states_network(&front.compatibility) {
            let name = ["the skill"];
            self.add(NeedKind::Network, &name, Severity::Warning, "compatibility");
        }
    }

    fn file(&mut self, path: &str, text: &str) {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name {
            "requirements.txt" => {
                self.python_packages(path, python_requirements::read_requirements(text));
            }
            "pyproject.toml" => self.python_packages(path, python_requirements::read_project(text)),
            "package.json" => self.node_packages(path, text),
            _ => self.script(path, text),
        }
    }

    fn python_packages(&mut self, path: &str, packages: Vec<python_requirements::LocatedName>) {
        for (name, line) in packages {
            let source = format_place(path, line);
            self.add(NeedKind::PythonPackage, &[&name], Severity::Error, &source);
        }
    }

    fn node_packages(&mut self, path: &str, text: &str) {
        let folder = path.strip_suffix("package.json").unwrap_or_default();
        for name in package_json::read_dependencies(text) {
            let places =
                [folder, ""].map(|folder| format!("{folder}node_modules/{name}/package.json"));
            if places
                .iter()
                .all(|place| self.manifest.find_exact(place).is_none())
            {
                self.add(NeedKind::NodePackage, &[&name], Severity::Error, path);
            }
        }
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
        if interpreter == "python3" {
            self.python_packages(path, python_requirements::read_script_block(text));
            for (module, line) in python_requirements::find_imports(text) {
                if self.own_modules.contains(module.as_str()) {
                    continue;
                }
                let source = format_place(path, line);
                self.add(
                    NeedKind::PythonModule,
                    &[&module],
                    Severity::Warning,
                    &source,
                );
                if network_signs::is_network_module(&module) {
                    self.add(NeedKind::Network, &[&module], Severity::Warning, &source);
                }
            }
        }
    }
}

fn format_place(path: &str, line: usize) -> String {
    match line {
        0 => path.to_owned(),
        line => format!("{path}:{line}"),
    }
}

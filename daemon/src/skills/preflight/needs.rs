//! What one version of a skill needs: said in its front matter and in files about its parts, or concluded from its files.

use std::collections::HashSet;
use std::io::Read;

use super::{Kind, Need, interpreter, network, node, python};
use crate::error::Result;
use crate::skills::Severity;
use crate::skills::files::{self, Manifest, SkillFile};
use crate::skills::front_matter::FrontMatter;

/// Files of a skill that are looked into, and how much of all and of each.
const FILES_MAX: usize = 500;
const BYTES_MAX: usize = 8 << 20;
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Needs of one skill.
const NEEDS_MAX: usize = 2000;
/// Folders whose files are no part of what runs: what a template or a test needs is another's business.
const ASIDE: [&str; 8] = [
    "assets",
    "evals",
    "examples",
    "node_modules",
    "template",
    "templates",
    "test",
    "tests",
];

struct Collecting<'a> {
    manifest: &'a Manifest,
    /// Modules that the skill itself has.
    own_modules: HashSet<&'a str>,
    needs: Vec<Need>,
}

/// What a skill needs.
///
/// # Errors
/// `Io`.
pub(in crate::skills) fn collect(front: &FrontMatter, manifest: &Manifest) -> Result<Vec<Need>> {
    let mut collecting = Collecting {
        manifest,
        own_modules: own_modules(manifest),
        needs: Vec::new(),
    };
    collecting.front_matter(front);
    let mut left = BYTES_MAX;
    let wanted = manifest.files().iter().filter(|file| is_wanted(file));
    for file in wanted.take(FILES_MAX) {
        let mut bytes = Vec::new();
        let opened = manifest.open(file)?.take(FILE_BYTES_MAX);
        let mut opened = opened.take(left as u64);
        opened.read_to_end(&mut bytes).map_err(files::unreadable)?;
        left = left.saturating_sub(bytes.len());
        collecting.file(&file.path, &String::from_utf8_lossy(&bytes));
    }
    Ok(collecting.needs)
}

fn is_wanted(file: &SkillFile) -> bool {
    let (folders, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let aside = folders.split('/').any(|folder| ASIDE.contains(&folder));
    let about = ["requirements.txt", "pyproject.toml", "package.json"].contains(&name);
    !aside && file.is_text && (about || file.kind == files::Kind::Script)
}

/// Names that an import may mean: a file, or a folder with one in it, wherever it is.
fn own_modules(manifest: &Manifest) -> HashSet<&str> {
    let python = manifest.files().iter().filter_map(|file| {
        let stem = file.path.strip_suffix(".py")?;
        Some(stem.split('/'))
    });
    python.flatten().collect()
}

impl Collecting<'_> {
    fn add(&mut self, kind: Kind, names: &[&str], severity: Severity, source: &str) {
        let names: Vec<String> = names
            .iter()
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
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
            // What lies in the skill's own bin/ is found too.
            if !self.manifest.has(&format!("bin/{name}")) {
                self.add(Kind::Binary, &[name], Severity::Error, &key("bins"));
            }
            if network::is_program(name) {
                self.add(Kind::Network, &[name], Severity::Warning, &key("bins"));
            }
        }
        let any: Vec<&str> = requires.any_bins.iter().map(String::as_str).collect();
        self.add(Kind::AnyBinary, &any, Severity::Error, &key("anyBins"));
        for name in &requires.env {
            self.add(Kind::Env, &[name], Severity::Error, &key("env"));
        }
        if network::is_said(&front.compatibility) {
            let name = ["the skill"];
            self.add(Kind::Network, &name, Severity::Warning, "compatibility");
        }
    }

    fn file(&mut self, path: &str, text: &str) {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name {
            "requirements.txt" => self.python_packages(path, python::requirements(text)),
            "pyproject.toml" => {
                let names = python::project(text).into_iter();
                self.python_packages(path, names.map(|name| (name, 0)).collect());
            }
            "package.json" => self.node_packages(path, text),
            _ => self.script(path, text),
        }
    }

    fn python_packages(&mut self, path: &str, packages: Vec<python::Named>) {
        for (name, line) in packages {
            let source = at(path, line);
            self.add(Kind::PythonPackage, &[&name], Severity::Error, &source);
        }
    }

    fn node_packages(&mut self, path: &str, text: &str) {
        let folder = path.strip_suffix("package.json").unwrap_or_default();
        for name in node::dependencies(text) {
            let places =
                [folder, ""].map(|folder| format!("{folder}node_modules/{name}/package.json"));
            if !places.iter().any(|place| self.manifest.has(place)) {
                self.add(Kind::NodePackage, &[&name], Severity::Error, path);
            }
        }
    }

    fn script(&mut self, path: &str, text: &str) {
        let first = text.lines().next().unwrap_or_default();
        let first = first.trim_start_matches('\u{feff}');
        let Some((interpreter, said)) = interpreter::of(path, first) else {
            return;
        };
        let severity = if said {
            Severity::Error
        } else {
            Severity::Warning
        };
        self.add(Kind::Interpreter, &[&interpreter], severity, &at(path, 1));
        if interpreter == "python3" {
            self.python_packages(path, python::script_block(text));
            for (module, line) in python::imports(text) {
                self.import(&module, &at(path, line));
            }
        }
    }

    fn import(&mut self, module: &str, source: &str) {
        if self.own_modules.contains(module) {
            return;
        }
        self.add(Kind::PythonModule, &[module], Severity::Warning, source);
        if network::is_module(module) {
            self.add(Kind::Network, &[module], Severity::Warning, source);
        }
    }
}

fn at(path: &str, line: usize) -> String {
    match line {
        0 => path.to_owned(),
        line => format!("{path}:{line}"),
    }
}

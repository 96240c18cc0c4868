//! Imports in Python source, found line by line. Pure.
//!
//! A line counts if it begins with `import` or `from`, also within a function. One in a `try` statement does not count,
//! because the script does without it or names the package itself, nor does one for type checkers.

/// Maximum length of a module's dotted name, in bytes.
const NAME_BYTES_MAX: usize = 100;
/// Names that modules of several packages share, so that the next name counts, too.
#[rustfmt::skip]
const NAMESPACES: &[&str] = &[
    "azure", "azure.ai", "azure.data", "azure.keyvault", "azure.mgmt", "azure.storage", "google", "google.ai",
    "google.cloud", "opentelemetry", "ruamel", "zope",
];
/// Modules of other systems.
#[rustfmt::skip]
const FOREIGN: &[&str] = &[
    "AppKit", "Foundation", "Quartz", "_winapi", "_winreg", "msvcrt", "nt", "objc", "pythoncom", "pywintypes",
    "win32api", "win32clipboard", "win32com", "win32con", "win32file", "win32gui", "winreg", "winsound",
];

/// Quotes of strings of several lines.
const QUOTES: [&str; 2] = ["\"\"\"", "'''"];

/// Import of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PythonImport {
    /// Dotted name of the module; of `from a import b` it is `a.b`. A relative one begins with a dot.
    pub(super) path: String,
    /// Number of the line.
    pub(super) line: usize,
}

impl PythonImport {
    /// Returns the first part of the dotted name; empty for a relative import.
    pub(super) fn top_module(&self) -> &str {
        self.path.split('.').next().unwrap_or_default()
    }

    /// Returns the part of the dotted name that says which package is meant.
    pub(super) fn package_module(&self) -> &str {
        let dots = self.path.match_indices('.').map(|(at, _)| at);
        let mut prefixes = dots.filter_map(|at| self.path.get(..at));
        let shortest = prefixes.find(|prefix| !NAMESPACES.contains(prefix));
        shortest.unwrap_or(&self.path)
    }
}

/// Returns the imports that a script can't do without.
pub(super) fn find_imports(source: &str) -> Vec<PythonImport> {
    let mut found = Vec::new();
    // Indentation of the statement that guards the lines beneath it.
    let mut guard: Option<usize> = None;
    let mut open_string: Option<&str> = None;
    // Import whose bracket is open, and the number of its first line.
    let mut open_import: Option<(String, usize)> = None;
    for (line, number) in source.lines().zip(1..) {
        if let Some(quotes) = open_string {
            open_string = open_string.filter(|_| !line.contains(quotes));
            continue;
        }
        // Text of a string that the line does not end may look like imports.
        let is_open_string = |quotes: &&str| line.matches(*quotes).count() % 2 == 1;
        open_string = QUOTES.into_iter().find(is_open_string);
        let code = line.split('#').next().unwrap_or_default();
        let statement = code.trim_start();
        if statement.is_empty() {
            continue;
        }
        let opens = statement.starts_with("from ") && statement.contains('(');
        let is_open = (opens || open_import.is_some()) && !statement.contains(')');
        let (import, first) = match open_import.take() {
            Some((import, first)) => (import + " " + statement, first),
            None => {
                let indent = code.len() - statement.len();
                guard = guard.filter(|outer| indent > *outer);
                guard = guard.or_else(|| is_guard(statement).then_some(indent));
                if guard.is_some() {
                    continue;
                }
                (statement.to_owned(), number)
            }
        };
        if is_open {
            open_import = Some((import, first));
            continue;
        }
        let paths = import.split(';').flat_map(imported_modules);
        found.extend(paths.map(|path| PythonImport { path, line: first }));
    }
    found.retain(|import| !FOREIGN.contains(&import.top_module()));
    found
}

fn is_guard(statement: &str) -> bool {
    let is_typing = statement.contains("TYPE_CHECKING") && !statement.contains("not TYPE_CHECKING");
    statement.starts_with("try:")
        || statement.starts_with("except")
        || (statement.starts_with("if ") && is_typing)
        || (statement.starts_with("with ") && statement.contains("suppress("))
}

/// Returns the dotted names of the modules that one statement imports; of `from a import b, c` both `a.b` and `a.c`.
fn imported_modules(statement: &str) -> Vec<String> {
    let code = statement.trim();
    if let Some(modules) = code.strip_prefix("import ") {
        return modules.split(',').filter_map(imported_module).collect();
    }
    let from = code.strip_prefix("from ");
    let clause = from.and_then(|rest| rest.split_once(" import"));
    let (before, after) = clause.unwrap_or_default();
    let module = before.trim();
    if !is_module_path(module) {
        return Vec::new();
    }
    let words = after.split([',', '(', ')']);
    let members = words.filter_map(|words| words.split_whitespace().next());
    let mut paths: Vec<String> = members
        .filter(|member| is_module_path(member))
        .map(|member| format!("{module}.{member}"))
        .collect();
    if paths.is_empty() {
        paths.push(module.to_owned());
    }
    paths
}

/// Returns the module of `a.b` or `a.b as c`; `None` for other text, such as a sentence that begins with "import".
fn imported_module(text: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    let module = words.next().filter(|module| is_module_path(module))?;
    matches!(words.next(), None | Some("as")).then(|| module.to_owned())
}

fn is_module_path(text: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_count_at_the_start_of_a_line_outside_of_try() {
        for (source, expected) in [
            ("import os, numpy as np  # why", &["1 os", "1 numpy"][..]),
            (
                "from PIL import Image; import yaml.nodes",
                &["1 PIL", "1 yaml"],
            ),
            (
                "from pkg.sub import (\n    a,\n)\nimport b",
                &["1 pkg", "4 b"],
            ),
            ("def f():\n    import lazy", &["2 lazy"]),
            (
                "from google.cloud import storage",
                &["1 google.cloud.storage"],
            ),
            (
                "from google.cloud import storage, bigquery as b  # why",
                &["1 google.cloud.storage", "1 google.cloud.bigquery"],
            ),
            (
                "def f():\n  from google.cloud import (  # a\n    # (\n\n    storage,\n    exceptions_\n  )\nimport b",
                &[
                    "2 google.cloud.storage",
                    "2 google.cloud.exceptions_",
                    "8 b",
                ],
            ),
            ("from zope import *", &["1 zope"]),
            ("from ruamel.yaml import YAML", &["1 ruamel.yaml"]),
            ("from . import a\nfrom .b import c", &["1 ", "2 "]),
            (
                "try:\n    import a\nexcept ImportError:\n    import b\nimport c",
                &["5 c"],
            ),
            (
                "if TYPE_CHECKING:\n    import a\n\n    import b\nimport c",
                &["5 c"],
            ),
            (
                "'''\nimport a\n'''\nimport b\n\"\"\"import c\"\"\"",
                &["4 b"],
            ),
            (
                "try:\n    from a import (\n        b,\n    )\nexcept X:\n    pass",
                &[],
            ),
            ("if not TYPE_CHECKING:\n    import a", &["2 a"]),
            ("import winreg, msvcrt, nt, _winapi, _winreg", &[]),
            ("import win32file, win32clipboard, pywintypes", &[]),
            (
                "import the file\nfrom here to there\nimportant = 1\nx = 'import a'",
                &[],
            ),
        ] {
            let found: Vec<String> = find_imports(source)
                .into_iter()
                .map(|import| format!("{} {}", import.line, import.package_module()))
                .collect();
            assert_eq!(found, expected, "{source:?}");
        }
    }
}

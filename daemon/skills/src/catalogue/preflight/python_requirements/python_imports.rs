//! Imports of Python source, found without running or fully parsing it: strings and comments go, lines that belong
//! together are joined, and what then begins with `import` or `from` is read.
//!
//! A script does without an import that `try` guards, unless the `except` branch ends the script. If that branch imports
//! another module, either one suffices.

use super::logical_lines::{LogicalLine, is_foreign_platform, split_logical_lines};
use crate::catalogue::preflight::has_word;

/// Maximum length of a module's name, in bytes.
const NAME_BYTES_MAX: usize = 100;
/// Maximum number of modules of which any one suffices.
const ALTERNATIVES_MAX: usize = 8;
/// Names that modules of several packages share, so that the next name counts, too.
const NAMESPACES: &str = "azure azure.ai azure.data azure.keyvault azure.mgmt azure.storage google google.ai google.cloud \
    opentelemetry ruamel zope";
/// Modules of other systems.
const FOREIGN: &str = "AppKit Foundation Quartz _winapi _winreg msvcrt nt objc pythoncom pywintypes win32api win32clipboard \
    win32com win32con win32file win32gui winreg winsound";
/// Errors that a missing module raises.
const IMPORT_ERRORS: [&str; 3] = ["ImportError", "ModuleNotFoundError", "Exception"];

/// Import of a module, or of any one of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PythonImport {
    /// Top-level names of modules; with further names where the top-level one is shared.
    pub(crate) names: Vec<String>,
    /// Number of the line.
    pub(crate) line: usize,
}

/// Branch of a `try` statement.
#[derive(Debug, PartialEq, Eq)]
enum TryBranch {
    Body,
    /// Branch for a missing module.
    ImportError,
    /// Branch for another error, `else` or `finally`.
    Other,
}

/// Statement whose lines are indented further than itself.
#[derive(Debug)]
enum Block {
    /// For type checkers or for another system.
    Skipped,
    Try {
        branch: TryBranch,
        body: Vec<PythonImport>,
        fallback: Vec<PythonImport>,
        other: Vec<PythonImport>,
        catches: bool,
        exits: bool,
    },
}

/// Returns the imports that a script can't do without.
pub(crate) fn find_imports(source: &str) -> Vec<PythonImport> {
    let mut reader = ImportReader {
        blocks: Vec::new(),
        found: Vec::new(),
    };
    for line in split_logical_lines(source) {
        reader.line(&line);
    }
    while !reader.blocks.is_empty() {
        reader.close_block();
    }
    reader.found
}

/// Open blocks with their indentation, and the imports so far.
struct ImportReader {
    blocks: Vec<(usize, Block)>,
    found: Vec<PythonImport>,
}

impl ImportReader {
    fn line(&mut self, line: &LogicalLine) {
        let statement = line.text.trim_start();
        let indent = line.text.len() - statement.len();
        if statement.is_empty() {
            return;
        }
        let word = statement.split([' ', ':', '(']).next().unwrap_or_default();
        while let Some((opened, block)) = self.blocks.last_mut() {
            if indent > *opened {
                break;
            }
            if indent == *opened && continue_try(block, word, statement) {
                self.branch_rest(statement, line.number);
                return;
            }
            self.close_block();
        }
        if matches!(self.blocks.last(), Some((_, Block::Skipped))) {
            return;
        }
        match word {
            "if" | "elif" if statement.contains("TYPE_CHECKING") || is_foreign_platform(line) => {
                self.blocks.push((indent, Block::Skipped));
            }
            "with" if statement.contains("suppress(") && statement.contains("Error") => {
                self.blocks.push((indent, Block::Skipped));
            }
            "try" => {
                let block = Block::Try {
                    branch: TryBranch::Body,
                    body: Vec::new(),
                    fallback: Vec::new(),
                    other: Vec::new(),
                    catches: false,
                    exits: false,
                };
                self.blocks.push((indent, block));
                self.branch_rest(statement, line.number);
            }
            _ => self.statement(statement, line.number),
        }
    }

    /// Reads what follows the colon of `try:` or `except …:` on the same line.
    fn branch_rest(&mut self, statement: &str, line: usize) {
        if let Some((_, rest)) = statement.split_once(": ") {
            self.statement(rest, line);
        }
    }

    fn statement(&mut self, statement: &str, line: usize) {
        let ends = ["exit(", "raise", "SystemExit", "quit(", "abort("];
        if let Some((_, Block::Try { branch, exits, .. })) = self.blocks.last_mut() {
            *exits |=
                *branch == TryBranch::ImportError && ends.iter().any(|end| statement.contains(end));
        }
        for name in statement.split(';').flat_map(imported_modules) {
            self.add(PythonImport {
                names: vec![name],
                line,
            });
        }
    }

    fn add(&mut self, import: PythonImport) {
        match self.blocks.last_mut() {
            Some((
                _,
                Block::Try {
                    branch,
                    body,
                    fallback,
                    other,
                    ..
                },
            )) => match branch {
                TryBranch::Body => body.push(import),
                TryBranch::ImportError => fallback.push(import),
                TryBranch::Other => other.push(import),
            },
            Some((_, Block::Skipped)) => {}
            None => self.found.push(import),
        }
    }

    fn close_block(&mut self) {
        let Some((
            _,
            Block::Try {
                body,
                fallback,
                other,
                catches,
                exits,
                ..
            },
        )) = self.blocks.pop()
        else {
            return;
        };
        let alternatives: Vec<String> = fallback
            .iter()
            .flat_map(|import| import.names.clone())
            .collect();
        let is_optional = catches && !exits && alternatives.is_empty();
        for mut import in body.into_iter().filter(|_| !is_optional) {
            if catches && !exits {
                let left = ALTERNATIVES_MAX.saturating_sub(import.names.len());
                import.names.extend(alternatives.iter().take(left).cloned());
            }
            self.add(import);
        }
        for import in other {
            self.add(import);
        }
    }
}

/// Enters the next branch of a `try` statement. Returns `false` if the line is none.
fn continue_try(block: &mut Block, word: &str, statement: &str) -> bool {
    let Block::Try {
        branch, catches, ..
    } = block
    else {
        return false;
    };
    *branch = match word {
        "except" => {
            let is_bare = statement.trim_end().ends_with("except:");
            match is_bare || IMPORT_ERRORS.iter().any(|error| statement.contains(error)) {
                true => TryBranch::ImportError,
                false => TryBranch::Other,
            }
        }
        "else" | "finally" => TryBranch::Other,
        _ => return false,
    };
    *catches |= *branch == TryBranch::ImportError;
    true
}

/// Returns the modules that one simple statement imports.
fn imported_modules(statement: &str) -> Vec<String> {
    let statement = statement.trim();
    // `if x: import y`
    let colons = [": import ", ": from "].iter();
    let inner = colons.filter_map(|colon| statement.find(colon)).next();
    let statement = inner.map_or(statement, |at| statement.get(at + 2..).unwrap_or_default());
    let (names, members) = match statement.split_once(' ') {
        Some(("import", names)) => (names, ""),
        Some(("from", rest)) => match rest.split_once(" import") {
            Some((module, members)) => (module, members),
            None => ("", ""),
        },
        _ => ("", ""),
    };
    let member = members
        .split([',', ' ', '('])
        .find(|member| !member.is_empty());
    let first_words = names
        .split(',')
        .filter_map(|name| name.split_whitespace().next());
    let modules = first_words.filter_map(|name| module_name(name, member));
    modules.collect()
}

/// Returns the part of a dotted name that says which package is meant, which may be the first imported member; `None` if
/// it is no name.
fn module_name(dotted: &str, member: Option<&str>) -> Option<String> {
    let is_plain = |part: &str| {
        !part.is_empty() && part.chars().all(|c: char| c.is_alphanumeric() || c == '_')
    };
    let mut parts = dotted.split('.').chain(member);
    let top = parts
        .next()
        .filter(|top| is_plain(top) && !has_word(FOREIGN, top))?;
    let mut name = top.to_owned();
    while has_word(NAMESPACES, &name) {
        let Some(part) = parts.next().filter(|part| is_plain(part)) else {
            break;
        };
        name = format!("{name}.{part}");
    }
    (name.len() <= NAME_BYTES_MAX).then_some(name)
}

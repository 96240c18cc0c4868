//! Packages that JavaScript and TypeScript import. Pure.
//!
//! A script does without a package that `try` guards, unless the `catch` block ends the script. If that block imports
//! another package, either one suffices.

use super::has_word;
use super::node_tokens::{NodeToken, split_tokens};
use super::package_json::package_of_specifier;

/// Modules that Node.js itself has.
const BUILTINS: &str = "assert async_hooks buffer child_process cluster console constants crypto dgram diagnostics_channel \
    dns domain events fs http http2 https inspector module net os path perf_hooks process punycode querystring readline \
    repl stream string_decoder sys timers tls trace_events tty url util v8 vm wasi worker_threads zlib";
/// Maximum number of packages of which any one suffices.
const ALTERNATIVES_MAX: usize = 8;
/// Maximum number of tokens between `import` and `from`.
const CLAUSE_TOKENS_MAX: usize = 400;

/// Import of a package, or of any one of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeImport {
    pub(super) names: Vec<String>,
    pub(super) line: usize,
}

/// Kind of a block in braces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Try,
    Catch,
    Other,
}

/// Block that is open.
#[derive(Debug)]
struct OpenBlock {
    kind: BlockKind,
    imports: Vec<NodeImport>,
    /// Imports of the `try` block that a `catch` block belongs to.
    guarded: Vec<NodeImport>,
    exits: bool,
}

/// Reader of the imports in one file.
struct ImportReader<'a> {
    tokens: &'a [(NodeToken, usize)],
    blocks: Vec<OpenBlock>,
    found: Vec<NodeImport>,
    /// Imports of a `try` block that has just ended.
    guarded: Vec<NodeImport>,
}

/// Returns the packages that a script can't do without.
pub(super) fn find_imports(source: &str) -> Vec<NodeImport> {
    let tokens = split_tokens(source);
    let mut reader = ImportReader {
        tokens: &tokens,
        blocks: Vec::new(),
        found: Vec::new(),
        guarded: Vec::new(),
    };
    for at in 0..tokens.len() {
        reader.token(at);
    }
    while !reader.blocks.is_empty() {
        reader.close_block(tokens.len());
    }
    let guarded = std::mem::take(&mut reader.guarded);
    reader.found.extend(guarded);
    reader.found
}

impl ImportReader<'_> {
    fn token(&mut self, at: usize) {
        match self.tokens.get(at) {
            Some((NodeToken::Mark('{'), _)) => self.open_block(at),
            Some((NodeToken::Mark('}'), _)) => self.close_block(at),
            Some((NodeToken::Name(name), line)) if !self.is_member(at) => {
                let specifier = match name.as_str() {
                    "require" => self.argument(at),
                    "import" | "export" => self.clause(at, name == "export"),
                    "throw" => {
                        self.mark_exit();
                        None
                    }
                    _ => None,
                };
                self.add(specifier, *line);
            }
            Some((NodeToken::Name(name), line)) => {
                if matches!(name.as_str(), "exit" | "exitCode") {
                    self.mark_exit();
                }
                // `require.resolve("x")`
                let specifier = self
                    .argument(at)
                    .filter(|_| name == "resolve" && self.name(at.wrapping_sub(2)) == "require");
                self.add(specifier, *line);
            }
            _ => {}
        }
    }

    fn name(&self, at: usize) -> &str {
        match self.tokens.get(at) {
            Some((NodeToken::Name(name), _)) => name,
            _ => "",
        }
    }

    fn is_mark(&self, at: usize, mark: char) -> bool {
        matches!(self.tokens.get(at), Some((NodeToken::Mark(found), _)) if *found == mark)
    }

    fn text(&self, at: usize) -> Option<&str> {
        match self.tokens.get(at) {
            Some((NodeToken::Text(text), _)) => Some(text),
            _ => None,
        }
    }

    fn is_member(&self, at: usize) -> bool {
        at > 0 && self.is_mark(at - 1, '.') && !self.is_mark(at.wrapping_sub(2), '.')
    }

    /// Returns the text in `name("text")`.
    fn argument(&self, at: usize) -> Option<String> {
        let text = self.text(at + 2).filter(|_| self.is_mark(at + 1, '('))?;
        Some(text.to_owned())
    }

    /// Returns the specifier of an `import` or `export` statement that is there when the script runs.
    fn clause(&self, at: usize, is_export: bool) -> Option<String> {
        if !is_export {
            if let Some(text) = self.argument(at) {
                // `import("x").catch(() => null)`
                let is_caught = self.is_mark(at + 4, '.') && self.name(at + 5) == "catch";
                return Some(text).filter(|_| !is_caught);
            }
            if let Some(text) = self.text(at + 1) {
                return Some(text.to_owned());
            }
        }
        // `import type from "x"` imports a value whose name is `type`.
        let is_type = self.name(at + 1) == "type" && self.name(at + 2) != "from";
        let begins =
            !self.name(at + 1).is_empty() || self.is_mark(at + 1, '{') || self.is_mark(at + 1, '*');
        if is_type || !begins {
            return None;
        }
        for ahead in at + 1..at + CLAUSE_TOKENS_MAX {
            match self.tokens.get(ahead)? {
                (NodeToken::Name(name), _) if name == "from" && self.text(ahead + 1).is_some() => {
                    return self.text(ahead + 1).map(str::to_owned);
                }
                // A clause has only names, braces, commas and a star.
                (NodeToken::Name(name), _)
                    if has_word(
                        "function class const let var async import export return",
                        name,
                    ) =>
                {
                    return None;
                }
                (NodeToken::Name(_), _) | (NodeToken::Mark('{' | '}' | ',' | '*'), _) => {}
                _ => return None,
            }
        }
        None
    }

    fn add(&mut self, specifier: Option<String>, line: usize) {
        let Some(specifier) = specifier.filter(|text| !text.contains("${")) else {
            return;
        };
        let top = specifier.split('/').next().unwrap_or_default();
        if specifier.contains(':') && !specifier.starts_with("npm:") || has_word(BUILTINS, top) {
            return;
        }
        let imports = match self.blocks.last_mut() {
            Some(block) => &mut block.imports,
            None => &mut self.found,
        };
        imports.extend(package_of_specifier(&specifier).map(|name| NodeImport {
            names: vec![name],
            line,
        }));
    }

    fn mark_exit(&mut self) {
        let catch = self
            .blocks
            .iter_mut()
            .rev()
            .find(|block| block.kind == BlockKind::Catch);
        if let Some(block) = catch {
            block.exits = true;
        }
    }

    fn open_block(&mut self, at: usize) {
        let before = at.wrapping_sub(1);
        let kind = match self.name(before) {
            "try" => BlockKind::Try,
            "catch" => BlockKind::Catch,
            // `catch (error) {`
            _ if self.is_mark(before, ')') && self.name(at.wrapping_sub(4)) == "catch" => {
                BlockKind::Catch
            }
            _ => BlockKind::Other,
        };
        let guarded = match kind {
            BlockKind::Catch => std::mem::take(&mut self.guarded),
            BlockKind::Try | BlockKind::Other => Vec::new(),
        };
        self.blocks.push(OpenBlock {
            kind,
            imports: Vec::new(),
            guarded,
            exits: false,
        });
    }

    fn close_block(&mut self, at: usize) {
        let Some(block) = self.blocks.pop() else {
            return;
        };
        let mut imports = block.imports;
        match block.kind {
            BlockKind::Try if self.name(at + 1) == "catch" => {
                self.guarded = imports;
                return;
            }
            BlockKind::Catch if block.exits => imports = block.guarded,
            BlockKind::Catch => {
                let others: Vec<String> = imports
                    .into_iter()
                    .flat_map(|import| import.names)
                    .collect();
                imports = block.guarded;
                imports.retain(|_| !others.is_empty());
                for import in &mut imports {
                    let left = ALTERNATIVES_MAX.saturating_sub(import.names.len());
                    import.names.extend(others.iter().take(left).cloned());
                }
            }
            BlockKind::Try | BlockKind::Other => {}
        }
        match self.blocks.last_mut() {
            Some(outer) => outer.imports.extend(imports),
            None => self.found.extend(imports),
        }
    }
}

#[cfg(test)]
mod tests;

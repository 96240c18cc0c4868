//! Paths that a file imports from its own crate: a small parser for `crate::…`, `super::…` and grouped `use` trees.

use crate::source::{SourceFile, is_identifier_char, leading_identifier};

/// Reference from a module to an item of the same crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Import {
    /// Line of the `crate::` or `super::`, from 1.
    pub(crate) line: usize,
    /// Segments of the path from the root of the crate.
    pub(crate) target: Vec<String>,
}

/// Returns the module path of a file beneath a `src/`: empty for the root of the crate.
pub(crate) fn module_path(path_in_src: &str) -> Vec<String> {
    let path = path_in_src.strip_suffix(".rs").unwrap_or(path_in_src);
    match path {
        "lib" | "main" => Vec::new(),
        _ => path.split('/').map(str::to_owned).collect(),
    }
}

/// Returns every path of the own crate that the code of a file names outside its test module.
pub(crate) fn list_imports(file: &SourceFile<'_>, module: &[String]) -> Vec<Import> {
    let mut imports = Vec::new();
    let lines: Vec<(usize, &str)> = file.code_lines().collect();
    for (index, (number, line)) in lines.iter().enumerate() {
        let mut from = 0;
        while let Some((at, base, length)) = next_root(line, from, module) {
            from = at + length;
            let mut rest = line.get(from..).unwrap_or_default().to_owned();
            // A group may go on over many lines; its end is the closing brace.
            for (_, next) in lines.iter().skip(index + 1) {
                if !has_open_group(&rest) {
                    break;
                }
                rest.push(' ');
                rest.push_str(next);
            }
            let mut targets = Vec::new();
            parse_tree(&rest, &base, &mut targets);
            imports.extend(targets.into_iter().map(|target| Import {
                line: *number,
                target,
            }));
        }
    }
    imports
}

/// Finds the next `crate::` or chain of `super::` in a line: its place, the module it means, and its length in bytes.
fn next_root(line: &str, from: usize, module: &[String]) -> Option<(usize, Vec<String>, usize)> {
    let tail = line.get(from..)?;
    let found = |word: &str| {
        tail.match_indices(word)
            .map(|(at, _)| from + at)
            .find(|at| {
                let before = line.get(..*at).and_then(|head| head.chars().next_back());
                !before.is_some_and(|char| is_identifier_char(char) || char == ':' || char == '$')
            })
    };
    let (by_crate, by_super) = (found("crate::"), found("super::"));
    if let Some(at) = by_crate.filter(|at| by_super.is_none_or(|other| *at < other)) {
        return Some((at, Vec::new(), "crate::".len()));
    }
    let at = by_super?;
    let mut levels = 0;
    while line
        .get(at + levels * "super::".len()..)
        .is_some_and(|rest| rest.starts_with("super::"))
    {
        levels += 1;
    }
    let base = module.get(..module.len().checked_sub(levels)?)?;
    Some((at, base.to_vec(), levels * "super::".len()))
}

/// Returns `true` while the group that a `use` tree begins with is not closed.
fn has_open_group(tree: &str) -> bool {
    let mut depth = 0_usize;
    for (index, char) in tree.char_indices() {
        match char {
            '{' if depth > 0 || tree.get(..index).is_some_and(is_path_so_far) => {
                depth += 1;
            }
            '}' if depth > 0 => depth -= 1,
            _ if depth == 0 && !is_identifier_char(char) && char != ':' => return false,
            _ => {}
        }
        if depth == 0 && char == '}' {
            return false;
        }
    }
    depth > 0
}

fn is_path_so_far(head: &str) -> bool {
    head.is_empty() || head.ends_with("::")
}

/// Adds the paths of a `use` tree, and returns what follows the tree.
fn parse_tree<'a>(text: &'a str, base: &[String], targets: &mut Vec<Vec<String>>) -> &'a str {
    let tree = text.trim_start();
    if let Some(mut rest) = tree.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches([' ', ',', '\t']);
            if rest.is_empty() {
                return rest;
            }
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            let before = rest.len();
            rest = parse_tree(rest, base, targets);
            if rest.len() == before {
                // Nothing that a `use` tree may hold.
                return rest;
            }
        }
    }
    let name = leading_identifier(tree);
    let rest = tree.get(name.len()..).unwrap_or_default();
    let mut path = base.to_vec();
    if !name.is_empty() {
        path.push(name.to_owned());
    }
    if let Some(deeper) = rest.strip_prefix("::") {
        return parse_tree(deeper, &path, targets);
    }
    targets.push(path);
    let after = rest.strip_prefix('*').unwrap_or(rest);
    match after.trim_start().strip_prefix("as ") {
        Some(renaming) => {
            let alias = renaming.trim_start();
            alias
                .get(leading_identifier(alias).len()..)
                .unwrap_or_default()
        }
        None => after,
    }
}

#[test]
fn imports_are_read_from_uses_groups_and_expressions() {
    let text = "//! A.\nuse crate::pool::Pool;\nuse crate::{error::Error, exec::{self, Spec as S}};\n\
                use super::slot::Slot;\nuse super::super::skills::{\n    store::Store,\n    Card,\n};\n\
                fn a() { crate::paths::check(1); other_crate::b() }\n// crate::comment::C\n\
                #[cfg(test)]\nmod tests {\n    use crate::fuzz::F;\n}\n";
    let path = "daemon/src/workspace/actor/wait.rs";
    let module = module_path("workspace/actor/wait.rs");
    let found: Vec<(usize, String)> = list_imports(&SourceFile { path, text }, &module)
        .into_iter()
        .map(|import| (import.line, import.target.join("::")))
        .collect();
    let expected = [
        (2, "pool::Pool"),
        (3, "error::Error"),
        (3, "exec::self"),
        (3, "exec::Spec"),
        (4, "workspace::actor::slot::Slot"),
        (5, "workspace::skills::store::Store"),
        (5, "workspace::skills::Card"),
        (9, "paths::check"),
    ]
    .map(|(line, target)| (line, target.to_owned()));
    assert_eq!(found, expected);
}

//! Programs that JavaScript and TypeScript start with `child_process` and similar modules. Pure.

use std::collections::{HashMap, HashSet};

use super::command_needs::{CommandPlace, ConcludedNeed, find_command_needs, without_optional};
use super::import_needs::{add_needs, find_node_import_needs, is_full};
use super::node_tokens::{NodeToken, split_tokens};
use super::python_calls::start_any;
use super::{NeedKind, has_word, network_signs};

/// Functions whose first argument is a text for a shell, or a program.
const STARTERS: &str = "exec execFile execFileAsync execFileSync execAsync execSync execa execaCommand execaSync spawn spawnSync";
/// Names of a module whose members start programs.
const MODULES: &str = "Bun childProcess child_process cp";
/// Beginnings of the names of functions that a file defines to start programs.
const RUNNERS: [&str; 5] = ["run", "exec", "sh", "spawn", "command"];
/// Beginnings of the names of functions that a file defines to look for programs.
const PROBERS: [&str; 6] = ["check", "command", "find", "has", "is", "which"];
/// Words that leave a function or a script.
const LEAVERS: &str = "die exit exitCode fail return throw";
/// Maximum length of a text that is kept as a variable's value, in bytes.
const VALUE_BYTES_MAX: usize = 1000;
/// Maximum number of arguments of one call that are read.
const ARGUMENTS_MAX: usize = 32;
/// Maximum number of tokens between a call and what is done with its failure.
const HANDLING_TOKENS_MAX: usize = 64;

/// Returns the needs of source whose first line has the number `line`: packages, programs and a network.
pub(super) fn find_node_needs(source: &str, line: usize) -> Vec<ConcludedNeed> {
    let mut calls = find_program_calls(source);
    if !network_signs::names_only_this_host(source) {
        calls.extend(find_fetch(source));
    }
    let mut needs = find_node_import_needs(source, line);
    needs.extend(calls.into_iter().map(|need| ConcludedNeed {
        line: line + need.line - 1,
        ..need
    }));
    needs
}

/// Returns the first call of a function of Node.js itself that connects to other hosts.
fn find_fetch(source: &str) -> Option<ConcludedNeed> {
    let tokens = split_tokens(source);
    let mark = |at: usize, mark: char| matches!(tokens.get(at), Some((NodeToken::Mark(found), _)) if *found == mark);
    let name = |at: usize| match tokens.get(at) {
        Some((NodeToken::Name(name), _)) => name.as_str(),
        _ => "",
    };
    (0..tokens.len()).find_map(|at| {
        let is_fetch = name(at) == "fetch" && mark(at + 1, '(') && (at == 0 || !mark(at - 1, '.'));
        let is_fetch = is_fetch && name(at.wrapping_sub(1)) != "function";
        let is_get = has_word("http https", name(at)) && has_word("get request", name(at + 2));
        let line = tokens.get(at)?.1;
        (is_fetch || is_get).then(|| ConcludedNeed {
            kind: NeedKind::Network,
            names: vec![format!("{}()", name(at))],
            line,
        })
    })
}

/// Returns the needs of the programs that a file starts.
pub(super) fn find_program_calls(source: &str) -> Vec<ConcludedNeed> {
    // Without these, `exec` and `spawn` are functions of something else.
    let modules = ["child_process", "execa", "Bun.", "zx"];
    if !modules.iter().any(|module| source.contains(module)) {
        return Vec::new();
    }
    let tokens = split_tokens(source);
    let mut reader = CallReader {
        runners: find_functions(&tokens, &RUNNERS),
        probers: find_functions(&tokens, &PROBERS),
        values: find_values(&tokens),
        guarded: find_guarded_tokens(&tokens),
        tokens: &tokens,
        optional: HashSet::new(),
        found: Vec::new(),
    };
    for at in 0..tokens.len() {
        reader.token(at);
    }
    without_optional(reader.found, &reader.optional)
}

/// Reader of the calls in one file.
struct CallReader<'a> {
    tokens: &'a [(NodeToken, usize)],
    runners: HashSet<String>,
    probers: HashSet<String>,
    /// Texts that variables may have.
    values: HashMap<String, Vec<String>>,
    /// `true` for each token in `try` with a `catch` block that goes on.
    guarded: Vec<bool>,
    optional: HashSet<String>,
    found: Vec<ConcludedNeed>,
}

impl CallReader<'_> {
    fn is_mark(&self, at: usize, mark: char) -> bool {
        matches!(self.tokens.get(at), Some((NodeToken::Mark(found), _)) if *found == mark)
    }

    fn name(&self, at: usize) -> &str {
        name_at(self.tokens, at)
    }

    fn token(&mut self, at: usize) {
        let Some((NodeToken::Name(name), line)) = self.tokens.get(at) else {
            return;
        };
        // zx: $`command`
        if name == "$" {
            if let Some((NodeToken::Text(text), _)) = self.tokens.get(at + 1) {
                add_needs(&mut self.found, shell_needs(text, *line));
            }
            return;
        }
        let is_member = at > 0 && self.is_mark(at - 1, '.');
        if !is_member && self.probers.contains(name) {
            self.probe(at, *line);
        }
        let is_module = !is_member || has_word(MODULES, self.name(at.wrapping_sub(2)));
        let is_starter = has_word(STARTERS, name) || (!is_member && self.runners.contains(name));
        if !(is_starter && is_module && self.is_mark(at + 1, '(')) {
            return;
        }
        if is_full(&self.found) || self.guarded.get(at) == Some(&true) || self.is_handled(at) {
            return;
        }
        let has_list = self.is_mark(at + 3, ',') && self.is_mark(at + 4, '[');
        let arguments = || match has_list {
            true => list_items(self.tokens, at + 4),
            false => Vec::new(),
        };
        let needs = match self.tokens.get(at + 2) {
            Some((NodeToken::Text(text), _)) if !has_list && text.contains(char::is_whitespace) => {
                shell_needs(text, *line)
            }
            Some((NodeToken::Text(text), _)) => argument_needs(text, &arguments(), *line),
            Some((NodeToken::Name(variable), _)) => {
                let values = self.values.get(variable).map_or(&[][..], Vec::as_slice);
                match values {
                    [text] if text.contains(char::is_whitespace) => shell_needs(text, *line),
                    values => start_any(values, &arguments(), *line),
                }
            }
            Some((NodeToken::Mark('['), _)) => {
                let mut arguments = list_items(self.tokens, at + 2).into_iter();
                let program = arguments.next().unwrap_or_default();
                argument_needs(&program, &arguments.collect::<Vec<_>>(), *line)
            }
            _ => Vec::new(),
        };
        add_needs(&mut self.found, needs);
    }

    /// Reads `has("program")`.
    fn probe(&mut self, at: usize, line: usize) {
        let Some((NodeToken::Text(program), _)) = self.tokens.get(at + 2) else {
            return;
        };
        let is_denied = self.is_mark(at.wrapping_sub(1), '!');
        let is_condition = (self.name(at.wrapping_sub(2)) == "if" && !is_denied)
            || self.is_mark(at + 4, '?')
            || self.is_mark(at + 4, '&');
        if is_condition {
            self.optional.insert(program.clone());
        } else if is_denied {
            add_needs(&mut self.found, argument_needs(program, &[], line));
        }
    }

    /// Returns `true` for `x = start(…)` before `if (x.error)` that goes on.
    fn is_handled(&self, at: usize) -> bool {
        let variable = self.name(at.wrapping_sub(2));
        if variable.is_empty() || !self.is_mark(at.wrapping_sub(1), '=') {
            return false;
        }
        let check = (at..at + HANDLING_TOKENS_MAX).find(|at| {
            self.name(*at) == "if"
                && self.name(at + 2) == variable
                && has_word("error status", self.name(at + 4))
        });
        let Some(check) = check else {
            return false;
        };
        let ends = |at: usize| has_word(LEAVERS, self.name(at));
        let block = check + 5..check + HANDLING_TOKENS_MAX;
        let end = block
            .clone()
            .find(|at| self.is_mark(*at, '}') || self.is_mark(*at, ';'));
        !(block.start..end.unwrap_or(block.end)).any(ends)
    }
}

fn name_at(tokens: &[(NodeToken, usize)], at: usize) -> &str {
    match tokens.get(at) {
        Some((NodeToken::Name(name), _)) => name,
        _ => "",
    }
}

/// Returns the texts that are assigned to each variable: `x = "a"`, `x = y ? "a" : "b"`.
fn find_values(tokens: &[(NodeToken, usize)]) -> HashMap<String, Vec<String>> {
    let mut values: HashMap<String, Vec<String>> = HashMap::new();
    let mut variable = "";
    for pair in tokens.windows(2) {
        match pair {
            [(NodeToken::Name(name), _), (NodeToken::Mark('='), _)] => variable = name,
            [(NodeToken::Mark(';'), _), _] => variable = "",
            [
                (NodeToken::Mark('=' | '?' | ':' | '|'), _),
                (NodeToken::Text(text), _),
            ] if !variable.is_empty() => {
                let known = values.entry(variable.to_owned()).or_default();
                if known.len() < ARGUMENTS_MAX
                    && text.len() <= VALUE_BYTES_MAX
                    && !known.contains(text)
                {
                    known.push(text.clone());
                }
            }
            _ => {}
        }
    }
    values
}

/// Block that is open.
struct OpenBlock {
    begin: usize,
    /// Body of the `try` that a `catch` block belongs to.
    tried: Option<std::ops::Range<usize>>,
    /// `true` if the block leaves the function or the script.
    leaves: bool,
}

/// Returns which tokens are in a `try` block of which the `catch` block goes on.
fn find_guarded_tokens(tokens: &[(NodeToken, usize)]) -> Vec<bool> {
    let mut open: Vec<OpenBlock> = Vec::new();
    let mut tried = None;
    // Number of such blocks that begin minus those that end at each token.
    let mut changes = vec![0_i32; tokens.len()];
    for (at, (token, _)) in tokens.iter().enumerate() {
        match token {
            NodeToken::Mark('{') => {
                let is_catch =
                    (1..=4).any(|back| name_at(tokens, at.wrapping_sub(back)) == "catch");
                let tried = tried.take().filter(|_| is_catch);
                open.push(OpenBlock {
                    begin: at,
                    tried,
                    leaves: false,
                });
            }
            NodeToken::Mark('}') => {
                let Some(block) = open.pop() else {
                    continue;
                };
                if let Some(outer) = open.last_mut() {
                    outer.leaves |= block.leaves;
                }
                if let Some(body) = block.tried.filter(|_| !block.leaves) {
                    for (at, change) in [(body.start, 1), (body.end, -1)] {
                        if let Some(sum) = changes.get_mut(at) {
                            *sum += change;
                        }
                    }
                } else if name_at(tokens, block.begin.wrapping_sub(1)) == "try" {
                    tried = Some(block.begin..at);
                }
            }
            NodeToken::Name(name) if has_word(LEAVERS, name) => {
                if let Some(block) = open.last_mut() {
                    block.leaves = true;
                }
            }
            NodeToken::Name(_) | NodeToken::Text(_) | NodeToken::Mark(_) => {}
        }
    }
    let mut depth = 0;
    let depths = changes.into_iter().map(|change| {
        depth += change;
        depth > 0
    });
    depths.collect()
}

fn shell_needs(text: &str, line: usize) -> Vec<ConcludedNeed> {
    find_command_needs(text, line, CommandPlace::Script, &mut HashSet::new())
}

fn argument_needs(program: &str, arguments: &[String], line: usize) -> Vec<ConcludedNeed> {
    match program.contains("${") {
        true => Vec::new(),
        false => start_any(&[program.to_owned()], arguments, line),
    }
}

/// Returns the functions of a file whose names have a beginning: `function run(`, `const run = `.
fn find_functions(tokens: &[(NodeToken, usize)], beginnings: &[&str]) -> HashSet<String> {
    let names = tokens.windows(2).filter_map(|pair| match pair {
        [(NodeToken::Name(word), _), (NodeToken::Name(name), _)]
            if has_word("const function let var", word) =>
        {
            Some(name)
        }
        _ => None,
    });
    let is_runner = |name: &&String| {
        let name = name.to_lowercase();
        beginnings.iter().any(|begin| name.starts_with(begin))
            && !name.starts_with("should")
            && !name.starts_with("show")
    };
    names.filter(is_runner).cloned().collect()
}

/// Returns the texts of an array; an item that only a run knows is empty.
fn list_items(tokens: &[(NodeToken, usize)], at: usize) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut depth = 0_usize;
    for (token, _) in tokens
        .get(at..)
        .unwrap_or_default()
        .iter()
        .take(ARGUMENTS_MAX * 4)
    {
        match token {
            NodeToken::Mark('[' | '(' | '{') => depth += 1,
            NodeToken::Mark(']' | ')' | '}') if depth <= 1 => break,
            NodeToken::Mark(']' | ')' | '}') => depth -= 1,
            NodeToken::Mark(',') if depth == 1 => items.push(String::new()),
            NodeToken::Text(text) if depth == 1 => {
                if let Some(item) = items.last_mut() {
                    item.push_str(text);
                }
            }
            NodeToken::Name(_) | NodeToken::Text(_) | NodeToken::Mark(_) => {}
        }
        if items.len() > ARGUMENTS_MAX {
            break;
        }
    }
    items
}

#[cfg(test)]
mod tests;

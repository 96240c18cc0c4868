//! Programs that JavaScript and TypeScript start with `child_process` and similar modules. Pure.

use std::collections::HashSet;

use super::command_needs::{CommandPlace, ConcludedNeed, find_argument_needs, find_command_needs};
use super::has_word;
use super::node_tokens::{NodeToken, split_tokens};

/// Functions whose first argument is a text for a shell, or a program.
const STARTERS: &str = "exec execFile execFileAsync execFileSync execAsync execSync execa execaCommand execaSync spawn spawnSync";
/// Names of a module whose members start programs.
const MODULES: &str = "Bun childProcess child_process cp";
/// Beginnings of the names of functions that a file defines to start programs.
const RUNNERS: [&str; 5] = ["run", "exec", "sh", "spawn", "command"];
/// Maximum number of arguments of one call that are read.
const ARGUMENTS_MAX: usize = 32;

/// Returns the needs of the programs that a file starts.
pub(super) fn find_program_calls(source: &str) -> Vec<ConcludedNeed> {
    // Without these, `exec` and `spawn` are functions of something else.
    let modules = ["child_process", "execa", "Bun.", "zx"];
    if !modules.iter().any(|module| source.contains(module)) {
        return Vec::new();
    }
    let tokens = split_tokens(source);
    let runners = find_runners(&tokens);
    let mut found = Vec::new();
    for (at, (token, line)) in tokens.iter().enumerate() {
        let NodeToken::Name(name) = token else {
            continue;
        };
        let mark = |at: usize, mark: char| matches!(tokens.get(at), Some((NodeToken::Mark(found), _)) if *found == mark);
        // zx: $`command`
        if name == "$" {
            if let Some((NodeToken::Text(text), _)) = tokens.get(at + 1) {
                found.extend(shell_needs(text, *line));
            }
            continue;
        }
        let receiver = match (
            at.checked_sub(2).and_then(|at| tokens.get(at)),
            at > 0 && mark(at - 1, '.'),
        ) {
            (Some((NodeToken::Name(receiver), _)), true) => Some(receiver.as_str()),
            (_, true) => Some(""),
            (_, false) => None,
        };
        let is_starter = has_word(STARTERS, name) || (receiver.is_none() && runners.contains(name));
        let is_module = receiver.is_none_or(|receiver| has_word(MODULES, receiver));
        if !(is_starter && is_module && mark(at + 1, '(')) {
            continue;
        }
        match tokens.get(at + 2) {
            Some((NodeToken::Text(text), _)) => {
                let arguments = match mark(at + 3, ',') && mark(at + 4, '[') {
                    true => list_items(&tokens, at + 4),
                    false => Vec::new(),
                };
                found.extend(
                    match arguments.is_empty() && text.contains(char::is_whitespace) {
                        true => shell_needs(text, *line),
                        false => argument_needs(text, arguments, *line),
                    },
                );
            }
            Some((NodeToken::Mark('['), _)) => {
                let mut arguments = list_items(&tokens, at + 2).into_iter();
                let program = arguments.next().unwrap_or_default();
                found.extend(argument_needs(&program, arguments.collect(), *line));
            }
            _ => {}
        }
    }
    found
}

fn shell_needs(text: &str, line: usize) -> Vec<ConcludedNeed> {
    find_command_needs(text, line, CommandPlace::Script, &mut HashSet::new())
}

fn argument_needs(program: &str, arguments: Vec<String>, line: usize) -> Vec<ConcludedNeed> {
    if program.contains("${") {
        return Vec::new();
    }
    let command: Vec<String> = std::iter::once(program.to_owned())
        .chain(arguments)
        .collect();
    find_argument_needs(&command, line)
}

/// Returns the functions of a file whose names say that they start programs: `function run(`, `const run = `.
fn find_runners(tokens: &[(NodeToken, usize)]) -> HashSet<String> {
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
        RUNNERS.iter().any(|runner| name.starts_with(runner))
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

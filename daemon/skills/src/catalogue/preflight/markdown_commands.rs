//! Commands and imports in a SKILL.md: fenced blocks, and code in the text that is evidently a command line. Pure.

use super::has_word;
use super::program_names::{is_ambiguous, is_known_program};

/// Languages of blocks with commands, and of sessions, which also have output.
const SHELLS: &str = "bash sh shell zsh";
const SESSIONS: &str = "console shell-session shellsession sh-session bash-session terminal";
/// Words before a command that the text advises against.
const DENIALS: [&str; 6] = [
    "never",
    "do not",
    "don't",
    "avoid",
    "instead of",
    "rather than",
];
/// Words in a line about a command that the skill does without.
const CONDITIONS: [&str; 7] = [
    "not needed",
    "not required",
    "optional",
    "if available",
    "if installed",
    "if present",
    "if you have",
];

/// Kind of code in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeKind {
    Shell,
    Python,
    Node,
}

/// Code of a document that is evidently meant to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DocumentCode {
    pub(super) kind: CodeKind,
    /// The block without prompts and output; each line keeps its number.
    pub(super) text: String,
    /// Number of its first line.
    pub(super) line: usize,
}

/// Fence that opened a block.
#[derive(Debug)]
struct OpenFence {
    mark: char,
    length: usize,
    language: String,
    text: String,
    line: usize,
}

/// Returns the code in a document that is evidently meant to run.
pub(super) fn find_code(document: &str) -> Vec<DocumentCode> {
    let mut found = Vec::new();
    let mut fence: Option<OpenFence> = None;
    let mut in_front_matter = document.trim_start_matches('\u{feff}').starts_with("---");
    for (index, line) in document.lines().enumerate() {
        let text = line.trim();
        if in_front_matter {
            in_front_matter = index == 0 || text != "---";
            continue;
        }
        match (fence.take(), fence_of(text)) {
            (Some(open), Some((mark, length, "")))
                if mark == open.mark && length >= open.length =>
            {
                found.extend(code_of_block(&open));
            }
            (Some(mut open), _) => {
                open.text.push_str(line);
                open.text.push('\n');
                fence = Some(open);
            }
            (None, Some((mark, length, language))) => {
                fence = Some(OpenFence {
                    mark,
                    length,
                    language: language.to_lowercase(),
                    text: String::new(),
                    line: index + 2,
                });
            }
            (None, None) => find_inline_commands(line, index + 1, &mut found),
        }
    }
    found
}

/// Returns the mark, the length and the language of a line that opens or closes a block.
fn fence_of(line: &str) -> Option<(char, usize, &str)> {
    let mark = line
        .chars()
        .next()
        .filter(|mark| matches!(mark, '`' | '~'))?;
    let rest = line.trim_start_matches(mark);
    let length = line.len() - rest.len();
    let info = rest.trim();
    let language = info.split([' ', ',', '{', ':']).next().unwrap_or_default();
    (length >= 3 && !info.contains('`')).then_some((mark, length, language))
}

fn code_of_block(block: &OpenFence) -> Option<DocumentCode> {
    let language = block.language.as_str();
    let (kind, text) = match language {
        language if has_word(SHELLS, language) => {
            let text = without_output(&block.text).unwrap_or_else(|| block.text.clone());
            (CodeKind::Shell, text)
        }
        language if has_word(SESSIONS, language) || language.is_empty() => {
            let is_commands = || are_commands(&block.text).then(|| block.text.clone());
            (
                CodeKind::Shell,
                without_output(&block.text).or_else(is_commands)?,
            )
        }
        "text" | "txt" | "plaintext" => (CodeKind::Shell, without_output(&block.text)?),
        "python" | "py" | "python3" if is_python_recipe(&block.text) => {
            (CodeKind::Python, block.text.clone())
        }
        "javascript" | "js" | "mjs" | "cjs" | "node" if is_node_recipe(&block.text) => {
            (CodeKind::Node, block.text.clone())
        }
        _ => return None,
    };
    Some(DocumentCode {
        kind,
        text,
        line: block.line,
    })
}

/// Returns the lines after prompts, and empty lines instead of the output; `None` if no line has a prompt.
fn without_output(text: &str) -> Option<String> {
    let mut commands = String::new();
    let (mut has_prompt, mut continues) = (false, false);
    for line in text.lines() {
        let command = line.trim_start().strip_prefix("$ ");
        let command = command.or(continues.then_some(line));
        has_prompt |= command.is_some();
        commands.push_str(command.unwrap_or_default());
        commands.push('\n');
        continues = command.is_some_and(|command| command.trim_end().ends_with('\\'));
    }
    has_prompt.then_some(commands)
}

/// Returns `true` if every line of a text without a language is a command, a comment or empty.
fn are_commands(text: &str) -> bool {
    let mut has_command = false;
    let mut continues = false;
    for line in text.lines().map(str::trim) {
        let is_continued = std::mem::replace(&mut continues, line.ends_with('\\'));
        if is_continued || line.is_empty() || line.starts_with('#') {
            continue;
        }
        if !is_command_line(line) {
            return false;
        }
        has_command = true;
    }
    has_command
}

/// Returns `true` for a line that can hardly be anything but a command: a known program, and arguments that look like
/// some where its name is a word of English, too.
fn is_command_line(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_before = |word: &&str| *word == "sudo" || (word.contains('=') && !word.starts_with('='));
    let Some(program) = words.find(|word| !is_before(word)) else {
        return false;
    };
    let is_option = |word: &str| word.starts_with('-') && word.len() > 1;
    let is_path =
        |word: &str| word.contains(['/', '.', '*', '<', '$']) && !word.ends_with(['.', ',']);
    let args: Vec<&str> = words.collect();
    let has_argument = args.iter().any(|word| is_option(word) || is_path(word));
    match is_ambiguous(program) {
        true => has_argument,
        // A sentence about a program is longer than a command without options.
        false => is_known_program(program) && !args.is_empty() && (has_argument || args.len() <= 5),
    }
}

/// Finds code in a line of text that is evidently a command.
fn find_inline_commands(line: &str, number: usize, found: &mut Vec<DocumentCode>) {
    let lower = line.to_lowercase();
    if CONDITIONS.iter().any(|condition| lower.contains(condition)) {
        return;
    }
    let mut rest = line;
    while let Some(at) = rest.find('`') {
        let before = rest.get(..at).unwrap_or_default().to_lowercase();
        let marked = rest.get(at..).unwrap_or_default();
        let ticks = marked.len() - marked.trim_start_matches('`').len();
        let inner = marked.get(ticks..).unwrap_or_default();
        let Some(end) = inner.find(marked.get(..ticks).unwrap_or("`")) else {
            return;
        };
        let text = inner.get(..end).unwrap_or_default().trim();
        rest = inner.get(end + ticks..).unwrap_or_default();
        let is_denied = DENIALS.iter().any(|denial| before.contains(denial));
        let text = text.strip_prefix("$ ").unwrap_or(text);
        if !is_denied && is_command_line(text) {
            found.push(DocumentCode {
                kind: CodeKind::Shell,
                text: text.to_owned(),
                line: number,
            });
        }
    }
}

/// Returns `true` for Python that runs from top to bottom. Functions, classes and decorators at the left are what a
/// project's own files have.
fn is_python_recipe(text: &str) -> bool {
    let heads = ["def ", "class ", "async def ", "@"];
    !text
        .lines()
        .any(|line| heads.iter().any(|head| line.starts_with(head)))
}

/// Returns `true` for JavaScript that runs from top to bottom.
fn is_node_recipe(text: &str) -> bool {
    let heads = [
        "export ",
        "function ",
        "class ",
        "async function ",
        "describe(",
        "test(",
        "it(",
    ];
    let mut lines = text.lines();
    let is_project =
        lines.any(|line| heads.iter().any(|head| line.starts_with(head)) || line.contains("</"));
    // An import alone only shows how to write one.
    let statements = text.lines().filter(|line| !line.trim().is_empty());
    !is_project && statements.count() > 1
}

#[cfg(test)]
mod tests;

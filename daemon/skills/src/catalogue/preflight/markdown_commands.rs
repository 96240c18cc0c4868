//! Commands and imports in a SKILL.md: fenced blocks, and code in the text that is evidently a command line. Pure.

use super::has_word;
use super::program_names::{is_ambiguous, is_builtin, is_known_program, is_program_name};
use super::shell_words::{CommentSign, sign_of_text};

/// Languages of blocks with commands, and of sessions, which also have output.
const SHELLS: &str = "bash sh shell zsh";
const SESSIONS: &str = "console shell-session shellsession sh-session bash-session terminal";
/// Words before a command that the text advises against, or leaves to the user.
const DENIALS: [&str; 7] = [
    "suggest",
    "never",
    "do not",
    "don't",
    "avoid",
    "instead of",
    "rather than",
];
/// Beginnings of a line about a block that shows what not to do.
const WRONG: [&str; 7] = [
    "avoid",
    "bad",
    "don't",
    "instead of",
    "never",
    "wrong",
    "\u{274c}",
];
/// Maximum number of words of such a line.
const WRONG_WORDS_MAX: usize = 4;
/// Words in a line, or a heading, about what has to be there.
const REQUIREMENTS: [&str; 5] = [
    "dependenc",
    "must be installed",
    "must have",
    "prerequisite",
    "require",
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
    /// `false` if the text around the block says that it is not to be run here, or need not be.
    is_wanted: bool,
}

/// Line of text above a block, which may be long and have many blocks below it.
#[derive(Debug, Default)]
struct IntroLine {
    ends_with_colon: bool,
    is_about_requirements: bool,
    /// `true` if the line says that a block below it is not to be run here, or need not be.
    is_advice_against: bool,
}

/// Heading and line of text above the current line.
#[derive(Debug, Default)]
struct DocumentPlace {
    /// Levels of the headings around the line whose parts are not to be run here.
    skipped: Option<usize>,
    is_about_requirements: bool,
    /// Line of text before the current one.
    intro: IntroLine,
    is_after_empty_line: bool,
}

/// Returns the code in a document that is evidently meant to run.
pub(super) fn find_code(document: &str) -> Vec<DocumentCode> {
    let mut found = Vec::new();
    let mut fence: Option<OpenFence> = None;
    let mut indented: Option<OpenFence> = None;
    let mut place = DocumentPlace::default();
    let mut in_front_matter = document.trim_start_matches('\u{feff}').starts_with("---");
    for (index, line) in document.lines().enumerate() {
        let text = line.trim();
        if in_front_matter {
            in_front_matter = index == 0 || text != "---";
            continue;
        }
        if fence.is_none() {
            let is_indented = line.starts_with("    ") || line.starts_with('\t');
            let is_code = is_indented && !text.is_empty() && fence_of(text).is_none();
            if is_code && (indented.is_some() || place.is_after_empty_line) {
                find_inline_commands(line, index + 1, &place, &mut found);
                let block =
                    indented.get_or_insert_with(|| new_fence((' ', 0, ""), index + 1, &place));
                block.text.push_str(text);
                block.text.push('\n');
                continue;
            }
            found.extend(indented.take().as_ref().and_then(code_of_block));
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
            (None, Some(opened)) => {
                fence = Some(new_fence(opened, index + 2, &place));
                place.intro = IntroLine::default();
            }
            (None, None) => {
                place.enter_line(text);
                if place.skipped.is_none() {
                    find_inline_commands(line, index + 1, &place, &mut found);
                }
            }
        }
    }
    found.extend(indented.as_ref().and_then(code_of_block));
    found
}

fn new_fence(
    (mark, length, language): (char, usize, &str),
    line: usize,
    place: &DocumentPlace,
) -> OpenFence {
    OpenFence {
        mark,
        length,
        language: language.to_lowercase(),
        text: String::new(),
        line,
        is_wanted: place.is_wanted(),
    }
}

impl IntroLine {
    fn new(text: &str) -> Self {
        let lower = text.to_lowercase();
        let intro = lower.trim_start_matches(['*', '_', '>', '-', ' ']);
        let words = intro.split_whitespace().take(WRONG_WORDS_MAX + 1);
        let is_short = words.count() <= WRONG_WORDS_MAX;
        let is_wrong = WRONG.iter().any(|word| {
            let rest = intro.strip_prefix(word);
            is_short && rest.is_some_and(|rest| !rest.starts_with(char::is_alphabetic))
        });
        let is_alternative = ["alternative", "fallback", "fall back"]
            .iter()
            .any(|word| intro.contains(word));
        Self {
            ends_with_colon: lower.trim_end().ends_with(':'),
            is_about_requirements: is_about_requirements(&lower),
            is_advice_against: is_wrong || is_alternative || sign_of_text(intro).is_some(),
        }
    }
}

impl DocumentPlace {
    fn enter_line(&mut self, text: &str) {
        let level = text.len() - text.trim_start_matches('#').len();
        self.is_after_empty_line = text.is_empty();
        if (1..=6).contains(&level) {
            if self.skipped.is_none_or(|skipped| level <= skipped) {
                // The title of a skill for another system is none of a part.
                self.skipped =
                    Some(level).filter(|level| *level > 1 && sign_of_text(text).is_some());
            }
            self.is_about_requirements = is_about_requirements(&text.to_lowercase());
            self.intro = IntroLine::default();
        } else {
            // An empty line may be between a text and its block.
            if !(text.is_empty() && self.intro.ends_with_colon) {
                self.intro = IntroLine::new(text);
            }
        }
    }

    /// Returns `true` if a block at this place is to be run.
    fn is_wanted(&self) -> bool {
        self.skipped.is_none() && !self.intro.is_advice_against
    }
}

/// Returns `true` if a line or a heading, in lower case, is about what has to be there.
fn is_about_requirements(lower: &str) -> bool {
    REQUIREMENTS.iter().any(|word| lower.contains(word))
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
    let info = info.trim_start_matches(['{', '.']);
    let language = info
        .split([' ', ',', '{', '}', ':'])
        .next()
        .unwrap_or_default();
    (length >= 3 && !info.contains('`')).then_some((mark, length, language))
}

fn code_of_block(block: &OpenFence) -> Option<DocumentCode> {
    let language = block.language.as_str();
    if !block.is_wanted {
        return None;
    }
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
        let command = command_after_prompt(line.trim_start());
        let command = command.or(continues.then_some(line));
        has_prompt |= command.is_some();
        commands.push_str(command.unwrap_or_default());
        commands.push('\n');
        continues = command.is_some_and(|command| command.trim_end().ends_with('\\'));
    }
    has_prompt.then_some(commands)
}

/// Returns the command after `$ `, `% ` or `user@host:~$ `.
fn command_after_prompt(line: &str) -> Option<&str> {
    let plain = ["$ ", "% ", "\u{276f} "]
        .iter()
        .find_map(|prompt| line.strip_prefix(prompt));
    plain.or_else(|| {
        let (host, command) = line.split_once("$ ")?;
        (host.contains('@') && !host.contains(' ')).then_some(command)
    })
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
        false if is_known_program(program) => !args.is_empty() && (has_argument || args.len() <= 5),
        // Any other word needs an option, and a file or a text in quotes.
        false => {
            let is_file =
                |word: &str| (is_path(word) || word.starts_with(['\'', '"'])) && !is_option(word);
            is_program_name(program)
                && !is_builtin(program)
                && !program.contains('.')
                && args
                    .iter()
                    .any(|word| is_option(word) && !word.starts_with("->"))
                && args.iter().any(|word| is_file(word))
        }
    }
}

/// Finds code in a line of text that is evidently a command.
fn find_inline_commands(
    line: &str,
    number: usize,
    place: &DocumentPlace,
    found: &mut Vec<DocumentCode>,
) {
    if sign_of_text(line) == Some(CommentSign::Optional) {
        return;
    }
    let is_required = place.is_about_requirements || place.intro.is_about_requirements;
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
        let is_denied = DENIALS.iter().any(|denial| {
            before
                .split_once(denial)
                .is_some_and(|(_, after)| is_about_code(after))
        });
        let text = text.strip_prefix("$ ").unwrap_or(text);
        let is_program = is_required && is_known_program(text) && !is_ambiguous(text);
        let is_run = || is_file_command(text) && is_instruction(&before);
        if !is_denied && (is_program || is_command_line(text) || is_run()) {
            found.push(DocumentCode {
                kind: CodeKind::Shell,
                text: text.to_owned(),
                line: number,
            });
        }
    }
}

/// Returns `true` if a denial, which is followed by this text and then by code, is about the code. In `don't guess: x`
/// it is about something else, in `don't run: x` it is not.
fn is_about_code(after: &str) -> bool {
    let is_use = |text: &str| {
        ["run", "use", "call", "execute"]
            .iter()
            .any(|verb| text.starts_with(verb))
    };
    let after = after.trim();
    !after.contains(['.', ';']) && (!after.ends_with(':') || is_use(after))
}

/// Returns `true` for a word that may be a program, and files.
fn is_file_command(text: &str) -> bool {
    let Some((program, files)) = text.split_once(' ') else {
        return false;
    };
    let is_file = |word: &str| {
        let ending = word.rsplit_once('.').map_or("", |(_, ending)| ending);
        (1..=5).contains(&ending.len()) && ending.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let is_keyword = has_word(
        "await class const from import let new package return use var",
        program,
    );
    let is_plain = program
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_+".contains(c));
    is_plain
        && !is_keyword
        && is_program_name(program)
        && !is_builtin(program)
        && !is_known_program(program)
        && files.split(' ').all(is_file)
}

/// Returns `true` if a text before code tells to run it.
fn is_instruction(before: &str) -> bool {
    let before = before.trim_end();
    let last = before.rsplit(' ').next().unwrap_or_default();
    before.ends_with(':') || has_word("execute run use using via with", last)
}

/// Returns `true` for Python that runs from top to bottom. Decorators and classes, and functions that nothing calls, are
/// what a project's own files have.
fn is_python_recipe(text: &str) -> bool {
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let is_project = |line: &str| {
        let heads = ["class ", "@", "if __name__"];
        heads.iter().any(|head| line.starts_with(head))
    };
    let is_function = |line: &str| line.starts_with("def ") || line.starts_with("async def ");
    let is_statement = |line: &&str| !line.starts_with([' ', '\t', '#', ')', ']', '}']);
    let last = lines().rfind(is_statement);
    !lines().any(is_project) && last.is_some_and(|line| !is_function(line))
}

/// Returns `true` for JavaScript that runs from top to bottom.
fn is_node_recipe(text: &str) -> bool {
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let is_project = |line: &str| {
        let heads = [
            "export ",
            "class ",
            "describe(",
            "test(",
            "it(",
            "module.exports",
        ];
        heads.iter().any(|head| line.starts_with(head)) || line.contains("</")
    };
    let is_function =
        |line: &str| line.starts_with("function ") || line.starts_with("async function ");
    let is_statement = |line: &&str| !line.starts_with([' ', '\t', '/', ')', ']', '}']);
    let last = lines().rfind(is_statement);
    // Imports alone only show how to write them.
    let is_import = |line: &str| line.starts_with("import ") || line.starts_with("//");
    !lines().any(is_project)
        && !lines().all(is_import)
        && last.is_some_and(|line| !is_function(line))
}

#[cfg(test)]
mod tests;

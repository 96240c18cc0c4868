//! Finds known programs at the start of a command in the text of skills. It looks at shell scripts, shell blocks of
//! Markdown, and the first string of Python's `subprocess` calls. Pure.
//!
//! Nothing here knows variables or conditions. A line is cut where a command may begin, and a word counts if it is the
//! name of a known program.

use std::collections::HashSet;

use super::program_names::is_known_program;

/// Line, or a part of it, and its number.
pub(super) type NumberedText<'a> = (&'a str, usize);

/// Languages of fenced blocks whose lines are commands.
const SHELLS: [&str; 5] = ["bash", "sh", "shell", "zsh", "console"];
/// Characters outside of quotes after which a command may begin.
const SEPARATORS: [char; 9] = ['|', ';', '&', '(', ')', '{', '}', '`', '!'];
/// Words before the name of a command.
#[rustfmt::skip]
const PREFIXES: &[&str] = &[
    "$", "do", "elif", "else", "env", "exec", "if", "nohup", "sudo", "then", "time", "timeout", "while", "xargs",
];
/// Ends of Python source before the first string of a command.
const CALLS: [&str; 5] = ["run(", "call(", "Popen(", "output(", "which("];

/// Returns the lines of a document's shell blocks, and its other code: lines of other blocks, and code in sentences.
pub(super) fn find_code(document: &str) -> (Vec<NumberedText<'_>>, Vec<NumberedText<'_>>) {
    let (mut shell, mut other) = (Vec::new(), Vec::new());
    // Marks that opened the block, and whether it is of a shell.
    let mut block: Option<(&str, bool)> = None;
    for (line, number) in document.lines().zip(1..) {
        let text = line.trim_start();
        let length = text.len() - text.trim_start_matches(['`', '~']).len();
        let (marks, language) = text.split_at_checked(length).unwrap_or_default();
        match block {
            Some((open, _)) if marks.starts_with(open) && language.trim().is_empty() => {
                block = None;
            }
            Some((_, true)) => shell.push((line, number)),
            Some((_, false)) => other.push((line, number)),
            // Marks with a text and marks behind it are code in a sentence.
            None if marks.len() >= 3 && !language.contains('`') => {
                block = Some((marks, is_shell(language)));
            }
            None => {
                // Each second part is between two marks.
                let inline = line.split('`').skip(1).step_by(2);
                other.extend(inline.map(|code| (code, number)));
            }
        }
    }
    (shell, other)
}

fn is_shell(language: &str) -> bool {
    let mut words = language.split([' ', ',', '{', '}']);
    let name = words.find(|word| !word.is_empty()).unwrap_or_default();
    SHELLS.contains(&name.to_ascii_lowercase().as_str())
}

/// Returns the known programs at the start of the commands in lines of a shell.
pub(super) fn find_shell_programs<'a>(lines: &[NumberedText<'a>]) -> Vec<NumberedText<'a>> {
    let mut programs = Vec::new();
    let mut functions = HashSet::new();
    for (line, number) in lines {
        functions.extend(function_name(line));
        let commands = split_commands(line).into_iter();
        programs.extend(commands.filter_map(program_of).map(|name| (name, *number)));
    }
    programs.retain(|(name, _)| !functions.contains(name));
    programs
}

/// Returns the name of the function that a line defines: `f() {`, `function f() {` or `function f {`.
fn function_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if let Some(definition) = line.strip_prefix("function ") {
        return definition.trim_start().split(['(', ' ', '{']).next();
    }
    let name = line.split_once("()")?.0.trim_end();
    (!name.contains(char::is_whitespace)).then_some(name)
}

/// Splits a line without its comment where a command may begin. Text in quotes may look like one.
fn split_commands(line: &str) -> Vec<&str> {
    let code = line.split(" #").next().unwrap_or_default();
    if code.trim_start().starts_with('#') {
        return Vec::new();
    }
    // The label of a `case`, such as `git | gh)`, is no command.
    let is_name = |name: &str| !name.trim().contains(['(', ' ', '\t']);
    let label = code.split_once(')');
    let label = label.filter(|(label, _)| label.split('|').all(is_name));
    let (mut quote, mut previous) = (None, ' ');
    let begins_command = |char: char| {
        match quote {
            None if matches!(char, '"' | '\'') => quote = Some(char),
            Some(open) if open == char => quote = None,
            Some(_) | None => {}
        }
        // A substitution also runs within double quotes.
        let is_opening = char == '`' || (previous == '$' && char == '(');
        let is_substitution = quote == Some('"') && is_opening;
        previous = char;
        is_substitution || (quote.is_none() && SEPARATORS.contains(&char))
    };
    let commands = label.map_or(code, |(_, commands)| commands);
    commands.split(begins_command).collect()
}

/// Returns the known program that a command starts.
fn program_of(command: &str) -> Option<&str> {
    let mut is_prefixed = false;
    for word in command.split_whitespace() {
        let word = word.trim_matches(['"', '\'']);
        if is_known_program(word) {
            return Some(word);
        }
        let is_assignment = word.contains('=');
        let is_option = word.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        if PREFIXES.contains(&word) {
            is_prefixed = true;
        } else if !(is_assignment || is_prefixed && is_option) {
            return None;
        }
    }
    None
}

/// Returns the known programs that Python source names first in a `subprocess` call, in a list that is assigned or
/// passed, or for `which`.
pub(super) fn find_subprocess_programs(source: &str) -> Vec<NumberedText<'_>> {
    let mut programs = Vec::new();
    if !source.contains("subprocess") && !source.contains("which(") {
        return programs;
    }
    let (mut line, mut counted) = (1, 0);
    for (at, quote) in source.match_indices(['"', '\'']) {
        let (before, text) = source.split_at_checked(at).unwrap_or_default();
        let inner = text.split(quote).nth(1).unwrap_or_default();
        let word = inner.split_whitespace().next().unwrap_or_default();
        if is_known_program(word) && ends_before_command(before) {
            let passed = source.get(counted..at).unwrap_or_default();
            line += passed.matches('\n').count();
            counted = at;
            programs.push((word, line));
        }
    }
    programs
}

/// Returns `true` if the string after a part of Python source is the first one of a command.
fn ends_before_command(before: &str) -> bool {
    let before = before.trim_end_matches(['f', 'r']).trim_end();
    match before.strip_suffix('[') {
        // `names["git"]`, `in ["git"]` and `return ["git"]` name no command.
        Some(before) => {
            let before = before.trim_end();
            let is_comparison = ["==", "!=", "<=", ">="]
                .iter()
                .any(|end| before.ends_with(end));
            before.ends_with(['=', '(']) && !is_comparison
        }
        None => CALLS.iter().any(|call| before.ends_with(call)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(programs: Vec<NumberedText<'_>>) -> Vec<String> {
        let shown = programs
            .into_iter()
            .map(|(name, line)| format!("{line} {name}"));
        shown.collect()
    }

    #[test]
    fn programs_of_a_shell_are_known_words_that_begin_a_command() {
        for (text, expected) in [
            (
                "cd x && ffmpeg -i a b | sox - c; qpdf d",
                &["1 ffmpeg", "1 sox", "1 qpdf"][..],
            ),
            ("$ sudo A=1 timeout 5 pandoc x", &["1 pandoc"]),
            (
                "if ! gh auth status; then\n  x=$(jq . y)\nfi",
                &["1 gh", "2 jq"],
            ),
            ("pdf) pdftotext a ;;", &["1 pdftotext"]),
            ("convert() {\n  magick x\n}\nconvert y", &["2 magick"]),
            ("ls *.png | xargs -n 1 pngquant", &["1 pngquant"]),
            (
                "echo \"no; convert it, don't\" | jq '. | pandoc' # gh",
                &["1 jq"],
            ),
            ("x=\"$(gh x)\"; y=\"`jq x`\"", &["1 gh", "1 jq"]),
            ("echo \"Usage (pandoc required)\"", &[]),
            (
                "function convert() {\n  magick x\n}\nfunction dot {\nconvert y; dot z",
                &["2 magick"],
            ),
            (
                "case $1 in\nnpm) gh x ;;\n  git | \"jq\") echo ;;\nesac",
                &["2 gh"],
            ),
            ("(git x)\ny=(\n)", &["1 git"]),
            ("gh api \"f()\"\ngh x", &["1 gh", "2 gh"]),
            ("# ffmpeg\nunknown pandoc\n--engine xelatex\n$TOOL gh", &[]),
        ] {
            let lines: Vec<NumberedText<'_>> = text.lines().zip(1..).collect();
            assert_eq!(show(find_shell_programs(&lines)), expected, "{text}");
        }
    }

    #[test]
    fn shell_blocks_are_fenced_and_name_a_shell() {
        let block = |language: &str| format!("text\n  ```{language}\n  gh x\n  ```\ngh y\n");
        for (document, expected) in [
            (block("bash"), &["  gh x"][..]),
            (block("{sh} title"), &["  gh x"]),
            (block(""), &[]),
            (block("python"), &[]),
            ("````md\n```bash\ngh x\n```\n````\n".to_owned(), &[]),
            (
                "```bash gh```\ngh x\n~~~Console\n$ gh y".to_owned(),
                &["$ gh y"],
            ),
        ] {
            let lines: Vec<&str> = find_code(&document)
                .0
                .into_iter()
                .map(|(line, _)| line)
                .collect();
            assert_eq!(lines, expected, "{document}");
        }
    }

    #[test]
    fn other_code_is_in_blocks_and_between_backticks() {
        let document =
            "a `b` c ``` d\n```python\ne `f`\n```\n```sh\ng\n```\nh\n~~~\ni\n~~~\n```j``` `k";
        let (_, other) = find_code(document);
        let code: Vec<&NumberedText<'_>> =
            other.iter().filter(|(text, _)| !text.is_empty()).collect();
        let expected = [
            ("b", 1),
            (" d", 1),
            ("e `f`", 3),
            ("i", 10),
            ("j", 12),
            ("k", 12),
        ];
        assert_eq!(code, expected.iter().collect::<Vec<_>>());
    }

    #[test]
    fn programs_of_python_are_first_strings_of_commands() {
        for (source, expected) in [
            ("subprocess.run(['ffmpeg', 'gh'])", &["1 ffmpeg"][..]),
            (
                "import subprocess\ncmd = [\n    \"soffice\",\n]",
                &["3 soffice"],
            ),
            (
                "subprocess.check_output(\n  f\"pandoc {x}\", shell=True)",
                &["2 pandoc"],
            ),
            ("if not shutil.which(\"gs\"): pass", &["1 gs"]),
            ("subprocess; names[\"gh\"]; print('gh'); run(x, 'gh')", &[]),
            ("names = [\"gh\"]", &[]),
            ("subprocess; if x in [\"gh\"]: return ['git']", &[]),
            ("subprocess; names [\"gh\"]; x or [\"git\"]", &[]),
            ("subprocess.run(args=['gh'])", &["1 gh"]),
        ] {
            assert_eq!(show(find_subprocess_programs(source)), expected, "{source}");
        }
    }
}

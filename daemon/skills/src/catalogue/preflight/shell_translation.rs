//! Translates the commands in Ruby, Perl, PowerShell and makefiles into shell text whose lines have the same numbers.
//! Pure: a line that cannot be understood becomes an empty one.

use super::has_word;
use super::program_names::{is_ambiguous, is_known_program};

/// Functions of Ruby and Perl that start a program.
const STARTERS: &str = "capture2 capture2e capture3 exec popen popen2 popen2e popen3 spawn system";
/// Maximum number of arguments of one call that are read.
const ARGUMENTS_MAX: usize = 16;

/// Translates what Ruby or Perl starts: `system("x")`, `%x(x)`, `qx{x}`, backticks, `open($p, "-|", "x")`.
pub(super) fn translate_ruby_or_perl(source: &str) -> String {
    translate_lines(source, |line| {
        if line.starts_with('#') {
            return String::new();
        }
        let mut commands = quoted_commands(line);
        let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let mut before = ' ';
        for (at, char) in line.char_indices() {
            let is_start = is_word(char) && !is_word(before) && !matches!(before, '$' | '-' | ':');
            before = char;
            if !is_start {
                continue;
            }
            let rest = line.get(at..).unwrap_or_default();
            let name = rest.split(|char| !is_word(char)).next().unwrap_or_default();
            if has_word(STARTERS, name) {
                let after = rest.get(name.len()..).unwrap_or_default();
                commands.extend(command_of_arguments(after.trim_start_matches(['(', ' '])));
            }
        }
        let pipe = ["'-|',", "\"-|\","]
            .iter()
            .find_map(|mark| line.split_once(mark));
        commands.extend(pipe.and_then(|(_, after)| command_of_arguments(after)));
        let command = commands.join("; ").replace("#{", "${");
        match line.split(' ').next() {
            _ if command.is_empty() => command,
            Some("if" | "elsif") => format!("if {command}; then :; fi"),
            Some("unless") => format!("if ! {command}; then :; fi"),
            _ => command,
        }
    })
}

/// Translates what PowerShell starts: `& x`, lines that begin with a known program, and `Get-Command x`.
pub(super) fn translate_powershell(source: &str) -> String {
    translate_lines(source, |line| {
        if line.starts_with('#') {
            return String::new();
        }
        let word = |text: &str| {
            let word = text.split([' ', ')', ';', '}']).next().unwrap_or_default();
            word.trim_matches(['"', '\'']).to_owned()
        };
        if let Some((before, after)) = line.split_once("Get-Command ") {
            let denial = if before.contains("-not") || before.contains('!') {
                "! "
            } else {
                ""
            };
            return format!("if {denial}command -v '{}'; then :; fi", word(after));
        }
        let called = line.split("& ").skip(1).map(word);
        let called = called.filter(|word| !word.contains(['$', '\'', '(', '{']));
        let mut commands: Vec<String> = called.collect();
        let (_, value) = line.split_once("= ").unwrap_or(("", line));
        let first = word(value);
        if is_known_program(&first) && !is_ambiguous(&first) {
            commands.push(first);
        }
        commands.join("; ")
    })
}

/// Translates the variables and the recipes of a makefile.
pub(super) fn translate_makefile(source: &str) -> String {
    let mut text = String::new();
    for line in source.lines() {
        match line.strip_prefix('\t') {
            Some(recipe) => text.push_str(&translate_recipe(recipe)),
            None => text.push_str(&translate_assignment(line).unwrap_or_default()),
        }
        text.push('\n');
    }
    text
}

fn translate_recipe(recipe: &str) -> String {
    let mut recipe = recipe
        .trim_start_matches(['@', '-', '+', ' '])
        .replace("$$", "\u{1}");
    for variable in ["$<", "$@", "$^", "$*", "$?", "$|"] {
        recipe = recipe.replace(variable, "x");
    }
    let mut parts = recipe.split("$(");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((name, rest)) if name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => {
                text.push_str(&format!("${{{name}}}{rest}"));
            }
            _ => text.push_str(&format!(
                "$({}",
                part.strip_prefix("shell ").unwrap_or(part)
            )),
        }
    }
    text.replace('\u{1}', "$")
}

/// Translates `NAME = value`, `NAME := value` and `NAME ?= value`.
fn translate_assignment(line: &str) -> Option<String> {
    let (name, value) = line.split_once('=')?;
    let name = name.trim_end_matches([':', '?', '+']).trim();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let value = value.split_whitespace().next()?;
    (is_name && !value.contains(['$', '\''])).then(|| format!("{name}='{value}'"))
}

fn translate_lines(source: &str, translate: impl Fn(&str) -> String) -> String {
    let lines = source.lines().map(|line| translate(line.trim()) + "\n");
    lines.collect()
}

/// Returns the texts in backticks, `%x(…)` and `qx{…}`.
fn quoted_commands(line: &str) -> Vec<String> {
    let mut parts = line.split('`').skip(1);
    let mut commands = Vec::new();
    while let (Some(command), Some(_)) = (parts.next(), parts.next()) {
        commands.push(command.to_owned());
    }
    for mark in ["%x", "qx"] {
        for rest in line.split(mark).skip(1) {
            let close = match rest.chars().next() {
                Some('(') => ')',
                Some('{') => '}',
                Some('[') => ']',
                Some(same @ ('/' | '|' | '!')) => same,
                _ => continue,
            };
            // `#{x}` within braces
            let inner = rest.get(1..).unwrap_or_default();
            commands.extend(
                inner
                    .rsplit_once(close)
                    .map(|(command, _)| command.to_owned()),
            );
        }
    }
    commands
}

/// Returns the command in the arguments of a call: a text for a shell, or a program and its arguments.
fn command_of_arguments(text: &str) -> Option<String> {
    let mut arguments: Vec<String> = Vec::new();
    let mut rest = text.trim_start();
    while arguments.len() < ARGUMENTS_MAX {
        let quote = rest
            .chars()
            .next()
            .filter(|char| matches!(char, '"' | '\''));
        let Some(quote) = quote else {
            break;
        };
        let inner = rest.get(1..).unwrap_or_default();
        let (argument, after) = inner.split_once(quote)?;
        arguments.push(argument.to_owned());
        let Some(next) = after.trim_start().strip_prefix(',') else {
            break;
        };
        rest = next.trim_start();
    }
    match arguments.as_slice() {
        [] => None,
        [text] => Some(text.clone()),
        arguments => {
            let quoted = arguments
                .iter()
                .map(|text| format!("'{}'", text.replace('\'', "")));
            Some(quoted.collect::<Vec<_>>().join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ruby_and_perl_start_is_a_command() {
        for (source, expected) in [
            ("system('gh', 'pr', \"x\")", "'gh' 'pr' 'x'"),
            ("ok = system \"pandoc #{x}\"", "pandoc ${x}"),
            ("log, s = Open3.capture2('git', 'log')", "'git' 'log'"),
            (
                "a = %x(pandoc -t plain #{f.escape})",
                "pandoc -t plain ${f.escape}",
            ),
            ("my $i = decode(qx{mediainfo \"$f\"});", "mediainfo \"$f\""),
            ("v = `sox --version`.strip", "sox --version"),
            (
                "open(my $p, '-|', 'sh', '-c', 'gs x') or die;",
                "'sh' '-c' 'gs x'",
            ),
            (
                "if system('command -v vale')",
                "if command -v vale; then :; fi",
            ),
            (
                "unless system('command -v vale')",
                "if ! command -v vale; then :; fi",
            ),
            ("# system('x1')", ""),
            ("ecosystem('x1'); $system = 'x1'; filesystem = 1", ""),
        ] {
            assert_eq!(
                translate_ruby_or_perl(source),
                format!("{expected}\n"),
                "{source}"
            );
        }
    }

    #[test]
    fn what_powershell_starts_is_a_command() {
        for (source, expected) in [
            ("& 7z a \"$Out.7z\"", "7z"),
            ("$x = git status", "git"),
            (
                "if (Get-Command gpg -ErrorAction SilentlyContinue) {",
                "if command -v 'gpg'; then :; fi",
            ),
            (
                "if (-not (Get-Command gpg)) {",
                "if ! command -v 'gpg'; then :; fi",
            ),
            ("Get-ChildItem | sort", ""),
            ("& $Tool x; & { x }", ""),
        ] {
            assert_eq!(
                translate_powershell(source),
                format!("{expected}\n"),
                "{source}"
            );
        }
    }

    #[test]
    fn recipes_of_makefiles_are_commands() {
        let makefile = "FFMPEG ?= ffmpeg\n.PHONY: all\nall: x\n\t@$(FFMPEG) -i $< $@\n\t-echo $$HOME $(shell date)\n";
        let expected = "FFMPEG='ffmpeg'\n\n\n${FFMPEG} -i x x\necho $HOME $(date)\n";
        assert_eq!(translate_makefile(makefile), expected);
    }
}

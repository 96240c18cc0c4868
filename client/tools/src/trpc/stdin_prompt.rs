//! Detection of a program that waits for input, by the last line that it printed.

use schemars::JsonSchema;
use serde::Serialize;

/// Input that a program seems to wait for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct StdinPrompt {
    pub(super) needs_input: bool,
    /// `prompt` or `selection`.
    pub(super) kind: &'static str,
    /// Line that asks.
    pub(super) hint: String,
}

/// Words that ask for a choice.
const SELECTION: [&str; 4] = [
    "enter the number",
    "choose a number",
    "select a number",
    "enter a number",
];
/// Words that ask for input.
const PROMPT: [&str; 6] = [
    "press enter",
    "type your",
    "[y/n]",
    "(y/n)",
    "(yes/no)",
    "[yes/no]",
];

/// Returns the prompt that the output of one call, which has no escape sequences, ends with.
pub(super) fn find_prompt(output: &str) -> Option<StdinPrompt> {
    let lines = output.lines().map(str::trim);
    let last = lines.clone().rfind(|line| !line.is_empty())?;
    let low = last.to_lowercase();
    let options = lines.filter(|line| is_option(line)).count();
    let kind = if SELECTION.iter().any(|words| low.contains(words)) || options >= 2 {
        "selection"
    } else if low.ends_with([':', '?']) || PROMPT.iter().any(|words| low.contains(words)) {
        "prompt"
    } else {
        return None;
    };
    Some(StdinPrompt {
        needs_input: true,
        kind,
        hint: last.to_owned(),
    })
}

/// Returns `true` for a line that begins with `1.` or `1)`.
fn is_option(line: &str) -> bool {
    let mut chars = line.chars();
    let digit = chars.next().is_some_and(|letter| letter.is_ascii_digit());
    digit && matches!(chars.next(), Some('.' | ')'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_line_that_asks_is_a_hint() {
        for (output, wanted) in [
            ("Name: ", Some(("prompt", "Name:"))),
            (
                "done\nContinue? [y/N] ",
                Some(("prompt", "Continue? [y/N]")),
            ),
            ("Overwrite (y/n)", Some(("prompt", "Overwrite (y/n)"))),
            (
                "Press ENTER to go on",
                Some(("prompt", "Press ENTER to go on")),
            ),
            ("1. red\n2. green\n> ", Some(("selection", ">"))),
            ("1) a\n2) b\nWhich?", Some(("selection", "Which?"))),
            (
                "Please enter the number",
                Some(("selection", "Please enter the number")),
            ),
            ("a: b\ndone\n", None),
            ("1. one thing\n", None),
            ("", None),
            ("\n\n", None),
        ] {
            let prompt = find_prompt(output);
            let found = prompt
                .as_ref()
                .map(|found| (found.kind, found.hint.as_str()));
            assert_eq!(found, wanted, "{output:?}");
        }
    }
}

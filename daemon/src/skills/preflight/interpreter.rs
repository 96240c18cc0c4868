//! Which program a script wants: by its ending, and by its first line.

/// Ending, in lower case, and what runs it. Sorted.
const BY_ENDING: [(&str, &str); 17] = [
    ("awk", "awk"),
    ("bash", "bash"),
    ("cjs", "node"),
    ("cts", "tsx"),
    ("jq", "jq"),
    ("js", "node"),
    ("mjs", "node"),
    ("mts", "tsx"),
    ("php", "php"),
    ("pl", "perl"),
    ("ps1", "pwsh"),
    ("py", "python3"),
    ("r", "Rscript"),
    ("rb", "ruby"),
    ("sh", "bash"),
    ("ts", "tsx"),
    ("zsh", "zsh"),
];

/// What runs a script, and whether it says so itself. The ending decides, as when it is run.
pub(super) fn of(path: &str, first_line: &str) -> Option<(String, bool)> {
    let said = said(first_line);
    let ending = path
        .rsplit_once('.')
        .map(|(_, ending)| ending.to_ascii_lowercase());
    let known = ending.and_then(|ending| {
        let place = BY_ENDING.binary_search_by(|(known, _)| (*known).cmp(&ending));
        BY_ENDING
            .get(place.ok()?)
            .map(|(_, program)| (*program).to_owned())
    });
    match (known, said) {
        (Some(known), said) => {
            let agrees = said.as_ref() == Some(&known);
            Some((known, agrees))
        }
        (None, Some(said)) => Some((said, true)),
        (None, None) => None,
    }
}

/// The program that a first line names. Its folder is another machine's.
fn said(line: &str) -> Option<String> {
    let mut words = line.strip_prefix("#!")?.split_ascii_whitespace();
    let name = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let mut program = name(words.next()?);
    if program == "env" {
        program = name(words.find(|word| !word.starts_with('-') && !word.contains('='))?);
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+');
    if program.is_empty() || program.len() > 64 || !program.chars().all(plain) {
        return None;
    }
    Some(match program.as_str() {
        "python" => "python3".to_owned(),
        "nodejs" => "node".to_owned(),
        "ts-node" => "tsx".to_owned(),
        version if version.starts_with("python3.") => "python3".to_owned(),
        _ => program,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_decides_and_the_first_line_confirms() {
        assert!(BY_ENDING.is_sorted());
        for (path, line, expected) in [
            ("x.py", "", Some(("python3", false))),
            ("x.PY", "#!/usr/bin/env python3", Some(("python3", true))),
            (
                "x.py",
                "#!/opt/homebrew/bin/python3.12 -u",
                Some(("python3", true)),
            ),
            ("x.sh", "#!/bin/sh", Some(("bash", false))),
            ("x.rb", "#!/usr/bin/env ruby", Some(("ruby", true))),
            (
                "tool",
                "#!/usr/bin/env -S uv run --script",
                Some(("uv", true)),
            ),
            ("tool", "#!/usr/bin/env A=1 perl -w\r", Some(("perl", true))),
            ("tool", "#! /usr/bin/osascript", Some(("osascript", true))),
            ("tool", "#!python3;id", None),
            ("tool", "#!", None),
            ("tool", "#!/usr/bin/env", None),
            ("tool", "text", None),
            ("x.unknown", "", None),
        ] {
            let expected = expected.map(|(program, agrees)| (program.to_owned(), agrees));
            assert_eq!(of(path, line), expected, "{path} {line:?}");
        }
    }
}

//! Finds the interpreter of a script by its extension and its first line.

use crate::interpreter::{interpreter_for_extension, interpreter_for_shebang, shebang_program};

/// Returns the interpreter of a script, and whether its first line names it. The extension decides, as when it is run;
/// the folder of a program in the first line is that of another machine and does not count.
pub(super) fn find_interpreter(path: &str, first_line: &str) -> Option<(String, bool)> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+');
    let is_usable = |name: &&str| !name.is_empty() && name.len() <= 64 && name.chars().all(plain);
    let stated = shebang_program(first_line)
        .filter(is_usable)
        .map(|program| {
            // One that is not known is started by the kernel only, under its own name.
            let known = interpreter_for_shebang(first_line).and_then(|known| known.first());
            *known.unwrap_or(&program)
        });
    let by_extension = interpreter_for_extension(path).and_then(|known| known.first());
    let program = by_extension.copied().or(stated)?;
    Some((program.to_owned(), stated == Some(program)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpreter::INTERPRETERS_BY_SHEBANG;

    #[test]
    fn preflight_looks_for_the_interpreter_that_a_run_starts() {
        for (name, runs) in INTERPRETERS_BY_SHEBANG {
            let line = format!("#!/usr/bin/env {name}");
            let expected = runs.first().map(|program| ((*program).to_owned(), true));
            assert_eq!(find_interpreter("tool", &line), expected, "{line}");
        }
    }

    #[test]
    fn the_ending_decides_and_the_first_line_confirms() {
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
            ("tool", "#!/bin/dash", Some(("sh", true))),
            ("tool", "#!/usr/bin/gawk -f", Some(("awk", true))),
            ("tool", "#!/usr/bin/python3.x", Some(("python3.x", true))),
            ("tool", "#! /usr/bin/osascript", Some(("osascript", true))),
            ("tool", "#!python3;id", None),
            ("tool", "#!", None),
            ("tool", "#!/usr/bin/env", None),
            ("tool", "text", None),
            ("x.unknown", "", None),
        ] {
            let expected = expected.map(|(program, agrees)| (program.to_owned(), agrees));
            assert_eq!(find_interpreter(path, line), expected, "{path} {line:?}");
        }
    }
}

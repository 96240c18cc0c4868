//! Adds the host's variables to the environment of each command.

use std::collections::BTreeMap;

use crate::command_limits::ARGUMENT_BYTES_MAX;
use crate::output_collection::join_paths;

/// The daemon's bounds on the environment of one command.
const VARIABLES_MAX: usize = 1024;
const BYTES_MAX: usize = 256 * 1024;

/// Adds the host's variables, `ToolOptions.env`, to the environment of a command, which keeps the variables that it
/// has. Returns a warning for each variable that no command can have, and one for those that do not fit in beside the
/// command's own.
pub(crate) fn add_host_variables<'a>(
    host: impl IntoIterator<Item = (&'a String, &'a String)>,
    command: &mut BTreeMap<String, String>,
) -> Vec<String> {
    let own = command
        .iter()
        .map(|(name, value)| size_bytes(name, value))
        .sum::<usize>();
    let (mut bytes, mut warnings, mut unfit) = (own, Vec::new(), Vec::new());
    for (name, value) in host {
        if command.contains_key(name) {
            continue;
        }
        if let Some(problem) = variable_problem(name, value) {
            let warning = format!("the host's variable {name:?} was left out: it {problem}");
            warnings.push(warning);
            continue;
        }
        let size = size_bytes(name, value);
        if command.len() >= VARIABLES_MAX || bytes + size > BYTES_MAX {
            unfit.push(name.as_str());
            continue;
        }
        bytes += size;
        command.insert(name.clone(), value.clone());
    }
    if !unfit.is_empty() {
        warnings.push(format!(
            "variables of the host were left out: {}; together with the call's env a command has at most 1024 variables and \
             256 KiB of them",
            join_paths(&unfit)
        ));
    }
    warnings
}

/// Size of a variable as the daemon counts it, in bytes.
fn size_bytes(name: &str, value: &str) -> usize {
    name.len() + value.len() + 2
}

/// Returns why no command can have the variable; `None` if one can.
fn variable_problem(name: &str, value: &str) -> Option<&'static str> {
    if !is_variable_name(name) {
        Some("is no name: letters, digits and _, not beginning with a digit")
    } else if value.contains('\0') {
        Some("has a NUL byte in its value")
    } else if name.len() + 1 + value.len() > ARGUMENT_BYTES_MAX {
        Some("is longer than a program can be given")
    } else {
        None
    }
}

fn is_variable_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(is_letter)
        && name
            .bytes()
            .all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables<const N: usize>(given: [(&str, &str); N]) -> BTreeMap<String, String> {
        given
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    #[test]
    fn variables_that_no_command_can_have_are_left_out_and_named() {
        let long = "x".repeat(ARGUMENT_BYTES_MAX);
        let host = variables([
            ("GOOD", "a b"),
            ("_1", ""),
            ("1BAD", "x"),
            ("A-B", "x"),
            ("", "x"),
            ("NUL", "a\0b"),
            ("LONG", &long),
        ]);
        let mut command = variables([("GOOD", "own")]);
        let warnings = add_host_variables(&host, &mut command);
        assert_eq!(command, variables([("GOOD", "own"), ("_1", "")]));
        assert_eq!(warnings.len(), 5);
    }

    #[test]
    fn the_limits_count_the_variables_of_call_and_host_together() {
        let numbered = |prefix: &str, count: usize| -> BTreeMap<String, String> {
            let names = (0..count).map(|index| format!("{prefix}{index:04}"));
            names.map(|name| (name, String::new())).collect()
        };
        let mut command = numbered("CALL", VARIABLES_MAX - 1);
        let warnings = add_host_variables(&numbered("HOST", 3), &mut command);
        assert_eq!(command.len(), VARIABLES_MAX);
        assert!(command.contains_key("HOST0000"));
        let [warning] = warnings.as_slice() else {
            panic!("{warnings:?}")
        };
        assert!(
            warning.starts_with("variables of the host were left out: HOST0001, HOST0002; "),
            "{warning}"
        );

        let half = "x".repeat(BYTES_MAX / 2 - 100);
        let mut command = variables([("A", &half), ("B", &half)]);
        let host = variables([("LARGE", &half), ("SMALL", "x"), ("B", "host")]);
        let warnings = add_host_variables(&host, &mut command);
        assert_eq!(command["SMALL"], "x");
        assert_eq!(command.len(), 3);
        assert!(warnings[0].contains("left out: LARGE; "), "{warnings:?}");
    }
}

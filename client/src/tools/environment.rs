//! The host's variables in the environment of each command.

use std::collections::BTreeMap;

use crate::tools::Options;

/// The daemon's bounds on the environment of one command.
const VARIABLES_MAX: usize = 1024;
const BYTES_MAX: usize = 256 * 1024;
/// Longest `NAME=value` that Linux passes to a program, in bytes.
const VARIABLE_BYTES_MAX: usize = 128 * 1024 - 1;

/// The host's variables, as far as a command can have them.
#[derive(Debug, Default)]
pub(crate) struct HostEnvironment {
    /// Those that it can have.
    pub(crate) variables: BTreeMap<String, String>,
    /// One for each that it cannot have.
    pub(crate) warnings: Vec<String>,
}

impl HostEnvironment {
    /// Reads `Options.env`.
    pub(crate) fn of(options: &Options) -> Self {
        let mut environment = Self::default();
        let mut bytes = 0;
        for (name, value) in &options.env {
            let size = name.len() + value.len() + 2;
            let problem = if !is_name(name) {
                "is no name: letters, digits and _, not beginning with a digit"
            } else if value.contains('\0') {
                "has a NUL byte in its value"
            } else if size > VARIABLE_BYTES_MAX {
                "is longer than a program can be given"
            } else if environment.variables.len() == VARIABLES_MAX || bytes + size > BYTES_MAX {
                "is too much: a command has at most 1024 variables and 256 KiB of them"
            } else {
                bytes += size;
                environment.variables.insert(name.clone(), value.clone());
                continue;
            };
            let warning = format!("the host's variable {name:?} was left out: it {problem}");
            environment.warnings.push(warning);
        }
        environment
    }

    /// Adds the variables that a command does not have already.
    pub(crate) fn add_to(self, command: &mut BTreeMap<String, String>) {
        for (name, value) in self.variables {
            command.entry(name).or_insert(value);
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(is_letter)
        && name
            .bytes()
            .all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_no_command_can_have_are_left_out_and_named() {
        let long = "x".repeat(VARIABLE_BYTES_MAX);
        let given = [
            ("GOOD", "a b"),
            ("_1", ""),
            ("1BAD", "x"),
            ("A-B", "x"),
            ("", "x"),
            ("NUL", "a\0b"),
            ("LONG", &long),
        ];
        let options = Options {
            env: given
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Options::default()
        };
        let environment = HostEnvironment::of(&options);
        let names: Vec<&str> = environment.variables.keys().map(String::as_str).collect();
        assert_eq!(names, ["GOOD", "_1"]);
        assert_eq!(environment.warnings.len(), 5);
        let mut command = BTreeMap::from([("GOOD".to_owned(), "own".to_owned())]);
        environment.add_to(&mut command);
        assert_eq!((&*command["GOOD"], &*command["_1"]), ("own", ""));
    }
}

//! Which program runs a script: by its extension, else by its first line, of which only the program's name counts: paths
//! in it are another machine's. Pure. What is run and what is checked beforehand ask here.

use std::path::Path;

/// Extension, in lower case, and what runs it.
pub const BY_EXTENSION: [(&str, &[&str]); 17] = [
    ("py", &["python3"]),
    ("sh", &["bash"]),
    ("bash", &["bash"]),
    ("zsh", &["zsh"]),
    ("js", &["node"]),
    ("mjs", &["node"]),
    ("cjs", &["node"]),
    ("ts", &["tsx"]),
    ("mts", &["tsx"]),
    ("cts", &["tsx"]),
    ("rb", &["ruby"]),
    ("pl", &["perl"]),
    ("php", &["php"]),
    ("r", &["Rscript"]),
    ("ps1", &["pwsh"]),
    ("awk", &["awk", "-f"]),
    ("jq", &["jq", "-f"]),
];

/// What runs a file with this name: program and arguments before the script's path.
#[must_use]
pub fn by_extension(path: &str) -> Option<&'static [&'static str]> {
    let extension = Path::new(path).extension()?.to_str()?.to_lowercase();
    let known = BY_EXTENSION.into_iter();
    known
        .filter(|(known, _)| *known == extension)
        .map(|(_, interpreter)| interpreter)
        .next()
}

/// The program that a first line names: of `#!/usr/bin/env -S A=1 python3.12 -u` only `python3.12`.
#[must_use]
pub fn named(first_line: &str) -> Option<&str> {
    let mut words = first_line.strip_prefix("#!")?.split_ascii_whitespace();
    let program = base(words.next()?);
    if program != "env" {
        return Some(program);
    }
    words
        .find(|word| !word.starts_with('-') && !word.contains('='))
        .map(base)
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

//! Which program runs a script: by its extension, else by its first line, of which only the program's name counts: paths
//! in it are another machine's. Pure. What is run and what is checked beforehand ask here, so what preflight looks for in
//! an image is what a run would start.

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

/// Name in a first line, and what runs it.
pub const BY_FIRST_LINE: [(&str, &[&str]); 18] = [
    ("python", &["python3"]),
    ("python3", &["python3"]),
    ("sh", &["sh"]),
    ("dash", &["sh"]),
    ("bash", &["bash"]),
    ("zsh", &["zsh"]),
    ("node", &["node"]),
    ("nodejs", &["node"]),
    ("tsx", &["tsx"]),
    ("ts-node", &["tsx"]),
    ("ruby", &["ruby"]),
    ("perl", &["perl"]),
    ("php", &["php"]),
    ("Rscript", &["Rscript"]),
    ("pwsh", &["pwsh"]),
    ("bun", &["bun"]),
    ("awk", &["awk", "-f"]),
    ("gawk", &["awk", "-f"]),
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

/// What runs a file with this first line; `None` if it names nothing that is known here.
#[must_use]
pub fn by_first_line(line: &str) -> Option<&'static [&'static str]> {
    let mut name = named(line)?;
    let versioned = name.strip_prefix("python3.");
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if versioned.is_some_and(digits) {
        name = "python3";
    }
    let known = BY_FIRST_LINE.into_iter();
    known
        .filter(|(known, _)| *known == name)
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

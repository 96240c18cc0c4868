//! Chooses the interpreter of a script by its extension, else by its shebang line. Pure.
//!
//! Only the program's name in a shebang line counts, because its path belongs to another machine; a program that is not
//! in the table is started by the line itself. Execs and preflight both use these tables, so preflight checks an image
//! for the program that an exec starts.

use std::path::Path;

use skilld_common::names::base_name;

/// Interpreters of scripts by file extension: extension in lower case, then the program and its arguments.
pub const INTERPRETERS_BY_EXTENSION: [(&str, &[&str]); 17] = [
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

/// Interpreters of scripts by the program in the shebang line: its name, then the program to run and its arguments.
pub const INTERPRETERS_BY_SHEBANG: [(&str, &[&str]); 18] = [
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

/// Byte order mark of UTF-8, which neither the kernel nor most interpreters accept before a script.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Returns the interpreter for a file's extension: the program and its arguments before the script's path.
pub fn interpreter_for_extension(path: &str) -> Option<&'static [&'static str]> {
    let extension = Path::new(path).extension()?.to_str()?.to_lowercase();
    let known = INTERPRETERS_BY_EXTENSION.into_iter();
    known
        .filter(|(known, _)| *known == extension)
        .map(|(_, interpreter)| interpreter)
        .next()
}

/// Returns the interpreter for a script's first line: the program and its arguments before the script's path. Returns
/// `None` if the line is no shebang or names an unknown program.
pub fn interpreter_for_shebang(line: &str) -> Option<&'static [&'static str]> {
    let mut name = shebang_program(line)?;
    let versioned = name.strip_prefix("python3.");
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if versioned.is_some_and(digits) {
        name = "python3";
    }
    let known = INTERPRETERS_BY_SHEBANG.into_iter();
    known
        .filter(|(known, _)| *known == name)
        .map(|(_, interpreter)| interpreter)
        .next()
}

/// Returns `true` if the kernel can start a script by its first line, which names a program by its path.
pub fn is_direct(first_line: &str) -> bool {
    let program = first_line.strip_prefix("#!").map(str::trim_start);
    let is_path = program.is_some_and(|program| program.starts_with('/'));
    is_path && shebang_program(first_line).is_some_and(|name| !name.is_empty())
}

/// Returns a script's first bytes without a byte order mark.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes)
}

/// Returns the name of the program in a shebang line: `python3.12` for `#!/usr/bin/env -S A=1 python3.12 -u`.
pub fn shebang_program(first_line: &str) -> Option<&str> {
    let mut words = first_line.strip_prefix("#!")?.split_ascii_whitespace();
    let program = base_name(words.next()?);
    if program != "env" {
        return Some(program);
    }
    words
        .find(|word| !word.starts_with('-') && !word.contains('='))
        .map(base_name)
}

//! Classifies files of a skill by directory, name and first line.

/// Purpose of a file in a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePurpose {
    /// Document to be read.
    Document,
    /// Program, or module of a program.
    Script,
    /// File beneath references/.
    Reference,
    /// File beneath assets/.
    Asset,
    /// Any other file.
    Other,
}

/// File name extensions of scripts, sorted.
const SCRIPTS: [&str; 19] = [
    "R", "bash", "bat", "cjs", "fish", "js", "lua", "mjs", "mts", "php", "pl", "ps1", "py", "r",
    "rb", "sh", "ts", "tsx", "zsh",
];
/// File name extensions of documents, sorted.
const DOCUMENTS: [&str; 8] = ["adoc", "htm", "html", "markdown", "md", "mdx", "rst", "txt"];
/// Names of documents without an extension.
const NAMES: [&str; 7] = [
    "AUTHORS",
    "CHANGELOG",
    "CONTRIBUTING",
    "COPYING",
    "LICENSE",
    "NOTICE",
    "README",
];

/// Returns the purpose of a file, of which `start` is the beginning.
pub(super) fn classify_file(path: &str, start: &[u8], mode: u32) -> FilePurpose {
    let (folder, _) = path.split_once('/').unwrap_or_default();
    match folder {
        // One in twenty skills uses the singular.
        "references" | "reference" => return FilePurpose::Reference,
        "assets" => return FilePurpose::Asset,
        _ => {}
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let script = SCRIPTS.binary_search(&ending).is_ok()
        || start.starts_with(b"#!")
        || (mode & 0o111 != 0 && matches!(folder, "bin" | "scripts"));
    let lower = ending.to_ascii_lowercase();
    if script {
        FilePurpose::Script
    } else if DOCUMENTS.binary_search(&lower.as_str()).is_ok() || NAMES.contains(&name) {
        FilePurpose::Document
    } else {
        FilePurpose::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_name_and_first_line_say_what_a_file_is_for() {
        assert!(SCRIPTS.is_sorted() && DOCUMENTS.is_sorted());
        for (path, start, mode, kind) in [
            ("SKILL.md", "---", 0o644, FilePurpose::Document),
            ("README", "", 0o644, FilePurpose::Document),
            ("FORMS.MD", "", 0o644, FilePurpose::Document),
            ("scripts/x.py", "", 0o644, FilePurpose::Script),
            ("x.mjs", "", 0o644, FilePurpose::Script),
            ("tool", "#!/bin/sh\n", 0o644, FilePurpose::Script),
            ("bin/tool", "\x7fELF", 0o755, FilePurpose::Script),
            ("bin/data", "", 0o644, FilePurpose::Other),
            ("references/x.py", "", 0o644, FilePurpose::Reference),
            ("reference/x.md", "", 0o644, FilePurpose::Reference),
            ("assets/run.sh", "#!/bin/sh\n", 0o755, FilePurpose::Asset),
            ("docs/references/x.md", "", 0o644, FilePurpose::Document),
            ("references", "", 0o644, FilePurpose::Other),
            ("data.csv", "a,b", 0o755, FilePurpose::Other),
            (".py", "", 0o644, FilePurpose::Script),
        ] {
            assert_eq!(classify_file(path, start.as_bytes(), mode), kind, "{path}");
        }
    }
}

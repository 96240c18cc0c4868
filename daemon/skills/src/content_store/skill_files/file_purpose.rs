//! Classifies files of a skill by directory, name and first line.

use crate::interpreter::{interpreter_for_extension, without_mark};

/// Purpose of a file in a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePurpose {
    /// Document to be read.
    Document,
    /// Program, or module of a program.
    Script,
    /// File beneath references/ that is no script.
    Reference,
    /// File beneath assets/.
    Asset,
    /// Any other file.
    Other,
}

/// File name extensions of scripts that no interpreter of `interpreter.rs` runs, sorted.
const OTHER_SCRIPTS: [&str; 6] = ["bat", "cmd", "fish", "jsx", "lua", "tsx"];
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

/// Returns `true` for a path beneath references/.
pub(crate) fn is_reference(path: &str) -> bool {
    // One in twenty skills uses the singular.
    path.starts_with("references/") || path.starts_with("reference/")
}

/// Returns the purpose of a file, of which `start` is the beginning.
pub(super) fn classify_file(path: &str, start: &[u8], mode: u32) -> FilePurpose {
    let (folder, _) = path.split_once('/').unwrap_or_default();
    if folder == "assets" {
        return FilePurpose::Asset;
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let lower = ending.to_ascii_lowercase();
    let script = interpreter_for_extension(name).is_some()
        || OTHER_SCRIPTS.binary_search(&lower.as_str()).is_ok()
        || without_mark(start).starts_with(b"#!")
        || (mode & 0o111 != 0 && matches!(folder, "bin" | "scripts"));
    if script {
        FilePurpose::Script
    } else if is_reference(path) {
        FilePurpose::Reference
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
        assert!(OTHER_SCRIPTS.is_sorted() && DOCUMENTS.is_sorted());
        for (path, start, mode, kind) in [
            ("SKILL.md", "---", 0o644, FilePurpose::Document),
            ("README", "", 0o644, FilePurpose::Document),
            ("FORMS.MD", "", 0o644, FilePurpose::Document),
            ("scripts/x.py", "", 0o644, FilePurpose::Script),
            ("x.mjs", "", 0o644, FilePurpose::Script),
            ("tool", "#!/bin/sh\n", 0o644, FilePurpose::Script),
            ("tool", "\u{feff}#!/bin/sh\n", 0o644, FilePurpose::Script),
            ("X.PY", "", 0o644, FilePurpose::Script),
            ("x.awk", "", 0o644, FilePurpose::Script),
            ("bin/tool", "\x7fELF", 0o755, FilePurpose::Script),
            ("bin/data", "", 0o644, FilePurpose::Other),
            ("references/x.py", "", 0o644, FilePurpose::Script),
            ("references/tool", "#!/bin/sh\n", 0o755, FilePurpose::Script),
            ("reference/x.md", "", 0o644, FilePurpose::Reference),
            ("references/data", "", 0o755, FilePurpose::Reference),
            ("assets/run.sh", "#!/bin/sh\n", 0o755, FilePurpose::Asset),
            ("docs/references/x.md", "", 0o644, FilePurpose::Document),
            ("references", "", 0o644, FilePurpose::Other),
            ("data.csv", "a,b", 0o755, FilePurpose::Other),
            (".py", "", 0o644, FilePurpose::Other),
        ] {
            assert_eq!(classify_file(path, start.as_bytes(), mode), kind, "{path}");
        }
    }
}

//! What of a folder is no part of the skill: a list of our own, and the folder's `.skillignore`.

use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::refused;
use crate::Error;

/// The folder's own list.
pub(super) const FILE_NAME: &str = ".skillignore";
/// Of that list; what is longer is refused.
pub(super) const BYTES_MAX: u64 = 64 << 10;

/// Left out unless a `.skillignore` takes it back in. `dist` is not among them: built scripts of a skill lie there.
const ALWAYS: &str = "\
.git
.hg
.svn
__pycache__/
.venv/
node_modules/
.mypy_cache/
.pytest_cache/
.ruff_cache/
.idea/
.vscode/
.DS_Store
._*
Thumbs.db
*.swp
*.swo
*~
.#*
/.skillignore
";

/// Says what is left out.
#[derive(Debug)]
pub(super) struct Ignored(Gitignore);

impl Ignored {
    /// Our list and then `own`, whose lines come later and so win.
    pub(super) fn new(folder: &Path, own: &str) -> Result<Self, Error> {
        let mut builder = GitignoreBuilder::new("");
        for (number, line) in ALWAYS
            .lines()
            .map(|line| (0, line))
            .chain((1..).zip(own.lines()))
        {
            builder.add_line(None, line).map_err(|error| {
                refused(
                    &folder.join(FILE_NAME),
                    format!("line {number} is no pattern: {error}"),
                )
            })?;
        }
        let ignored = builder.build();
        let ignored = ignored.map_err(|error| refused(&folder.join(FILE_NAME), error.to_string()));
        Ok(Self(ignored?))
    }

    /// Whether a path in the folder is left out; nobody asks beneath a folder that is.
    pub(super) fn has(&self, path: &Path, is_dir: bool) -> bool {
        self.0.matched(path, is_dir).is_ignore()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_the_folder_comes_after_ours() {
        let check = |own: &str, path: &str, is_dir, expected| {
            let ignored = Ignored::new(Path::new("x"), own).expect("patterns");
            assert_eq!(
                ignored.has(Path::new(path), is_dir),
                expected,
                "{own:?}: {path}"
            );
        };
        check("", ".git", true, true);
        check("", "sub/.git", false, true);
        check("", "a/__pycache__", true, true);
        check("", "__pycache__", false, false);
        check("", "node_modules", true, true);
        check("!node_modules/", "node_modules", true, false);
        check("", "dist", true, false);
        check("dist/", "dist", true, true);
        check("*.csv\n!keep.csv", "data/big.csv", false, true);
        check("*.csv\n!keep.csv", "data/keep.csv", false, false);
        check("/tests", "tests", true, true);
        check("/tests", "a/tests", true, false);
        check("# a comment\n\n", "# a comment", false, false);
        check("", "SKILL.md~", false, true);
        check("", ".skillignore", false, true);
    }

    #[test]
    fn a_line_that_is_no_pattern_is_named() {
        let error = Ignored::new(Path::new("x"), "*.csv\n[b-a]").expect_err("no pattern");
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}

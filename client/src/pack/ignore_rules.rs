//! Rules for the files of a folder that are no part of the skill: a built-in list, and the folder's `.skillignore`.

use std::io::{self, Read};
use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::open_file;
use crate::Error;
use crate::error::io_error;

/// Name of the folder's own list.
const FILE_NAME: &str = ".skillignore";
/// Maximum size of a `.skillignore` in bytes; a larger one is an error.
const BYTES_MAX: u64 = 64 << 10;

/// Byte order mark of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Patterns of files that are left out unless a `.skillignore` takes them back in. `dist` is not among them, because
/// built scripts of a skill lie there.
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

/// Patterns of the files that are left out, in the order in which they apply.
#[derive(Debug)]
pub(crate) struct IgnoreRules(Gitignore);

/// Decodes a list in UTF-8, or in UTF-16 with a byte order mark, as programs of Windows write it. Returns `None` for
/// other bytes.
fn decode_list(bytes: &[u8]) -> Option<String> {
    let read_units = |bytes: &[u8], read: fn([u8; 2]) -> u16| {
        let (pairs, rest) = bytes.as_chunks::<2>();
        let units: Vec<u16> = pairs.iter().map(|pair| read(*pair)).collect();
        String::from_utf16(&units).ok().filter(|_| rest.is_empty())
    };
    match bytes {
        [0xff, 0xfe, units @ ..] => read_units(units, u16::from_le_bytes),
        [0xfe, 0xff, units @ ..] => read_units(units, u16::from_be_bytes),
        _ => {
            let text = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
            str::from_utf8(text).ok().map(str::to_owned)
        }
    }
}

impl IgnoreRules {
    /// Reads the rules of a folder, given by its path without links. It need not have a list of its own.
    pub(crate) fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(FILE_NAME);
        let refused = |problem: &str| Error::pack(folder, format!("{FILE_NAME} {problem}"));
        let mut bytes = Vec::new();
        match open_file(&path, Some(folder)) {
            Ok(file) if !file.metadata().is_ok_and(|found| found.is_file()) => {
                return Err(refused("is no file"));
            }
            Ok(file) => {
                let mut bounded = file.take(BYTES_MAX + 1);
                bounded.read_to_end(&mut bytes).map_err(io_error(&path))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error(&path)(error)),
        }
        if bytes.len() as u64 > BYTES_MAX {
            return Err(refused("has more than 64 KiB"));
        }
        let own = decode_list(&bytes);
        Self::new(
            folder,
            &own.ok_or_else(|| refused("is not UTF-8: save it as UTF-8"))?,
        )
    }

    /// Compiles the built-in list and then `own`, whose lines come later and so win.
    fn new(folder: &Path, own: &str) -> Result<Self, Error> {
        let refused = |problem: String| Error::pack(&folder.join(FILE_NAME), problem);
        let mut builder = GitignoreBuilder::new("");
        let built_in = ALWAYS.lines().map(|line| (0, line));
        for (number, line) in built_in.chain((1..).zip(own.lines())) {
            let added = builder.add_line(None, line);
            added.map_err(|error| refused(format!("line {number} is no pattern: {error}")))?;
        }
        let rules = builder
            .build()
            .map_err(|error| refused(error.to_string()))?;
        Ok(Self(rules))
    }

    /// Returns `true` if a path in the folder is left out. The caller does not ask about paths beneath such a folder.
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
            let ignored = IgnoreRules::new(Path::new("x"), own).expect("patterns");
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
    fn a_list_may_be_in_the_encodings_of_windows() {
        for bytes in [
            b"*.csv".as_slice(),
            b"\xef\xbb\xbf*.csv",
            b"\xff\xfe*\0.\0c\0s\0v\0",
            b"\xfe\xff\0*\0.\0c\0s\0v",
        ] {
            assert_eq!(decode_list(bytes).as_deref(), Some("*.csv"), "{bytes:?}");
        }
        for bytes in [b"\xfc.csv".as_slice(), b"\xff\xfe*\0.", b"\xff\xfe\0\xd8"] {
            assert_eq!(decode_list(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_line_that_is_no_pattern_is_named() {
        let error = IgnoreRules::new(Path::new("x"), "*.csv\n[b-a]").expect_err("no pattern");
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}

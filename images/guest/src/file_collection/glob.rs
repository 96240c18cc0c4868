//! Globs of a collection: which paths match, and which directories can hold a match.

use std::collections::HashSet;

use regex_automata::meta::{Config, Regex};
use regex_automata::util::syntax;

use crate::error::Error;
use pattern::GlobPattern;

mod pattern;

const GLOBS_MAX: usize = 64;
const GLOB_BYTES_MAX: usize = 1024;
/// Characters that make a component more than plain text.
const WILDCARD_CHARACTERS: [char; 5] = ['*', '?', '[', '{', '\\'];
/// Directory of the staged skills. Only a glob that names it matches files in it, since no command created them.
const SKILLS: &str = "skills";
/// The daemon's record of the workspace. Only a glob that names it matches it.
const METADATA: &str = "metadata.json";
/// Maximum memory of all globs of a request, in bytes.
const SIZE_MAX: usize = 10 << 20;

/// Compiled globs of one request.
#[derive(Debug)]
pub(crate) struct GlobSet {
    /// Globs for paths outside of skills/.
    all: Regex,
    /// Globs that name skills/ or metadata.json.
    of_skills: Regex,
    shapes: Vec<GlobScope>,
    /// Paths that globs without wildcards name.
    literal: HashSet<Vec<u8>>,
}

/// Directories that a glob's matches can be in.
#[derive(Debug)]
struct GlobScope {
    /// Leading components without wildcards.
    literal: Vec<String>,
    /// Number of components of a match; `None` for any number.
    depth: Option<usize>,
}

impl GlobSet {
    /// Compiles globs. Fails for invalid syntax and for paths that lead out of the workspace.
    pub(crate) fn new(globs: &[String]) -> Result<Self, Error> {
        let invalid = |problem| Error::invalid("spec.globs", problem);
        if globs.is_empty() || globs.len() > GLOBS_MAX {
            return Err(invalid("must be 1 to 64"));
        }
        let mut all = Vec::new();
        let mut of_skills = Vec::new();
        let mut shapes = Vec::new();
        let mut literal = HashSet::new();
        for glob in globs {
            if glob.is_empty() || glob.len() > GLOB_BYTES_MAX {
                return Err(invalid("must have 1 to 1,024 bytes each"));
            }
            if glob.starts_with('/') || glob.split('/').any(|name| name == "..") {
                let path = glob.clone();
                return Err(Error::PathEscapes { path });
            }
            let pattern = GlobPattern::parse(glob).ok_or(invalid("has one that is no glob"))?;
            let shape = if pattern.ends_in_name {
                GlobScope::of(&format!("{glob}/**"))
            } else {
                GlobScope::of(glob)
            };
            literal.extend(pattern.literal_path.map(String::into_bytes));
            if glob == METADATA || shape.literal.first().is_some_and(|name| name == SKILLS) {
                of_skills.push(pattern.regex.clone());
            }
            all.push(pattern.regex);
            shapes.push(shape);
        }
        let build = |globs: &[String]| {
            let config = Config::new()
                .utf8_empty(false)
                .nfa_size_limit(Some(SIZE_MAX));
            let syntax = syntax::Config::new().utf8(false).dot_matches_new_line(true);
            let built = Regex::builder()
                .configure(config)
                .syntax(syntax)
                .build_many(globs);
            built.map_err(|_| invalid("are too large together"))
        };
        Ok(Self {
            all: build(&all)?,
            of_skills: build(&of_skills)?,
            shapes,
            literal,
        })
    }

    /// Returns `true` if a glob without wildcards names this path.
    pub(crate) fn names(&self, path: &[u8]) -> bool {
        self.literal.contains(path)
    }

    /// Returns `true` if a path, relative to the workspace, matches.
    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        let set = if is_of_skills(path) || path == METADATA.as_bytes() {
            &self.of_skills
        } else {
            &self.all
        };
        set.is_match(path)
    }

    /// Returns `false` only if no path beneath the directory can match.
    pub(crate) fn may_match_beneath(&self, directory: &[u8]) -> bool {
        let of_skills = is_of_skills(directory);
        let names: Vec<&[u8]> = directory.split(|byte| *byte == b'/').collect();
        self.shapes.iter().any(|shape| {
            let named = shape.literal.first().is_some_and(|name| name == SKILLS);
            (!of_skills || named) && shape.may_match_beneath(&names)
        })
    }
}

impl GlobScope {
    /// Returns the shape of a glob.
    fn of(glob: &str) -> Self {
        let names: Vec<&str> = glob.split('/').filter(|name| !name.is_empty()).collect();
        let plain = names
            .iter()
            .take_while(|name| !name.contains(WILDCARD_CHARACTERS));
        let mut literal: Vec<String> = plain.map(|name| (*name).to_owned()).collect();
        // The last component is the name of a file.
        literal.truncate(names.len().saturating_sub(1));
        // Alternatives and classes may contain slashes.
        let any_depth = glob.contains("**") || glob.contains(['{', '[', '\\']);
        Self {
            literal,
            depth: (!any_depth).then_some(names.len()),
        }
    }

    /// Returns `true` if a match may be beneath the directory with these components.
    fn may_match_beneath(&self, names: &[&[u8]]) -> bool {
        let on_the_way = names
            .iter()
            .zip(&self.literal)
            .all(|(name, literal)| *name == literal.as_bytes());
        on_the_way && self.depth.is_none_or(|depth| names.len() < depth)
    }
}

/// Returns `true` for skills/ and the paths in it.
fn is_of_skills(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').next() == Some(SKILLS.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globs(globs: &[&str]) -> GlobSet {
        let globs: Vec<String> = globs.iter().map(|glob| (*glob).to_owned()).collect();
        GlobSet::new(&globs).expect("globs")
    }

    #[test]
    fn the_dialect() {
        let check = |glob: &str, path: &str, expected| {
            assert_eq!(
                globs(&[glob]).matches(path.as_bytes()),
                expected,
                "{glob} {path}"
            );
        };
        check("out/*", "out/a", true);
        check("out/*", "out/.hidden", true);
        check("out/*", "out/a/b", false);
        check("out/**", "out/a/b", true);
        check("**/*.txt", "a.txt", true);
        check("**/*.txt", "x/y/a.txt", true);
        check("out/?.{csv,json}", "out/a.csv", true);
        check("out/?.{csv,json}", "out/ab.csv", false);
        check("out/[a-c]", "out/b", true);
        check("out/[!a-c]", "out/b", false);
        check("out/a b\\*", "out/a b*", true);
        check("out/a\\*", "out/ab", false);
        check("out/a?c", "out/a/c", false);
        check("out/?.txt", "out/ü.txt", true);
        check("out/??.txt", "out/ü.txt", false);
        check("out/*", "out/a\nb", true);
        check("out/?b", "out/\nb", true);
        check("out/{a,b/*}.txt", "out/b/c.txt", true);
        check("out/{a,}b", "out/b", true);
        check("out/**/a", "out/a", true);
        check("out/**/a", "out/x/y/a", true);
        check("out/a**", "out/abc", true);
        check("out/a**", "out/a/b", false);
        check("out/[!a/]", "out/ü", true);
        check("out/[!]/]x", "out/ax", true);
        check("out/[!]/]x", "out/]x", false);
        check("out/[!\\/]x", "out/ax", true);
        check("out/\\[^/]?", "out/[^/]ü", true);
        check("out/[.]x", "out/.x", true);
        check("out/[]]", "out/]", true);
        check("out/A", "out/a", false);
        check("$x/*", "$x/a", true);
        check("**", "skills/x/SKILL.md", false);
        check("skills/**", "skills/x/SKILL.md", true);
        check("*/x", "skills/x", false);
        check("**", "metadata.json", false);
        check("*.json", "metadata.json", false);
        check("metadata.json", "metadata.json", true);
        check("**", "out/metadata.json", true);
    }

    #[test]
    fn a_directory_means_everything_beneath_it() {
        let check = |glob: &str, path: &str, expected| {
            let globs = globs(&[glob]);
            assert_eq!(globs.matches(path.as_bytes()), expected, "{glob} {path}");
            let above = path.rsplit_once('/').map_or("", |(above, _)| above);
            let entered = above.is_empty() || globs.may_match_beneath(above.as_bytes());
            assert!(entered || !expected, "{glob} {path}");
        };
        check("out", "out", true);
        check("out", "out/a", true);
        check("out", "out/a/b", true);
        check("out", "outer/a", false);
        check("out/plots", "out/plots/x/1.png", true);
        check("work/*/data", "work/a/data/x/y", true);
        check("**/data", "work/a/data/x", true);
        check("out/a\\*", "out/a*/b", true);
        check("out/{a,b}", "out/b/c", true);
        check("out/*", "out/a/b", false);
        check("out/a?", "out/ab/c", false);
        check("out/[!a/]", "out/b/c", false);
        check("out/[]a]", "out/a/c", false);
        check("skills", "skills/x/SKILL.md", true);
        check("skills/x", "skills/x/SKILL.md", true);
        check("*/x", "skills/x/SKILL.md", false);
        check("out", "out/\n/b", true);
        assert!(globs(&["out"]).matches(b"out/\xff"));
        assert!(!globs(&["out"]).may_match_beneath(b"work"));
    }

    #[test]
    fn a_glob_without_wildcards_names_its_path() {
        let globs = globs(&["out/a", "out/b\\*", "out/*", "out/{c,d}"]);
        assert!(globs.names(b"out/a") && globs.names(b"out/b*"));
        assert!(!globs.names(b"out/x") && !globs.names(b"out/c"));
    }

    #[test]
    fn names_that_are_not_text_match_by_their_bytes() {
        assert!(globs(&["out/*"]).matches(b"out/\xff\xfe"));
        assert!(globs(&["out/**/*.txt"]).matches(b"out/\xff/a.txt"));
        assert!(globs(&["out/a*"]).matches(b"out/a\xff"));
        assert!(!globs(&["out/?"]).matches(b"out/\xff"));
    }

    #[test]
    fn directories_that_cannot_match_are_not_entered() {
        let check = |glob: &str, directory: &str, expected| {
            let globs = globs(&[glob]);
            assert_eq!(
                globs.may_match_beneath(directory.as_bytes()),
                expected,
                "{glob} {directory}"
            );
        };
        check("out/*", "out", true);
        check("out/*", "work", false);
        check("out/*", "out/a", false);
        check("out/a/*.txt", "out", true);
        check("out/a/*.txt", "out/b", false);
        check("out/**", "out/a/b", true);
        check("**/x", "skills", false);
        check("skills/*/x", "skills", true);
        check("*", "out", false);
        check("out/a.txt", "out", true);
        check("{out,work}/*", "work", true);
    }

    #[test]
    fn bad_globs_are_refused() {
        let check = |glob: &str| assert!(GlobSet::new(&[glob.to_owned()]).is_err(), "{glob}");
        check("");
        check("/etc/*");
        check("out/../../x");
        check("a[");
        check(&"x".repeat(1025));
        assert!(GlobSet::new(&[]).is_err());
        assert!(GlobSet::new(&vec!["a".to_owned(); 65]).is_err());
    }
}

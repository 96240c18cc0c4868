//! Globs of a collection: which paths match, which directories can hold a match, and which matches come last.

use std::collections::HashSet;

use regex_automata::meta::{Config, Regex};
use regex_automata::util::syntax;
use regex_automata::{Input, MatchKind, PatternSet};

use crate::error::Error;
use pattern::GlobPattern;

mod pattern;

/// Maximum number of globs in a request and of bytes in each, as in the API.
const GLOBS_MAX: usize = 64;
const GLOB_BYTES_MAX: usize = 1024;
/// Characters that make a component more than plain text.
const WILDCARD_CHARACTERS: [char; 5] = ['*', '?', '[', '{', '\\'];
/// Characters that stand for themselves in the plain reading only.
const SPECIAL_CHARACTERS: [char; 4] = ['[', '{', '}', '\\'];
/// Directory of the staged skills. Only a glob that names it matches files in it, since no command created them.
const SKILLS: &str = "skills";
/// The daemon's record of the workspace. Only a glob that names it matches it.
const METADATA: &str = "metadata.json";
/// Folders of caches, beside those with hidden names.
const CACHE_FOLDERS: [&[u8]; 2] = [b"__pycache__", b"node_modules"];
/// Maximum memory of all globs of a request, in bytes.
const SIZE_MAX: usize = 10 << 20;

/// Compiled globs of one request.
#[derive(Debug)]
pub(crate) struct GlobSet {
    /// Globs for paths outside of skills/.
    all: CompiledGlobs,
    /// Globs that name skills/ or metadata.json.
    of_skills: CompiledGlobs,
    shapes: Vec<GlobScope>,
    /// Paths that globs without wildcards name.
    literal: HashSet<Vec<u8>>,
}

/// Some of the globs of a request, with their numbers in it.
#[derive(Debug)]
struct CompiledGlobs {
    regex: Regex,
    numbers: Vec<usize>,
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
        let (mut all, mut of_skills) = (Vec::new(), Vec::new());
        let mut shapes = Vec::new();
        let mut literal = HashSet::new();
        for (number, glob) in globs.iter().enumerate() {
            if glob.is_empty() || glob.len() > GLOB_BYTES_MAX {
                return Err(invalid("must have 1 to 1,024 bytes each"));
            }
            if glob.starts_with('/') || glob.split('/').any(|name| name == "..") {
                let path = glob.clone();
                return Err(Error::PathEscapes { path });
            }
            // A text that is no glob has its plain reading only.
            let plain =
                GlobPattern::parse_plain(glob).filter(|_| glob.contains(SPECIAL_CHARACTERS));
            let readings: Vec<GlobPattern> = [GlobPattern::parse(glob), plain]
                .into_iter()
                .flatten()
                .collect();
            let shape = if readings.iter().any(|reading| reading.ends_in_name) {
                GlobScope::of(&format!("{glob}/**"))
            } else {
                GlobScope::of(glob)
            };
            let regexes = readings.iter().map(|reading| reading.regex.as_str());
            let regex = regexes.collect::<Vec<_>>().join("|");
            let paths = readings
                .into_iter()
                .filter_map(|reading| reading.literal_path);
            literal.extend(paths.map(String::into_bytes));
            if glob == METADATA || shape.literal.first().is_some_and(|name| name == SKILLS) {
                of_skills.push((number, regex.clone()));
            }
            all.push((number, regex));
            shapes.push(shape);
        }
        let too_large = || invalid("are too large together");
        Ok(Self {
            all: CompiledGlobs::new(&all).ok_or_else(too_large)?,
            of_skills: CompiledGlobs::new(&of_skills).ok_or_else(too_large)?,
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
        self.globs_for(path).regex.is_match(path)
    }

    /// Returns the numbers of all globs that match a path.
    pub(crate) fn matching(&self, path: &[u8]) -> Vec<usize> {
        let globs = self.globs_for(path);
        let mut found = PatternSet::new(globs.regex.pattern_len());
        globs
            .regex
            .which_overlapping_matches(&Input::new(path), &mut found);
        let numbers = found
            .iter()
            .map(|pattern| globs.numbers.get(pattern.as_usize()));
        numbers.flatten().copied().collect()
    }

    fn globs_for(&self, path: &[u8]) -> &CompiledGlobs {
        if is_of_skills(path) || path == METADATA.as_bytes() {
            &self.of_skills
        } else {
            &self.all
        }
    }

    /// Returns `true` for a hidden path or a cache, which results come before, and so for everything beneath it. A
    /// component does not count if a glob names it without wildcards.
    pub(crate) fn is_secondary(&self, path: &[u8]) -> bool {
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let is_hidden = |name: &&[u8]| name.starts_with(b".") || CACHE_FOLDERS.contains(name);
        names.iter().any(is_hidden)
            && !self.shapes.iter().any(|shape| {
                let mut rest = names.iter().skip(shape.literal.len());
                shape.is_on_the_way(&names) && !rest.any(is_hidden)
            })
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

impl CompiledGlobs {
    /// Compiles the regular expressions of globs, given with their numbers; `None` if they take too much memory.
    fn new(globs: &[(usize, String)]) -> Option<Self> {
        // All globs that match a path are wanted, not only the first one.
        let config = Config::new()
            .match_kind(MatchKind::All)
            .utf8_empty(false)
            .nfa_size_limit(Some(SIZE_MAX));
        // Names of files are any bytes, line ends included.
        let syntax = syntax::Config::new().utf8(false).dot_matches_new_line(true);
        let regexes: Vec<&str> = globs.iter().map(|(_, regex)| regex.as_str()).collect();
        let built = Regex::builder()
            .configure(config)
            .syntax(syntax)
            .build_many(&regexes);
        let numbers = globs.iter().map(|(number, _)| *number).collect();
        built.ok().map(|regex| Self { regex, numbers })
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
        self.is_on_the_way(names) && self.depth.is_none_or(|depth| names.len() < depth)
    }

    /// Returns `true` if these components begin with the literal ones, or are the beginning of them.
    fn is_on_the_way(&self, names: &[&[u8]]) -> bool {
        let mut pairs = names.iter().zip(&self.literal);
        pairs.all(|(name, literal)| *name == literal.as_bytes())
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
    fn globs_follow_one_dialect() {
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
        let check = |glob: &str, path: &str, expected: bool| {
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
    fn a_glob_also_matches_the_name_that_it_spells() {
        for (glob, path) in [
            ("work/app/[slug]/page.tsx", "work/app/[slug]/page.tsx"),
            (
                "work/app/[[...sign-in]]/page.tsx",
                "work/app/[[...sign-in]]/page.tsx",
            ),
            ("app/[slug]/*.tsx", "app/[slug]/page.tsx"),
            ("app/[slug]", "app/[slug]/page.tsx"),
            ("out/x{1}.csv", "out/x{1}.csv"),
            ("out/report [final].pdf", "out/report [final].pdf"),
            ("out/[z-a]", "out/[z-a]"),
            ("out/a\\b", "out/a\\b"),
            ("out/a{", "out/a{"),
            ("out/a}", "out/a}"),
            ("out/[!a]", "out/[!a]"),
        ] {
            let globs = globs(&[glob]);
            assert!(globs.matches(path.as_bytes()), "{glob} {path}");
            let (above, _) = path.rsplit_once('/').expect("a directory");
            assert!(globs.may_match_beneath(above.as_bytes()), "{glob} {path}");
        }
        // The pattern still counts.
        let globs = globs(&["out/[ab]{1,2}"]);
        assert!(globs.matches(b"out/a2") && !globs.matches(b"out/c1"));
        assert!(globs.names(b"out/[ab]{1,2}"));
    }

    #[test]
    fn every_glob_that_matches_a_path_is_found() {
        let globs = globs(&["out/*", "skills/**", "out/a", "**", "out/[a]", "out/b"]);
        assert_eq!(globs.matching(b"out/a"), [0, 2, 3, 4]);
        assert_eq!(globs.matching(b"skills/x/y"), [1]);
        assert_eq!(globs.matching(b"metadata.json"), [0; 0]);
    }

    #[test]
    fn hidden_files_and_caches_are_secondary_unless_named() {
        let check = |given: &[&str], path: &str, expected| {
            let is_secondary = globs(given).is_secondary(path.as_bytes());
            assert_eq!(is_secondary, expected, "{given:?} {path}");
        };
        check(&["work/**"], "work/report.csv", false);
        check(&["work/**"], "work/.cache/a/b", true);
        check(&["work/**"], "work/a/.hidden", true);
        check(&["work/**"], "work/__pycache__/a.pyc", true);
        check(&["**"], "work/web/node_modules/a/index.js", true);
        check(&["work/.cache/**"], "work/.cache/a", false);
        check(&["work/.cache/**"], "work/.cache/.b/a", true);
        check(&["work/**", "out/.env"], "out/.env", false);
        check(&["work/**", "out/.env"], "work/.env", true);
        check(&["work"], "work/.env", true);
        // Directories on the way to what a glob names.
        check(&["work/.a/.b/*"], "work/.a", false);
        check(&["work/.a/.b/*"], "work/.c", true);
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
        check(&"x".repeat(1025));
        assert!(GlobSet::new(&[]).is_err());
        assert!(GlobSet::new(&vec!["a".to_owned(); 65]).is_err());
    }
}

//! Which paths are wanted, and which directories cannot hold any.

use std::collections::HashSet;

use globset::GlobBuilder;
use regex_automata::meta::{Config, Regex};
use regex_automata::util::syntax;

use crate::error::Error;

const GLOBS_MAX: usize = 64;
const GLOB_BYTES_MAX: usize = 1024;
/// Characters that make a component more than its text.
const SPECIAL: [char; 5] = ['*', '?', '[', '{', '\\'];
/// What is in there was not made by a command: it has to be asked for by name.
const SKILLS: &str = "skills";
/// The daemon's record of the workspace, which has to be asked for by name too.
const METADATA: &str = "metadata.json";
/// What globset makes of `?`, and of `*` with a star behind it.
const BYTE: &str = "[^/]";
/// Matches a path beneath the one before it.
const BENEATH: &str = "(?:/.*)?";
/// Memory that all globs of a request may take together, bytes.
const SIZE_MAX: usize = 10 << 20;

/// The globs of one request.
#[derive(Debug)]
pub(crate) struct Globs {
    /// Match outside of skills/.
    all: Regex,
    /// Those that name skills/ or metadata.json.
    of_skills: Regex,
    shapes: Vec<Shape>,
    /// Paths that a glob without wildcards names.
    literal: HashSet<Vec<u8>>,
}

/// What a glob says of the directories above its files.
#[derive(Debug)]
struct Shape {
    /// Leading components that are plain text.
    literal: Vec<String>,
    /// Components of a match; `None` when there may be any number.
    depth: Option<usize>,
}

impl Globs {
    pub(crate) fn new(globs: &[String]) -> Result<Self, Error> {
        let invalid = |problem| Error::Invalid {
            field: "spec.globs",
            problem,
        };
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
            let built = GlobBuilder::new(glob)
                .literal_separator(true)
                .backslash_escape(true)
                .empty_alternates(true)
                .build()
                .map_err(|_| invalid("has one that is no glob"))?;
            let mut built = in_characters(built.regex());
            let mut shape = Shape::of(glob);
            if ends_in_name(glob)
                && let Some(before_end) = built.strip_suffix('$')
            {
                // The name of a directory stands for everything beneath it.
                built = format!("{before_end}{BENEATH}$");
                shape = Shape::of(&format!("{glob}/**"));
            }
            literal.extend(literal_path(glob));
            if glob == METADATA || shape.literal.first().is_some_and(|name| name == SKILLS) {
                of_skills.push(built.clone());
            }
            all.push(built);
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

    /// For paths relative to the workspace.
    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        let set = if is_of_skills(path) || path == METADATA.as_bytes() {
            &self.of_skills
        } else {
            &self.all
        };
        set.is_match(path)
    }

    /// False only if nothing beneath the directory can match.
    pub(crate) fn may_match_beneath(&self, directory: &[u8]) -> bool {
        let of_skills = is_of_skills(directory);
        let names: Vec<&[u8]> = directory.split(|byte| *byte == b'/').collect();
        self.shapes.iter().any(|shape| {
            let named = shape.literal.first().is_some_and(|name| name == SKILLS);
            (!of_skills || named) && shape.may_match_beneath(&names)
        })
    }
}

impl Shape {
    fn of(glob: &str) -> Self {
        let names: Vec<&str> = glob.split('/').filter(|name| !name.is_empty()).collect();
        let plain = names.iter().take_while(|name| !name.contains(SPECIAL));
        let mut literal: Vec<String> = plain.map(|name| (*name).to_owned()).collect();
        // The last component is a file's name, not a directory's.
        literal.truncate(names.len().saturating_sub(1));
        // Alternatives and classes may have slashes in them.
        let any_depth = glob.contains("**") || glob.contains(['{', '[', '\\']);
        Self {
            literal,
            depth: (!any_depth).then_some(names.len()),
        }
    }

    fn may_match_beneath(&self, names: &[&[u8]]) -> bool {
        let on_the_way = names
            .iter()
            .zip(&self.literal)
            .all(|(name, literal)| *name == literal.as_bytes());
        on_the_way && self.depth.is_none_or(|depth| names.len() < depth)
    }
}

/// A glob's regular expression, with characters where globset has bytes: for `?` and for a negated class. What `*`
/// stands for stays bytes, since names need not be text.
fn in_characters(regex: &str) -> String {
    let mut text = String::with_capacity(regex.len());
    let mut rest = regex;
    while let Some(at) = rest.find("[^") {
        let (before, class) = rest.split_at(at);
        let (class, after) = class.split_at(end_of_class(class));
        text.push_str(before);
        if class == BYTE && after.starts_with('*') {
            text.push_str(class);
        } else {
            text.push_str("(?u:");
            text.push_str(class);
            text.push(')');
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

/// Returns `true` if no wildcard follows the last slash of a glob.
fn ends_in_name(glob: &str) -> bool {
    let mut is_name = true;
    let mut chars = glob.chars();
    while let Some(c) = chars.next() {
        match c {
            '/' => is_name = true,
            '*' | '?' => is_name = false,
            '\\' => {
                chars.next();
            }
            '[' => {
                is_name = false;
                let class = chars.as_str();
                let negated = usize::from(class.starts_with(['!', '^']));
                // A bracket in the first place is a character like others.
                let closed = chars.by_ref().skip(negated + 1).any(|c| c == ']');
                debug_assert!(closed, "globset refused classes that are not closed");
            }
            _ => {}
        }
    }
    is_name
}

/// The only path that a glob without wildcards and alternatives matches.
fn literal_path(glob: &str) -> Option<Vec<u8>> {
    let mut path = String::with_capacity(glob.len());
    let mut chars = glob.chars();
    while let Some(c) = chars.next() {
        match c {
            '*' | '?' | '[' | '{' => return None,
            '\\' => path.extend(chars.next()),
            c => path.push(c),
        }
    }
    Some(path.into_bytes())
}

/// Behind the bracket that closes it. What is in it is escaped.
fn end_of_class(class: &str) -> usize {
    let mut escaped = false;
    let end = class.find(|c| {
        let closes = c == ']' && !escaped;
        escaped = c == '\\' && !escaped;
        closes
    });
    end.map_or(class.len(), |end| end + 1)
}

fn is_of_skills(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').next() == Some(SKILLS.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globs(globs: &[&str]) -> Globs {
        let globs: Vec<String> = globs.iter().map(|glob| (*glob).to_owned()).collect();
        Globs::new(&globs).expect("globs")
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
        let check = |glob: &str| assert!(Globs::new(&[glob.to_owned()]).is_err(), "{glob}");
        check("");
        check("/etc/*");
        check("out/../../x");
        check("a[");
        check(&"x".repeat(1025));
        assert!(Globs::new(&[]).is_err());
        assert!(Globs::new(&vec!["a".to_owned(); 65]).is_err());
    }
}

//! Translates one glob into a regular expression. The dialect is globset's with literal separators, backslash escapes
//! and empty alternatives, but `?` and classes match whole characters where globset matches single bytes, and no class
//! matches a slash. A glob also has a plain reading, in which only stars and question marks are special, because files
//! have names such as `[slug]`.
//!
//! | glob | matches |
//! |---|---|
//! | `?` | one character, no slash |
//! | `*` | any bytes, no slash: names need not be text |
//! | `**` as a whole component | any number of components |
//! | `[a-c]`, `[!a-c]` | one character of the class, or one that is not in it |
//! | `{a,b}` | one of the alternatives, which may nest |
//! | `\c` | the character `c` |

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::Chars;

/// Characters that mean something in a regular expression.
const META_CHARACTERS: &str = r"\.+*?()|[]{}^$#&-~";
const ANY_CHARACTER: &str = "[^/]";
const ANY_NAME: &str = "(?-u:[^/])*";
const ANY_BYTES: &str = "(?-u:.)*";
/// `**/` at the beginning of a glob or of an alternative.
const ANY_PREFIX: &str = "(?:/?|(?-u:.)*/)";
/// `/**/` between two components.
const ANY_BETWEEN: &str = "(?:/|/(?-u:.)*/)";
/// `/**` at the end.
const ANY_SUFFIX: &str = "/(?-u:.)*";
/// Any path beneath the one that was matched, or none.
const ANY_BENEATH: &str = "(?:/(?-u:.)*)?";

/// Parsed glob.
#[derive(Debug)]
pub(super) struct GlobPattern {
    /// Regular expression that matches whole paths.
    pub(super) regex: String,
    /// No wildcard follows the last slash, so the glob may name a directory and stands for all files beneath it.
    pub(super) ends_in_name: bool,
    /// The only path that matches; `None` if the glob has wildcards or alternatives.
    pub(super) literal_path: Option<String>,
}

impl GlobPattern {
    /// Parses a glob; `None` if its syntax is wrong.
    pub(super) fn parse(glob: &str) -> Option<Self> {
        Self::parse_as(glob, false)
    }

    /// Parses a glob whose brackets, braces and backslashes are ordinary characters, which every text is.
    pub(super) fn parse_plain(glob: &str) -> Option<Self> {
        Self::parse_as(glob, true)
    }

    fn parse_as(glob: &str, is_plain: bool) -> Option<Self> {
        let mut parser = GlobParser {
            chars: glob.chars().peekable(),
            is_plain,
            previous: None,
            ends_in_name: true,
            literal_path: Some(String::new()),
        };
        let (parts, end) = parser.parse_branch(0)?;
        if end != BranchEnd::Glob {
            return None;
        }
        let everything = parts.len() == 1 && parts.first().is_some_and(|part| part == ANY_PREFIX);
        let body = if everything {
            ANY_BYTES.to_owned()
        } else {
            parts.concat()
        };
        let beneath = if parser.ends_in_name { ANY_BENEATH } else { "" };
        Some(Self {
            regex: format!("^{body}{beneath}$"),
            ends_in_name: parser.ends_in_name,
            literal_path: parser.literal_path,
        })
    }
}

/// End of an alternative or of the whole glob.
#[derive(Debug, PartialEq, Eq)]
enum BranchEnd {
    Comma,
    Brace,
    Glob,
}

/// Parser of one glob, and what it has learned so far.
struct GlobParser<'a> {
    chars: Peekable<Chars<'a>>,
    /// Only stars and question marks are special.
    is_plain: bool,
    /// Character before the current one.
    previous: Option<char>,
    ends_in_name: bool,
    literal_path: Option<String>,
}

/// Regular expressions of consecutive parts of a glob.
type RegexParts = Vec<Cow<'static, str>>;

impl GlobParser<'_> {
    /// Parses up to the end of the glob or, inside of `depth` braces, of the alternative.
    fn parse_branch(&mut self, depth: usize) -> Option<(RegexParts, BranchEnd)> {
        let mut parts = RegexParts::new();
        while let Some(character) = self.chars.next() {
            let before = self.previous.replace(character);
            match character {
                '?' => {
                    self.note_wildcard();
                    parts.push(ANY_CHARACTER.into());
                }
                '*' => {
                    self.note_wildcard();
                    self.parse_star(before, depth, &mut parts);
                }
                '[' if !self.is_plain => {
                    self.note_wildcard();
                    parts.push(self.parse_class()?.into());
                }
                '{' if !self.is_plain => parts.push(self.parse_alternatives(depth + 1)?.into()),
                '}' if !self.is_plain && depth == 0 => return None,
                '}' if !self.is_plain => return Some((parts, BranchEnd::Brace)),
                ',' if depth > 0 => return Some((parts, BranchEnd::Comma)),
                '\\' if !self.is_plain => {
                    let escaped = self.next()?;
                    self.push_literal(escaped, &mut parts);
                }
                '/' => {
                    self.ends_in_name = true;
                    self.push_literal('/', &mut parts);
                }
                literal => self.push_literal(literal, &mut parts),
            }
        }
        (depth == 0).then_some((parts, BranchEnd::Glob))
    }

    fn next(&mut self) -> Option<char> {
        let next = self.chars.next()?;
        self.previous = Some(next);
        Some(next)
    }

    fn note_wildcard(&mut self) {
        self.ends_in_name = false;
        self.literal_path = None;
    }

    fn push_literal(&mut self, literal: char, parts: &mut RegexParts) {
        if let Some(path) = &mut self.literal_path {
            path.push(literal);
        }
        let mut part = String::new();
        push_escaped(literal, &mut part);
        parts.push(part.into());
    }

    /// Parses what follows a first star. Two stars cross slashes only as a whole component.
    fn parse_star(&mut self, before: Option<char>, depth: usize, parts: &mut RegexParts) {
        if self.chars.next_if_eq(&'*').is_none() {
            parts.push(ANY_NAME.into());
            return;
        }
        self.previous = Some('*');
        let is_first = parts.is_empty();
        let follows_slash = is_first || before == Some('/');
        let part = match self.chars.peek() {
            Some('/') if follows_slash => {
                self.next();
                self.ends_in_name = true;
                if is_first { ANY_PREFIX } else { ANY_BETWEEN }
            }
            None if is_first => ANY_PREFIX,
            None if follows_slash => ANY_SUFFIX,
            Some(',' | '}') if follows_slash && !is_first && depth > 0 => ANY_SUFFIX,
            _ => ANY_NAME,
        };
        if is_first || part == ANY_NAME {
            parts.push(part.into());
            return;
        }
        // The part takes the place of the slash before it. A prefix has one of its own and already matches everything.
        let replaced = parts.pop();
        let is_prefix = replaced.is_some_and(|replaced| replaced == ANY_PREFIX);
        parts.push(if is_prefix { ANY_PREFIX } else { part }.into());
    }

    /// Parses the alternatives of a brace up to the one that closes it.
    fn parse_alternatives(&mut self, depth: usize) -> Option<String> {
        self.literal_path = None;
        let mut branches = Vec::new();
        loop {
            let (parts, end) = self.parse_branch(depth)?;
            branches.push(parts.concat());
            if end == BranchEnd::Brace {
                return Some(format!("(?:{})", branches.join("|")));
            }
        }
    }

    /// Parses a class up to its closing bracket. A bracket or dash in the first place stands for itself, and so does
    /// a dash in the last. The class matches no slash, whatever it lists.
    fn parse_class(&mut self) -> Option<String> {
        let mut class = "[[".to_owned();
        if self.chars.next_if(|c| matches!(c, '!' | '^')).is_some() {
            class.push('^');
        }
        let mut ranges: Vec<(char, char)> = Vec::new();
        let mut in_range = false;
        loop {
            match (self.next()?, ranges.last_mut()) {
                (']', Some(_)) => break,
                (to, Some(last)) if in_range => {
                    last.1 = to;
                    in_range = false;
                    if last.1 < last.0 {
                        return None;
                    }
                }
                ('-', Some(_)) => in_range = true,
                (single, _) => ranges.push((single, single)),
            }
        }
        if in_range {
            ranges.push(('-', '-'));
        }
        for (from, to) in ranges {
            push_escaped(from, &mut class);
            class.push('-');
            push_escaped(to, &mut class);
        }
        class.push_str("]&&[^/]]");
        Some(class)
    }
}

/// Appends a character that matches itself.
fn push_escaped(literal: char, regex: &mut String) {
    if META_CHARACTERS.contains(literal) {
        regex.push('\\');
    }
    regex.push(literal);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex_automata::meta::{Config, Regex};
    use regex_automata::util::syntax;

    use super::*;

    fn compile(pattern: &GlobPattern) -> Regex {
        let built = Regex::builder()
            .configure(Config::new().utf8_empty(false))
            .syntax(syntax::Config::new().utf8(false))
            .build(&pattern.regex);
        built.expect("a regular expression")
    }

    proptest! {
        /// Escaped commas and braces are left out: globset takes stars behind them for those of an alternative. Globset
        /// lets classes match slashes.
        #[test]
        fn ascii_globs_match_as_globset_matches_them(
            glob in r"[ab/*?\[\]!^{},\\.-]{0,14}",
            paths in proptest::collection::vec(r"[ab.-]{1,2}(/[ab.-]{1,2}){0,3}", 1..8),
        ) {
            if glob.contains(r"\,") || glob.contains(r"\{") {
                return Ok(());
            }
            let expected = globset::GlobBuilder::new(&glob)
                .literal_separator(true)
                .backslash_escape(true)
                .empty_alternates(true)
                .build()
                .ok();
            let pattern = GlobPattern::parse(&glob);
            prop_assert_eq!(pattern.is_some(), expected.is_some());
            let (Some(pattern), Some(expected)) = (pattern, expected) else {
                return Ok(());
            };
            let matcher = expected.compile_matcher();
            let regex = compile(&pattern);
            for path in paths {
                let beneath = path.match_indices('/').any(|(slash, _)| {
                    pattern.ends_in_name && matcher.is_match(&path[..slash])
                });
                let wanted = beneath || matcher.is_match(&path);
                let found = regex.is_match(&path);
                let by_slash = wanted && !found && glob.contains('[') && path.contains('/');
                prop_assert!(found == wanted || by_slash, "{} {}", glob, path);
            }
        }
    }

    #[test]
    fn classes_match_whole_characters() {
        let matches = |glob: &str, path: &str| {
            let pattern = GlobPattern::parse(glob).expect("a glob");
            compile(&pattern).is_match(path)
        };
        assert!(matches("[äö]", "ö") && matches("[à-ü]", "é") && !matches("[äö]", "ä\u{f6}"));
        assert!(matches("[!ä]x", "üx") && !matches("[!ä]x", "äx"));
    }

    #[test]
    fn no_class_matches_a_slash() {
        for glob in ["a[!b]c", "a[+-0]c", "a[/]c", "a[^]/]c", "a[!-.]c"] {
            let pattern = GlobPattern::parse(glob).expect("a glob");
            assert!(!compile(&pattern).is_match("a/c"), "{glob}");
        }
    }

    proptest! {
        #[test]
        fn a_plain_glob_matches_the_path_that_it_spells(path in r"[ab*?\[\]!^{},\\.-]{1,8}(/[ab*?\[\]{}\\-]{1,4}){0,3}") {
            let pattern = GlobPattern::parse_plain(&path).expect("every text is one");
            prop_assert!(compile(&pattern).is_match(&path), "{}", path);
        }
    }
}

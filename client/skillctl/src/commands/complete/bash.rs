//! Completion of command lines in bash. Bash splits words also at `=`, `:` and `@`, keeps their quotes, and replaces
//! only the part behind the last split. So the script sends the line as typed, and gets the replacement text of that
//! part.
//!
//! Bash inserts candidates without quoting them, and untrusted users can choose names of artifacts and files: a
//! name with a character that has a meaning to the shell is not offered.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;

use clap_complete::engine::complete;
use clap_complete::env::EnvCompleter;

/// Separator of the candidates that bash reads: the script's IFS.
const SEPARATOR: &str = "\u{b}";

const SCRIPT: &str = r#"
_clap_complete_NAME() {
    local IFS=$'\013'
    local space=true
    if compopt +o nospace 2> /dev/null; then
        space=false
    fi
    COMPREPLY=( $( \
        VAR="bash" \
        COMPLETER -- "${COMP_LINE:0:COMP_POINT}" "${COMP_LINE:COMP_POINT}" "$2" \
    ) )
    if [[ $? != 0 ]]; then
        unset COMPREPLY
    elif [[ $space == false ]] && [[ "${COMPREPLY-}" =~ [=/:]$ ]]; then
        compopt -o nospace
    fi
}
if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -o nospace -o bashdefault -o nosort -F _clap_complete_NAME BIN
else
    complete -o nospace -o bashdefault -F _clap_complete_NAME BIN
fi
"#;

/// Completer of lines that bash sends. clap's own completer for bash gets the words as bash has split them: it knows no
/// values behind `=`, `:` and `@` and none in quotes, and returns names that the shell would run.
#[derive(Debug)]
pub(super) struct BashCompleter;

impl EnvCompleter for BashCompleter {
    fn name(&self) -> &'static str {
        "bash"
    }

    fn is(&self, name: &str) -> bool {
        name == self.name()
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        buf: &mut dyn Write,
    ) -> Result<(), io::Error> {
        let completer = shlex::try_quote(completer)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let script = SCRIPT
            .replace("NAME", &name.replace('-', "_"))
            .replace("BIN", bin)
            .replace("VAR", var)
            .replace("COMPLETER", &completer);
        writeln!(buf, "{script}")
    }

    fn write_complete(
        &self,
        cmd: &mut clap::Command,
        args: Vec<OsString>,
        current_dir: Option<&Path>,
        buf: &mut dyn Write,
    ) -> Result<(), io::Error> {
        let [before, after, current] = args.as_slice() else {
            let problem = "needs the line before the cursor, the rest of it, and the word";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        };
        let before = before.to_string_lossy();
        super::set_line_words(split_words(&format!("{before}{}", after.to_string_lossy())));
        let words = split_words(&before);
        let index = words.len().saturating_sub(1);
        let Some(kept) = kept_prefix(&words, &current.to_string_lossy()) else {
            return Ok(());
        };
        let os_words = words.into_iter().map(OsString::from).collect();
        let candidates = complete(cmd, os_words, index, current_dir)?;
        let values: Vec<String> = candidates
            .iter()
            .filter_map(|candidate| replacement(candidate.get_value(), &kept))
            .collect();
        write!(buf, "{}", values.join(SEPARATOR))
    }
}

/// Splits the line before the cursor into words without their quotes, as the shell will see them. The last one is the
/// word at the cursor; it is empty behind a blank.
fn split_words(line: &str) -> Vec<String> {
    // The quotes of the last word may be open.
    let mut words = ["", "\"", "'"]
        .iter()
        .find_map(|end| shlex::split(&format!("{line}{end}")))
        .unwrap_or_else(|| line.split_whitespace().map(str::to_owned).collect());
    // A word begins here if another character would not go on with the last one.
    let next = shlex::split(&format!("{line}x"));
    if next.is_some_and(|next| next.len() > words.len()) {
        words.push(String::new());
    }
    words
}

/// Returns the part of the word at the cursor that bash keeps, which precedes `current`, the part that it replaces.
/// `None` if the word does not end with that part: the two were split differently, as at a comment.
fn kept_prefix(words: &[String], current: &str) -> Option<String> {
    let word = words.last().map(String::as_str).unwrap_or_default();
    // Bash gives the part with its quotes if these are closed.
    let plain = shlex::split(current).and_then(|parts| parts.into_iter().next());
    let kept = word
        .strip_suffix(current)
        .or_else(|| word.strip_suffix(plain?.as_str()));
    kept.map(str::to_owned)
}

/// Returns the text by which bash replaces its part of the word. `None` if a candidate does not begin with the kept
/// part, or has a character that the shell may not take as it is.
fn replacement(candidate: &OsStr, kept: &str) -> Option<String> {
    let text = candidate.to_str()?.strip_prefix(kept)?;
    let is_plain = |char: char| char.is_alphanumeric() || "-_./:@=+,%".contains(char);
    text.chars().all(is_plain).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_as_the_shell_splits_it() {
        for (line, words) in [
            ("skillctl ", vec!["skillctl", ""]),
            ("skillctl rm w", vec!["skillctl", "rm", "w"]),
            ("a --user=ad", vec!["a", "--user=ad"]),
            ("a --user=", vec!["a", "--user="]),
            ("a --user='ada l' x", vec!["a", "--user=ada l", "x"]),
            ("a --user=\"ada l", vec!["a", "--user=ada l"]),
            ("a 'x y ", vec!["a", "x y "]),
            ("a 'x'", vec!["a", "x"]),
            ("a b\\ c", vec!["a", "b c"]),
            ("a b\\ ", vec!["a", "b "]),
            ("a '' ", vec!["a", "", ""]),
            ("a '", vec!["a", ""]),
            ("a unix:/x", vec!["a", "unix:/x"]),
        ] {
            assert_eq!(split_words(line), words, "{line:?}");
        }
    }

    #[test]
    fn only_the_part_that_bash_replaces_is_returned() {
        for (word, current, candidate, written) in [
            ("--user=ad", "ad", "--user=ada", Some("ada")),
            ("--user=", "", "--user=ada", Some("ada")),
            ("csv@1", "@1", "csv@1.0", Some("@1.0")),
            ("user:n", "n", "user:notes", Some("notes")),
            ("w", "w", "w/", Some("w/")),
            ("--user=a b", "b", "--user=a bc", Some("bc")),
            ("--user=ad", "ad", "other", None),
            ("rm", "#w", "rm", None),
        ] {
            let kept = kept_prefix(&[word.to_owned()], current);
            let replaced = kept.and_then(|kept| replacement(OsStr::new(candidate), &kept));
            assert_eq!(replaced.as_deref(), written, "{word} {current}");
        }
    }

    #[test]
    fn names_with_a_meaning_to_the_shell_are_not_offered() {
        for name in [
            "x;touch y",
            "x$(touch y)",
            "x`touch y`",
            "it's",
            "a\"b",
            "a b",
            "*",
            "r[1].csv",
            "x\ny",
            "~root",
            "!x",
            "a\\",
            "a{b,c}",
            "a&b",
            "a|b",
            "a>b",
            "x\u{b}y",
            "#x",
        ] {
            assert_eq!(replacement(OsStr::new(name), ""), None, "{name:?}");
        }
        let plain = "out/Übersicht-2_a.csv@3";
        assert_eq!(replacement(OsStr::new(plain), "").as_deref(), Some(plain));
    }
}

//! Completion for bash. Bash splits words also at `=`, `:` and `@`, keeps their quotes, and replaces only the part behind the
//! last split. So its script sends the line as typed, and gets what belongs in the place of that part.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;

use clap_complete::engine::complete;
use clap_complete::env::EnvCompleter;

/// Separates candidates: the script's IFS.
const SEPARATOR: &str = "\u{b}";

const SCRIPT: &str = r#"
_clap_complete_NAME() {
    local IFS=$'\013'
    local space=true
    if compopt +o nospace 2> /dev/null; then
        space=false
    fi
    COMPREPLY=( $( \
        VAR="bash-line" \
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

/// Completer of lines that bash sends. clap's own completer for bash takes bash's words.
#[derive(Debug)]
pub(super) struct BashLine;

impl EnvCompleter for BashLine {
    fn name(&self) -> &'static str {
        "bash-line"
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
        let script = SCRIPT
            .replace("NAME", &name.replace('-', "_"))
            .replace("BIN", bin)
            .replace("COMPLETER", completer)
            .replace("VAR", var);
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
        super::set_words(split_words(&format!("{before}{}", after.to_string_lossy())));
        let words = split_words(&before);
        let index = words.len().saturating_sub(1);
        let kept = kept_prefix(&words, &current.to_string_lossy());
        let words = words.into_iter().map(OsString::from).collect();
        let candidates = complete(cmd, words, index, current_dir)?;
        let values = candidates
            .iter()
            .filter_map(|candidate| replacement(candidate.get_value(), &kept));
        let values: Vec<String> = values.collect();
        write!(buf, "{}", values.join(SEPARATOR))
    }
}

/// Splits the line before the cursor into words without their quotes, as the shell will see them. The last one is the word at the
/// cursor; it is empty behind a blank.
fn split_words(line: &str) -> Vec<String> {
    // The quotes of the last word may be open.
    let mut closed = ["", "\"", "'"].iter();
    let words = closed.find_map(|end| shlex::split(&format!("{line}{end}")));
    let mut words = words.unwrap_or_else(|| line.split_whitespace().map(str::to_owned).collect());
    // A word begins here if another character would not go on with the last one.
    let next = shlex::split(&format!("{line}x"));
    if next.is_some_and(|next| next.len() > words.len()) {
        words.push(String::new());
    }
    words
}

/// Returns the part of the word at the cursor that bash keeps: what precedes `current`, the part that it replaces.
fn kept_prefix(words: &[String], current: &str) -> String {
    let word = words.last().map(String::as_str).unwrap_or_default();
    // Bash gives the part with its quotes if these are closed.
    let plain = shlex::split(current).and_then(|parts| parts.into_iter().next());
    let kept = word
        .strip_suffix(current)
        .or_else(|| word.strip_suffix(plain?.as_str()));
    kept.unwrap_or_default().to_owned()
}

/// Returns what takes the place of the replaced part; `None` if the candidate does not begin with what bash keeps.
fn replacement(candidate: &OsStr, kept: &str) -> Option<String> {
    candidate
        .to_string_lossy()
        .strip_prefix(kept)
        .map(str::to_owned)
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
            ("--user=a b", "a\\ b", "--user=a bc", Some("a bc")),
            ("--user=ad", "ad", "other", None),
        ] {
            let kept = kept_prefix(&[word.to_owned()], current);
            let replaced = replacement(OsStr::new(candidate), &kept);
            assert_eq!(replaced.as_deref(), written, "{word} {current}");
        }
    }
}

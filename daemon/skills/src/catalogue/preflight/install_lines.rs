//! Packages that lines of code tell to install: `pip install x`, `npm install x`, `uv add x`. Pure.
//!
//! Such a line is in the code of SKILL.md, in a comment of a script, or in the message that a script prints when an import
//! failed. A sentence of SKILL.md may have the words of a command and go on.

use super::NeedKind;
use super::commands::NumberedText;
use super::python_requirements::parse_requirement;
use crate::parse::npm_specifier::package_of_specifier;

/// Parser of an operand, which returns the name of its package.
type NameParser = fn(&str) -> Option<String>;

/// Installation commands and the kind of what they install.
const INSTALLERS: [(&str, NeedKind, NameParser); 6] = [
    ("pip install ", NeedKind::PythonPackage, parse_requirement),
    ("pip3 install ", NeedKind::PythonPackage, parse_requirement),
    ("uv add ", NeedKind::PythonPackage, parse_requirement),
    ("npm install ", NeedKind::NodePackage, package_of_specifier),
    ("npm i ", NeedKind::NodePackage, package_of_specifier),
    ("npm add ", NeedKind::NodePackage, package_of_specifier),
];
/// Options whose next word is a value.
#[rustfmt::skip]
const OPTIONS_WITH_VALUE: &[&str] = &[
    "-C", "-c", "-e", "-i", "-t", "-w", "--constraint", "--editable", "--extra-index-url", "--find-links", "--group",
    "--index-url", "--prefix", "--python", "--registry", "--target", "--workspace",
];
/// Words of a sentence after a command or of another command, names in examples, and the option for a file: the
/// packages end before them.
#[rustfmt::skip]
const END_WORDS: &[&str] = &[
    "-r", "--requirement", "a", "add", "an", "and", "before", "dependencies", "fails", "first", "foo", "for", "here",
    "i", "if", "in", "install", "into", "is", "it", "name", "on", "or", "package", "package-name", "package_name",
    "packages", "pkg", "some-package", "the", "them", "then", "this", "to", "when", "with", "your", "your-package",
];
/// Characters that end a command within a text.
const END_CHARS: [char; 10] = ['`', ';', '|', '&', '#', '(', ')', '\\', '"', '\''];
/// Maximum number of words of one command.
const WORDS_MAX: usize = 64;

/// Kind and name of a package that a line tells to install, and the number of the line.
pub(super) type InstalledPackage = (NeedKind, String, usize);

/// Returns the packages that lines of code tell to install.
pub(super) fn find_installed_packages(lines: &[NumberedText<'_>]) -> Vec<InstalledPackage> {
    let mut packages = Vec::new();
    for (line, number) in lines {
        for (installer, kind, parse_name) in INSTALLERS {
            for (at, _) in line.match_indices(installer) {
                let rest = line.get(at + installer.len()..).unwrap_or_default();
                let names = operands(rest).into_iter().filter_map(parse_name);
                packages.extend(names.map(|name| (kind, name, *number)));
            }
        }
    }
    packages
}

/// Returns the operands of a command, up to its end within a line.
fn operands(rest: &str) -> Vec<&str> {
    let mut operands = Vec::new();
    let mut words = rest.split_whitespace().take(WORDS_MAX);
    while let Some(word) = words.next() {
        // A requirement with brackets or a version is in quotes of its own.
        let inner = word.trim_start_matches(['"', '\'']);
        let is_quoted = inner.len() < word.len();
        let end = inner.find(END_CHARS).unwrap_or(inner.len());
        let (text, tail) = inner.split_at_checked(end).unwrap_or_default();
        let is_last = tail.len() > usize::from(is_quoted) || text.ends_with([',', '.', ':']);
        let operand = text.trim_end_matches([',', '.', ':']);
        if END_WORDS.contains(&operand) {
            break;
        }
        if OPTIONS_WITH_VALUE.contains(&operand) {
            words.next();
        } else if !operand.starts_with(['-', '.', '/']) && !operand.ends_with(".txt") {
            operands.push(operand);
        }
        if is_last {
            break;
        }
    }
    operands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_packages_are_the_operands_of_the_command() {
        for (text, expected) in [
            (
                "pip install opencv-python-headless rich",
                &["opencv-python-headless", "rich"][..],
            ),
            (
                "Run `uv pip install -U 'markitdown[pptx]>=0.1' \"lxml\"` first.",
                &["markitdown", "lxml"],
            ),
            ("print(\"pip3 install openpyxl\\n\")", &["openpyxl"]),
            (
                "pip install pypdf, then run it; pip install x to do y",
                &["pypdf", "x"],
            ),
            (
                "pip install -r requirements.txt; fi\npip install --target out .",
                &[],
            ),
            (
                "pip install <package> $NAME {name} ./local your-package",
                &[],
            ),
            (
                "uv add httpx && npm install -g docx @scope/x@1 # sharp",
                &["httpx", "docx", "@scope/x"],
            ),
            ("npm install\nnpm i left-pad", &["left-pad"]),
            (
                "pip install --find-links wheels -c old.in x -C a=b y --constraint z",
                &["x", "y"],
            ),
            ("npm install --workspace web lodash -w app", &["lodash"]),
            ("uv add --group test --editable lib pytest", &["pytest"]),
            (
                "pip install package_name\nnpm i some-package\nnpm i name",
                &[],
            ),
            (
                "pip install fails\nnpm install is required\npip install here",
                &[],
            ),
        ] {
            let lines: Vec<NumberedText<'_>> = text.lines().zip(1..).collect();
            let found = find_installed_packages(&lines).into_iter();
            let names: Vec<String> = found.map(|(_, name, _)| name).collect();
            assert_eq!(names, expected, "{text}");
        }
    }
}

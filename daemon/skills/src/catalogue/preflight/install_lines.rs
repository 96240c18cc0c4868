//! Packages that lines of text tell to install: `pip install x`, `npm install x`, `uv add x`. Pure.
//!
//! Such a line is in SKILL.md, in a comment of a script, or in the message that a script prints when an import failed.

use super::NeedKind;
use super::package_json::package_of_specifier;
use super::python_requirements::parse_requirement;

/// Installation commands and the kind of what they install.
const INSTALLERS: [(&str, NeedKind); 6] = [
    ("pip install ", NeedKind::PythonPackage),
    ("pip3 install ", NeedKind::PythonPackage),
    ("uv add ", NeedKind::PythonPackage),
    ("npm install ", NeedKind::NodePackage),
    ("npm i ", NeedKind::NodePackage),
    ("npm add ", NeedKind::NodePackage),
];
/// Options whose next word is a value.
#[rustfmt::skip]
const OPTIONS_WITH_VALUE: &[&str] = &[
    "-c", "-i", "--index-url", "--extra-index-url", "-t", "--target", "-e", "--python", "--prefix", "--registry",
];
/// Words of a sentence after a command or of another command, names in examples, and the option for a file: the packages
/// end before them.
#[rustfmt::skip]
const END_WORDS: &[&str] = &[
    "-r", "--requirement", "a", "add", "an", "and", "before", "dependencies", "first", "foo", "for", "i", "if", "in",
    "install", "into", "it", "on", "or", "package", "package-name", "packages", "pkg", "the", "them", "then", "this",
    "to", "when", "with", "your", "your-package",
];
/// Characters that end a command within a text.
const END_CHARS: [char; 10] = ['`', ';', '|', '&', '#', '(', ')', '\\', '"', '\''];
/// Maximum number of words of one command.
const WORDS_MAX: usize = 64;

/// Kind and name of a package that a line tells to install, and the number of the line.
pub(super) type InstalledPackage = (NeedKind, String, usize);

/// Returns the packages that a text tells to install.
pub(super) fn find_installed_packages(text: &str) -> Vec<InstalledPackage> {
    let mut packages = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (installer, kind) in INSTALLERS {
            for (at, _) in line.match_indices(installer) {
                let rest = line.get(at + installer.len()..).unwrap_or_default();
                let names = operands(rest).into_iter().filter_map(|operand| {
                    match kind == NeedKind::NodePackage {
                        true => package_of_specifier(operand),
                        false => parse_requirement(operand),
                    }
                });
                packages.extend(names.map(|name| (kind, name, index + 1)));
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
        ] {
            let found = find_installed_packages(text).into_iter();
            let names: Vec<String> = found.map(|(_, name, _)| name).collect();
            assert_eq!(names, expected, "{text}");
        }
    }
}

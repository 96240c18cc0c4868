//! Findings in SKILL.md and skill-card.json: every code with its severity under each profile. A document is read once;
//! the profile only decides which findings are reported, and how severe they are. Pure.

use crate::parse::problem::{Problem, Severity};

/// Maximum number of findings of one document, apart from the first one of each kind.
const FINDINGS_MAX: usize = 64;
/// Maximum number of characters of a skill's own text in a message.
const SHOWN_CHARS_MAX: usize = 80;

/// Strictness with which a skill is judged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ValidationProfile {
    /// Accepts whatever can be understood; repairs are warnings.
    #[default]
    Lenient,
    /// Follows the Agent Skills specification: a deviation rejects the skill.
    Spec,
}

/// Kind of finding.
#[derive(Debug, PartialEq, Eq)]
pub struct FindingCode {
    /// Stable, for programs.
    pub name: &'static str,
    /// Severity under `Lenient`; `None` if it is not reported.
    pub lenient: Option<Severity>,
    /// Severity under `Spec`; `None` if it is not reported.
    pub spec: Option<Severity>,
    /// Remedy for the skill's author.
    pub cure: &'static str,
}

impl FindingCode {
    fn severity(&self, profile: ValidationProfile) -> Option<Severity> {
        match profile {
            ValidationProfile::Lenient => self.lenient,
            ValidationProfile::Spec => self.spec,
        }
    }
}

const NO: Option<Severity> = None;
const WARNING: Option<Severity> = Some(Severity::Warning);
const ERROR: Option<Severity> = Some(Severity::Error);

/// Defines a constant for each code, and `ALL`.
macro_rules! codes {
    ($($constant:ident = $name:literal, $lenient:ident, $spec:ident, $cure:literal;)*) => {
        $(
            #[doc = $cure]
            pub(crate) const $constant: &FindingCode =
                &FindingCode { name: $name, lenient: $lenient, spec: $spec, cure: $cure };
        )*
        /// Every code, in the order in which a document is read.
        pub const ALL: &[&FindingCode] = &[$($constant),*];
    };
}

codes! {
    TOO_LARGE = "skill.too_large", ERROR, ERROR, "Move text into references/.";
    BOM = "skill.bom", WARNING, NO, "Save the file without a byte order mark.";
    UTF16 = "skill.utf16", WARNING, ERROR, "Save the file as UTF-8.";
    NOT_UTF8 = "skill.not_utf8", WARNING, ERROR, "Save the file as UTF-8; the message says how it was read.";
    NUL = "skill.nul", ERROR, ERROR, "Remove the NUL byte.";
    LEADING_SPACE = "skill.leading_space", WARNING, ERROR, "Begin the file with `---`.";
    LEADING_COMMENT = "skill.leading_comment", WARNING, ERROR, "Begin the file with `---`; put comments into the body.";
    CODE_FENCE = "skill.code_fence", WARNING, ERROR, "Take the front matter out of the code fence.";
    NO_FRONT_MATTER = "skill.no_front_matter", ERROR, ERROR, "Begin the file with `---`, keys, and `---` again.";
    EMPTY_FRONT_MATTER = "skill.empty_front_matter", ERROR, ERROR, "Write `name` and `description` between the fences.";
    NOT_CLOSED = "skill.not_closed", ERROR, ERROR, "End the front matter with a line `---`.";
    CLOSED_BY_BODY = "skill.closed_by_body", WARNING, ERROR, "End the front matter with a line `---`.";
    TOO_COMPLEX = "skill.too_complex", ERROR, ERROR, "Nest less, and use fewer anchors and keys.";
    NOT_A_MAP = "skill.not_a_map", ERROR, ERROR, "Write the front matter as `key: value` lines.";
    YAML_REPAIRED = "skill.yaml_repaired", WARNING, ERROR, "Put the value into quotes.";
    DUPLICATE_KEY = "skill.duplicate_key", WARNING, ERROR, "Keep one; the last was used.";
    UNKNOWN_KEY = "skill.unknown_key", NO, WARNING, "Move it beneath `metadata`.";
    WRONG_TYPE = "skill.wrong_type", WARNING, ERROR, "Write one line of text, or a list where one is meant.";
    HIDDEN_CHARACTERS = "skill.hidden_characters", WARNING, WARNING, "Remove control, zero-width and bidirectional characters.";
    NO_NAME = "skill.no_name", WARNING, ERROR, "Write `name`; the folder's was used.";
    NAME_NOT_SPEC = "skill.name_not_spec", WARNING, ERROR, "Use lower-case letters, digits and single hyphens.";
    NAME_CHANGED = "skill.name_changed", WARNING, ERROR, "Use at most 64 lower-case letters, digits and single hyphens.";
    BAD_NAME = "skill.bad_name", ERROR, ERROR, "Give the skill or its folder a name of letters, digits and hyphens.";
    FOLDER_NAME = "skill.folder_name", WARNING, ERROR, "Name the folder as the skill.";
    DESCRIPTION_GUESSED = "skill.description_guessed", WARNING, ERROR, "Write `description`; other text was used.";
    NO_DESCRIPTION = "skill.no_description", ERROR, ERROR, "Write `description`: what the skill does and when to use it.";
    CUT_DESCRIPTION = "skill.cut_description", WARNING, WARNING, "Put the description into quotes if `#` belongs to it.";
    LONG_DESCRIPTION = "skill.long_description", WARNING, ERROR, "Use at most 1,024 characters.";
    LONG_COMPATIBILITY = "skill.long_compatibility", WARNING, ERROR, "Use at most 500 characters.";
    VERSION_UNREADABLE = "skill.version_unreadable", WARNING, WARNING, "Write a version such as 1.2.3; this one can be asked for only as it is written.";
    ALLOWED_TOOLS = "skill.allowed_tools", WARNING, ERROR, "Write `Read, Bash(git:*)` or a list; until then no tool is allowed.";
    TOOL_NAME = "skill.tool_name", WARNING, WARNING, "List one tool by its name on each line of `Tools:`.";
    TOOLS_ENDED = "skill.tools_ended", WARNING, WARNING, "Put `# …` between two tools without a blank line, or move it.";
    CARD_INVALID = "card.invalid", ERROR, ERROR, "Write skill-card.json as one JSON object.";
    CARD_TOO_LARGE = "card.too_large", ERROR, ERROR, "Keep skill-card.json within 1 MiB, 32 levels and 20,000 values.";
    CARD_WRONG_TYPE = "card.wrong_type", WARNING, WARNING, "Give the key the type that it has in a card; it was ignored.";
    CARD_FILES = "card.files", ERROR, ERROR, "Write `files` as a list of paths.";
    CARD_PATH_ESCAPES = "card.path_escapes", ERROR, ERROR, "List only files of the skill, relative to it and without `..`.";
    CARD_FILE_MISSING = "card.file_missing", WARNING, WARNING, "Add the file, or take it out of `files`.";
    CARD_BASE_URI = "card.base_uri", WARNING, WARNING, "Write `.`; the card's own folder was used, because it has a SKILL.md.";
    CARD_NO_INSTRUCTIONS = "card.no_instructions", ERROR, ERROR, "Put a SKILL.md with text beside the card, or where its `base_uri` leads.";
    CARD_EXTENSION_REQUIRED = "card.extension_required", ERROR, ERROR, "Make the extension optional, or use a daemon that knows it.";
}

/// Findings of one folder's documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Findings {
    list: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq)]
struct Finding {
    code: &'static FindingCode,
    line: usize,
    message: String,
}

impl Findings {
    /// Adds one that concerns a line, or none if that is 0.
    pub(crate) fn add(
        &mut self,
        code: &'static FindingCode,
        line: usize,
        message: impl Into<String>,
    ) {
        // The list is bounded, but keeps at least one finding of each kind.
        if self.list.len() < FINDINGS_MAX || !self.has(code) {
            self.list.push(Finding {
                code,
                line,
                message: message.into(),
            });
        }
    }

    /// Returns `true` if there is a finding of this kind.
    pub(crate) fn has(&self, code: &'static FindingCode) -> bool {
        self.list.iter().any(|finding| finding.code == code)
    }

    /// Removes all findings of a kind, for a caller that knows better.
    pub(crate) fn remove(&mut self, code: &'static FindingCode) {
        self.list.retain(|finding| finding.code != code);
    }

    /// Returns the problems that a profile reports, errors first, without a subject.
    pub fn problems(&self, profile: ValidationProfile) -> Vec<Problem> {
        let said = self.list.iter().filter_map(|finding| {
            let problem = match finding.code.severity(profile)? {
                Severity::Error => Problem::error(finding.code.name, &finding.message),
                Severity::Warning => Problem::warning(finding.code.name, &finding.message),
            };
            Some(problem.at(finding.line))
        });
        let mut problems: Vec<Problem> = said.collect();
        problems.sort_by_key(|problem| problem.severity != Severity::Error);
        problems
    }

    /// Returns `true` if a finding is an error under the profile.
    #[must_use]
    pub fn reject(&self, profile: ValidationProfile) -> bool {
        let mut severities = self
            .list
            .iter()
            .map(|finding| finding.code.severity(profile));
        severities.any(|severity| severity == Some(Severity::Error))
    }
}

/// Quotes a skill's own text for a message: cut, and without characters that a terminal would obey.
pub(crate) fn quote_excerpt(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_no_profile_is_laxer_than_the_default() {
        let mut names: Vec<&str> = ALL.iter().map(|code| code.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        for code in ALL {
            assert!(
                code.cure.ends_with('.') && code.cure.len() < 100,
                "{}",
                code.name
            );
            if code.lenient == Some(Severity::Error) {
                assert_eq!(code.spec, Some(Severity::Error), "{}", code.name);
            }
        }
    }

    #[test]
    fn findings_are_bounded_and_no_kind_is_lost() {
        let mut findings = Findings::default();
        for line in 0..1000 {
            findings.add(DUPLICATE_KEY, line, "x");
        }
        findings.add(NO_DESCRIPTION, 0, "x");
        let problems = findings.problems(ValidationProfile::Lenient);
        assert_eq!(problems.len(), FINDINGS_MAX + 1);
        assert_eq!(problems[0].code, "skill.no_description");
    }

    #[test]
    fn every_code_is_in_the_documentation() {
        let word = |severity: Option<Severity>| match severity {
            None => "–",
            Some(Severity::Warning) => "warning",
            Some(Severity::Error) => "error",
        };
        let row = |code: &&FindingCode| {
            let (lenient, spec) = (word(code.lenient), word(code.spec));
            format!("| `{}` | {lenient} | {spec} | {} |\n", code.name, code.cure)
        };
        let rows: String = ALL.iter().map(row).collect();
        let documentation = include_str!("../../../../docs/problems.md");
        assert!(
            documentation.contains(&rows),
            "docs/problems.md must have this table:\n{rows}"
        );
    }
}

//! Commands of a shell text, and what is between them.

/// Operator after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::catalogue::preflight) enum Joint {
    /// End of the list.
    End,
    /// `&&`
    And,
    /// `||`
    Or,
    /// `|`
    Pipe,
}

/// Word of a command, without its quotes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::catalogue::preflight) struct ShellWord {
    /// Text with expansions as they are written.
    pub(in crate::catalogue::preflight) text: String,
    /// `true` if some of it is only known when the command runs.
    pub(in crate::catalogue::preflight) is_dynamic: bool,
    /// `true` if some of it is quoted.
    pub(in crate::catalogue::preflight) is_quoted: bool,
}

/// Beginning or end of a part of a text, or a value of a variable, between two commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::catalogue::preflight) enum ShellMark {
    If,
    Then,
    Elif,
    Else,
    Fi,
    /// Pattern of `case`; `None` at the end of its commands.
    Case(Option<String>),
    OpenBrace,
    CloseBrace,
    Function(String),
    /// Name of a variable, and a value; a loop's variable has several.
    Value(String, ShellWord),
}

/// Condition that a comment states for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::catalogue::preflight) enum CommentSign {
    OtherSystem,
    Optional,
}

/// Simple command, or a test in `[[ ]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::catalogue::preflight) struct ShellCommand {
    /// Program and arguments; never empty.
    pub(in crate::catalogue::preflight) words: Vec<ShellWord>,
    /// Line of the first word.
    pub(in crate::catalogue::preflight) line: usize,
    /// Operator after the command.
    pub(in crate::catalogue::preflight) next: Joint,
    /// Index of the command that fails before this one runs: `this` in `that || this`.
    pub(in crate::catalogue::preflight) fallback_for: Option<usize>,
    /// `true` if the command is a condition of `if` or a loop, or in one.
    pub(in crate::catalogue::preflight) is_condition: bool,
    /// `true` after `!`, and in a test such as `[ -z "$(command)" ]`.
    pub(in crate::catalogue::preflight) is_negated: bool,
    /// Sign of a comment in the same line, or in one above it without an empty line between them.
    pub(in crate::catalogue::preflight) comment: Option<CommentSign>,
    /// `true` if the output goes to a file.
    pub(in crate::catalogue::preflight) keeps_output: bool,
    /// Body of a here document that the command reads.
    pub(in crate::catalogue::preflight) here_document: Option<String>,
}

/// Commands of a text, and what is between them.
#[derive(Debug, Default)]
pub(in crate::catalogue::preflight) struct ShellScript {
    pub(in crate::catalogue::preflight) commands: Vec<ShellCommand>,
    /// Marks, each with the number of commands before it.
    pub(in crate::catalogue::preflight) marks: Vec<(usize, ShellMark)>,
}

/// Returns the condition under which a text says that a command is needed.
pub(in crate::catalogue::preflight) fn sign_of_text(text: &str) -> Option<CommentSign> {
    let text = text.to_lowercase();
    let has = |signs: &[&str]| signs.iter().any(|sign| text.contains(sign));
    if has(&[
        "optional",
        "if available",
        "if installed",
        "if present",
        "if you have",
        "not needed",
        "not required",
    ]) {
        return Some(CommentSign::Optional);
    }
    let is_other = has(&[
        "macos",
        "mac os",
        "os x",
        "windows",
        "powershell",
        "homebrew",
    ]);
    let is_own = has(&["linux", "ubuntu", "debian", "fedora", "all platforms"]);
    (is_other && !is_own).then_some(CommentSign::OtherSystem)
}

//! Report of a host's checks: its lines, as text for people and as JSON for programs, and the exit code.

use serde::Serialize;

use crate::config::EXIT_CONFIG;

/// Exit code after a failed check.
const EXIT_FAILED: u8 = 1;
/// Width of the column of states: that of `warning`, and two spaces.
const STATE_WIDTH: usize = 9;
/// Largest width of the column of subjects. A longer subject moves its own finding only.
const SUBJECT_WIDTH_MAX: usize = 28;
/// Check that reports the faults of the configuration.
pub(super) const CONFIG_CHECK: &str = "config";
/// Check that finds a daemon which runs with this configuration. It is never a fault, and `--check` notes it.
pub(crate) const RUNNING_CHECK: &str = "daemon";

/// State of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// No action needed.
    Ok,
    /// The daemon works, with a loss that the finding names; or the check could not be made.
    Warning,
    /// The daemon does not start, or its users do not get what the configuration promises.
    Failed,
}

/// Result of one check. The names of its fields are those of the JSON output, and stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckLine {
    /// Stable name of the check, for programs.
    pub check: &'static str,
    /// State of the check.
    pub state: CheckState,
    /// Part of the host or of the configuration that was checked.
    pub subject: String,
    /// Finding, with its values.
    pub finding: String,
    /// Action for the operator; `None` exactly if the state is [`CheckState::Ok`].
    pub remedy: Option<String>,
}

/// Report of all checks.
#[derive(Debug, Clone, Serialize)]
pub struct DoctorReport {
    /// Version of the program that made the report.
    version: &'static str,
    /// Number of checks without a finding.
    ok: usize,
    /// Number of warnings.
    warnings: usize,
    /// Number of failed checks.
    failed: usize,
    checks: Vec<CheckLine>,
}

// === impl CheckState ===

impl CheckState {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

// === impl CheckLine ===

impl CheckLine {
    /// Makes a line about something that needs no action.
    pub(crate) fn ok(
        check: &'static str,
        subject: impl Into<String>,
        finding: impl Into<String>,
    ) -> Self {
        Self {
            check,
            state: CheckState::Ok,
            subject: subject.into(),
            finding: finding.into(),
            remedy: None,
        }
    }

    /// Makes a warning.
    pub(crate) fn warning(
        check: &'static str,
        subject: impl Into<String>,
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            state: CheckState::Warning,
            remedy: Some(remedy.into()),
            ..Self::ok(check, subject, finding)
        }
    }

    /// Makes a line about a failed check.
    pub(crate) fn failed(
        check: &'static str,
        subject: impl Into<String>,
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            state: CheckState::Failed,
            ..Self::warning(check, subject, finding, remedy)
        }
    }

    /// Returns finding and remedy as one line for stderr; `None` if there is nothing to say.
    pub fn complaint(&self) -> Option<String> {
        let level = match self.state {
            CheckState::Failed => "error",
            CheckState::Warning => "warning",
            CheckState::Ok if self.check == RUNNING_CHECK => "note",
            CheckState::Ok => return None,
        };
        let remedy = self.remedy.as_ref().map(|remedy| format!("; {remedy}"));
        let (subject, finding) = (&self.subject, &self.finding);
        let line = format!(
            "{level}: {subject}: {finding}{}",
            remedy.unwrap_or_default()
        );
        Some(escape_controls(&line))
    }
}

// === impl DoctorReport ===

impl DoctorReport {
    /// Makes the report of these lines.
    pub(super) fn new(checks: Vec<CheckLine>) -> Self {
        let count = |state| checks.iter().filter(|line| line.state == state).count();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            ok: count(CheckState::Ok),
            warnings: count(CheckState::Warning),
            failed: count(CheckState::Failed),
            checks,
        }
    }

    /// Returns the exit code: 64 if the configuration is wrong, 1 if another check failed, and 0 otherwise. Warnings do
    /// not change it.
    pub fn exit_code(&self) -> u8 {
        let failed = |line: &&CheckLine| line.state == CheckState::Failed;
        let mut failed = self.checks.iter().filter(failed).peekable();
        if failed.peek().is_none() {
            return 0;
        }
        match failed.any(|line| line.check == CONFIG_CHECK) {
            true => EXIT_CONFIG,
            false => EXIT_FAILED,
        }
    }

    /// Returns the report as one JSON document.
    pub fn to_json(&self) -> String {
        // Strings and numbers always serialize.
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        text + "\n"
    }

    /// Returns the report as text: one line per check, a second one with its remedy, and the totals.
    pub fn to_text(&self) -> String {
        let widths = self.checks.iter().map(|line| line.subject.chars().count());
        let width = widths
            .filter(|width| *width <= SUBJECT_WIDTH_MAX)
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        for line in &self.checks {
            let (state, subject) = (line.state.name(), escape_controls(&line.subject));
            let finding = escape_controls(&line.finding);
            text += &format!("{state:STATE_WIDTH$}{subject:width$}  {finding}\n");
            if let Some(remedy) = &line.remedy {
                text += &format!("{:STATE_WIDTH$}remedy: {}\n", "", escape_controls(remedy));
            }
        }
        text += &format!(
            "ok {}, warning {}, failed {}\n",
            self.ok, self.warnings, self.failed
        );
        text
    }
}

/// Escapes control characters, so that no name of the host can forge a line or control a terminal.
fn escape_controls(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            escaped.extend(char.escape_default());
        } else {
            escaped.push(char);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lines: &[CheckLine]) -> DoctorReport {
        DoctorReport::new(lines.to_vec())
    }

    #[test]
    fn exit_code_follows_the_worst_line_and_warnings_do_not_count() {
        let ok = CheckLine::ok("a", "a", "fine");
        let warning = CheckLine::warning("b", "b", "odd", "run x");
        let failed = CheckLine::failed("c", "c", "bad", "run y");
        let config = CheckLine::failed(CONFIG_CHECK, "configuration", "bad", "correct it");
        for (lines, code) in [
            (&[][..], 0),
            (&[ok.clone(), warning.clone()], 0),
            (&[warning, failed.clone()], 1),
            (&[failed.clone(), config.clone()], 64),
            (&[config, failed], 64),
        ] {
            assert_eq!(report(lines).exit_code(), code, "{lines:?}");
        }
    }

    #[test]
    fn text_has_columns_and_remedies_and_no_control_characters() {
        let subject = "/srv/\u{1b}[2J\nok";
        let lines = [
            CheckLine::ok("kernel", "a longer subject", "Linux 6.1"),
            CheckLine::warning("root", subject, "é\r", "run `rm\0`"),
        ];
        let expected = [
            "ok       a longer subject  Linux 6.1",
            "warning  /srv/\\u{1b}[2J\\nok  é\\r",
            "         remedy: run `rm\\u{0}`",
            "ok 1, warning 1, failed 0",
            "",
        ];
        assert_eq!(report(&lines).to_text(), expected.join("\n"));
    }

    #[test]
    fn json_has_stable_names_and_a_null_remedy_for_ok() {
        let lines = [
            CheckLine::ok("kernel", "kernel", "Linux"),
            CheckLine::failed("guest", "guest", "\u{1b}", "run x"),
        ];
        let json: serde_json::Value =
            serde_json::from_str(&report(&lines).to_json()).expect("JSON");
        let expected = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"), "ok": 1, "warnings": 0, "failed": 1,
            "checks": [
                {"check": "kernel", "state": "ok", "subject": "kernel", "finding": "Linux", "remedy": null},
                {"check": "guest", "state": "failed", "subject": "guest", "finding": "\u{1b}", "remedy": "run x"},
            ],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn complaints_have_finding_and_remedy_in_one_line() {
        assert_eq!(CheckLine::ok("a", "a", "fine").complaint(), None);
        let failed = CheckLine::failed("a", "/x\n", "is gone", "run y");
        assert_eq!(
            failed.complaint().as_deref(),
            Some("error: /x\\n: is gone; run y")
        );
        let warning = CheckLine::warning("a", "b", "c", "d");
        assert_eq!(warning.complaint().as_deref(), Some("warning: b: c; d"));
    }
}

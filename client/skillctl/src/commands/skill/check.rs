//! `skillctl skill check`: what a skill needs that a pool's image does not have.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::Client;
use skilld_client::v1::NeedKind;
use skilld_client::v1::{PreflightFinding, PreflightSkillRequest, PreflightSkillResponse};

use crate::commands::complete;
use crate::output::{self, value_formats};

/// Compare what a skill's files name with what a pool's image has. Runs nothing of the skill.
///
/// Exit code 1 if something is missing that the skill says it needs; what is only concluded from its files is a
/// warning. A skill of which nothing missing was found may still need more.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill check csv-report --env API_KEY")]
pub(crate) struct Check {
    /// name, name@version or name@sha256:DIGEST.
    #[arg(add = ArgValueCompleter::new(complete::offer_skills))]
    name: String,
    /// The server's default if left out.
    #[arg(long, default_value = "", hide_default_value = true)]
    pool: String,
    /// An environment variable that the command will have; may be repeated.
    #[arg(long, value_name = "NAME")]
    env: Vec<String>,
}

impl Check {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = PreflightSkillRequest {
            name: self.name.clone(),
            pool: self.pool,
            env_names: self.env,
        };
        let answer = client.preflight_skill(request).await?;
        output::print_message(&answer, &finding_table(&answer))?;
        if !output::is_json() {
            let found = match (answer.findings.is_empty(), answer.ready) {
                (true, _) => "nothing missing found",
                (false, true) => "nothing missing found that it states",
                (false, false) => "it states needs that are missing",
            };
            output::note!("{} in {}: {found}", self.name, answer.image);
        }
        Ok(u8::from(!answer.ready))
    }
}

fn finding_table(answer: &PreflightSkillResponse) -> String {
    if answer.findings.is_empty() {
        return String::new();
    }
    let rows = answer.findings.iter().map(|finding| {
        [
            value_formats::enum_words(finding.severity().as_str_name(), "PROBLEM_SEVERITY_"),
            finding_kind(finding).to_owned(),
            finding.name.clone(),
            finding.source.clone(),
            finding.message.clone(),
        ]
    });
    output::text_table(
        ["SEVERITY", "MISSING", "NAME", "SOURCE", "WHAT TO DO"],
        rows,
    )
}

fn finding_kind(finding: &PreflightFinding) -> &'static str {
    match finding.kind() {
        NeedKind::Interpreter => "interpreter",
        NeedKind::Binary => "program",
        NeedKind::AnyBinary => "one of these programs",
        NeedKind::Env => "variable",
        NeedKind::PythonPackage => "Python package",
        NeedKind::NodePackage => "Node.js package",
        NeedKind::Network => "network",
        NeedKind::Unspecified => "other",
    }
}

/// Notes on stderr the requirements that the skill itself names and that are missing. Returns their messages.
pub(crate) fn note_missing(answer: &PreflightSkillResponse) -> Vec<String> {
    use skilld_client::v1::ProblemSeverity;
    let findings = answer.findings.iter();
    let errors = findings.filter(|finding| finding.severity() == ProblemSeverity::Error);
    let noted = errors.map(|finding| {
        output::print_note(&format!("{} ({})", finding.message, finding.source));
        finding.message.clone()
    });
    noted.collect()
}

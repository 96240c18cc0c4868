//! `skillctl skill check`: what a skill needs that a pool's image does not have.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::v1::preflight_finding::Kind;
use skilld_client::v1::{PreflightFinding, PreflightSkillRequest, PreflightSkillResponse};

use crate::context::Context;
use crate::output::{self, Table};
use crate::{complete, values};

/// Compare what a skill needs with what a pool's image has. Runs nothing of the skill.
///
/// Exit code 1 if something is missing that the skill says it needs; what is only concluded from its files is a
/// warning.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill check csv-report --env API_KEY")]
pub(crate) struct Check {
    /// name, name@version or name@sha256:DIGEST.
    #[arg(add = ArgValueCompleter::new(complete::skills))]
    name: String,
    /// The server's default if left out.
    #[arg(long, default_value = "", hide_default_value = true)]
    pool: String,
    /// An environment variable that the command will have; may be repeated.
    #[arg(long, value_name = "NAME")]
    env: Vec<String>,
}

impl Check {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let request = PreflightSkillRequest {
            name: self.name.clone(),
            pool: self.pool,
            env: self.env,
        };
        let answer = context.client.preflight_skill(request).await?;
        context
            .output
            .message("PreflightSkillResponse", &answer, text)?;
        if !context.output.is_json() {
            let ready = if answer.ready { "ready" } else { "not ready" };
            output::note(&format!("{} is {ready} for {}", self.name, answer.image));
        }
        Ok(u8::from(!answer.ready))
    }
}

fn text(answer: &PreflightSkillResponse) -> String {
    if answer.findings.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["SEVERITY", "MISSING", "NAME", "SOURCE", "WHAT TO DO"]);
    for finding in &answer.findings {
        table.row([
            values::word(finding.severity().as_str_name(), "SEVERITY_"),
            kind(finding).to_owned(),
            finding.name.clone(),
            finding.source.clone(),
            finding.message.clone(),
        ]);
    }
    table.text()
}

fn kind(finding: &PreflightFinding) -> &'static str {
    match finding.kind() {
        Kind::Interpreter => "interpreter",
        Kind::Binary => "program",
        Kind::AnyBinary => "one of these programs",
        Kind::Env => "variable",
        Kind::PythonPackage => "Python package",
        Kind::NodePackage => "Node.js package",
        Kind::Network => "network",
        Kind::Unspecified => "other",
    }
}

/// What a run should know before it starts, a line each: what the skill itself says that it needs.
pub(crate) fn notes(answer: &PreflightSkillResponse) -> Vec<String> {
    use skilld_client::v1::problem::Severity;
    let errors = answer
        .findings
        .iter()
        .filter(|finding| finding.severity() == Severity::Error);
    errors
        .map(|finding| format!("{} ({})", finding.message, finding.source))
        .collect()
}

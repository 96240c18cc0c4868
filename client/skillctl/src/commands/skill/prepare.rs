//! `skillctl skill prepare`: builds the packages that a skill needs beyond its image.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::Client;
use skilld_client::v1::ProblemSeverity;
use skilld_client::v1::prepare_skill_response::Payload;
use skilld_client::v1::{PrepareSkillRequest, PreparedSkill, Problem, SkillEnvironment};

use super::problem_lines;
use crate::commands::complete;
use crate::output::{self, value_formats};

/// Install the packages that a skill needs and that a pool's image lacks, ahead of its use.
///
/// A skill names packages in requirements.txt, pyproject.toml, a script's inline metadata (PEP 723) or package.json. The
/// daemon builds them into an environment of the skill, from the sources that its configuration names
/// (skills.wheelhouse, skills.package_index, skills.node_package_index), and keeps it for all workspaces: an environment
/// that exists is not built again without --rebuild, a build that failed is repeated. The output of the build is on
/// stderr. Interrupting this command does not end the build. Exit code 1 if the packages could not be installed.
///
/// For a skill that names none, or not all that it needs, add packages with --package and --npm. The daemon remembers
/// them for the skill's name, also if they cannot be installed: they count in all workspaces, as if the skill named them.
/// Without these options it keeps those that it remembers; with them it replaces them; --no-packages forgets them.
///
/// `skillctl skill check` shows what a pool's image lacks for a skill, and installs nothing.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl skill prepare csv-report
  skillctl skill prepare csv-report --rebuild
  skillctl skill prepare queue-model --package simpy --package 'pandas>=2,<3'
  skillctl skill prepare letters --npm docx@^9 --npm @scope/name --pool office
  skillctl skill prepare queue-model --no-packages")]
pub(crate) struct Prepare {
    /// name, name@version or name@sha256:DIGEST.
    #[arg(add = ArgValueCompleter::new(complete::offer_skills))]
    name: String,
    /// Pool in whose workspaces the skill will be used; the server's default if left out.
    #[arg(long, default_value = "", hide_default_value = true)]
    pool: String,
    /// Build it again if it exists, from the packages of today. Workspaces get the result when they stage the skill
    /// again.
    #[arg(long)]
    rebuild: bool,
    /// Python package to add to those that the skill names: NAME, or NAME with versions such as 'pandas>=2,<3'. May be
    /// repeated.
    #[arg(long = "package", value_name = "REQUIREMENT")]
    packages: Vec<String>,
    /// Node.js package to add: NAME or NAME@VERSIONS. May be repeated.
    #[arg(long = "npm", value_name = "PACKAGE")]
    npm_packages: Vec<String>,
    /// Forget the packages that were added to the skill.
    #[arg(long, conflicts_with_all = ["packages", "npm_packages"])]
    no_packages: bool,
}

impl Prepare {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = PrepareSkillRequest {
            name: self.name.clone(),
            pool: self.pool,
            rebuild: self.rebuild,
            packages: self.packages,
            npm_packages: self.npm_packages,
            forget_packages: self.no_packages,
        };
        let mut messages = client.prepare_skill(request).await?;
        while let Some(message) = messages.message().await? {
            match message.payload {
                Some(Payload::Line(line)) => output::note!("{line}"),
                Some(Payload::Result(result)) => return print_result(&self.name, &result),
                None => {}
            }
        }
        anyhow::bail!(
            "the daemon ended the build of {} without a result: try again",
            self.name
        )
    }
}

fn print_result(name: &str, result: &PreparedSkill) -> anyhow::Result<u8> {
    let table = result.environment.as_ref().map(package_table);
    output::print_message(result, &table.unwrap_or_default())?;
    if !result.added_packages.is_empty() && !output::is_json() {
        let added = result.added_packages.join(", ");
        output::note!("packages that were added to those that {name} names: {added}");
    }
    output::print_text_notes(&problem_lines(&result.problems));
    // Warnings are about packages that are installed.
    let is_error = |problem: &Problem| problem.severity() != ProblemSeverity::Warning;
    if result.problems.iter().any(is_error) {
        return Ok(1);
    }
    if !output::is_json() {
        match &result.environment {
            None => output::note!(
                "{name} names no packages, so there is nothing to install: if its SKILL.md says to install some, add them \
                 with --package NAME (Python) and --npm NAME (Node.js)"
            ),
            Some(built) => output::note!(
                "the packages of {name} are installed: {} files, {}",
                built.file_count,
                value_formats::format_size(built.size_bytes)
            ),
        }
    }
    Ok(0)
}

fn package_table(environment: &SkillEnvironment) -> String {
    let row = |origin: &'static str| {
        move |package: &skilld_client::v1::SkillPackage| {
            [
                package.name.clone(),
                package.version.clone(),
                origin.to_owned(),
            ]
        }
    };
    let built = environment.packages.iter().map(row("environment"));
    let provided = environment.image_packages.iter().map(row("image"));
    output::text_table(["PACKAGE", "VERSION", "FROM"], built.chain(provided))
}

//! `skillctl skill`: lists, shows, reads, searches, checks, prepares and publishes skills.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::v1::{ListSkillsRequest, ListSkillsResponse, Problem, Skill as Message};
use skilld_client::{Client, Error, short_id};
use skilld_common::excerpts::cut_chars;

use crate::commands::command_group::command_group;
use crate::commands::complete;
use crate::output::{self, value_formats};
use crate::terminal::safe_text::plain_line;

pub(crate) mod check;
mod prepare;
mod publish;
mod read;

pub(crate) use read::print_problems;

command_group! {
    /// List, show, read, search, check, prepare and publish skills.
    #[command(after_help = "Example:\n  skillctl skill list")]
    Skill {
        /// List the skills that the daemon knows.
        #[command(visible_alias = "ls", after_help = "Example:\n  skillctl skill list")]
        List => list_skills,
        Show(Show),
        Files(read::Files),
        Read(read::Read),
        Search(read::Search),
        /// Show what is wrong with skills and roots, and what to do about it. Exits with 1 if one of the problems is an
        /// error.
        #[command(after_help = "Example:\n  skillctl skill problems")]
        Problems => read::print_all_problems,
        Check(check::Check),
        Prepare(prepare::Prepare),
        Publish(publish::Publish),
        #[command(visible_alias = "rm")]
        Delete(publish::Delete),
        /// Read all roots again, remote ones from their servers.
        ///
        /// Exit code 1 if a root cannot be read, or is still being fetched when the daemon has to answer: what it had
        /// before is there, and what is being fetched comes by itself.
        #[command(after_help = "Example:\n  skillctl skill refresh")]
        Refresh => publish::refresh_skills,
    }
}

/// Show one skill: what it is for and how to use it.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill show csv-report")]
pub(crate) struct Show {
    /// name, name@version or name@sha256:DIGEST.
    #[arg(add = ArgValueCompleter::new(complete::offer_skills))]
    name: String,
}

/// Prints the skills of the daemon and the problems of its roots.
async fn list_skills(client: &Client) -> anyhow::Result<u8> {
    let all = list_all_skills(client).await?;
    let header = ["NAME", "VERSION", "STATE", "DESCRIPTION"];
    let id = |skill: &Message| short_id(&skill.name);
    let row = |skill: &Message| {
        [
            id(skill),
            skill.version.clone(),
            skill_state(skill),
            description_summary(&skill.description),
        ]
    };
    output::print_list(&all, &all.skills, id, header, row)?;
    output::print_text_notes(&problem_lines(&all.problems));
    Ok(0)
}

impl Show {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let skill = client.get_skill(&self.name).await?;
        output::print_message(&skill, &skill_details(&skill))
    }
}

/// Lists the skills of all pages, and the problems of roots.
async fn list_all_skills(client: &Client) -> Result<ListSkillsResponse, Error> {
    client.read_all_pages(ListSkillsRequest::default()).await
}

fn skill_state(skill: &Message) -> String {
    value_formats::enum_words(skill.state().as_str_name(), "SKILL_STATE_")
}

/// Joins the lines of a skill's description, which may be folded or written in paragraphs.
fn one_line(description: &str) -> String {
    description.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the first 80 characters of a skill's description, on one line.
fn description_summary(description: &str) -> String {
    const CHARS_MAX: usize = 80;
    cut_chars(&one_line(description), CHARS_MAX)
}

/// Returns each problem of a skill or root as a line of text.
pub(crate) fn problem_lines(problems: &[Problem]) -> Vec<String> {
    let lines = problems.iter().map(|problem| {
        let severity =
            value_formats::enum_words(problem.severity().as_str_name(), "PROBLEM_SEVERITY_");
        let line = match problem.line {
            0 => String::new(),
            line => format!(":{line}"),
        };
        let place = match problem.subject.as_str() {
            "" => line,
            subject => format!(" {subject}{line}"),
        };
        plain_line(&format!(
            "{severity} {}{place}: {}",
            problem.code, problem.message
        ))
    });
    lines.collect()
}

fn skill_details(skill: &Message) -> String {
    let size = value_formats::format_size(skill.size_bytes);
    let mut fields = vec![
        ("name", short_id(&skill.name)),
        ("description", one_line(&skill.description)),
        ("version", skill.version.clone()),
        ("state", skill_state(skill)),
        ("digest", skill.digest.clone()),
        ("size", format!("{} files, {size}", skill.file_count)),
        ("root", skill.root.clone()),
        ("tags", skill.tags.join(", ")),
        ("author", skill.author.clone()),
        ("license", skill.license.clone()),
        ("compatibility", skill.compatibility.clone()),
        ("tools", skill.tools.join(", ")),
    ];
    let problems = problem_lines(&skill.problems).into_iter();
    fields.extend(problems.map(|problem| ("problem", problem)));
    let mut text = output::text_fields(&fields);
    if !skill.body.is_empty() {
        text.push('\n');
        text.push_str(skill.body.trim_end());
        text.push('\n');
    }
    text
}

//! `skillctl skill`: what can be staged.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use skilld_client::short_id;
use skilld_client::v1::{ListSkillsRequest, ListSkillsResponse, Problem, Skill as Message};

use crate::context::Context;
use crate::output::{self, Table};
use crate::{complete, values};

mod changing;
pub(crate) mod check;
mod reading;

/// List, show, read, search, check and publish skills.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  skillctl skill list")]
pub(crate) enum Skill {
    #[command(visible_alias = "ls")]
    List(List),
    Show(Show),
    Files(reading::Files),
    Read(reading::Read),
    Search(reading::Search),
    Problems(reading::Problems),
    Check(check::Check),
    Publish(changing::Publish),
    #[command(visible_alias = "rm")]
    Delete(changing::Delete),
    Refresh(changing::Refresh),
}

/// List the skills that the daemon knows.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill list")]
pub(crate) struct List {}

/// Show one skill: what it is for and how to use it.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill show csv-report")]
pub(crate) struct Show {
    /// name, name@version or name@sha256:DIGEST.
    #[arg(add = ArgValueCompleter::new(complete::skills))]
    name: String,
}

impl Skill {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        match self {
            Self::List(List {}) => list(context).await,
            Self::Show(Show { name }) => {
                let skill = context.client.get_skill(&name).await?;
                context.output.message("Skill", &skill, details)?;
                Ok(0)
            }
            Self::Files(command) => command.run(context).await,
            Self::Read(command) => command.run(context).await,
            Self::Search(command) => command.run(context).await,
            Self::Problems(command) => command.run(context).await,
            Self::Check(command) => command.run(context).await,
            Self::Publish(command) => command.run(context).await,
            Self::Delete(command) => command.run(context).await,
            Self::Refresh(command) => command.run(context).await,
        }
    }
}

/// All pages.
async fn everything(context: &Context) -> anyhow::Result<ListSkillsResponse> {
    let mut all = ListSkillsResponse::default();
    let mut request = ListSkillsRequest {
        page_size: 1000,
        ..Default::default()
    };
    loop {
        let page = context.client.list_skills(request.clone()).await?;
        all.skills.extend(page.skills);
        all.problems.extend(page.problems);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    Ok(all)
}

async fn list(context: &Context) -> anyhow::Result<u8> {
    let all = everything(context).await?;
    let ids = |all: &ListSkillsResponse| {
        let skills = all.skills.iter().map(|skill| short_id(&skill.name));
        skills.collect()
    };
    context
        .output
        .list("ListSkillsResponse", &all, ids, |all| {
            let mut table = Table::new(["NAME", "VERSION", "STATE", "DESCRIPTION"]);
            for skill in &all.skills {
                table.row([
                    short_id(&skill.name),
                    skill.version.clone(),
                    state(skill),
                    summary(&skill.description),
                ]);
            }
            table.text()
        })?;
    if !context.output.is_json() {
        for problem in problems(&all.problems) {
            output::note(&problem);
        }
    }
    Ok(0)
}

fn state(skill: &Message) -> String {
    values::word(skill.state().as_str_name(), "SKILL_STATE_")
}

/// A description may be folded or written in paragraphs.
fn one_line(description: &str) -> String {
    description.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// As much of a description as a line has room for.
fn summary(description: &str) -> String {
    const CHARS_MAX: usize = 80;
    let line = one_line(description);
    match line.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// Each problem on a line of its own.
pub(crate) fn problems(problems: &[Problem]) -> Vec<String> {
    let lines = problems.iter().map(|problem| {
        let severity = values::word(problem.severity().as_str_name(), "SEVERITY_");
        let line = match problem.line {
            0 => String::new(),
            line => format!(":{line}"),
        };
        output::plain_line(&format!(
            "{severity} {} {}{line}: {}",
            problem.code, problem.subject, problem.message
        ))
    });
    lines.collect()
}

fn details(skill: &Message) -> String {
    let size = values::bytes(u64::try_from(skill.bytes).unwrap_or(0));
    let mut fields = vec![
        ("name", short_id(&skill.name)),
        ("description", one_line(&skill.description)),
        ("version", skill.version.clone()),
        ("state", state(skill)),
        ("digest", skill.digest.clone()),
        ("size", format!("{} files, {size}", skill.files)),
        ("root", skill.root.clone()),
        ("tags", skill.tags.join(", ")),
        ("author", skill.author.clone()),
        ("license", skill.license.clone()),
        ("compatibility", skill.compatibility.clone()),
        ("tools", skill.tools.join(", ")),
    ];
    let problems = problems(&skill.problems).into_iter();
    fields.extend(problems.map(|problem| ("problem", problem)));
    let mut text = output::fields(&fields);
    if !skill.body.is_empty() {
        text.push('\n');
        text.push_str(skill.body.trim_end());
        text.push('\n');
    }
    text
}

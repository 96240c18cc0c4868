//! `skillctl skill files`, `read`, `search` and `problems`: shows files of a skill, and finds skills and their
//! problems.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::v1::ProblemSeverity;
use skilld_client::v1::SkillFileKind;
use skilld_client::v1::{
    ListProblemsResponse, ListSkillFilesRequest, ReadSkillFileRequest, SearchSkillsRequest,
    SkillFile, SkillScoring,
};
use skilld_client::{Client, short_id};

use super::{description_summary, list_all_skills, problem_lines};
use crate::commands::complete;
use crate::output::download::print_download;
use crate::output::{self, value_formats};

/// List the files of a skill.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill files csv-report scripts")]
pub(crate) struct Files {
    /// name, name@version or name@sha256:DIGEST.
    #[arg(add = ArgValueCompleter::new(complete::offer_skills))]
    name: String,
    /// Folder to list; all files if left out.
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
}

/// Print a file of a skill, byte for byte; with -o json its text and its base64.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill read csv-report SKILL.md | head -3")]
pub(crate) struct Read {
    /// name, name@version or name@sha256:DIGEST.
    #[arg(add = ArgValueCompleter::new(complete::offer_skills))]
    name: String,
    /// Relative to the skill's root. Case matters only where two files differ in nothing else.
    path: String,
    /// First byte to print.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    offset: i64,
    /// Maximum number of bytes; 0 reads to the end.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = value_formats::parse_size)]
    length: i64,
}

/// Find skills by words in their names, descriptions and tags, best first.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill search fill in pdf forms")]
pub(crate) struct Search {
    #[arg(required = true)]
    words: Vec<String>,
    /// Maximum number of results; the server's default is 25.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    limit: i32,
    /// Score as Agent Zero does: 3, 2 or 1 for each word that is part of name, description or a tag.
    #[arg(long)]
    compat: bool,
}

impl Files {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = ListSkillFilesRequest {
            parent: self.name,
            path: self.path,
            ..Default::default()
        };
        let all = client.read_all_pages(request).await?;
        let rows = all.files.iter().map(|file| {
            let size = file.size_bytes.to_string();
            [
                file_kind(file),
                size,
                file.mime_type.clone(),
                file.path.clone(),
            ]
        });
        let table = output::text_table(["KIND", "SIZE", "TYPE", "PATH"], rows);
        output::print_message(&all, &table)
    }
}

fn file_kind(file: &SkillFile) -> String {
    match file.kind() {
        SkillFileKind::Document => "document",
        SkillFileKind::Script => "script",
        SkillFileKind::Reference => "reference",
        SkillFileKind::Asset => "asset",
        SkillFileKind::Other | SkillFileKind::Unspecified => "other",
    }
    .to_owned()
}

impl Read {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = ReadSkillFileRequest {
            name: self.name,
            path: self.path.clone(),
            offset: self.offset,
            length: self.length,
            // Byte for byte.
            workspace_paths: false,
            ..ReadSkillFileRequest::default()
        };
        let file = client.read_skill_file(request).await?;
        let path = file.header().path.clone();
        if path.to_lowercase() == self.path.to_lowercase() && path != self.path {
            output::note!("this is {path}");
        }
        print_download(file, &path).await
    }
}

impl Search {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let scoring = match self.compat {
            true => SkillScoring::AgentZero,
            false => SkillScoring::Relevance,
        };
        let request = SearchSkillsRequest {
            query: self.words.join(" "),
            page_size: self.limit,
            scoring: scoring.into(),
            ..SearchSkillsRequest::default()
        };
        let found = client.search_skills(request).await?;
        if found.matches.is_empty() && !output::is_json() {
            output::note!("no skill has to do with that; `skillctl skill list` shows all");
            return Ok(0);
        }
        let rows = found.matches.iter().map(|found| {
            let skill = found.skill.clone().unwrap_or_default();
            [
                short_id(&skill.name),
                format!("{:.2}", found.score),
                found.matched_fields.join(","),
                description_summary(&skill.description),
            ]
        });
        let table = output::text_table(["NAME", "SCORE", "MATCHED", "DESCRIPTION"], rows);
        output::print_message(&found, &table)
    }
}

/// Prints the problems of skills and roots; returns the exit code.
pub(crate) async fn print_all_problems(client: &Client) -> anyhow::Result<u8> {
    let all = list_all_skills(client).await?;
    let of_skills = all.skills.into_iter().flat_map(|skill| skill.problems);
    let all = ListProblemsResponse {
        problems: all.problems.into_iter().chain(of_skills).collect(),
        ..ListProblemsResponse::default()
    };
    print_problems(&all)
}

/// Prints problems; returns the exit code, 1 if one of them is an error.
pub(crate) fn print_problems(answer: &ListProblemsResponse) -> anyhow::Result<u8> {
    let text = match problem_lines(&answer.problems) {
        lines if lines.is_empty() => "no problems\n".to_owned(),
        lines => output::text_lines(lines.iter()),
    };
    output::print_message(answer, &text)?;
    let mut problems = answer.problems.iter();
    let failed = problems.any(|problem| problem.severity() == ProblemSeverity::Error);
    Ok(u8::from(failed))
}

//! `skillctl skill files`, `read`, `search` and `problems`.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::short_id;
use skilld_client::v1::skill_file::Kind;
use skilld_client::v1::{
    GetProblemsResponse, ListSkillFilesRequest, ListSkillFilesResponse, ReadSkillFileRequest,
    SearchSkillsRequest, SkillFile,
};
use tokio::io::AsyncWriteExt;

use super::{everything, problems, summary};
use crate::context::Context;
use crate::files::FileContents;
use crate::output::{self, Table};
use crate::{complete, values};

/// List the files of a skill.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill files csv-report scripts")]
pub(crate) struct Files {
    /// name, name@version or name@sha256:DIGEST.
    #[arg(add = ArgValueCompleter::new(complete::skills))]
    name: String,
    /// Only beneath this folder.
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
}

/// Print a file of a skill, byte for byte; with -o json its text and its base64.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill read csv-report SKILL.md | head -3")]
pub(crate) struct Read {
    /// name, name@version or name@sha256:DIGEST.
    #[arg(add = ArgValueCompleter::new(complete::skills))]
    name: String,
    /// Relative to the skill's root. Case matters only where two files differ in nothing else.
    path: String,
    /// First byte to print.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    offset: i64,
    /// At most this many bytes; 0 means to the end.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = values::size)]
    length: i64,
}

/// Find skills by words in their names, descriptions and tags, best first.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill search fill in pdf forms")]
pub(crate) struct Search {
    #[arg(required = true)]
    words: Vec<String>,
    /// At most this many; the server's default is 25.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    limit: i32,
    /// Score as Agent Zero does: 3, 2 or 1 for each word that is part of name, description or a tag.
    #[arg(long)]
    compat: bool,
}

/// Show what is wrong with skills and roots, and what to do about it.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl skill problems")]
pub(crate) struct Problems {}

impl Files {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let mut all = ListSkillFilesResponse::default();
        let mut request = ListSkillFilesRequest {
            name: self.name,
            path: self.path,
            page_size: 10_000,
            ..Default::default()
        };
        loop {
            let page = context.client.list_skill_files(request.clone()).await?;
            all.files.extend(page.files);
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        let text = |all: &ListSkillFilesResponse| {
            let mut table = Table::new(["KIND", "SIZE", "TYPE", "PATH"]);
            for file in &all.files {
                let size = file.size.to_string();
                table.row([kind(file), size, file.mime_type.clone(), file.path.clone()]);
            }
            table.text()
        };
        context
            .output
            .message("ListSkillFilesResponse", &all, text)?;
        Ok(0)
    }
}

fn kind(file: &SkillFile) -> String {
    match file.kind() {
        Kind::Document => "document",
        Kind::Script => "script",
        Kind::Reference => "reference",
        Kind::Asset => "asset",
        Kind::Other | Kind::Unspecified => "other",
    }
    .to_owned()
}

impl Read {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let request = ReadSkillFileRequest {
            name: self.name,
            path: self.path.clone(),
            offset: self.offset,
            length: self.length,
            // Byte for byte.
            workspace_paths: false,
        };
        let mut reader = context.client.read_skill_file(request).await?;
        let path = &reader.file().path;
        if path.to_lowercase() == self.path.to_lowercase() && *path != self.path {
            output::note(&format!("this is {path}"));
        }
        if context.output.is_json() {
            let path = path.clone();
            let mut contents = FileContents::default();
            while let Some(data) = reader.next().await? {
                contents.add(&data)?;
            }
            return contents.print(context, &path);
        }
        let mut stdout = tokio::io::stdout();
        while let Some(data) = reader.next().await? {
            stdout.write_all(&data).await?;
        }
        stdout.flush().await?;
        Ok(0)
    }
}

impl Search {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let request = SearchSkillsRequest {
            query: self.words.join(" "),
            limit: self.limit,
            compat: self.compat,
        };
        let found = context.client.search_skills(request).await?;
        if found.matches.is_empty() && !context.output.is_json() {
            output::note("no skill has to do with that; `skillctl skill list` shows all");
            return Ok(0);
        }
        context
            .output
            .message("SearchSkillsResponse", &found, |found| {
                let mut table = Table::new(["NAME", "SCORE", "MATCHED", "DESCRIPTION"]);
                for found in &found.matches {
                    let skill = found.skill.clone().unwrap_or_default();
                    table.row([
                        short_id(&skill.name),
                        format!("{:.2}", found.score),
                        found.matched_fields.join(","),
                        summary(&skill.description),
                    ]);
                }
                table.text()
            })?;
        Ok(0)
    }
}

impl Problems {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let all = everything(context).await?;
        let of_skills = all.skills.into_iter().flat_map(|skill| skill.problems);
        let all = GetProblemsResponse {
            problems: all.problems.into_iter().chain(of_skills).collect(),
        };
        if all.problems.is_empty() && !context.output.is_json() {
            output::note("no problems");
            return Ok(0);
        }
        context.output.message("GetProblemsResponse", &all, |all| {
            let lines = problems(&all.problems).into_iter();
            lines.map(|line| line + "\n").collect()
        })?;
        Ok(0)
    }
}

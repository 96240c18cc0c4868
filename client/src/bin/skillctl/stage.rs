//! `skillctl stage`, and sending inputs for `run`.

use clap::Args;
use skilld_client::v1::{StageFilesResponse, StageSkillsResponse};
use skilld_client::{Client, Error, StageTarget};

use crate::context::Context;
use crate::progress::Bar;
use crate::values::{self, Input};

/// Put skills and files into a workspace.
///
/// Skills become read-only directories beneath skills/. A file becomes DEST, a directory a directory DEST with
/// everything in it; `-` is stdin. DEST is relative to the workspace, a DEST that ends with / is a directory to
/// put it into, and without one it goes to work/inputs/.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl stage job-7 --skill csv-report sales.csv data/=work/data -=work/notes.txt < notes.txt")]
pub(crate) struct Stage {
    /// The workspace.
    id: String,
    /// A skill: name, name@version or name@sha256:DIGEST; may be repeated.
    #[arg(long, value_name = "NAME[@VERSION]")]
    skill: Vec<String>,
    /// A file or directory; may be repeated.
    #[arg(long, value_name = "SRC[=DEST]", value_parser = values::input)]
    input: Vec<Input>,
    /// The same as --input.
    #[arg(value_name = "SRC[=DEST]", value_parser = values::input)]
    files: Vec<Input>,
}

impl Stage {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let inputs: Vec<_> = self.input.into_iter().chain(self.files).collect();
        if inputs.is_empty() && self.skill.is_empty() {
            anyhow::bail!("nothing to stage: name a file, a directory or a --skill");
        }
        if !self.skill.is_empty() {
            let skills = context.client.stage_skills(&self.id, &self.skill).await?;
            let staged = StageSkillsResponse { skills };
            context
                .output
                .message("StageSkillsResponse", &staged, |staged| {
                    let lines = staged.skills.iter().map(|skill| {
                        let bytes = u64::try_from(skill.bytes).unwrap_or(0);
                        let size = values::bytes(bytes);
                        format!(
                            "{} → {} ({} files, {size})\n",
                            skill.name, skill.path, skill.files
                        )
                    });
                    lines.collect()
                })?;
        }
        for input in &inputs {
            let staged = send(&context.client, &self.id, input).await?;
            context
                .output
                .message("StageFilesResponse", &staged, |staged| {
                    let bytes = u64::try_from(staged.bytes_total).unwrap_or(0);
                    let (count, size) = (staged.files_total, values::bytes(bytes));
                    format!(
                        "{} → {} ({count} files, {size})\n",
                        input.local.display(),
                        input.target
                    )
                })?;
        }
        Ok(0)
    }
}

/// Sends one input with a bar.
pub(crate) async fn send(
    client: &Client,
    workspace: &str,
    input: &Input,
) -> Result<StageFilesResponse, Error> {
    let bar = Bar::new(&input.target);
    if input.local.as_os_str() == "-" {
        let mut target = StageTarget::file(workspace, &input.target);
        target.progress = bar.progress();
        return client.stage(target, tokio::io::stdin()).await;
    }
    client
        .stage_path(workspace, &input.local, &input.target, bar.progress())
        .await
}

//! `skillctl stage`.

use clap::Args;
use skilld_client::v1::{StageInputsResponse, StageMode, StageSkillsResponse, StagedInput};

use crate::artifact::Scope;
use crate::context::Context;
use crate::input::{self, Input};
use crate::values;

/// Put skills and files into a workspace.
///
/// Skills become read-only directories beneath skills/. A file becomes DEST, a directory a directory DEST with
/// everything in it; `-` is stdin. DEST is relative to the workspace, a DEST that ends with / is a directory to
/// put it into, and without one it goes to work/inputs/.
///
/// SRC may also name what the server fetches: artifact://NAME@VERSION, host:///PATH beneath a folder that its
/// configuration lists, workspace://PATH, skill://NAME/PATH of a staged skill, or a URL if it allows them. Artifacts are
/// those of --app, --user and --session.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl stage job-7 --skill csv-report sales.csv data/=work/data -=work/notes.txt < notes.txt
  skillctl stage job-7 artifact://report.pdf@2 skill://csv-report/references/=work/docs")]
pub(crate) struct Stage {
    /// The workspace.
    id: String,
    /// A skill: name, name@version or name@sha256:DIGEST; may be repeated.
    #[arg(long, value_name = "NAME[@VERSION]")]
    skill: Vec<String>,
    /// Link what is in the workspace already, instead of copying it.
    #[arg(long)]
    link: bool,
    #[command(flatten)]
    scope: Scope,
    /// A file or directory; may be repeated.
    #[arg(long, value_name = "SRC[=DEST]", value_parser = input::parse)]
    input: Vec<Input>,
    /// The same as --input.
    #[arg(value_name = "SRC[=DEST]", value_parser = input::parse)]
    files: Vec<Input>,
}

impl Stage {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let inputs: Vec<_> = self.input.into_iter().chain(self.files).collect();
        if inputs.is_empty() && self.skill.is_empty() {
            anyhow::bail!("nothing to stage: name a file, a directory or a --skill");
        }
        input::check(&inputs)?;
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
        let mode = if self.link {
            StageMode::Link
        } else {
            StageMode::Copy
        };
        let scope = self.scope.into();
        if let Some(request) = input::references(&self.id, &inputs, mode, scope) {
            let inputs = context.client.stage_inputs(request).await?;
            let staged = StageInputsResponse { inputs };
            context
                .output
                .message("StageInputsResponse", &staged, |staged| {
                    staged.inputs.iter().map(line).collect()
                })?;
        }
        for input in &inputs {
            let Input::Local(local) = input else {
                continue;
            };
            let staged = local.send(&context.client, &self.id).await?;
            context
                .output
                .message("StageFilesResponse", &staged, |staged| {
                    let bytes = u64::try_from(staged.bytes_total).unwrap_or(0);
                    let (count, size) = (staged.files_total, values::bytes(bytes));
                    format!(
                        "{} → {} ({count} files, {size})\n",
                        local.path.display(),
                        local.target
                    )
                })?;
        }
        Ok(0)
    }
}

/// One staged reference for people.
fn line(staged: &StagedInput) -> String {
    let bytes = u64::try_from(staged.bytes_total).unwrap_or(0);
    let path = staged.file.as_ref().map_or("", |file| file.path.as_str());
    let what = if staged.unchanged {
        "unchanged".to_owned()
    } else if staged.mode() == StageMode::Link {
        "a link".to_owned()
    } else {
        format!("{} files, {}", staged.files_total, values::bytes(bytes))
    };
    let note = if staged.note.is_empty() {
        String::new()
    } else {
        format!("; {}", staged.note)
    };
    format!("{} → {path} ({what}{note})\n", staged.from)
}

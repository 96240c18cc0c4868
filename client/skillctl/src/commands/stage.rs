//! `skillctl stage`: puts skills and files into a workspace.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost::Name;
use serde_json::{Map, Value, json};
use skilld_client::v1::{
    ErrorReason, StageFilesResponse, StageInputsRequest, StageInputsResponse, StageMode,
    StageSkillsRequest, StageSkillsResponse, StagedInput, StagedSkill,
};
use skilld_client::{Client, Error, short_id};

use crate::commands::artifact::Scope;
use crate::commands::complete;
use crate::commands::input_arg::{self, Input, LocalInput};
use crate::output::run_receiver::note_skill_problems;
use crate::output::{self, proto_json, skip_notes, value_formats};

/// Put skills and files into a workspace.
///
/// Skills go to skills/NAME; commands can read them, and write them if --writable is given. A file becomes DEST, a
/// directory a directory DEST with everything in it; `--input -=DEST` is stdin. DEST is relative to /workspace, a DEST
/// that ends with / is a directory to put it into, and without one it goes to work/inputs/, where $INPUTS_DIR points.
///
/// SRC may also name what the server fetches: artifact://NAME@VERSION, host:///PATH beneath a folder that its
/// configuration lists, workspace://PATH, skill://NAME/PATH of a staged skill, or a URL if it allows them. Artifacts
/// are those of --app, --user and --session.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl stage job-7 --skill csv-report sales.csv data/=work/data
  skillctl stage job-7 --skill csv-report --writable
  skillctl stage job-7 --input -=work/notes.txt < notes.txt
  skillctl stage job-7 artifact://report.pdf@2 skill://csv-report/scripts/=work/scripts")]
pub(crate) struct Stage {
    /// Workspace to stage into.
    #[arg(add = ArgValueCompleter::new(complete::offer_workspaces))]
    id: String,
    /// A skill: name, name@version or name@sha256:DIGEST; may be repeated.
    #[arg(long, value_name = "NAME[@VERSION]", add = ArgValueCompleter::new(complete::offer_skills))]
    skill: Vec<String>,
    /// Let commands change the files of the skills. The workspace gets copies of its own, which count towards its disk;
    /// staging the same content again keeps the changes.
    #[arg(long, requires = "skill")]
    writable: bool,
    /// Link what is in the workspace already, instead of copying it.
    #[arg(long)]
    link: bool,
    #[command(flatten)]
    scope: Scope,
    /// A file or directory; may be repeated.
    #[arg(long, value_name = "SRC[=DEST]", value_parser = input_arg::parse_input, allow_hyphen_values = true)]
    input: Vec<Input>,
    /// Files to stage, in the form of --input, but for stdin.
    #[arg(value_name = "SRC[=DEST]", value_parser = input_arg::parse_input)]
    files: Vec<Input>,
}

impl Stage {
    /// Stages everything and prints it as it goes, or one JSON object at the end, also if a later input fails.
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let inputs: Vec<_> = self.input.iter().chain(&self.files).cloned().collect();
        if inputs.is_empty() && self.skill.is_empty() {
            anyhow::bail!("nothing to stage: name a file, a directory or a --skill");
        }
        input_arg::check_destinations(&inputs)?;
        let lists = ["skills", "inputs", "files"];
        let mut object = Map::from_iter(lists.map(|list| (list.to_owned(), json!([]))));
        let done = self.stage_all(client, &inputs, &mut object).await;
        let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
        let mut printed = Ok(());
        if output::is_json() && (done.is_ok() || !object.values().all(is_empty)) {
            printed = output::print_value(&object.into());
        }
        // The first error is the cause; a stdout that cannot be written comes after it.
        done.and(printed)?;
        Ok(0)
    }

    /// Adds the names of all skills that do not exist to the error of a staging, which names the first of them.
    async fn name_all_missing(&self, client: &Client, error: Error) -> anyhow::Error {
        let is_missing = |error: &Error| error.reason() == Some(ErrorReason::SkillNotFound);
        let mut missing = Vec::new();
        if is_missing(&error) && self.skill.len() > 1 {
            for skill in &self.skill {
                if client
                    .get_skill(skill)
                    .await
                    .is_err_and(|error| is_missing(&error))
                {
                    missing.push(skill.as_str());
                }
            }
        }
        let error = anyhow::Error::from(error);
        match missing.len() {
            0 | 1 => error,
            _ => error.context(format!("the skills {} do not exist", missing.join(", "))),
        }
    }

    /// Stages skills, references and local files, in this order, up to the first that fails. `object` gets what was
    /// staged. A file that cannot be read is an error at the end.
    async fn stage_all(
        &self,
        client: &Client,
        inputs: &[Input],
        object: &mut Map<String, Value>,
    ) -> anyhow::Result<()> {
        if !self.skill.is_empty() {
            let request = StageSkillsRequest {
                workspace: self.id.clone(),
                skills: self.skill.clone(),
                writable: self.writable,
            };
            let skills = match client.stage_skills_with(request).await {
                Ok(skills) => skills,
                Err(error) => return Err(self.name_all_missing(client, error).await),
            };
            let staged = StageSkillsResponse { skills };
            let lines: String = staged.skills.iter().map(skill_line).collect();
            report_staged(object, &staged, &lines)?;
            note_skill_problems(&staged.skills, &[]);
        }
        let mode = if self.link {
            StageMode::Link
        } else {
            StageMode::Copy
        };
        let request = StageInputsRequest {
            workspace: self.id.clone(),
            inputs: input_arg::reference_specs(inputs, mode),
            scope: Some(self.scope.clone().into()),
        };
        if !request.inputs.is_empty() {
            let inputs = client.stage_inputs(request).await?;
            let staged = StageInputsResponse { inputs };
            let lines: String = staged.inputs.iter().map(reference_line).collect();
            report_staged(object, &staged, &lines)?;
        }
        let mut readable = Ok(());
        for input in inputs {
            let Input::Local(local) = input else {
                continue;
            };
            let staged = local.send(client, &self.id).await?;
            if !output::is_json() {
                output::print_text(&local_line(local, &staged))?;
            } else if let Some(files) = object.get_mut("files").and_then(Value::as_array_mut) {
                files.push(local_json(local, &staged));
            }
            readable = readable.and(skip_notes::check_readable(&staged));
        }
        readable
    }
}

/// Reports what one call staged: adds its fields to the JSON object, or prints its text.
fn report_staged<M: Name>(
    object: &mut Map<String, Value>,
    answer: &M,
    text: &str,
) -> anyhow::Result<()> {
    if !output::is_json() {
        return Ok(output::print_text(text)?);
    }
    if let Value::Object(fields) = proto_json::from_message(answer)? {
        object.extend(fields);
    }
    Ok(())
}

/// Describes one staged skill for people.
fn skill_line(skill: &StagedSkill) -> String {
    let size = value_formats::format_size(skill.size_bytes);
    let (name, path, files) = (short_id(&skill.name), &skill.path, skill.file_count);
    let writable = match (skill.writable, skill.modified) {
        (_, true) => ", writable, changed by commands",
        (true, false) => ", writable",
        (false, false) => "",
    };
    format!("{name} → {path} ({files} files, {size}{writable})\n")
}

/// Describes a local file or directory that was sent, for people.
pub(crate) fn local_line(local: &LocalInput, staged: &StageFilesResponse) -> String {
    let size = value_formats::format_size(staged.size_bytes);
    let (from, to) = (local.path.display(), input_arg::in_workspace(&local.target));
    format!("{from} → {to} ({} files, {size})\n", staged.file_count)
}

/// Describes a local file or directory that was sent, for programs.
pub(crate) fn local_json(local: &LocalInput, staged: &StageFilesResponse) -> Value {
    json!({
        "from": local.path.display().to_string(),
        "to": input_arg::in_workspace(&local.target),
        "files": staged.file_count,
        "bytes": staged.size_bytes,
        "skipped": staged.skipped_count,
    })
}

/// Describes one staged reference for people.
fn reference_line(staged: &StagedInput) -> String {
    let path = staged.file.as_ref().map_or("", |file| file.path.as_str());
    let what = if staged.unchanged {
        "unchanged".to_owned()
    } else if staged.mode() == StageMode::Link {
        "a link".to_owned()
    } else {
        format!(
            "{} files, {}",
            staged.file_count,
            value_formats::format_size(staged.size_bytes)
        )
    };
    let note = if staged.note.is_empty() {
        String::new()
    } else {
        format!("; {}", staged.note)
    };
    format!("{} → {path} ({what}{note})\n", staged.source)
}

//! Stages skills in a session's workspace when a command is about to run. These are the loaded ones, whose folders
//! prompts and results name, and the one that the command runs in. Staging what is there already changes nothing.

use skilld_client::v1::{RunExecRequest, StageSkillsRequest, StagedSkill};
use skilld_client::{Error, FieldViolation, short_id};
use tonic::Code;

use crate::call_context::{CallContext, SessionContext};
use crate::exec_run::{FinishedExec, run_exec};
use crate::prompt::untrusted_text::one_line;
use crate::prompt_material_reader::loaded_references;
use crate::skill_lookup::{drop_user_only_names, translate_skill_error};
use crate::tool_error::{ToolError, ToolResult};
use crate::workspaces::is_lost;

/// Maximum number of skills of one request; the server's maximum.
const SKILLS_MAX: usize = 64;

/// Skills that are staged for a command.
#[derive(Debug, Default)]
pub(crate) struct CommandStaging {
    /// Skill that the command runs in; `None` if it runs in none.
    pub(crate) skill: Option<StagedSkill>,
    /// Warnings about loaded skills that are not in the workspace.
    pub(crate) warnings: Vec<String>,
}

/// Stages the skill that a command runs in, and the loaded ones, in the session's workspace. Returns the workspace's
/// name, the skill as it is staged there, and warnings about loaded skills that are not there.
pub(crate) async fn stage_command_skill(
    context: SessionContext<'_>,
    reference: &str,
) -> ToolResult<(String, StagedSkill, Vec<String>)> {
    let staged = context.in_workspace(|workspace| async move {
        let staged = stage_for_command(context, &workspace, Some(reference)).await?;
        let skill = staged.skill.ok_or_else(|| Error::Protocol {
            problem: "it staged no skill".into(),
        })?;
        Ok((workspace, skill, staged.warnings))
    });
    staged.await
}

/// Stages skills for a command in a workspace, by one call: `skill`, the reference of the one that the command runs in,
/// and the loaded ones, at most 63 that were used last. A loaded skill that cannot be staged is a warning.
pub(crate) async fn stage_for_command(
    context: SessionContext<'_>,
    workspace: &str,
    skill: Option<&str>,
) -> ToolResult<CommandStaging> {
    let loaded = references_beside(context, skill);
    let all: Vec<&str> = skill
        .into_iter()
        .chain(loaded.iter().map(String::as_str))
        .collect();
    match request_staging(context, workspace, &all).await {
        Ok(staged) => {
            return Ok(CommandStaging {
                skill: staged.into_iter().next().filter(|_| skill.is_some()),
                warnings: Vec::new(),
            });
        }
        // One of several is at fault. A loaded skill must not keep the command from running.
        Err(error) if !loaded.is_empty() && is_of_skill(&error) => {}
        Err(error) => {
            return Err(describe_error(context, error, skill.unwrap_or_default()).await);
        }
    }
    let mut staging = CommandStaging {
        skill: None,
        warnings: stage_each(context, workspace, &loaded).await?,
    };
    // Last, so that the version in which the command runs is the one that is there.
    if let Some(own) = skill {
        match request_staging(context, workspace, &[own]).await {
            Ok(staged) => staging.skill = staged.into_iter().next(),
            Err(error) => return Err(describe_error(context, error, own).await),
        }
    }
    Ok(staging)
}

/// Runs a command to its end in the session's workspace by one call, which stages skills first: `skill`, the reference
/// of the one that the command runs in, and the loaded ones, as [`stage_for_command`] does. Returns it with warnings
/// about loaded skills. Of each text file at most `text_max` bytes are kept. The call is repeated in a new workspace
/// only if the daemon had lost the session's before it accepted the call.
pub(crate) async fn run_with_skills(
    call: CallContext<'_>,
    skill: Option<&str>,
    request: RunExecRequest,
    text_max: usize,
) -> ToolResult<(FinishedExec, Vec<String>)> {
    let own: Vec<String> = skill.into_iter().map(str::to_owned).collect();
    let loaded = &references_beside(call.context, skill);
    let run = |workspace: &str, skills: Vec<String>| {
        let request = RunExecRequest {
            parent: workspace.to_owned(),
            writable_skills: call.tools.options.writable_skills && !skills.is_empty(),
            skills,
            ..request.clone()
        };
        run_exec(call, request, text_max)
    };
    let (run, own) = (&run, &own);
    let finished = call.in_workspace(|workspace| async move {
        match run(&workspace, [&own[..], loaded].concat()).await {
            Err(error) if !loaded.is_empty() && may_run_without(&error) => {
                let warnings = stage_each(call.context, &workspace, loaded).await?;
                let finished = run(&workspace, own.clone()).await?;
                Ok((finished, warnings))
            }
            finished => finished.map(|finished| (finished, Vec::new())),
        }
    });
    match finished.await {
        Err(ToolError::Daemon(error)) if is_of_skill(&error) => {
            Err(describe_error(call.context, error, skill.unwrap_or_default()).await)
        }
        finished => finished,
    }
}

/// Returns `true` if a run may succeed without the loaded skills: one of them may be at fault, or an earlier try of the
/// call has run without them.
fn may_run_without(error: &ToolError) -> bool {
    matches!(error, ToolError::CallIdTaken { .. })
        || matches!(error, ToolError::Daemon(error) if is_of_skill(error))
}

/// Stages loaded skills one by one. Returns warnings about those that cannot be staged.
async fn stage_each(
    context: SessionContext<'_>,
    workspace: &str,
    loaded: &[String],
) -> ToolResult<Vec<String>> {
    let mut warnings = Vec::new();
    for reference in loaded {
        if let Err(error) = request_staging(context, workspace, &[reference.as_str()]).await {
            if !is_of_skill(&error) {
                return Err(error.into());
            }
            let name = one_line(bare_name(reference));
            let error = describe_error(context, error, reference).await;
            let warning = format!("the loaded skill {name} is not in the workspace: {error}");
            warnings.push(warning);
        }
    }
    Ok(warnings)
}

/// Returns the references of the loaded skills that were used last, without that of the command's own skill: a
/// workspace has one version of each, and one place is for that skill.
fn references_beside(context: SessionContext<'_>, skill: Option<&str>) -> Vec<String> {
    let own = skill.map(bare_name);
    let mut loaded = loaded_references(context);
    loaded.retain(|(name, _)| own != Some(name.as_str()));
    let first = loaded.len().saturating_sub(SKILLS_MAX - 1);
    let references = loaded.into_iter().skip(first);
    references.map(|(_, reference)| reference).collect()
}

/// Returns the name in a reference, without a version or digest.
pub(crate) fn bare_name(reference: &str) -> &str {
    reference.split('@').next().unwrap_or(reference)
}

/// Returns `true` if an error may be the fault of one of the skills, and is not that of the workspace, of the daemon or
/// of another field of a run.
fn is_of_skill(error: &Error) -> bool {
    let codes = [
        Code::NotFound,
        Code::FailedPrecondition,
        Code::InvalidArgument,
        Code::ResourceExhausted,
    ];
    let failure = error.failure();
    let violations = failure.map_or(&[][..], |failure| &failure.violations);
    let of_skills = |violation: &FieldViolation| violation.field.starts_with("skills");
    !is_lost(error)
        && error.code().is_some_and(|code| codes.contains(&code))
        && (violations.is_empty() || violations.iter().any(of_skills))
}

/// Stages skills by one call; none without a call. The skills that it returns have the names of their folders.
async fn request_staging(
    context: SessionContext<'_>,
    workspace: &str,
    references: &[&str],
) -> Result<Vec<StagedSkill>, Error> {
    if references.is_empty() {
        return Ok(Vec::new());
    }
    let request = StageSkillsRequest {
        workspace: workspace.to_owned(),
        skills: references.iter().map(|&skill| skill.to_owned()).collect(),
        writable: context.tools.options.writable_skills,
    };
    let mut staged = context.tools.client.stage_skills_with(request).await?;
    for skill in &mut staged {
        skill.name = short_id(&skill.name);
    }
    Ok(staged)
}

/// Converts the daemon's error about a skill, with the names that the model may see.
async fn describe_error(context: SessionContext<'_>, error: Error, reference: &str) -> ToolError {
    let error = translate_skill_error(&context.tools.options, error, reference);
    drop_user_only_names(context, error).await
}

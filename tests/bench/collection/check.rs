//! Everything that the daemon says about one skill: loading, environment, preflight and its scripts.

use anyhow::{Context, Result};
use skilld_client::Client;
use skilld_client::v1::{
    CreateWorkspaceRequest, ListSkillFilesRequest, NeedKind, PreflightSkillRequest,
    PrepareSkillRequest, Problem, ProblemSeverity, Skill, SkillFile, SkillState,
    prepare_skill_response,
};

use crate::report::{one_line, problem_line};
use crate::script::{ScriptOutcome, is_candidate, try_script};

/// Maximum number of scripts of one skill that are tried.
const SCRIPTS_MAX: usize = 100;

/// Result of one skill.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SkillReport {
    /// Name of the skill, with that of its plugin.
    pub(crate) name: String,
    /// Version from the front matter; empty if it has none.
    pub(crate) version: String,
    /// Folder on the host.
    pub(crate) source: String,
    /// The skill can be used.
    pub(crate) is_loaded: bool,
    /// Problems of its SKILL.md and its files, worst first, as `CODE: message`.
    pub(crate) problems: Vec<String>,
    /// State of its environment.
    pub(crate) environment: EnvironmentState,
    /// Declared needs that the image lacks, by name; `a network (…)` for one whose purpose is to connect.
    pub(crate) lacks: Vec<String>,
    /// Inferred needs that the image lacks, in the same form.
    pub(crate) may_lack: Vec<String>,
    /// Scripts in order of their paths.
    pub(crate) scripts: Vec<(String, ScriptOutcome)>,
    /// Number of further scripts that were not tried.
    pub(crate) scripts_left_out: usize,
    /// Failure of a call, which ended the check of this skill.
    pub(crate) failure: Option<String>,
}

/// Packages that a skill needs besides those of the image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum EnvironmentState {
    /// Not examined.
    #[default]
    Unknown,
    /// The skill needs none.
    NotNeeded,
    /// Built, with this number of packages.
    Built(usize),
    /// Not built, for this reason.
    Missing(String),
}

/// Checks one skill. A failed call ends up in the report, since the others can still be checked.
pub(crate) async fn check_skill(client: &Client, skill: &Skill) -> SkillReport {
    let reference = skill_reference(skill);
    let mut state = skill.state();
    if state == SkillState::Shadowed && reference.contains(':') {
        // Its name means another skill, and its reference may still mean this one.
        let named = client.get_skill(reference).await;
        state = named
            .ok()
            .filter(|named| named.digest == skill.digest)
            .map_or(state, |named| named.state());
    }
    let mut problems: Vec<&Problem> = skill.problems.iter().collect();
    problems.sort_by_key(|problem| problem.severity() != ProblemSeverity::Error);
    let mut report = SkillReport {
        name: one_line(reference),
        version: one_line(&skill.version),
        source: skill.source.clone(),
        is_loaded: matches!(state, SkillState::Loaded | SkillState::LoadedWithWarnings),
        problems: problems.into_iter().map(problem_line).collect(),
        ..Default::default()
    };
    if report.is_loaded
        && let Err(error) = examine(
            client,
            &format!("{reference}@{}", skill.digest),
            &mut report,
        )
        .await
    {
        report.failure = Some(one_line(&format!("{error:#}")));
    }
    report
}

/// Returns the reference of a skill: `PLUGIN:NAME` for a skill of a plugin, since another one may have its name.
fn skill_reference(skill: &Skill) -> &str {
    let alias = skill.aliases.iter().find(|alias| alias.contains(':'));
    alias.map_or(skill.name.trim_start_matches("skills/"), String::as_str)
}

async fn examine(client: &Client, name: &str, report: &mut SkillReport) -> Result<()> {
    let request = PreflightSkillRequest {
        name: name.to_owned(),
        ..Default::default()
    };
    for finding in client.preflight_skill(request).await?.findings {
        let list = match finding.severity() {
            ProblemSeverity::Error => &mut report.lacks,
            ProblemSeverity::Warning | ProblemSeverity::Unspecified => &mut report.may_lack,
        };
        let mut missing = one_line(&finding.name);
        if finding.kind() == NeedKind::Network {
            missing = format!("a network ({missing})");
        }
        if !list.contains(&missing) {
            list.push(missing);
        }
    }
    report.environment = prepare(client, name).await?;
    let files = list_files(client, name).await?;
    let candidates: Vec<_> = files.iter().filter(|file| is_candidate(file)).collect();
    let request = CreateWorkspaceRequest::default();
    let workspace = client.create_workspace(request).await?.name;
    let tried = try_scripts(client, &workspace, name, &candidates, report).await;
    client.delete_workspace_if_exists(&workspace).await?;
    tried
}

/// Builds the environment of a skill.
async fn prepare(client: &Client, name: &str) -> Result<EnvironmentState> {
    let request = PrepareSkillRequest {
        name: name.to_owned(),
        ..Default::default()
    };
    let mut messages = client.prepare_skill(request).await?;
    while let Some(message) = messages.message().await? {
        let Some(prepare_skill_response::Payload::Result(result)) = message.payload else {
            continue;
        };
        return Ok(match (result.environment, result.problems.first()) {
            (Some(built), _) => EnvironmentState::Built(built.packages.len()),
            (None, Some(problem)) => EnvironmentState::Missing(one_line(&problem.message)),
            (None, None) => EnvironmentState::NotNeeded,
        });
    }
    anyhow::bail!("the build of the environment ended without a result")
}

async fn list_files(client: &Client, name: &str) -> Result<Vec<SkillFile>> {
    let mut files = Vec::new();
    let mut request = ListSkillFilesRequest {
        parent: name.to_owned(),
        ..Default::default()
    };
    loop {
        let page = client.list_skill_files(request.clone()).await?;
        files.extend(page.files);
        if page.next_page_token.is_empty() {
            return Ok(files);
        }
        request.page_token = page.next_page_token;
    }
}

async fn try_scripts(
    client: &Client,
    workspace: &str,
    name: &str,
    candidates: &[&SkillFile],
    report: &mut SkillReport,
) -> Result<()> {
    let staged = client.stage_skills(workspace, &[name]).await?;
    let skill = staged.first().context("no skill was staged")?.name.clone();
    for file in candidates.iter().take(SCRIPTS_MAX) {
        let outcome = try_script(client, workspace, &skill, file)
            .await
            .with_context(|| file.path.clone())?;
        report
            .scripts
            .extend(outcome.map(|outcome| (file.path.clone(), outcome)));
    }
    report.scripts_left_out = candidates.len().saturating_sub(SCRIPTS_MAX);
    Ok(())
}

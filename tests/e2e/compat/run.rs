//! Runs one case against a daemon, by the steps of tests/skills-compat/README.md.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use skilld_client::v1::{
    CollectOutputsRequest, CollectSpec, CreateWorkspaceRequest, ExecSpec, StageSkillsRequest,
};
use skilld_client::{Client, TransferProgress};
use skilld_tests::exec::{Outcome, argv, run, shell};

use crate::compat::case::{Case, Step};

/// Maximum size of one collected file, in bytes.
const FILE_BYTES_MAX: i64 = 32 << 20;

/// Number of characters of a command's output that an error shows.
const SHOWN_CHARS: usize = 600;

/// Runs the commands of a case, collects its outputs and checks them in a workspace of their own.
pub(crate) async fn run_case(client: &Client, case: &Case) -> Result<()> {
    let collected = tempfile::tempdir()?;
    let first = create_workspace(client, case).await?;
    let outcome = run_steps(client, case, &first, collected.path()).await;
    client.delete_workspace(&first).await?;
    outcome?;
    let second = create_workspace(client, case).await?;
    let outcome = check_outputs(client, case, &second, collected.path()).await;
    client.delete_workspace(&second).await?;
    outcome
}

async fn create_workspace(client: &Client, case: &Case) -> Result<String> {
    let request = CreateWorkspaceRequest {
        pool: case.image.pool().to_owned(),
        ..Default::default()
    };
    Ok(client.create_workspace(request).await?.name)
}

async fn run_steps(client: &Client, case: &Case, workspace: &str, target: &Path) -> Result<()> {
    stage_skills(client, case, workspace).await?;
    let inputs = case.folder.join("inputs");
    if inputs.is_dir() {
        upload(client, workspace, &inputs, "work/inputs").await?;
    }
    let prepare = case.folder.join("prepare.py");
    if prepare.is_file() {
        let spec = ExecSpec {
            stdin_data: std::fs::read(prepare)?.into(),
            ..argv(["python3", "-", "/workspace/work/inputs"])
        };
        let outcome = run(client, workspace, spec).await?;
        ensure!(
            outcome.exit_code() == Some(0),
            "prepare.py: {}",
            describe(&outcome)
        );
    }
    for (number, step) in case.steps.iter().enumerate() {
        let number = number + 1;
        run_step(client, workspace, step)
            .await
            .with_context(|| format!("step {number}"))?;
    }
    for glob in &case.outputs {
        let request = CollectOutputsRequest {
            workspace: workspace.to_owned(),
            spec: Some(CollectSpec {
                globs: vec![glob.clone()],
                max_file_bytes: FILE_BYTES_MAX,
                ..Default::default()
            }),
        };
        let collected = client
            .collect_to_dir(request, target, TransferProgress::none())
            .await?;
        ensure!(
            collected.summary.matched_count > 0,
            "the output {glob:?} matches no file"
        );
    }
    Ok(())
}

/// Stages the skills of a case. A case that needs an environment fails without one.
async fn stage_skills(client: &Client, case: &Case, workspace: &str) -> Result<()> {
    let request = StageSkillsRequest {
        workspace: workspace.to_owned(),
        skills: case.skills.clone(),
        writable: case.is_writable,
    };
    for staged in client.stage_skills_with(request).await? {
        ensure!(
            !case.needs_environment || staged.environment.is_some(),
            "{} has no environment: {:?}",
            staged.name,
            staged.problems
        );
    }
    Ok(())
}

async fn run_step(client: &Client, workspace: &str, step: &Step) -> Result<()> {
    let spec = ExecSpec {
        skill: step.skill.clone(),
        stdin_data: step.stdin.clone().unwrap_or_default().into(),
        ..shell(&step.command)
    };
    let outcome = run(client, workspace, spec).await?;
    if outcome.exit_code() != Some(step.exit_code) {
        bail!(
            "expected exit code {}, {}",
            step.exit_code,
            describe(&outcome)
        );
    }
    let stdout = outcome.text();
    let missing: Vec<_> = step
        .stdout_contains
        .iter()
        .filter(|part| !stdout.contains(part.as_str()))
        .collect();
    ensure!(
        missing.is_empty(),
        "stdout lacks {missing:?}, {}",
        describe(&outcome)
    );
    Ok(())
}

async fn check_outputs(
    client: &Client,
    case: &Case,
    workspace: &str,
    collected: &Path,
) -> Result<()> {
    upload(client, workspace, collected, "work/collected").await?;
    let program = case.folder.join("check.py");
    upload(client, workspace, &program, "work/check.py").await?;
    let command = argv([
        "python3",
        "/workspace/work/check.py",
        "/workspace/work/collected",
    ]);
    let outcome = run(client, workspace, command).await?;
    ensure!(
        outcome.exit_code() == Some(0) && outcome.text().contains("ok: "),
        "check.py: {}",
        describe(&outcome)
    );
    Ok(())
}

async fn upload(client: &Client, workspace: &str, local: &Path, target: &str) -> Result<()> {
    client
        .upload_path(workspace, local, target, TransferProgress::none())
        .await
        .with_context(|| format!("send {} to {target}", local.display()))?;
    Ok(())
}

/// Returns the end of a command for an error, with the ends of its output.
fn describe(outcome: &Outcome) -> String {
    let end = |text: String| {
        let skipped = text.chars().count().saturating_sub(SHOWN_CHARS);
        text.chars().skip(skipped).collect::<String>()
    };
    format!(
        "it ended with {:?} ({:?})\nstdout: {}\nstderr: {}",
        outcome.exit_code(),
        outcome.reason(),
        end(outcome.text()),
        end(outcome.error_text())
    )
}

//! Packages that are added to skills which name none: by PrepareSkill, and inferred from what a script imports.
//!
//! Docker: a real build installs them, and a command in a running container imports them.

use super::*;

const GREET: &str = "import skilld_compat_greeting as g\nprint(g.__version__)\n";
const RUN: &str = "python3 scripts/x.py";

/// Prepares a skill with packages and returns the result.
async fn prepare_packages(
    client: &Client,
    skill: &str,
    packages: &[&str],
) -> Result<PreparedSkill> {
    let request = PrepareSkillRequest {
        name: skill.to_owned(),
        packages: packages.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    let mut messages = client.prepare_skill(request).await?;
    while let Some(message) = messages.message().await? {
        if let Some(prepare_skill_response::Payload::Result(result)) = message.payload {
            return Ok(result);
        }
    }
    anyhow::bail!("no result")
}

#[tokio::test]
async fn an_added_package_is_imported_in_every_workspace() -> Result<()> {
    let fixture = Fixture::new().await?;
    fixture.skill("greet", &[("scripts/x.py", GREET)])?;
    let daemon = Daemon::start_with(fixture.options()).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let plain = stage(client, &name, "greet").await?;
    assert_eq!((plain.environment, plain.problems), (None, Vec::new()));
    let missing = run(client, &name, in_skill("greet", RUN)).await?;
    assert_eq!(missing.exit_code(), Some(1), "{}", missing.text());

    let prepared = prepare_packages(client, "greet", &["skilld-compat-greeting<1.1"]).await?;
    assert_eq!(prepared.problems, []);
    assert_eq!(prepared.added_packages, ["skilld-compat-greeting<1.1"]);
    let staged = stage(client, &name, "greet").await?;
    assert_eq!(staged.problems, []);
    assert_eq!(
        staged.environment.map(|environment| environment.need),
        prepared.environment.map(|environment| environment.need)
    );
    assert_eq!(output(client, &name, "greet", RUN).await?, "1.0\n");
    let other = workspace(client).await?.name;
    stage(client, &other, "greet").await?;
    assert_eq!(output(client, &other, "greet", RUN).await?, "1.0\n");
    daemon.stop().await
}

#[tokio::test]
async fn inferred_packages_are_built_as_far_as_they_exist() -> Result<()> {
    let fixture = Fixture::new().await?;
    let other = "import json\nimport skilld_made_up\n";
    fixture.skill("greet", &[("scripts/x.py", GREET), ("scripts/y.py", other)])?;
    let options = fixture.options().set("skills.infer_packages", "true");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let staged = stage(client, &name, "greet").await?;
    assert_eq!(staged.environment.context("built")?.package_count, 1);
    let problems: Vec<_> = staged
        .problems
        .iter()
        .map(|problem| problem.code.as_str())
        .collect();
    assert_eq!(problems, ["environment.left_out"]);
    let message = &staged.problems[0].message;
    assert!(message.contains("left out: skilld-made-up"), "{message}");
    assert_eq!(output(client, &name, "greet", RUN).await?, "1.1\n");
    daemon.stop().await
}

//! Environments are built again when the sources of packages change or an operator asks for it, are used only in
//! containers that have them, and are removed when nothing needs them any more.
//!
//! Docker: mounts of real containers decide which environments a workspace can use.

use skilld_tests::wait;

use super::*;

/// Prints the version of the package that the skills of these tests need.
const VERSION: &str =
    "python3 -c 'import skilld_compat_greeting as g; print(g.__version__, g.__file__)'";

/// Makes a skill that needs any version of a package, and a daemon that has it.
async fn start() -> Result<(Fixture, Daemon)> {
    let fixture = Fixture::new().await?;
    fixture.skill("greet", &[("requirements.txt", "skilld-compat-greeting\n")])?;
    let daemon = Daemon::start_with(fixture.options()).await?;
    Ok((fixture, daemon))
}

/// Stages the skill and returns the path of its environment.
async fn environment_path(client: &Client, workspace: &str) -> Result<String> {
    let staged = stage(client, workspace, "greet").await?;
    ensure!(staged.problems.is_empty(), "{:?}", staged.problems);
    Ok(staged.environment.context("an environment")?.path)
}

#[tokio::test]
async fn restaging_a_skill_brings_its_rebuilt_environment() -> Result<()> {
    let (_fixture, daemon) = start().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let old = environment_path(client, &name).await?;
    let (_, skill) = prepare_with(client, "greet", true).await?;
    let rebuilt = skill.environment.context("built")?.path;
    assert_ne!(rebuilt, old);
    let printed = output(client, &name, "greet", VERSION).await?;
    assert!(printed.contains(&old), "{printed}");
    assert_eq!(environment_path(client, &name).await?, rebuilt);
    let printed = output(client, &name, "greet", VERSION).await?;
    assert!(printed.contains(&rebuilt), "{printed}");
    let (lines, again) = prepare(client, "greet").await?;
    assert_eq!(lines, Vec::<String>::new());
    assert_eq!(again.environment.context("built")?.path, rebuilt);
    daemon.stop().await
}

#[tokio::test]
async fn removed_wheel_is_in_no_environment_of_later_stagings() -> Result<()> {
    let (fixture, daemon) = start().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    environment_path(client, &name).await?;
    let printed = output(client, &name, "greet", VERSION).await?;
    assert!(printed.starts_with("1.1 "), "{printed}");
    for wheel in fs::read_dir(fixture.wheels())? {
        let path = wheel?.path();
        if path.to_string_lossy().contains("greeting-1.1") {
            fs::remove_file(path)?;
        }
    }
    environment_path(client, &name).await?;
    let printed = output(client, &name, "greet", VERSION).await?;
    assert!(printed.starts_with("1.0 "), "{printed}");
    daemon.stop().await
}

#[tokio::test]
async fn workspace_without_the_mount_of_environments_gets_a_problem() -> Result<()> {
    let fixture = Fixture::new().await?;
    fixture.skill("greet", &[("requirements.txt", "skilld-compat-greeting\n")])?;
    let key = "skills.environment_builds";
    let mut daemon = Daemon::start_with(fixture.options().set(key, "never")).await?;
    let old = workspace(&daemon.client).await?.name;
    daemon.crash().await?;
    daemon.heal(key, "stage");
    daemon.restart().await?;
    let client = &daemon.client;
    let staged = stage(client, &old, "greet").await?;
    assert_eq!(staged.environment, None);
    let problem = staged.problems.first().context("a problem")?;
    assert_eq!(problem.code, "environment.not_mounted");
    assert!(problem.message.contains("create a new workspace"));
    let wheels = output(client, &old, "greet", "echo \"[$PIP_FIND_LINKS]\"").await?;
    // Only the image's own.
    assert_eq!(wheels, "[/usr/share/skilld/wheels]\n");
    // A warm container of before has no mount either, so it does not become a workspace.
    let new = workspace(client).await?.name;
    environment_path(client, &new).await?;
    output(client, &new, "greet", VERSION).await?;
    daemon.stop().await
}

#[tokio::test]
async fn prepared_environment_stays_while_its_skill_has_the_same_need() -> Result<()> {
    let fixture = Fixture::new().await?;
    for (name, requirements) in [
        ("prepared", "skilld-compat-greeting==1.0\n"),
        ("staged", "skilld-compat-greeting==1.1\n"),
        ("left", "skilld-compat-greeting\nskilld-compat-letters\n"),
    ] {
        fixture.skill(name, &[("requirements.txt", requirements)])?;
    }
    let options = fixture.options().set("skills.keep_unused", "100ms");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let (_, skill) = prepare(client, "prepared").await?;
    let prepared = skill.environment.context("built")?.path;
    let mounted = daemon.state_dir().join("environments/mounted");
    let folders = || -> Result<Vec<String>> {
        let names = fs::read_dir(&mounted)?;
        names
            .map(|name| Ok(name?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    let limit = Duration::from_secs(300);
    let request = PrepareSkillRequest {
        name: "left".to_owned(),
        ..Default::default()
    };
    let mut messages = client.prepare_skill(request).await?;
    messages.message().await?.context("a line of the build")?;
    // The client goes away; the build goes on.
    drop(messages);
    let left = wait::until("the environment of left is there", limit, async || {
        let mut names = folders()?.into_iter();
        Ok(names.find(|name| !prepared.ends_with(name)))
    })
    .await?;
    let name = workspace(client).await?.name;
    let skill = stage(client, &name, "staged").await?;
    let staged = skill.environment.context("built")?.path;
    let holds =
        |path: &str| Ok::<_, anyhow::Error>(folders()?.iter().any(|name| path.ends_with(name)));
    client.delete_workspace(&name).await?;
    wait::until("the unused environment is gone", limit, async || {
        Ok((!holds(&staged)?).then_some(()))
    })
    .await?;
    assert!(holds(&prepared)? && holds(&left)?, "{:?}", folders()?);
    fixture.skill(
        "prepared",
        &[("requirements.txt", "skilld-compat-letters\n")],
    )?;
    client.refresh_skills().await?;
    wait::until(
        "the environment that no skill needs is gone",
        limit,
        async || Ok((!holds(&prepared)?).then_some(())),
    )
    .await?;
    daemon.stop().await
}

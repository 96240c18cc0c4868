//! The daemon dies between every two steps of installing a skill's environment.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result};
use skilld::fault::Point;
use skilld_client::RetryPolicy;
use skilld_tests::exec::workspace;
use skilld_tests::{Daemon, Options};

use crate::faults::points;
use crate::sh;

#[tokio::test]
async fn crash_between_every_two_steps_of_a_build() -> Result<()> {
    for point in points("environment.") {
        crash_at(point).await.context(point.name())?;
    }
    Ok(())
}

async fn crash_at(point: Point) -> Result<()> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    for (name, requirement) in [("first", "pyyaml\n"), ("pages", "requests\n")] {
        let skill = root.path().join(name);
        fs::create_dir_all(&skill)?;
        let document = format!("---\nname: {name}\ndescription: Needs what the image has.\n---\n");
        fs::write(skill.join("SKILL.md"), document)?;
        fs::write(skill.join("requirements.txt"), requirement)?;
    }
    // The second build dies; the restarted daemon reaches the point only once.
    let options = Options::default()
        .skills(root.path())
        .dies_at(&format!("{}:2", point.name()));
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let name = workspace(&client).await?.name;
    client.stage_skills(&name, &["first"]).await?;
    let answer = client.stage_skills(&name, &["pages"]).await;
    assert!(answer.is_err(), "it was answered before it was killed");
    assert_eq!(daemon.wait().await?, None, "it was not killed");
    daemon.restart().await?;

    let folder = daemon.state_dir().join("environments");
    let count = |path: &str| -> Result<usize> { Ok(fs::read_dir(folder.join(path))?.count()) };
    assert_eq!(
        (count("mounted")?, count("records")?, count("tmp")?),
        (1, 1, 0)
    );
    let staged = daemon.client.stage_skills(&name, &["pages"]).await?;
    let staged = staged.first().context("one skill")?;
    assert_eq!(staged.problems, []);
    let built = staged.environment.as_ref().context("an environment")?;
    assert_eq!(
        (count("mounted")?, count("records")?, count("tmp")?),
        (2, 2, 0)
    );
    let read = format!("test -x {}/venv/bin/python && echo built", built.path);
    assert_eq!(sh(&daemon.client, &name, &read).await?, "built\n");
    daemon.stop().await
}

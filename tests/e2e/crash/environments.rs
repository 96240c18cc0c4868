//! The daemon dies while a skill's environment is built, and between every two steps of installing it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use skilld_client::RetryPolicy;
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::package_index::{MAKE_WHEELS, PackageIndex, make_packages};
use skilld_tests::{Daemon, Options, wait};

use crate::crash::fault_points::points;
use crate::crash::{DEADLINE, containers, run_shell};

/// Adds a skill with one requirement.
fn add_skill(root: &Path, name: &str, requirement: &str) -> Result<()> {
    let skill = root.join(name);
    fs::create_dir_all(&skill)?;
    let document = format!("---\nname: {name}\ndescription: Needs packages.\n---\n");
    fs::write(skill.join("SKILL.md"), document)?;
    Ok(fs::write(skill.join("requirements.txt"), requirement)?)
}

#[tokio::test]
async fn a_build_that_a_crash_interrupts_leaves_nothing_and_repeats() -> Result<()> {
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
    let (root, packages) = (dir.path().join("skills"), dir.path().join("packages"));
    add_skill(&root, "letters", "skilld-compat-letters\n")?;
    make_packages(MAKE_WHEELS, &packages, &[]).await?;
    let index = PackageIndex::serve(&packages).await?;
    let options = index.for_python(Options::default().skills(&root));
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let name = workspace(&client).await?.name;
    daemon.warm(1).await?;
    let before = containers(&daemon).await?;

    // uv runs, and waits for a file.
    index.hold_files();
    let names = ["letters"];
    let staging = client.stage_skills(&name, &names);
    let crash = async {
        index.wait_for_request(".whl").await;
        let during = containers(&daemon).await?;
        daemon.crash().await?;
        Ok::<_, anyhow::Error>(during)
    };
    let (answer, crashed) = tokio::join!(staging, crash);
    let during = crashed?;
    assert!(
        answer.is_err(),
        "it was answered before the daemon was killed"
    );
    let of_build: BTreeSet<_> = during.difference(&before).cloned().collect();
    assert_eq!(of_build.len(), 1, "{before:?} {during:?}");
    assert!(containers(&daemon).await?.is_superset(&of_build));

    index.release_files();
    daemon.restart().await?;
    wait::until("the container of the build is gone", DEADLINE, async || {
        let left = containers(&daemon).await?;
        Ok(left.is_disjoint(&of_build).then_some(()))
    })
    .await?;
    let folder = daemon.state_dir().join("environments");
    for directory in ["mounted", "records", "tmp"] {
        let entries = fs::read_dir(folder.join(directory))?.count();
        assert_eq!(entries, 0, "{directory}");
    }
    let skills = daemon.client.stage_skills(&name, &names).await?;
    let staged = skills.first().context("one skill")?;
    assert_eq!(staged.problems, []);
    let mut spec = shell("python3 -c 'import skilld_compat_letters as l; print(l.__version__)'");
    "letters".clone_into(&mut spec.skill);
    let outcome = run(&daemon.client, &name, spec).await?;
    assert_eq!(outcome.text(), "1.0\n", "{outcome:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_build_survives_a_crash_at_every_step() -> Result<()> {
    for point in points("environment.") {
        crash_at(point).await.context(point)?;
    }
    Ok(())
}

async fn crash_at(point: &str) -> Result<()> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    for (name, requirement) in [("first", "pyyaml\n"), ("pages", "requests\n")] {
        add_skill(root.path(), name, requirement)?;
    }
    // The second build dies; the restarted daemon reaches the point only once.
    let options = Options::default()
        .skills(root.path())
        .dies_at(&format!("{point}:2"));
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
    let skills = daemon.client.stage_skills(&name, &["pages"]).await?;
    let staged = skills.first().context("one skill")?;
    assert_eq!(staged.problems, []);
    let built = staged.environment.as_ref().context("an environment")?;
    assert_eq!(
        (count("mounted")?, count("records")?, count("tmp")?),
        (2, 2, 0)
    );
    let read = format!("test -x {}/venv/bin/python && echo built", built.path);
    assert_eq!(run_shell(&daemon.client, &name, &read).await?, "built\n");
    daemon.stop().await
}

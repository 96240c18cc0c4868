//! Variables of an operator's image: commands get them, the daemon's own and those of requests win.
//!
//! Docker: the variables come from a real image's configuration and reach real commands.

use anyhow::{Context, Result};
use skilld_client::v1::{CheckImageRequest, ExecPrograms, ExecSpec};
use skilld_tests::exec::{argv, run, shell, shell_stdout, workspace};
use skilld_tests::test_image::TestImage;
use skilld_tests::{Daemon, Options};

use crate::functional::preflight::preflight;

#[tokio::test]
async fn commands_get_image_variables_unless_the_daemon_sets_them() -> Result<()> {
    let image = TestImage::build(
        "variables",
        "ENV FOO=bar BOTH=image HOME=/root USER=app SKILLS_DIR=/opt/skills SKILLD_NONCE=1
ENV PATH=/usr/lib/git-core:/workspace/work/bin:$PATH
",
        None,
    )?;
    let options = Options::default().set("pools.default.image", image.name());
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let text = "echo $FOO $BOTH $HOME $USER $SKILLS_DIR ${SKILLD_NONCE-none}";
    let spec = ExecSpec {
        env: [("BOTH".to_owned(), "exec".to_owned())].into(),
        ..shell(text)
    };
    let printed = run(client, &name, spec).await?.text();
    let expected = "bar exec /workspace/work skill /workspace/skills none\n";
    assert_eq!(printed, expected);
    let path = shell_stdout(client, &name, "echo $PATH; command -v git-add").await?;
    let (path, found) = path.split_once('\n').context("one line")?;
    assert!(
        path.starts_with("/usr/lib/git-core:/usr/local/bin:"),
        "{path}"
    );
    assert!(!path.contains("/workspace"), "{path}");
    assert_eq!(found, "/usr/lib/git-core/git-add\n");

    // A restricted command gets only the directories of the image.
    let programs = Some(ExecPrograms {
        allowed: vec!["env".to_owned(), "git-add".to_owned()],
        denied: Vec::new(),
    });
    let restricted = |spec: ExecSpec| ExecSpec {
        programs: programs.clone(),
        ..spec
    };
    let outcome = run(client, &name, restricted(argv(["env"]))).await?;
    assert!(!outcome.text().contains("FOO="), "{outcome:?}");
    assert!(
        outcome.text().contains("PATH=/usr/lib/git-core:"),
        "{outcome:?}"
    );
    let outcome = run(client, &name, restricted(argv(["git-add", "-h"]))).await?;
    assert!(outcome.result.spawn_failure.is_none(), "{outcome:?}");

    // A daemon that adopts the workspace knows them, too.
    let mut daemon = daemon;
    daemon.crash().await?;
    daemon.restart().await?;
    let printed = shell_stdout(&daemon.client, &name, "echo $FOO").await?;
    assert_eq!(printed, "bar\n");
    daemon.stop().await
}

#[tokio::test]
async fn checks_of_images_and_skills_know_the_variables_of_the_image() -> Result<()> {
    let image = TestImage::build(
        "checked",
        "ENV REPORT_KEY=1 ODD-NAME=1 PATH=/usr/lib/git-core:/tmp:$PATH\n",
        None,
    )?;
    let root = tempfile::tempdir()?;
    let skill = root.path().join("report");
    std::fs::create_dir(&skill)?;
    std::fs::write(
        skill.join("SKILL.md"),
        "---\nname: report\ndescription: d\nmetadata: {x: {requires: {bins: [git-add], env: [REPORT_KEY, OTHER_KEY]}}}\n---\n",
    )?;
    let options = Options::default().set("pools.default.image", image.name());
    let daemon = Daemon::start_with(options.skills(root.path())).await?;
    let request = CheckImageRequest {
        image: image.name().to_owned(),
        pool: String::new(),
    };
    let answer = daemon.client.check_image(request).await?;
    let messages = answer
        .findings
        .iter()
        .map(|it| it.message.as_str())
        .collect::<Vec<_>>()
        .join("\n");
    assert!(messages.contains("its PATH has /tmp, which"), "{messages}");
    assert!(messages.contains("its variables ODD-NAME:"), "{messages}");
    assert!(!messages.contains("git-core"), "{messages}");
    let answer = preflight(&daemon.client, "report").await?;
    let missing: Vec<&str> = answer.findings.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(missing, ["OTHER_KEY"]);
    daemon.stop().await
}

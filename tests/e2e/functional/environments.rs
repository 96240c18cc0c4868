//! Environments of skills: packages are built once from the operator's wheels, mounted read-only into every workspace
//! that stages the skill, and found by its commands. What can't be built is a problem, and the skill runs without it.
//!
//! Docker: builds run in real containers with the image's pip, and their environments are mounted into running
//! containers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use skilld_client::Client;
use skilld_client::v1::{
    ExecSpec, PrepareSkillRequest, PreparedSkill, ProblemSeverity, StagedSkill,
    prepare_skill_response,
};
use skilld_tests::exec::{run, shell, start, workspace};
use skilld_tests::package_index::{MAKE_WHEELS, make_packages};
use skilld_tests::{Daemon, Options, wait};
use tempfile::TempDir;

mod added_packages;
mod hostile;
mod indexes;
mod node_packages;
mod node_projects;
mod registries;

/// Time within which the containers of builds are removed, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

mod rebuilds;

/// Root of skills and directory of wheels of one test.
pub(crate) struct Fixture {
    dir: TempDir,
}

impl Fixture {
    /// Makes a directory of wheels: skilld-compat-greeting 1.0 and 1.1, and skilld-compat-letters, which needs it.
    pub(crate) async fn new() -> Result<Self> {
        Self::with_packages(MAKE_WHEELS).await
    }

    /// Makes a directory of the packages that a program of this repository writes.
    async fn with_packages(program: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
        let fixture = Self { dir };
        make_packages(program, &fixture.wheels(), &[]).await?;
        Ok(fixture)
    }

    fn wheels(&self) -> std::path::PathBuf {
        self.dir.path().join("wheels")
    }

    /// Returns the root of the skills.
    pub(crate) fn skills(&self) -> std::path::PathBuf {
        self.dir.path().join("skills")
    }

    /// Adds a skill with these files.
    pub(crate) fn skill(&self, name: &str, files: &[(&str, &str)]) -> Result<()> {
        let folder = self.skills().join(name);
        let document = format!("---\nname: {name}\ndescription: d\n---\n");
        for (path, text) in [("SKILL.md", document.as_str())].iter().chain(files) {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
            fs::write(path, text)?;
        }
        Ok(())
    }

    pub(crate) fn options(&self) -> Options {
        let options = self.options_without_wheels();
        options.set("skills.wheelhouse", &self.wheels().to_string_lossy())
    }

    fn options_without_wheels(&self) -> Options {
        Options::default().skills(&self.skills())
    }
}

/// Checks that the daemon has this number of environments, and nothing of builds: no container and no temporary file.
/// `containers` is the number of its workspaces and warm containers.
async fn expect_environments(daemon: &Daemon, count: usize, containers: usize) -> Result<()> {
    let folder = daemon.state_dir().join("environments");
    for (name, expected) in [("mounted", count), ("records", count), ("tmp", 0)] {
        let found = fs::read_dir(folder.join(name))?.count();
        ensure!(
            found == expected,
            "{name}/ has {found} entries, not {expected}"
        );
    }
    // The container of a build that has failed is removed after the answer.
    wait::until("the containers of builds are gone", LIMIT, async || {
        let found = daemon.containers().await?.len();
        Ok((found == containers).then_some(()))
    })
    .await
}

/// Stages one skill and returns its report.
async fn stage(client: &Client, workspace: &str, skill: &str) -> Result<StagedSkill> {
    let staged = client.stage_skills(workspace, &[skill]).await?;
    staged.into_iter().next().context("one skill")
}

/// Returns a spec that runs a shell text in a skill's folder.
fn in_skill(skill: &str, text: &str) -> ExecSpec {
    ExecSpec {
        skill: skill.to_owned(),
        ..shell(text)
    }
}

/// Runs a shell text in a skill's folder and returns its stdout; it must exit with 0.
async fn output(client: &Client, workspace: &str, skill: &str, text: &str) -> Result<String> {
    let outcome = run(client, workspace, in_skill(skill, text)).await?;
    ensure!(
        outcome.exit_code() == Some(0),
        "{text}: {:?}\n{}{}",
        outcome.exit_code(),
        outcome.text(),
        outcome.error_text()
    );
    Ok(outcome.text())
}

/// Builds the environment of a skill and returns the lines of the build and its result.
async fn prepare(client: &Client, skill: &str) -> Result<(Vec<String>, PreparedSkill)> {
    prepare_with(client, skill, false).await
}

/// Builds the environment of a skill, also if it exists, and returns the lines of the build and its result.
async fn prepare_with(
    client: &Client,
    skill: &str,
    rebuild: bool,
) -> Result<(Vec<String>, PreparedSkill)> {
    let request = PrepareSkillRequest {
        name: skill.to_owned(),
        rebuild,
        ..Default::default()
    };
    let mut messages = client.prepare_skill(request).await?;
    let mut lines = Vec::new();
    while let Some(message) = messages.message().await? {
        match message.payload.context("a payload")? {
            prepare_skill_response::Payload::Line(line) => lines.push(line),
            prepare_skill_response::Payload::Result(result) => return Ok((lines, result)),
        }
    }
    anyhow::bail!("no result")
}

const LETTERS: &str =
    "import skilld_compat_letters as l; print(l.letter('Ada', 'text').splitlines()[0])";

#[tokio::test]
async fn commands_find_the_packages_of_their_skill_offline() -> Result<()> {
    let fixture = Fixture::new().await?;
    fixture.skill(
        "letters",
        &[("requirements.txt", "skilld-compat-letters\nrequests\n")],
    )?;
    fixture.skill("plain", &[])?;
    let daemon = Daemon::start_with(fixture.options()).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let skill = stage(client, &name, "letters").await?;
    assert_eq!(skill.problems, []);
    let staged = skill.environment.context("an environment")?;
    assert_eq!((staged.package_count, staged.packages.len()), (2, 0));
    let (_, prepared) = prepare(client, "letters").await?;
    let built = prepared.environment.context("the environment")?;
    assert_eq!(built.path, staged.path);
    let names: Vec<_> = built
        .packages
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    assert_eq!(names, ["skilld-compat-greeting", "skilld-compat-letters"]);
    let provided: Vec<_> = built
        .image_packages
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    assert!(provided.contains(&"requests"), "{provided:?}");

    let python = format!("python3 -c \"{LETTERS}\" && python -c 'import requests'");
    assert_eq!(
        output(client, &name, "letters", &python).await?,
        "Hello, Ada!\n"
    );
    let text = "printf '%s\\n' \"$VIRTUAL_ENV\" && touch \"$VIRTUAL_ENV/x\" 2>&1";
    let outcome = run(client, &name, in_skill("letters", text)).await?;
    assert_eq!(
        outcome.text().lines().next(),
        Some(format!("{}/venv", built.path).as_str())
    );
    assert!(
        outcome.text().contains("Read-only file system"),
        "{outcome:?}"
    );
    // A skill without packages does not get those of another one, and no command can list what there is.
    let plain = stage(client, &name, "plain").await?;
    assert_eq!((plain.environment, plain.problems), (None, Vec::new()));
    let hidden = run(
        client,
        &name,
        in_skill("plain", "python3 -c 'import skilld_compat_letters'"),
    )
    .await?;
    assert_eq!(hidden.exit_code(), Some(1));
    let listed = run(
        client,
        &name,
        in_skill("plain", "ls /opt/skilld/environments"),
    )
    .await?;
    assert_eq!((listed.exit_code(), listed.text().as_str()), (Some(2), ""));
    daemon.stop().await
}

#[tokio::test]
async fn uv_run_and_private_virtual_environments_work_offline() -> Result<()> {
    let fixture = Fixture::new().await?;
    let script = "# /// script\n# dependencies = [\"skilld-compat-letters\", \"requests\"]\n# ///\n\
                  import requests\nimport skilld_compat_letters as l\nprint(l.letter('Ada', 'x').splitlines()[0])\n";
    fixture.skill("inline", &[("scripts/x.py", script)])?;
    let daemon = Daemon::start_with(fixture.options()).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let staged = stage(client, &name, "inline").await?;
    assert_eq!(staged.problems, []);
    assert!(staged.environment.is_some());
    for command in ["uv run scripts/x.py", "python scripts/x.py"] {
        assert_eq!(
            output(client, &name, "inline", command).await?,
            "Hello, Ada!\n",
            "{command}"
        );
    }
    let venv = "python3 -m venv .venv && .venv/bin/pip install -q --no-index 'skilld-compat-greeting==1.1' \
                && .venv/bin/python -c 'import skilld_compat_greeting as g; print(g.__version__)' && python -c \
                'import sys; print(sys.prefix)'";
    let printed = output(client, &name, "inline", venv).await?;
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines[0], "1.1", "{printed}");
    // The private one now comes first.
    assert!(lines[1].ends_with("/.venv"), "{printed}");
    let uv = "uv venv -q work/other && uv pip install -q --python work/other skilld-compat-greeting && \
              work/other/bin/python -c 'import skilld_compat_greeting'";
    output(client, &name, "inline", uv).await?;
    let uv = "uv venv -q --clear && . .venv/bin/activate && uv pip install -q skilld-compat-greeting && \
              python -c 'import skilld_compat_greeting, sys; print(sys.prefix)'";
    let printed = output(client, &name, "inline", uv).await?;
    assert!(printed.ends_with("/.venv\n"), "{printed}");
    daemon.stop().await
}

#[tokio::test]
async fn two_stagings_of_a_new_environment_build_it_once() -> Result<()> {
    let fixture = Fixture::new().await?;
    fixture.skill(
        "one",
        &[("requirements.txt", "skilld-compat-greeting==1.0\n")],
    )?;
    fixture.skill(
        "other",
        &[(
            "pyproject.toml",
            "[project]\nname = \"x\"\ndependencies = [\"skilld-compat-greeting==1.0\"]\n",
        )],
    )?;
    let daemon = Daemon::start_with(fixture.options()).await?;
    let client = &daemon.client;
    let (a, b) = (workspace(client).await?.name, workspace(client).await?.name);
    let (first, second) = tokio::try_join!(stage(client, &a, "one"), stage(client, &b, "other"))?;
    let (first, second) = (
        first.environment.context("built")?,
        second.environment.context("built")?,
    );
    assert_eq!(first, second);
    let folders = fs::read_dir(daemon.state_dir().join("environments/mounted"))?.count();
    assert_eq!(folders, 1);

    // The files are other inodes in each workspace, so that no lock of one reaches the other.
    let file = format!("{}/venv/pyvenv.cfg", first.path);
    let lock = format!(
        "python3 -c \"import fcntl, time; f = open('{file}'); fcntl.flock(f, fcntl.LOCK_EX); open('out/locked', 'w'); \
         time.sleep(600)\""
    );
    start(client, &a, "lock", in_skill("one", &lock)).await?;
    let wait = "until [ -e out/locked ]; do sleep 0.01; done";
    output(client, &a, "one", wait).await?;
    let try_lock = format!("flock -n {file} echo free");
    let refused = run(client, &a, in_skill("one", &try_lock)).await?;
    assert_eq!(
        refused.exit_code(),
        Some(1),
        "the lock is held in its own workspace"
    );
    assert_eq!(output(client, &b, "other", &try_lock).await?, "free\n");
    daemon.stop().await
}

#[tokio::test]
async fn unbuildable_packages_are_a_problem_and_the_skill_still_runs() -> Result<()> {
    let fixture = Fixture::new().await?;
    let wrong_hash = format!(
        "skilld-compat-sealed==1.0 --hash=sha256:{}\n",
        "0".repeat(64)
    );
    let many: String = (0..10_000).map(|number| format!("x{number}\n")).collect();
    for (name, requirements) in [
        ("absent", "skilld-no-such-package\n"),
        (
            "conflict",
            "skilld-compat-greeting==1.0\nskilld-compat-greeting==1.1\n",
        ),
        ("sealed", &wrong_hash),
        ("option", "--index-url https://example.org/simple\n"),
        ("editable", "-e .\n"),
        ("url", "x @ https://example.org/x-1.0-py3-none-any.whl\n"),
        ("repository", "git+https://example.org/x.git\n"),
        ("many", &many),
    ] {
        fixture.skill(name, &[("requirements.txt", requirements)])?;
    }
    let daemon = Daemon::start_with(fixture.options()).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    for (skill, part) in [
        ("absent", "skilld-no-such-package"),
        ("conflict", "skilld-compat-greeting"),
        ("sealed", "skilld-compat-sealed"),
        ("option", "--index-url"),
        ("editable", "-e ."),
        ("url", "names a URL"),
        ("repository", "names a URL or a repository"),
        ("many", "more than 1000 requirements"),
    ] {
        let staged = stage(client, &name, skill).await?;
        assert_eq!(staged.environment, None, "{skill}");
        let messages: Vec<&str> = staged
            .problems
            .iter()
            .map(|problem| &*problem.message)
            .collect();
        // The rest of what is refused in parts is tried.
        assert_eq!(
            messages.len(),
            if skill == "many" { 2 } else { 1 },
            "{messages:?}"
        );
        assert!(messages[0].contains(part), "{skill}: {messages:?}");
        assert_eq!(
            output(client, &name, skill, "cat SKILL.md | head -1").await?,
            "---\n"
        );
    }
    // A failed build is not repeated by the next staging, but by PrepareSkill.
    let failures = || daemon.log().matches("environment was not built").count();
    let before = failures();
    stage(client, &name, "absent").await?;
    assert_eq!(failures(), before);
    let (lines, result) = prepare(client, "absent").await?;
    assert!(!lines.is_empty());
    assert_eq!(result.environment, None);
    assert!(
        result.problems[0]
            .message
            .contains("skilld-no-such-package"),
        "{result:?}"
    );
    expect_environments(&daemon, 0, 2).await?;
    daemon.stop().await
}

#[tokio::test]
async fn preparing_where_nothing_is_built_is_an_error() -> Result<()> {
    let fixture = Fixture::new().await?;
    fixture.skill("letters", &[("requirements.txt", "toolz\n")])?;
    fixture.skill("refused", &[("requirements.txt", "-e .\n")])?;
    let options = fixture.options().set("skills.environment_builds", "never");
    let daemon = Daemon::start_with(options).await?;
    for skill in ["letters", "refused"] {
        let (_, result) = prepare(&daemon.client, skill).await?;
        let [problem] = result.problems.as_slice() else {
            anyhow::bail!("{:?}", result.problems);
        };
        let subject = problem.subject.as_str();
        assert_eq!(
            (problem.severity(), subject),
            (ProblemSeverity::Error, skill)
        );
    }
    daemon.stop().await
}

#[tokio::test]
async fn prepared_environment_is_there_at_once_and_after_a_restart() -> Result<()> {
    let fixture = Fixture::new().await?;
    fixture.skill(
        "letters",
        &[("requirements.txt", "skilld-compat-letters\n")],
    )?;
    let options = fixture
        .options()
        .set("skills.environment_builds", "prepare");
    let mut daemon = Daemon::start_with(options).await?;
    let name = workspace(&daemon.client).await?.name;
    let staged = stage(&daemon.client, &name, "letters").await?;
    assert_eq!(staged.environment, None);
    assert!(
        staged.problems[0]
            .message
            .contains("skillctl skill prepare letters")
    );
    let (lines, result) = prepare(&daemon.client, "letters").await?;
    assert!(
        lines.iter().any(|line| line.contains("skilld/base")),
        "{lines:?}"
    );
    assert_eq!(result.problems, []);
    let built = result.environment.context("an environment")?;
    daemon.crash().await?;
    daemon.restart().await?;
    let (lines, again) = prepare(&daemon.client, "letters").await?;
    assert_eq!(
        (lines, again.environment.as_ref()),
        (Vec::new(), Some(&built))
    );
    let staged = stage(&daemon.client, &name, "letters").await?;
    let path = staged.environment.map(|environment| environment.path);
    assert_eq!((staged.problems, path), (Vec::new(), Some(built.path)));
    let python = format!("python3 -c \"{LETTERS}\"");
    assert_eq!(
        output(&daemon.client, &name, "letters", &python).await?,
        "Hello, Ada!\n"
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_lost_wheelhouse_is_a_problem_and_workspaces_still_start() -> Result<()> {
    let fixture = Fixture::new().await?;
    fixture.skill("plain", &[])?;
    let daemon = Daemon::start_with(fixture.options()).await?;
    let client = &daemon.client;
    daemon.warm(1).await?;
    fs::rename(fixture.wheels(), fixture.dir.path().join("away"))?;
    // The warm container has the wheels; the one after it is made without them.
    for _ in 0..2 {
        let name = workspace(client).await?.name;
        stage(client, &name, "plain").await?;
        assert_eq!(output(client, &name, "plain", "echo ran").await?, "ran\n");
    }
    let problems = client.list_problems(Default::default()).await?.problems;
    let codes: Vec<_> = problems.iter().map(|problem| &problem.code).collect();
    let expected = "environment.wheelhouse_unusable";
    ensure!(codes.iter().any(|code| *code == expected), "{codes:?}");
    daemon.stop().await
}

#[tokio::test]
async fn templates_of_a_skill_can_be_copied_and_edited() -> Result<()> {
    let fixture = Fixture::new().await?;
    fixture.skill(
        "site",
        &[
            ("assets/page.html", "<p>x</p>\n"),
            ("scripts/run.sh", "#!/bin/sh\necho ran\n"),
        ],
    )?;
    let daemon = Daemon::start_with(fixture.options()).await?;
    let name = workspace(&daemon.client).await?.name;
    stage(&daemon.client, &name, "site").await?;
    let text = "cp assets/page.html out/ && echo more >> out/page.html && sed -i s/x/y/ out/page.html && cat out/page.html \
                && stat -c %a assets/page.html scripts/run.sh assets && ./scripts/run.sh && cat /mnt/skills/site/SKILL.md | \
                head -1 && echo up > /mnt/user-data/outputs/up && cat out/up && ls -d /mnt/user-data/uploads/";
    let printed = output(&daemon.client, &name, "site", text).await?;
    assert_eq!(
        printed,
        "<p>y</p>\nmore\n644\n755\n755\nran\n---\nup\n/mnt/user-data/uploads/\n"
    );
    daemon.stop().await
}

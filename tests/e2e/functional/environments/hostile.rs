//! Packages that attack their build: each is a clear problem or does nothing, leaves nothing behind, and neither the
//! daemon nor another workspace notices.
//!
//! Docker: real packages attack a real build, which only the limits and the isolation of its container contain.

use skilld_client::v1::SkillEnvironment;
use skilld_tests::package_index::PackageIndex;

use super::*;

/// Program that writes the packages of these tests; it describes them.
const MAKE_HOSTILE: &str = "tests/environments/hostile_packages.py";

/// Daemon with a workspace that stages hostile skills, and another one.
struct AttackedDaemon {
    daemon: Daemon,
    workspace: String,
    neighbour: String,
    index: PackageIndex,
    _fixture: Fixture,
}

impl AttackedDaemon {
    /// Starts a daemon with a skill for each package, which has the package's name.
    async fn start(packages: &[&str], change: impl FnOnce(Options) -> Options) -> Result<Self> {
        let fixture = Fixture::with_packages(MAKE_HOSTILE).await?;
        for package in packages {
            fixture.skill(package, &[("requirements.txt", package)])?;
        }
        let index = PackageIndex::serve(&fixture.wheels()).await?;
        let options = index.for_python(fixture.options_without_wheels());
        let daemon = Daemon::start_with(change(options)).await?;
        Ok(Self {
            workspace: workspace(&daemon.client).await?.name,
            neighbour: workspace(&daemon.client).await?.name,
            daemon,
            index,
            _fixture: fixture,
        })
    }

    /// Stages a skill whose environment must be built.
    async fn built(&self, skill: &str) -> Result<SkillEnvironment> {
        let staged = stage(&self.daemon.client, &self.workspace, skill).await?;
        ensure!(staged.problems.is_empty(), "{:?}", staged.problems);
        staged.environment.context("an environment")
    }

    /// Stages a skill whose environment must be refused, and returns the problem's message. A second staging must not
    /// try again.
    async fn refused(&self, skill: &str) -> Result<String> {
        let client = &self.daemon.client;
        let staged = stage(client, &self.workspace, skill).await?;
        ensure!(staged.environment.is_none(), "{staged:?}");
        let [problem] = staged.problems.as_slice() else {
            anyhow::bail!("{:?}", staged.problems);
        };
        let requests = self.index.requests().len();
        let again = stage(client, &self.workspace, skill).await?;
        ensure!(again.problems == staged.problems, "{again:?}");
        ensure!(
            self.index.requests().len() == requests,
            "it was built again"
        );
        ensure!(output(client, &self.workspace, skill, "echo runs").await? == "runs\n");
        Ok(problem.message.clone())
    }

    /// Checks that there are this number of environments and nothing else of builds, and that both workspaces work.
    async fn is_well(&self, environments: usize) -> Result<()> {
        expect_environments(&self.daemon, environments, 3).await?;
        for workspace in [&self.workspace, &self.neighbour] {
            let outcome = run(&self.daemon.client, workspace, shell("echo well")).await?;
            ensure!(outcome.text() == "well\n", "{outcome:?}");
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_package_that_fills_the_disk_of_its_build_is_named() -> Result<()> {
    let small = |options: Options| options.set("skills.build_disk", "64MiB");
    let attacked = AttackedDaemon::start(&["hostile-bomb", "hostile-size"], small).await?;
    // One is small until it is unpacked; the other is not downloaded to its end.
    for (skill, name) in [
        ("hostile-bomb", "hostile-bomb==1.0"),
        ("hostile-size", "hostile_size-1.0"),
    ] {
        let message = attacked.refused(skill).await?;
        for part in [name, "skills.build_disk"] {
            assert!(message.contains(part), "{message}");
        }
    }
    attacked.is_well(0).await?;
    attacked.daemon.stop().await
}

#[tokio::test]
async fn a_source_distribution_runs_no_code_by_default() -> Result<()> {
    let attacked = AttackedDaemon::start(&["hostile-source"], |options| options).await?;
    let message = attacked.refused("hostile-source").await?;
    assert!(message.contains("hostile-source"), "{message}");
    assert!(message.contains("allow source builds"), "{message}");
    // It was not even fetched.
    let requests = attacked.index.requests();
    assert!(
        requests.iter().all(|path| !path.ends_with(".tar.gz")),
        "{requests:?}"
    );
    attacked.is_well(0).await?;
    attacked.daemon.stop().await
}

#[tokio::test]
async fn a_permitted_source_build_runs_in_an_offline_container() -> Result<()> {
    let permit = |options: Options| options.set("skills.source_builds", "true");
    let attacked = AttackedDaemon::start(&["hostile-source"], permit).await?;
    attacked.built("hostile-source").await?;
    let seen = output(
        &attacked.daemon.client,
        &attacked.workspace,
        "hostile-source",
        "python3 -c 'import hostile_source as x; print(x.ORIGIN, x.SEEN)'",
    );
    assert_eq!(
        seen.await?,
        "source ('sandbox', 'Network is unreachable')\n"
    );
    attacked.is_well(1).await?;
    attacked.daemon.stop().await
}

#[tokio::test]
async fn a_wheel_runs_no_build_code_and_writes_only_its_packages() -> Result<()> {
    let packages = ["hostile-start", "hostile-paths", "hostile-links"];
    let attacked = AttackedDaemon::start(&packages, |options| options).await?;
    let (client, workspace) = (&attacked.daemon.client, &attacked.workspace);
    let started = attacked.built("hostile-start").await?;
    let list = format!("ls {}", started.path);
    assert_eq!(
        output(client, workspace, "hostile-start", &list).await?,
        "environment.json\nvenv\nwheels\n"
    );

    // Members that lead out are left out; names of devices are those of files.
    let paths = attacked.built("hostile-paths").await?;
    let list = format!(
        "cd {}/venv/lib/python3*/site-packages && ls -d CON nul.py && stat -c %F dev/null && find {} -name climbed -o \
         -name absolute",
        paths.path, paths.path
    );
    assert_eq!(
        output(client, workspace, "hostile-paths", &list).await?,
        "CON\nnul.py\nregular file\n"
    );
    // A link is a file with the path that it would lead to.
    let links = attacked.built("hostile-links").await?;
    let read = format!(
        "cd {}/venv/lib/python3*/site-packages && stat -c %F hostile_link && cat hostile_link",
        links.path
    );
    assert_eq!(
        output(client, workspace, "hostile-links", &read).await?,
        "regular file\n/etc/passwd"
    );
    attacked.is_well(3).await?;
    attacked.daemon.stop().await
}

#[tokio::test]
async fn a_package_that_cannot_be_stored_is_reported_with_its_file() -> Result<()> {
    let attacked = AttackedDaemon::start(&["hostile-name"], |options| options).await?;
    let message = attacked.refused("hostile-name").await?;
    assert!(message.contains("backslash in its name"), "{message}");
    attacked.is_well(0).await?;
    attacked.daemon.stop().await
}

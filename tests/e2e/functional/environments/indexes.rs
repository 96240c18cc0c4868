//! Builds that get their packages from an index, through the daemon's proxy: their containers have no network.
//!
//! Docker: the container of a build has no network, so that its packages come only through the daemon's proxy.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};
use skilld_tests::package_index::PackageIndex;

use super::*;

/// Returns `sha256:` and the hash of a file.
fn hash_of(file: &Path) -> Result<String> {
    let digest = Sha256::digest(fs::read(file)?);
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{digits}"))
}

#[tokio::test]
async fn index_packages_are_installed_once_and_recorded_with_hashes() -> Result<()> {
    let fixture = Fixture::new().await?;
    for skill in ["letters", "other"] {
        fixture.skill(skill, &[("requirements.txt", "skilld-compat-letters\n")])?;
    }
    let index = PackageIndex::serve(&fixture.wheels()).await?;
    let daemon = Daemon::start_with(index.for_python(fixture.options_without_wheels())).await?;
    let client = &daemon.client;
    let (a, b) = (workspace(client).await?.name, workspace(client).await?.name);
    // Both wait for the same download.
    index.hold_files();
    let release = async {
        index.wait_for_request(".whl").await;
        index.release_files();
        Ok(())
    };
    let (first, second, ()) = tokio::try_join!(
        stage(client, &a, "letters"),
        stage(client, &b, "other"),
        release
    )?;
    assert_eq!((&first.problems, &second.problems), (&vec![], &vec![]));
    let built = first.environment.context("an environment")?;
    assert_eq!(second.environment.as_ref(), Some(&built));
    expect_environments(&daemon, 1, 3).await?;

    let files = [
        "skilld_compat_greeting-1.1-py3-none-any.whl",
        "skilld_compat_letters-1.0-py3-none-any.whl",
    ];
    let (_, skill) = prepare(client, "letters").await?;
    let prepared = skill.environment.context("an environment")?;
    assert_eq!(prepared.path, built.path);
    let recorded: BTreeSet<_> = prepared
        .packages
        .iter()
        .flat_map(|built| &built.hashes)
        .collect();
    for file in files {
        assert!(
            index.requests().contains(&format!("/files/{file}")),
            "{:?}",
            index.requests()
        );
        let hash = hash_of(&fixture.wheels().join(file))?;
        assert!(recorded.contains(&hash), "{file}: {recorded:?}");
    }
    let python = format!("python3 -c \"{LETTERS}\"");
    assert_eq!(output(client, &b, "other", &python).await?, "Hello, Ada!\n");
    daemon.stop().await
}

#[tokio::test]
async fn a_host_that_is_not_listed_is_not_reached_and_is_named() -> Result<()> {
    let fixture = Fixture::new().await?;
    fixture.skill(
        "letters",
        &[("requirements.txt", "skilld-compat-letters\n")],
    )?;
    let files = PackageIndex::serve(&fixture.wheels()).await?;
    let index = PackageIndex::serve_with_files_at(&fixture.wheels(), &files.url()).await?;
    let options = index.for_python(fixture.options_without_wheels());
    let mut daemon = Daemon::start_with(options).await?;
    let name = workspace(&daemon.client).await?.name;
    let staged = stage(&daemon.client, &name, "letters").await?;
    assert_eq!(staged.environment, None);
    let message = &staged.problems[0].message;
    let advice = format!("add {:?} to skills.package_hosts", files.host());
    assert!(message.contains(&advice), "{message}");
    assert_eq!(files.requests(), [""; 0]);
    expect_environments(&daemon, 0, 2).await?;

    daemon.crash().await?;
    daemon.heal("skills.package_hosts", &format!("[{:?}]", files.host()));
    daemon.restart().await?;
    let staged = stage(&daemon.client, &name, "letters").await?;
    assert_eq!(staged.problems, []);
    assert!(!files.requests().is_empty());
    daemon.stop().await
}

#[tokio::test]
async fn file_of_an_index_with_another_hash_is_not_installed() -> Result<()> {
    let fixture = Fixture::new().await?;
    let requirement = format!(
        "skilld-compat-sealed==1.0 --hash=sha256:{}\n",
        "0".repeat(64)
    );
    fixture.skill("sealed", &[("requirements.txt", &requirement)])?;
    let index = PackageIndex::serve(&fixture.wheels()).await?;
    let daemon = Daemon::start_with(index.for_python(fixture.options_without_wheels())).await?;
    let name = workspace(&daemon.client).await?.name;
    let staged = stage(&daemon.client, &name, "sealed").await?;
    assert_eq!(staged.environment, None);
    let message = &staged.problems[0].message;
    assert!(
        message.contains("skilld-compat-sealed==1.0 has another hash"),
        "{message}"
    );
    expect_environments(&daemon, 0, 2).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_build_whose_index_does_not_answer_ends_in_time() -> Result<()> {
    let fixture = Fixture::new().await?;
    fixture.skill(
        "letters",
        &[("requirements.txt", "skilld-compat-letters\n")],
    )?;
    let index = PackageIndex::serve(&fixture.wheels()).await?;
    index.hold_files();
    let options = index.for_python(fixture.options_without_wheels());
    let daemon = Daemon::start_with(options.set("skills.build_timeout", "4s")).await?;
    let name = workspace(&daemon.client).await?.name;
    let staged = stage(&daemon.client, &name, "letters").await?;
    assert_eq!(staged.environment, None);
    let message = &staged.problems[0].message;
    assert!(message.contains("skills.build_timeout"), "{message}");
    expect_environments(&daemon, 0, 2).await?;
    daemon.stop().await
}

#[tokio::test]
async fn uv_run_finds_packages_whether_the_index_answers_or_not() -> Result<()> {
    let fixture = Fixture::new().await?;
    let script = |package: &str| {
        let module = package.replace('-', "_");
        format!(
            "# /// script\n# dependencies = [\"{package}\"]\n# ///\nimport {module}\nprint('found')\n"
        )
    };
    fixture.skill("indexed", &[("x.py", &script("skilld-compat-letters"))])?;
    fixture.skill("provided", &[("x.py", &script("requests"))])?;
    let index = PackageIndex::serve(&fixture.wheels()).await?;
    let daemon = Daemon::start_with(index.for_python(fixture.options_without_wheels())).await?;
    let name = workspace(&daemon.client).await?.name;
    stage(&daemon.client, &name, "indexed").await?;
    let printed = output(&daemon.client, &name, "indexed", "uv run x.py").await?;
    assert_eq!(printed, "found\n");
    daemon.stop().await?;

    let down = fixture
        .options_without_wheels()
        .set("skills.package_index", "http://127.0.0.1:9/simple")
        .set("skills.allow_private_addresses", "true");
    let daemon = Daemon::start_with(down).await?;
    let name = workspace(&daemon.client).await?.name;
    let staged = stage(&daemon.client, &name, "provided").await?;
    assert_eq!(staged.problems, []);
    let printed = output(&daemon.client, &name, "provided", "uv run x.py").await?;
    assert_eq!(printed, "found\n");
    daemon.stop().await
}

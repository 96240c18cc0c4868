//! The recipes of README.md, docs/skillctl.md, exec.md, skills.md, files.md and artifacts.md, as they stand there, each
//! against a daemon of its own. `documents.rs` lists which test runs which section.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use skilld_client::v1::CreateWorkspaceRequest;
use skilld_tests::{Daemon, binaries};
use tempfile::TempDir;
use tokio::process::Command;

use crate::foreign::{output, venv};

/// Stands in for grpcurl, which no package registry of the tests has: the same calls, made by `buf curl`.
const GRPCURL: &str = r#"#!/usr/bin/env bash
set -euo pipefail
[ "$1 $2 $3" = '-plaintext -unix -d' ] && [ $# = 6 ]
exec buf curl --protocol grpc --http2-prior-knowledge --unix-socket "$5" --data "$4" "http://localhost/$6"
"#;

/// Stands in for cargo, which would build the example once more.
const CARGO: &str = r#"#!/usr/bin/env bash
set -euo pipefail
[ "$1 $2 $3 $4 $5 $6 $7" = 'run --quiet -p skilld-tools --example agent --' ]
exec agent "${@:8}"
"#;

/// Returns the code blocks of a section with their language; an empty title means the part before the first section.
pub(crate) fn blocks(document: &str, title: &str) -> Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(binaries::repository().join(document))?;
    let section = if title.is_empty() {
        text.as_str()
    } else {
        ["##", "###"]
            .iter()
            .find_map(|level| Some(text.split_once(&format!("\n{level} {title}\n"))?.1))
            .with_context(|| format!("{document} has no section {title}"))?
    };
    let section = section.split("\n### ").next().unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut found = Vec::new();
    let mut parts = section.split("\n```");
    parts.next();
    while let (Some(block), Some(_)) = (parts.next(), parts.next()) {
        let (language, code) = block.split_once('\n').context("an empty block")?;
        found.push((language.to_owned(), format!("{code}\n")));
    }
    assert!(!found.is_empty(), "{title} shows no code any more");
    Ok(found)
}

/// Directory of a reader of the document: beside `.demo/` and `proto/`, with the programs in PATH.
pub(crate) struct Place {
    pub(crate) daemon: Daemon,
    pub(crate) directory: TempDir,
    path: String,
    /// Additional environment variables of the blocks.
    pub(crate) env: Vec<(&'static str, String)>,
}

impl Place {
    pub(crate) async fn new() -> Result<Self> {
        let venv = venv::program("python").await?;
        let daemon = Daemon::start().await?;
        daemon
            .client
            .create_workspace(CreateWorkspaceRequest {
                name: "workspaces/my-session".to_owned(),
                ..CreateWorkspaceRequest::default()
            })
            .await?;
        let directory = tempfile::tempdir()?;
        symlink(daemon.state_dir(), directory.path().join(".demo"))?;
        symlink(
            binaries::repository().join("proto"),
            directory.path().join("proto"),
        )?;
        let bin = directory.path().join("bin");
        std::fs::create_dir(&bin)?;
        executable(&bin.join("grpcurl"), GRPCURL)?;
        executable(&bin.join("cargo"), CARGO)?;
        symlink(binaries::binary("skillctl")?, bin.join("skillctl"))?;
        symlink(binaries::example("agent")?, bin.join("agent"))?;
        let venv = venv.parent().map(Path::to_owned).context("bin")?;
        let path = [bin, venv, PathBuf::from("/usr/local/bin:/usr/bin:/bin")]
            .map(|part| part.display().to_string())
            .join(":");
        Ok(Self {
            daemon,
            directory,
            path,
            env: Vec::new(),
        })
    }

    /// Runs all blocks of a section of docs/exec.md, and returns what they printed.
    async fn run(&self, title: &str) -> Result<String> {
        self.run_of("docs/exec.md", title).await
    }

    /// Runs all blocks of a section of a document, and returns what they printed.
    pub(crate) async fn run_of(&self, document: &str, title: &str) -> Result<String> {
        let mut printed = String::new();
        for (language, code) in blocks(document, title)? {
            printed += &self
                .run_code(&language, &code)
                .await
                .with_context(|| title.to_owned())?;
        }
        Ok(printed)
    }

    /// Runs one block, and returns what it printed.
    pub(crate) async fn run_code(&self, language: &str, code: &str) -> Result<String> {
        let mut command = match language {
            "sh" => {
                let mut bash = Command::new("bash");
                bash.args(["-c", &format!("set -euo pipefail\n{code}")]);
                bash
            }
            "python" => {
                let mut python = Command::new("bash");
                python.args(["-c", "exec python -B -c \"$0\"", code]);
                python
            }
            other => anyhow::bail!("a block of {other}, which nobody runs"),
        };
        command
            .current_dir(self.directory.path())
            .env("PATH", &self.path)
            .env("HOME", self.directory.path())
            .env("SKILLD_ENDPOINT", self.daemon.endpoint())
            .envs(self.env.iter().cloned());
        output(&mut command).await
    }
}

fn executable(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[tokio::test]
async fn the_quick_start_does_what_it_says() -> Result<()> {
    let place = Place::new().await?;
    let repository = binaries::repository();
    symlink(
        repository.join("README.md"),
        place.directory.path().join("README.md"),
    )?;
    symlink(
        repository.join("tests"),
        place.directory.path().join("tests"),
    )?;
    place.daemon.client.delete_workspace("my-session").await?;
    let printed = place.run_of("README.md", "Run a skill").await?;
    for part in [
        "my-session\n",
        "inputs/notes.md\n",
        "drained; removed 0 workspaces",
    ] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    let report = place.directory.path().join("report/out/report.md");
    assert!(std::fs::metadata(report)?.len() > 100);
    place.daemon.stop().await
}

#[tokio::test]
async fn what_docs_skillctl_shows_does_what_it_says() -> Result<()> {
    let place = Place::new().await?;
    let printed = place.run_of("docs/skillctl.md", "").await?;
    assert_eq!(printed, "job-7\nsorted.csv\njob-7\n");
    let printed = place.run_of("docs/skillctl.md", "JSON").await?;
    let rest: Vec<&str> = printed.lines().skip(1).collect();
    assert_eq!(
        rest,
        ["hello", "1", r#"{"deleted":["job-8"]}"#],
        "{printed}"
    );
    let completion = place.run_of("docs/skillctl.md", "Completion");
    assert_eq!(completion.await?, "");
    place.daemon.stop().await
}

#[tokio::test]
async fn what_recipes_want_can_be_had() -> Result<()> {
    let place = Place::new().await?;
    place.daemon.client.delete_workspace("my-session").await?;
    let printed = place.run("Before the recipes").await?;
    assert_eq!(printed, "my-session\n");
    place.daemon.stop().await
}

#[tokio::test]
async fn skillctl_recipes_do_what_they_say() -> Result<()> {
    let place = Place::new().await?;
    let printed = place.run("skillctl").await?;
    let begin = "my-session/talk\nname? hello Ada\nits exit code: 3\napple\npear\nmy-session/nap\n";
    let rest = printed.strip_prefix(begin);
    let rest = rest.with_context(|| format!("it printed something else: {printed}"))?;
    for part in ["killed by client", "exit 3", "exit 0"] {
        assert!(rest.contains(part), "no {part:?} in {rest}");
    }
    place.daemon.stop().await
}

#[tokio::test]
async fn recipes_for_scripts_do_what_they_say() -> Result<()> {
    let place = Place::new().await?;
    let printed = place
        .run_of("docs/skills.md", "Scripts with skillctl")
        .await?;
    let (_, printed) = printed.split_once('{').with_context(|| printed.clone())?;
    assert_eq!(
        printed,
        "\"n\": 360, \"factors\": [2, 2, 2, 3, 3, 5]}\n1500\n12000\n7200\n"
    );
    place.daemon.stop().await
}

#[tokio::test]
async fn grpcurl_recipes_do_what_they_say() -> Result<()> {
    let place = Place::new().await?;
    let printed = place.run("grpcurl").await?;
    // The first poll brings the prompt alone, the second what follows, the stream everything.
    for text in ["password: ", r"\n9 letters\n", r"password: \n9 letters\n"] {
        let text = format!("\"text\": \"{text}\"");
        assert_eq!(printed.matches(&text).count(), 1, "{text} in {printed}");
    }
    assert!(printed.contains("\"open\": true"), "{printed}");
    assert!(printed.contains("\"committedOffset\": \"10\""), "{printed}");
    assert!(printed.contains("REASON_EXITED"), "{printed}");
    place.daemon.stop().await
}

#[tokio::test]
async fn python_recipes_with_generated_code_do_what_they_say() -> Result<()> {
    let place = Place::new().await?;
    let printed = place.run("Python, generated code").await?;
    assert_eq!(
        printed.trim_end(),
        "exit code 3, 700000 bytes sorted, REASON_EXITED"
    );
    place.daemon.stop().await
}

#[tokio::test]
async fn python_recipes_by_reflection_do_what_they_say() -> Result<()> {
    let place = Place::new().await?;
    let printed = place.run("Python, by reflection").await?;
    assert_eq!(
        printed.trim_end(),
        "['step 1', 'step 2', 'step 3'] REASON_KILLED_BY_CLIENT"
    );
    place.daemon.stop().await
}

#[tokio::test]
async fn recipes_for_reading_and_checking_skills_do_what_they_say() -> Result<()> {
    let place = Place::new().await?;
    let read = place
        .run_of("docs/skills.md", "Reading with skillctl")
        .await?;
    for part in ["\ncsv-report", "scripts/csv_report.py", "\n---\n"] {
        assert!(read.contains(part), "no {part:?} in {read}");
    }
    // Nothing to say is nothing on stdout.
    let checked = place.run_of("docs/skills.md", "Checking with skillctl");
    assert_eq!(checked.await?, "");
    place.daemon.stop().await
}

#[tokio::test]
async fn recipes_for_publishing_do_what_they_say() -> Result<()> {
    let place = Place::new().await?;
    let printed = place
        .run_of("docs/skills.md", "Publishing with skillctl")
        .await?;
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("greet 1.0 sha256:"), "{printed}");
    assert_eq!(lines[1], "hello Ada");
    assert!(lines[2].starts_with("greet 1.1 sha256:"), "{printed}");
    let listed: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("greet "))
        .collect();
    assert_eq!(listed.len(), 3, "1.0 is gone: {printed}");
    let printed = place
        .run_of("docs/skills.md", "The store with skillctl")
        .await?;
    for part in ["sha256:", " loaded, 0 rejected, 0 shadowed\n"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    place.daemon.stop().await
}

#[tokio::test]
async fn recipes_for_outputs_do_what_they_say() -> Result<()> {
    let place = Place::new().await?;
    let printed = place
        .run_of("docs/files.md", "Collecting with skillctl")
        .await?;
    let saved = "artifact://reports/out/report.md@0";
    for part in ["results/out/report.md", "# Sales", "out/plots/a.csv", saved] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    let printed = place
        .run_of("docs/files.md", "Collecting with grpcurl")
        .await?;
    assert!(
        printed.contains("artifact://job/out/result.txt@0"),
        "{printed}"
    );
    let printed = place
        .run_of("docs/files.md", "Collecting with Python")
        .await?;
    assert_eq!(printed.trim_end(), "out/numbers.csv text/csv\n3893 bytes");
    place.daemon.stop().await
}

#[tokio::test]
async fn recipes_for_inputs_do_what_they_say() -> Result<()> {
    let place = Place::new().await?;
    let staged = place.run_of("docs/files.md", "Staging with skillctl");
    let printed = staged.await?;
    for part in [
        "sales.csv@0\n",
        "work/docs/SKILL.md",
        "out/copy.csv",
        "work/again.csv",
    ] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    let end = "month,sales\nmay,3\nSKILL.md\n";
    assert!(printed.ends_with(end), "{printed}");
    let staged = place.run_of("docs/files.md", "Staging with grpcurl");
    let printed = staged.await?;
    for part in [
        "sales.csv@1\n",
        "\"work/inputs/hello.txt\"",
        "\"unchanged\": true",
    ] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    place.daemon.stop().await
}

#[tokio::test]
async fn recipes_for_artifacts_do_what_they_say() -> Result<()> {
    let place = Place::new().await?;
    let saved = place.run_of("docs/artifacts.md", "Artifacts with skillctl");
    let printed = saved.await?;
    for part in ["report.txt@0\n", "report.txt@1\n", "\nfirst\n"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    let listed = place.run_of("docs/artifacts.md", "Artifacts with grpcurl");
    let printed = listed.await?;
    for part in [
        "\"name\": \"artifacts/report.txt\"",
        "\"name\": \"artifacts/result.txt\"",
        "\"version\": \"1\"",
    ] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    place.daemon.stop().await
}

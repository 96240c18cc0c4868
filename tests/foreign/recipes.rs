//! The recipes of docs/exec.md, skills.md, files.md and artifacts.md, as they stand there, each against a daemon of its
//! own.
//! Terminals are tested by `functional::terminal_cli`.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use skilld_client::v1::CreateWorkspaceRequest;
use skilld_tests::{Daemon, binaries};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{output, venv};

/// Stands in for grpcurl, which no package registry of the tests has: the same calls, made by `buf curl`.
const GRPCURL: &str = r#"#!/usr/bin/env bash
set -euo pipefail
[ "$1 $2 $3" = '-plaintext -unix -d' ] && [ $# = 6 ]
exec buf curl --protocol grpc --http2-prior-knowledge --unix-socket "$5" --data "$4" "http://localhost/$6"
"#;

/// Code blocks of the section with this title, with their language.
pub(crate) fn blocks(document: &str, title: &str) -> Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(binaries::repository().join(document))?;
    let section = ["##", "###"]
        .iter()
        .find_map(|level| Some(text.split_once(&format!("\n{level} {title}\n"))?.1))
        .with_context(|| format!("{document} has no section {title}"))?;
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

/// Where a reader of the document would be: beside `.demo/` and `proto/`, with the programs on the path.
pub(crate) struct Place {
    pub(crate) daemon: Daemon,
    pub(crate) directory: TempDir,
    path: String,
    /// Of what is run, besides.
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

    /// The same of another document.
    pub(crate) async fn run_of(&self, document: &str, title: &str) -> Result<String> {
        let mut printed = String::new();
        for (language, code) in blocks(document, title)? {
            let mut command = match language.as_str() {
                "sh" => {
                    let mut bash = Command::new("bash");
                    bash.args(["-c", &format!("set -euo pipefail\n{code}")]);
                    bash
                }
                "python" => {
                    let mut python = Command::new("bash");
                    python.args(["-c", "exec python -B -c \"$0\"", &code]);
                    python
                }
                other => anyhow::bail!("{title} has a block of {other}, which nobody runs"),
            };
            command
                .current_dir(self.directory.path())
                .env("PATH", &self.path)
                .env("HOME", self.directory.path())
                .env("SKILLD_ENDPOINT", self.daemon.endpoint())
                .envs(self.env.iter().cloned());
            printed += &output(&mut command).await?;
        }
        Ok(printed)
    }
}

fn executable(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
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

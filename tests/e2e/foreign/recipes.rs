//! The commands of README.md and docs/, typed as a reader types them: from a page's first line to its last, into one
//! shell, with one daemon. `documents.rs` lists which test types which section.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use skilld_client::v1::CreateWorkspaceRequest;
use skilld_tests::{Daemon, binaries};
use tempfile::TempDir;
use tokio::process::Command;

use crate::foreign::{documents, output, venv};

/// Stands in for grpcurl, which no package registry of the tests has: the same calls, made by `buf curl`.
const GRPCURL: &str = r#"#!/usr/bin/env bash
set -euo pipefail
[ "$1 $2" = '-plaintext -d' ] && [ $# = 5 ] && [[ $4 = unix:* ]]
exec buf curl --protocol grpc --http2-prior-knowledge --unix-socket "${4#unix:}" --data "$3" "http://localhost/$5"
"#;

/// Stands in for cargo, which would build the example once more.
const CARGO: &str = r#"#!/usr/bin/env bash
set -euo pipefail
[ "$1 $2 $3 $4 $5 $6 $7" = 'run --quiet -p skilld-tools --example agent --' ]
exec agent "${@:8}"
"#;

/// Stands in for Python where a page makes a virtual environment: gives it the one that all tests share.
const PYTHON3: &str = r#"#!/usr/bin/env bash
set -euo pipefail
[ "$*" = '-m venv .venv' ] || exec python "$@"
ln -sfn "$(dirname "$(dirname "$(command -v python)")")" .venv
"#;

/// A section of a page that shows code.
#[derive(Default)]
pub(crate) struct Section {
    /// Empty before the first section.
    pub(crate) title: String,
    /// Language and code of each block.
    pub(crate) blocks: Vec<(String, String)>,
    /// Output that the page shows for its commands; empty if it shows none.
    prints: String,
}

/// Returns the sections of a page that show code, in its order.
pub(crate) fn sections(document: &str) -> Result<Vec<Section>> {
    let text = std::fs::read_to_string(binaries::repository().join(document))?;
    let mut found = vec![Section::default()];
    let (mut block, mut in_output) = (None, false);
    for line in text.lines() {
        let section = found.last_mut().context("a section")?;
        match (&mut block, line.strip_prefix("```")) {
            (Some(_), Some(_)) => section.blocks.extend(block.take()),
            (None, Some(language)) => block = Some((language.to_owned(), String::new())),
            (Some((_, code)), None) => *code += &format!("{line}\n"),
            (None, None) if line.starts_with("##") => found.push(Section {
                title: line.trim_start_matches('#').trim().to_owned(),
                ..Section::default()
            }),
            (None, None) => {
                in_output = line == "It prints:"
                    || in_output && (line.is_empty() || line.starts_with("    "));
                if let Some(printed) = line.strip_prefix("    ").filter(|_| in_output) {
                    section.prints += &format!("{printed}\n");
                }
            }
        }
    }
    found.retain(|section| !section.blocks.is_empty());
    Ok(found)
}

/// Returns the code blocks of a section with their language.
pub(crate) fn blocks(document: &str, title: &str) -> Result<Vec<(String, String)>> {
    let mut sections = sections(document)?.into_iter();
    let section = sections.find(|section| section.title == title);
    let section =
        section.with_context(|| format!("{document} has no section {title} with code"))?;
    Ok(section.blocks)
}

/// Returns the commands of a block as a script, and the output that the block shows.
fn script(language: &str, code: &str) -> (String, String) {
    match language {
        "sh" => (code.to_owned(), String::new()),
        "python" => (
            format!("python -B - <<'END_OF_BLOCK'\n{code}END_OF_BLOCK\n"),
            String::new(),
        ),
        "js" => (
            format!("node --input-type=module - <<'END_OF_BLOCK'\n{code}END_OF_BLOCK\n"),
            String::new(),
        ),
        "console" => {
            let (mut commands, mut shown, mut continues) = (String::new(), String::new(), false);
            for line in code.lines() {
                let command = line.strip_prefix("$ ").or(continues.then_some(line));
                if let Some(command) = command {
                    continues = command.ends_with('\\');
                    commands += command;
                    commands += if continues { "\n" } else { " 2>&1\n" };
                } else {
                    shown += &format!("{line}\n");
                }
            }
            (commands, shown)
        }
        _ => Default::default(),
    }
}

/// Directory of a reader: beside `.demo/` and parts of the repository, with the programs in PATH.
pub(crate) struct Place {
    pub(crate) daemon: Daemon,
    pub(crate) directory: TempDir,
    /// PATH of the commands.
    pub(crate) path: String,
    /// Additional environment variables of the blocks.
    pub(crate) env: Vec<(&'static str, String)>,
}

impl Place {
    pub(crate) async fn new() -> Result<Self> {
        let python = venv::program("python").await?;
        let daemon = Daemon::start().await?;
        daemon
            .client
            .create_workspace(CreateWorkspaceRequest {
                workspace_id: "my-session".to_owned(),
                ..CreateWorkspaceRequest::default()
            })
            .await?;
        let directory = tempfile::tempdir()?;
        symlink(daemon.state_dir(), directory.path().join(".demo"))?;
        for name in ["README.md", "proto", "tests"] {
            symlink(
                binaries::repository().join(name),
                directory.path().join(name),
            )?;
        }
        let bin = directory.path().join("bin");
        std::fs::create_dir(&bin)?;
        executable(&bin.join("grpcurl"), GRPCURL)?;
        executable(&bin.join("cargo"), CARGO)?;
        executable(&bin.join("python3"), PYTHON3)?;
        symlink(binaries::binary("skillctl")?, bin.join("skillctl"))?;
        symlink(binaries::example("agent")?, bin.join("agent"))?;
        let venv = python.parent().map(Path::to_owned).context("bin")?;
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

    /// Types the sections of a page that this test covers into one shell, in the page's order, and returns what each of
    /// them printed. What the page says that they print is compared here.
    pub(crate) async fn type_page(
        &self,
        document: &str,
        test: &str,
    ) -> Result<BTreeMap<String, String>> {
        let titles = documents::titles(document, test);
        let (mut typed, mut shown) = (String::new(), BTreeMap::new());
        for section in sections(document)? {
            if !titles.contains(&section.title.as_str()) {
                continue;
            }
            typed += &format!("printf '\\036%s\\036' '{}'\n", section.title);
            let mut prints = section.prints;
            for (language, code) in &section.blocks {
                let (commands, output) = script(language, code);
                typed += &commands;
                prints += &output;
            }
            shown.insert(section.title, prints);
        }
        ensure!(!shown.is_empty(), "{test} types nothing of {document}");
        let all = self.run(&typed).await.context(document.to_owned())?;
        let mut printed = BTreeMap::new();
        for [title, text] in all
            .split('\u{1e}')
            .skip(1)
            .collect::<Vec<_>>()
            .as_chunks()
            .0
        {
            let shown = &shown[*title];
            let (expected, got) = (without_times(shown), without_times(text));
            ensure!(
                shown.is_empty() || apart(&expected) == apart(&got),
                "{document}, {title}: it shows\n{shown}and prints\n{text}"
            );
            printed.insert((*title).to_owned(), (*text).to_owned());
        }
        Ok(printed)
    }

    /// Runs all blocks of a section of a page, and returns what they printed.
    pub(crate) async fn run_of(&self, document: &str, title: &str) -> Result<String> {
        let mut typed = String::new();
        for (language, code) in blocks(document, title)? {
            typed += &script(&language, &code).0;
        }
        self.run(&typed).await.with_context(|| title.to_owned())
    }

    /// Runs commands in a shell, and returns what they printed.
    pub(crate) async fn run(&self, commands: &str) -> Result<String> {
        let mut bash = Command::new("bash");
        bash.args(["-c", &format!("set -euo pipefail\n{commands}")])
            .current_dir(self.directory.path())
            .env("PATH", &self.path)
            .env("HOME", self.directory.path())
            .env("SKILLD_ENDPOINT", self.daemon.endpoint())
            .envs(self.env.iter().cloned());
        output(&mut bash).await
    }
}

/// Returns the lines of a program's progress and the others. The progress comes on stderr, so its place among the lines
/// of stdout is not promised.
fn apart(text: &str) -> (Vec<&str>, Vec<&str>) {
    text.lines().partition(|line| line.starts_with("read "))
}

/// Returns the text with one word in place of every time, which differs from run to run.
fn without_times(text: &str) -> String {
    let is_time =
        |word: &&str| word.len() == 20 && word.ends_with('Z') && word.find('T') == Some(10);
    let times = text.split_whitespace().filter(is_time);
    times.fold(text.to_owned(), |text, time| text.replace(time, "TIME"))
}

/// Fails unless the printed text has all these parts.
pub(crate) fn has_all(printed: &str, parts: &[&str]) {
    for part in parts {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
}

fn executable(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// The calls of README.md answer in JSON, one document after another.
fn check_calls(printed: &str) -> Result<()> {
    let answers: Vec<Value> = serde_json::Deserializer::from_str(printed)
        .into_iter::<Value>()
        .collect::<Result<_, _>>()?;
    let found = |pointer: &str| answers.iter().find_map(|answer| answer.pointer(pointer));
    assert_eq!(found("/name"), Some(&"workspaces/my-session".into()));
    assert_eq!(found("/skills/0/name"), Some(&"skills/python-math".into()));
    let texts = answers
        .iter()
        .filter_map(|answer| answer.pointer("/output/text")?.as_str());
    assert_eq!(texts.collect::<String>(), "354224848179261915075\n");
    assert!(found("/closed").is_some(), "{printed}");
    Ok(())
}

/// Checks the output in the answers to two polls and in the events of a stream: the first poll brings the prompt alone,
/// the second some of what follows, the stream everything.
fn check_texts(printed: &str) -> Result<()> {
    let answers = serde_json::Deserializer::from_str(printed).into_iter::<Value>();
    let (mut polled, mut streamed) = (Vec::<String>::new(), String::new());
    for answer in answers {
        let answer = answer?;
        let text = answer.pointer("/output/text").and_then(Value::as_str);
        streamed += text.unwrap_or_default();
        if answer.get("nextOffsets").is_some() {
            let pieces = answer["outputs"].as_array().into_iter().flatten();
            polled.push(pieces.filter_map(|piece| piece["text"].as_str()).collect());
        }
    }
    let [first, second]: [String; 2] = polled.try_into().ok().context("two polls")?;
    let (prompt, rest) = ("password: ", "\n9 letters\n");
    assert_eq!(streamed, format!("{prompt}{rest}"));
    assert_eq!(first, prompt, "{printed}");
    // Output has settled when none came for a moment.
    let is_begin = !second.is_empty() && rest.starts_with(&second);
    assert!(is_begin, "{printed}");
    Ok(())
}

#[tokio::test]
async fn readme_typed_from_top_to_bottom_does_what_it_shows() -> Result<()> {
    let place = Place::new().await?;
    place.daemon.client.delete_workspace("my-session").await?;
    let test = "readme_typed_from_top_to_bottom_does_what_it_shows";
    let printed = place.type_page("README.md", test).await?;
    has_all(
        &printed["Run a skill"],
        &["my-session\n", "inputs/notes.md\n"],
    );
    check_calls(&printed["From any language"])?;
    has_all(&printed["Clean up"], &["drained; removed 0 workspaces"]);
    let report = place.directory.path().join("report/out/report.md");
    assert!(std::fs::metadata(report)?.len() > 100);
    place.daemon.stop().await
}

#[tokio::test]
async fn docs_skillctl_typed_whole_does_what_it_shows() -> Result<()> {
    let place = Place::new().await?;
    let test = "docs_skillctl_typed_whole_does_what_it_shows";
    let printed = place.type_page("docs/skillctl.md", test).await?;
    let lines: Vec<&str> = printed["JSON"].lines().skip(1).collect();
    assert_eq!(lines, ["hello", "1", r#"{"deleted":["job-8"]}"#]);
    assert_eq!(printed["Completion"], "");
    place.daemon.stop().await
}

#[tokio::test]
async fn docs_exec_typed_whole_does_what_it_shows() -> Result<()> {
    let place = Place::new().await?;
    place.daemon.client.delete_workspace("my-session").await?;
    let test = "docs_exec_typed_whole_does_what_it_shows";
    let printed = place.type_page("docs/exec.md", test).await?;
    assert_eq!(printed["Before the recipes"], "my-session\n");
    let begin = "my-session/talk\nname? hello Ada\nits exit code: 3\napple\npear\nmy-session/nap\n";
    let shell = &printed["skillctl"];
    let rest = shell.strip_prefix(begin).with_context(|| shell.clone())?;
    has_all(rest, &["killed by client", "exit 3", "exit 0"]);
    let calls = &printed["grpcurl"];
    check_texts(calls)?;
    has_all(
        calls,
        &[
            "\"openStdin\": true",
            "\"committedOffset\": \"10\"",
            "EXIT_REASON_EXITED",
        ],
    );
    let generated = printed["Python, generated code"].trim_end();
    assert_eq!(
        generated,
        "exit code 3, 700000 bytes sorted, EXIT_REASON_EXITED"
    );
    let title = "All in one call, from generated code";
    has_all(&printed[title], &["wrote report.md", "## Columns"]);
    let code = blocks("docs/exec.md", title)?;
    assert_eq!(code[1].1.lines().count(), 12);
    let reflected = printed["Python, by reflection"].trim_end();
    assert_eq!(
        reflected,
        "['step 1', 'step 2', 'step 3'] EXIT_REASON_KILLED_BY_CLIENT"
    );
    place.daemon.stop().await
}

#[tokio::test]
async fn docs_workspaces_typed_whole_does_what_it_shows() -> Result<()> {
    let place = Place::new().await?;
    let test = "docs_workspaces_typed_whole_does_what_it_shows";
    let printed = place.type_page("docs/workspaces.md", test).await?;
    let printed = &printed["Workspaces with skillctl"];
    let parts = [
        "job-7\nmetadata.json\nout\nruns\nskills\nwork\nen\n",
        "\njob-7 expires in 1h 59m",
        "\njob-7  ready  default  ",
    ];
    has_all(printed, &parts);
    assert!(printed.ends_with("\njob-7\n"), "{printed}");
    place.daemon.stop().await
}

/// Types the pages about skills, with one daemon. The last one publishes a skill, which the others do not expect.
#[tokio::test]
async fn docs_about_skills_typed_whole_do_what_they_show() -> Result<()> {
    let place = Place::new().await?;
    let test = "docs_about_skills_typed_whole_do_what_they_show";
    let printed = place.type_page("docs/running-scripts.md", test).await?;
    let scripts = &printed["Scripts with skillctl"];
    let (_, scripts) = scripts.split_once('{').with_context(|| scripts.clone())?;
    assert_eq!(
        scripts,
        "\"n\": 360, \"factors\": [2, 2, 2, 3, 3, 5]}\n1500\n12000\n7200\n"
    );
    let printed = place.type_page("docs/reading-skills.md", test).await?;
    let read = &printed["Reading with skillctl"];
    has_all(read, &["\ncsv-report", "scripts/csv_report.py", "\n---\n"]);
    let printed = place.type_page("docs/checking-skills.md", test).await?;
    // Nothing to say is nothing on stdout.
    assert_eq!(printed["Checking with skillctl"], "");
    let printed = place.type_page("docs/skill-sources.md", test).await?;
    let store = &printed["The store with skillctl"];
    has_all(store, &["sha256:", " loaded, 0 rejected, 0 shadowed\n"]);
    let printed = place.type_page("docs/publishing-skills.md", test).await?;
    let lines: Vec<&str> = printed["Publishing with skillctl"].lines().collect();
    assert!(lines[0].starts_with("greet 1.0 sha256:"), "{lines:?}");
    assert_eq!(lines[1], "hello Ada");
    assert!(lines[2].starts_with("greet 1.1 sha256:"), "{lines:?}");
    let listed = lines.iter().filter(|line| line.starts_with("greet "));
    assert_eq!(listed.count(), 3, "1.0 is gone: {lines:?}");
    place.daemon.stop().await
}

#[tokio::test]
async fn docs_files_typed_whole_does_what_it_shows() -> Result<()> {
    let place = Place::new().await?;
    let test = "docs_files_typed_whole_does_what_it_shows";
    let printed = place.type_page("docs/files.md", test).await?;
    let staged = &printed["Staging with skillctl"];
    has_all(
        staged,
        &[
            "sales.csv@0\n",
            "work/docs/SKILL.md",
            "out/copy.csv",
            "work/again.csv",
        ],
    );
    assert!(
        staged.ends_with("month,sales\nmay,3\nSKILL.md\n"),
        "{staged}"
    );
    let saved = "artifact://reports/out/report.md@0";
    let collected = &printed["Collecting with skillctl"];
    has_all(
        collected,
        &["results/out/report.md", "# Sales", "out/plots/a.csv", saved],
    );
    let staged = &printed["Staging with grpcurl"];
    has_all(
        staged,
        &[
            "sales.csv@1\n",
            "\"work/inputs/hello.txt\"",
            "\"unchanged\": true",
        ],
    );
    has_all(
        &printed["Collecting with grpcurl"],
        &["artifact://job/out/result.txt@0"],
    );
    let collected = &printed["Collecting with Python"];
    has_all(collected, &["out/numbers.csv text/csv\n3893 bytes\n"]);
    place.daemon.stop().await
}

#[tokio::test]
async fn docs_artifacts_typed_whole_does_what_it_shows() -> Result<()> {
    let place = Place::new().await?;
    let test = "docs_artifacts_typed_whole_does_what_it_shows";
    let printed = place.type_page("docs/artifacts.md", test).await?;
    let saved = &printed["Artifacts with skillctl"];
    has_all(saved, &["report.txt@0\n", "report.txt@1\n", "\nfirst\n"]);
    let listed = &printed["Artifacts with grpcurl"];
    let names = [
        "\"name\": \"artifacts/report.txt\"",
        "\"name\": \"artifacts/result.txt\"",
        "\"version\": \"1\"",
    ];
    has_all(listed, &names);
    place.daemon.stop().await
}

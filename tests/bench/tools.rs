//! Section `tools`: a run of a staged skill through the tool layer, as a model's call makes it; beside the same done
//! with Docker's API the way container executors of agent frameworks do it: each step an exec of a login shell, each
//! file an archive.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use skilld_client::{Client, new_exec_id, workspace_name};
use skilld_proto::v1::{CollectOutputsRequest, CollectSpec, ExecSpec, RunExecRequest};
use skilld_tests::Daemon;
use skilld_tools::host_tools::HostTools;
use skilld_tools::state::SessionState;
use skilld_tools::{Session, ToolCall, ToolOptions, Toolset};

use crate::reference::{ContainerLimits, DockerReference};
use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls};

const SKILL: &str = "bench-skill";

/// Budget of a warm call: 3 ms.
const SOON: Budget = Budget::Soon {
    p50: Some(3_000_000),
    p99: None,
};

pub(crate) async fn tools(
    bench: &BenchOptions,
    reference: &DockerReference,
) -> Result<Vec<TableRow>> {
    let root = tempfile::Builder::new().prefix("skb").tempdir()?;
    let skill = root.path().join(SKILL);
    std::fs::create_dir_all(&skill)?;
    let about = format!("---\nname: {SKILL}\ndescription: Measured.\n---\n# {SKILL}\n");
    std::fs::write(skill.join("SKILL.md"), about)?;
    let daemon = Daemon::start_with(daemon_calls::daemon_options().skills(root.path())).await?;
    let tools = Toolset::new(
        daemon.client.clone(),
        ToolOptions::default(),
        HostTools::new(),
    )?;
    let session = Session {
        session: "bench".into(),
        ..Session::default()
    };
    let container = reference
        .create_container(ContainerLimits {
            memory_bytes: 512 << 20,
            cpus: 1,
        })
        .await?;
    prepare(reference, &container).await?;
    let mut rows = Vec::new();
    for (what, arguments, file) in [
        (
            "skill_run of `true`",
            json!({"skill": SKILL, "command": "true"}),
            false,
        ),
        (
            "skill_run, one output collected",
            json!({"skill": SKILL, "command": "echo hello > $OUTPUT_DIR/a.txt", "output_files": ["out/*.txt"]}),
            true,
        ),
    ] {
        let (mut skilld, mut docker) = (FigureSeries::times(), FigureSeries::times());
        for turn in 0..bench.times(1_000, 50) + 3 {
            let took = ours_once(&tools, &session, &arguments, file).await?;
            // The first ones make the workspace and warm up the page cache.
            if turn >= 3 {
                skilld.time(took)?;
            }
            if turn >= 3 && turn % 10 == 0 {
                docker.time(docker_once(reference, &container, file).await?)?;
            }
        }
        let faster = TableRow::new(what, &skilld, Budget::Faster(25.0, None));
        rows.push(faster.against("4 execs and archives (API)", &docker));
        rows.push(TableRow::new(what, &skilld, SOON));
    }
    let workspace = workspace_name(&session.workspace_id());
    let mut calls = Calls::default();
    for _ in 0..bench.times(1_000, 50) {
        calls.once(&daemon.client, &workspace).await?;
    }
    rows.extend(calls.rows());
    reference.remove_container(&container).await?;
    tools.end(&session).await?;
    daemon.stop().await?;
    Ok(rows)
}

async fn ours_once(
    tools: &Toolset,
    session: &Session,
    arguments: &Value,
    file: bool,
) -> Result<std::time::Duration> {
    let call = ToolCall {
        id: new_exec_id(),
        name: "skill_run".into(),
        arguments: arguments.clone(),
    };
    let started = Instant::now();
    let answer = tools.call(session, &SessionState::new(), call).await?;
    let took = started.elapsed();
    let result = answer.result;
    ensure!(result.pointer("/exit_code") == Some(&json!(0)), "{result}");
    if file {
        let content = result.pointer("/output_files/0/content");
        ensure!(content == Some(&json!("hello\n")), "{result}");
    }
    Ok(took)
}

/// Creates the folders of the reference's workspace.
async fn prepare(reference: &DockerReference, container: &str) -> Result<()> {
    let made =
        "mkdir -p /tmp/ws/{out,work,runs,skills/bench-skill} && echo {} > /tmp/ws/metadata.json";
    reference.exec(container, &["bash", "-lc", made]).await?;
    Ok(())
}

/// Runs the reference's steps: list and get the metadata, check links, run the program, list and get its outputs.
async fn docker_once(
    reference: &DockerReference,
    container: &str,
    file: bool,
) -> Result<std::time::Duration> {
    let mut execs = Vec::new();
    let mut shell = async |script: &str| -> Result<()> {
        let (exec, _, _) = reference
            .exec_with_id(container, &["bash", "-lc", script])
            .await?;
        execs.push(exec);
        Ok(())
    };
    let started = Instant::now();
    shell("cd /tmp/ws && for f in metadata.json; do readlink -f \"$f\"; done").await?;
    reference
        .download(container, "/tmp/ws/metadata.json")
        .await?;
    shell("test -L /tmp/ws/skills/bench-skill/out; true").await?;
    let program = if file {
        "mkdir -p /tmp/ws/runs/r /tmp/ws/out && cd /tmp/ws/skills/bench-skill && echo hello > /tmp/ws/out/a.txt"
    } else {
        "mkdir -p /tmp/ws/runs/r /tmp/ws/out && cd /tmp/ws/skills/bench-skill && true"
    };
    shell(program).await?;
    shell("cd /tmp/ws && shopt -s globstar nullglob dotglob && for f in out/**; do readlink -f \"$f\"; done").await?;
    if file {
        reference.download(container, "/tmp/ws/out/a.txt").await?;
    }
    let took = started.elapsed();
    // A failed step would be too fast to count.
    for exec in execs {
        reference.check_success(&exec).await?;
    }
    Ok(took)
}

/// Times of the single calls to the daemon that a run of `true` consists of.
#[derive(Debug, Default)]
struct Calls {
    stage: FigureSeries,
    run: FigureSeries,
    collect: FigureSeries,
}

impl Calls {
    async fn once(&mut self, client: &Client, workspace: &str) -> Result<()> {
        let started = Instant::now();
        client.stage_skills(workspace, &[SKILL]).await?;
        self.stage.time(started.elapsed())?;

        let started = Instant::now();
        let exec_id = new_exec_id();
        let spec = ExecSpec {
            skill: SKILL.into(),
            shell: "true".into(),
            ..ExecSpec::default()
        };
        let mut events = client.run_resuming(RunExecRequest {
            parent: workspace.to_owned(),
            exec_id: exec_id.clone(),
            spec: Some(spec),
            ..RunExecRequest::default()
        });
        while events.next().await?.is_some() {}
        self.run.time(started.elapsed())?;

        let started = Instant::now();
        let spec = CollectSpec {
            globs: vec!["out/**".into()],
            max_files: 20,
            changed_since_exec: format!("{workspace}/execs/{exec_id}"),
            ..CollectSpec::default()
        };
        let mut collected = client
            .collect(CollectOutputsRequest {
                workspace: workspace.to_owned(),
                spec: Some(spec),
            })
            .await?;
        while collected.next().await?.is_some() {}
        self.collect.time(started.elapsed())?;
        Ok(())
    }

    fn rows(&self) -> [TableRow; 3] {
        [
            ("of it, StageSkills of what is staged", &self.stage),
            ("of it, RunExec of `true`", &self.run),
            ("of it, CollectOutputs of what it changed", &self.collect),
        ]
        .map(|(what, series)| TableRow::new(what, series, Budget::None))
    }
}

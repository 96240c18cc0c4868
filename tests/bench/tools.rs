//! Section `tools`: a run of a staged skill through the tool layer, as a model's call makes it; beside the same done
//! with Docker's API the way container executors of agent frameworks do it: each step an exec of a login shell, each
//! file an archive.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use skilld_client::{Client, new_exec_id, workspace_name};
use skilld_proto::v1::{CollectSpec, ExecSpec, RunExecRequest, RunOutputs};
use skilld_tests::Daemon;
use skilld_tools::host_tools::HostTools;
use skilld_tools::state::SessionState;
use skilld_tools::{Session, ToolCall, ToolOptions, Toolset};

use crate::reference::{ContainerLimits, DockerReference};
use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls};

const SKILL: &str = "bench-skill";

/// Budget of a warm call: 1.2 times the call of the API that it makes, and 1 ms.
const OVER_BARE: Budget = Budget::WithinAnd(1.2, 1_000_000);

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
    let workspace = workspace_name(&session.workspace_id());
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
        let [mut skilld, mut bare, mut docker] = std::array::from_fn(|_| FigureSeries::times());
        for turn in 0..bench.times(1_000, 50) + 3 {
            let took = ours_once(&tools, &session, &arguments, file).await?;
            // The first ones make the workspace and warm up the page cache.
            let bare_took = bare_once(&daemon.client, &workspace, &arguments, file).await?;
            if turn >= 3 {
                skilld.time(took)?;
                bare.time(bare_took)?;
            }
            if turn >= 3 && turn % 10 == 0 {
                docker.time(docker_once(reference, &container, file).await?)?;
            }
        }
        let faster = TableRow::new(what, &skilld, Budget::Faster(25.0, None));
        rows.push(faster.against("4 execs and archives (API)", &docker));
        let over = TableRow::new(what, &skilld, OVER_BARE);
        rows.push(over.against("one bare RunExec of the same", &bare));
    }
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

/// Does the same in one call of the API, which stages and collects likewise, without the tool layer.
async fn bare_once(
    client: &Client,
    workspace: &str,
    arguments: &Value,
    file: bool,
) -> Result<std::time::Duration> {
    let shell = arguments.get("command").and_then(Value::as_str);
    let spec = ExecSpec {
        skill: SKILL.into(),
        shell: shell.unwrap_or_default().to_owned(),
        ..ExecSpec::default()
    };
    let globs = if file { "out/*.txt" } else { "out/**" };
    let outputs = RunOutputs {
        spec: Some(CollectSpec {
            globs: vec![globs.to_owned()],
            ..CollectSpec::default()
        }),
        changed_only: true,
        ..RunOutputs::default()
    };
    let request = RunExecRequest {
        parent: workspace.to_owned(),
        spec: Some(spec),
        skills: vec![SKILL.to_owned()],
        outputs: Some(outputs),
        ..RunExecRequest::default()
    };
    let ran = daemon_calls::run_request(client, request).await?;
    Ok(ran.end)
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

//! Commands: their arguments, their environment, their ends, and the RPCs that list and signal them.
//!
//! Docker: the daemon relays commands of a real container, with the environment of its image and its own bash.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use skilld_client::v1::{
    CreateWorkspaceRequest, ErrorReason, ExecSpec, ExecState, ExitReason as Ended,
    ListExecsRequest, RunExecRequest, SignalExecRequest, StreamOffsets,
};
use skilld_tests::exec::{argv, attach, run, shell, shell_stdout, start};
use skilld_tests::{Daemon, DefaultDaemon, Options, docker, expect_refusal};

/// PATH of a command without a skill.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Directory of the image with wheels of its packages.
const WHEELS: &str = "/usr/share/skilld/wheels";

/// Parses the output of `env --null`.
fn variables(stdout: &[u8]) -> Result<BTreeMap<String, String>> {
    let text = std::str::from_utf8(stdout)?;
    let pairs = text.split_terminator('\0').map(|pair| {
        let (name, value) = pair.split_once('=').context("no =")?;
        Ok((name.to_owned(), value.to_owned()))
    });
    pairs.collect()
}

#[tokio::test]
async fn argv_goes_as_argv_and_shell_text_to_bash() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let spec = argv(["printf", "%s|", "a b", "$HOME", "*", "", "'\"\\", "ü"]);
    let outcome = run(client, &name, spec).await?;
    assert_eq!(outcome.text(), "a b|$HOME|*||'\"\\|ü|");
    assert_eq!(
        (outcome.exit_code(), outcome.reason()),
        (Some(0), Ended::Exited)
    );

    let commands = "set -- {1..3}; echo $((6*7)) $# $BASH_VERSINFO";
    let outcome = run(client, &name, shell(commands)).await?;
    assert_eq!(outcome.text(), "42 3 5\n");
    daemon.stop().await
}

/// Variables of every command in this test, except RUN_DIR.
const FIXED_VARIABLES: [(&str, &str); 31] = [
    ("PATH", PATH),
    ("HOME", "/workspace/work"),
    ("LANG", "C.UTF-8"),
    ("TMPDIR", "/tmp"),
    ("USER", "skill"),
    ("SHELL", "/bin/bash"),
    ("WORKSPACE", "/workspace"),
    ("WORKSPACE_DIR", "/workspace"),
    ("SKILLS_DIR", "/workspace/skills"),
    ("WORK_DIR", "/workspace/work"),
    ("INPUTS_DIR", "/workspace/work/inputs"),
    ("OUTPUT_DIR", "/workspace/out"),
    ("CLAUDE_PROJECT_DIR", "/workspace/work"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("PIP_NO_INDEX", "1"),
    ("UV_OFFLINE", "1"),
    ("UV_PYTHON_DOWNLOADS", "never"),
    ("PYTHONPATH", "/run/skilld/python"),
    ("PYTHONUNBUFFERED", "1"),
    // The container has one core.
    ("GOMAXPROCS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("POLARS_MAX_THREADS", "1"),
    ("PYTHON_CPU_COUNT", "1"),
    ("RAYON_NUM_THREADS", "1"),
    // The image has these, and wheels of its packages.
    (
        "NODE_OPTIONS",
        "--require=/usr/share/skilld/node_preload.js",
    ),
    ("IMAGE_WHEELS", WHEELS),
    ("PIP_FIND_LINKS", WHEELS),
    ("UV_FIND_LINKS", WHEELS),
    ("COLOUR", "green"),
    ("BOTH", "exec"),
];

#[tokio::test]
async fn the_environment_is_the_documented_minimum() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let client = &daemon.client;
    let workspace = daemon
        .claim(CreateWorkspaceRequest {
            env: [("COLOUR", "green"), ("BOTH", "workspace")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..CreateWorkspaceRequest::default()
        })
        .await?;
    let mut spec = argv(["env", "--null"]);
    spec.env = [("BOTH".to_owned(), "exec".to_owned())].into();
    let outcome = run(client, &workspace, spec.clone()).await?;
    let exec = outcome.name.rsplit('/').next().context("no id")?;
    let run_dir = format!("/workspace/runs/{exec}");
    let minimum: BTreeMap<String, String> = FIXED_VARIABLES
        .into_iter()
        .chain([("RUN_DIR", run_dir.as_str())])
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(variables(&outcome.stdout)?, minimum);
    let outcome = run(client, &workspace, shell("cd \"$RUN_DIR\" && pwd -P")).await?;
    assert!(
        outcome.text().starts_with("/workspace/runs/"),
        "{outcome:?}"
    );

    // With a skill there is more, and it starts in the skill's root.
    client.stage_skills(&workspace, &["text-stats"]).await?;
    spec.skill = "text-stats".to_owned();
    let outcome = run(client, &workspace, spec).await?;
    let env = variables(&outcome.stdout)?;
    let dir = "/workspace/skills/text-stats";
    let path = format!("{dir}/.venv/bin:{PATH}:{dir}/bin");
    let venv = format!("{dir}/.venv");
    for (name, value) in [
        ("PATH", path.as_str()),
        ("SKILL_NAME", "text-stats"),
        ("SKILL_DIR", dir),
        ("SKILL_ROOT", dir),
        ("CLAUDE_SKILL_DIR", dir),
        ("CLAUDE_PLUGIN_ROOT", dir),
        ("VIRTUAL_ENV", &venv),
        ("PYTHONPATH", &format!("{dir}:/run/skilld/python")),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(env.len(), minimum.len() + 7, "{env:?}");
    let mut pwd = argv(["pwd"]);
    pwd.skill = "text-stats".to_owned();
    assert_eq!(
        run(client, &workspace, pwd).await?.text(),
        format!("{dir}\n")
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_virtual_environment_has_the_packages_of_the_image() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    client.stage_skills(&name, &["text-stats"]).await?;
    let in_skill = |text: &str| ExecSpec {
        skill: "text-stats".to_owned(),
        ..shell(text)
    };
    let import = "python -c 'import requests, sys; print(sys.prefix)'";
    let install = "pip install -q requests";
    let uv = "uv venv -q --clear";
    let own = "cd && python3 -m venv v && v/bin/pip install -q requests && . v/bin/activate";
    let linked = "/workspace/skills/text-stats/.venv";
    for (spec, prefix) in [
        (in_skill(import), "/usr"),
        (
            in_skill(&format!("python3 -m venv .venv && {install} && {import}")),
            linked,
        ),
        // Its program comes first in each later command of the skill.
        (in_skill(import), linked),
        (in_skill(&format!("{uv} && {import}")), linked),
        (
            in_skill(&format!("{uv} && uv pip install -q requests && {import}")),
            linked,
        ),
        (shell(&format!("{own} && {import}")), "/workspace/work/v"),
    ] {
        let outcome = run(client, &name, spec).await?;
        assert_eq!(outcome.text(), format!("{prefix}\n"), "{outcome:?}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn exit_codes_and_signals_are_data() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    for code in [0, 1, 124, 137, 255] {
        let outcome = run(client, &name, shell(&format!("exit {code}"))).await?;
        let ended = (outcome.exit_code(), outcome.signal(), outcome.reason());
        assert_eq!(ended, (Some(code), None, Ended::Exited));
        assert_eq!(outcome.result.success, code == 0);
    }
    for signal in [1, 9, 11, 15] {
        let outcome = run(client, &name, shell(&format!("kill -{signal} $$"))).await?;
        let ended = (outcome.result.exit_code, outcome.signal(), outcome.reason());
        assert_eq!(ended, (128 + signal, Some(signal), Ended::Signaled));
    }
    let outcome = run(client, &name, shell("echo out; echo err >&2; echo more")).await?;
    assert_eq!(outcome.text(), "out\nmore\n");
    assert_eq!(outcome.error_text(), "err\n");
    assert_eq!(outcome.total.counts(), [9, 4]);
    // Without stdin a program is at its end at once.
    let outcome = run(client, &name, shell("wc -c; readlink /proc/self/fd/0")).await?;
    assert_eq!(outcome.text(), "0\n/dev/null\n");
    daemon.stop().await
}

#[tokio::test]
async fn an_exec_id_starts_one_program() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let request = |text: &str| RunExecRequest {
        parent: name.clone(),
        exec_id: "once".to_owned(),
        spec: Some(shell(text)),
        ..RunExecRequest::default()
    };
    let text = "echo x >>$WORK_DIR/count; sleep 0.2; echo done";
    let runs = (0..8).map(|_| async {
        let events = client.run_exec(request(text)).await?;
        skilld_tests::exec::gather(events, StreamOffsets::default(), Instant::now()).await
    });
    for outcome in join_all(runs).await {
        assert_eq!(outcome?.text(), "done\n");
    }
    let count = run(client, &name, shell("cat $WORK_DIR/count")).await?;
    assert_eq!(count.text(), "x\n");
    let other = client.run_exec(request("echo something else")).await;
    expect_refusal(other, ErrorReason::IdTaken)?;
    daemon.stop().await
}

#[tokio::test]
async fn execs_are_listed_in_the_order_of_their_start() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    for id in ["c", "a", "b"] {
        start(client, &name, id, argv(["sleep", "1000"])).await?;
    }
    let mut request = ListExecsRequest {
        parent: name.clone(),
        page_size: 2,
        ..ListExecsRequest::default()
    };
    let first = client.list_execs(request.clone()).await?;
    request.page_token = first.next_page_token;
    ensure!(!request.page_token.is_empty(), "there is more");
    let second = client.list_execs(request).await?;
    assert_eq!(second.next_page_token, "");
    let names: Vec<_> = first
        .execs
        .iter()
        .chain(&second.execs)
        .map(|exec| exec.name.clone())
        .collect();
    assert_eq!(
        names,
        ["c", "a", "b"].map(|id| format!("{name}/execs/{id}"))
    );

    // A signal reaches the one that was meant.
    let signal = SignalExecRequest {
        name: names[1].clone(),
        signal: 15,
        ..SignalExecRequest::default()
    };
    client.signal_exec(signal.clone()).await?;
    let ended = attach(client, &names[1], StreamOffsets::default()).await?;
    assert_eq!(
        (ended.signal(), ended.reason()),
        (Some(15), Ended::Signaled)
    );
    expect_refusal(
        client.signal_exec(signal).await,
        ErrorReason::ExecNotRunning,
    )?;
    assert_eq!(
        client.get_exec(&names[0]).await?.state(),
        ExecState::Running
    );
    expect_refusal(
        client.get_exec(&format!("{name}/execs/none")).await,
        ErrorReason::ExecNotFound,
    )?;
    daemon.stop().await
}

/// Instances of LibreOffice that share a profile end each other.
#[tokio::test]
async fn libreoffice_converts_in_four_execs_at_once() -> Result<()> {
    if !docker::has_image(docker::OFFICE_IMAGE).await? {
        println!("left out because {} is missing", docker::OFFICE_IMAGE);
        return Ok(());
    }
    let options = Options::default()
        .set("pools.default.warm", "0")
        .set("pools.office.image", docker::OFFICE_IMAGE)
        .set("pools.office.max", "1")
        .set("pools.office.claim_timeout", "4m");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let request = CreateWorkspaceRequest {
        pool: "office".to_owned(),
        ..CreateWorkspaceRequest::default()
    };
    let name = client.create_workspace(request).await?.name;
    let commands = [1, 2, 3, 4].map(|number| {
        format!(
            "cd $WORK_DIR; echo a >{number}.csv; soffice --headless --convert-to pdf {number}.csv"
        )
    });
    let runs = commands.iter().map(|text| run(client, &name, shell(text)));
    for outcome in try_join_all(runs).await? {
        assert_eq!(outcome.exit_code(), Some(0), "{outcome:?}");
    }
    let made = shell_stdout(client, &name, "cd $WORK_DIR; ls *.pdf").await?;
    assert_eq!(made, "1.pdf\n2.pdf\n3.pdf\n4.pdf\n");
    daemon.stop().await
}

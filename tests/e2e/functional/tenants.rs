//! Quota of running execs, and usage counters of execs, with commands that really run.
//!
//! Docker: the quota and the counters follow commands that really run, end and are killed in containers.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use skilld_client::{Client, Error};
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{
    ExecResult, ExecSpec, ExecState, ExitReason, RunExecRequest, TenantUsage, UsageCounters,
    WriteStdinRequest,
};
use skilld_tests::{Daemon, Options, exec, wait};

/// Number of clients that try at once.
const CLIENTS: usize = 50;
/// Time within which an end is counted.
const COUNTED_WITHIN: Duration = Duration::from_secs(60);

/// Starts a daemon on whose socket this user is an admin of tenant `a`, with a quota of execs.
async fn start(files: &Path, execs: u32) -> Result<Daemon> {
    let uid = nix::unistd::geteuid();
    let tenants = format!(
        "[tenants.a]\nexecs = {execs}\n[[peers]]\nuid = {uid}\ntenant = \"a\"\nroles = [\"admin\"]\n"
    );
    let path = files.join("tenants.toml");
    std::fs::write(&path, tenants)?;
    let options = Options::default().set("auth.tenants_file", &path.display().to_string());
    Daemon::start_with(options).await
}

fn held_execs(usage: &TenantUsage) -> Option<i64> {
    let mut resources = usage.resources.iter();
    Some(resources.find(|it| it.resource == "execs")?.used)
}

async fn wait_for_held(client: &Client, amount: i64) -> Result<()> {
    wait::until("the execs are counted", COUNTED_WITHIN, async || {
        let usage = client.get_tenant_usage().await?;
        Ok((held_execs(&usage) == Some(amount)).then_some(()))
    })
    .await
}

/// Asserts that the quota of execs refused a request.
fn check_refused<T>(answer: Result<T>, used: &str) -> Result<()> {
    let error = answer
        .err()
        .context("it was permitted")?
        .downcast::<Error>()?;
    assert_eq!(
        error.reason(),
        Some(skilld_proto::v1::ErrorReason::QuotaExceeded)
    );
    let failure = error.failure().context("details")?;
    let metadata = &failure.metadata;
    let value = |key: &str| metadata.get(key).map(String::as_str);
    assert_eq!((value("used"), value("limit")), (Some(used), Some(used)));
    Ok(())
}

#[tokio::test]
async fn fifty_clients_at_once_never_exceed_a_quota_of_execs() -> Result<()> {
    let files = tempfile::tempdir()?;
    let daemon = start(files.path(), 5).await?;
    let client = &daemon.client;
    let workspaces = [
        exec::workspace(client).await?.name,
        exec::workspace(client).await?.name,
    ];
    let mut tries = Vec::new();
    for index in 0..CLIENTS {
        let client = Client::connect(&daemon.endpoint()).await?;
        let workspace = workspaces.get(index % 2).context("two")?.clone();
        let id = format!("x{index}");
        let sleep = exec::argv(["sleep", "600"]);
        tries.push(async move { exec::start(&client, &workspace, &id, sleep).await });
    }
    let (mut started, mut refused) = (Vec::new(), 0);
    for answer in futures::future::join_all(tries).await {
        match answer {
            Ok(exec) => started.push(exec.name),
            Err(error) => {
                check_refused(Err::<(), _>(error), "5")?;
                refused += 1;
            }
        }
    }
    assert_eq!((started.len(), refused), (5, CLIENTS - 5));
    assert_eq!(held_execs(&client.get_tenant_usage().await?), Some(5));
    // The end of one makes room for one.
    client.kill_exec(started.first().context("five")?).await?;
    wait_for_held(client, 4).await?;
    let [first, second] = &workspaces;
    exec::start(client, first, "more", exec::argv(["sleep", "600"])).await?;
    let full = exec::start(client, second, "too-many", exec::shell("true")).await;
    check_refused(full, "5")?;
    // The end of a workspace gives back all of its execs.
    client.delete_workspace(first).await?;
    client.delete_workspace(second).await?;
    assert_eq!(held_execs(&client.get_tenant_usage().await?), Some(0));
    daemon.stop().await
}

#[tokio::test]
async fn an_exec_counts_until_its_end_whatever_its_client_does() -> Result<()> {
    let files = tempfile::tempdir()?;
    let daemon = start(files.path(), 2).await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let run = |id: &str, text: &str| RunExecRequest {
        parent: workspace.clone(),
        exec_id: id.to_owned(),
        spec: Some(ExecSpec {
            open_stdin: true,
            ..exec::shell(text)
        }),
        ..RunExecRequest::default()
    };
    // Neither the end of the stream nor a client that does not read it is the end of the exec.
    drop(client.execs().run_exec(run("gone", "read line")).await?);
    let unread = run("unread", "head -c 4000000 /dev/zero");
    let unread = client.execs().run_exec(unread).await?;
    wait_for_held(client, 1).await?;
    let write = WriteStdinRequest {
        name: format!("{workspace}/execs/gone"),
        eof: true,
        ..WriteStdinRequest::default()
    };
    client.execs().write_stdin(write).await?;
    wait_for_held(client, 0).await?;
    exec::run(client, &workspace, exec::argv(["/no/such/program"])).await?;
    wait_for_held(client, 0).await?;
    // Its connection ends once it is read or closed.
    drop(unread);
    daemon.stop().await
}

#[tokio::test]
async fn a_repeated_request_takes_no_second_unit_even_at_the_limit() -> Result<()> {
    let files = tempfile::tempdir()?;
    let daemon = start(files.path(), 1).await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    exec::start(client, &workspace, "ended", exec::shell("exit 3")).await?;
    wait_for_held(client, 0).await?;
    let sleep = || exec::argv(["sleep", "600"]);
    exec::start(client, &workspace, "runs", sleep()).await?;
    for _ in 0..3 {
        let again = exec::start(client, &workspace, "runs", sleep()).await?;
        assert_eq!(again.state(), ExecState::Running);
        let again = exec::start(client, &workspace, "ended", exec::shell("exit 3")).await?;
        assert_eq!(again.state(), ExecState::Closed);
        assert_eq!(held_execs(&client.get_tenant_usage().await?), Some(1));
    }
    let full = exec::start(client, &workspace, "new", exec::shell("true")).await;
    check_refused(full, "1")?;
    let counters = client
        .get_tenant_usage()
        .await?
        .since_start
        .context("counters")?;
    assert_eq!(
        count_of(&counters, ExitReason::Exited),
        1,
        "repetitions do not count"
    );
    daemon.stop().await
}

fn count_of(counters: &UsageCounters, reason: ExitReason) -> i64 {
    let found = counters.execs.iter().find(|it| it.reason() == reason);
    found.map_or(0, |it| it.count)
}

fn micros(time: Option<prost_types::Duration>) -> Result<u128> {
    Ok(Duration::try_from(time.unwrap_or_default())?.as_micros())
}

/// Runs shell text, and returns its result and the bytes of its output.
async fn run(client: &Client, workspace: &str, text: &str) -> Result<(ExecResult, usize)> {
    let request = RunExecRequest {
        parent: workspace.to_owned(),
        spec: Some(exec::shell(text)),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    let (mut result, mut bytes) = (None, 0);
    while let Some(event) = events.next().await? {
        bytes += exec::stdout(&event).len();
        if let Some(Event::Exited(exited)) = event.event {
            result = exited.result;
        }
    }
    Ok((result.context("a result")?, bytes))
}

#[tokio::test]
async fn usage_counters_add_up_for_known_execs() -> Result<()> {
    let files = tempfile::tempdir()?;
    let daemon = start(files.path(), 5).await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let before = client
        .get_tenant_usage()
        .await?
        .since_start
        .context("counters")?;
    let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done";
    let (mut cpu, mut bytes) = (0, 0);
    for text in [busy, "head -c 300000 /dev/zero", "exit 7"] {
        let (result, output) = run(client, &workspace, text).await?;
        cpu += micros(result.user_duration)? + micros(result.system_duration)?;
        bytes += output;
    }
    assert_eq!(bytes, 300_005);
    exec::start(client, &workspace, "d", exec::argv(["sleep", "600"])).await?;
    let killed = client.kill_exec(&format!("{workspace}/execs/d")).await?;
    let result = killed.result.context("a result")?;
    cpu += micros(result.user_duration)? + micros(result.system_duration)?;
    let ran = client
        .get_tenant_usage()
        .await?
        .since_start
        .context("counters")?;
    let out = ran.bytes_out - before.bytes_out;
    assert!((300_005..320_000).contains(&out), "{out}");
    wait_for_held(client, 0).await?;
    let usage = wait::until("all are counted", COUNTED_WITHIN, async || {
        let usage = client.get_tenant_usage().await?;
        let execs = usage.since_start.iter().flat_map(|it| it.execs.iter());
        Ok((execs.map(|it| it.count).sum::<i64>() == 4).then_some(usage))
    })
    .await?;
    let after = usage.since_start.context("counters")?;
    assert_eq!(count_of(&after, ExitReason::Exited), 3);
    assert_eq!(count_of(&after, ExitReason::KilledByClient), 1);
    assert!(cpu > 0);
    assert_eq!(micros(after.cpu_duration)?, cpu);
    let counters = usage.days.iter().flat_map(|day| day.counters.iter());
    let counts = counters.flat_map(|it| it.execs.iter()).map(|it| it.count);
    assert_eq!(counts.sum::<i64>(), 4, "the days add up to the same");
    daemon.stop().await
}

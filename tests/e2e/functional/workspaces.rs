//! Workspaces: listed, renewed, ended in time, and deleted without a trace.
//!
//! Docker: the end of a workspace removes its container with every process in it, and its commands learn why.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use skilld_client::v1::create_workspace_request::Expiry;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::{
    CreateWorkspaceRequest, ErrorReason, ExecEvent, ExitReason as Ended, ListWorkspacesRequest,
    RenewWorkspaceRequest, RunExecRequest, Workspace, WorkspaceState,
};
use skilld_client::{Client, MessageStream};
use skilld_tests::exec::{shell, start, workspace};
use skilld_tests::{Daemon, DefaultDaemon, Options, expect_refusal, wait};

/// Time limit of the end of a workspace whose time is over, with the removal of its container.
const GONE_WITHIN: Duration = Duration::from_secs(180);
/// Times until a workspace expires, in seconds. The longer ones are for a machine that stands still before the daemon
/// reads the request. All are shorter than an exec's default timeout.
const EXPIRES_IN_S: [u64; 3] = [3, 30, 60];

pub(crate) fn named(id: &str) -> CreateWorkspaceRequest {
    CreateWorkspaceRequest {
        workspace_id: id.to_owned(),
        ..CreateWorkspaceRequest::default()
    }
}

fn labelled(id: &str, labels: &[(&str, &str)]) -> CreateWorkspaceRequest {
    CreateWorkspaceRequest {
        labels: labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        ..named(id)
    }
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// Waits until a workspace is gone. The API has no event for it.
async fn gone(client: &Client, name: &str) -> Result<()> {
    wait::until("a workspace is gone", GONE_WITHIN, async || {
        match client.get_workspace(name).await {
            Err(error) if error.reason() == Some(ErrorReason::WorkspaceNotFound) => Ok(Some(())),
            _ => Ok(None),
        }
    })
    .await
}

#[tokio::test]
async fn a_workspace_reports_its_properties() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let client = &daemon.client;
    let before = SystemTime::now();
    let made = client
        .create_workspace(CreateWorkspaceRequest {
            idle_timeout: seconds(60),
            expiry: Some(Expiry::MaxLifetime(prost_types::Duration {
                seconds: 600,
                nanos: 0,
            })),
            ..labelled("full", &[("team", "blue")])
        })
        .await?;
    assert_eq!(
        (made.pool.as_str(), made.image.as_str()),
        ("pools/default", "skilld/base:latest")
    );
    assert_eq!(
        (made.idle_timeout, made.max_lifetime),
        (seconds(60), seconds(600))
    );
    let created = SystemTime::try_from(made.create_time.context("no create_time")?)?;
    let expires = SystemTime::try_from(made.expire_time.context("no expire_time")?)?;
    let left = expires.duration_since(created)?;
    assert!(
        created >= before - Duration::from_millis(2),
        "{created:?} {before:?}"
    );
    // It ends when it was idle for 60 s, long before its lifetime is over.
    assert!(
        (Duration::from_secs(59)..Duration::from_secs(599)).contains(&left),
        "{left:?}"
    );
    let paths = made.paths.clone().context("no paths")?;
    assert_eq!(
        (
            paths.workspace_dir.as_str(),
            paths.output_dir.as_str(),
            paths.inputs_dir.as_str()
        ),
        ("/workspace", "/workspace/out", "/workspace/work/inputs")
    );
    let limits = made.limits.context("no limits")?;
    assert_eq!(
        (limits.memory_bytes, limits.disk_bytes),
        (512 << 20, 256 << 20)
    );
    assert_eq!(made.guest_version, daemon.info.guest_version);
    let found = client.get_workspace("full").await?;
    assert_eq!(
        (found.labels, found.create_time),
        (made.labels, made.create_time)
    );
    client.delete_workspace(&made.name).await?;
    daemon.stop().await
}

#[tokio::test]
async fn workspaces_are_listed_by_page_and_label() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    for (id, team) in [("d", "blue"), ("b", "red"), ("a", "blue"), ("c", "blue")] {
        client
            .create_workspace(labelled(id, &[("team", team), ("all", "yes")]))
            .await?;
    }
    let pages = async |labels: &[(&str, &str)], page_size| -> Result<Vec<Vec<String>>> {
        let mut request = ListWorkspacesRequest {
            page_size,
            labels: labelled("x", labels).labels,
            ..ListWorkspacesRequest::default()
        };
        let mut pages = Vec::new();
        loop {
            let page = client.list_workspaces(request.clone()).await?;
            let ids = page
                .workspaces
                .iter()
                .map(|found| skilld_client::short_id(&found.name));
            pages.push(ids.collect());
            if page.next_page_token.is_empty() {
                return Ok(pages);
            }
            request.page_token = page.next_page_token;
        }
    };
    assert_eq!(pages(&[], 0).await?, [["a", "b", "c", "d"]]);
    assert_eq!(pages(&[], 2).await?, [["a", "b"], ["c", "d"]]);
    assert_eq!(
        pages(&[("team", "blue")], 2).await?,
        [vec!["a", "c"], vec!["d"]]
    );
    assert_eq!(
        pages(&[("team", "blue"), ("all", "yes")], 0).await?,
        [["a", "c", "d"]]
    );
    assert_eq!(
        pages(&[("team", "blue"), ("all", "no")], 0).await?,
        [Vec::<String>::new()]
    );
    // A page that was begun goes on, whatever happens to the one it ended with.
    let request = ListWorkspacesRequest {
        page_size: 2,
        ..ListWorkspacesRequest::default()
    };
    let page = client.list_workspaces(request.clone()).await?;
    client.delete_workspace("b").await?;
    let page_token = page.next_page_token;
    let rest = client
        .list_workspaces(ListWorkspacesRequest {
            page_token,
            ..request
        })
        .await?;
    let names: Vec<&str> = rest
        .workspaces
        .iter()
        .map(|found| found.name.as_str())
        .collect();
    assert_eq!(names, ["workspaces/c", "workspaces/d"]);
    daemon.stop().await
}

#[tokio::test]
async fn a_deleted_workspace_leaves_no_container() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    daemon.warm(1).await?;
    let before: BTreeSet<String> = daemon.containers().await?.into_iter().collect();
    let [mine] = &before.iter().collect::<Vec<_>>()[..] else {
        anyhow::bail!("one warm container was to be there: {before:?}");
    };
    let name = workspace(client).await?.name;
    let deaf = shell("trap '' TERM; setsid sleep 1000 & sleep 1001");
    start(client, &name, "", deaf).await?;
    client.delete_workspace(&name).await?;
    // The answer means that it is gone, not that it will go.
    ensure!(
        !daemon.containers().await?.contains(mine),
        "its container is still there"
    );
    expect_refusal(
        client.get_workspace(&name).await,
        ErrorReason::WorkspaceNotFound,
    )?;
    expect_refusal(
        client.delete_workspace(&name).await,
        ErrorReason::WorkspaceNotFound,
    )?;
    client.delete_workspace_if_exists(&name).await?;
    daemon.stop().await
}

#[tokio::test]
async fn an_idle_workspace_is_removed_and_a_busy_one_is_not() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let client = &daemon.client;
    let busy = daemon.claim(named("busy")).await?;
    let exec = start(client, &busy, "work", shell("sleep 1000")).await?;
    // The exec runs by now, however slow its start was.
    let brief = RenewWorkspaceRequest {
        name: busy.clone(),
        idle_timeout: seconds(1),
        ..RenewWorkspaceRequest::default()
    };
    client.renew_workspace(brief).await?;
    let idle = CreateWorkspaceRequest {
        idle_timeout: seconds(1),
        ..named("idle")
    };
    let idle = daemon.claim(idle).await?;
    // GetWorkspace does not extend it, so looking does no harm. The busy one got its timeout before this one.
    gone(client, &idle).await?;
    assert_eq!(
        client.get_workspace(&busy).await?.state(),
        WorkspaceState::Ready
    );
    // The timeout starts at the end of the exec.
    let killed = Instant::now();
    client.kill_exec(&exec.name).await?;
    gone(client, &busy).await?;
    assert!(
        killed.elapsed() >= Duration::from_millis(900),
        "{:?}",
        killed.elapsed()
    );
    daemon.stop().await
}

/// Makes a workspace expire within [`EXPIRES_IN_S`]. The daemon refuses a time that is over when it reads the request.
async fn expire_soon(client: &Client, name: &str) -> Result<()> {
    for seconds in EXPIRES_IN_S {
        let end = SystemTime::now() + Duration::from_secs(seconds);
        let request = RenewWorkspaceRequest {
            name: name.to_owned(),
            expire_time: Some(end.into()),
            ..RenewWorkspaceRequest::default()
        };
        match client.renew_workspace(request).await {
            Ok(_) => return Ok(()),
            Err(error) if error.reason() == Some(ErrorReason::InvalidRequest) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("the daemon read no request within {EXPIRES_IN_S:?} seconds")
}

/// Reads to the exec's end, and returns why it ended.
async fn why(events: &mut MessageStream<ExecEvent>) -> Result<Ended> {
    loop {
        let event = events.next().await?.context("no Exited")?;
        if let Some(Event::Exited(exited)) = event.event {
            return Ok(exited.result.context("no result")?.reason());
        }
    }
}

#[tokio::test]
async fn an_exec_is_told_whether_its_workspace_expired_or_was_deleted() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let client = &daemon.client;
    for (id, expected) in [
        ("expiring", Ended::WorkspaceExpired),
        ("deleted", Ended::KilledByClient),
    ] {
        let name = daemon.claim(named(id)).await?;
        let request = RunExecRequest {
            parent: name.clone(),
            spec: Some(shell("setsid sleep 1000 & sleep 1000")),
            ..RunExecRequest::default()
        };
        let mut events = client.run_exec(request).await?;
        events.next().await?.context("no Started")?;
        if expected == Ended::KilledByClient {
            client.delete_workspace(&name).await?;
        } else {
            expire_soon(client, &name).await?;
        }
        assert_eq!(why(&mut events).await?, expected);
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_workspace_can_be_renewed_up_to_its_maximum() -> Result<()> {
    let options = Options::default()
        .set("workspaces.lifetime_default", "60s")
        .set("workspaces.lifetime_max", "120s");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let made = client
        .create_workspace(CreateWorkspaceRequest {
            idle_timeout: seconds(60),
            ..named("w")
        })
        .await?;
    let later =
        |seconds| prost_types::Timestamp::from(SystemTime::now() + Duration::from_secs(seconds));
    let renew = |idle: i64, end: u64| RenewWorkspaceRequest {
        name: made.name.clone(),
        idle_timeout: seconds(idle),
        expire_time: Some(later(end)),
    };
    // The end counts from a moment between `from` and now, with a second for rounding.
    let ends_after = |workspace: &Workspace, from: SystemTime, lasts: u64| -> Result<bool> {
        let expires = SystemTime::try_from(workspace.expire_time.context("no expire_time")?)?;
        let earliest = from + Duration::from_secs(lasts - 1);
        let latest = SystemTime::now() + Duration::from_secs(lasts + 1);
        Ok((earliest..=latest).contains(&expires))
    };
    let before = SystemTime::now();
    let renewed = client.renew_workspace(renew(90, 80)).await?;
    assert_eq!(renewed.idle_timeout, seconds(90));
    assert!(ends_after(&renewed, before, 80)?, "{renewed:?}");
    let capped = client.renew_workspace(renew(100_000_000, 1)).await;
    let failure = expect_refusal(capped, ErrorReason::InvalidRequest)?;
    assert_eq!(failure.violations[0].field, "idle_timeout");
    // The maximum counts from the creation.
    let created = SystemTime::try_from(made.create_time.context("no create_time")?)?;
    let capped = client.renew_workspace(renew(3600, 3600)).await?;
    assert!(ends_after(&capped, created, 120)?, "{capped:?}");
    daemon.stop().await
}

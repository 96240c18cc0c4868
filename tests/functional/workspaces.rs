//! Workspaces: created once, found again, bounded in time and size, and deleted without a trace.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use skilld_client::v1::create_workspace_request::Expiry;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::{
    CreateWorkspaceRequest, ExecEvent, ListWorkspacesRequest, Reason, RenewWorkspaceRequest,
    RunExecRequest, StreamOffsets, Workspace, WorkspaceState,
};
use skilld_client::{Client, MessageStream};
use skilld_tests::exec::{argv, attach, run, shell, start, workspace};
use skilld_tests::{Daemon, Options, expect_refusal};
use tonic::Code;

pub(crate) fn named(id: &str) -> CreateWorkspaceRequest {
    CreateWorkspaceRequest {
        name: format!("workspaces/{id}"),
        ..CreateWorkspaceRequest::default()
    }
}

/// Returns a request with an id, which may be repeated.
fn retried(id: &str, labels: &[(&str, &str)]) -> CreateWorkspaceRequest {
    CreateWorkspaceRequest {
        request_id: "11111111-1111-7111-8111-111111111111".to_owned(),
        ..labelled(id, labels)
    }
}

fn labelled(id: &str, labels: &[(&str, &str)]) -> CreateWorkspaceRequest {
    let labels = labels.iter();
    CreateWorkspaceRequest {
        labels: labels
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        ..named(id)
    }
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// Polls until a workspace is gone, and returns the elapsed time. The API has no event for it.
async fn gone(client: &Client, name: &str, within: Duration) -> Result<Duration> {
    let started = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    loop {
        tick.tick().await;
        match client.get_workspace(name).await {
            Err(error) if error.reason() == Some(Reason::WorkspaceNotFound) => {
                return Ok(started.elapsed());
            }
            answer => ensure!(started.elapsed() < within, "still there: {answer:?}"),
        }
    }
}

#[tokio::test]
async fn the_same_request_makes_one_workspace() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let first = client
        .create_workspace(retried("job", &[("a", "1")]))
        .await?;
    assert_eq!(first.name, "workspaces/job");
    assert_eq!(first.state(), WorkspaceState::Ready);
    run(client, &first.name, shell("touch $WORK_DIR/mine")).await?;
    let again = client
        .create_workspace(retried("job", &[("a", "1")]))
        .await?;
    assert_eq!(again.create_time, first.create_time);
    let there = run(client, &again.name, argv(["ls", "/workspace/work/mine"])).await?;
    assert_eq!(there.exit_code(), Some(0));
    assert_eq!(client.get_pool("default").await?.claimed, 1);

    // The same fields, and another request.
    let other = client
        .create_workspace(labelled("job", &[("a", "1")]))
        .await;
    expect_refusal(other, Reason::IdTaken)?;
    let other = client.create_workspace(retried("job", &[("a", "2")])).await;
    let failure = expect_refusal(other, Reason::IdTaken)?;
    assert_eq!(failure.resource.as_deref(), Some("workspaces/job"));
    let existing = CreateWorkspaceRequest {
        allow_existing: true,
        ..labelled("job", &[("a", "2")])
    };
    let found = client.create_workspace(existing).await?;
    assert_eq!(
        (found.create_time, found.labels),
        (first.create_time, first.labels)
    );
    assert_eq!(client.get_pool("default").await?.claimed, 1);

    // Its name is free once it is gone.
    client.delete_workspace("job").await?;
    let new = client
        .create_workspace(labelled("job", &[("a", "2")]))
        .await?;
    assert_ne!(new.create_time, first.create_time);
    let there = run(client, &new.name, argv(["ls", "/workspace/work/mine"])).await?;
    assert_ne!(there.exit_code(), Some(0));
    daemon.stop().await
}

#[tokio::test]
async fn creating_a_workspace_is_exclusive_and_its_retries_survive_a_restart() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let request = retried("mine", &[]);
    let made = daemon.client.create_workspace(request.clone()).await?;
    daemon.crash().await?;
    daemon.restart().await?;
    let again = daemon.client.create_workspace(request).await?;
    assert_eq!(again.create_time, made.create_time);
    for id in ["", "another"] {
        let other = CreateWorkspaceRequest {
            request_id: id.to_owned(),
            ..named("mine")
        };
        // Without the client, which would choose an id.
        let mut stub = daemon.client.workspaces();
        let status = stub.create_workspace(other).await.err().context("taken")?;
        assert_eq!(status.code(), Code::AlreadyExists, "{status:?}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_request_and_its_retries_at_once_make_one_workspace() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let requests = (0..16).map(|_| client.create_workspace(retried("race", &[])));
    let made = try_join_all(requests).await?;
    for workspace in &made {
        assert_eq!(workspace.create_time, made[0].create_time);
    }
    daemon.warm(1).await?;
    let pool = client.get_pool("default").await?;
    assert_eq!((pool.claimed, pool.warm), (1, 1), "{pool:?}");
    assert_eq!(daemon.containers().await?.len(), 2);
    daemon.stop().await
}

#[tokio::test]
async fn a_workspace_reports_its_properties() -> Result<()> {
    let daemon = Daemon::start().await?;
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
        ("default", "skilld/base:latest")
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
    assert!(
        (Duration::from_secs(59)..Duration::from_secs(62)).contains(&left),
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
    expect_refusal(client.get_workspace(&name).await, Reason::WorkspaceNotFound)?;
    expect_refusal(
        client.delete_workspace(&name).await,
        Reason::WorkspaceNotFound,
    )?;
    client.delete_workspace_if_exists(&name).await?;
    daemon.stop().await
}

#[tokio::test]
async fn an_idle_workspace_is_removed_and_a_busy_one_is_not() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let brief = |id: &str| CreateWorkspaceRequest {
        idle_timeout: seconds(1),
        ..named(id)
    };
    let idle = client.create_workspace(brief("idle")).await?;
    let busy = client.create_workspace(brief("busy")).await?;
    let started = Instant::now();
    let work = shell("sleep 3; echo done");
    let exec = start(client, &busy.name, "work", work).await?;
    // GetWorkspace does not extend it, so looking does no harm.
    gone(client, &idle.name, Duration::from_secs(6)).await?;
    // The timeout starts at the end of the exec, after 3 s.
    attach(client, &exec.name, StreamOffsets::default()).await?;
    assert_eq!(
        client.get_workspace(&busy.name).await?.state(),
        WorkspaceState::Ready
    );
    gone(client, &busy.name, Duration::from_secs(8)).await?;
    assert!(
        started.elapsed() >= Duration::from_millis(3900),
        "{:?}",
        started.elapsed()
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_lifetime_ends_a_workspace_that_is_busy() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let lifetime = prost_types::Duration {
        seconds: 2,
        nanos: 0,
    };
    let made = client
        .create_workspace(CreateWorkspaceRequest {
            expiry: Some(Expiry::MaxLifetime(lifetime)),
            ..named("short")
        })
        .await?;
    let started = Instant::now();
    start(client, &made.name, "", shell("sleep 1000")).await?;
    gone(client, &made.name, Duration::from_secs(8)).await?;
    let lived = started.elapsed();
    assert!(lived >= Duration::from_millis(1800), "{lived:?}");
    daemon.stop().await
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
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let lifetime = prost_types::Duration {
        seconds: 2,
        nanos: 0,
    };
    let expiring = CreateWorkspaceRequest {
        expiry: Some(Expiry::MaxLifetime(lifetime)),
        ..named("expiring")
    };
    for (made, expected) in [
        (expiring, Ended::WorkspaceExpired),
        (named("deleted"), Ended::KilledByClient),
    ] {
        let name = client.create_workspace(made).await?.name;
        let request = RunExecRequest {
            workspace: name.clone(),
            spec: Some(shell("setsid sleep 1000 & sleep 1000")),
            ..RunExecRequest::default()
        };
        let mut events = client.run_exec(request).await?;
        if expected == Ended::KilledByClient {
            events.next().await?.context("no Started")?;
            client.delete_workspace(&name).await?;
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
            idle_timeout: seconds(1),
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
    let renewed = client.renew_workspace(renew(90, 80)).await?;
    assert_eq!(renewed.idle_timeout, seconds(90));
    let left = |workspace: &Workspace| -> Result<Duration> {
        let expires = SystemTime::try_from(workspace.expire_time.context("no expire_time")?)?;
        Ok(expires.duration_since(SystemTime::now())?)
    };
    let about = |left: Duration, wanted: u64| {
        left.as_secs_f64() > wanted as f64 - 4.0 && left.as_secs() <= wanted
    };
    assert!(about(left(&renewed)?, 80), "{renewed:?}");
    let capped = client.renew_workspace(renew(100_000_000, 1)).await;
    let failure = expect_refusal(capped, Reason::InvalidRequest)?;
    assert_eq!(failure.violations[0].field, "idle_timeout");
    let capped = client.renew_workspace(renew(3600, 3600)).await?;
    assert!(about(left(&capped)?, 120), "{capped:?}");
    // The workspace lives longer than the idle timeout of its creation, which no event marks.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(
        client.get_workspace("w").await?.state(),
        WorkspaceState::Ready
    );
    daemon.stop().await
}

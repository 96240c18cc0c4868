//! A daemon that has no file descriptors left, and gets them back.

use anyhow::{Context, Result};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use skilld_client::RetryPolicy;
use skilld_proto::v1::CreateWorkspaceRequest;
use skilld_tests::{Daemon, exec, wait};

use crate::crash::{DEADLINE, containers, expect_status, run_shell};

/// Sets how many descriptors the daemon may have, and returns how many it could have before.
fn limit(daemon: &Daemon, current: u64) -> Result<u64> {
    let pid = i32::try_from(daemon.pid().context("it has ended")?)?;
    let limit = Rlimit {
        current: Some(current),
        // The daemon has it from this process.
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    let before = prlimit(Pid::from_raw(pid), Resource::Nofile, limit)?;
    before.current.context("it has no limit")
}

/// Number of descriptors that a process has from its start to its end. With this limit it gets no other one, also where
/// it closes some.
const STANDARD_STREAMS: u64 = 3;

#[tokio::test]
async fn a_lack_of_descriptors_has_a_reason_and_costs_no_container() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let workspace = exec::workspace(&client).await?.name;
    daemon.warm(1).await?;
    let before = containers(&daemon).await?;

    let had = limit(&daemon, STANDARD_STREAMS)?;
    for _ in 0..3 {
        let claimed = client.create_workspace(CreateWorkspaceRequest::default());
        let refused = expect_status(claimed.await)?;
        let expected = ("ResourceExhausted".into(), "TOO_MANY_FILES".into());
        assert_eq!(refused, expected);
    }
    let problems = client.list_problems(Default::default()).await?.problems;
    let short = problems
        .iter()
        .find(|problem| problem.code == "state.too_many_files");
    let message = &short.with_context(|| format!("{problems:?}"))?.message;
    assert!(message.contains("LimitNOFILE"), "{message}");
    assert_eq!(run_shell(&client, &workspace, "echo on").await?, "on\n");

    limit(&daemon, had)?;
    let claimed = exec::workspace(&client).await?.name;
    assert_eq!(
        run_shell(&client, &claimed, "echo claimed").await?,
        "claimed\n"
    );
    assert!(
        before.contains(&daemon.container(&claimed)?),
        "it was warm before"
    );
    daemon.warm(1).await?;
    wait::until("the problem is over", DEADLINE, async || {
        let problems = client.list_problems(Default::default()).await?.problems;
        let over = problems
            .iter()
            .all(|problem| !problem.code.starts_with("state."));
        Ok(over.then_some(()))
    })
    .await?;
    daemon.stop().await
}

//! Readers that stall: the daemon bounds the bytes that it buffers for them, and other readers do not notice.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use skilld_client::Client;
use skilld_proto::v1::{AttachExecRequest, ExecSpec, Retain, StreamOffsets};
use skilld_tests::{Daemon, Options, exec, usage};

use crate::refusal;

/// Number of clients with stalled readers; each has one connection.
const CLIENTS: usize = 8;
const STREAMS: usize = 16;
const OUTPUT: usize = 16 << 20;
const MIB: u64 = 1 << 20;
/// Value of `server.relay_bytes_max` in MiB. Unbounded, the stalled readers would take some 130 MiB.
const BUDGET_MIB: u64 = 32;

/// Reads all output of an exec, and retries while stalled readers hold all buffer permits.
async fn read_in_turn(client: &Client, name: &str) -> Result<exec::Outcome> {
    for _ in 0..20 {
        let error = match exec::attach(client, name, StreamOffsets::default()).await {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        let failure = error
            .downcast_ref::<skilld_client::Error>()
            .and_then(skilld_client::Error::failure);
        let Some(wait) = failure.and_then(|failure| failure.retry_after) else {
            return Err(error);
        };
        tokio::time::sleep(wait).await;
    }
    bail!("no place in 20 tries");
}

#[tokio::test]
async fn stalled_readers_keep_the_daemon_small() -> Result<()> {
    let budget = format!("{BUDGET_MIB}MiB");
    let daemon =
        Daemon::start_with(Options::default().set("server.relay_bytes_max", &budget)).await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let name = format!("{workspace}/execs/much");
    let spec = ExecSpec {
        retain: Some(Retain {
            stdout_bytes: i64::try_from(OUTPUT)? + 1,
            ..Retain::default()
        }),
        ..exec::shell(&format!("yes 0123456789abcde | head -c {OUTPUT}"))
    };
    exec::start(client, &workspace, "much", spec).await?;
    exec::attach(client, &name, StreamOffsets::default()).await?;
    let pid = daemon.pid().context("it runs")?;
    let before = usage::resident(pid)?;

    let mut stalled = Vec::new();
    for _ in 0..CLIENTS {
        let other = Client::connect(&daemon.endpoint()).await?;
        for _ in 0..STREAMS {
            let attach = AttachExecRequest {
                name: name.clone(),
                ..AttachExecRequest::default()
            };
            let mut events = other.attach_exec(attach).await?;
            events.next().await?.context("an event")?;
            stalled.push(events);
        }
    }
    // Whoever reads gets all of it meanwhile, byte for byte.
    let expected: Vec<u8> = b"0123456789abcde\n".repeat(OUTPUT / 16);
    let mut most = 0;
    for _ in 0..2 {
        let outcome = read_in_turn(client, &name).await?;
        assert!(outcome.stdout == expected, "{} bytes", outcome.stdout.len());
        most = most.max(usage::resident(pid)?.saturating_sub(before));
    }
    let readers = CLIENTS * STREAMS;
    // What was on its way to them when they lost their place, and the reader that goes on, come on top.
    assert!(most <= (BUDGET_MIB + 48) * MIB, "{} MiB", most / MIB);

    // Those that lost their place are told so, with what to do; the rest of what they had comes first.
    let mut displaced = 0;
    for mut events in stalled {
        let ended = loop {
            match tokio::time::timeout(Duration::from_secs(20), events.next()).await? {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        if let Some(error) = ended {
            let failure = error.failure().context("a status")?;
            assert!(failure.retry_after.is_some(), "no RetryInfo: {failure:?}");
            let told = refusal(Err::<(), _>(error))?;
            assert_eq!(
                told,
                ("ResourceExhausted".into(), "REASON_QUOTA_EXCEEDED".into())
            );
            displaced += 1;
        }
    }
    assert!(displaced >= readers / 2, "{displaced} of {readers}");
    daemon.stop().await
}

//! Readers that stall: the daemon bounds the bytes that it buffers for them, and other readers do not notice.

use anyhow::{Context, Result};
use skilld_client::Client;
use skilld_proto::v1::{AttachExecRequest, ExecRetention, ExecSpec, StreamOffsets};
use skilld_tests::{Daemon, Options, exec};

use crate::crash::{expect_status, with_deadline};

/// Number of clients with stalled readers; each has one connection.
const CLIENTS: usize = 8;
const STREAMS: usize = 16;
const OUTPUT: usize = 16 << 20;
/// Value of `server.relay_bytes_max`. The stalled readers would take some 130 MiB if they could.
const BUDGET: &str = "32MiB";
/// Log line of the daemon for a connection that it closes.
const CLOSED: &str = "closed a connection whose client does not read";

#[tokio::test]
async fn stalled_readers_lose_their_permits_to_one_that_reads() -> Result<()> {
    let options = Options::default().set("server.relay_bytes_max", BUDGET);
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let name = format!("{workspace}/execs/much");
    let spec = ExecSpec {
        retention: Some(ExecRetention {
            stdout_bytes: i64::try_from(OUTPUT)? + 1,
            ..ExecRetention::default()
        }),
        ..exec::shell(&format!("yes 0123456789abcde | head -c {OUTPUT}"))
    };
    exec::start(client, &workspace, "much", spec).await?;
    exec::attach(client, &name, StreamOffsets::default()).await?;

    let (mut stalled, mut errors) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let other = Client::connect(&daemon.endpoint()).await?;
        for _ in 0..STREAMS {
            let attach = AttachExecRequest {
                name: name.clone(),
                ..AttachExecRequest::default()
            };
            let mut events = other.attach_exec(attach).await?;
            // A stream is refused while the others are not known to stall, and its connection has the most.
            match events.next().await {
                Ok(event) => {
                    event.context("an event")?;
                    stalled.push(events);
                }
                Err(error) => errors.push(error),
            }
        }
    }
    // Whoever reads gets all of it meanwhile, byte for byte.
    let expected: Vec<u8> = b"0123456789abcde\n".repeat(OUTPUT / 16);
    for _ in 0..2 {
        let reading = exec::attach_in_turn(client, &name);
        let outcome = with_deadline("the reader has all", reading).await?;
        assert!(outcome.stdout == expected, "{} bytes", outcome.stdout.len());
    }

    // Those that lost their place are told so, with what to do, if their connection takes it; the rest of what they had
    // comes first.
    for mut events in stalled {
        let ending = async {
            loop {
                match events.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Ok(None),
                    Err(error) => return Ok(Some(error)),
                }
            }
        };
        errors.extend(with_deadline("the stream ends", ending).await?);
    }
    let (displaced, mut told) = (errors.len(), 0);
    for error in errors {
        let failure = error.failure().context("a status")?;
        if failure.reason.is_none() {
            // What waits on a connection is freed by its end only, which is the last resort.
            assert!(daemon.log().contains(CLOSED), "{failure:?}");
            continue;
        }
        told += 1;
        assert!(failure.retry_after.is_some(), "no RetryInfo: {failure:?}");
        let status = expect_status(Err::<(), _>(error))?;
        assert_eq!(
            status,
            ("ResourceExhausted".into(), "QUOTA_EXCEEDED".into())
        );
    }
    let readers = CLIENTS * STREAMS;
    assert!(displaced >= readers / 2, "{displaced} of {readers}");
    assert!(told > 0, "{displaced} displaced");
    daemon.stop().await
}

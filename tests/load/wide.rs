//! Outputs of many execs that exceed the memory of daemon and guest.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use skilld_client::Client;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::exec_event::output::Content;
use skilld_client::v1::exec_result::Outcome;
use skilld_client::v1::{AttachExecRequest, Exec, ExecState, OnFull};
use skilld_tests::exec::{argv, start, workspace};
use skilld_tests::{Daemon, usage, wait};

use crate::{MIB, alone, options};

const BYTES: u64 = 10_000_000_000;
/// Number of bytes that one client reads; the rest is written without a reader.
const READ_BYTES: u64 = 1_000_000_000;
/// Minimum number of bytes that a reader receives while the program writes.
const LIVE_BYTES: u64 = 64 * MIB;
/// Bytes of a stream that the guest retains.
const WINDOW: u64 = 4 * MIB;
const TIME_MAX: Duration = Duration::from_secs(120);
/// Maximum resident bytes: the idle process, one window and the bytes in flight.
const DAEMON_MAX: u64 = 48 * MIB;
const GUEST_MAX: u64 = 16 * MIB;

#[tokio::test(flavor = "multi_thread")]
async fn outputs_larger_than_memory_keep_daemon_and_guest_small() -> Result<()> {
    let _alone = alone().await;
    let daemon = Daemon::start_with(options()?).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon.warm(1).await?;
    let guest = usage::guest(&daemon, &name).await?;
    let pid = daemon.pid().context("the daemon has ended")?;
    let before = [usage::forget_peak(pid)?, usage::forget_peak(guest)?];

    let started = Instant::now();
    let mut spec = argv([
        "sh",
        "-c",
        r#"yes | head -c "$1""#,
        "sh",
        &BYTES.to_string(),
    ]);
    spec.set_on_full(OnFull::DropOldest);
    let exec = start(client, &name, "", spec).await?;
    let (read, lost) = read_some(client, &exec.name).await?;
    let reading = started.elapsed();
    let ended = ended(client, &exec.name).await?;
    let took = started.elapsed();
    println!("read {read} bytes in {reading:?}, {lost} were lost; all took {took:?}");
    let peaks = [usage::peak(pid)?, usage::peak(guest)?];
    println!("daemon and guest had {before:?} bytes, and at most {peaks:?}");

    let total = ended.total.context("no total")?;
    assert_eq!((total.stdout, total.stderr), (BYTES, 0));
    let result = ended.result.context("no result")?;
    assert_eq!(result.outcome, Some(Outcome::ExitCode(0)));
    let kept = ended.oldest.context("no oldest")?.stdout;
    assert_eq!(BYTES - kept, WINDOW, "the window holds its size");
    assert_eq!(result.dropped_bytes.context("dropped")?.stdout, kept);
    assert!(peaks[0] <= DAEMON_MAX, "the daemon had {} bytes", peaks[0]);
    assert!(peaks[1] <= GUEST_MAX, "the guest had {} bytes", peaks[1]);
    assert!(took <= TIME_MAX, "it took {took:?}");
    daemon.stop().await
}

/// Reads from the start and checks every byte; the daemon must report each gap.
async fn read_some(client: &Client, name: &str) -> Result<(u64, u64)> {
    let request = AttachExecRequest {
        name: name.to_owned(),
        ..AttachExecRequest::default()
    };
    let mut events = client.attach_exec(request).await?;
    let (mut at, mut read, mut lost) = (0, 0, 0);
    let expected: Vec<u8> = b"y\n".iter().copied().cycle().take(65_537).collect();
    while read < READ_BYTES {
        let event = events.next().await?.context("the stream ended")?;
        match event.event.context("an empty event")? {
            Event::Output(output) => {
                let Some(Content::Data(data)) = output.content else {
                    anyhow::bail!("no bytes");
                };
                ensure!(output.offset == at, "{} follows {at}", output.offset);
                let first = usize::try_from(at % 2)?;
                ensure!(
                    data == expected[first..first + data.len()],
                    "other bytes at {at}"
                );
                at += u64::try_from(data.len())?;
                read += u64::try_from(data.len())?;
            }
            Event::Gap(gap) => {
                ensure!(gap.from == at && gap.to > at, "{gap:?} follows {at}");
                lost += gap.to - gap.from;
                at = gap.to;
            }
            Event::Started(_) | Event::Heartbeat(_) => {}
            // The program was faster than the reader.
            Event::Exited(_) => {
                ensure!(read >= LIVE_BYTES, "{read} bytes were read while it ran");
            }
            Event::Closed(_) => {
                ensure!(at == BYTES, "closed at {at}");
                break;
            }
        }
    }
    Ok((read, lost))
}

/// Waits for the end of an exec without reading its output.
async fn ended(client: &Client, name: &str) -> Result<Exec> {
    wait::until("the exec is over", TIME_MAX, async || {
        let exec = client.get_exec(name).await?;
        Ok((exec.state() == ExecState::Closed).then_some(exec))
    })
    .await
}

//! Many readers of one exec: each at its own pace and from its own offset, and none waits for another.

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::output_event::Content;
use skilld_client::v1::{
    Exec, ExecEvent, ExecRetention, ExecState, OutputFullPolicy, StreamOffsets,
};
use skilld_client::{Client, MessageStream};
use skilld_client::{Outcome, count_from_int64};
use skilld_tests::exec::{argv, attach, open_events, run, shell, start, workspace, zeros};
use skilld_tests::{Daemon, wait};

use crate::load::{DEADLINE, MIB, alone, options, with_deadline};

/// Bytes of output, more than a connection's flow-control window between client and daemon (64 MiB).
const WIDE: u64 = 100 * MIB;
/// Bytes of output of the exec with stalled readers, which it writes once they are attached.
const NOISY: u64 = 8 * WIDE;
/// Number of stalled streams, more than that window has room for (32).
const STALLED: usize = 40;

/// Reads to the end, and returns the bytes of stdout that came and those reported as lost.
async fn drain(mut events: MessageStream<ExecEvent>) -> Result<(u64, u64)> {
    let (mut read, mut lost, mut closed) = (0, 0, false);
    while let Some(event) = events.next().await? {
        match event.event.context("an empty event")? {
            Event::Output(output) => {
                ensure!(
                    count_from_int64(output.offset) == read + lost,
                    "{} after {read} + {lost}",
                    output.offset
                );
                let Some(Content::Data(data)) = output.content else {
                    anyhow::bail!("no bytes");
                };
                read += u64::try_from(data.len())?;
            }
            Event::Gap(gap) => lost += gap.lost_bytes(),
            Event::Closed(_) => closed = true,
            Event::Started(_)
            | Event::Heartbeat(_)
            | Event::Exited(_)
            | Event::Workspace(_)
            | Event::Staged(_)
            | Event::File(_)
            | Event::FileData(_)
            | Event::FileEnd(_)
            | Event::Summary(_) => {}
        }
    }
    ensure!(closed, "it ended without Closed");
    Ok((read, lost))
}

/// Runs an exec with a reader, who must get all of its output.
async fn run_with_reader(client: &Client, workspace: &str) -> Result<()> {
    let exec = start(client, workspace, "", zeros(WIDE, OutputFullPolicy::Block)).await?;
    let reading = async { drain(open_events(client, &exec.name).await?).await };
    let (read, lost) = with_deadline("another exec is read", reading).await?;
    ensure!(
        (read, lost) == (WIDE, 0),
        "{read} bytes came, {lost} were lost"
    );
    Ok(())
}

async fn closed(client: &Client, name: &str) -> Result<Exec> {
    wait::until("the exec is over", DEADLINE, async || {
        let exec = client.get_exec(name).await?;
        Ok((exec.state() == ExecState::Closed).then_some(exec))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_reader_is_isolated() -> Result<()> {
    let _alone = alone().await;
    let daemon = Daemon::start_with(options()?).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon.warm(1).await?;

    // With DROP_OLDEST neither the program, nor another reader of the same exec on the same connection, nor another exec
    // waits for the readers that do not read.
    let text =
        "until [ -e $WORK_DIR/attached ]; do sleep 0.05; done; exec head -c \"$1\" /dev/zero";
    let mut spec = argv(["bash", "-c", text, "bash", &NOISY.to_string()]);
    spec.set_on_full(OutputFullPolicy::DropOldest);
    let noisy = start(client, &name, "", spec).await?;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let mut events = open_events(client, &noisy.name).await?;
        // It has begun, so what is sent to it fills its window.
        events.next().await?.context("Started")?;
        stalled.push(events);
    }
    run(client, &name, shell("touch $WORK_DIR/attached")).await?;
    let reading = async { drain(open_events(client, &noisy.name).await?).await };
    let (read, lost) = with_deadline("the reader that reads has all", reading).await?;
    assert_eq!(read + lost, NOISY);
    let ended = closed(client, &noisy.name).await?;
    let outcome = ended.result.and_then(|result| result.outcome());
    assert_eq!(outcome, Some(Outcome::ExitCode(0)));
    run_with_reader(client, &name).await?;

    // With BLOCK the exec that is not read waits, and only it.
    let waits = start(client, &name, "", zeros(WIDE, OutputFullPolicy::Block)).await?;
    let mut idle = open_events(client, &waits.name).await?;
    idle.next().await?.context("Started")?;
    let reader = open_events(client, &waits.name).await?;
    run_with_reader(client, &name).await?;
    let waiting = client.get_exec(&waits.name).await?;
    assert_eq!(waiting.state(), ExecState::Running);
    assert!(
        count_from_int64(waiting.total.context("total")?.stdout_bytes) < 32 * MIB,
        "{waiting:?}"
    );
    // It goes on when the one that does not read is gone, and nothing was lost.
    drop(idle);
    let all = with_deadline("the exec goes on", drain(reader)).await?;
    assert_eq!(all, (WIDE, 0));
    drop(stalled);
    daemon.stop().await
}

/// Spec of a command whose lines all differ.
const LINES: &str = "import sys
for number in range(int(sys.argv[1])):
    print('%015d' % number)
";
const LINE_BYTES: u64 = 16;

/// Readers attach at different offsets, some at the start, while the exec runs and after its end.
#[tokio::test(flavor = "multi_thread")]
async fn readers_at_different_offsets_get_the_same_bytes() -> Result<()> {
    let _alone = alone().await;
    let options = options()?.set("server.streams_max", "256");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon.warm(1).await?;
    let bytes = 4 * MIB;
    let lines = bytes / LINE_BYTES;
    let text: String = (0..lines).map(|line| format!("{line:015}\n")).collect();
    let expected = text.as_bytes();
    for count in [1, 10, 100] {
        let mut spec = argv(["python3", "-c", LINES, &lines.to_string()]);
        spec.set_on_full(OutputFullPolicy::Block);
        spec.retention = Some(ExecRetention {
            stdout_bytes: i64::try_from(bytes)?,
            ..ExecRetention::default()
        });
        let exec = start(client, &name, "", spec).await?;
        let first = read_at(client, &exec.name, vec![0; count], expected).await?;
        assert_eq!(first, bytes * count as u64);
        // None of them a line's begin.
        let offsets: Vec<u64> = (0..count as u64)
            .map(|one| one * bytes / count as u64 + one % 7)
            .collect();
        let rest = offsets.iter().map(|from| bytes - from).sum::<u64>();
        let again = read_at(client, &exec.name, offsets, expected).await?;
        assert_eq!(again, rest);
    }
    let outcome = run(client, &name, argv(["true"])).await?;
    assert_eq!(outcome.exit_code(), Some(0));
    daemon.stop().await
}

/// Reads from all offsets at the same time, checks every byte, and returns the number of bytes.
async fn read_at(client: &Client, name: &str, offsets: Vec<u64>, expected: &[u8]) -> Result<u64> {
    let readers = offsets.into_iter().map(|stdout| async move {
        let offsets = StreamOffsets::from_counts([stdout, 0]);
        let outcome = attach(client, name, offsets).await?;
        let wanted = &expected[usize::try_from(stdout)?..];
        ensure!(
            outcome.stdout == wanted,
            "from {stdout}: {} bytes",
            outcome.stdout.len()
        );
        ensure!(outcome.exit_code() == Some(0), "{outcome:?}");
        Ok(outcome.stdout.len() as u64)
    });
    Ok(try_join_all(readers).await?.iter().sum())
}

//! Output that exceeds the memory of the container: none of it has to fit in.

use anyhow::{Context, Result, ensure};
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::output_event::Content;
use skilld_client::v1::{AttachExecRequest, Exec, ExecState, OutputFullPolicy};
use skilld_client::{Client, Outcome, count_from_int64};
use skilld_tests::exec::{argv, start, workspace};
use skilld_tests::{Daemon, wait};

use crate::load::{DEADLINE, MIB, alone, options, with_deadline};

/// Memory of the container in MiB.
const MEMORY_MIB: u64 = 128;
/// Bytes of output: four times the memory of the container.
const BYTES: u64 = 4 * MEMORY_MIB * MIB;
/// Number of bytes that one client reads; the rest is written without a reader.
const READ_BYTES: u64 = BYTES / 4;
/// Bytes of a stream that the guest retains.
const WINDOW: u64 = 4 * MIB;

/// The kernel kills a guest that keeps the output. A daemon that buffers it passes, since it has the host's memory:
/// `outputs_larger_than_memory_keep_daemon_and_guest_small` of `make release-check` finds that.
#[tokio::test(flavor = "multi_thread")]
async fn output_larger_than_the_containers_memory_reports_each_gap() -> Result<()> {
    let _alone = alone().await;
    let options = options()?
        .set("pools.default.memory", &format!("{MEMORY_MIB}MiB"))
        // The files of a workspace count towards the memory.
        .set("pools.default.disk", "64MiB");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon.warm(1).await?;
    let mut spec = argv([
        "sh",
        "-c",
        r#"yes | head -c "$1""#,
        "sh",
        &BYTES.to_string(),
    ]);
    spec.set_on_full(OutputFullPolicy::DropOldest);
    let exec = start(client, &name, "", spec).await?;
    let reading = read_some(client, &exec.name);
    with_deadline("a client has read its part", reading).await?;
    let ended = ended(client, &exec.name).await?;

    let total = ended.total.context("no total")?;
    assert_eq!(total.counts(), [BYTES, 0]);
    let result = ended.result.context("no result")?;
    assert_eq!(result.outcome(), Some(Outcome::ExitCode(0)));
    let [kept, _] = ended.oldest.context("no oldest")?.counts();
    assert_eq!(BYTES - kept, WINDOW, "the window holds its size");
    assert_eq!(result.dropped_bytes.context("dropped")?.counts(), [kept, 0]);
    daemon.stop().await
}

/// Reads from the start and checks every byte; the daemon must report each gap.
async fn read_some(client: &Client, name: &str) -> Result<()> {
    let request = AttachExecRequest {
        name: name.to_owned(),
        ..AttachExecRequest::default()
    };
    let mut events = client.attach_exec(request).await?;
    let (mut at, mut read) = (0, 0);
    let expected: Vec<u8> = b"y\n".iter().copied().cycle().take(65_537).collect();
    while read < READ_BYTES {
        let event = events.next().await?.context("the stream ended")?;
        match event.event.context("an empty event")? {
            Event::Output(output) => {
                let Some(Content::Data(data)) = output.content else {
                    anyhow::bail!("no bytes");
                };
                ensure!(
                    count_from_int64(output.offset) == at,
                    "{} follows {at}",
                    output.offset
                );
                let first = usize::try_from(at % 2)?;
                ensure!(
                    data == expected[first..first + data.len()],
                    "other bytes at {at}"
                );
                at += u64::try_from(data.len())?;
                read += u64::try_from(data.len())?;
            }
            Event::Gap(gap) => {
                let follows = count_from_int64(gap.start_offset) == at && gap.lost_bytes() > 0;
                ensure!(follows, "{gap:?} follows {at}");
                at += gap.lost_bytes();
            }
            Event::Started(_)
            | Event::Heartbeat(_)
            | Event::Exited(_)
            | Event::Workspace(_)
            | Event::Staged(_)
            | Event::File(_)
            | Event::FileData(_)
            | Event::FileEnd(_)
            | Event::Summary(_) => {}
            // The program was faster than the reader.
            Event::Closed(_) => {
                ensure!(at == BYTES, "closed at {at}");
                break;
            }
        }
    }
    Ok(())
}

/// Waits for the end of an exec without reading its output.
async fn ended(client: &Client, name: &str) -> Result<Exec> {
    wait::until("the exec is over", DEADLINE, async || {
        let exec = client.get_exec(name).await?;
        Ok((exec.state() == ExecState::Closed).then_some(exec))
    })
    .await
}

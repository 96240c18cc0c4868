//! Long streams over connections that break: no byte is lost and none comes twice.

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::output_event::Content;
use skilld_client::v1::{OutputEvent, RunExecRequest, StreamOffsets};
use skilld_client::{Client, RetryPolicy};
use skilld_client::{Outcome, count_from_int64};
use skilld_tests::Daemon;
use skilld_tests::exec::{argv, run, shell, workspace};
use skilld_tests::proxy::Proxy;

use crate::load::{DEADLINE, MIB, alone, options, with_deadline};

/// Number of pieces of each of the two streams, together 1 GiB.
const PIECES: u64 = 512;
/// Bytes of one piece: a number and 1 MiB, so that no two are alike and none begins at a round offset.
const PIECE_BYTES: u64 = MIB + 11;
const DISCONNECTS: u64 = 10;
/// Number of disconnects after which the daemon is killed as well.
const CRASH_AFTER: u64 = 5;

/// Program that prints both streams and leaves the sha256 of what it wrote in a file.
const PROGRAM: &str = "import hashlib, os, random, sys
block = random.Random(7).randbytes(1 << 20)
sums = [hashlib.sha256(), hashlib.sha256()]
for number in range(int(sys.argv[1])):
    for fd, total in enumerate(sums, 1):
        piece = b'%d.%08d.' % (fd, number) + block
        total.update(piece)
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(fd, rest):]
with open('sums', 'w') as file:
    file.write(' '.join(total.hexdigest() for total in sums))
";

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_over_broken_connections_loses_no_byte() -> Result<()> {
    let _alone = alone().await;
    let mut daemon = Daemon::start_with(options()?).await?;
    let workspace = workspace(&daemon.client).await?.name;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("proxy.sock");
    let mut proxy = Proxy::before(&daemon.state_dir().join("skilld.sock"), &path)?;
    let client = Client::connect(&proxy.host().replace("unix://", "unix:"))
        .await?
        .with_retry(RetryPolicy {
            resume_window: DEADLINE,
            ..RetryPolicy::default()
        });
    daemon.warm(1).await?;

    let mut events = client.run_resuming(RunExecRequest {
        parent: workspace.clone(),
        spec: Some(argv(["python3", "-c", PROGRAM, &PIECES.to_string()])),
        ..RunExecRequest::default()
    });
    let all = 2 * PIECES * PIECE_BYTES;
    let mut seen = ReceivedOutput::default();
    let (mut cuts, mut crashed) = (0, false);
    let goes_on = "the stream goes on";
    while let Some(event) = with_deadline(goes_on, async { Ok(events.next().await?) }).await? {
        seen.take(event.event)?;
        if cuts < DISCONNECTS && seen.bytes() > all * (cuts + 1) / (DISCONNECTS + 2) {
            cuts += 1;
            proxy.cut().await?;
        }
        if cuts == CRASH_AFTER && !crashed {
            crashed = true;
            daemon.crash().await?;
            daemon.restart().await?;
        }
    }

    let sums = run(&daemon.client, &workspace, shell("cat sums")).await?;
    assert_eq!(seen.sums().join(" "), sums.text());
    let each = PIECES * PIECE_BYTES;
    let total = StreamOffsets::from_counts([each, each]);
    assert_eq!((seen.total, events.offsets()), (Some(total), total));
    assert_eq!(seen.outcome, Some(Outcome::ExitCode(0)));
    assert_eq!((cuts, crashed), (DISCONNECTS, true));
    // Cuts in a row, and the one that the crash is, may be got over at once.
    assert!(u64::from(events.times_resumed()) >= DISCONNECTS);
    daemon.stop().await
}

/// Output of an exec that has arrived so far.
#[derive(Default)]
struct ReceivedOutput {
    sums: [Sha256; 2],
    lengths: [u64; 2],
    outcome: Option<Outcome>,
    total: Option<StreamOffsets>,
}

impl ReceivedOutput {
    fn take(&mut self, event: Option<Event>) -> Result<()> {
        match event.context("an empty event")? {
            Event::Output(output) => self.output(&output)?,
            Event::Gap(gap) => anyhow::bail!("a gap: {gap:?}"),
            Event::Exited(end) => {
                assert_eq!(self.outcome, None, "a second Exited");
                self.outcome = end.result.and_then(|result| result.outcome());
            }
            Event::Closed(end) => self.total = end.total,
            Event::Started(_)
            | Event::Heartbeat(_)
            | Event::Workspace(_)
            | Event::Staged(_)
            | Event::File(_)
            | Event::FileData(_)
            | Event::FileEnd(_)
            | Event::Summary(_) => {}
        }
        Ok(())
    }

    fn output(&mut self, output: &OutputEvent) -> Result<()> {
        let index = usize::try_from(output.stream - 1)?;
        let Some(Content::Data(data)) = &output.content else {
            anyhow::bail!("not bytes: {output:?}");
        };
        assert_eq!(count_from_int64(output.offset), self.lengths[index]);
        self.sums[index].update(data);
        self.lengths[index] += u64::try_from(data.len())?;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.lengths.iter().sum()
    }

    fn sums(&self) -> [String; 2] {
        self.sums.clone().map(|sum| {
            let bytes = sum.finalize();
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        })
    }
}

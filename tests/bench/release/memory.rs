//! Memory of daemon and guest while output exceeds it and readers stall, and what workspaces with one environment share.

use anyhow::{Context, Result};
use skilld_client::Client;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::output_event::Content;
use skilld_client::v1::{
    ErrorReason, ExecRetention, ExecSpec, ExecState, OutputFullPolicy, StreamOffsets,
};
use skilld_tests::exec::{argv, attach, attach_in_turn, open_events, shell, start, workspace};
use skilld_tests::large_package::LargePackage;
use skilld_tests::{Daemon, Options, usage, wait};

use crate::{DEADLINE, MIB, alone, options};

/// Bytes of output that exceed every memory involved.
const OUTPUT_BYTES: u64 = 10_000_000_000;
/// Number of bytes that one client reads; the rest is written without a reader.
const READ_BYTES: u64 = 1_000_000_000;
/// Maximum resident bytes: the idle process, one window of 4 MiB and the bytes in flight.
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

    let bytes = OUTPUT_BYTES.to_string();
    let mut spec = argv(["sh", "-c", r#"yes | head -c "$1""#, "sh", &bytes]);
    spec.set_on_full(OutputFullPolicy::DropOldest);
    let exec = start(client, &name, "", spec).await?;
    let mut events = open_events(client, &exec.name).await?;
    let mut read = 0;
    while read < READ_BYTES {
        let Some(event) = events.next().await? else {
            break;
        };
        if let Some(Event::Output(output)) = event.event
            && let Some(Content::Data(data)) = output.content
        {
            read += u64::try_from(data.len())?;
        }
    }
    drop(events);
    wait::until("the exec is over", DEADLINE, async || {
        let state = client.get_exec(&exec.name).await?.state();
        Ok((state == ExecState::Closed).then_some(()))
    })
    .await?;
    let peaks = [usage::peak(pid)?, usage::peak(guest)?];
    println!("{read} bytes read; daemon and guest had {before:?} bytes, and at most {peaks:?}");
    assert!(peaks[0] <= DAEMON_MAX, "the daemon had {} bytes", peaks[0]);
    assert!(peaks[1] <= GUEST_MAX, "the guest had {} bytes", peaks[1]);
    daemon.stop().await
}

/// Number of clients with stalled readers; each has one connection.
const CLIENTS: usize = 8;
const STREAMS: usize = 16;
/// Bytes that each reader could take.
const RETAINED_BYTES: usize = 16 << 20;
/// Value of `server.relay_bytes_max` in MiB. Unbounded, the stalled readers would take some 130 MiB.
const RELAY_MIB: u64 = 32;

#[tokio::test(flavor = "multi_thread")]
async fn stalled_readers_keep_the_daemon_small() -> Result<()> {
    let _alone = alone().await;
    let budget = format!("{RELAY_MIB}MiB");
    let options = Options::default().set("server.relay_bytes_max", &budget);
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let workspace = workspace(client).await?.name;
    let spec = ExecSpec {
        retention: Some(ExecRetention {
            stdout_bytes: i64::try_from(RETAINED_BYTES)? + 1,
            ..ExecRetention::default()
        }),
        ..shell(&format!("yes | head -c {RETAINED_BYTES}"))
    };
    let name = start(client, &workspace, "much", spec).await?.name;
    attach(client, &name, StreamOffsets::default()).await?;
    let pid = daemon.pid().context("it runs")?;
    let before = usage::resident(pid)?;

    let mut stalled = Vec::new();
    for _ in 0..CLIENTS {
        let other = Client::connect(&daemon.endpoint()).await?;
        for _ in 0..STREAMS {
            // The answer is refused until some of the others have waited for long enough to make room.
            let opened = wait::until("there is room for an answer", DEADLINE, async || {
                let mut events = open_events(&other, &name).await?;
                match events.next().await {
                    Err(error) if error.reason() == Some(ErrorReason::QuotaExceeded) => Ok(None),
                    event => Ok(event?.map(|_| events)),
                }
            });
            stalled.push(opened.await?);
        }
    }
    let mut most = 0;
    for _ in 0..2 {
        assert_eq!(
            attach_in_turn(client, &name).await?.stdout.len(),
            RETAINED_BYTES
        );
        most = most.max(usage::resident(pid)?.saturating_sub(before));
    }
    println!("{} stalled readers: {} KiB", stalled.len(), most / 1024);
    // Bytes on their way to readers that lost their permits, and those of the reader that goes on, come on top.
    assert!(most <= (RELAY_MIB + 48) * MIB, "{} MiB", most / MIB);
    drop(stalled);
    daemon.stop().await
}

const WORKSPACES: u64 = 8;

#[tokio::test(flavor = "multi_thread")]
async fn workspaces_with_the_same_environment_share_its_files() -> Result<()> {
    let _alone = alone().await;
    let package = LargePackage::new(16).await?;
    package.add_skill("large", true)?;
    let options = package.serve(options()?).set("pools.default.warm", "0");
    let daemon = Daemon::start_with(options).await?;
    let mut names = Vec::new();
    for _ in 0..WORKSPACES {
        names.push(workspace(&daemon.client).await?.name);
    }
    let [one, all] = package.use_in_each(&daemon, &names, "large").await?;
    println!("one workspace took {one:?}, {WORKSPACES} took {all:?}");
    // Each further workspace has a copy of the skill's two small files, and a record.
    let further = (WORKSPACES - 1) * MIB / 4;
    for (one, all) in [
        (one.disk_bytes, all.disk_bytes),
        (one.cache_bytes, all.cache_bytes),
    ] {
        let file = package.file_bytes();
        assert!(one >= file, "{one} bytes are less than the file");
        assert!(one <= file + 4 * MIB, "{one} bytes for one workspace");
        assert!(all <= one + further, "{all} bytes, and {one} for one");
    }
    daemon.stop().await
}

//! Retained output: a window per stream, a position per reader, and a limit for all windows.

use std::time::{Duration, Instant};

use skilld_proto::guest::v1 as wire;
use skilld_proto::v1;
use skilld_proto::{Outcome, count_from_int64};

use crate::support::{DEADLINE, Guest, SeenEvents, configuration, duration, until};

const MEBI: u64 = 1024 * 1024;

/// Builds a request for bash with windows of this size.
fn request(
    guest: &Guest,
    id: &str,
    script: &str,
    on_full: v1::OutputFullPolicy,
    bytes: i64,
) -> wire::StartExecRequest {
    let mut request = guest.request(id, &["bash", "-c", script]);
    if let Some(spec) = &mut request.spec {
        spec.on_full = on_full.into();
        spec.retention = Some(v1::ExecRetention {
            stdout_bytes: bytes,
            stderr_bytes: bytes,
            ..Default::default()
        });
    }
    request
}

async fn start(guest: &Guest, request: wire::StartExecRequest) {
    let mut client = guest.client.clone();
    client.start_exec(request).await.expect("started");
}

async fn get(guest: &Guest, id: &str) -> Option<v1::Exec> {
    let exec_id = id.to_owned();
    let request = wire::GetExecRequest { exec_id };
    let exec = guest.client.clone().get_exec(request).await;
    exec.ok().map(tonic::Response::into_inner)
}

async fn closed(guest: &Guest, id: &str) {
    let begin = Instant::now();
    while get(guest, id).await.expect("there").state() != v1::ExecState::Closed {
        assert!(begin.elapsed() < DEADLINE, "never closed");
    }
}

#[tokio::test]
async fn stdout_and_stderr_have_windows_of_their_own() {
    let guest = Guest::start().await;
    // The one that is full blocks, the other one does not.
    let script = "yes >&2 & until [ -e go ]; do sleep 0.01; done; echo out; touch said; wait";
    let full = request(&guest, "block", script, v1::OutputFullPolicy::Block, 70_000);
    start(&guest, full).await;
    let begin = Instant::now();
    while get(&guest, "block")
        .await
        .and_then(|exec| exec.total)
        .expect("offsets")
        .stderr_bytes
        < 70_000
    {
        assert!(begin.elapsed() < DEADLINE, "never full");
    }
    std::fs::write(guest.workspace().join("go"), "").expect("written");
    let said = guest.workspace().join("said");
    until("the other stream is open", || said.exists()).await;
    until_total(&guest, "block", 4).await;
    let poll = wire::PollExecRequest {
        exec_id: "block".to_owned(),
        wait: duration(5000),
        max_bytes: 1 << 20,
        ..Default::default()
    };
    let answer = guest.client.clone().poll_exec(poll).await.expect("polled");
    let next = answer.into_inner().next_offsets.expect("offsets");
    assert_eq!((next.stdout_bytes, next.stderr_bytes), (4, 70_000));

    // What one drops, the other keeps.
    let script = "echo first; head -c 3000000 /dev/zero >&2; echo last";
    let drop = request(
        &guest,
        "drop",
        script,
        v1::OutputFullPolicy::DropOldest,
        70_000,
    );
    start(&guest, drop).await;
    closed(&guest, "drop").await;
    let seen = SeenEvents::all(guest.attach("drop", 0).await)
        .await
        .expect("ends well");
    assert_eq!(seen.stdout(), "first\nlast\n");
    assert_eq!(
        (seen.err.len(), &*seen.gaps),
        (70_000, &[(0, 2_930_000)][..])
    );
}

#[tokio::test]
async fn stalled_reader_is_isolated() {
    let guest = Guest::start().await;
    let script = "head -c 50000000 /dev/zero; echo end";
    let drop = request(
        &guest,
        "dropping",
        script,
        v1::OutputFullPolicy::DropOldest,
        200_000,
    );
    start(&guest, drop).await;
    // Nobody takes what this one is sent: its window of the connection fills.
    let stalled = guest.attach("dropping", 0).await;
    let block = request(
        &guest,
        "waiting",
        script,
        v1::OutputFullPolicy::Block,
        200_000,
    );
    let mut client = guest.client.clone();
    let waiting = client.run_exec(block).await.expect("runs").into_inner();
    // The program does not wait for it, nor do others for the one that waits for its reader.
    closed(&guest, "dropping").await;
    let seen = guest.sh("other", "head -c 20000000 /dev/zero").await;
    assert_eq!((seen.out.len(), seen.gaps.len()), (20_000_000, 0));
    assert_eq!(
        get(&guest, "waiting").await.expect("there").state(),
        v1::ExecState::Running
    );
    let seen = SeenEvents::all(waiting).await.expect("ends well");
    assert_eq!((seen.out.len(), seen.gaps.len()), (50_000_004, 0));
    // The stalled one gets what was on its way, is told of all that it missed, and gets the rest.
    let seen = SeenEvents::all(stalled).await.expect("ends well");
    let lost: u64 = seen.gaps.iter().map(|(from, to)| to - from).sum();
    assert!(lost > 40_000_000, "{lost}");
    assert_eq!(seen.out.len() as u64 + lost, 50_000_004);
    assert!(seen.out.ends_with(b"\0end\n"));
    assert_eq!(seen.outcome(), Outcome::ExitCode(0));
}

/// Number of bytes that exceeds the window and the buffers of a connection.
const MUCH: u64 = 50_000_000;

#[tokio::test]
async fn a_stalled_second_reader_does_not_stop_a_blocking_program() {
    let guest = Guest::start().await;
    let script = format!("until [ -e go ]; do sleep 0.01; done; head -c {MUCH} /dev/zero");
    let block = request(
        &guest,
        "both",
        &script,
        v1::OutputFullPolicy::Block,
        200_000,
    );
    let mut client = guest.client.clone();
    let starter = client.run_exec(block).await.expect("runs").into_inner();
    let stalled = guest.attach("both", 0).await;
    let begin = Instant::now();
    std::fs::write(guest.workspace().join("go"), "").expect("written");
    let seen = SeenEvents::all(starter).await.expect("ends well");
    assert_eq!((seen.out.len() as u64, seen.gaps.len()), (MUCH, 0));
    let took = begin.elapsed();
    assert!(took > Duration::from_secs(5), "no grace: {took:?}");
    // It gets what was on its way, is told of all that it missed, and gets the rest.
    let seen = SeenEvents::all(stalled).await.expect("ends well");
    let lost: u64 = seen.gaps.iter().map(|(from, to)| to - from).sum();
    assert!(lost > 0, "no gap");
    assert_eq!(seen.out.len() as u64 + lost, MUCH);
}

#[tokio::test]
async fn a_stalled_run_exec_loses_nothing_to_a_second_reader() {
    let guest = Guest::start().await;
    let script = format!("until [ -e go ]; do sleep 0.01; done; head -c {MUCH} /dev/zero");
    let block = request(
        &guest,
        "both",
        &script,
        v1::OutputFullPolicy::Block,
        200_000,
    );
    let mut client = guest.client.clone();
    let starter = client.run_exec(block).await.expect("runs").into_inner();
    let mut second = guest.attach("both", 0).await;
    std::fs::write(guest.workspace().join("go"), "").expect("written");
    let mut seen = SeenEvents::default();
    // Longer than the grace of a reader that may lose its place.
    let grace = Duration::from_millis(6500);
    while let Ok(event) = tokio::time::timeout(grace, second.message()).await {
        let event = event.expect("no error").expect("the program waits");
        seen.take(event);
    }
    assert!((seen.out.len() as u64) < MUCH && seen.total.is_none());
    let rest = async {
        while let Some(event) = second.message().await.expect("no error") {
            seen.take(event);
        }
        seen
    };
    let (first, second) = tokio::join!(SeenEvents::all(starter), rest);
    let of_starter = first.expect("ends well");
    assert_eq!(
        (of_starter.out.len() as u64, of_starter.gaps.len()),
        (MUCH, 0)
    );
    // The second one may lose its place if this process pauses for longer than the grace.
    let lost: u64 = second.gaps.iter().map(|(from, to)| to - from).sum();
    assert_eq!(second.out.len() as u64 + lost, MUCH);
}

#[tokio::test]
async fn all_output_together_is_bounded() {
    let guest = Guest::configured(wire::ConfigureRequest {
        workspace: "workspaces/w".to_owned(),
        execs_max: 64,
        retain_bytes_total: 8 * MEBI,
        retained_execs_max: 1000,
        ..Default::default()
    })
    .await;
    // Sixteen that run and sixteen that ended, of four MiB each.
    let each = 4 * MEBI;
    let endless = "head -c 6000000 /dev/zero; sleep 1000";
    for number in 0..16 {
        let id = format!("runs{number}");
        let on_full = v1::OutputFullPolicy::DropOldest;
        let bytes = i64::try_from(each).expect("small");
        start(&guest, request(&guest, &id, endless, on_full, bytes)).await;
        let id = format!("ended{number}");
        let brief = "head -c 6000000 /dev/zero";
        start(&guest, request(&guest, &id, brief, on_full, bytes)).await;
    }
    let begin = Instant::now();
    for number in 0..16 {
        let id = format!("runs{number}");
        loop {
            let total = get(&guest, &id).await.and_then(|exec| exec.total);
            if total.expect("offsets").stdout_bytes == 6_000_000 {
                break;
            }
            assert!(begin.elapsed() < DEADLINE, "{id} never ran");
        }
        // Some of the others are forgotten by then.
        let id = format!("ended{number}");
        let runs = |exec: v1::Exec| exec.state() != v1::ExecState::Closed;
        while get(&guest, &id).await.is_some_and(runs) {
            assert!(begin.elapsed() < DEADLINE, "{id} never ended");
        }
    }
    let mut held = 0;
    let mut kept = 0;
    for number in 0..16 {
        for kind in ["runs", "ended"] {
            let Some(exec) = get(&guest, &format!("{kind}{number}")).await else {
                assert_eq!(kind, "ended", "what runs is never forgotten");
                continue;
            };
            kept += 1;
            held += retained_bytes(&exec);
        }
    }
    // Each that runs may keep 64 KiB of each stream whatever the others hold.
    assert!(held <= 8 * MEBI + 17 * 64 * 1024, "{held} in {kept} execs");
}

/// Starts a guest whose windows together may hold one MiB.
async fn tight() -> Guest {
    Guest::configured(wire::ConfigureRequest {
        retain_bytes_total: MEBI,
        ..configuration()
    })
    .await
}

/// Starts an exec whose output fills the rest of one MiB while it runs.
async fn hold(guest: &Guest, id: &str) {
    let script = "head -c 4000000 /dev/zero; sleep 1000";
    let holder = request(guest, id, script, v1::OutputFullPolicy::Block, 4_000_000);
    start(guest, holder).await;
    // The next one finds everything taken.
    let begin = Instant::now();
    while held_bytes(guest).await <= MEBI {
        assert!(begin.elapsed() < DEADLINE, "never full");
    }
}

/// Returns how many bytes of stdout all execs together retain.
async fn held_bytes(guest: &Guest) -> u64 {
    let request = wire::ListExecsRequest {
        page_size: 100,
        ..Default::default()
    };
    let listed = guest.client.clone().list_execs(request).await;
    let execs = listed.expect("a list").into_inner().execs;
    execs.iter().map(retained_bytes).sum()
}

/// Returns how many bytes of stdout an exec retains.
fn retained_bytes(exec: &v1::Exec) -> u64 {
    let (total, oldest) = (exec.total.expect("offsets"), exec.oldest.expect("offsets"));
    count_from_int64(total.stdout_bytes - oldest.stdout_bytes)
}

async fn until_total(guest: &Guest, id: &str, bytes: i64) {
    let begin = Instant::now();
    loop {
        let exec = get(guest, id).await.expect("there");
        if exec.total.expect("offsets").stdout_bytes >= bytes {
            return;
        }
        assert!(begin.elapsed() < DEADLINE, "never {bytes}");
    }
}

#[tokio::test]
async fn a_spent_budget_drops_output_of_ended_execs_but_no_results() {
    let guest = tight().await;
    // One with a straggler that stays has ended, too, for its output.
    let script = "sleep 100 > /dev/null 2>&1 & head -c 500000 /dev/zero";
    let mut kept = request(
        &guest,
        "kept",
        script,
        v1::OutputFullPolicy::DropOldest,
        1_000_000,
    );
    if let Some(spec) = &mut kept.spec {
        spec.set_stragglers(v1::StragglerPolicy::Keep);
    }
    start(&guest, kept).await;
    closed(&guest, "kept").await;
    let oldest = get(&guest, "kept").await.and_then(|exec| exec.oldest);
    assert_eq!(oldest.expect("offsets").stdout_bytes, 0);
    hold(&guest, "holder").await;
    let kept = get(&guest, "kept").await.expect("there");
    assert_eq!(kept.oldest.expect("offsets").stdout_bytes, 500_000);

    // Nothing is left for this one, and still its end is known: to a reader with all of its output.
    let brief = guest.request("read", &["bash", "-c", "echo hi; exit 3"]);
    let seen = guest.run(brief.clone()).await;
    assert_eq!(
        (seen.stdout(), seen.outcome()),
        ("hi\n".to_owned(), Outcome::ExitCode(3))
    );
    let script = "head -c 70000 /dev/zero; exit 4";
    let alone = request(
        &guest,
        "alone",
        script,
        v1::OutputFullPolicy::DropOldest,
        70_000,
    );
    start(&guest, alone.clone()).await;
    closed(&guest, "alone").await;
    for (id, code) in [("read", 3), ("alone", 4)] {
        let exec = get(&guest, id).await.expect("kept");
        let outcome = exec.result.and_then(|result| result.outcome());
        assert_eq!(outcome, Some(Outcome::ExitCode(code)), "{id}");
        assert_eq!(exec.oldest, exec.total, "{id}");
    }
    // The start that is repeated gets the same exec, and hears what it missed.
    let again = guest.run(alone).await;
    assert_eq!(again.gaps, [(0, 70_000)]);
    assert_eq!(
        (again.out.len(), again.outcome()),
        (0, Outcome::ExitCode(4))
    );
}

#[tokio::test]
async fn a_blocked_exec_goes_on_as_soon_as_others_leave_room() {
    let guest = tight().await;
    hold(&guest, "holder").await;
    let script = "head -c 500000 /dev/zero; sleep 1000";
    let waiting = request(
        &guest,
        "waits",
        script,
        v1::OutputFullPolicy::Block,
        4_000_000,
    );
    start(&guest, waiting).await;
    // What each may hold whatever the others do.
    until_total(&guest, "waits", 64 * 1024).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let total = get(&guest, "waits").await.and_then(|exec| exec.total);
    assert_eq!(total.expect("offsets").stdout_bytes, 64 * 1024);
    let exec_id = "holder".to_owned();
    let delete = wire::DeleteExecRequest { exec_id };
    let deleted = guest.client.clone().delete_exec(delete).await;
    deleted.expect("deleted");
    until_total(&guest, "waits", 500_000).await;

    // The same when the bound is raised.
    hold(&guest, "second").await;
    let held = get(&guest, "second").await.and_then(|exec| exec.total);
    assert!(held.expect("offsets").stdout_bytes < 4_000_000);
    let wider = guest.client.clone().configure(configuration()).await;
    wider.expect("configured");
    until_total(&guest, "second", 4_000_000).await;
}

//! Ends of execs: deletion, retention limits, and the kill after the last stream breaks.

use std::time::{Duration, Instant};

use skilld_proto::Outcome;
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{self, ExitReason};
use tonic::{Code, Status, Streaming};

use crate::support::{
    DEADLINE, Guest, SeenEvents, alive, configuration, duration, reason, until, with_longer_times,
};

async fn get(guest: &Guest, id: &str) -> Result<v1::Exec, Status> {
    let exec_id = id.to_owned();
    let request = wire::GetExecRequest { exec_id };
    let exec = guest.client.clone().get_exec(request).await?;
    Ok(exec.into_inner())
}

async fn delete(guest: &Guest, id: &str) -> Result<(), Status> {
    let exec_id = id.to_owned();
    let request = wire::DeleteExecRequest { exec_id };
    guest.client.clone().delete_exec(request).await?;
    Ok(())
}

async fn start(guest: &Guest, request: wire::StartExecRequest) -> Result<v1::Exec, Status> {
    let exec = guest.client.clone().start_exec(request).await?;
    Ok(exec.into_inner())
}

fn assert_refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, why: &str) {
    let status = answer.expect_err(why);
    assert_eq!((status.code(), &*reason(&status)), (code, why), "{status}");
}

/// Returns what a command wrote to a file of the workspace.
async fn written(guest: &Guest, name: &str) -> String {
    let file = guest.workspace().join(name);
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    until(name, || read().ends_with('\n')).await;
    read().trim().to_owned()
}

#[tokio::test]
async fn deleting_an_exec_kills_its_tree_and_keeps_its_id_taken() {
    let guest = Guest::start().await;
    let script = "trap '' TERM; echo begun; setsid sleep 100 & echo $! > child; wait; sleep 100";
    let request = guest.request("doomed", &["bash", "-c", script]);
    start(&guest, request.clone()).await.expect("started");
    let child = written(&guest, "child").await;
    let reader = guest.attach("doomed", 0).await;
    let (read, deleted) = tokio::join!(SeenEvents::all(reader), delete(&guest, "doomed"));
    deleted.expect("deleted");
    // Whoever was attached hears how it ended.
    let seen = read.expect("ends well");
    assert_eq!(
        (seen.reason(), &*seen.stdout()),
        (ExitReason::KilledByClient, "begun\n")
    );
    assert!(!alive(&child), "nothing is left of it");
    assert_refused(
        get(&guest, "doomed").await,
        Code::NotFound,
        "EXEC_NOT_FOUND",
    );
    assert_refused(
        delete(&guest, "doomed").await,
        Code::NotFound,
        "EXEC_NOT_FOUND",
    );
    assert_refused(
        start(&guest, request).await,
        Code::AlreadyExists,
        "ID_TAKEN",
    );

    // One that has ended, with a straggler that was to stay.
    let script = "setsid sleep 100 > /dev/null 2>&1 & echo $! > kept";
    let mut request = guest.request("ended", &["bash", "-c", script]);
    if let Some(spec) = &mut request.spec {
        spec.set_stragglers(v1::StragglerPolicy::Keep);
    }
    guest.run(request).await;
    let kept = written(&guest, "kept").await;
    assert!(alive(&kept));
    let list = async || {
        let request = wire::ListExecsRequest::default();
        let listed = guest.client.clone().list_execs(request).await;
        listed.expect("a list").into_inner()
    };
    assert_eq!(list().await.living, 1);
    delete(&guest, "ended").await.expect("deleted");
    assert!(!alive(&kept));
    let left = list().await;
    assert_eq!((left.execs, left.living), (Vec::new(), 0));
}

#[tokio::test]
async fn a_command_never_runs_twice_under_one_id() {
    let guest = Guest::configured(wire::ConfigureRequest {
        workspace: "workspaces/w".to_owned(),
        execs_max: 4,
        retain_bytes_total: 1 << 20,
        retained_execs_max: 2,
        ..Default::default()
    })
    .await;
    let request = guest.request("first", &["bash", "-c", "echo run >> runs.log"]);
    // The same request starts it once; both see the same exec.
    let begun = start(&guest, request.clone()).await.expect("started");
    let again = start(&guest, request.clone()).await.expect("the same");
    assert_eq!((begun.pid, begun.start_time), (again.pid, again.start_time));
    let other = wire::StartExecRequest {
        request_digest: b"other".as_slice().into(),
        ..request.clone()
    };
    assert_refused(start(&guest, other).await, Code::AlreadyExists, "ID_TAKEN");
    let seen = guest.run(request.clone()).await;
    assert_eq!(seen.outcome(), Outcome::ExitCode(0));
    // Others push it out.
    for id in ["second", "third", "fourth"] {
        guest.sh(id, "true").await;
    }
    assert_refused(get(&guest, "first").await, Code::NotFound, "EXEC_NOT_FOUND");
    assert_refused(
        start(&guest, request).await,
        Code::AlreadyExists,
        "ID_TAKEN",
    );
    let runs = std::fs::read_to_string(guest.workspace().join("runs.log"));
    assert_eq!(runs.expect("a file"), "run\n");
}

/// Runs a program with on_disconnect KILL until its first output.
async fn run_abandoned(guest: &Guest, id: &str) -> Streaming<v1::ExecEvent> {
    let script = "echo up; sleep 1000";
    let mut request = guest.request(id, &["bash", "-c", script]);
    if let Some(spec) = &mut request.spec {
        spec.set_on_disconnect(v1::DisconnectPolicy::Kill);
    }
    let mut client = guest.client.clone();
    let mut stream = client.run_exec(request).await.expect("runs").into_inner();
    says_something(&mut stream).await;
    stream
}

async fn says_something(stream: &mut Streaming<v1::ExecEvent>) {
    while let Some(event) = stream.message().await.expect("an event") {
        if matches!(event.event, Some(Event::Output(_))) {
            return;
        }
    }
    panic!("it ended");
}

/// Waits until a client's absence has killed an exec; panics at the deadline.
async fn ends(guest: &Guest, id: &str) {
    let begin = Instant::now();
    let request = wire::PollExecRequest {
        exec_id: id.to_owned(),
        wait: duration(10_000),
        max_bytes: 1 << 20,
        settle_duration: duration(10_000),
        ..Default::default()
    };
    loop {
        let answer = guest
            .client
            .clone()
            .poll_exec(request.clone())
            .await
            .expect("polled")
            .into_inner();
        if let Some(result) = answer.result {
            assert_eq!(result.reason(), ExitReason::KilledByClient);
            return;
        }
        assert!(begin.elapsed() < DEADLINE, "never ended");
    }
}

/// Starts a guest that kills an exec so many milliseconds after its last stream broke.
async fn guest_with_disconnect_grace(grace: u64) -> Guest {
    Guest::configured(wire::ConfigureRequest {
        disconnect_grace: duration(grace),
        ..configuration()
    })
    .await
}

async fn is_running(guest: &Guest, id: &str) -> bool {
    get(guest, id).await.expect("there").state() == v1::ExecState::Running
}

// Unless a test sets another one, the grace is 500 ms here, and between TERM and KILL another 200.

#[tokio::test]
async fn an_exec_is_killed_after_its_last_stream_disconnects() {
    let guest = Guest::start().await;
    let stream = run_abandoned(&guest, "left").await;
    // The first of two streams is not the last.
    let mut second = guest.attach("left", 0).await;
    says_something(&mut second).await;
    drop(stream);
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert!(is_running(&guest, "left").await);
    let begin = Instant::now();
    drop(second);
    ends(&guest, "left").await;
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(500), "{took:?}");
}

#[tokio::test]
async fn a_client_that_reconnects_in_time_keeps_its_exec_running() {
    with_longer_times(async |id, grace| {
        let guest = guest_with_disconnect_grace(grace).await;
        let mut stream = run_abandoned(&guest, id).await;
        // All absences together are longer than the grace.
        for _ in 0..4 {
            drop(stream);
            tokio::time::sleep(Duration::from_millis(grace * 3 / 10)).await;
            stream = guest.attach(id, 0).await;
            says_something(&mut stream).await;
        }
        tokio::time::sleep(Duration::from_millis(grace * 11 / 10)).await;
        is_running(&guest, id).await
    })
    .await;
}

#[tokio::test]
async fn a_disconnect_keeps_an_exec_by_default() {
    let guest = Guest::start().await;
    let request = guest.request("kept", &["bash", "-c", "echo up; sleep 100"]);
    let mut client = guest.client.clone();
    let mut stream = client.run_exec(request).await.expect("runs").into_inner();
    says_something(&mut stream).await;
    drop(stream);
    // One without any stream is nobody's loss either.
    let mut request = guest.request("alone", &["sleep", "100"]);
    if let Some(spec) = &mut request.spec {
        spec.set_on_disconnect(v1::DisconnectPolicy::Kill);
    }
    start(&guest, request).await.expect("started");
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(is_running(&guest, "kept").await);
    assert!(is_running(&guest, "alone").await);
}

#[tokio::test]
async fn the_clock_of_a_disconnect_stands_still_without_a_daemon() {
    with_longer_times(async |_, grace| {
        let mut guest = guest_with_disconnect_grace(grace).await;
        let stream = run_abandoned(&guest, "back").await;
        let gone = run_abandoned(&guest, "gone").await;
        drop((stream, gone));
        guest.disconnect();
        tokio::time::sleep(Duration::from_millis(grace * 3 / 2)).await;
        guest.reconnect().await;
        let mut stream = guest.attach("back", 0).await;
        says_something(&mut stream).await;
        if !is_running(&guest, "back").await {
            return false;
        }
        // The other one's client did not come back.
        tokio::time::sleep(Duration::from_millis(grace)).await;
        ends(&guest, "gone").await;
        is_running(&guest, "back").await
    })
    .await;
}

#[tokio::test]
async fn times_beyond_every_clock_are_just_far_away() {
    let guest = Guest::start().await;
    let longest = Some(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    });
    let mut request = guest.request("patient", &["echo", "hi"]);
    if let Some(spec) = &mut request.spec {
        spec.timeout = longest;
        spec.no_output_timeout = longest;
        spec.retention = Some(v1::ExecRetention {
            after_exit: longest,
            ..Default::default()
        });
    }
    assert_eq!(guest.run(request).await.stdout(), "hi\n");
    assert!(get(&guest, "patient").await.is_ok());
    let settings = wire::ConfigureRequest {
        workspace: "workspaces/test".to_owned(),
        execs_max: 64,
        leak_grace: longest,
        kill_grace: longest,
        heartbeat: longest,
        disconnect_grace: longest,
        retain_bytes_total: 1 << 30,
        retained_execs_max: 1000,
    };
    let mut client = guest.client.clone();
    client.configure(settings).await.expect("configured");
    let stream = run_abandoned(&guest, "leaky").await;
    drop(stream);
    assert_eq!(
        guest.sh("after", "sleep 1 & echo hi").await.stdout(),
        "hi\n"
    );
}

#[tokio::test]
async fn a_refused_attach_is_no_stream_that_broke() {
    let guest = Guest::start().await;
    let mut request = guest.request("alone", &["sleep", "100"]);
    if let Some(spec) = &mut request.spec {
        spec.set_on_disconnect(v1::DisconnectPolicy::Kill);
    }
    start(&guest, request).await.expect("started");
    let beyond = wire::AttachExecRequest {
        exec_id: "alone".to_owned(),
        offsets: Some(v1::StreamOffsets {
            stdout_bytes: 1,
            stderr_bytes: 0,
        }),
        ..Default::default()
    };
    let refused = guest.client.clone().attach_exec(beyond).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_REQUEST");
    // The grace and what a kill takes are over.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(is_running(&guest, "alone").await);
}

#[tokio::test]
async fn a_start_needs_no_directory_of_its_own() {
    let guest = Guest::start().await;
    // A command took away where they are made.
    let seen = guest.sh("breaks", "rm -rf runs; echo > runs").await;
    assert_eq!(seen.outcome(), Outcome::ExitCode(0));
    assert_eq!(guest.sh("file", "echo fine").await.stdout(), "fine\n");
    let seen = guest.sh("breaks2", "rm runs; ln -s / runs").await;
    assert_eq!(seen.outcome(), Outcome::ExitCode(0));
    assert_eq!(guest.sh("link", "echo fine").await.stdout(), "fine\n");
    assert!(!std::path::Path::new("/link").exists());
}

#[tokio::test]
async fn a_refused_start_leaves_nothing_behind() {
    let guest = Guest::start().await;
    std::os::unix::fs::symlink("/etc", guest.workspace().join("way-out")).expect("a link");
    let mut request = guest.request("out", &["true"]);
    request.cwd = format!("{}/way-out", guest.workspace().display());
    if let Some(spec) = &mut request.spec {
        spec.skill = "unmade".to_owned();
    }
    let refused = start(&guest, request).await;
    assert_refused(refused, Code::InvalidArgument, "PATH_ESCAPES");
    for directory in ["runs/out", "work/.venvs/unmade"] {
        assert!(!guest.workspace().join(directory).exists(), "{directory}");
    }
    // A directory that its start makes is one to work in.
    let mut request = guest.request("in", &["pwd"]);
    request.cwd = format!("{}/runs/in", guest.workspace().display());
    assert!(guest.run(request).await.stdout().ends_with("/runs/in\n"));
}

//! Output across readers and connections: no byte is lost or sent twice, and gaps are reported.

use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::{Outcome, count_from_int64};
use tonic::Code;

use crate::support::{
    DEADLINE, Guest, SeenEvents, configuration, duration, in_time, reason, until,
};

const MEBI: usize = 1024 * 1024;

/// Returns deterministic bytes without a period that a window could hide.
const SOURCE: &str = "openssl enc -aes-128-ctr -K 00 -iv 00 -nosalt -in /dev/zero 2>/dev/null";

#[tokio::test]
async fn sixty_four_mebibytes_arrive_as_they_were_written() {
    // The program that sums the bytes up may end long after the command.
    let guest = Guest::configured(wire::ConfigureRequest {
        leak_grace: duration(600_000),
        ..configuration()
    })
    .await;
    let script = format!("{SOURCE} | head -c 67108864 | tee >(sha256sum > sum)");
    let seen = guest.sh("bulk", &script).await;
    assert_eq!(seen.out.len(), 64 * MEBI);
    assert!(seen.gaps.is_empty());
    let file = guest.workspace().join("sum");
    until("a sum", || {
        std::fs::metadata(&file).is_ok_and(|stat| stat.len() > 64)
    })
    .await;
    let sum = std::fs::read_to_string(file).expect("a sum");
    let ours: String = Sha256::digest(&seen.out)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(sum.starts_with(&ours), "{sum} {ours}");
}

#[tokio::test]
async fn a_slow_reader_of_a_blocking_exec_loses_nothing() {
    let guest = Guest::start().await;
    let mut request = guest.request(
        "slow",
        &[
            "bash",
            "-c",
            "head -c 20000000 /dev/zero; echo end; echo x > done",
        ],
    );
    if let Some(spec) = &mut request.spec {
        let retain = v1::ExecRetention {
            stdout_bytes: 100_000,
            ..Default::default()
        };
        spec.retention = Some(retain);
    }
    let mut client = guest.client.clone();
    let stream = client.run_exec(request).await.expect("runs").into_inner();
    // The windows of the connection fill, then the program waits.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        !guest.workspace().join("done").exists(),
        "the program waits for its reader"
    );
    let seen = SeenEvents::all(stream).await.expect("ends well");
    assert_eq!(seen.out.len(), 20_000_004);
    assert!(seen.gaps.is_empty());
    assert!(seen.out.ends_with(b"\0end\n"));
}

/// Events that a stream has sent and its client has not received are in the buffers of connections, and are lost with
/// them.
#[tokio::test]
async fn output_in_flight_on_a_broken_stream_is_retained() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let argv = ["bash", "-c", "head -c 20000000 /dev/zero; echo end"];
    let request = guest.request("under-way", &argv);
    let mut stream = client.run_exec(request).await.expect("runs").into_inner();
    stream.message().await.expect("no error").expect("Started");
    let get = wire::GetExecRequest {
        exec_id: "under-way".to_owned(),
    };
    // Every buffer on the way is full when no more comes.
    let (mut total, mut same) = (0, 0);
    while same < 10 || total == 0 {
        let exec = client.get_exec(get.clone()).await.expect("there");
        let now = exec.into_inner().total.expect("offsets").stdout_bytes;
        same = if now == total { same + 1 } else { 0 };
        total = now;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(total < 20_000_000, "the program waits for its reader");
    drop(stream);
    let seen = SeenEvents::all(guest.attach("under-way", 0).await)
        .await
        .expect("ends well");
    assert_eq!((seen.gaps.len(), seen.out.len()), (0, 20_000_004));
}

#[tokio::test]
async fn a_blocking_exec_without_a_reader_waits_and_loses_nothing() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let mut request = guest.request(
        "wait",
        &["bash", "-c", "head -c 3000000 /dev/zero; echo x > done"],
    );
    if let Some(spec) = &mut request.spec {
        spec.retention = Some(v1::ExecRetention {
            stdout_bytes: 70_000,
            ..Default::default()
        });
    }
    client.start_exec(request).await.expect("started");
    let get = wire::GetExecRequest {
        exec_id: "wait".to_owned(),
    };
    let mut total = 0;
    while total < 70_000 {
        let exec = client
            .get_exec(get.clone())
            .await
            .expect("there")
            .into_inner();
        total = exec.total.expect("offsets").stdout_bytes;
    }
    assert_eq!(total, 70_000);
    assert!(!guest.workspace().join("done").exists());
    let seen = SeenEvents::all(guest.attach("wait", 0).await)
        .await
        .expect("ends well");
    assert_eq!((seen.out.len(), seen.gaps.len()), (3_000_000, 0));
}

#[tokio::test]
async fn drop_oldest_reports_a_gap_with_offsets() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let mut request = guest.request(
        "drop",
        &["bash", "-c", "head -c 1000000 /dev/zero; echo -n end"],
    );
    if let Some(spec) = &mut request.spec {
        spec.on_full = v1::OutputFullPolicy::DropOldest.into();
        spec.retention = Some(v1::ExecRetention {
            stdout_bytes: 70_000,
            ..Default::default()
        });
    }
    client.start_exec(request).await.expect("started");
    let get = wire::GetExecRequest {
        exec_id: "drop".to_owned(),
    };
    let mut exec = v1::Exec::default();
    while exec.state() != v1::ExecState::Closed {
        exec = client
            .get_exec(get.clone())
            .await
            .expect("there")
            .into_inner();
    }
    assert_eq!(exec.total.expect("offsets").stdout_bytes, 1_000_003);
    assert_eq!(exec.oldest.expect("offsets").stdout_bytes, 930_003);
    let dropped = exec
        .result
        .and_then(|result| result.dropped_bytes)
        .expect("a count");
    assert_eq!(dropped.stdout_bytes, 930_003);
    let seen = SeenEvents::all(guest.attach("drop", 0).await)
        .await
        .expect("ends well");
    assert_eq!(seen.gaps, [(0, 930_003)]);
    assert_eq!(seen.out.len(), 70_000);
    assert!(seen.out.ends_with(b"\0end"));

    let refuse = wire::AttachExecRequest {
        exec_id: "drop".to_owned(),
        gap_policy: v1::GapPolicy::Refuse.into(),
        ..Default::default()
    };
    let refused = client.attach_exec(refuse).await.expect_err("dropped");
    assert_eq!(
        (refused.code(), &*reason(&refused)),
        (Code::OutOfRange, "OUTPUT_DROPPED")
    );
}

#[tokio::test]
async fn a_broken_connection_changes_nothing_for_the_exec() {
    let mut guest = Guest::start().await;
    let script = "for i in $(seq 400); do echo line $i; sleep 0.001; done; exit 5";
    let request = guest.request("lasting", &["bash", "-c", script]);
    let mut stream = guest
        .client
        .clone()
        .run_exec(request)
        .await
        .expect("runs")
        .into_inner();
    let mut first = SeenEvents::default();
    while first.out.len() < 500 {
        let event = stream.message().await.expect("an event").expect("open");
        first.take(event);
    }
    drop(stream);
    guest.reconnect().await;
    let at = first.out.len() as u64;
    let mut stream = guest.attach("lasting", at).await;
    while let Some(event) = stream.message().await.expect("an event") {
        match event.event.expect("an event") {
            Event::Output(output) => {
                assert_eq!(count_from_int64(output.offset), first.out.len() as u64);
                let Some(v1::output_event::Content::Data(data)) = output.content else {
                    panic!("bytes");
                };
                first.out.extend_from_slice(&data);
            }
            Event::Exited(exited) => first.result = exited.result,
            Event::Gap(_) => panic!("nothing is lost"),
            Event::Started(_)
            | Event::Heartbeat(_)
            | Event::Closed(_)
            | Event::Workspace(_)
            | Event::Staged(_)
            | Event::File(_)
            | Event::FileData(_)
            | Event::FileEnd(_)
            | Event::Summary(_) => {}
        }
    }
    let expected: String = (1..=400).map(|i| format!("line {i}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&first.out), expected);
    assert_eq!(first.outcome(), Outcome::ExitCode(5));
}

#[tokio::test]
async fn text_comes_in_whole_characters() {
    let guest = Guest::start().await;
    // NUL bytes and carriage returns are characters like others.
    let script = r"printf 'a\0\r\xc3'; sleep 0.05; printf '\xa9b\xff\r\n\0\xe2\x82'";
    let mut request = guest.request("text", &["bash", "-c", script]);
    request.format = v1::OutputFormat::Text.into();
    let seen = guest.run(request).await;
    assert_eq!(seen.text, "a\0\r\u{e9}b\u{fffd}\r\n\0\u{fffd}");
}

#[tokio::test]
async fn silence_is_filled_with_heartbeats() {
    let guest_with_heartbeat = async |millis| {
        let settings = wire::ConfigureRequest {
            heartbeat: duration(millis),
            ..configuration()
        };
        Guest::configured(settings).await
    };
    let guest = guest_with_heartbeat(50).await;
    let request = guest.request("quiet", &["sleep", "1000"]);
    let mut client = guest.client.clone();
    let mut stream = client.run_exec(request).await.expect("runs").into_inner();
    let mut seen = SeenEvents::default();
    seen.take_until(&mut stream, "heartbeats", |seen| seen.heartbeats == 4)
        .await;
    assert!(seen.started.is_some() && seen.out.is_empty());

    // Shorter silence than the interval is left alone.
    let guest = guest_with_heartbeat(600_000).await;
    let seen = guest.sh("quiet", "sleep 0.4").await;
    assert_eq!(seen.heartbeats, 0);
}

#[tokio::test]
async fn readers_at_different_offsets_get_the_same_bytes() {
    let guest = Guest::start().await;
    let whole = guest.sh("many", "seq 20000; seq 100 >&2").await;
    for at in [0, 1, 4096, 65536, whole.out.len() as u64] {
        let mut stream = guest.attach("many", at).await;
        let mut seen = SeenEvents {
            out: whole.out[..usize::try_from(at).expect("small")].to_vec(),
            ..Default::default()
        };
        while let Some(event) = stream.message().await.expect("an event") {
            seen.take(event);
        }
        assert_eq!((&seen.out, &seen.err), (&whole.out, &whole.err));
        assert_eq!(seen.seqs.last(), whole.seqs.last());
    }
    let beyond = wire::AttachExecRequest {
        exec_id: "many".to_owned(),
        offsets: Some(v1::StreamOffsets {
            stdout_bytes: 1 << 40,
            stderr_bytes: 0,
        }),
        ..Default::default()
    };
    let refused = guest
        .client
        .clone()
        .attach_exec(beyond)
        .await
        .expect_err("beyond");
    assert_eq!(reason(&refused), "INVALID_REQUEST");
}

#[tokio::test]
async fn output_is_kept_for_as_long_as_asked() {
    let guest = Guest::start().await;
    let mut request = guest.request("brief", &["true"]);
    if let Some(spec) = &mut request.spec {
        spec.retention = Some(v1::ExecRetention {
            after_exit: duration(50),
            ..Default::default()
        });
    }
    guest.run(guest.request("long", &["true"])).await;
    guest.run(request).await;
    wait_until_forgotten(&guest, "brief").await;
    let get = wire::GetExecRequest {
        exec_id: "long".to_owned(),
    };
    let kept = guest.client.clone().get_exec(get).await;
    kept.expect("kept for the default time");
}

/// Waits until an exec is forgotten; panics at the deadline.
async fn wait_until_forgotten(guest: &Guest, id: &str) {
    let get = wire::GetExecRequest {
        exec_id: id.to_owned(),
    };
    let begin = Instant::now();
    while guest.client.clone().get_exec(get.clone()).await.is_ok() {
        assert!(begin.elapsed() < DEADLINE, "{id} is never forgotten");
    }
}

#[tokio::test]
async fn a_spent_budget_drops_nothing_of_a_blocking_exec() {
    let guest = Guest::configured(wire::ConfigureRequest {
        workspace: "workspaces/w".to_owned(),
        execs_max: 4,
        retain_bytes_total: 100_000,
        retained_execs_max: 10,
        ..Default::default()
    })
    .await;
    let request = guest.request("tight", &["head", "-c", "4000000", "/dev/zero"]);
    guest
        .client
        .clone()
        .start_exec(request)
        .await
        .expect("started");
    total_reaches(&guest, "tight", 100_000).await;
    let seen = SeenEvents::all(guest.attach("tight", 0).await)
        .await
        .expect("ends well");
    assert_eq!((seen.out.len(), seen.gaps.len()), (4_000_000, 0));
}

/// Waits until a stream of an exec without readers has grown to a size, and returns the exec.
async fn total_reaches(guest: &Guest, id: &str, bytes: i64) -> v1::Exec {
    let request = wire::GetExecRequest {
        exec_id: id.to_owned(),
    };
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < DEADLINE, "never {bytes}");
        let exec = guest
            .client
            .clone()
            .get_exec(request.clone())
            .await
            .expect("there")
            .into_inner();
        if exec.total.expect("offsets").stdout_bytes >= bytes {
            return exec;
        }
    }
}

#[tokio::test]
async fn killing_a_blocked_unread_exec_keeps_its_output() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    for (id, after_exit) in [("yes", None), ("brief", duration(50))] {
        let mut request = guest.request(id, &["yes"]);
        if let Some(spec) = &mut request.spec {
            spec.retention = Some(v1::ExecRetention {
                stdout_bytes: 100_000,
                after_exit,
                ..Default::default()
            });
        }
        client.start_exec(request).await.expect("started");
        total_reaches(&guest, id, 100_000).await;
        let kill = wire::KillExecRequest {
            exec_id: id.to_owned(),
            ..Default::default()
        };
        let killed = in_time("the answer to a kill", client.kill_exec(kill))
            .await
            .expect("killed")
            .into_inner();
        assert_eq!(killed.state(), v1::ExecState::Closed);
        let total = killed.total.expect("offsets").stdout_bytes;
        assert!(total > 100_000, "what was in the pipe: {killed:?}");
        if after_exit.is_some() {
            wait_until_forgotten(&guest, id).await;
            continue;
        }
        let seen = SeenEvents::all(guest.attach(id, 0).await)
            .await
            .expect("ends well");
        assert_eq!(
            (seen.out.len() as u64, seen.gaps.len()),
            (count_from_int64(total), 0)
        );
    }
}

#[tokio::test]
async fn text_that_is_larger_than_its_window_does_not_wait_for_ever() {
    let guest = Guest::start().await;
    let script = r"yes $'a\xe2\x82\xac' | head -n 60000";
    let mut request = guest.request("tiny", &["bash", "-c", script]);
    request.format = v1::OutputFormat::Text.into();
    if let Some(spec) = &mut request.spec {
        spec.retention = Some(v1::ExecRetention {
            stdout_bytes: 2,
            ..Default::default()
        });
    }
    let seen = in_time("the end", guest.run(request)).await;
    assert!(seen.text == "a\u{20ac}\n".repeat(60_000));
}

/// The inodes of a workspace are limited, and an exec takes one.
#[tokio::test]
async fn a_forgotten_exec_takes_its_empty_directory_along() {
    let guest = Guest::configured(wire::ConfigureRequest {
        workspace: "workspaces/w".to_owned(),
        execs_max: 4,
        retain_bytes_total: 1 << 20,
        retained_execs_max: 2,
        ..Default::default()
    })
    .await;
    let runs = guest.workspace().join("runs");
    let file = runs.join("writer/result").display().to_string();
    guest.sh("writer", &format!("echo kept > {file}")).await;
    let names: Vec<String> = (0..20).map(|number| format!("e{number}")).collect();
    for name in &names {
        guest.run(guest.request(name, &["true"])).await;
    }
    let listed = || {
        let entries = std::fs::read_dir(&runs).expect("runs");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name())
            .map(|name| name.into_string().expect("a name"))
            .collect();
        names.sort();
        names
    };
    until("the others are forgotten", || {
        listed() == ["e18", "e19", "writer"]
    })
    .await;
    let kept = std::fs::read_to_string(file).expect("its file");
    assert_eq!(kept, "kept\n");
}

#[tokio::test]
async fn a_character_cut_off_by_the_end_does_not_delay_exited() {
    // The grace for stragglers ends far beyond the deadline.
    let guest = Guest::configured(wire::ConfigureRequest {
        leak_grace: duration(600_000),
        ..configuration()
    })
    .await;
    let text = |id: &str, script: &str| {
        let mut request = guest.request(id, &["bash", "-c", script]);
        request.format = v1::OutputFormat::Text.into();
        request
    };
    let request = text("cut", r"sleep 1000 & printf 'a\xe2'; exit 3");
    let mut client = guest.client.clone();
    let mut stream = client.run_exec(request).await.expect("runs").into_inner();
    let mut seen = SeenEvents::default();
    seen.take_until(&mut stream, "exited", |seen| seen.result.is_some())
        .await;
    assert_eq!(seen.outcome(), Outcome::ExitCode(3));
    assert_eq!(seen.text, "a\u{fffd}");

    // What a child cuts after that can still become a character.
    let script = r"(sleep 0.3; printf '\xe2'; sleep 0.3; printf '\x82\xac') & printf 'a'";
    let seen = guest.run(text("whole", script)).await;
    assert_eq!(seen.text, "a\u{20ac}");
}

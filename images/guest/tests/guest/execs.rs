//! Running commands: outcomes, failures to spawn, timeouts, trees.

use std::time::{Duration, Instant};

use skilld_proto::Outcome;
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::spawn_failure::Step;
use skilld_proto::v1::{self, ExitReason, StageFormat};
use tonic::Code;

use crate::files::header;
use crate::kills::kill;
use crate::support::{Guest, SeenEvents, in_time, reason, until};

fn wall_time(seen: &SeenEvents) -> Duration {
    let wall = seen.result.as_ref().and_then(|result| result.wall_duration);
    Duration::try_from(wall.expect("a time")).expect("a duration")
}

#[tokio::test]
async fn outcomes_are_the_programs_own() {
    let guest = Guest::start().await;
    let seen = guest.run(guest.request("true", &["true"])).await;
    assert_eq!(seen.outcome(), Outcome::ExitCode(0));
    assert_eq!(seen.reason(), ExitReason::Exited);
    assert!(wall_time(&seen) > Duration::ZERO);
    assert!(seen.started.expect("started").pid > 1);
    assert!(seen.result.expect("a result").peak_memory_bytes > 0);

    let seen = guest.sh("code", "echo out; echo err >&2; exit 41").await;
    assert_eq!(seen.outcome(), Outcome::ExitCode(41));
    assert_eq!((&*seen.out, &*seen.err), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(
        seen.total,
        Some(v1::StreamOffsets {
            stdout_bytes: 4,
            stderr_bytes: 4
        })
    );

    let seen = guest.sh("signal", "kill -9 $$").await;
    assert_eq!(seen.outcome(), Outcome::Signal(9));
    assert_eq!(seen.reason(), ExitReason::Signaled);
}

#[tokio::test]
async fn wall_time_counts_from_the_spawn() {
    let guest = Guest::start().await;
    // Supervisors are forked ahead of need: the next one has waited for as long as this runs.
    let first = wall_time(&guest.sh("first", "sleep 1").await);
    assert!(first >= Duration::from_secs(1), "{first:?}");
    let begin = Instant::now();
    let seen = guest.run(guest.request("second", &["true"])).await;
    let (second, took) = (wall_time(&seen), begin.elapsed());
    assert!(second <= took, "{second:?} of {took:?}");
}

#[tokio::test]
async fn files_made_by_commands_and_the_guest_are_readable_by_all() {
    let guest = Guest::start().await;
    let put = guest
        .put(header(StageFormat::File, "made/by/guest"), b"x")
        .await;
    put.expect("put");
    let text = "umask; mkdir d; echo x > f; stat -c %a d f made made/by made/by/guest";
    let seen = guest.sh("modes", text).await;
    assert_eq!(seen.stdout(), "0022\n755\n644\n755\n755\n644\n");
}

#[tokio::test]
async fn a_command_gets_what_it_was_given_and_nothing_else() {
    let guest = Guest::start().await;
    let mut request = guest.request(
        "given",
        &["bash", "-c", "env; pwd; ls -l /proc/self/fd; cat"],
    );
    request.env.push("A=1".to_owned());
    if let Some(spec) = &mut request.spec {
        spec.stdin_data = b"from stdin".as_slice().into();
    }
    let seen = guest.run(request).await;
    let out = seen.stdout();
    assert!(out.contains("\nA=1\n") || out.starts_with("A=1\n"), "{out}");
    assert!(!out.contains("NONCE"), "{out}");
    assert!(
        out.contains(&format!("\n{}\n", guest.workspace().display())),
        "{out}"
    );
    assert!(out.ends_with("from stdin"), "{out}");
    let fds = out.lines().filter(|line| line.contains(" -> ")).count();
    assert_eq!(
        fds, 4,
        "0, 1, 2 and the directory that ls itself reads: {out}"
    );
    let spec = seen
        .started
        .expect("started")
        .effective_spec
        .expect("a spec");
    assert!(spec.stdin_data.is_empty());

    let script = "grep -E 'SigBlk|SigIgn|NoNewPrivs' /proc/self/status; ps -o pid=,sid= -p $$";
    let seen = guest.sh("state", script).await;
    let out = seen.stdout();
    assert!(out.contains("SigBlk:\t0000000000000000"), "{out}");
    assert!(out.contains("SigIgn:\t0000000000000000"), "{out}");
    assert!(out.contains("NoNewPrivs:\t1"), "{out}");
    let ids: Vec<&str> = out
        .lines()
        .last()
        .expect("ids")
        .split_whitespace()
        .collect();
    assert_eq!(ids[0], ids[1], "the leader leads its session");
    assert!(guest.workspace().join("runs/state").is_dir());
}

#[tokio::test]
async fn large_stdin_and_large_specs_arrive_whole() {
    let guest = Guest::start().await;
    let mut request = guest.request("wc", &["wc", "-c"]);
    let data = vec![b'x'; 1 << 20];
    if let Some(spec) = &mut request.spec {
        spec.stdin_data = data.into();
    }
    let seen = guest.run(request).await;
    assert_eq!(seen.stdout(), "1048576\n", "{:?}", seen.result);
    let long = "y".repeat(100_000);
    let args = ["printf", "%s", &long, &long, &long, &long];
    let seen = guest.run(guest.request("long", &args)).await;
    assert_eq!(seen.out.len(), 400_000);
}

#[tokio::test]
async fn spawn_failures_report_their_step_and_errno() {
    let guest = Guest::start().await;
    std::fs::write(guest.workspace().join("plain"), "x").expect("a file");
    std::fs::write(guest.workspace().join("garbage"), "\x01\x02").expect("a file");
    let garbage = guest.workspace().join("garbage");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&garbage, mode).expect("a mode");
    let check = async |id: &str, argv: &[&str], cwd: Option<&str>, stage, errno, name: &str| {
        let mut request = guest.request(id, argv);
        if let Some(cwd) = cwd {
            request.cwd = cwd.to_owned();
        }
        let seen = guest.run(request).await;
        assert_eq!(seen.reason(), ExitReason::SpawnFailed);
        let failure = seen
            .result
            .and_then(|result| result.spawn_failure)
            .expect("a failure");
        assert_eq!(
            (failure.step(), failure.error_number),
            (stage, errno),
            "{failure:?}"
        );
        assert!(failure.message.starts_with(name), "{failure:?}");
        assert_eq!(seen.started.expect("started").pid, 0);
    };
    check("none", &["no-such-program"], None, Step::Exec, 2, "ENOENT").await;
    check("path", &["./nothing"], None, Step::Exec, 2, "ENOENT").await;
    check("mode", &["./plain"], None, Step::Exec, 13, "EACCES").await;
    check("format", &["./garbage"], None, Step::Exec, 8, "ENOEXEC").await;
    check("cwd", &["true"], Some("/nowhere"), Step::Cwd, 2, "ENOENT").await;
    let long = "z".repeat(200_000);
    check("big", &["true", &long], None, Step::Exec, 7, "E2BIG").await;

    let started = guest
        .client
        .clone()
        .start_exec(guest.request("absent", &["no-such"]))
        .await;
    let exec = started.expect("an exec").into_inner();
    assert_eq!(
        exec.result.expect("a result").reason(),
        ExitReason::SpawnFailed
    );
}

#[tokio::test]
async fn a_working_directory_behind_a_link_out_is_refused() {
    let guest = Guest::start().await;
    std::os::unix::fs::symlink("/etc", guest.workspace().join("way-out")).expect("a link");
    std::os::unix::fs::symlink("work", guest.workspace().join("way-in")).expect("a link");
    let mut request = guest.request("in", &["pwd", "-P"]);
    request.cwd = format!("{}/way-in", guest.workspace().display());
    assert!(guest.run(request).await.out.ends_with(b"/ws/work\n"));
    let mut request = guest.request("out", &["pwd", "-P"]);
    request.cwd = format!("{}/way-out", guest.workspace().display());
    let refused = guest
        .client
        .clone()
        .start_exec(request)
        .await
        .expect_err("it leads out");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(reason(&refused), "PATH_ESCAPES");
}

#[tokio::test]
async fn the_same_request_is_the_same_exec() {
    let guest = Guest::start().await;
    let request = guest.request("once", &["bash", "-c", "echo $RANDOM$RANDOM"]);
    let first = guest.run(request.clone()).await;
    let again = guest.run(request.clone()).await;
    assert_eq!(first.out, again.out);
    assert_eq!(first.started, again.started);
    let mut other = request;
    other.request_digest = b"other".as_slice().into();
    let refused = guest
        .client
        .clone()
        .run_exec(other)
        .await
        .expect_err("taken");
    assert_eq!(
        (refused.code(), &*reason(&refused)),
        (Code::AlreadyExists, "ID_TAKEN")
    );
}

#[tokio::test]
async fn bad_requests_are_refused_with_reasons() {
    let guest = Guest::bare().await;
    let mut client = guest.client.clone();
    let early = client
        .run_exec(guest.request("early", &["true"]))
        .await
        .expect_err("early");
    assert_eq!(reason(&early), "WORKSPACE_NOT_READY");
    let settings = wire::ConfigureRequest {
        workspace: "workspaces/w".to_owned(),
        execs_max: 1,
        retained_execs_max: 2,
        retain_bytes_total: 1 << 20,
        ..Default::default()
    };
    client.configure(settings).await.expect("configured");
    let long = "x".repeat(300);
    for id in ["", "..", "a/b", "a\0", "A", &long] {
        let refused = client
            .run_exec(guest.request(id, &["true"]))
            .await
            .expect_err(id);
        assert_eq!(reason(&refused), "INVALID_REQUEST", "{id}");
    }
    client
        .start_exec(guest.request("long", &["sleep", "100"]))
        .await
        .expect("started");
    let refused = client
        .run_exec(guest.request("two", &["true"]))
        .await
        .expect_err("full");
    assert_eq!(
        (refused.code(), &*reason(&refused)),
        (Code::ResourceExhausted, "QUOTA_EXCEEDED")
    );
    let unknown = wire::GetExecRequest {
        exec_id: "nobody".to_owned(),
    };
    let unknown = client.get_exec(unknown).await.expect_err("unknown");
    assert_eq!(
        (unknown.code(), &*reason(&unknown)),
        (Code::NotFound, "EXEC_NOT_FOUND")
    );
    kill(&guest, "long", 0).await;
}

#[tokio::test]
async fn lists_are_paged_and_only_the_newest_are_kept() {
    let guest = Guest::configured(wire::ConfigureRequest {
        workspace: "workspaces/w".to_owned(),
        execs_max: 1,
        retained_execs_max: 2,
        retain_bytes_total: 1 << 20,
        ..Default::default()
    })
    .await;
    let mut client = guest.client.clone();
    // Two ended execs are kept, the oldest goes.
    for id in ["a", "b", "c"] {
        guest.sh(id, ":").await;
    }
    let list = wire::ListExecsRequest {
        after: 0,
        page_size: 1,
    };
    let page = client.list_execs(list).await.expect("a list").into_inner();
    assert_eq!(page.execs[0].name, "workspaces/w/execs/b");
    // The exec at which the next page begins is forgotten meanwhile.
    let exec_id = "b".to_owned();
    let delete = wire::DeleteExecRequest { exec_id };
    client.delete_exec(delete).await.expect("deleted");
    let list = wire::ListExecsRequest {
        after: page.next,
        page_size: 10,
    };
    let page = client.list_execs(list).await.expect("a list").into_inner();
    assert_eq!(page.execs[0].name, "workspaces/w/execs/c");
    assert_eq!((page.execs.len(), page.next), (1, 0));
}

#[tokio::test]
async fn an_exec_with_stragglers_counts_as_kept_from_its_end_on() {
    let guest = Guest::configured(wire::ConfigureRequest {
        workspace: "workspaces/w".to_owned(),
        execs_max: 1,
        retained_execs_max: 2,
        retain_bytes_total: 1 << 20,
        ..Default::default()
    })
    .await;
    let mut client = guest.client.clone();
    for id in ["a", "b"] {
        guest.sh(id, ":").await;
    }
    let script = "sleep 1000 < /dev/null > /dev/null 2>&1 &";
    let mut request = guest.request("c", &["bash", "-c", script]);
    if let Some(spec) = &mut request.spec {
        spec.stragglers = v1::StragglerPolicy::Keep.into();
    }
    guest.run(request).await;
    let list = wire::ListExecsRequest {
        after: 0,
        page_size: 10,
    };
    let page = client.list_execs(list).await.expect("a list").into_inner();
    let names: Vec<&str> = page.execs.iter().map(|exec| exec.name.as_str()).collect();
    assert_eq!(names, ["workspaces/w/execs/b", "workspaces/w/execs/c"]);
    kill(&guest, "c", 0).await;
}

#[tokio::test]
async fn a_missing_working_directory_is_named_whatever_the_program() {
    let guest = Guest::start().await;
    let workspace = guest.workspace().display().to_string();
    for (id, program, restricted) in [
        ("path", "./tool", false),
        ("name", "true", false),
        ("rules", "./tool", true),
        ("named-rules", "tool", true),
    ] {
        let mut request = guest.request(id, &[program]);
        request.cwd = format!("{workspace}/work/none/below");
        if restricted && let Some(spec) = &mut request.spec {
            spec.programs = Some(v1::ExecPrograms::default());
        }
        let seen = guest.run(request).await;
        let failure = seen
            .result
            .and_then(|result| result.spawn_failure)
            .expect("a failure");
        assert_eq!(
            (failure.step(), failure.error_number),
            (Step::Cwd, 2),
            "{id}"
        );
        let expected = format!("{workspace}/work/none/below: {workspace}/work/none is missing");
        assert!(failure.message.ends_with(&expected), "{failure:?}");
    }
}

#[tokio::test]
async fn stdin_arrives_whole_whatever_pipes_a_tenant_holds() {
    // Beyond pipe-user-pages-soft a user without privileges gets pipes of two pages.
    let guest = Guest::launched(&[
        "sh",
        "-c",
        "[ $(id -u) = 0 ] || exec \"$@\"; exec setpriv --bounding-set=-sys_resource,-sys_admin \"$@\"",
        "sh",
    ])
    .await;
    let script = "mkfifo p{1..1200}; for j in 0 1 2; do
        (for i in {1..400}; do exec {fd}<>p$((j * 400 + i)); done; touch held$j; exec sleep 1000) &
        done; wait";
    let holder = guest.request("holder", &["bash", "-c", script]);
    let mut client = guest.client.clone();
    client.start_exec(holder).await.expect("started");
    let held = ["held0", "held1", "held2"].map(|name| guest.workspace().join(name));
    until("pipes are held", || held.iter().all(|file| file.exists())).await;
    for bytes in [9 * 1024, 64 * 1024] {
        let mut request = guest.request(&format!("wc{bytes}"), &["wc", "-c"]);
        if let Some(spec) = &mut request.spec {
            spec.stdin_data = vec![b'x'; bytes].into();
        }
        // The guest does not wait for a program.
        let seen = in_time("the end", guest.run(request)).await;
        assert_eq!(seen.stdout(), format!("{bytes}\n"));
    }
    kill(&guest, "holder", 0).await;
}

#[tokio::test]
async fn a_list_of_large_specs_comes_in_pages_that_fit() {
    let guest = Guest::start().await;
    let ids: Vec<String> = (0..6).map(|number| format!("large{number}")).collect();
    for id in &ids {
        let mut request = guest.request(id, &["true"]);
        if let Some(spec) = &mut request.spec {
            spec.shell = "x".repeat(900_000);
        }
        guest.run(request).await;
    }
    let mut listed = Vec::new();
    let (mut pages, mut after) = (0, 0);
    loop {
        let list = wire::ListExecsRequest {
            after,
            page_size: 100,
        };
        let page = guest
            .client
            .clone()
            .list_execs(list)
            .await
            .expect("a page")
            .into_inner();
        assert!(!page.execs.is_empty());
        let id = |exec: &v1::Exec| exec.name.rsplit('/').next().map(str::to_owned);
        listed.extend(page.execs.iter().filter_map(id));
        pages += 1;
        after = page.next;
        if after == 0 {
            break;
        }
    }
    assert_eq!((listed, pages), (ids, 2));
}

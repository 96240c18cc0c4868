//! Tests that the fake engine keeps the engine's promises. The guest here is a script; tests of the whole daemon use the
//! real guest.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::signal::kill;
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;

use super::*;
use crate::engine::ContainerLimits;

/// Guest script that starts a child in its own session, reports its arguments and environment over the socket, and keeps
/// running.
const GUEST: &str = r#"#!/usr/bin/python3
import os, socket, subprocess, sys, json, time
child = subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[2])
peer.sendall(json.dumps({"pid": os.getpid(), "child": child.pid, "argv": sys.argv[1:], "env": dict(os.environ),
                         "skills": os.listdir(os.path.join(sys.argv[4], "skills"))}).encode())
peer.close()
time.sleep(1000)
"#;

struct Slot {
    dir: TempDir,
    spec: ContainerSpec,
}

fn slot(name: &str) -> Slot {
    let dir = tempfile::tempdir().expect("a directory");
    for folder in ["run", "skills/hello"] {
        fs::create_dir_all(dir.path().join(folder)).expect("made");
    }
    for file in ["passwd", "group", "hosts"] {
        fs::write(dir.path().join(file), "").expect("written");
    }
    let guest = dir.path().join("run/skilld-guest");
    fs::write(&guest, GUEST).expect("written");
    fs::set_permissions(&guest, fs::Permissions::from_mode(0o555)).expect("set");
    let spec = ContainerSpec {
        name: name.to_owned(),
        labels: HashMap::from([(LABEL_INSTANCE.to_owned(), "one".to_owned())]),
        image_id: "sha256:0".to_owned(),
        slot_dir: dir.path().to_owned(),
        uid: 900_000,
        limits: ContainerLimits {
            memory_bytes: 1,
            cpu_millis: 1,
            pids: 1,
            disk_bytes: 1,
            inodes: 1,
        },
        workspace_device: None,
        shared_dirs: Vec::new(),
        tmp_bytes: 1,
        shm_bytes: 1,
        terminals: 1,
        oci_runtime: None,
        env: vec!["SKILLD_NONCE=07".to_owned()],
    };
    Slot { dir, spec }
}

/// Starts a container and returns its id and the report of its guest.
async fn boot(engine: &FakeEngine, slot: &Slot) -> (String, serde_json::Value) {
    let listener = UnixListener::bind(slot.dir.path().join("run/guest.sock")).expect("bound");
    let id = engine.create(&slot.spec).await.expect("created");
    engine.start(&id).await.expect("started");
    let (mut peer, _) = listener.accept().await.expect("connected");
    let mut report = String::new();
    peer.read_to_string(&mut report).await.expect("read");
    (id, serde_json::from_str(&report).expect("JSON"))
}

fn pid(value: &serde_json::Value) -> i32 {
    i32::try_from(value.as_i64().expect("a number")).expect("a pid")
}

/// Returns `true` if a process is running. A zombie counts as dead; its new parent reaps it later.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    kill(Pid::from_raw(pid), None).is_ok() && state.is_some_and(|state| state != 'Z')
}

#[tokio::test]
async fn a_container_runs_the_guest_with_only_its_own_environment() {
    let engine = FakeEngine::new();
    let slot = slot("a");
    let (id, report) = boot(&engine, &slot).await;
    let state = engine
        .inspect(&id)
        .await
        .expect("inspected")
        .expect("there");
    assert_eq!((state.running, state.pid), (true, pid(&report["pid"])));
    let path = |name: &str| slot.dir.path().join(name).to_string_lossy().into_owned();
    let argv = [
        "--socket",
        &path("run/guest.sock"),
        "--workspace",
        &path("fake-workspace"),
    ];
    assert_eq!(report["argv"], serde_json::json!(argv));
    assert_eq!(report["skills"], serde_json::json!(["hello"]));
    let env: Vec<&String> = report["env"]
        .as_object()
        .expect("a map")
        .keys()
        .filter(|key| *key != "LC_CTYPE")
        .collect();
    assert_eq!(env, ["SKILLD_NONCE"]);
    assert_eq!(
        fs::read_link(path("fake-workspace/skills")).expect("a link"),
        Path::new("../skills")
    );
}

#[tokio::test]
async fn remove_kills_the_process_tree_and_publishes_events() {
    let engine = FakeEngine::new();
    let slot = slot("a");
    let mut events = engine.events("one").await.expect("events");
    let mut foreign = engine.events("two").await.expect("events");
    let (id, report) = boot(&engine, &slot).await;
    assert!(is_alive(pid(&report["child"])));
    engine.remove(&id).await.expect("removed");
    assert!(!is_alive(pid(&report["pid"])) && !is_alive(pid(&report["child"])));
    // The engine has reaped the process.
    assert!(!Path::new(&format!("/proc/{}", pid(&report["pid"]))).exists());
    for kind in [ContainerEventKind::Died, ContainerEventKind::Removed] {
        let event = events.next().await.expect("an event").expect("fine");
        assert_eq!(
            event,
            ContainerEvent {
                container_id: id.clone(),
                kind
            }
        );
    }
    assert_eq!(engine.inspect(&id).await.expect("inspected"), None);
    engine
        .remove(&id)
        .await
        .expect("a removed container is fine");
    engine.set_unavailable(true);
    assert!(
        foreign.next().await.expect("an end").is_err(),
        "no event of another instance"
    );
}

#[tokio::test]
async fn killed_container_exists_and_does_not_run() {
    let engine = FakeEngine::new();
    let slot = slot("a");
    let mut events = engine.events("one").await.expect("events");
    let (id, report) = boot(&engine, &slot).await;
    engine.kill_container(&id).await;
    assert!(!is_alive(pid(&report["pid"])) && !is_alive(pid(&report["child"])));
    let event = events.next().await.expect("an event").expect("fine");
    assert_eq!(event.kind, ContainerEventKind::Died);
    let state = engine
        .inspect(&id)
        .await
        .expect("inspected")
        .expect("there");
    assert_eq!((state.running, state.pid, state.exit_code), (false, 0, 137));
    assert!(!engine.list(Some("one")).await.expect("listed")[0].running);
}

#[tokio::test]
async fn dropping_the_engine_kills_all_processes() {
    let engine = FakeEngine::new();
    let slot = slot("a");
    let (_, report) = boot(&engine, &slot).await;
    drop(engine);
    assert!(!is_alive(pid(&report["pid"])) && !is_alive(pid(&report["child"])));
}

#[tokio::test]
async fn end_of_the_runtime_kills_all_processes() {
    let slot = slot("a");
    let engine = FakeEngine::new();
    let report = std::thread::scope(|scope| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(boot(&engine, &slot)).1
        };
        scope.spawn(run).join().expect("joined")
    });
    assert!(!is_alive(pid(&report["child"])));
    drop(engine);
    assert!(!is_alive(pid(&report["pid"])));
}

#[tokio::test]
async fn containers_are_listed_by_instance_and_have_unique_names() {
    let engine = FakeEngine::new();
    let (first, mut second) = (slot("a"), slot("b"));
    second
        .spec
        .labels
        .insert(LABEL_INSTANCE.to_owned(), "two".to_owned());
    let ids = [
        engine.create(&first.spec).await.expect("a"),
        engine.create(&second.spec).await.expect("b"),
    ];
    let error = engine
        .create(&first.spec)
        .await
        .expect_err("the name is in use");
    assert!(
        matches!(
            error,
            Error::Engine {
                operation: "create container",
                ..
            }
        ),
        "{error}"
    );
    let listed =
        |list: Vec<ContainerSummary>| list.into_iter().map(|one| one.id).collect::<Vec<_>>();
    assert_eq!(listed(engine.list(None).await.expect("listed")), ids);
    assert_eq!(
        listed(engine.list(Some("two")).await.expect("listed")),
        ids[1..]
    );
    assert_eq!(engine.container_ids(), ids);
}

#[tokio::test]
async fn missing_mount_source_or_guest_binary_is_an_error() {
    let engine = FakeEngine::new();
    let slot = slot("a");
    fs::remove_file(slot.dir.path().join("run/skilld-guest")).expect("removed");
    let id = engine.create(&slot.spec).await.expect("created");
    assert!(matches!(engine.start(&id).await, Err(Error::Engine { .. })));
    engine.remove(&id).await.expect("removed");
    fs::remove_file(slot.dir.path().join("passwd")).expect("removed");
    assert!(matches!(
        engine.create(&slot.spec).await,
        Err(Error::Engine { .. })
    ));
}

#[tokio::test]
async fn injected_faults_are_returned_in_order_and_calls_are_counted() {
    let engine = FakeEngine::new();
    engine.fail_next(
        EngineOperation::Ping,
        engine_error("answer", "first".to_owned()),
    );
    engine.fail_next(
        EngineOperation::Ping,
        engine_error("answer", "second".to_owned()),
    );
    for expected in ["first", "second"] {
        assert!(
            engine
                .ping()
                .await
                .expect_err("a fault")
                .to_string()
                .ends_with(expected)
        );
    }
    engine.ping().await.expect("fine again");
    assert_eq!(
        (
            engine.call_count(EngineOperation::Ping),
            engine.call_count(EngineOperation::List)
        ),
        (3, 0)
    );

    let mut events = engine.events("one").await.expect("events");
    engine.set_unavailable(true);
    assert!(matches!(
        engine.list(None).await,
        Err(Error::EngineUnavailable { .. })
    ));
    assert!(matches!(
        events.next().await,
        Some(Err(Error::EngineUnavailable { .. }))
    ));
    assert!(events.next().await.is_none(), "the stream ends");
    engine.set_unavailable(false);
    engine.list(None).await.expect("back");
}

#[tokio::test(start_paused = true)]
async fn injected_delay_applies_until_it_is_removed() {
    let engine = FakeEngine::new();
    engine.set_delay(EngineOperation::Ping, Duration::from_secs(7));
    let began = tokio::time::Instant::now();
    engine.ping().await.expect("fine");
    assert_eq!(began.elapsed(), Duration::from_secs(7));
    engine.set_delay(EngineOperation::Ping, Duration::ZERO);
    engine.ping().await.expect("fine");
    assert_eq!(began.elapsed(), Duration::from_secs(7));
}

#[tokio::test]
async fn container_without_guest_runs_and_never_connects() {
    let engine = FakeEngine::new();
    let slot = slot("a");
    engine.start_without_guest();
    let id = engine.create(&slot.spec).await.expect("created");
    engine.start(&id).await.expect("started");
    let state = engine
        .inspect(&id)
        .await
        .expect("inspected")
        .expect("there");
    assert_eq!((state.running, state.pid), (true, 0));
    assert!(!slot.dir.path().join("fake-workspace").exists());
    let mut events = engine.events("one").await.expect("events");
    engine.remove(&id).await.expect("removed");
    assert_eq!(
        events.next().await.expect("an event").expect("fine").kind,
        ContainerEventKind::Died
    );
}

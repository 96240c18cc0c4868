//! Tests with a fake socket of Podman. End-to-end tests use a real Podman: `make test-podman`.

use std::sync::{Arc, Mutex};

use futures::StreamExt;
use serde_json::Value;

use super::super::body::tests::spec;
use super::super::tests::FakeSocket;
use super::*;

/// Returns an answer of a Podman for requests that every test makes; `None` for others.
fn common_answer(request: &str) -> Option<String> {
    let answer = match request {
        "GET /version" => {
            r#"{"Version":"4.3.1","ApiVersion":"1.41","Components":[{"Name":"Podman Engine","Version":"4.3.1"}]}"#
        }
        "GET /info" => {
            r#"{"CgroupVersion":"2","DefaultRuntime":"crun","SecurityOptions":["name=apparmor"],
                "Runtimes":{"crun":{"path":"/usr/bin/crun"},"runsc":{"path":"/usr/bin/runsc"}}}"#
        }
        "GET /_ping" => "OK",
        _ => return None,
    };
    Some(answer.to_owned())
}

/// Connects to a fake Podman that answers other requests with `respond`.
async fn connect(
    respond: impl Fn(&str, &str) -> (u16, String) + Send + 'static,
) -> (FakeSocket, Arc<dyn Engine>) {
    let socket = FakeSocket::with_statuses(move |request, body| match common_answer(request) {
        Some(answer) => (200, answer),
        None => respond(request, body),
    });
    let engine = socket.connect().await.expect("connected");
    (socket, engine)
}

#[tokio::test]
async fn podman_reads_the_seccomp_profile_from_the_state_directory() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let (_socket, engine) = connect(move |request, body| {
        seen.lock()
            .expect("seen")
            .push((request.to_owned(), body.to_owned()));
        (201, r#"{"Id":"abc","Warnings":[]}"#.to_owned())
    })
    .await;
    let info = engine.describe().await.expect("described");
    assert_eq!(
        (info.name.as_str(), info.version.as_str()),
        ("podman", "4.3.1")
    );
    assert!(info.apparmor && !info.rootless);
    // Podman ignores the runtime of a request, so no pool may ask for another one.
    assert_eq!(info.oci_runtimes, ["crun"]);
    let slot = tempfile::tempdir().expect("a directory");
    let spec = ContainerSpec {
        slot_dir: slot.path().to_owned(),
        ..spec()
    };
    engine.create(&spec).await.expect_err("not prepared");

    let state = tempfile::tempdir().expect("a directory");
    engine.prepare(state.path()).await.expect("prepared");
    assert_eq!(engine.create(&spec).await.expect("created"), "abc");
    let received = requests.lock().expect("requests");
    let [(request, body)] = received.as_slice() else {
        panic!("{received:?}");
    };
    assert_eq!(request, "POST /v4.0.0/libpod/containers/create");
    let body: Value = serde_json::from_str(body).expect("JSON");
    let file = state.path().join("podman/seccomp.json");
    assert_eq!(
        body["seccomp_profile_path"],
        file.to_string_lossy().as_ref()
    );
    let written = std::fs::read_to_string(file).expect("the profile");
    assert_eq!(written, crate::engine::seccomp::profile());
    assert!(!body.to_string().contains("apparmor"), "{body}");
    for (name, target) in [("hosts", "/etc/hosts"), ("resolv.conf", "/etc/resolv.conf")] {
        let file = slot.path().join(name).display().to_string();
        let mounts = body["mounts"].as_array().expect("mounts");
        let is_mounted = |mount: &Value| mount["source"] == file && mount["destination"] == target;
        assert!(mounts.iter().any(is_mounted), "{body}");
    }
    assert!(slot.path().join("resolv.conf").exists());
}

#[tokio::test]
async fn container_that_podman_creates_without_a_limit_is_removed() {
    let removed = Arc::new(Mutex::new(0));
    let count = Arc::clone(&removed);
    let (_socket, engine) = connect(move |request, _| {
        if request.starts_with("DELETE /containers/abc?") {
            assert!(request.contains("force=true"), "{request}");
            *count.lock().expect("count") += 1;
            return (204, String::new());
        }
        let warning = "Your kernel does not support swap limit capabilities or the cgroup is not mounted. Memory \
                       limited without swap.";
        (201, format!(r#"{{"Id":"abc","Warnings":["{warning}"]}}"#))
    })
    .await;
    let state = tempfile::tempdir().expect("a directory");
    engine.prepare(state.path()).await.expect("prepared");
    let spec = ContainerSpec {
        slot_dir: state.path().to_owned(),
        ..spec()
    };
    let error = engine.create(&spec).await.expect_err("no limit of swap");
    assert!(error.to_string().contains("without swap"), "{error}");
    assert_eq!(*removed.lock().expect("count"), 1);
}

#[tokio::test]
async fn states_that_docker_does_not_have_are_understood() {
    let (_socket, engine) = connect(|request, _| {
        let state = |id: &str, state: &str| {
            format!(r#"{{"Id":"{id}","State":"{state}","Labels":{{"a":"b"}}}}"#)
        };
        if request.starts_with("GET /v1.41/containers/json?") {
            let filters = "filters=%7B%22label%22%3A%5B%22io.skilld.instance%3Done%22%5D%7D";
            assert!(
                request.contains("all=true") && request.contains(filters),
                "{request}"
            );
            let states = [
                "running", "paused", "stopping", "stopped", "exited", "unknown",
            ];
            let entries = states.map(|name| state(name, name));
            return (
                200,
                format!(
                    "[{},{}]",
                    entries.join(","),
                    r#"{"Id":"x","State":"created","Labels":null}"#
                ),
            );
        }
        match request {
            "GET /v1.41/containers/paused/json" => (
                200,
                r#"{"State":{"Status":"paused","Running":false,"Paused":true,"Pid":7}}"#.to_owned(),
            ),
            "GET /v1.41/containers/stopped/json" => (
                200,
                r#"{"State":{"Status":"stopped","OOMKilled":true,"Pid":0,"ExitCode":137}}"#
                    .to_owned(),
            ),
            other => {
                assert_eq!(other, "GET /v1.41/containers/gone/json");
                (
                    404,
                    r#"{"cause":"no such container","message":"no container"}"#.to_owned(),
                )
            }
        }
    })
    .await;
    let listed = engine.list(Some("one")).await.expect("listed");
    let running: Vec<&str> = listed
        .iter()
        .filter(|container| container.running)
        .map(|container| container.id.as_str())
        .collect();
    assert_eq!(running, ["running", "paused", "stopping"]);
    assert_eq!(
        listed.iter().filter(|container| container.paused).count(),
        1
    );
    assert_eq!(listed.len(), 7);
    assert_eq!(listed[0].labels["a"], "b");

    let inspect = async |id: &str| engine.inspect(id).await.expect("inspected");
    let paused = inspect("paused").await.expect("there");
    assert_eq!((paused.running, paused.paused, paused.pid), (true, true, 7));
    let stopped = inspect("stopped").await.expect("there");
    assert_eq!(
        (stopped.running, stopped.oom_killed, stopped.exit_code),
        (false, true, 137)
    );
    assert_eq!(inspect("gone").await, None);
}

#[tokio::test]
async fn removal_of_a_container_that_another_process_removes_succeeds() {
    let (_socket, engine) = connect(|request, _| {
        let failure = |message: &str| format!(r#"{{"message":"{message}"}}"#);
        match request.split('?').next().unwrap_or_default() {
            "DELETE /containers/gone" | "DELETE /containers/stuck" => {
                (500, failure("lock: no such file"))
            }
            "GET /v1.41/containers/gone/json" => (404, failure("no container")),
            "GET /v1.41/containers/stuck/json" => {
                (200, r#"{"State":{"Status":"running"}}"#.to_owned())
            }
            other => panic!("{other} was not expected"),
        }
    })
    .await;
    engine.remove("gone").await.expect("gone");
    let error = engine
        .remove("stuck")
        .await
        .expect_err("not removed")
        .to_string();
    assert!(
        error.contains("failed to remove container: lock: no such file"),
        "{error}"
    );
    engine
        .remove_unused_volumes("one")
        .await
        .expect("nothing to do");
}

#[tokio::test]
async fn events_of_podman_are_those_of_docker_by_other_names() {
    let (_socket, engine) = connect(|request, _| {
        assert!(request.starts_with("GET /events?"), "{request}");
        for name in ["died", "remove", "pause", "unpause"] {
            assert!(request.contains(&format!("%22{name}%22")), "{name}: {request}");
        }
        let event = |name: &str| {
            format!(r#"{{"Type":"container","Action":"{name}","Actor":{{"ID":"abc"}},"HealthStatus":""}}"#) + "\n"
        };
        (200, ["die", "cleanup", "remove", "pause", "unpause"].map(event).concat())
    })
    .await;
    let events: Vec<_> = engine.events("one").await.expect("events").collect().await;
    let kinds: Vec<_> = events.iter().flatten().map(|event| event.kind).collect();
    assert_eq!(
        kinds,
        [
            ContainerEventKind::Died,
            ContainerEventKind::Removed,
            ContainerEventKind::Paused,
            ContainerEventKind::Unpaused
        ]
    );
    assert!(
        matches!(events.last(), Some(Err(Error::EngineUnavailable { .. }))),
        "{events:?}"
    );
}

#[tokio::test]
async fn a_broken_answer_and_a_lost_podman_are_different_errors() {
    let (socket, engine) = connect(|_, _| (200, "no JSON".to_owned())).await;
    let error = engine.list(None).await.expect_err("no JSON");
    assert!(matches!(error, Error::Engine { .. }), "{error:?}");
    drop(socket);
    let error = engine.list(None).await.expect_err("gone");
    assert!(
        matches!(error, Error::EngineUnavailable { .. }),
        "{error:?}"
    );
}

//! `skilld doctor` and `skilld --check` where no Docker answers: each test runs the built binary.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Path at which no Docker can be.
const NO_DOCKER: &str = "unix:///nowhere/docker.sock";

/// Runs the daemon's binary with a state directory that does not exist, and only these variables.
fn skilld(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skilld"))
        .args(args)
        .env_clear()
        .env("DOCKER_HOST", NO_DOCKER)
        .env("SKILLD_STATE_DIR", dir.join("state"))
        // Any program is accepted as the guest.
        .env("SKILLD_ENGINE__GUEST_PATH", env!("CARGO_BIN_EXE_skilld"))
        .envs(env.iter().copied())
        .output()
        .expect("run skilld")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the doctor and returns its exit code and its lines.
fn doctor(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, Vec<Value>) {
    let args = [&["doctor", "-o", "json"], args].concat();
    let output = skilld(dir, &args, env);
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let lines = report
        .pointer("/checks")
        .and_then(Value::as_array)
        .expect("lines")
        .clone();
    for line in &lines {
        // A remedy is there exactly where something is to be done.
        assert_eq!(line["remedy"].is_null(), line["state"] == "ok", "{line}");
    }
    (output.status.code(), lines)
}

fn find<'a>(lines: &'a [Value], check: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["check"] == check).collect()
}

/// Returns the line of a precondition of the start, by its configuration key.
fn of_start<'a>(lines: &'a [Value], key: &str) -> &'a Value {
    let lines = find(lines, "start").into_iter();
    let mut found = lines.filter(|line| line["subject"] == key);
    found.next().expect("a line of this key")
}

#[test]
fn doctor_reports_what_it_can_without_docker_and_makes_nothing() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (code, lines) = doctor(dir.path(), &[], &[]);
    assert_eq!(code, Some(1));
    let docker = find(&lines, "docker");
    assert_eq!(docker.len(), 1);
    assert_eq!(docker[0]["state"], "failed");
    let finding = docker[0]["finding"].as_str().expect("text");
    assert!(
        finding.contains("/nowhere/docker.sock does not exist"),
        "{finding}"
    );
    assert_eq!(of_start(&lines, "pools")["state"], "warning");
    for check in [
        "config",
        "kernel",
        "cgroup",
        "open_files",
        "memory",
        "pids",
        "uids",
    ] {
        assert_eq!(find(&lines, check).len(), 1, "{check}");
    }
    for key in ["state_dir", "listeners.0"] {
        assert_eq!(of_start(&lines, key)["state"], "ok", "{key}");
    }
    let entries = fs::read_dir(dir.path()).expect("list").count();
    assert_eq!(entries, 0, "the doctor makes nothing");
}

#[test]
fn doctor_reports_every_config_fault_and_checks_the_host() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("skilld.toml");
    fs::write(
        &file,
        "[engine]\nuid_base = 5\ntimeout = \"soon\"\n[server]\nshape = 1\n",
    )
    .expect("write");
    let (code, lines) = doctor(
        dir.path(),
        &["--config", file.to_str().expect("utf-8")],
        &[],
    );
    assert_eq!(code, Some(64));
    let faults = find(&lines, "config");
    let findings: Vec<&str> = faults
        .iter()
        .filter_map(|line| line["finding"].as_str())
        .collect();
    for key in ["engine.uid_base", "engine.timeout", "server.shape"] {
        assert!(
            findings.iter().any(|text| text.starts_with(key)),
            "{key}: {findings:?}"
        );
    }
    assert!(faults.iter().all(|line| line["state"] == "failed"));
    assert_eq!(find(&lines, "kernel").len(), 1);
}

#[test]
fn doctor_uses_the_defaults_if_the_file_cannot_be_read() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("skilld.toml");
    fs::write(&file, "[server\n").expect("write");
    for path in [file.to_str().expect("utf-8"), "/nowhere/skilld.toml"] {
        let (code, lines) = doctor(dir.path(), &["--config", path], &[]);
        assert_eq!(code, Some(64));
        let remedy = find(&lines, "config")[0]["remedy"].as_str().expect("text");
        assert!(remedy.contains("built-in defaults"), "{remedy}");
        assert_eq!(find(&lines, "kernel").len(), 1);
    }
}

#[test]
fn doctor_says_what_is_wrong_with_guest_and_roots() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let root = dir.path().join("skills\u{1b}[2J");
    fs::create_dir(&root).expect("create");
    let roots = format!("[{:?}, \"/nowhere/skills\"]", root.display().to_string())
        .replace("\\u{1b}", "\\u001b");
    let env = [
        ("SKILLD_ENGINE__GUEST_PATH", "/nowhere/guest"),
        ("SKILLD_SKILLS__ROOTS", roots.as_str()),
        ("SKILLD_SKILLS__WHEELHOUSE", "/nowhere/wheels"),
        ("SKILLD_POOLS__OFFICE__FONTS", "/nowhere/fonts"),
    ];
    let (code, lines) = doctor(dir.path(), &[], &env);
    assert_eq!(code, Some(64));
    let faults = find(&lines, "config");
    let findings: Vec<&str> = faults
        .iter()
        .filter_map(|line| line["finding"].as_str())
        .collect();
    assert_eq!(findings.len(), 3, "{findings:?}");
    for part in [
        "no guest binary at /nowhere/guest",
        "/nowhere/wheels cannot be read",
        "pools.office.fonts: /nowhere/fonts cannot be read",
    ] {
        let is_named = findings.iter().any(|finding| finding.contains(part));
        assert!(is_named, "{part}: {findings:?}");
    }
    let states: Vec<&Value> = find(&lines, "root")
        .iter()
        .map(|line| &line["state"])
        .collect();
    assert_eq!(states, ["ok", "failed"]);
    let output = skilld(dir.path(), &["doctor"], &env);
    assert!(
        !text(&output.stdout).contains('\u{1b}'),
        "names can't control a terminal"
    );
}

#[test]
fn doctor_does_not_wait_for_a_docker_that_does_not_answer() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let socket = dir.path().join("docker.sock");
    // The kernel accepts connections; no process ever reads them.
    let _listener = UnixListener::bind(&socket).expect("bind");
    let host = format!("unix://{}", socket.display());
    let env = [
        ("DOCKER_HOST", host.as_str()),
        ("SKILLD_ENGINE__TIMEOUT", "1s"),
    ];
    let (code, lines) = doctor(dir.path(), &[], &env);
    assert_eq!(code, Some(1));
    let finding = find(&lines, "docker")[0]["finding"].as_str().expect("text");
    assert!(finding.contains("no answer within 1s"), "{finding}");
}

#[test]
fn doctor_reports_a_socket_that_is_not_dockers() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let socket = dir.path().join("docker.sock");
    let listener = UnixListener::bind(&socket).expect("bind");
    let host = format!("unix://{}", socket.display());
    let env = [
        ("DOCKER_HOST", host.as_str()),
        ("SKILLD_ENGINE__TIMEOUT", "1m"),
    ];
    let (code, lines) = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The checks of Docker and of the pools connect, each with a client of its own.
            for stream in listener.incoming().flatten() {
                let mut stream = stream;
                let mut request = [0; 1024];
                if matches!(stream.read(&mut request), Ok(read) if request[..read].starts_with(b"END")) {
                    return;
                }
                drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\x1b[2J!"));
            }
        });
        let report = doctor(dir.path(), &[], &env);
        let mut end = std::os::unix::net::UnixStream::connect(&socket).expect("connect");
        end.write_all(b"END").expect("write");
        report
    });
    assert_eq!(code, Some(1));
    let finding = find(&lines, "docker")[0]["finding"].as_str().expect("text");
    assert!(
        finding.contains("failed to report its version"),
        "{finding}"
    );
}

#[test]
fn doctor_is_a_command_of_its_own() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for args in [
        &["doctor", "-o", "yaml"][..],
        &["--check", "doctor"],
        &["--adopt-copy", "doctor"],
        &["doctor", "more"],
    ] {
        let output = skilld(dir.path(), args, &[]);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(output.stdout.is_empty());
    }
    // Flags may stand before and after the command.
    let (_, lines) = doctor(dir.path(), &["--state-dir", "/srv/x"], &[]);
    let found = find(&lines, "state_dir.file_system");
    assert!(
        found[0]["finding"]
            .as_str()
            .is_some_and(|text| text.starts_with("/srv/x"))
    );
    let output = skilld(dir.path(), &["--state-dir", "/srv/x", "doctor"], &[]);
    assert!(text(&output.stdout).contains("/srv/x is on"));
}

#[test]
fn check_succeeds_with_a_warning_where_no_docker_is() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let output = skilld(dir.path(), &["--check"], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("state_dir = "));
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("warning: pools: images and OCI runtimes are not checked"),
        "{stderr}"
    );
}

#[test]
fn check_fails_for_an_unreadable_root_but_prints_the_values() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let env = [("SKILLD_SKILLS__ROOTS", "[\"/nowhere/skills\"]")];
    let output = skilld(dir.path(), &["--check"], &env);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("/nowhere/skills"));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("error: skills.roots: /nowhere/skills can't be read: No such file"),
        "{stderr}"
    );
}

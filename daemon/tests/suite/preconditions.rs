//! Preconditions of a start: the start, `skilld --check` and `skilld doctor` say the same of each that the host does
//! not meet. The start runs in this process with the fake engine, the others are the built binary, where no Docker
//! answers.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::Value;
use skilld::config::Config;
use skilld::engine::fake::FakeEngine;
use skilld::error::Chain;
use skilld::server::Server;
use skilld::shutdown::Tasks;
use skilld_tests::task_dir::TaskDir;
use tokio::sync::mpsc;

use crate::server::{guest_path, names};

/// Host that does not meet one precondition.
struct Case {
    /// Configuration key that reports name.
    key: &'static str,
    /// Lines of the configuration.
    toml: String,
    /// Part of the message.
    part: &'static str,
    /// `true` if the rest of the message differs from attempt to attempt.
    varies: bool,
}

impl Case {
    fn new(key: &'static str, part: &'static str, toml: impl Into<String>) -> Self {
        Self {
            key,
            toml: toml.into(),
            part,
            varies: false,
        }
    }
}

/// Runs the daemon's binary on a configuration file, without further variables.
fn skilld(config: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skilld"))
        .args(args)
        .arg("--config")
        .arg(config)
        .env_clear()
        .env("DOCKER_HOST", "unix:///nowhere/docker.sock")
        .output()
        .expect("run skilld")
}

/// Returns the lines of the doctor's report.
fn doctor(config: &Path) -> Vec<Value> {
    let output = skilld(config, &["doctor", "-o", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let lines = report.pointer("/checks").and_then(Value::as_array);
    lines.expect("lines").clone()
}

/// Returns the text of a configuration with its state in `dir/state`.
fn configuration(dir: &Path, toml: &str) -> String {
    let (state, guest) = (dir.join("state"), guest_path());
    format!(
        "state_dir = {state:?}\nengine.guest_path = {guest:?}\npools.default.warm = 0\npools.office.warm = 0\n\
         pools.office.max = 0\n{toml}"
    )
}

/// Starts a daemon, which must fail, and returns its message.
async fn fail_to_start(text: &str) -> String {
    let config = Config::from_toml(text).expect("configuration").config;
    let started = Server::start(config, Arc::new(FakeEngine::new())).await;
    let error = started.expect_err("it must not start");
    Chain(&error).to_string()
}

/// Makes the files of all cases in `dir`, and returns the cases. The address of `listener` is in use.
#[expect(clippy::too_many_lines, reason = "a table")]
fn make_cases(dir: &Path, listener: &TcpListener) -> Vec<Case> {
    let path = |name: &str| dir.join(name);
    let write = |name: &str, text: &str, mode| {
        fs::write(path(name), text).expect("write");
        fs::set_permissions(path(name), Permissions::from_mode(mode)).expect("chmod");
    };
    write("no-log", "root:x:0:0\n", 0o600);
    write("headers", "authorization: Bearer secret\n", 0o644);
    write(
        "keys",
        "AWS_ACCESS_KEY_ID=id\nAWS_SECRET_ACCESS_KEY=secret\n",
        0o600,
    );
    fs::create_dir(path("open")).expect("create");
    fs::set_permissions(path("open"), Permissions::from_mode(0o777)).expect("chmod");
    let taken = listener.local_addr().expect("an address");
    let free = TcpListener::bind("127.0.0.1:0").expect("bind");
    let silent = free.local_addr().expect("an address");
    let socket = |path: &Path, more: &str| {
        format!("[[listeners]]\nkind = \"unix\"\npath = {path:?}\n{more}")
    };
    let mut bucket = Case::new(
        "artifacts",
        "the artifact store cannot be used: ",
        format!(
            "[artifacts]\nurl = \"s3://bucket\"\nendpoint = \"http://{silent}\"\nallow_http = true\ntimeout = \"1s\"\n\
             region = \"us-east-1\"\ncredentials_file = {:?}\n",
            path("keys")
        ),
    );
    bucket.varies = true;
    vec![
        Case::new(
            "audit.file",
            "failed to open the audit log",
            format!("audit.file = {:?}\n", path("missing/audit.log")),
        ),
        Case::new(
            "audit.file",
            "is not a record of an audit log",
            format!("audit.file = {:?}\n", path("no-log")),
        ),
        Case::new(
            "listeners.0",
            "Address already in use",
            format!(
                "[[listeners]]\nkind = \"tcp\"\naddress = \"{taken}\"\ninsecure_loopback = true\n"
            ),
        ),
        Case::new(
            "listeners.0",
            "Address already in use",
            format!("[[listeners]]\nkind = \"metrics\"\naddress = \"{taken}\"\n"),
        ),
        Case::new(
            "listeners.0",
            "can be written to by all users",
            socket(&path("open/skilld.sock"), ""),
        ),
        Case::new(
            "listeners.0",
            "there is no group \"skilld-no-such-group\"",
            socket(
                &path("run/skilld.sock"),
                "group = \"skilld-no-such-group\"\n",
            ),
        ),
        bucket,
        Case::new(
            "traces",
            "has mode 0644, which lets other users read it",
            format!(
                "[traces]\nendpoint = \"http://127.0.0.1:4317\"\nheaders_file = {:?}\n",
                path("headers")
            ),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn start_check_and_doctor_fail_with_the_same_message() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
    let file = dir.path().join("skilld.toml");
    for case in make_cases(dir.path(), &taken) {
        let text = configuration(dir.path(), &case.toml);
        fs::write(&file, &text).expect("write");
        let before = names(dir.path());
        let check = skilld(&file, &["--check"]);
        let lines = doctor(&file);
        assert_eq!(names(dir.path()), before, "the checks make nothing");

        let message = fail_to_start(&text).await;
        assert!(message.contains(case.part), "{message}");
        let expected = if case.varies {
            case.part
        } else {
            message.as_str()
        };
        let stderr = String::from_utf8_lossy(&check.stderr);
        let line = format!("error: {}: ", case.key);
        let line = stderr.lines().find(|found| found.starts_with(&line));
        assert!(line.is_some_and(|line| line.contains(expected)), "{stderr}");
        assert_eq!(check.status.code(), Some(1), "{stderr}");

        let is_meant = |line: &&Value| line["check"] == "start" && line["subject"] == case.key;
        let line = lines.iter().find(is_meant).expect("a line of this key");
        assert_eq!(line["state"], "failed", "{line}");
        let finding = line["finding"].as_str().unwrap_or_default();
        assert!(finding.contains(expected), "{finding}");
        // The state directory of the failed start would be a daemon's own.
        fs::remove_dir_all(dir.path().join("state")).expect("remove");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_of_a_running_daemon_are_not_reported_as_taken() {
    let tasks = Tasks::default();
    let dir = TaskDir::new(&tasks.for_skills().tracker);
    let free = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = free.local_addr().expect("an address");
    drop(free);
    let listeners = format!(
        "audit.file = {:?}\n[[listeners]]\nkind = \"metrics\"\naddress = \"{address}\"\n",
        dir.path().join("audit.log")
    );
    let text = configuration(dir.path(), &listeners);
    let file = dir.path().join("skilld.toml");
    fs::write(&file, &text).expect("write");
    let config = Config::from_toml(&text).expect("configuration").config;
    let server = Server::start(config, Arc::new(FakeEngine::new())).await;
    let (stop, signals) = mpsc::channel(2);
    let running = tasks.spawn(server.expect("started").run(signals));

    let check = skilld(&file, &["--check"]);
    let stderr = String::from_utf8_lossy(&check.stderr);
    assert_eq!(check.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("note: daemon: skilld runs on "), "{stderr}");
    let lines = doctor(&file);
    let mut of_start = lines.iter().filter(|line| line["check"] == "start");
    let failed = of_start.find(|line| line["state"] == "failed");
    assert_eq!(failed, None);
    assert!(lines.iter().any(|line| line["check"] == "daemon"));
    for _ in 0..2 {
        // Without open calls the daemon stops at the first signal.
        stop.send(()).await.unwrap_or_default();
    }
    assert!(running.await.expect("no panic"), "stopped in time");
}

//! Tests of the daemon's program with `log_format = "json"`: whatever it writes to standard error is one flat JSON object
//! per line, also when it does not start.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Map, Value};

fn skilld(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skilld"));
    let docker = format!("unix://{}", dir.join("no-docker.sock").display());
    command
        .args(arguments)
        .env_clear()
        .env("SKILLD_STATE_DIR", dir.join("state"))
        .env("SKILLD_ENGINE__DOCKER_HOST", docker)
        // Any file stands in for the guest: no container is made.
        .env("SKILLD_ENGINE__GUEST_PATH", env!("CARGO_BIN_EXE_skilld"));
    command
}

/// Returns the lines of standard error as objects, each of which must be flat and complete.
fn objects(output: &Output) -> Vec<Map<String, Value>> {
    let text = std::str::from_utf8(&output.stderr).expect("UTF-8");
    assert!(!text.is_empty());
    let objects = text.lines().map(|line| {
        let object: Map<String, Value> = serde_json::from_str(line).expect(line);
        let keys: BTreeSet<&str> = object.keys().map(String::as_str).collect();
        for key in ["time", "level", "target", "message"] {
            assert!(keys.contains(key), "{line}");
        }
        assert!(
            object
                .values()
                .all(|value| !value.is_object() && !value.is_array()),
            "{line}"
        );
        object
    });
    objects.collect()
}

/// Returns the levels and messages.
fn messages(output: &Output) -> Vec<(String, String)> {
    let objects = objects(output);
    let text =
        |object: &Map<String, Value>, key: &str| object[key].as_str().expect("text").to_owned();
    let pairs = objects.iter();
    pairs
        .map(|object| (text(object, "level"), text(object, "message")))
        .collect()
}

#[test]
fn each_fault_of_the_configuration_is_an_object() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("skilld.toml");
    let text = "log_format = \"json\"\ndefault_pool = \"none\"\n[server]\nstreams_max = 0\n";
    std::fs::write(&file, text).expect("write");
    let output = skilld(dir.path(), &["--config", &file.display().to_string()])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(64));
    let messages = messages(&output);
    assert_eq!(messages.len(), 2, "{messages:?}");
    for (level, message) in &messages {
        assert_eq!(level, "ERROR");
        let of_key = ["default_pool: ", "server.streams_max: "];
        assert!(
            of_key.iter().any(|key| message.starts_with(key)),
            "{message}"
        );
    }
}

#[test]
fn the_environment_decides_where_no_file_can_be_read() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("skilld.toml");
    std::fs::write(&file, "log_format = \"json\nnot toml").expect("write");
    let name = file.display().to_string();
    for arguments in [
        vec!["--config", &name],
        vec!["--config", "/nonexistent/skilld.toml"],
        vec!["--frobnicate"],
    ] {
        let run = |format: Option<&str>| {
            let mut command = skilld(dir.path(), &arguments);
            command.envs(format.map(|format| ("SKILLD_LOG_FORMAT", format)));
            command.output().expect("runs")
        };
        let output = run(Some("json"));
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(messages(&output).iter().all(|(level, _)| level == "ERROR"));
        let text = run(None).stderr;
        assert!(
            text.starts_with(b"error: "),
            "{}",
            String::from_utf8_lossy(&text)
        );
    }
}

#[test]
fn a_late_start_failure_and_its_warnings_are_json_objects() {
    let dir = tempfile::tempdir().expect("directory");
    let mut command = skilld(dir.path(), &["--log", "trace"]);
    command
        .env("SKILLD_LOG_FORMAT", "json")
        // A variable that Kubernetes sets, and those of systems that skilld replaces, are warnings.
        .env("SKILLD_SERVICE_HOST", "10.0.0.1")
        .env("SKILLS_CACHE_DIR", "/tmp/cache")
        .env("TRPC_AGENT_SKILL_RUN_DENIED_COMMANDS", "rm");
    let output = command.output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    let messages = messages(&output);
    let ignored = [
        "SKILLD_SERVICE_HOST is ignored",
        "SKILLS_CACHE_DIR is ignored",
        "TRPC_AGENT_SKILL_RUN_DENIED_COMMANDS is ignored",
    ];
    for (begin, (level, message)) in ignored.iter().zip(&messages) {
        assert_eq!(level, "WARN");
        assert!(message.starts_with(begin), "{message}");
    }
    let (level, last) = messages.last().expect("an error");
    assert_eq!(level, "ERROR");
    assert!(last.contains("no-docker.sock"), "{last}");
}

#[test]
fn check_is_for_people_and_stays_text() {
    let dir = tempfile::tempdir().expect("directory");
    let output = skilld(dir.path(), &["--check"])
        .env("SKILLD_LOG_FORMAT", "json")
        .env("SKILLD_SERVER__STREAMS_MAX", "0")
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(64));
    assert!(output.stderr.starts_with(b"error: server.streams_max: "));
}

#[test]
fn a_full_standard_error_ends_no_daemon() {
    for format in ["text", "json"] {
        let dir = tempfile::tempdir().expect("directory");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = skilld(dir.path(), &["--log", "trace"]);
        command.env("SKILLD_LOG_FORMAT", format);
        command.stderr(full.expect("a device"));
        let status = command.status().expect("runs");
        // No Docker answers, so the start fails as usual.
        assert_eq!(status.code(), Some(1), "{format}: {status}");
    }
}

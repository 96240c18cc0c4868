//! Tests of the audit log over real files. `crash.rs` kills a process that writes, `disk.rs` fills and locks disks,
//! `alterations.rs` changes what was written, `lines.rs` looks at single lines.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use futures::future::join_all;
use serde_json::Value;
use skilld_common::audit_chain::{ChainFault, ChainReport, verify_chain};
use skilld_proto::v1::ErrorReason;
use tempfile::TempDir;
use tonic::Code;

use super::*;
use crate::config::Config;

mod alterations;
mod crash;
mod disk;
mod lines;

/// Directory with the state directory and the log of a daemon.
pub(super) struct LogDir(TempDir);

impl LogDir {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(dir.path().join("state")).expect("mkdir");
        Self(dir)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.0.path().join("audit.log")
    }

    pub(super) fn state_dir(&self) -> PathBuf {
        self.0.path().join("state")
    }

    /// Opens the log with the defaults and `keys` of section `[audit]`.
    pub(super) async fn try_open(&self, keys: &str) -> Result<AuditLog> {
        open_log(&self.file(), &self.state_dir(), keys).await
    }

    /// Opens the log, once no other process has it open.
    pub(super) async fn open(&self) -> AuditLog {
        open_again(&self.file(), &self.state_dir()).await
    }
}

/// Opens a log with the defaults as [`LogDir::open`] does.
async fn open_again(file: &Path, state_dir: &Path) -> AuditLog {
    let begin = Instant::now();
    loop {
        match open_log(file, state_dir, "").await {
            Err(error) if is_in_use(&error, begin) => tokio::task::yield_now().await,
            opened => return opened.expect("opens"),
        }
    }
}

/// Repeats an attempt to open a log while another process has it open.
pub(super) fn retry_while_in_use<T, E: std::error::Error>(
    mut attempt: impl FnMut() -> Result<T, E>,
) -> T {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_in_use(&error, begin) => std::thread::yield_now(),
            opened => return opened.expect("opens"),
        }
    }
}

/// Returns `true` if another process has a log open, unless it has for a minute. A process that another test has forked
/// keeps a copy of an earlier lock until it executes its program.
fn is_in_use(error: &impl std::error::Error, begin: Instant) -> bool {
    begin.elapsed() < Duration::from_secs(60) && error.to_string().contains("another process")
}

/// Opens a log with the defaults and `keys` of section `[audit]`.
pub(super) async fn open_log(file: &Path, state_dir: &Path, keys: &str) -> Result<AuditLog> {
    let text = format!(
        "listen = \"unix:/run/x.sock\"\n[audit]\nfile = {:?}\nnode = \"n1\"\n{keys}",
        file.display().to_string()
    );
    let config = Config::from_toml(&text).expect("loads").config;
    let opened = AuditLog::open(&config.audit, state_dir).await?;
    Ok(opened.expect("a file is configured"))
}

pub(super) fn record(id: &str) -> AuditRecord {
    AuditRecord {
        request_id: BoundedText::new(id),
        traceparent: None,
        principal: Some(AuditPrincipal {
            id: BoundedText::new("spiffe://example/agent"),
            tenant: BoundedText::new("blue"),
            via: "certificate",
        }),
        for_tenant: None,
        peer: AuditPeer::Process {
            uid: 1000,
            pid: Some(77),
        },
        method: BoundedText::new("/skilld.v1.ExecService/RunExec"),
        resource: Some(BoundedText::new("workspaces/job-7")),
        exec: None,
        setup: Vec::new(),
        stage: CallStage::End(CallOutcome {
            code: Code::Ok,
            reason: None,
            bytes_in: 120,
            bytes_out: 4096,
            duration: Duration::from_micros(1500),
        }),
    }
}

pub(super) fn verify(files: &[PathBuf]) -> ChainReport {
    let named_readers = files.iter().map(|path| {
        let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.file_name().expect("a name").to_string_lossy();
        (name.into_owned(), BufReader::new(file))
    });
    verify_chain(named_readers, &[]).expect("reads")
}

#[track_caller]
pub(super) fn assert_intact(files: &[PathBuf]) -> u64 {
    let report = verify(files);
    assert_eq!(report.broken, None);
    assert_eq!(report.incomplete_bytes, 0);
    report.records
}

pub(super) fn read_lines(files: &[PathBuf]) -> Vec<Value> {
    let texts: Vec<String> = files
        .iter()
        .map(|path| fs::read_to_string(path).expect("reads"))
        .collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

pub(super) fn events(lines: &[Value]) -> Vec<&str> {
    lines
        .iter()
        .map(|line| line["event"].as_str().expect("an event"))
        .collect()
}

/// Returns how many lines each request id has.
pub(super) fn count_ids(lines: &[Value]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for id in lines.iter().filter_map(|line| line["request_id"].as_str()) {
        *counts.entry(id).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn a_decision_is_one_line_with_all_its_keys() {
    let dir = LogDir::new();
    let log = dir.open().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let begin = AuditRecord {
        traceparent: TraceParent::parse(trace),
        exec: Some(log.describe_exec(&["/usr/bin/curl", "-H", "Authorization: secret"])),
        stage: CallStage::Begin,
        ..record("r1")
    };
    log.record(begin).await.expect("written");
    let refused = CallOutcome {
        code: Code::PermissionDenied,
        reason: Some(ErrorReason::PermissionDenied),
        bytes_in: 0,
        bytes_out: 0,
        duration: Duration::from_micros(90),
    };
    let refusal = AuditRecord {
        principal: None,
        peer: AuditPeer::Address {
            address: "[::1]:4711".parse().expect("an address"),
        },
        resource: None,
        stage: CallStage::Refusal(refused),
        ..record("r2")
    };
    log.record(refusal).await.expect("written");
    log.close().await;

    let mode = fs::metadata(dir.file()).expect("stat").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(assert_intact(&[dir.file()]), 4);
    let text = fs::read_to_string(dir.file()).expect("reads");
    assert!(!text.contains("secret"), "{text}");
    let lines = read_lines(&[dir.file()]);
    assert_eq!(
        events(&lines),
        ["started", "call_began", "call_ended", "stopped"]
    );
    assert_eq!(lines[0]["version"], env!("CARGO_PKG_VERSION"));
    let keys = |line: &Value| {
        let mut object = line.as_object().expect("an object").clone();
        for key in ["time", "prev", "argv_hmac", "mac"] {
            object.remove(key);
        }
        Value::from(object)
    };
    let expected = serde_json::json!({
        "sequence": 2, "node": "n1", "event": "call_began", "request_id": "r1", "traceparent": trace,
        "principal": "spiffe://example/agent", "tenant": "blue", "via": "certificate", "peer_uid": 1000, "peer_pid": 77,
        "method": "/skilld.v1.ExecService/RunExec", "resource": "workspaces/job-7", "program": "curl",
        "decision": "allowed",
    });
    assert_eq!(keys(&lines[1]), expected);
    let expected = serde_json::json!({
        "sequence": 3, "node": "n1", "event": "call_ended", "request_id": "r2", "peer_address": "[::1]:4711",
        "method": "/skilld.v1.ExecService/RunExec", "decision": "refused", "code": "PERMISSION_DENIED",
        "reason": "PERMISSION_DENIED", "bytes_in": 0, "bytes_out": 0, "duration_us": 90,
    });
    assert_eq!(keys(&lines[2]), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_writers_lose_and_repeat_no_record() {
    let dir = LogDir::new();
    let log = dir.open().await;
    let writer = async |writer: usize| {
        for number in 0..40 {
            log.record(record(&format!("{writer}-{number}")))
                .await
                .expect("written");
        }
    };
    join_all((0..50).map(writer)).await;
    log.close().await;
    assert_eq!(log.lost(), 0);
    assert_eq!(assert_intact(&[dir.file()]), 2002);
    let lines = read_lines(&[dir.file()]);
    let ids = count_ids(&lines);
    assert_eq!(ids.len(), 2000);
    assert!(ids.values().all(|count| *count == 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chain_survives_rotations_and_reopens_during_writes() {
    let dir = LogDir::new();
    let log = dir.open().await;
    let writer = async |writer: usize| {
        for number in 0..100 {
            log.record(record(&format!("{writer}-{number}")))
                .await
                .expect("written");
        }
    };
    let rotated = async {
        let mut files = Vec::new();
        for number in 0..40 {
            let to = dir.0.path().join(format!("audit.log.{number:02}"));
            // The file of the rotation before may not be there yet.
            if fs::rename(dir.file(), &to).is_ok() {
                files.push(to);
            }
            for _ in 0..50 {
                log.reopen();
            }
            log.record(record(&format!("rotation-{number}")))
                .await
                .expect("written");
        }
        files
    };
    let (mut files, _) = tokio::join!(rotated, join_all((0..20).map(writer)));
    log.close().await;
    files.push(dir.file());
    assert!(files.len() > 10, "{files:?}");
    assert_intact(&files);
    let lines = read_lines(&files);
    let ids = count_ids(&lines);
    assert_eq!(ids.len(), 20 * 100 + 40);
    assert!(ids.values().all(|count| *count == 1));
    let reopened = events(&lines)
        .iter()
        .filter(|event| **event == "reopened")
        .count();
    assert!(
        reopened < files.len(),
        "a reopen without a rotation writes nothing"
    );
}

#[tokio::test]
async fn a_rotated_file_gets_no_record_after_the_reopen() {
    let dir = LogDir::new();
    let log = dir.open().await;
    log.record(record("before")).await.expect("written");
    let old = dir.0.path().join("audit.log.1");
    fs::rename(dir.file(), &old).expect("rename");
    log.record(record("between")).await.expect("written");
    log.reopen();
    log.record(record("after")).await.expect("written");
    log.close().await;
    let old_lines = read_lines(std::slice::from_ref(&old));
    assert_eq!(events(&old_lines), ["started", "call_ended", "call_ended"]);
    let lines = read_lines(&[dir.file()]);
    assert_eq!(events(&lines), ["reopened", "call_ended", "stopped"]);
    assert_intact(&[old, dir.file()]);
    assert_eq!(verify(&[dir.file()]).first_sequence, Some(4));
}

#[tokio::test]
async fn the_chain_continues_after_restarts_in_missing_or_empty_files() {
    let dir = LogDir::new();
    let mut files = Vec::new();
    for round in 0..3 {
        dir.open().await.close().await;
        dir.open().await.close().await;
        let to = dir.0.path().join(format!("audit.log.{round}"));
        fs::rename(dir.file(), &to).expect("rename");
        files.push(to);
        if round == 1 {
            File::create(dir.file()).expect("an empty file, as logrotate makes it");
        }
    }
    assert_eq!(assert_intact(&files), 3 * 4);
}

#[tokio::test]
async fn a_removed_file_is_made_again_and_gets_the_record() {
    let dir = LogDir::new();
    let log = dir.open().await;
    log.record(record("lost with the file"))
        .await
        .expect("written");
    fs::remove_file(dir.file()).expect("rm");
    log.record(record("kept")).await.expect("written");
    log.close().await;
    let lines = read_lines(&[dir.file()]);
    assert_eq!(count_ids(&lines), BTreeMap::from([("kept", 1)]));
    assert_eq!(verify(&[dir.file()]).first_sequence, Some(3));
    assert_intact(&[dir.file()]);
}

#[tokio::test]
async fn a_directory_that_is_gone_refuses_changes_until_it_is_back() {
    let dir = LogDir::new();
    let logs = dir.0.path().join("logs");
    fs::create_dir(&logs).expect("mkdir");
    let file = logs.join("audit.log");
    let log = open_log(&file, &dir.state_dir(), "").await.expect("opens");
    fs::remove_dir_all(&logs).expect("rm");
    let fault = log.record(record("lost")).await.expect_err("refused");
    assert!(fault.to_string().contains("No such file"), "{fault}");
    assert_eq!(log.check_writable(), Err(fault));
    log.submit(record("lost as well"));
    fs::create_dir(&logs).expect("mkdir");
    let mut state = log.state();
    let healthy = state.wait_for(|state| *state == AuditState::Healthy).await;
    drop(healthy.expect("recovers"));
    assert_eq!(log.check_writable(), Ok(()));
    assert_eq!(log.lost(), 2);
    log.record(record("kept")).await.expect("written");
    log.close().await;
    assert_intact(std::slice::from_ref(&file));
    let lines = read_lines(&[file]);
    assert_eq!(events(&lines), ["recovered", "call_ended", "stopped"]);
    assert_eq!(lines[0]["lost"], 2);
}

#[tokio::test]
async fn the_next_start_reports_a_failure_that_outlived_the_daemon() {
    let dir = LogDir::new();
    let logs = dir.0.path().join("logs");
    fs::create_dir(&logs).expect("mkdir");
    let file = logs.join("audit.log");
    let log = open_log(&file, &dir.state_dir(), "").await.expect("opens");
    fs::remove_dir_all(&logs).expect("rm");
    log.record(record("lost")).await.expect_err("refused");
    log.submit(record("lost as well"));
    log.close().await;
    fs::create_dir(&logs).expect("mkdir");
    for _ in 0..2 {
        open_again(&file, &dir.state_dir()).await.close().await;
    }
    let lines = read_lines(&[file]);
    assert_eq!(events(&lines), ["started", "stopped", "started", "stopped"]);
    assert_eq!(lines[0]["lost"], 2);
    assert!(lines[2]["lost"].is_null(), "reported once");
}

#[tokio::test]
async fn a_disk_that_answers_again_ends_the_failure() {
    let dir = LogDir::new();
    let log = dir.open().await;
    // The state that a call leaves which waited too long.
    let fault = AuditFault::NoAnswer(dir.file());
    log.0.status.set(AuditState::Failed(fault.clone()));
    assert_eq!(log.check_writable(), Err(fault.clone()));
    assert_eq!(log.record(record("lost")).await, Err(fault.clone()));
    assert_eq!(log.report_silence(), fault);
    let mut state = log.state();
    let healthy = state.wait_for(|state| *state == AuditState::Healthy).await;
    drop(healthy.expect("recovers"));
    log.record(record("kept")).await.expect("written");
    log.close().await;
    assert_intact(&[dir.file()]);
    let lines = read_lines(&[dir.file()]);
    assert_eq!(
        events(&lines),
        ["started", "recovered", "call_ended", "stopped"]
    );
    assert_eq!(lines[1]["lost"], 1);
}

#[tokio::test]
async fn a_file_that_is_no_audit_log_is_refused_and_left_alone() {
    let dir = LogDir::new();
    for text in ["root:x:0:0:root:/root:/bin/bash\n", "no line end"] {
        fs::write(dir.file(), text).expect("writes");
        let error = dir.try_open("").await.expect_err("refused").to_string();
        assert!(error.contains("move the file away"), "{error}");
        assert_eq!(fs::read_to_string(dir.file()).expect("reads"), text);
    }
    fs::remove_file(dir.file()).expect("rm");
    fs::create_dir(dir.file()).expect("mkdir");
    assert!(dir.try_open("").await.is_err());
    fs::remove_dir(dir.file()).expect("rmdir");
    let device = open_log(Path::new("/dev/full"), &dir.state_dir(), "").await;
    let error = device.expect_err("refused").to_string();
    assert!(error.contains("not a regular file"), "{error}");
}

#[tokio::test]
async fn a_second_daemon_can_not_write_the_same_file() {
    let dir = LogDir::new();
    let log = dir.open().await;
    let state = tempfile::tempdir().expect("temporary directory");
    let second = open_log(&dir.file(), state.path(), "").await;
    let error = second.expect_err("refused").to_string();
    assert!(error.contains("another process"), "{error}");
    log.close().await;
}

#[tokio::test]
async fn a_closed_log_fails_at_once() {
    let dir = LogDir::new();
    let log = dir.open().await;
    log.close().await;
    assert_eq!(log.record(record("late")).await, Err(AuditFault::Closed));
    log.close().await;
    assert_intact(&[dir.file()]);
}

#[tokio::test]
async fn records_that_wait_for_the_disk_survive_as_well() {
    let dir = LogDir::new();
    let log = dir.try_open("sync_interval = \"0s\"").await.expect("opens");
    join_all((0..100).map(|number| log.record(record(&number.to_string())))).await;
    log.close().await;
    assert_eq!(assert_intact(&[dir.file()]), 102);
}

#[tokio::test]
async fn the_key_is_made_once_and_is_private() {
    let dir = LogDir::new();
    let argv = ["ls", "-la"];
    let log = dir.open().await;
    let described = log.describe_exec(&argv);
    log.close().await;
    let key = dir.state_dir().join("audit-key");
    let metadata = fs::metadata(&key).expect("stat");
    assert_eq!(
        (metadata.len(), metadata.permissions().mode() & 0o777),
        (32, 0o600)
    );
    let log = dir.open().await;
    assert_eq!(log.describe_exec(&argv), described);
    assert_ne!(log.describe_exec(&["ls -la"]), described);
    assert_ne!(log.describe_exec(&["ls", "-", "la"]), described);
    log.close().await;

    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("chmod");
    let error = dir.try_open("").await.expect_err("refused").to_string();
    assert!(error.contains("chmod 600"), "{error}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::write(&key, "short").expect("writes");
    let error = dir.try_open("").await.expect_err("refused").to_string();
    assert!(error.contains("has 5 bytes, not 32"), "{error}");
}

//! `skillctl audit verify` on logs of these tests, without a daemon.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ring::hmac;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Returns lines of a log, line ends included. An earlier release wrote them.
fn lines(count: u64) -> Vec<String> {
    keyed_lines(count, None)
}

/// Returns lines of a log with MACs of a key; `None` leaves them out.
fn keyed_lines(count: u64, key: Option<&[u8]>) -> Vec<String> {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let mut prev = "0".repeat(64);
    let line = |sequence: u64| {
        let time = format!("2026-11-27T05:00:{sequence:02}.000Z");
        let line = json!({
            "time": time, "sequence": sequence, "prev": prev, "node": "n", "event": "call_ended", "tenant": "blue",
        });
        let mut line = format!("{line}\n");
        if let Some(key) = key {
            let covered = line.trim_end_matches("}\n");
            let key = hmac::Key::new(hmac::HMAC_SHA256, key);
            let mac = hex(hmac::sign(&key, covered.as_bytes()).as_ref());
            line = format!("{covered},\"mac\":\"{mac}\"}}\n");
        }
        prev = hex(&Sha256::digest(&line));
        line
    };
    (1..=count).map(line).collect()
}

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("writes");
    path
}

fn verify(options: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skillctl"));
    command.args(["audit", "verify", "--endpoint", "unix:/nowhere"]);
    command.args(options).args(files).output().expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("utf-8")
}

#[test]
fn a_compressed_file_is_named_and_no_broken_chain() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let compressed = dir.path().join("audit.log.2.gz");
    std::fs::write(&compressed, b"\x1f\x8b\x08\x00\x00\x00\x00\x00").expect("writes");
    let output = verify(&[], &[&compressed]);
    let stderr = text(&output.stderr);
    assert_eq!(text(&output.stdout), "");
    assert!(
        stderr.contains("audit.log.2.gz is compressed") && stderr.contains("zcat -f"),
        "{stderr}"
    );
}

#[test]
fn an_intact_log_is_verified_over_its_files_in_any_order() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let lines = lines(9);
    let old = write(dir.path(), "audit.log.1", &lines[..6].concat());
    let new = write(dir.path(), "audit.log", &lines[6..].concat());
    let output = verify(&[], &[&new, &old]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    assert!(
        stdout.contains("1 to 9") && stdout.contains("2026-11-27T05:00:09.000Z"),
        "{stdout}"
    );
    assert!(stdout.ends_with("the chain is intact\n"), "{stdout}");

    let output = verify(&["-o", "json"], &[&new]);
    let object: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(object["intact"], true);
    assert_eq!(
        (&object["records"], &object["firstSequence"]),
        (&json!("3"), &json!("7"))
    );
    assert_eq!(object["last"]["sequence"], "9");
    let hash: String = Sha256::digest(&lines[8])
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(object["last"]["sha256"], hash);
    assert_eq!(object["broken"], Value::Null);
}

#[test]
fn a_broken_log_exits_with_1_and_names_the_line() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut lines = lines(9);
    lines[4] = lines[4].replace("blue", "grey");
    let file = write(dir.path(), "audit.log", &lines.concat());
    let output = verify(&[], &[&file]);
    assert_eq!(output.status.code(), Some(1));
    let stdout = text(&output.stdout);
    assert!(
        stdout.contains("the chain is broken at") && stdout.contains("audit.log:6: "),
        "{stdout}"
    );
    let output = verify(&["-o", "json"], &[&file]);
    assert_eq!(output.status.code(), Some(1));
    let object: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(
        (&object["intact"], &object["broken"]["line"]),
        (&json!(false), &json!("6"))
    );
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn the_key_tells_records_of_the_daemon_from_those_of_others() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let key_file = |name: &str, key: &[u8]| {
        let file = dir.path().join(name);
        std::fs::write(&file, key).expect("writes");
        file.into_os_string().into_string().expect("UTF-8")
    };
    let (key, other) = (key_file("key", &[7; 32]), key_file("other", &[8; 32]));
    let own = keyed_lines(9, Some(&[7; 32])).concat();
    let own = write(dir.path(), "audit.log", &own);
    let output = verify(&["--key-file", &key], &[&own]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    assert!(
        stdout.contains("authenticated: 9 of 9 records\n"),
        "{stdout}"
    );
    let both = ["--key-file", &other, "--key-file", &key, "-o", "json"];
    let output = verify(&both, &[&own]);
    let object: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(
        (&object["intact"], &object["authenticated"]),
        (&json!(true), &json!("9"))
    );

    let forged = write(dir.path(), "forged.log", &lines(9).concat());
    for (file, key, why) in [
        (&own, &other, "mac is not that of the key"),
        (&forged, &key, "the record has no mac"),
    ] {
        assert_eq!(verify(&[], &[file]).status.code(), Some(0));
        let output = verify(&["--key-file", key], &[file]);
        let stdout = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{stdout}");
        assert!(stdout.contains(why), "{stdout}");
    }
    let short = key_file("short", &[7; 31]);
    let output = verify(&["--key-file", &short], &[&own]);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("no key of 32 bytes"), "{stderr}");
}

/// Verifies files, one of which may be stdin with this text.
fn verify_stdin(stdin_text: &str, files: &[&Path]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_skillctl"))
        .args(["audit", "verify"])
        .args(files)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(stdin_text.as_bytes()).expect("writes");
    drop(stdin);
    child.wait_with_output().expect("ends")
}

#[test]
fn stdin_is_read_and_an_incomplete_end_is_a_note() {
    let bytes = format!("{}{{\"time\":", lines(3).concat());
    let output = verify_stdin(&bytes, &[Path::new("-")]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("the chain is intact"));
    assert!(text(&output.stderr).contains("8 bytes of an incomplete record"));
}

#[test]
fn stdin_is_sorted_among_the_files() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let lines = lines(9);
    let old = write(dir.path(), "audit.log.3", &lines[..3].concat());
    let new = write(dir.path(), "audit.log", &lines[6..].concat());
    let output = verify_stdin(&lines[3..6].concat(), &[&new, Path::new("-"), &old]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    assert!(stdout.contains("1 to 9"), "{stdout}");
}

#[test]
fn a_broken_chain_is_not_explained_by_a_daemon_that_writes() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let lines = lines(4);
    let cut = format!("{}{{\"time\":", lines[..2].concat());
    let old = write(dir.path(), "audit.log.1", &cut);
    let new = write(dir.path(), "audit.log", &lines[2..].concat());
    let output = verify(&[], &[&old, &new]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("the line is cut"));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn a_file_that_can_not_be_read_is_an_error() {
    let output = verify(&[], &[Path::new("/nowhere/audit.log")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(
        text(&output.stderr).contains("/nowhere/audit.log"),
        "{}",
        text(&output.stderr)
    );
    let dir = tempfile::tempdir().expect("temporary directory");
    let empty = write(dir.path(), "audit.log", "");
    let output = verify(&[], &[&empty]);
    assert_eq!(
        text(&output.stdout),
        "records:     0\nthere are no records\n"
    );
    let output = verify(&[], &[]);
    assert_eq!(output.status.code(), Some(2));
}

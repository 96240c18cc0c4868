//! Processes that are killed while they write.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::*;

/// Variable with the directory of the process that is killed.
const DIR_VARIABLE: &str = "SKILLD_TEST_AUDIT_DIR";

/// Writes records for ever, and prints each id after its record is acknowledged. Runs only in the child process of
/// [`every_acknowledged_record_survives_sigkill`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE).map(PathBuf::from) else {
        return;
    };
    let log = open_log(&dir.join("audit.log"), &dir.join("state"), "")
        .await
        .expect("opens");
    let process = std::process::id();
    let writer = async |writer: usize| {
        for number in 0.. {
            let id = format!("{process}-{writer}-{number}");
            log.record(record(&id)).await.expect("written");
            println!("ack {id}");
        }
    };
    join_all((0..16).map(writer)).await;
}

#[tokio::test]
async fn every_acknowledged_record_survives_sigkill() {
    const ROUNDS: usize = 12;
    let dir = LogDir::new();
    let mut acknowledged = BTreeSet::new();
    for _ in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().expect("own path"))
            .args([
                "--exact",
                "audit::tests::crash::child_writes_until_it_is_killed",
                "--nocapture",
            ])
            .env(DIR_VARIABLE, dir.0.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let moment = usize::try_from(uuid::Uuid::new_v4().as_u128() % 500).expect("small");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut seen = 0;
        for line in stdout.lines() {
            // The last line may be cut.
            let Ok(line) = line else { break };
            let Some((_, id)) = line.split_once("ack ") else {
                continue;
            };
            acknowledged.insert(id.to_owned());
            seen += 1;
            if seen == moment + 1 {
                child.kill().expect("SIGKILL");
            }
        }
        child.wait().expect("ends");
        let report = verify(&[dir.file()]);
        assert_eq!(report.broken, None);
    }
    assert!(acknowledged.len() > ROUNDS, "{acknowledged:?}");
    dir.open().await.close().await;
    assert_intact(&[dir.file()]);
    let lines = read_lines(&[dir.file()]);
    let ids = count_ids(&lines);
    assert!(ids.values().all(|count| *count == 1));
    // The very last id of a round may be cut; each cut one is the beginning of a written one.
    let lost: Vec<&String> = acknowledged
        .iter()
        .filter(|id| !ids.contains_key(id.as_str()))
        .collect();
    assert!(
        lost.iter()
            .all(|id| ids.keys().any(|written| written.starts_with(id.as_str())))
            && lost.len() <= ROUNDS,
        "{lost:?}"
    );
    let started = events(&lines)
        .iter()
        .filter(|event| **event == "started")
        .count();
    assert_eq!(started, ROUNDS + 1);
}

#[tokio::test]
async fn the_rest_of_a_cut_line_is_removed_and_reported() {
    let dir = LogDir::new();
    dir.open().await.close().await;
    let mut file = OpenOptions::new()
        .append(true)
        .open(dir.file())
        .expect("opens");
    file.write_all(b"{\"time\":\"2026-11-27T04:5")
        .expect("writes");
    let report = verify(&[dir.file()]);
    assert_eq!((report.broken, report.incomplete_bytes), (None, 24));
    dir.open().await.close().await;
    assert_eq!(assert_intact(&[dir.file()]), 4);
    let lines = read_lines(&[dir.file()]);
    assert_eq!(lines[2]["removed_bytes"], 24);
    assert_eq!(lines[2].get("missing"), None);
}

#[tokio::test]
async fn records_cut_off_while_the_daemon_is_stopped_are_detected() {
    let dir = LogDir::new();
    let log = dir.open().await;
    for id in ["1", "2", "3"] {
        log.record(record(id)).await.expect("written");
    }
    log.close().await;
    let text = fs::read_to_string(dir.file()).expect("reads");
    let kept: String = text.split_inclusive('\n').take(3).collect();
    fs::write(dir.file(), kept).expect("writes");
    assert_eq!(verify(&[dir.file()]).broken, None, "nothing shows it yet");
    dir.open().await.close().await;
    let broken = verify(&[dir.file()]).broken.expect("a gap");
    let (before, found) = (3, 6);
    assert_eq!(
        (broken.line, broken.fault),
        (4, ChainFault::Missing { before, found })
    );
    assert_eq!(read_lines(&[dir.file()])[3]["missing"], 2);
}

//! Full and read-only disks. They are mounts, so these tests need root.

use std::process::Command;

use super::*;

/// Mount that is removed when this is dropped.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(path: PathBuf) -> Self {
        fs::create_dir(&path).expect("mkdir");
        run(
            "mount",
            &["-t", "tmpfs", "-o", "size=256k", "skilld-test"],
            &path,
        );
        Self(path)
    }

    /// Mounts a read-only view of a directory over it.
    fn read_only(path: PathBuf) -> Self {
        let source = path.to_string_lossy().into_owned();
        run("mount", &["--bind", &source], &path);
        let mount = Self(path);
        run("mount", &["-o", "remount,bind,ro"], &mount.0);
        mount
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &["-l"], &self.0);
    }
}

fn run(program: &str, args: &[&str], path: &Path) {
    let status = Command::new(program).args(args).arg(path).status();
    assert!(status.expect("it runs").success(), "{program} {args:?}");
}

async fn wait_until_healthy(log: &AuditLog) {
    let mut state = log.state();
    let healthy = state.wait_for(|state| *state == AuditState::Healthy).await;
    drop(healthy.expect("recovers"));
}

/// Writes records until the disk is full, frees it, and returns the log's file.
async fn fill_and_free(dir: &LogDir, keys: &str) -> (Mount, PathBuf, AuditLog, u64) {
    let disk = Mount::tmpfs(dir.0.path().join("disk"));
    let (file, filler) = (disk.0.join("audit.log"), disk.0.join("filler"));
    fs::write(&filler, vec![1; 200 << 10]).expect("fits");
    let log = open_log(&file, &dir.state_dir(), keys)
        .await
        .expect("opens");
    // These are shorter than the line of a recovery: where none of them fits, the writer's next attempts fail as well.
    let short = |number: u64| AuditRecord {
        principal: None,
        peer: AuditPeer::Process {
            uid: 1000,
            pid: None,
        },
        method: BoundedText::new("m"),
        resource: None,
        stage: CallStage::Begin,
        ..record(&format!("w{number}"))
    };
    let mut written = 0;
    while !matches!(*log.state().borrow(), AuditState::Failed(_)) {
        if log.record(short(written)).await.is_ok() {
            written += 1;
        }
        tokio::task::yield_now().await;
    }
    assert!(written > 10, "{written}");
    (disk, file, log, written)
}

#[tokio::test]
async fn a_full_disk_refuses_changes_counts_losses_and_recovers() {
    let dir = LogDir::new();
    let (disk, file, log, written) = fill_and_free(&dir, "").await;
    let fault = log.check_writable().expect_err("changes are refused");
    assert!(fault.to_string().contains("No space left"), "{fault}");
    // No part of a record stays behind.
    let report = verify(std::slice::from_ref(&file));
    assert_eq!((report.broken, report.incomplete_bytes), (None, 0));
    assert_eq!(report.records, written + 1);
    assert!(log.record(record("lost")).await.is_err());
    let lost = log.lost();
    assert!(lost >= 2, "{lost}");
    fs::remove_file(disk.0.join("filler")).expect("rm");
    wait_until_healthy(&log).await;
    log.record(record("kept")).await.expect("written");
    log.close().await;
    assert_eq!(log.lost(), lost);
    assert_eq!(assert_intact(std::slice::from_ref(&file)), written + 4);
    let lines = read_lines(&[file]);
    let recovered = &lines[lines.len() - 3];
    assert_eq!(recovered["event"], "recovered");
    assert_eq!(recovered["lost"], lost);
    let cause = recovered["cause"].as_str().expect("a text");
    assert!(cause.contains("No space left"), "{cause}");
}

#[tokio::test]
async fn best_effort_never_refuses_and_counts() {
    let dir = LogDir::new();
    let (disk, file, log, _) = fill_and_free(&dir, "delivery = \"best_effort\"").await;
    assert_eq!(log.check_writable(), Ok(()));
    assert_eq!(log.record(record("lost")).await, Ok(()));
    fs::remove_file(disk.0.join("filler")).expect("rm");
    wait_until_healthy(&log).await;
    log.close().await;
    let lost = log.lost();
    assert!(lost >= 2, "{lost}");
    assert_intact(std::slice::from_ref(&file));
    let lines = read_lines(&[file]);
    let reported = lines.iter().filter_map(|line| line["lost"].as_u64());
    assert_eq!(reported.sum::<u64>(), lost);
}

#[tokio::test]
async fn a_log_on_a_read_only_disk_begins_once_it_is_writable() {
    let dir = LogDir::new();
    dir.open().await.close().await;
    let cover = Mount::read_only(dir.0.path().to_owned());
    let state = tempfile::tempdir().expect("temporary directory");
    let log = open_log(&dir.file(), state.path(), "")
        .await
        .expect("opens");
    let fault = log.check_writable().expect_err("changes are refused");
    assert!(fault.to_string().contains("Read-only"), "{fault}");
    log.record(record("lost"))
        .await
        .expect_err("it can't be written");
    drop(cover);
    wait_until_healthy(&log).await;
    log.close().await;
    assert_intact(&[dir.file()]);
    let lines = read_lines(&[dir.file()]);
    assert_eq!(events(&lines), ["started", "stopped", "started", "stopped"]);
    assert_eq!(lines[2]["lost"], 1);
}

#[tokio::test]
async fn a_failed_reopen_continues_in_the_old_file_and_is_retried() {
    let dir = LogDir::new();
    let logs = dir.0.path().join("logs");
    fs::create_dir(&logs).expect("mkdir");
    let (file, old) = (logs.join("audit.log"), logs.join("audit.log.1"));
    let log = open_log(&file, &dir.state_dir(), "").await.expect("opens");
    fs::rename(&file, &old).expect("rename");
    let cover = Mount::read_only(logs);
    log.reopen();
    let mut state = log.state();
    let is_old = |state: &AuditState| matches!(state, AuditState::OldFile(_));
    drop(state.wait_for(is_old).await.expect("is reported"));
    assert_eq!(log.check_writable(), Ok(()));
    log.record(record("old")).await.expect("written");
    drop(cover);
    wait_until_healthy(&log).await;
    log.record(record("new")).await.expect("written");
    log.close().await;
    assert_intact(&[old.clone(), file.clone()]);
    assert_eq!(count_ids(&read_lines(&[old])), BTreeMap::from([("old", 1)]));
    assert_eq!(
        count_ids(&read_lines(&[file])),
        BTreeMap::from([("new", 1)])
    );
}

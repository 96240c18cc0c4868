//! Tests of file systems of workspaces as mkfs makes them. They need e2fsprogs, and no right of root.

use std::os::unix::fs::MetadataExt;

use super::*;

const OPTIONS: DiskOptions = DiskOptions {
    owner: 200_007,
    reserve_bytes: 1,
};

async fn make(path: &Path, disk_bytes: u64, inodes: u64, options: DiskOptions) -> Result<()> {
    let geometry = DiskGeometry::fit(disk_bytes, inodes).expect("fits");
    create_disk(&Tasks::default(), path, geometry, options).await
}

/// Asks debugfs about a file system.
async fn ask(path: &Path, request: &str) -> String {
    let args = ["-R".as_ref(), request.as_ref(), path.as_os_str()];
    let answer = run_tool("debugfs", args, b"").await.expect("answered");
    String::from_utf8(answer).expect("text")
}

fn number(statistics: &str, key: &str) -> u64 {
    let line = statistics.lines().find(|line| line.starts_with(key));
    let value = line.and_then(|line| line.split_once(':')).expect(key).1;
    value.trim().parse().expect("a number")
}

#[tokio::test]
async fn a_disk_has_its_limits_its_owner_and_all_its_blocks() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for (disk_bytes, inodes) in [
        (1 << 20, 64),
        ((1 << 20) + 4095, 256),
        (16 << 20, 4096),
        (16 << 20, 1000),
        (129 << 20, 16_384),
        (130 << 20, 33_280),
        (137 << 20, 1024),
        (140 << 20, 30_000),
        (256 << 20, 65_536),
    ] {
        let path = dir.path().join(format!("{disk_bytes}-{inodes}"));
        make(&path, disk_bytes, inodes, OPTIONS)
            .await
            .expect("made");
        let geometry = DiskGeometry::fit(disk_bytes, inodes).expect("fits");
        let file = path.metadata().expect("a file");
        assert_eq!(file.len(), geometry.file_bytes());
        assert!(file.blocks() * 512 >= file.len(), "it has holes");
        assert_eq!(file.mode() & 0o777, 0o600);

        let statistics = ask(&path, "stats -h").await;
        let case = format!("{disk_bytes} bytes, {inodes} inodes:\n{statistics}");
        assert_eq!(
            number(&statistics, "Block count"),
            geometry.blocks,
            "{case}"
        );
        assert_eq!(
            number(&statistics, "Inode count"),
            geometry.inodes,
            "{case}"
        );
        assert!(geometry.inodes <= inodes, "{case}");
        assert_eq!(number(&statistics, "Reserved block count"), 0, "{case}");
        let most = geometry.blocks;
        assert!(
            (most / 2..most).contains(&number(&statistics, "Free blocks")),
            "{case}"
        );
        assert!(!statistics.contains("has_journal"), "{case}");
        assert!(statistics.contains("Remount read-only"), "{case}");
        let root = ask(&path, "stat <2>").await;
        for wanted in ["User: 200007", "Group: 200007", "Mode:  0700"] {
            assert!(root.contains(wanted), "{root}");
        }
        let entries = ask(&path, "ls -p /").await;
        let names = entries.lines().filter(|line| !line.is_empty());
        assert_eq!(names.count(), 2, "only . and ..: {entries}");
        std::fs::remove_file(path).expect("removed");
    }
}

#[tokio::test]
async fn a_disk_that_would_use_up_the_reserve_is_a_full_disk() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join(FILE_NAME);
    let options = DiskOptions {
        reserve_bytes: u64::MAX,
        ..OPTIONS
    };
    let error = make(&path, 1 << 20, 64, options)
        .await
        .expect_err("refused");
    let text = crate::error::Chain(&error).to_string();
    assert!(text.contains("workspaces.disk_reserve"), "{text}");
    assert_eq!(error.kind().1, skilld_proto::v1::ErrorReason::StateDiskFull);
}

#[tokio::test]
async fn a_program_that_fails_is_named_with_its_reason() {
    let missing = Path::new("/nonexistent/image");
    let error = run_tool(
        "debugfs",
        ["-R".as_ref(), "ls".as_ref(), missing.as_os_str()],
        b"",
    )
    .await;
    // debugfs goes on without a file system; mkfs does not.
    assert!(error.is_ok());
    let error = run_tool("mkfs.ext4", ["-q".as_ref(), missing.as_os_str()], b"").await;
    let text = crate::error::Chain(&error.expect_err("no file")).to_string();
    assert!(
        text.contains("run mkfs.ext4 for the disk of a workspace"),
        "{text}"
    );
    assert!(text.contains("exit status: 1"), "{text}");
    let text = crate::error::Chain(&run_tool("no-such", [], b"").await.expect_err("no program"))
        .to_string();
    assert!(text.contains("it is not installed"), "{text}");
}

#[test]
fn a_docker_that_maps_uids_is_refused() {
    let info = EngineInfo {
        userns_remap: true,
        ..EngineInfo::default()
    };
    let fault = find_host_fault(&info).expect("refused");
    assert!(fault.contains("maps uids"), "{fault}");
}

//! Retention on a full disk. The disk is a mount, so the test needs root.

use std::collections::HashSet;
use std::fs;
use std::process::Command;

use super::*;
use crate::artifacts::counting::count_bytes;

/// Mounted tmpfs with few inodes, which is unmounted when this is dropped.
struct SmallDisk<'a>(&'a FilePath);

impl<'a> SmallDisk<'a> {
    const INODES: usize = 64;

    fn mount(path: &'a FilePath) -> Self {
        let options = format!("size=1m,nr_inodes={}", Self::INODES);
        run(
            "mount",
            &["-t", "tmpfs", "-o", &options, "skilld-test"],
            path,
        );
        Self(path)
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        run("umount", &["-l"], self.0);
    }
}

fn run(program: &str, args: &[&str], path: &FilePath) {
    let status = Command::new(program).args(args).arg(path).status();
    assert!(status.expect("it runs").success(), "{program} {args:?}");
}

#[tokio::test]
async fn retention_makes_room_on_a_full_disk() {
    if !nix::unistd::geteuid().is_root() {
        // Mounting a disk requires root.
        return;
    }
    let place = Place::new();
    let disk = SmallDisk::mount(place.dir.path());
    let artifacts = place
        .open_with(|config| config.retention_versions = 1)
        .await;
    let scope = scope("app", "ada", "1");
    for data in [b"0", b"1"] {
        save(&artifacts, &scope, "a", data).await;
    }
    let filler = disk.0.join("filler");
    fs::create_dir(&filler).expect("mkdir");
    let is_made = |number: &usize| fs::write(filler.join(number.to_string()), "").is_ok();
    let made = (0..SmallDisk::INODES).take_while(is_made).count();
    assert!(made < SmallDisk::INODES, "inodes have no limit here");
    let state = &artifacts.0;
    let counted = count_bytes(&state.store, &state.ledger).await;
    counted.expect("counted");
    let referenced = ReferencedVersions::new(HashSet::new);
    let swept = state
        .sweep(SystemTime::now(), &referenced)
        .await
        .expect("swept");
    assert_eq!((swept.expired, swept.failed), (1, 0), "{swept:?}");
    let removed = load(&artifacts, &scope, "a", Some(0)).await;
    removed.expect_err("removed");
    let kept = load(&artifacts, &scope, "a", Some(1)).await;
    assert_eq!(kept.expect("kept"), b"1");
}

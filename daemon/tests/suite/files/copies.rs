//! Copies of directories into a workspace and out of it again, with the real guest.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use skilld_client::TransferProgress;
use skilld_proto::v1 as pb;

use crate::server::TestServer;

/// A second in 2020.
const OLD: u64 = 1_577_836_800;

/// Names of the copied tree with their modes, which no umask changes. Directories come after what is in them.
const ENTRIES: [(&str, u32); 5] = [
    ("bin/run.sh", 0o700),
    ("secret", 0o600),
    ("bin", 0o700),
    ("empty", 0o700),
    (".", 0o700),
];

/// Modes and modification times of the entries.
fn attributes(tree: &Path) -> Vec<(&'static str, u32, i64)> {
    let entries = ENTRIES.iter().map(|(name, _)| {
        let metadata = fs::symlink_metadata(tree.join(name)).expect(name);
        (*name, metadata.mode() & 0o7777, metadata.mtime())
    });
    entries.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_copied_in_and_out_again_is_the_same() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let local = tempfile::tempdir().expect("a directory");
    let tree = local.path().join("tree");
    for name in ["bin", "empty"] {
        fs::create_dir_all(tree.join(name)).expect("made");
    }
    for name in ["bin/run.sh", "secret"] {
        fs::write(tree.join(name), name).expect("written");
    }
    symlink("run.sh", tree.join("bin/link")).expect("linked");
    symlink("/usr/bin/python3", tree.join("bin/python3")).expect("linked");
    for (second, (name, mode)) in (OLD..).zip(ENTRIES) {
        let file = File::open(tree.join(name)).expect("opened");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        file.set_permissions(Permissions::from_mode(mode))
            .expect("changed");
        file.set_modified(time).expect("touched");
    }
    let none = TransferProgress::none;
    let staged = server
        .client
        .upload_path(&workspace, &tree, "work/tree", none())
        .await
        .expect("staged");
    assert_eq!((staged.file_count, staged.skipped_count), (4, 0));
    let request = pb::CollectOutputsRequest {
        workspace,
        spec: Some(pb::CollectSpec {
            globs: vec!["work/tree".to_owned()],
            ..Default::default()
        }),
    };
    let copy = local.path().join("copy");
    // The second copy is merged with the first.
    for _ in 0..2 {
        let copied = server
            .client
            .copy_directory_out(request.clone(), "work/tree", &copy, none())
            .await
            .expect("copied");
        let skipped: Vec<_> = copied.skipped.iter().map(|file| &file.path).collect();
        assert_eq!(skipped, ["work/tree/bin/python3"], "it leads out");
        assert_eq!((copied.files.len(), copied.links.len()), (2, 1));
    }
    let link = fs::read_link(copy.join("bin/link")).expect("a link");
    assert_eq!(link, Path::new("run.sh"));
    // What is merged into a directory changes that one's time.
    let without_directories = |tree: &Path| {
        let mut entries = attributes(tree);
        entries.truncate(2);
        entries
    };
    assert_eq!(without_directories(&copy), without_directories(&tree));
    let fresh = local.path().join("fresh");
    let copied = server
        .client
        .copy_directory_out(request, "work/tree", &fresh, none());
    copied.await.expect("copied");
    assert_eq!(attributes(&fresh), attributes(&tree));
    assert!(server.stop().await);
}

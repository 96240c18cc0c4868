//! Sending files: whole or not at all.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use skilld_client::v1::SkipReason;
use skilld_client::v1::{self, SkippedFile};
use skilld_client::{Error, TransferProgress, UploadTarget};
use tokio::io::{AsyncRead, ReadBuf};

use skilld_testing::{Fake, noise};

#[tokio::test]
async fn bytes_arrive_as_they_were_and_progress_counts_them() {
    let fake = Fake::start();
    let client = fake.client().await;
    let data = noise(3 * 1024 * 1024 + 5);
    let local = fake.path("local");
    std::fs::write(&local, &data).expect("writes");
    let told = Arc::new(AtomicU64::new(0));
    let progress = TransferProgress::new({
        let told = Arc::clone(&told);
        move |done, total| {
            assert_eq!(total, Some(3 * 1024 * 1024 + 5));
            told.store(done, Ordering::Relaxed);
        }
    });
    let answer = client
        .upload_path("w", &local, "inputs/x", progress)
        .await
        .expect("stages");
    assert_eq!(answer.size_bytes, 3 * 1024 * 1024 + 5);
    assert_eq!(told.load(Ordering::Relaxed), 3 * 1024 * 1024 + 5);
    assert_eq!(fake.state.lock().staged["inputs/x"], data);
    client
        .upload_bytes("w", "empty", "")
        .await
        .expect("stages nothing");
    assert_eq!(fake.state.lock().staged["empty"], b"");
}

#[tokio::test]
async fn a_directory_arrives_as_a_tar_that_others_can_read() {
    let fake = Fake::start();
    let client = fake.client().await;
    let root = fake.path("tree");
    let long = "d".repeat(60);
    let deep = root.join(&long).join(&long).join(&long);
    std::fs::create_dir_all(&deep).expect("makes");
    std::fs::write(deep.join("deep.txt"), "deep").expect("writes");
    std::fs::write(root.join("big"), noise(700_001)).expect("writes");
    std::fs::write(root.join("empty"), "").expect("writes");
    std::os::unix::fs::symlink("big", root.join("link")).expect("links");
    client
        .upload_path("w", &root, "inputs/tree", TransferProgress::none())
        .await
        .expect("stages");
    let staged = fake.state.lock().staged["inputs/tree"].clone();
    let out = fake.path("out");
    tar::Archive::new(staged.as_slice())
        .unpack(&out)
        .expect("unpacks");
    assert_eq!(
        std::fs::read(out.join("big")).expect("reads"),
        noise(700_001)
    );
    assert_eq!(std::fs::read(out.join("empty")).expect("reads"), b"");
    let deep = out.join(&long).join(&long).join(&long).join("deep.txt");
    assert_eq!(std::fs::read_to_string(deep).expect("reads"), "deep");
    assert_eq!(
        std::fs::read_link(out.join("link"))
            .expect("a link")
            .as_os_str(),
        "big"
    );
}

/// Gives some bytes, then fails.
struct FailingReader(usize);

impl AsyncRead for FailingReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0 == 0 {
            return Poll::Ready(Err(io::Error::other("the disk is gone")));
        }
        self.0 -= 1;
        buffer.put_slice(&vec![7; buffer.remaining().min(1000)]);
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_source_that_fails_leaves_nothing_on_the_server() {
    let fake = Fake::start();
    let client = fake.client().await;
    let mut aborted = fake.state.aborted.subscribe();
    let target = UploadTarget::file("w", "half");
    let error = client
        .upload(target, FailingReader(900))
        .await
        .expect_err("fails");
    assert!(
        matches!(&error, Error::Io { source, .. } if source.to_string().contains("disk is gone")),
        "{error}"
    );
    aborted
        .wait_for(|count| *count == 1)
        .await
        .expect("the server sees a broken stream");
    assert!(fake.state.lock().staged.is_empty());
}

#[tokio::test]
async fn a_refusal_of_the_server_comes_through() {
    let fake = Fake::start();
    let client = fake.client().await;
    let error = client
        .upload_bytes("w", "skills/x", "no")
        .await
        .expect_err("read only");
    assert_eq!(error.reason(), Some(v1::ErrorReason::ReadOnly));
}

#[tokio::test]
async fn a_local_file_that_cannot_be_read_is_named() {
    let fake = Fake::start();
    let client = fake.client().await;
    let missing = fake.path("missing.csv");
    let error = client
        .upload_path("w", &missing, "x", TransferProgress::none())
        .await
        .expect_err("is not there");
    assert!(error.to_string().contains("missing.csv"), "{error}");
    let device = Path::new("/dev/null");
    let error = client
        .upload_path("w", device, "x", TransferProgress::none())
        .await
        .expect_err("is no file");
    assert!(
        error.to_string().contains("with - as the source"),
        "{error}"
    );
}

/// Names of the entries of a tar, each with `true` if it is a symbolic link.
fn tar_entries(tar: &[u8]) -> Vec<(String, bool)> {
    let mut archive = tar::Archive::new(tar);
    let entries = archive.entries().expect("a tar").map(|entry| {
        let entry = entry.expect("an entry");
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        (name, entry.header().entry_type().is_symlink())
    });
    entries.collect()
}

#[tokio::test]
async fn an_upload_keeps_links_and_names_what_it_leaves_out() {
    let fake = Fake::start();
    let client = fake.client().await;
    let root = fake.path("tree");
    std::fs::create_dir_all(root.join("bin")).expect("makes");
    std::fs::write(root.join("a.py"), "1").expect("writes");
    std::os::unix::fs::symlink("/usr/bin/python3", root.join("bin/python3")).expect("links");
    std::os::unix::fs::symlink("../../../shared", root.join("up")).expect("links");
    let _socket = UnixListener::bind(root.join("bin/socket")).expect("binds");
    fake.state.lock().stage_skips = vec![SkippedFile {
        path: "work/tree/up".into(),
        reason: SkipReason::LinkTarget.into(),
    }];
    let answer = client
        .upload_path("w", &root, "work/tree/", TransferProgress::none())
        .await
        .expect("stages");
    let staged = fake.state.lock().staged["work/tree/"].clone();
    let expected = [
        ("./", false),
        ("a.py", false),
        ("bin/", false),
        ("bin/python3", true),
        ("up", true),
    ]
    .map(|(name, link)| (name.to_owned(), link));
    assert_eq!(tar_entries(&staged), expected);
    let skipped: Vec<_> = answer
        .skipped_files
        .iter()
        .map(|file| (file.path.as_str(), file.reason()))
        .collect();
    let expected = [
        ("work/tree/bin/socket", SkipReason::FileType),
        ("work/tree/up", SkipReason::LinkTarget),
    ];
    assert_eq!(
        (skipped.as_slice(), answer.skipped_count),
        (&expected[..], 2)
    );
}

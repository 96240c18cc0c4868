//! Writing files whose names somebody else chose.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use bytes::Bytes;
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::{
    CollectOutputsRequest, CollectOutputsResponse, CollectSpec, CollectedFile,
};
use skilld_client::{CollectedFiles, Error, TransferProgress};

use skilld_testing::collection_messages::{file, link, message, names, summary};
use skilld_testing::{Fake, noise};

async fn collect(
    fake: &Fake,
    parts: Vec<Vec<CollectOutputsResponse>>,
) -> Result<CollectedFiles, Error> {
    let mut messages = parts.concat();
    messages.push(summary());
    fake.state.lock().collect = messages;
    let request = CollectOutputsRequest {
        workspace: "w".into(),
        spec: Some(CollectSpec::default()),
    };
    let client = fake.client().await;
    client
        .collect_to_dir(request, &fake.path("to"), TransferProgress::none())
        .await
}

#[tokio::test]
async fn files_come_whole_and_keep_their_directories() {
    let fake = Fake::start();
    let data = noise(600_000);
    let parts = vec![
        file("out/a/b/data", &data),
        file("out/empty", b""),
        link("out/latest", "a/b/data"),
    ];
    let collected = collect(&fake, parts).await.expect("collects");
    let to = fake.path("to");
    assert_eq!(std::fs::read(to.join("out/a/b/data")).expect("reads"), data);
    assert_eq!(std::fs::read(to.join("out/empty")).expect("reads"), b"");
    assert_eq!(std::fs::read(to.join("out/latest")).expect("reads"), data);
    assert_eq!((collected.files.len(), collected.links.len()), (2, 1));
    assert_eq!(collected.bytes, 600_000);
    assert_eq!(
        names(&to.join("out")),
        ["a", "empty", "latest"],
        "no temporary file is left"
    );
}

#[tokio::test]
async fn names_that_lead_out_are_refused() {
    for hostile in [
        "../evil",
        "/tmp/evil",
        "out/../../evil",
        "a/../evil",
        "",
        ".",
        "..",
        "out/\0evil",
    ] {
        let fake = Fake::start();
        let error = collect(&fake, vec![file(hostile, b"evil")])
            .await
            .expect_err(hostile);
        assert!(
            matches!(error, Error::UnsafeName { .. }),
            "{hostile}: {error}"
        );
        assert!(!fake.path("evil").exists());
        assert!(names(&fake.path("to")).is_empty(), "{hostile}");
    }
}

#[tokio::test]
async fn links_are_never_written_through() {
    let fake = Fake::start();
    let outside = fake.path("outside");
    std::fs::create_dir_all(fake.path("to")).expect("makes");
    std::fs::create_dir(&outside).expect("makes");
    std::fs::write(outside.join("file"), "mine").expect("writes");
    symlink(&outside, fake.path("to/dir")).expect("links");
    symlink(outside.join("file"), fake.path("to/file")).expect("links");
    // A directory that is a link is refused; a link in the place of a file is replaced, its target kept.
    let error = collect(&fake, vec![file("dir/x", b"evil")])
        .await
        .expect_err("through a link");
    assert!(matches!(error, Error::UnsafeName { .. }), "{error}");
    collect(&fake, vec![file("file", b"new")])
        .await
        .expect("collects");
    assert_eq!(names(&outside), ["file"]);
    assert_eq!(
        std::fs::read_to_string(outside.join("file")).expect("reads"),
        "mine"
    );
    assert_eq!(
        std::fs::read_to_string(fake.path("to/file")).expect("reads"),
        "new"
    );
    // Nor through a link that came on the same stream.
    let parts = vec![link("here", "there"), file("here/x", b"evil")];
    collect(&fake, parts).await.expect_err("through a link");
}

#[tokio::test]
async fn links_that_lead_out_are_left_out_and_said() {
    let fake = Fake::start();
    let parts = vec![
        link("out/passwd", "/etc/passwd"),
        link("out/up", "../../x"),
        link("out/zigzag", "a/../../../x"),
        link("out/sibling", "../work/x"),
    ];
    let collected = collect(&fake, parts).await.expect("collects");
    let refused: Vec<_> = collected
        .skipped
        .iter()
        .map(|refused| refused.path.as_str())
        .collect();
    assert_eq!(refused, ["out/passwd", "out/up", "out/zigzag"]);
    assert_eq!(names(&fake.path("to/out")), ["sibling"]);
}

#[tokio::test]
async fn a_directory_in_the_way_is_said_and_the_rest_comes() {
    let fake = Fake::start();
    let to = fake.path("to");
    std::fs::create_dir_all(to.join("link/mine")).expect("makes");
    std::fs::create_dir_all(to.join("file/mine")).expect("makes");
    symlink("old", to.join("again")).expect("links");
    let parts = vec![
        link("link", "last"),
        file("file", b"x"),
        link("again", "last"),
        file("last", b"x"),
    ];
    let collected = collect(&fake, parts).await.expect("collects");
    let refused = collected.skipped.iter();
    let refused: Vec<_> = refused
        .map(|refused| (refused.path.as_str(), refused.skip_reason.as_str()))
        .collect();
    let problem = "has the name of a directory that is here";
    assert_eq!(refused, [("link", problem), ("file", problem)]);
    assert_eq!(names(&to), ["again", "file", "last", "link"]);
    assert_eq!(names(&to.join("link")), ["mine"]);
    let again = std::fs::read_link(to.join("again")).expect("a link");
    assert_eq!(again, Path::new("last"), "a link is replaced");
}

#[tokio::test]
async fn damaged_bytes_are_not_kept() {
    let fake = Fake::start();
    let mut messages = file("out/data", b"good bytes");
    messages[1] = message(Payload::Data(Bytes::from_static(b"evil bytes")));
    let error = collect(&fake, vec![messages]).await.expect_err("damaged");
    assert!(matches!(error, Error::Checksum { .. }), "{error}");
    assert!(names(&fake.path("to/out")).is_empty());
}

#[tokio::test]
async fn a_stream_that_ends_early_leaves_no_half_file() {
    let fake = Fake::start();
    let mut messages = file("out/data", b"all of it");
    messages.truncate(2);
    fake.state.lock().collect = messages;
    let request = CollectOutputsRequest::default();
    let to = fake.path("to");
    let error = fake
        .client()
        .await
        .collect_to_dir(request, &to, TransferProgress::none())
        .await
        .expect_err("early");
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    assert!(names(&to.join("out")).is_empty());
}

#[tokio::test]
async fn of_a_mode_only_executable_is_taken() {
    let fake = Fake::start();
    let mut messages = file("run.sh", b"#!/bin/sh");
    messages[0] = message(Payload::File(CollectedFile {
        path: "run.sh".into(),
        mode: 0o6777,
        ..Default::default()
    }));
    collect(&fake, vec![messages, file("data", b"x")])
        .await
        .expect("collects");
    let mode = |name: &str| {
        std::fs::metadata(fake.path("to").join(name))
            .expect("is there")
            .mode()
    };
    assert_eq!(mode("run.sh") & 0o7100, 0o100);
    assert_eq!(mode("data") & 0o7111, 0);
}

//! Writing files whose names somebody else chose.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use bytes::Bytes;
use prost_types::Timestamp;
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::{
    CollectOutputsRequest, CollectOutputsResponse, CollectSpec, CollectedFile,
};
use skilld_client::{CollectedFiles, Error, TransferProgress};

use skilld_testing::collection_messages::{directory, file, link, message, names, summary};
use skilld_testing::{Fake, noise};

/// Lets the fake answer a collection with these parts. Returns the request for it.
fn offer(fake: &Fake, parts: &[Vec<CollectOutputsResponse>]) -> CollectOutputsRequest {
    let mut messages = parts.concat();
    messages.push(summary());
    fake.answer_collections(messages);
    CollectOutputsRequest {
        workspace: "w".into(),
        spec: Some(CollectSpec::default()),
    }
}

async fn collect(
    fake: &Fake,
    parts: Vec<Vec<CollectOutputsResponse>>,
) -> Result<CollectedFiles, Error> {
    let request = offer(fake, &parts);
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
    // What is beneath a link is left out; a link in the place of a file is replaced, its target kept.
    let parts = vec![file("dir/x", b"evil"), file("file", b"new")];
    let collected = collect(&fake, parts).await.expect("collects");
    assert_eq!(skipped(&collected), ["dir/x"]);
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
    let collected = collect(&fake, parts).await.expect("collects");
    assert_eq!(skipped(&collected), ["here/x"]);
    assert!(!fake.path("to/there").exists());
}

/// Paths of the entries that were left out.
fn skipped(collected: &CollectedFiles) -> Vec<&str> {
    let skipped = collected.skipped.iter();
    skipped.map(|skipped| skipped.path.as_str()).collect()
}

#[tokio::test]
async fn a_link_or_file_in_a_directorys_place_ends_no_copy() {
    let fake = Fake::start();
    let to = fake.path("to");
    std::fs::create_dir_all(fake.path("mine")).expect("makes");
    std::fs::create_dir_all(&to).expect("makes");
    symlink(fake.path("mine"), to.join("link")).expect("links");
    std::fs::write(to.join("file"), "mine").expect("writes");
    let parts = vec![
        directory("file", 0o700, 1),
        file("file/a", &noise(600_000)),
        link("file/b", "a"),
        file("link/a/b", b"x"),
        file("other/a", b"x"),
    ];
    let collected = collect(&fake, parts).await.expect("collects");
    assert_eq!(
        skipped(&collected),
        ["file", "file/a", "file/b", "link/a/b"]
    );
    for skipped in &collected.skipped {
        let reason = &skipped.skip_reason;
        assert!(reason.ends_with(" to be a directory"), "{reason}");
        assert!(skipped.is_blocked);
    }
    assert_eq!((collected.files.len(), collected.bytes), (1, 1));
    assert_eq!(names(&to), ["file", "link", "other"]);
    let kept = std::fs::read_to_string(to.join("file")).expect("reads");
    assert_eq!(kept, "mine");
    assert!(names(&fake.path("mine")).is_empty());
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
    let refused: Vec<_> = collected
        .skipped
        .iter()
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
    fake.answer_collections(messages);
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

/// A file that was changed at a second.
fn dated(path: &str, mode: u32, seconds: i64) -> Vec<CollectOutputsResponse> {
    let header = message(Payload::File(CollectedFile {
        path: path.into(),
        mode,
        modify_time: Some(Timestamp { seconds, nanos: 0 }),
        ..Default::default()
    }));
    let contents = file(path, b"x").into_iter().skip(1);
    std::iter::once(header).chain(contents).collect()
}

#[tokio::test]
async fn modes_and_times_are_kept_without_what_is_dangerous() {
    let fake = Fake::start();
    let old = 1_577_836_800;
    let parts = vec![
        directory("out", 0o750, old),
        directory("out/empty", 0o6700, old + 1),
        dated("out/run.sh", 0o6755, old + 2),
        dated("out/secret", 0o600, old + 3),
        dated("out/fixed", 0o444, old + 4),
    ];
    collect(&fake, parts).await.expect("collects");
    let found = |name: &str| {
        let metadata = std::fs::metadata(fake.path("to").join(name)).expect("is there");
        (metadata.mode() & 0o7777, metadata.mtime())
    };
    // The umask of whoever runs the test takes nothing from the owner.
    let owner = |(mode, time): (u32, i64)| (mode & 0o7700, time);
    assert_eq!(owner(found("out")), (0o700, old));
    assert_eq!(found("out/empty"), (0o700, old + 1));
    assert_eq!(owner(found("out/run.sh")), (0o700, old + 2));
    assert_eq!(found("out/secret"), (0o600, old + 3));
    assert_eq!(owner(found("out/fixed")), (0o400, old + 4));
}

#[tokio::test]
async fn a_directory_is_copied_without_its_path_and_merged() {
    let fake = Fake::start();
    let to = fake.path("to");
    std::fs::create_dir_all(to.join("css")).expect("makes");
    std::fs::write(to.join("mine"), "mine").expect("writes");
    std::fs::write(to.join("css/a.css"), "old").expect("writes");
    let parts = [
        directory("out/site", 0o700, 1),
        directory("out/site/css", 0o700, 1),
        file("out/site/css/a.css", b"new"),
        directory("out/site/uploads", 0o755, 1),
    ];
    let request = offer(&fake, &parts);
    let client = fake.client().await;
    let none = TransferProgress::none();
    let copied = client.copy_directory_out(request.clone(), "out/site", &to, none);
    assert_eq!(copied.await.expect("copies").files.len(), 1);
    assert_eq!(names(&to), ["css", "mine", "uploads"]);
    let text = std::fs::read_to_string(to.join("css/a.css")).expect("reads");
    assert_eq!(text, "new");
    let modified = std::fs::metadata(&to).expect("is there").mtime();
    assert_ne!(
        modified, 1,
        "a directory that was there keeps its attributes"
    );
    assert!(fake.collect_spec().include_directories);
    // A name elsewhere is none of this copy.
    let elsewhere = [file("out/sites", b"x"), vec![summary()]].concat();
    fake.answer_collections(elsewhere);
    let none = TransferProgress::none();
    let error = client
        .copy_directory_out(request, "out/site", &to, none)
        .await
        .expect_err("elsewhere");
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

//! Files in and out: staged whole or not at all, read and listed.
//!
//! Docker: a file that the daemon stages and one that a command makes are the same files of a container, with its user.

use anyhow::{Result, ensure};
use skilld_client::v1::{ErrorReason, FileEntry, FileType, ListFilesRequest};
use skilld_client::{Client, UploadTarget};
use skilld_tests::exec::{run, shell};
use skilld_tests::files::{put, read, sha256, stage, tar};
use skilld_tests::{DefaultDaemon, expect_refusal};

async fn list(
    client: &Client,
    workspace: &str,
    path: &str,
    recursive: bool,
) -> Result<Vec<FileEntry>> {
    let mut request = ListFilesRequest {
        parent: workspace.to_owned(),
        path: path.to_owned(),
        recursive,
        page_size: 3,
        ..ListFilesRequest::default()
    };
    let mut files = Vec::new();
    loop {
        let page = client.list_files(request.clone()).await?;
        ensure!(page.files.len() <= 3, "{page:?}");
        files.extend(page.files);
        if page.next_page_token.is_empty() {
            return Ok(files);
        }
        request.page_token = page.next_page_token;
    }
}

#[tokio::test]
async fn a_staged_file_has_its_bytes_mode_and_place() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let target = UploadTarget {
        mode: Some(0o750),
        ..UploadTarget::file(&name, "inputs/deep/er/data.bin")
    };
    let staged = stage(client, target, data.clone()).await?;
    let file = &staged.files[0];
    assert_eq!(
        (file.path.as_str(), file.mode),
        ("work/inputs/deep/er/data.bin", 0o750)
    );
    assert_eq!((file.size_bytes, &file.sha256), (3_000_000, &sha256(&data)));
    assert_eq!((staged.file_count, staged.size_bytes), (1, 3_000_000));
    let commands =
        "cd $INPUTS_DIR/deep/er; stat -c '%a %s %U' data.bin; sha256sum <data.bin; ls -A";
    let seen = run(client, &name, shell(commands)).await?;
    assert_eq!(
        seen.text(),
        format!("750 3000000 skill\n{}  -\ndata.bin\n", sha256(&data))
    );

    // An empty one, one over another, one with an odd name, by each way to say where.
    put(client, &name, "$WORK_DIR/empty", "").await?;
    put(client, &name, "/workspace/out/ü \n*", "odd").await?;
    put(client, &name, "work/inputs/deep/er/data.bin", "new").await?;
    assert_eq!(
        read(client, &name, "inputs/deep/er/data.bin").await?,
        b"new"
    );
    assert_eq!(read(client, &name, "out/ü \n*").await?, b"odd");
    assert_eq!(read(client, &name, "work/empty").await?, b"");
    let default = run(client, &name, shell("stat -c %a $WORK_DIR/empty")).await?;
    assert_eq!(default.text(), "644\n");
    daemon.stop().await
}

#[tokio::test]
async fn directories_are_listed_with_the_type_and_size_of_each_entry() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let make = "cd $OUTPUT_DIR; mkdir d; printf 12345 >d/b; chmod 640 d/b; : >d/a; ln -s /etc/passwd link; mkfifo fifo; printf x >$'bad\\xff'; touch -d @1700000000 d/a";
    run(client, &name, shell(make)).await?;
    let files = list(client, &name, "$OUTPUT_DIR", true).await?;
    let seen: Vec<(&str, FileType)> = files
        .iter()
        .map(|file| (file.path.as_str(), file.file_type()))
        .collect();
    assert_eq!(
        seen,
        [
            ("out/bad\u{fffd}", FileType::File),
            ("out/d", FileType::Directory),
            ("out/d/a", FileType::File),
            ("out/d/b", FileType::File),
            ("out/fifo", FileType::Other),
            ("out/link", FileType::Symlink),
        ]
    );
    assert_eq!(files[0].raw_path, b"out/bad\xff".as_slice());
    assert_eq!((files[3].size_bytes, files[3].mode), (5, 0o640));
    assert_eq!(
        files[2].modify_time.map(|time| time.seconds),
        Some(1_700_000_000)
    );
    assert_eq!(files[5].link_target, "/etc/passwd");
    let flat = list(client, &name, "out", false).await?;
    assert_eq!(flat.len(), 4, "{flat:?}");
    let one = list(client, &name, "out/d/b", false).await?;
    assert_eq!(
        (one.len(), one[0].path.as_str(), one[0].size_bytes),
        (1, "out/d/b", 5)
    );
    let root: Vec<String> = list(client, &name, "", false)
        .await?
        .into_iter()
        .map(|file| file.path)
        .collect();
    assert_eq!(root, ["metadata.json", "out", "runs", "skills", "work"]);
    for (path, reason) in [
        ("out/none", ErrorReason::FileNotFound),
        ("../etc", ErrorReason::PathEscapes),
    ] {
        let request = ListFilesRequest {
            parent: name.clone(),
            path: path.to_owned(),
            ..ListFilesRequest::default()
        };
        expect_refusal(client.list_files(request).await, reason)?;
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_wrong_checksum_leaves_the_old_file() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    put(client, &name, "work/data", "old").await?;
    let look = || shell("find $WORK_DIR $OUTPUT_DIR /tmp -mindepth 1 | sort");
    let before = run(client, &name, look()).await?.text();
    let target = UploadTarget {
        sha256: sha256(b"other"),
        ..UploadTarget::file(&name, "work/data")
    };
    let answer = stage(client, target, "new").await;
    let failure = expect_refusal(answer, ErrorReason::ChecksumMismatch)?;
    assert_eq!(failure.metadata.get("sha256"), Some(&sha256(b"new")));
    let archive = tar(&[("a", b"a", 0o644)])?;
    let target = UploadTarget {
        sha256: sha256(b"other"),
        ..UploadTarget::tar(&name, "work")
    };
    let answer = stage(client, target, archive).await;
    expect_refusal(answer, ErrorReason::ChecksumMismatch)?;
    assert_eq!(read(client, &name, "work/data").await?, b"old");
    assert_eq!(run(client, &name, look()).await?.text(), before);
    daemon.stop().await
}

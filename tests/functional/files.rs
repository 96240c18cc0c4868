//! Files in and out: staged whole or not at all, listed, read, collected within limits, never followed out.

use std::collections::BTreeMap;
use std::io::Read;

use anyhow::{Context, Result, ensure};
use skilld_client::v1::skipped_file::Reason as Skipped;
use skilld_client::v1::{
    CollectFormat, CollectSpec, FileEntry, FileType, ListFilesRequest, ReadFileRequest, Reason,
};
use skilld_client::{Client, UploadKind, UploadTarget};
use skilld_tests::exec::{run, shell};
use skilld_tests::files::{collect, globs, gzip, put, read, sha256, stage, tar};
use skilld_tests::{Daemon, expect_refusal};

async fn list(
    client: &Client,
    workspace: &str,
    path: &str,
    recursive: bool,
) -> Result<Vec<FileEntry>> {
    let mut request = ListFilesRequest {
        workspace: workspace.to_owned(),
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
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let target = UploadTarget {
        mode: 0o750,
        ..UploadTarget::file(&name, "inputs/deep/er/data.bin")
    };
    let staged = stage(client, target, data.clone()).await?;
    let file = &staged.files[0];
    assert_eq!(
        (file.path.as_str(), file.mode),
        ("work/inputs/deep/er/data.bin", 0o750)
    );
    assert_eq!((file.size, &file.sha256), (3_000_000, &sha256(&data)));
    assert_eq!((staged.files_total, staged.bytes_total), (1, 3_000_000));
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
async fn archives_are_unpacked_with_modes_and_links() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let mut archive = tar(&[
        ("a.txt", b"plain", 0o644),
        ("bin/run", b"#!/bin/sh\necho ran\n", 0o755),
        ("deep/1/2/3/x", b"x", 0o600),
    ])?;
    // Before the two blocks of zeros that end it: a link that stays inside.
    let mut link = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    link.append_link(&mut header, "to-a", "a.txt")?;
    archive.truncate(archive.len() - 1024);
    archive.extend(link.into_inner()?);
    for (directory, kind) in [
        ("work/plain", UploadKind::Tar),
        ("work/zipped", UploadKind::TarGz),
    ] {
        let bytes = if kind == UploadKind::Tar {
            archive.clone()
        } else {
            gzip(&archive)?
        };
        let target = UploadTarget {
            kind,
            sha256: sha256(&bytes),
            ..UploadTarget::tar(&name, directory)
        };
        let staged = stage(client, target, bytes).await?;
        let paths: Vec<&str> = staged.files.iter().map(|file| file.path.as_str()).collect();
        let expected =
            ["a.txt", "bin/run", "deep/1/2/3/x", "to-a"].map(|path| format!("{directory}/{path}"));
        assert_eq!(paths, expected);
        assert_eq!(
            (staged.files_total, staged.files[0].sha256.as_str()),
            (4, sha256(b"plain").as_str())
        );
        let seen = run(client, &name, shell(&format!("cd $WORKSPACE_DIR/{directory}; bin/run; cat to-a; readlink to-a; stat -c %a a.txt bin/run deep/1/2/3/x"))).await?;
        assert_eq!(
            seen.text(),
            "ran\nplaina.txt\n644\n755\n600\n",
            "{}",
            seen.error_text()
        );
    }
    daemon.stop().await
}

#[tokio::test]
async fn directories_are_listed_with_the_type_and_size_of_each_entry() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let make = "cd $OUTPUT_DIR; mkdir d; printf 12345 >d/b; chmod 640 d/b; : >d/a; ln -s /etc/passwd link; mkfifo fifo; printf x >$'bad\\xff'; touch -d @1700000000 d/a";
    run(client, &name, shell(make)).await?;
    let files = list(client, &name, "$OUTPUT_DIR", true).await?;
    let seen: Vec<(&str, FileType)> = files
        .iter()
        .map(|file| (file.path.as_str(), file.r#type()))
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
    assert_eq!(files[0].path_bytes, b"out/bad\xff".as_slice());
    assert_eq!((files[3].size, files[3].mode), (5, 0o640));
    assert_eq!(files[2].mtime.map(|time| time.seconds), Some(1_700_000_000));
    assert_eq!(files[5].link_target, "/etc/passwd");
    let flat = list(client, &name, "out", false).await?;
    assert_eq!(flat.len(), 4, "{flat:?}");
    let one = list(client, &name, "out/d/b", false).await?;
    assert_eq!(
        (one.len(), one[0].path.as_str(), one[0].size),
        (1, "out/d/b", 5)
    );
    let root: Vec<String> = list(client, &name, "", false)
        .await?
        .into_iter()
        .map(|file| file.path)
        .collect();
    assert_eq!(root, ["metadata.json", "out", "runs", "skills", "work"]);
    for (path, reason) in [
        ("out/none", Reason::FileNotFound),
        ("../etc", Reason::PathEscapes),
    ] {
        let request = ListFilesRequest {
            workspace: name.clone(),
            path: path.to_owned(),
            ..ListFilesRequest::default()
        };
        expect_refusal(client.list_files(request).await, reason)?;
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_part_of_a_file_can_be_read() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let data: Vec<u8> = (0..1_000_003_u32).map(|i| (i % 253) as u8).collect();
    put(client, &name, "work/data", data.clone()).await?;
    let size = data.len();
    for (offset, length) in [
        (0, 0),
        (0, 1),
        (1, 300_000),
        (999_999, 0),
        (size, 5),
        (size + 10, 0),
        (size - 2, 100),
    ] {
        let request = ReadFileRequest {
            workspace: name.clone(),
            path: "$WORK_DIR/data".to_owned(),
            offset: i64::try_from(offset)?,
            length: i64::try_from(length)?,
        };
        let mut reader = client.read_file(request).await?;
        assert_eq!(reader.header().size, i64::try_from(size)?);
        let mut bytes = Vec::new();
        while let Some(chunk) = reader.next().await? {
            ensure!(chunk.len() <= 256 << 10, "{} bytes at once", chunk.len());
            bytes.extend_from_slice(&chunk);
        }
        let from = offset.min(size);
        let to = if length == 0 {
            size
        } else {
            (offset + length).min(size)
        };
        ensure!(
            bytes == data[from..to.max(from)],
            "{offset} {length}: {} bytes",
            bytes.len()
        );
    }
    run(client, &name, shell("cd $WORK_DIR; mkfifo fifo; mkdir dir; touch closed; chmod 0 closed; ln -s data inside; ln -s /etc/passwd outside")).await?;
    for (path, reason) in [
        ("work/none", Reason::FileNotFound),
        ("work/dir", Reason::WrongFileType),
        ("work/fifo", Reason::WrongFileType),
        ("work/closed", Reason::FilePermission),
        ("work/outside", Reason::PathEscapes),
        ("/etc/passwd", Reason::PathEscapes),
        ("work/../../etc/passwd", Reason::PathEscapes),
    ] {
        expect_refusal(read(client, &name, path).await, reason).with_context(|| path.to_owned())?;
    }
    assert_eq!(read(client, &name, "work/inside").await?.len(), size);
    daemon.stop().await
}

#[tokio::test]
async fn collected_files_match_their_globs_and_no_others() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let make = "cd $OUTPUT_DIR; mkdir -p sub/deep .hidden ../output; for f in a.csv b.json c.txt sub/d.csv sub/deep/e.csv .hidden/f.csv; do echo $f >$f; done; echo no >../output/x; echo in >$INPUTS_DIR/i.csv";
    let made = run(client, &name, shell(make)).await?;
    assert_eq!(made.exit_code(), Some(0), "{made:?}");
    for (glob, expected) in [
        (
            "$OUTPUT_DIR/**",
            &[
                "out/.hidden/f.csv",
                "out/a.csv",
                "out/b.json",
                "out/c.txt",
                "out/sub/d.csv",
                "out/sub/deep/e.csv",
            ][..],
        ),
        ("out/*.csv", &["out/a.csv"]),
        (
            "${OUTPUT_DIR}/**/*.csv",
            &[
                "out/.hidden/f.csv",
                "out/a.csv",
                "out/sub/d.csv",
                "out/sub/deep/e.csv",
            ],
        ),
        ("/workspace/out/*.{csv,json}", &["out/a.csv", "out/b.json"]),
        ("out/[bc].*", &["out/b.json", "out/c.txt"]),
        ("inputs/*.csv", &["work/inputs/i.csv"]),
        ("out/none*", &[]),
    ] {
        let collection = collect(client, &name, globs([glob])).await?;
        assert_eq!(collection.paths(), expected, "{glob}");
        assert_eq!(collection.summary.matched, i64::try_from(expected.len())?);
        for file in &collection.files {
            let tail = file
                .file
                .path
                .trim_start_matches("out/")
                .trim_start_matches("work/inputs/");
            let text = std::str::from_utf8(&file.data)?;
            assert!(text == format!("{tail}\n") || text == "in\n", "{text}");
        }
    }
    // Two globs that match the same file return it once; the time and type of a file come with it.
    let both = collect(client, &name, globs(["out/a.*", "out/*.csv"])).await?;
    assert_eq!(both.paths(), ["out/a.csv"]);
    assert_eq!(both.files[0].file.mime_type, "text/csv");
    assert!(both.files[0].file.mtime.is_some() && both.files[0].file.is_text);
    // A variable ends where a word ends.
    let error = collect(client, &name, globs(["$OUTPUT_DIRECTORY/*"])).await;
    expect_refusal(error, Reason::InvalidRequest)?;
    daemon.stop().await
}

#[tokio::test]
async fn limits_cut_a_collection_and_the_summary_says_where() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let make = "cd $OUTPUT_DIR; for i in {1..6}; do head -c 1000 /dev/zero | tr '\\0' $i >f$i; done; mkfifo pipe; echo >closed; chmod 0 closed";
    run(client, &name, shell(make)).await?;
    let of = |max_files, max_file_bytes, max_total_bytes| CollectSpec {
        max_files,
        max_file_bytes,
        max_total_bytes,
        ..globs(["out/**"])
    };
    let all = collect(client, &name, of(0, 0, 0)).await?;
    assert_eq!(
        all.paths(),
        ["out/f1", "out/f2", "out/f3", "out/f4", "out/f5", "out/f6"]
    );
    assert_eq!(
        all.skipped(),
        BTreeMap::from([
            ("out/closed", Skipped::Permission),
            ("out/pipe", Skipped::FileType)
        ])
    );
    assert!(!all.summary.limits_hit, "{:?}", all.summary);
    assert_eq!(all.summary.bytes, 6000);

    let few = collect(client, &name, of(2, 0, 0)).await?;
    assert_eq!((few.summary.returned, few.summary.limits_hit), (2, true));
    assert_eq!(few.skipped().get("out/f6"), Some(&Skipped::MaxFiles));

    let cut = collect(client, &name, of(0, 600, 0)).await?;
    assert_eq!(cut.summary.truncated.len(), 6);
    assert!(cut.summary.limits_hit);
    let end = cut.files[0].end.clone().context("no end")?;
    assert_eq!(
        (end.sent_bytes, end.truncated, cut.files[0].file.size),
        (600, true, 1000)
    );
    assert_eq!(cut.files[0].data, vec![b'1'; 600]);

    let total = collect(client, &name, of(0, 0, 2500)).await?;
    assert!(
        total.summary.bytes <= 2500 && total.summary.limits_hit,
        "{:?}",
        total.summary
    );
    assert_eq!(total.skipped().get("out/f6"), Some(&Skipped::MaxTotalBytes));
    daemon.stop().await
}

#[tokio::test]
async fn a_collection_comes_as_an_archive_too() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    run(client, &name, shell("cd $OUTPUT_DIR; mkdir d; echo one >a; printf two >d/b; chmod 750 a; ln -s a l; printf x >$'bad\\xff'")).await?;
    for format in [CollectFormat::Tar, CollectFormat::TarGz] {
        let spec = CollectSpec {
            format: format.into(),
            ..globs(["out/**"])
        };
        let collection = collect(client, &name, spec).await?;
        let mut bytes = Vec::new();
        if format == CollectFormat::TarGz {
            flate2::read::GzDecoder::new(&collection.archive[..]).read_to_end(&mut bytes)?;
        } else {
            bytes = collection.archive.clone();
        }
        let mut archive = tar::Archive::new(&bytes[..]);
        let mut entries = BTreeMap::new();
        for entry in archive.entries()? {
            let mut entry = entry?;
            let mut data = Vec::new();
            entry.read_to_end(&mut data)?;
            entries.insert(entry.path_bytes().to_vec(), (entry.header().mode()?, data));
        }
        assert_eq!(
            entries.get(b"out/a".as_slice()),
            Some(&(0o750, b"one\n".to_vec()))
        );
        assert_eq!(
            entries
                .get(b"out/d/b".as_slice())
                .map(|(_, data)| data.as_slice()),
            Some(b"two".as_slice())
        );
        assert!(
            entries.contains_key(b"out/l".as_slice()),
            "{:?}",
            entries.keys()
        );
        assert!(entries.contains_key(b"out/bad\xff".as_slice()));
        assert_eq!(collection.summary.returned, 4, "{:?}", collection.summary);
    }
    daemon.stop().await
}

#[tokio::test]
async fn only_what_an_exec_changed_is_collected() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let commands = "cd $OUTPUT_DIR; echo old >old; echo old >both; sleep 0.05";
    run(client, &name, shell(commands)).await?;
    let commands = "cd $OUTPUT_DIR; echo new >new; echo new >both";
    let second = run(client, &name, shell(commands)).await?;
    let spec = CollectSpec {
        changed_since_exec: second.name.clone(),
        ..globs(["out/**"])
    };
    let collection = collect(client, &name, spec).await?;
    assert_eq!(collection.paths(), ["out/both", "out/new"]);
    assert_eq!(collection.bytes("out/both")?, b"new\n");
    daemon.stop().await
}

#[tokio::test]
async fn no_link_leads_out_of_the_workspace() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    // On the host, readable by everybody: whoever follows a link with the daemon's rights finds it.
    let host = tempfile::Builder::new()
        .prefix("canary")
        .tempdir_in("/tmp")?;
    let canary = host.path().join("canary");
    std::fs::write(&canary, "the host's secret")?;
    let secret = canary.display();
    let make = format!(
        "cd $OUTPUT_DIR; ln -s {secret} canary; ln -s {} dir; ln -s /etc/passwd passwd; ln -s ../../../../../../etc up; ln -s /proc/1/root proc; ln -s /run/skilld run; ln -s a.txt inside; echo a >a.txt",
        host.path().display()
    );
    run(client, &name, shell(&make)).await?;
    let collection = collect(client, &name, globs(["**"])).await?;
    for file in &collection.files {
        let text = String::from_utf8_lossy(&file.data);
        ensure!(
            !text.contains("secret") && !text.contains("root:"),
            "{file:?}"
        );
    }
    let target = |path: &str| {
        let found = collection.files.iter().find(|file| file.file.path == path);
        found.map(|file| file.file.link_target.clone())
    };
    assert_eq!(target("out/canary"), Some(canary.display().to_string()));
    assert_eq!(target("out/inside"), Some("a.txt".to_owned()));
    assert_eq!(target("out/up"), Some("../../../../../../etc".to_owned()));
    for path in [
        "out/canary",
        "out/dir/canary",
        "out/passwd",
        "out/up/passwd",
        "out/proc/etc/passwd",
        "out/run/skilld-guest",
    ] {
        expect_refusal(read(client, &name, path).await, Reason::PathEscapes)
            .with_context(|| path.to_owned())?;
    }
    // Nor does anything get written through one.
    for path in ["out/dir/new", "out/up/new", "out/run/new"] {
        expect_refusal(put(client, &name, path, "x").await, Reason::PathEscapes)
            .with_context(|| path.to_owned())?;
    }
    // One that is itself the target is replaced, not followed.
    put(client, &name, "out/canary", "mine").await?;
    assert_eq!(std::fs::read_to_string(&canary)?, "the host's secret");
    assert_eq!(std::fs::read_dir(host.path())?.count(), 1);
    assert_eq!(read(client, &name, "out/canary").await?, b"mine");
    daemon.stop().await
}

#[tokio::test]
async fn skills_cannot_be_written() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    client.stage_skills(&name, &["text-stats"]).await?;
    for path in [
        "skills/x",
        "skills/text-stats/SKILL.md",
        "$SKILLS_DIR/text-stats/new",
        "work/../skills/x",
    ] {
        let failure = expect_refusal(put(client, &name, path, "x").await, Reason::ReadOnly)?;
        assert!(failure.metadata.contains_key("path"), "{failure:?}");
    }
    let target = UploadTarget::tar(&name, "");
    let archive = tar(&[
        ("work/a", b"a", 0o644),
        ("skills/text-stats/new", b"x", 0o644),
    ])?;
    let answer = stage(client, target, archive).await;
    expect_refusal(answer, Reason::ReadOnly)?;
    let commands = "ls -A $WORK_DIR $SKILLS_DIR/text-stats";
    let there = run(client, &name, shell(commands)).await?;
    assert!(
        !there.text().contains("new") && !there.text().lines().any(|line| line == "a"),
        "{there:?}"
    );
    daemon.stop().await
}

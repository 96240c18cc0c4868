//! Collections: matches, their order, limits and formats.

use std::fs;
use std::os::unix::fs::symlink;

use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::{self, SkipReason};
use tonic::Status;

use crate::files::sha256;
use crate::support::{Guest, configuration, duration, reason};

#[derive(Debug, Default)]
pub(crate) struct CollectedFiles {
    pub(crate) files: Vec<(v1::CollectedFile, Vec<u8>, Option<v1::FileEnd>)>,
    pub(crate) archive: Vec<u8>,
    pub(crate) summary: v1::CollectSummary,
}

impl CollectedFiles {
    pub(crate) fn paths(&self) -> Vec<&str> {
        self.files
            .iter()
            .map(|(file, ..)| file.path.as_str())
            .collect()
    }
}

pub(crate) async fn collect(
    guest: &Guest,
    spec: v1::CollectSpec,
) -> Result<CollectedFiles, Status> {
    let request = wire::CollectRequest { spec: Some(spec) };
    let mut stream = guest.client.clone().collect(request).await?.into_inner();
    let mut collected = CollectedFiles::default();
    let mut summaries = 0;
    while let Some(message) = stream.message().await? {
        assert_eq!(summaries, 0, "the summary is last");
        match message.payload.expect("a payload") {
            Payload::File(file) => collected.files.push((file, Vec::new(), None)),
            Payload::Data(data) => {
                assert!(data.len() <= 256 * 1024);
                match collected.files.last_mut() {
                    Some((_, bytes, _)) => bytes.extend_from_slice(&data),
                    None => collected.archive.extend_from_slice(&data),
                }
            }
            Payload::FileEnd(end) => {
                let (_, bytes, slot) = collected.files.last_mut().expect("a file");
                assert_eq!(end.sha256, sha256(bytes));
                assert_eq!(usize::try_from(end.sent_bytes), Ok(bytes.len()));
                assert!(slot.replace(end).is_none());
            }
            Payload::Summary(summary) => {
                summaries += 1;
                collected.summary = summary;
            }
        }
    }
    assert_eq!(summaries, 1);
    Ok(collected)
}

pub(crate) fn spec(globs: &[&str]) -> v1::CollectSpec {
    v1::CollectSpec {
        globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
        ..Default::default()
    }
}

#[tokio::test]
async fn files_come_whole_in_path_order_with_what_they_are() {
    let guest = Guest::start().await;
    let ws = guest.workspace();
    fs::create_dir_all(ws.join("out/sub")).expect("made");
    fs::create_dir_all(ws.join("skills/s")).expect("made");
    fs::write(ws.join("skills/s/SKILL.md"), "skill").expect("made");
    fs::write(ws.join("out/report.md"), "# hi\n").expect("made");
    fs::write(ws.join("out/.hidden"), "h").expect("made");
    fs::write(ws.join("out/sub/p.png"), b"\x89PNG\r\n\x1a\n\0\0").expect("made");
    let big: Vec<u8> = (0..=250).cycle().take(700_000).collect();
    fs::write(ws.join("out/sub/big.bin"), &big).expect("made");
    symlink("/etc/passwd", ws.join("out/link")).expect("made");
    nix::unistd::mkfifo(&ws.join("out/fifo"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    let got = collect(&guest, spec(&["out/**"])).await.expect("collected");
    let expected = [
        "out/link",
        "out/report.md",
        "out/sub/big.bin",
        "out/sub/p.png",
        "out/.hidden",
    ];
    assert_eq!(got.paths(), expected);
    assert_eq!(got.files[0].0.link_target, "/etc/passwd");
    assert!(got.files[0].1.is_empty());
    assert_eq!(got.files[1].0.mime_type, "text/markdown");
    assert!(got.files[1].0.is_text);
    assert_eq!(got.files[2].1, big);
    assert_eq!(got.files[3].0.mime_type, "image/png");
    assert!(!got.files[3].0.is_text);
    let summary = &got.summary;
    assert_eq!(
        (
            summary.matched_count,
            summary.returned_count,
            summary.sent_bytes
        ),
        (6, 5, 700_016)
    );
    assert_eq!(summary.skipped_files[0].path, "out/fifo");
    assert_eq!(summary.skipped_files[0].reason(), SkipReason::FileType);
    assert!(!summary.limits_hit);

    let everything = collect(&guest, spec(&["**/*.md"]))
        .await
        .expect("collected");
    assert_eq!(everything.paths(), ["out/report.md"]);
    let skills = collect(&guest, spec(&["skills/**"]))
        .await
        .expect("collected");
    assert_eq!(skills.paths(), ["skills/s/SKILL.md"]);
    let none = collect(&guest, spec(&["out/*.nothing"]))
        .await
        .expect("collected");
    let nothing = v1::CollectSummary {
        unmatched_globs: vec!["out/*.nothing".to_owned()],
        ..Default::default()
    };
    assert_eq!(none.summary, nothing);
}

#[tokio::test]
async fn limits_cut_the_answer_and_say_so() {
    let guest = Guest::start().await;
    for name in ["a", "b", "c", "d"] {
        fs::write(guest.workspace().join("out").join(name), name.repeat(1000)).expect("made");
    }
    let mut few = spec(&["out/*"]);
    few.max_files = 2;
    let got = collect(&guest, few).await.expect("collected");
    assert_eq!(got.paths(), ["out/a", "out/b"]);
    assert_eq!(
        (got.summary.matched_count, got.summary.returned_count),
        (4, 2)
    );
    assert!(got.summary.limits_hit);
    assert_eq!(got.summary.skipped_files[1].reason(), SkipReason::MaxFiles);

    let mut short = spec(&["out/*"]);
    short.max_file_bytes = 10;
    let got = collect(&guest, short).await.expect("collected");
    assert!(got.files.iter().all(|(file, bytes, end)| {
        file.size_bytes == 1000
            && bytes.len() == 10
            && end.as_ref().is_some_and(|end| end.truncated)
    }));
    assert_eq!(
        got.summary.truncated_paths,
        ["out/a", "out/b", "out/c", "out/d"]
    );

    let mut total = spec(&["out/*"]);
    total.max_total_bytes = 2500;
    let got = collect(&guest, total).await.expect("collected");
    assert_eq!(got.paths(), ["out/a", "out/b"]);
    assert_eq!(
        got.summary.skipped_files[0].reason(),
        SkipReason::MaxTotalBytes
    );

    for globs in [&["/etc/*"][..], &["../*"], &[]] {
        let refused = collect(&guest, spec(globs)).await.expect_err("bad");
        assert!(
            ["INVALID_REQUEST", "PATH_ESCAPES"].contains(&&*reason(&refused)),
            "{globs:?}"
        );
    }
}

#[tokio::test]
async fn a_limit_cuts_hidden_files_and_caches_first() {
    let guest = Guest::start().await;
    let script = "cd work; mkdir -p .cache/app web/__pycache__; touch .cache/app/{000..149} .env a.txt report.csv \
                  web/app.py web/__pycache__/app.pyc";
    guest.sh("make", script).await;
    let mut few = spec(&["work/**", "work/.env"]);
    few.max_files = 6;
    let got = collect(&guest, few).await.expect("collected");
    let expected = [
        "work/.env",
        "work/a.txt",
        "work/report.csv",
        "work/web/app.py",
        "work/.cache/app/000",
        "work/.cache/app/001",
    ];
    assert_eq!(got.paths(), expected);
    let summary = got.summary;
    assert_eq!((summary.matched_count, summary.returned_count), (155, 6));
    assert!(summary.limits_hit);
    let skipped: Vec<&str> = summary
        .skipped_files
        .iter()
        .map(|it| it.path.as_str())
        .collect();
    assert_eq!(skipped.len(), 149);
    assert_eq!(skipped.last(), Some(&"work/web/__pycache__/app.pyc"));
    assert_eq!(summary.skipped_files[0].reason(), SkipReason::MaxFiles);

    // Also by their size.
    fs::write(guest.workspace().join("work/.big"), vec![0; 900]).expect("made");
    fs::write(guest.workspace().join("work/result"), vec![0; 200]).expect("made");
    let mut small = spec(&["work/*"]);
    small.max_total_bytes = 1000;
    let got = collect(&guest, small).await.expect("collected");
    assert_eq!(got.paths().first(), Some(&"work/a.txt"));
    assert!(got.paths().contains(&"work/result"), "{:?}", got.paths());
    assert_eq!(got.summary.skipped_files[0].path, "work/.big");
}

#[tokio::test]
async fn directories_come_with_modes_and_times_if_they_are_wanted() {
    let guest = Guest::start().await;
    let script = "cd out; mkdir -p site/css site/uploads; echo x > site/css/a.css; chmod 750 site/uploads; \
                  touch -d @1577836800 site/uploads";
    guest.sh("make", script).await;
    let wanted = v1::CollectSpec {
        include_directories: true,
        ..spec(&["out/site"])
    };
    let got = collect(&guest, wanted.clone()).await.expect("collected");
    let expected = [
        "out/site",
        "out/site/css",
        "out/site/css/a.css",
        "out/site/uploads",
    ];
    assert_eq!(got.paths(), expected);
    let (uploads, bytes, end) = &got.files[3];
    assert!(uploads.is_directory && bytes.is_empty() && end.is_none());
    let mtime = uploads.modify_time.map(|mtime| mtime.seconds);
    assert_eq!((uploads.mode, mtime), (0o750, Some(1_577_836_800)));
    assert_eq!(
        (uploads.size_bytes, &*uploads.mime_type),
        (0, "inode/directory")
    );
    assert!(!got.files[2].0.is_directory);
    assert_eq!(
        (got.summary.matched_count, got.summary.returned_count),
        (4, 4)
    );

    let mut archive = wanted;
    archive.format = v1::CollectFormat::Tar.into();
    let got = collect(&guest, archive).await.expect("collected");
    let mut unpacked = tar::Archive::new(got.archive.as_slice());
    let described = unpacked.entries().expect("entries").map(|entry| {
        let entry = entry.expect("an entry");
        let header = entry.header();
        let path = entry.path().expect("a path").display().to_string();
        let (mode, mtime) = (
            header.mode().expect("a mode"),
            header.mtime().expect("a time"),
        );
        (path, header.entry_type().is_dir(), mode, mtime)
    });
    let entries: Vec<_> = described.collect();
    let paths: Vec<&str> = entries.iter().map(|(path, ..)| path.as_str()).collect();
    assert_eq!(paths, expected);
    assert_eq!(
        (entries[3].1, entries[3].2, entries[3].3),
        (true, 0o750, 1_577_836_800)
    );

    // Without `include_directories`, a glob does not match an empty directory.
    let got = collect(&guest, spec(&["out/site/uploads"]))
        .await
        .expect("collected");
    assert_eq!(got.summary.unmatched_globs, ["out/site/uploads"]);
}

#[tokio::test]
async fn archives_hold_the_same_files() {
    let guest = Guest::start().await;
    let ws = guest.workspace();
    let long = format!("out/{}/{}", "l".repeat(90), "m".repeat(90));
    fs::create_dir_all(ws.join(&long)).expect("made");
    fs::write(ws.join(&long).join("f"), "deep").expect("made");
    fs::write(ws.join("out/a"), vec![7u8; 600_001]).expect("made");
    fs::write(ws.join("out/empty"), "").expect("made");
    symlink("a", ws.join("out/z")).expect("made");
    for (format, flag) in [
        (v1::CollectFormat::Tar, "-x"),
        (v1::CollectFormat::TarGz, "-xz"),
    ] {
        let mut wanted = spec(&["out/**"]);
        wanted.format = format.into();
        let got = collect(&guest, wanted).await.expect("collected");
        assert_eq!(
            (got.summary.matched_count, got.summary.returned_count),
            (4, 4)
        );
        let place = tempfile::tempdir().expect("a directory");
        fs::write(place.path().join("t"), &got.archive).expect("written");
        let tar = std::process::Command::new("tar")
            .args([flag, "-f", "t"])
            .current_dir(&place)
            .status();
        assert!(tar.expect("tar").success());
        let same = std::process::Command::new("diff")
            .args(["-r", "--no-dereference"])
            .arg(ws.join("out"))
            .arg(place.path().join("out"))
            .status();
        assert!(same.expect("diff").success());
    }
}

#[tokio::test]
async fn changed_since_exec_leaves_out_what_was_there() {
    // The grace suffices for the child that outlives its leader, however busy the machine is.
    let guest = Guest::configured(wire::ConfigureRequest {
        leak_grace: duration(600_000),
        ..configuration()
    })
    .await;
    let before = "echo old > out/old; echo same > out/same; mkdir images; echo old > images/old; \
                  sleep 0.02";
    guest.sh("before", before).await;
    let script = "echo new > out/new; echo more >> out/same; touch -d 1999-01-01 out/back; \
                  echo new > images/new; echo new > top; echo new > .hidden; \
                  echo new > work/new; mkdir -p runs/exec; echo new > runs/exec/new; \
                  (sleep 0.1; echo late >> out/same; echo late > out/late) & exit 3";
    guest.sh("exec", script).await;
    let mut wanted = spec(&["out/*"]);
    wanted.changed_since_exec = "workspaces/test/execs/exec".to_owned();
    let got = collect(&guest, wanted.clone()).await.expect("collected");
    // What its children wrote within the leak grace counts, too.
    assert_eq!(got.paths(), ["out/back", "out/late", "out/new", "out/same"]);
    assert_eq!(got.summary.matched_count, 4);
    // Files that are in none of the directories that globs collect.
    let outside = ["/workspace/images/new", "/workspace/top"];
    assert_eq!(got.summary.outside_paths, outside);
    assert!(!got.summary.outside_paths_truncated);
    // What a later one made or changed is not its own.
    let later = "sleep 0.02; echo x > out/later; echo x >> out/new; echo x > top2";
    guest.sh("later", later).await;
    wanted.until_exec_end = true;
    let got = collect(&guest, wanted.clone()).await.expect("collected");
    assert_eq!(got.paths(), ["out/back", "out/late", "out/same"]);
    assert_eq!(got.summary.outside_paths, outside);
    wanted.until_exec_end = false;
    let got = collect(&guest, wanted.clone()).await.expect("collected");
    assert_eq!(got.summary.matched_count, 5);
    let outside = ["/workspace/images/new", "/workspace/top", "/workspace/top2"];
    assert_eq!(got.summary.outside_paths, outside);
    // Without an exec there is no time to compare with.
    let all = collect(&guest, spec(&["out/*"])).await.expect("collected");
    assert_eq!(all.summary.outside_paths, [""; 0]);
    wanted.changed_since_exec = "workspaces/test/execs/none".to_owned();
    let refused = collect(&guest, wanted).await.expect_err("unknown");
    assert_eq!(reason(&refused), "EXEC_NOT_FOUND");
}

#[tokio::test]
async fn unchanged_files_are_counted_and_literal_globs_name_them() {
    let guest = Guest::start().await;
    guest
        .sh(
            "before",
            "mkdir out/d; echo old > out/d/old; echo old > out/old; sleep 0.02",
        )
        .await;
    guest.sh("exec", "echo new > out/d/new").await;
    let mut wanted = spec(&["out/old", "out/d", "out/none"]);
    wanted.changed_since_exec = "workspaces/test/execs/exec".to_owned();
    let got = collect(&guest, wanted).await.expect("collected");
    assert_eq!(
        got.paths(),
        ["out/d/new"],
        "a directory means what is in it"
    );
    assert_eq!(
        (got.summary.matched_count, got.summary.unchanged_count),
        (1, 2)
    );
    let skipped = v1::SkippedFile {
        path: "out/old".to_owned(),
        reason: SkipReason::Unchanged.into(),
    };
    assert_eq!(got.summary.skipped_files, [skipped]);
    assert_eq!(got.summary.unmatched_globs, ["out/none"]);
    assert!(!got.summary.limits_hit);
    // Of a pattern that matches old files only the first one is named, beside others that match new ones.
    let mut patterns = spec(&["out/ol*", "out/**/o?d", "out/d/*"]);
    patterns.changed_since_exec = "workspaces/test/execs/exec".to_owned();
    let got = collect(&guest, patterns).await.expect("collected");
    assert_eq!(got.paths(), ["out/d/new"]);
    let skipped: Vec<_> = got
        .summary
        .skipped_files
        .iter()
        .map(|file| &*file.path)
        .collect();
    assert_eq!(skipped, ["out/d/old", "out/old"]);
    let all = collect(&guest, spec(&["out"])).await.expect("collected");
    assert_eq!(all.paths(), ["out/d/new", "out/d/old", "out/old"]);
    assert_eq!(all.summary.unchanged_count, 0, "no exec was named");
}

#[tokio::test]
async fn a_tree_that_is_too_deep_is_skipped_and_said() {
    let guest = Guest::start().await;
    let script = "cd out; for i in $(seq 140); do mkdir d; cd d; echo x > f; done";
    guest.sh("deep", script).await;
    let mut wanted = spec(&["out/**"]);
    wanted.max_files = 1000;
    let got = collect(&guest, wanted).await.expect("collected");
    assert!(got.summary.limits_hit);
    assert_eq!(got.summary.skipped_files.len(), 1);
    assert_eq!(got.summary.skipped_files[0].reason(), SkipReason::Depth);
    assert!((120..140).contains(&got.files.len()), "{}", got.files.len());
}

#[tokio::test]
async fn ten_thousand_small_files_come_complete() {
    let guest = Guest::start().await;
    let script = "mkdir out/many; cd out/many; for d in $(seq 100); do mkdir $d; done; \
                  seq 10000 | awk '{print > ($1 % 100 + 1) \"/f\" $1}'";
    let made = guest.sh("make", script).await;
    assert!(
        made.err.is_empty(),
        "{}",
        String::from_utf8_lossy(&made.err)
    );
    let mut wanted = spec(&["out/**"]);
    wanted.max_files = 20_000;
    let got = collect(&guest, wanted).await.expect("collected");
    assert_eq!(got.summary.returned_count, 10_000);
    assert!(got.paths().is_sorted());
}

/// The stream's windows hold a few MiB; the rest of the file is read only after these were taken, and by then it has
/// become shorter.
#[tokio::test]
async fn a_file_that_shrinks_while_it_is_read_is_said_to_be_cut() {
    const SIZE: u64 = 96 * 1024 * 1024;
    let guest = Guest::start().await;
    let path = guest.workspace().join("out/big");
    for format in [v1::CollectFormat::Files, v1::CollectFormat::Tar] {
        let file = fs::File::create(&path).expect("made");
        file.set_len(SIZE).expect("made");
        let mut spec = spec(&["out/**"]);
        spec.max_file_bytes = 1 << 30;
        spec.max_total_bytes = 1 << 30;
        spec.format = format.into();
        let request = wire::CollectRequest { spec: Some(spec) };
        let mut client = guest.client.clone();
        let mut stream = client.collect(request).await.expect("begins").into_inner();
        let mut sent = 0;
        let mut end = None;
        let mut summary = None;
        while let Some(message) = stream.message().await.expect("a message") {
            match message.payload.expect("a payload") {
                Payload::Data(data) => {
                    sent += data.len() as u64;
                    file.set_len(1).expect("shrinks");
                }
                Payload::File(_) => {}
                Payload::FileEnd(found) => end = Some(found),
                Payload::Summary(found) => summary = Some(found),
            }
        }
        let summary = summary.expect("a summary");
        assert_eq!(summary.truncated_paths, ["out/big"], "{format:?}");
        assert!(!summary.limits_hit);
        if format == v1::CollectFormat::Files {
            assert!(sent < SIZE, "{sent}");
            assert!(end.expect("an end").truncated);
        } else {
            assert!(sent > SIZE, "an archive keeps its promise: {sent}");
        }
    }
}

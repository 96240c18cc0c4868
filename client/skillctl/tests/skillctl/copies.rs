//! `skillctl cp` and the other ways in and out: what a copy keeps, what it leaves out, and what it says of that.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::process::Output;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use skilld_client::v1::SkipReason;
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::{
    CollectOutputsResponse, CollectSummary, SkippedFile, StageFilesHeader, StageFilesRequest,
    stage_files_request,
};
use skilld_testing::Fake;
use skilld_testing::collection_messages::{directory, file, link, message, names, summary};

use crate::commands::{fake, skillctl};

/// A second in 2020.
const OLD: i64 = 1_577_836_800;

async fn run(fake: &Fake, words: &[&str]) -> Output {
    skillctl(fake, words).output().await.expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("utf-8")
}

/// Mode and modification time of a local file.
fn attributes(fake: &Fake, name: &str) -> (u32, i64) {
    let metadata = std::fs::metadata(fake.path(name)).expect("is there");
    (metadata.mode() & 0o777, metadata.mtime())
}

/// Returns the header of the last upload.
fn last_header(fake: &Fake) -> StageFilesHeader {
    let uploads = fake.calls.streams::<StageFilesRequest>("StageFiles");
    let last = uploads.into_iter().next_back().expect("came");
    let first = last.into_iter().next().expect("a message");
    let Some(stage_files_request::Payload::Header(header)) = first.payload else {
        panic!("an upload without a header");
    };
    header
}

#[tokio::test]
async fn a_copied_file_keeps_mode_and_time_in_both_directions() {
    let fake = fake();
    {
        let mut state = fake.state.lock();
        for (path, mode) in [("out/m.sh", 0o755), ("out/secret", 0o600)] {
            state.staged.insert(path.into(), b"x".to_vec());
            state.modes.insert(path.into(), mode);
            state.modified.insert(path.into(), OLD);
        }
    }
    for (name, mode) in [("m.sh", 0o755), ("secret", 0o600)] {
        let from = format!("w:out/{name}");
        assert!(run(&fake, &["cp", &from, name]).await.status.success());
        let (found, time) = attributes(&fake, name);
        // The umask of whoever runs the test takes nothing from the owner.
        assert_eq!((found & 0o700, time), (mode & 0o700, OLD), "{name}");
        assert_eq!(found & !mode, 0, "{name}");
    }
    for words in [["cp", "m.sh", "w:work/m.sh"], ["stage", "w", "m.sh"]] {
        assert!(run(&fake, &words).await.status.success());
        let header = last_header(&fake);
        let seconds = header.modify_time.map(|time| time.seconds);
        let mode = header.mode.expect("is sent");
        assert_eq!((mode & 0o700, seconds), (0o700, Some(OLD)));
    }
}

#[tokio::test]
async fn an_empty_directory_is_copied_without_an_error() {
    let fake = fake();
    fake.state
        .lock()
        .staged
        .insert("out/only/x".into(), Vec::new());
    fake.answer_collections([directory("out/only", 0o755, OLD), vec![summary()]].concat());
    let output = run(&fake, &["cp", "w:out/only", "only"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(names(&fake.path("only")).is_empty());
}

#[tokio::test]
async fn a_second_copy_of_a_directory_is_merged_with_the_first() {
    let fake = fake();
    std::fs::create_dir(fake.path("t")).expect("makes");
    fake.state
        .lock()
        .staged
        .insert("out/r/a".into(), b"1".to_vec());
    for (text, expected) in [(b"1", "1"), (b"2", "2")] {
        fake.answer_collections(
            [
                directory("out/r", 0o755, OLD),
                file("out/r/a", text),
                vec![summary()],
            ]
            .concat(),
        );
        assert!(run(&fake, &["cp", "w:out/r", "t/"]).await.status.success());
        let copied = std::fs::read_to_string(fake.path("t/r/a")).expect("reads");
        assert_eq!(copied, expected);
        std::fs::write(fake.path("t/r/mine"), "mine").expect("writes");
    }
    assert_eq!(names(&fake.path("t/r")), ["a", "mine"]);
    assert_eq!(names(&fake.path("t")), ["r"], "nothing else is left");
    std::fs::write(fake.path("file"), "mine").expect("writes");
    let output = run(&fake, &["cp", "w:out/r", "file"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("exists and is not a directory"));
}

#[tokio::test]
async fn a_local_file_in_a_directorys_place_does_not_end_the_copy() {
    let fake = fake();
    std::fs::create_dir(fake.path("r")).expect("makes");
    std::fs::write(fake.path("r/css"), "mine").expect("writes");
    fake.state
        .lock()
        .staged
        .insert("out/r/a".into(), b"1".to_vec());
    fake.answer_collections(
        [
            directory("out/r", 0o755, OLD),
            directory("out/r/css", 0o755, OLD),
            file("out/r/css/a.css", b"x"),
            file("out/r/z", b"1"),
            vec![summary()],
        ]
        .concat(),
    );
    let output = run(&fake, &["cp", "w:out/r", "."]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    for path in ["out/r/css", "out/r/css/a.css"] {
        let note = format!("skillctl: left out {path}: it needs ");
        assert_eq!(said.matches(&note).count(), 1, "{said}");
    }
    assert!(!said.contains("error: "), "{said}");
    assert_eq!(names(&fake.path("r")), ["css", "z"]);
}

#[tokio::test]
async fn a_link_to_a_directory_is_not_copied_in_its_place() {
    let fake = fake();
    fake.state
        .lock()
        .staged
        .insert("out/now/a".into(), b"1".to_vec());
    fake.answer_collections([link("out/now", "v2"), vec![summary()]].concat());
    let output = run(&fake, &["cp", "w:out/now", "now"]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("left out out/now: it is a link to v2: copy that"),
        "{said}"
    );
    assert!(!fake.path("now").exists());
}

#[tokio::test]
async fn nothing_is_made_for_what_is_no_directory_or_gone() {
    let fake = fake();
    fake.state
        .lock()
        .staged
        .insert("out/pipe/x".into(), b"1".to_vec());
    let summary = |matched, skipped: &[SkipReason]| {
        let skipped = skipped
            .iter()
            .map(|reason| SkippedFile {
                path: "out/pipe".into(),
                reason: (*reason).into(),
            })
            .collect();
        vec![message(Payload::Summary(CollectSummary {
            matched_count: matched,
            skipped_files: skipped,
            ..Default::default()
        }))]
    };
    for (collected, note) in [
        (summary(1, &[SkipReason::FileType]), "it is a FIFO"),
        (summary(0, &[]), "no file matches"),
    ] {
        fake.answer_collections(collected);
        let output = run(&fake, &["cp", "w:out/pipe", "pipe"]).await;
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(
            said.contains(note) && said.contains("error: out/pipe was not copied"),
            "{said}"
        );
        assert!(!fake.path("pipe").exists());
    }
}

#[tokio::test]
async fn a_directory_has_the_path_that_the_daemon_resolved() {
    let fake = fake();
    fake.state
        .lock()
        .staged
        .insert("out/r/a".into(), b"1".to_vec());
    fake.answer_collections([file("out/r/a", b"1"), vec![summary()]].concat());
    let output = run(&fake, &["cp", "w:$OUTPUT_DIR/r", "r"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(std::fs::read(fake.path("r/a")).expect("reads"), b"1");
    assert_eq!(fake.collect_spec().globs, ["out/r"]);
}

#[tokio::test]
async fn a_special_file_is_not_replaced_by_a_copy() {
    let fake = fake();
    fake.state
        .lock()
        .staged
        .insert("out/a".into(), b"1".to_vec());
    let pipe = fake.path("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).expect("makes");
    for words in [
        ["cp", "w:out/a", "pipe"].as_slice(),
        &["collect", "w", "out/a", "--tar", "pipe"],
    ] {
        let output = run(&fake, words).await;
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let said = text(&output.stderr);
        assert!(said.contains("pipe is no file: write to -"), "{said}");
        let found = std::fs::symlink_metadata(&pipe).expect("is there");
        assert!(found.file_type().is_fifo());
    }
}

#[tokio::test]
async fn stdin_into_a_directory_is_told_to_name_a_file() {
    let fake = fake();
    let output = run(&fake, &["cp", "-", "w:work/"]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("write w:work/NAME"), "{said}");
}

#[tokio::test]
async fn one_link_or_socket_refuses_no_upload() {
    let fake = fake();
    let tree = fake.path("proj");
    std::fs::create_dir_all(tree.join("bin")).expect("makes");
    std::fs::write(tree.join("a.py"), "1").expect("writes");
    symlink("/usr/bin/python3", tree.join("bin/python3")).expect("links");
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("socket")).expect("binds");
    fake.state.lock().stage_skips = vec![SkippedFile {
        path: "work/proj/odd".into(),
        reason: SkipReason::LinkTarget.into(),
    }];
    for words in [
        vec!["cp", "proj", "w:work/proj"],
        vec!["stage", "w", "proj=work/proj"],
        vec!["run", "ok", "--input", "proj=work/proj", "hello"],
    ] {
        let output = run(&fake, &words).await;
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        let said = text(&output.stderr);
        for note in [
            "skillctl: left out work/proj/socket: it is a FIFO, a socket or a device\n",
            "skillctl: left out work/proj/odd: it is a link without a usable target\n",
        ] {
            assert_eq!(said.matches(note).count(), 1, "{words:?}: {said}");
        }
    }
    let output = run(&fake, &["-o", "json", "-q", "cp", "proj", "w:work/proj"]).await;
    let printed: Value = serde_json::from_slice(&output.stdout).expect("json");
    assert_eq!(printed["skipped"], json!(2));
}

#[tokio::test]
async fn an_unreadable_local_file_fails_the_copy_of_the_others() {
    let fake = fake();
    let tree = fake.path("proj");
    std::fs::create_dir(&tree).expect("makes");
    std::fs::write(tree.join("a.py"), "1").expect("writes");
    let secret = tree.join("secret");
    std::fs::write(&secret, "1").expect("writes");
    let mode = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(&secret, mode).expect("changes");
    if std::fs::read(&secret).is_ok() {
        // The superuser reads every file, so the daemon's answer has it here.
        fake.state.lock().stage_skips = vec![SkippedFile {
            path: "work/proj/secret".into(),
            reason: SkipReason::Permission.into(),
        }];
    }
    std::fs::write(fake.path("last"), "1").expect("writes");
    for words in [
        ["cp", "-q", "proj", "w:work/proj"].as_slice(),
        &["stage", "-q", "w", "proj=work/proj", "last=work/last"],
    ] {
        let output = run(&fake, words).await;
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert_eq!(
            text(&output.stderr),
            "error: the copy lacks work/proj/secret: the local file cannot be read\n"
        );
    }
    let state = fake.state.lock();
    assert!(state.staged.contains_key("work/proj"));
    assert!(state.staged.contains_key("work/last"));
}

#[tokio::test]
async fn a_file_copied_onto_a_directory_is_told_how_to_get_into_it() {
    let fake = fake();
    std::fs::write(fake.path("a.csv"), "x").expect("writes");
    let wrong = skilld_testing::refusal(tonic::Code::FailedPrecondition, "WRONG_FILE_TYPE", &[]);
    fake.calls.refuse("StageFiles", [wrong]);
    let output = run(&fake, &["cp", "a.csv", "w:work"]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("w:work/ copies into a directory"), "{said}");
}

#[tokio::test]
async fn a_glob_without_a_match_is_named() {
    let fake = fake();
    let unmatched = |matched| -> Vec<CollectOutputsResponse> {
        vec![message(Payload::Summary(CollectSummary {
            matched_count: matched,
            unmatched_globs: vec!["work/*.log".into()],
            ..Default::default()
        }))]
    };
    let note = "skillctl: no file matches work/*.log\n";
    fake.answer_collections([file("out/r", b"x"), unmatched(1)].concat());
    let output = run(
        &fake,
        &["collect", "w", "out/r", "work/*.log", "--to", "to"],
    )
    .await;
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(0), note)
    );
    fake.answer_collections(unmatched(0));
    let output = run(&fake, &["collect", "w", "work/*.log", "--to", "to"]).await;
    let advice = "skillctl: `skillctl ls w out -R` lists the files in out/\n";
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(1), format!("{note}{advice}").as_str())
    );
    // The workspace of a run is gone.
    let output = run(&fake, &["run", "ok", "--collect", "work/*.log", "hello"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(!text(&output.stderr).contains("skillctl ls"));
}

#[tokio::test]
async fn read_only_files_and_directories_are_copied_out_by_any_user() {
    let fake = fake();
    {
        let mut state = fake.state.lock();
        state.staged.insert("out/fixed".into(), b"x".to_vec());
        state.modes.insert("out/fixed".into(), 0o444);
    }
    assert!(
        run(&fake, &["cp", "w:out/fixed", "fixed"])
            .await
            .status
            .success()
    );
    let copied = std::fs::metadata(fake.path("fixed")).expect("is there");
    assert_eq!(copied.permissions().mode() & 0o700, 0o400);
    assert_eq!(std::fs::read(fake.path("fixed")).expect("reads"), b"x");
    fake.state
        .lock()
        .staged
        .insert("out/r/a".into(), b"1".to_vec());
    fake.answer_collections(
        [
            directory("out/r", 0o500, OLD),
            file("out/r/a", b"1"),
            vec![summary()],
        ]
        .concat(),
    );
    assert!(run(&fake, &["cp", "w:out/r", "r"]).await.status.success());
    assert_eq!(attributes(&fake, "r"), (0o500, OLD));
    // The test's own directory is removed at the end.
    let writable = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(fake.path("r"), writable).expect("changes");
}

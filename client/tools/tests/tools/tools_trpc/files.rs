//! Files by reference: read, saved, brought in.

use serde_json::{Value, json};
use skilld_client::v1::input_spec::Content as InputContent;
use skilld_client::v1::{ArtifactScope, StageInputsRequest, StageMode};
use skilld_tools::prompt::{Upload, UploadContent as Content};
use skilld_tools::{StagedUploads, ToolOptions};

use super::{Talk, run};
use crate::conversation::{check_fields, results};

async fn with_files() -> Talk {
    let talk = Talk::new(ToolOptions::default()).await;
    {
        let mut state = talk.fake.state.lock();
        let long = "0123456789abcde\n".repeat(20_000);
        for (path, bytes) in [
            ("out/a.txt", b"one\ntwo\nthree".to_vec()),
            ("out/long.txt", long.into_bytes()),
            ("out/latin.txt", b"caf\xe9".to_vec()),
        ] {
            state.staged.insert(path.to_owned(), bytes);
        }
        let name = "artifacts/out/a@b.txt".to_owned();
        state.artifacts.insert(name, (4, b"kept\n".to_vec()));
    }
    talk
}

#[tokio::test]
async fn text_is_read_by_every_reference_and_line_range() {
    let mut talk = with_files().await;
    let cases = r#"
        {"file_name": "workspace://out/a.txt"} => ["one\ntwo\nthree", 1, 3, null]
        {"path": "out/a.txt"} => ["one\ntwo\nthree", 1, 3, null]
        {"fileName": "out/a.txt", "startLine": 2} => ["two\nthree", 2, 3, null]
        {"file_name": "out/a.txt", "num_lines": 1} => ["one\n", 1, 1, 2]
        {"file_name": "out/a.txt", "start_line": 2, "num_lines": 1} => ["two\n", 2, 2, 3]
        {"file_name": "out/a.txt", "start_line": 9} => ["", 0, 0, null]
        {"file_name": "artifact://out/a@b.txt"} => ["kept\n", 1, 1, null]
        {"file_name": "artifact://out/a@b.txt@4"} => ["kept\n", 1, 1, null]
        {"file_name": "skill://demo/USAGE.md", "num_lines": 2} => ["one\ntwo\n", 1, 2, 3]
    "#;
    for (line, arguments, wanted) in results(cases) {
        let read = talk.call("read_file", arguments).await;
        let fields = ["content", "start_line", "end_line", "next_start_line"];
        assert_eq!(json!(fields.map(|field| &read[field])), wanted, "{line}");
    }
}

#[tokio::test]
async fn text_in_other_encodings_is_decoded_and_its_encoding_named() {
    let mut talk = with_files().await;
    let utf16 = |text: &str| -> Vec<u8> {
        let units = ["\u{feff}", text].into_iter().flat_map(str::encode_utf16);
        units.flat_map(u16::to_le_bytes).collect()
    };
    {
        let mut state = talk.fake.state.lock();
        // "城市,数量" in GBK.
        let table = b"\xb3\xc7\xca\xd0,\xca\xfd\xc1\xbf\n".repeat(50);
        let late = [b"plain\n".repeat(2_000), b"caf\xe9 cr\xe8me\n".to_vec()].concat();
        for (path, bytes) in [
            ("out/u.txt", utf16("a\tb\nc\n")),
            ("out/g.csv", table),
            ("out/late.txt", late),
            ("out/mark.txt", b"\xef\xbb\xbfa\n".to_vec()),
            (
                "out/broken.txt",
                "城市\n".bytes().chain([0xff, b'\n']).collect(),
            ),
            ("out/zip.bin", b"PK\x03\x04\0\0".to_vec()),
        ] {
            state.staged.insert(path.to_owned(), bytes);
        }
    }
    let cases = r#"
        {"file_name": "out/latin.txt"} => ["café", "windows-1252", null]
        {"file_name": "out/u.txt"} => ["a\tb\nc\n", "UTF-16LE", null]
        {"file_name": "out/u.txt", "start_line": 2} => ["c\n", "UTF-16LE", null]
        {"file_name": "out/g.csv", "num_lines": 1} => ["城市,数量\n", "GBK", 2]
        {"file_name": "out/late.txt", "start_line": 2001} => ["café crème\n", "windows-1252", null]
        {"file_name": "out/late.txt", "num_lines": 1} => ["plain\n", null, 2]
        {"file_name": "out/mark.txt"} => ["a\n", null, null]
        {"file_name": "out/broken.txt"} => ["城市\n\ufffd\n", null, null]
    "#;
    for (line, arguments, wanted) in results(cases) {
        let read = talk.call("read_file", arguments).await;
        let fields = ["content", "encoding", "next_start_line"];
        assert_eq!(json!(fields.map(|field| &read[field])), wanted, "{line}");
    }
    let binary = talk
        .refused("read_file", json!({"file_name": "out/zip.bin"}))
        .await;
    let said = "not a text file: out/zip.bin (binary); commands can read it";
    assert_eq!(binary, ("NOT_TEXT".into(), said.into()));
}

#[tokio::test]
async fn a_long_file_is_read_in_pieces_that_end_at_lines() {
    let mut talk = with_files().await;
    let whole = talk.fake.state.lock().staged["out/long.txt"].clone();
    let (mut next, mut text, mut calls) = (1_u64, String::new(), 0);
    loop {
        let read = talk
            .call(
                "read_file",
                json!({"file_name": "out/long.txt", "start_line": next}),
            )
            .await;
        let piece = read["content"].as_str().expect("text");
        assert!(piece.ends_with('\n'), "a piece is whole lines");
        assert_eq!(read["size_bytes"], whole.len());
        assert_eq!(read.get("truncated"), None);
        text.push_str(piece);
        calls += 1;
        match read["next_start_line"].as_u64() {
            Some(line) => next = line,
            None => break,
        }
    }
    assert_eq!(calls, 6);
    assert!(text.as_bytes() == whole, "each line once, in its place");
}

#[tokio::test]
async fn a_file_whose_encoding_shows_late_is_read_with_each_line_once() {
    // As UTF-8 the lines are twice as long, which is known only once they are selected.
    let mut talk = with_files().await;
    let text = "Отчёт по продажам\n".repeat(8_000);
    let (bytes, _, _) = encoding_rs::WINDOWS_1251.encode(&text);
    let bytes = [&*b"plain\n".repeat(2_000), &*bytes].concat();
    let path = "out/late.txt".to_owned();
    talk.fake.state.lock().staged.insert(path, bytes);
    let (mut next, mut read) = (2_001_u64, String::new());
    loop {
        let call = json!({"file_name": "out/late.txt", "start_line": next});
        let part = talk.call("read_file", call).await;
        assert_eq!(part["start_line"], next);
        read.push_str(part["content"].as_str().expect("text"));
        match part["next_start_line"].as_u64() {
            Some(line) => next = line,
            None => break,
        }
    }
    assert!(read == text, "{} of {} bytes", read.len(), text.len());
}

#[tokio::test]
async fn a_long_line_with_a_late_encoding_gives_each_character_once() {
    // The parts end within a character and after one.
    for beginning in ["abc", "abcd", "abcde"] {
        let mut talk = with_files().await;
        let text = format!("{beginning}{}", "城市,数量;".repeat(8_000));
        let (bytes, _, _) = encoding_rs::GBK.encode(&text);
        let bytes = [&*b"plain\n".repeat(2_000), &*bytes].concat();
        let path = "out/late.txt".to_owned();
        talk.fake.state.lock().staged.insert(path, bytes);
        let (mut next, mut read) = (0_u64, String::new());
        loop {
            let call =
                json!({"file_name": "out/late.txt", "start_line": 2_001, "start_byte": next});
            let part = talk.call("read_file", call).await;
            read.push_str(part["content"].as_str().expect("text"));
            match part["next_start_byte"].as_u64() {
                Some(byte) => next = byte,
                None => break,
            }
        }
        assert!(read == text, "{} of {} bytes", read.len(), text.len());
    }
}

#[tokio::test]
async fn text_is_detected_by_the_beginning_and_the_read_part() {
    let mut talk = with_files().await;
    {
        let mut state = talk.fake.state.lock();
        let late = [b"line\n".repeat(2_000), b"\0\n".to_vec()].concat();
        let wide = "x".repeat(100 * 1024).into_bytes();
        for (path, bytes) in [
            ("out/early.bin", b"a\nb\nc\0\n".to_vec()),
            ("out/late.bin", late),
            ("out/wide.txt", wide),
        ] {
            state.staged.insert(path.to_owned(), bytes);
        }
    }
    let line =
        |path: &str, start: u64| json!({"file_name": path, "start_line": start, "num_lines": 1});
    let early = talk.refused("read_file", line("out/early.bin", 1)).await;
    assert_eq!(early.0, "NOT_TEXT");
    let first = talk.call("read_file", line("out/late.bin", 1)).await;
    assert_eq!(first["content"], "line\n");
    let late = talk.refused("read_file", line("out/late.bin", 2_001)).await;
    assert_eq!(late.0, "NOT_TEXT");
    let wide = talk.call("read_file", line("out/wide.txt", 1)).await;
    assert_eq!(wide["truncated"], true);
    assert_eq!(wide["size_bytes"], 100 * 1024);
    assert_eq!(wide["next_start_byte"], 64 * 1024);
    let mut rest = line("out/wide.txt", 1);
    rest["start_byte"] = wide["next_start_byte"].clone();
    let rest = talk.call("read_file", rest).await;
    assert_eq!(rest["content"].as_str().map(str::len), Some(36 * 1024));
    assert_eq!(
        (rest.get("truncated"), rest.get("next_start_byte")),
        (None, None)
    );
    let skill = json!({"file_name": "skill://demo/USAGE.md"});
    let read = talk.call("read_file", skill).await;
    check_fields(
        &read,
        &json!({"size_bytes": 14, "mime_type": "text/markdown"}),
    );
}

/// No call asks for a workspace before it reads: what is not there has no files.
#[tokio::test]
async fn reading_makes_no_workspace() {
    let mut talk = with_files().await;
    talk.calls();
    talk.call("read_file", json!({"file_name": "out/a.txt"}))
        .await;
    assert_eq!(talk.calls(), ["FileService/ReadFile"]);
}

#[tokio::test]
async fn a_file_is_saved_by_the_daemon_and_the_state_says_so() {
    let mut talk = with_files().await;
    talk.id = "call_9".into();
    for version in 0..2 {
        let saved = talk
            .call(
                "workspace_save_artifact",
                json!({"path": "workspace://out/a.txt"}),
            )
            .await;
        let reference = format!("artifact://out/a.txt@{version}");
        assert_eq!(
            saved,
            json!({"path": "out/a.txt", "saved_as": "out/a.txt", "version": version, "ref": reference,
                   "mime_type": "text/plain", "size_bytes": 13, "sha256": "5a".repeat(32),
                   "scope": {"app": "app", "user": "ann", "session": "1"}})
        );
        let kept = json!({"tool_call_id": "call_9", "artifacts": [{"name": "out/a.txt", "version": version, "ref": reference}]});
        assert_eq!(talk.state.get("temp:skill:artifacts"), Some(&kept));
        // One key, however many calls save.
        let keys = talk
            .state
            .iter()
            .filter(|(key, _)| key.contains("artifacts"));
        assert_eq!(keys.count(), 1);
    }
}

#[tokio::test]
async fn files_are_saved_through_skill_links_and_from_writable_skills() {
    for (writable_skills, path, saved_as) in [
        (false, "/workspace/skills/demo/out/a.txt", Some("out/a.txt")),
        (true, "/workspace/skills/demo/out/a.txt", Some("out/a.txt")),
        (true, "skills/demo/notes.md", Some("skills/demo/notes.md")),
        (false, "skills/demo/notes.md", None),
    ] {
        let change = |options: &mut ToolOptions| options.writable_skills = writable_skills;
        let mut talk = Talk::with_options(change).await;
        for file in ["out/a.txt", "skills/demo/notes.md"] {
            let mut state = talk.fake.state.lock();
            state.staged.insert(file.to_owned(), b"text\n".to_vec());
        }
        let call = json!({"path": path});
        let saved = talk.try_call("workspace_save_artifact", call).await;
        let name = saved.ok().map(|saved| saved["saved_as"].clone());
        assert_eq!(name, saved_as.map(Value::from), "{path}");
    }
}

#[tokio::test]
async fn inputs_go_to_the_daemon_in_either_spelling() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let mut arguments = run("hello");
    arguments["inputs"] = json!([
        {"from": "artifact://a@1", "to": "inputs/x", "pin": true},
        {"src": "workspace://out/b", "dst": "work\\b", "mode": "LINK"},
        {"From": " skill://demo/USAGE.md ", "To": "inputs/"},
    ]);
    let result = talk.call("skill_run", arguments).await;
    let staged: Vec<&Value> = result["staged_inputs"]
        .as_array()
        .expect("inputs")
        .iter()
        .map(|file| &file["name"])
        .collect();
    assert_eq!(staged, ["inputs/x", "work/b", "work/inputs/USAGE.md"]);
    let requests = talk.fake.staged_inputs();
    let request = requests.last().expect("one request");
    let scope = ArtifactScope {
        app: "app".into(),
        user: "ann".into(),
        session: "1".into(),
    };
    assert_eq!(request.scope, Some(scope));
    let from = |index: usize| request.inputs[index].content.clone();
    assert_eq!(
        from(2),
        Some(InputContent::Source("skill://demo/USAGE.md".into()))
    );
    let modes: Vec<StageMode> = request.inputs.iter().map(|input| input.mode()).collect();
    assert_eq!(modes, [StageMode::Copy, StageMode::Link, StageMode::Copy]);
    let to: Vec<&str> = request
        .inputs
        .iter()
        .map(|input| input.path.as_str())
        .collect();
    assert_eq!(to, ["inputs/x", "work/b", ""]);
    assert!(request.inputs[0].pin && !request.inputs[1].pin);
}

fn upload(name: &str, content: Content) -> Upload {
    Upload {
        name: name.into(),
        original_name: name.into(),
        content,
        key: String::new(),
    }
}

#[tokio::test]
async fn files_of_the_conversation_are_one_call() {
    let talk = Talk::new(ToolOptions::default()).await;
    let mut reference = upload(" ", Content::Reference("artifact://b@2".into()));
    reference.original_name = "b, as it was".into();
    let uploads = [
        upload("a.csv", Content::Bytes("1,2\n".into())),
        reference,
        upload("", Content::Bytes("x".into())),
    ];
    let stage = async |uploads: &[Upload]| {
        let staged = talk.tools.stage_uploads(&talk.session, uploads).await;
        staged.expect("staged")
    };
    let names = |staged: &StagedUploads| -> Vec<(String, String)> {
        let files = staged.files.iter();
        let names = files.map(|file| (file.name.clone(), file.original_name.clone()));
        names.collect()
    };
    assert_eq!(stage(&[]).await, StagedUploads::default());
    assert!(talk.calls().is_empty());
    let staged = stage(&uploads).await;
    let pairs = [
        ("work/inputs/a.csv", "a.csv"),
        ("work/inputs/upload_2", "b, as it was"),
        ("work/inputs/upload_3", "upload_3"),
    ]
    .map(|(name, original)| (name.to_owned(), original.to_owned()));
    assert_eq!(names(&staged), pairs);
    assert_eq!(
        talk.calls(),
        [
            "WorkspaceService/CreateWorkspace",
            "FileService/StageInputs"
        ]
    );
    stage(&uploads).await;
    assert_eq!(talk.calls(), ["FileService/StageInputs"]);
}

#[tokio::test]
async fn a_large_file_is_sent_once_and_stays_in_its_place() {
    let talk = Talk::new(ToolOptions::default()).await;
    let large = vec![7; 1024 * 1024 + 1];
    let uploads = [
        upload("a.csv", Content::Bytes("1,2\n".into())),
        upload("big.bin", Content::Bytes(large.clone())),
        upload("c.csv", Content::Bytes("3".into())),
    ];
    let requests = || {
        talk.fake
            .calls
            .requests::<StageInputsRequest>("StageInputs")
    };
    let (mut sent, mut links) = (Vec::new(), Vec::new());
    for _turn in 0..2 {
        let staged = talk
            .tools
            .stage_uploads(&talk.session, &uploads)
            .await
            .expect("staged");
        let files: Vec<(&str, u64)> = staged
            .files
            .iter()
            .map(|file| (file.name.as_str(), file.size_bytes))
            .collect();
        let size = large.len() as u64;
        assert_eq!(
            files,
            [
                ("work/inputs/a.csv", 4),
                ("work/inputs/big.bin", size),
                ("work/inputs/c.csv", 1)
            ]
        );
        links.extend(requests());
        sent.push(talk.calls());
    }
    assert!(sent[0].contains(&"FileService/StageFiles".to_owned()));
    assert_eq!(sent[1], ["FileService/StageInputs"]);
    // Another one of its name is another file.
    let other = upload("big.bin", Content::Bytes(vec![8; large.len()]));
    let staged = talk.tools.stage_uploads(&talk.session, &[other]).await;
    assert_eq!(staged.expect("staged").files.len(), 1);
    let kept = talk.fake.state.lock().staged.clone();
    assert!(kept.values().any(|bytes| *bytes == large), "the first one");
    assert_eq!(kept.len(), 2);
    links.extend(requests());
    let large_links = links
        .iter()
        .flat_map(|request| &request.inputs)
        .filter(|input| input.name == "big.bin");
    for link in large_links {
        assert_eq!((link.mode(), link.sha256.len()), (StageMode::Link, 64));
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_had_costs_no_other_one() {
    let talk = Talk::new(ToolOptions::default()).await;
    let uploads = [
        upload("a", Content::Bytes("1".into())),
        upload("b", Content::ProviderId("file-1".into())),
        upload("c", Content::Reference("https://refused/c".into())),
        upload("d", Content::Reference("artifact://missing".into())),
        upload("e", Content::Bytes("2".into())),
    ];
    let staged = talk
        .tools
        .stage_uploads(&talk.session, &uploads)
        .await
        .expect("the others");
    let names: Vec<&str> = staged.files.iter().map(|file| &*file.name).collect();
    assert_eq!(names, ["work/inputs/a", "work/inputs/e"]);
    for (warning, begins) in staged
        .warnings
        .iter()
        .zip(["b: the provider", "c: ", "d: "])
    {
        assert!(warning.starts_with(begins), "{warning}");
    }
    assert_eq!(staged.warnings.len(), 3);
    // That nothing can be staged at all is an error.
    let talk = Talk::with_options(|options| options.pool = "full".into()).await;
    let none = talk.tools.stage_uploads(&talk.session, &uploads).await;
    assert!(none.is_err());
}

#[tokio::test]
async fn many_files_are_few_requests() {
    let talk = Talk::new(ToolOptions::default()).await;
    let small = |number: usize| upload(&format!("{number}"), Content::Bytes("x".into()));
    let uploads: Vec<Upload> = (0..257).map(small).collect();
    let staged = talk.tools.stage_uploads(&talk.session, &uploads).await;
    assert_eq!(staged.expect("staged").files.len(), 257);
    let half = |number: usize| upload(&format!("h{number}"), Content::Bytes(vec![1; 1 << 19]));
    let uploads: Vec<Upload> = (0..7).map(half).collect();
    let staged = talk.tools.stage_uploads(&talk.session, &uploads).await;
    assert_eq!(staged.expect("staged").files.len(), 7);
    let requests = talk
        .fake
        .calls
        .requests::<StageInputsRequest>("StageInputs");
    let counts: Vec<usize> = requests
        .iter()
        .map(|request| request.inputs.len())
        .collect();
    assert_eq!(counts, [256, 1, 6, 1]);
}

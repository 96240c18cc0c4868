//! Files by reference: read, saved, brought in.

use serde_json::{Value, json};
use skilld_client::prompt::{Upload, UploadContent as Content};
use skilld_client::tools::Options;
use skilld_client::v1::input_spec::Source;
use skilld_client::v1::{ArtifactScope, StageMode};

use super::{Talk, run};

async fn with_files() -> Talk {
    let talk = Talk::new(Options::default()).await;
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
    for (arguments, content, lines) in [
        (
            json!({"file_name": "workspace://out/a.txt"}),
            "one\ntwo\nthree",
            (1, 3, Value::Null),
        ),
        (
            json!({"path": "out/a.txt"}),
            "one\ntwo\nthree",
            (1, 3, Value::Null),
        ),
        (
            json!({"fileName": "out/a.txt", "startLine": 2}),
            "two\nthree",
            (2, 3, Value::Null),
        ),
        (
            json!({"file_name": "out/a.txt", "num_lines": 1}),
            "one\n",
            (1, 1, json!(2)),
        ),
        (
            json!({"file_name": "out/a.txt", "start_line": 2, "num_lines": 1}),
            "two\n",
            (2, 2, json!(3)),
        ),
        (
            json!({"file_name": "out/a.txt", "start_line": 9}),
            "",
            (0, 0, Value::Null),
        ),
        (
            json!({"file_name": "artifact://out/a@b.txt"}),
            "kept\n",
            (1, 1, Value::Null),
        ),
        (
            json!({"file_name": "artifact://out/a@b.txt@4"}),
            "kept\n",
            (1, 1, Value::Null),
        ),
        (
            json!({"file_name": "skill://demo/USAGE.md", "num_lines": 2}),
            "one\ntwo\n",
            (1, 2, json!(3)),
        ),
    ] {
        let made = arguments.to_string();
        let read = talk.call("read_file", arguments).await;
        assert_eq!(read["content"], content, "{made}");
        let found = (
            &read["start_line"],
            &read["end_line"],
            &read["next_start_line"],
        );
        assert_eq!(
            found,
            (&json!(lines.0), &json!(lines.1), &lines.2),
            "{made}"
        );
    }
    assert_eq!(
        talk.refused("read_file", json!({"file_name": "out/latin.txt"}))
            .await
            .0,
        "NOT_TEXT"
    );
}

#[tokio::test]
async fn a_long_file_is_read_in_pieces_that_end_at_lines() {
    let mut talk = with_files().await;
    let (mut next, mut text, mut calls) = (1_u64, String::new(), 0);
    loop {
        let read = talk
            .call(
                "read_file",
                json!({"file_name": "out/long.txt", "start_line": next}),
            )
            .await;
        text.push_str(read["content"].as_str().expect("text"));
        calls += 1;
        match read["next_start_line"].as_u64() {
            Some(line) => next = line,
            None => break,
        }
    }
    assert_eq!(calls, 2);
    assert_eq!(text.len(), 16 * 20_000);
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
                   "mime_type": "text/plain", "size_bytes": 13, "sha256": "5a".repeat(32)})
        );
        let kept = json!({"tool_call_id": "call_9", "artifacts": [{"name": "out/a.txt", "version": version, "ref": reference}]});
        assert_eq!(talk.state.get("temp:skill:artifacts"), Some(&kept));
        assert_eq!(talk.state.get("temp:skill:artifacts:call_9"), Some(&kept));
    }
}

#[tokio::test]
async fn inputs_go_to_the_daemon_in_either_spelling() {
    let mut talk = Talk::new(Options::default()).await;
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
    let request = talk.fake.state.lock().inputs.pop().expect("one request");
    let scope = ArtifactScope {
        app: "app".into(),
        user: "ann".into(),
        session: "1".into(),
    };
    assert_eq!(request.scope, Some(scope));
    let from = |index: usize| request.inputs[index].source.clone();
    assert_eq!(from(2), Some(Source::From("skill://demo/USAGE.md".into())));
    let modes: Vec<StageMode> = request.inputs.iter().map(|input| input.mode()).collect();
    assert_eq!(modes, [StageMode::Copy, StageMode::Link, StageMode::Copy]);
    let to: Vec<&str> = request
        .inputs
        .iter()
        .map(|input| input.to.as_str())
        .collect();
    assert_eq!(to, ["inputs/x", "work/b", ""]);
    assert!(request.inputs[0].pin && !request.inputs[1].pin);
}

#[tokio::test]
async fn files_of_the_conversation_are_one_call() {
    let talk = Talk::new(Options::default()).await;
    let upload = |name: &str, content| Upload {
        name: name.into(),
        original_name: name.into(),
        content,
        key: String::new(),
    };
    let uploads = [
        upload("a.csv", Content::Bytes("1,2\n".into())),
        upload(" ", Content::Reference("artifact://b@2".into())),
        upload("", Content::Bytes("x".into())),
    ];
    talk.tools
        .stage_uploads(&talk.session, &[])
        .await
        .expect("nothing to do");
    assert!(talk.calls().is_empty());
    let staged = talk
        .tools
        .stage_uploads(&talk.session, &uploads)
        .await
        .expect("staged");
    let names: Vec<&str> = staged.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "work/inputs/a.csv",
            "work/inputs/upload_2",
            "work/inputs/upload_3"
        ]
    );
    let original: Vec<&str> = staged
        .iter()
        .map(|file| file.original_name.as_str())
        .collect();
    assert_eq!(original, ["a.csv", "artifact://b@2", "upload_3"]);
    assert_eq!(
        talk.calls(),
        [
            "WorkspaceService/CreateWorkspace",
            "FileService/StageInputs"
        ]
    );
    talk.tools
        .stage_uploads(&talk.session, &uploads)
        .await
        .expect("staged");
    assert_eq!(talk.calls(), ["FileService/StageInputs"]);
    let large = [upload(
        "../big.bin",
        Content::Bytes(vec![7; 1024 * 1024 + 1]),
    )];
    let staged = talk
        .tools
        .stage_uploads(&talk.session, &large)
        .await
        .expect("staged");
    assert_eq!(
        (staged[0].name.as_str(), staged[0].size_bytes),
        ("work/inputs/big.bin", 1024 * 1024 + 1)
    );
    assert_eq!(talk.calls(), ["FileService/StageFiles"]);
}

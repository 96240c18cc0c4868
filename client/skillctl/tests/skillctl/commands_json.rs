//! `skillctl -o json`: one object per command, lists that are lists, errors as JSON on stderr.

use std::process::{Output, Stdio};

use serde_json::{Value, json};
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::{CollectOutputsResponse, CollectSummary, Workspace};
use tonic::Code;

use crate::commands::{fake, skillctl};
use skilld_testing::collection_messages::{file, summary};
use skilld_testing::{EVENTS, Fake, PRINTED, refusal};

async fn run(fake: &Fake, words: &[&str]) -> Output {
    skillctl(fake, words).output().await.expect("runs")
}

/// Runs a command with `-o json` and returns the one object that it prints.
async fn object(fake: &Fake, words: &[&str]) -> Value {
    let output = run(fake, &[&["-o", "json"], words].concat()).await;
    let text = String::from_utf8(output.stdout).expect("utf-8");
    let problem = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.lines().count(), 1, "{words:?}: {text}{problem}");
    let value: Value = serde_json::from_str(&text).expect("json");
    assert!(value.is_object(), "{words:?}: {value}");
    value
}

/// Runs a command that fails, and returns its code and the error that it prints.
async fn error(fake: &Fake, words: &[&str]) -> (Option<i32>, Value) {
    let output = run(fake, words).await;
    let text = String::from_utf8(output.stderr).expect("utf-8");
    let last = text.lines().last().unwrap_or_default();
    let value: Value = serde_json::from_str(last).expect("json");
    let error = value.get("error").cloned();
    (output.status.code(), error.unwrap_or_default())
}

#[tokio::test]
async fn empty_lists_are_lists_and_zeros_are_present() {
    let fake = Fake::start();
    for (words, key) in [
        (vec!["workspace", "list"], "workspaces"),
        (vec!["ps", "w"], "execs"),
        (vec!["ls", "w"], "files"),
        (vec!["problems"], "problems"),
        (vec!["skill", "problems"], "problems"),
        (vec!["skill", "search", "x"], "matches"),
    ] {
        let object = object(&fake, &words).await;
        assert_eq!(object, json!({ key: [] }), "{words:?}");
    }
    let pool = object(&fake, &["pool", "resize", "default", "3"]).await;
    assert_eq!(pool["warmTarget"], 3);
    assert_eq!(pool["warm"], 0, "{pool}");
    let skills = object(&fake, &["skill", "list"]).await;
    assert_eq!(skills["problems"], json!([]), "{skills}");
    assert_eq!(skills["skills"][0]["tags"], json!([]), "{skills}");
}

#[tokio::test]
async fn an_exec_is_one_object_with_its_output_as_text_and_base64() {
    let fake = fake();
    let exec = object(&fake, &["exec", "w", "--id", "x", "hello"]).await;
    assert_eq!(exec["exec"], "workspaces/w/execs/x");
    assert_eq!(exec["result"]["exitCode"], 0);
    assert_eq!(exec["stdout"], "hello\n");
    assert_eq!(exec["stdoutBase64"], "aGVsbG8K");
    assert_eq!((&exec["stderr"], &exec["gaps"]), (&json!(""), &json!([])));
    assert_eq!(exec["truncated"], false);

    let bytes = object(&fake, &["exec", "w", "print"]).await;
    assert_eq!(bytes["stdout"], Value::Null, "is not UTF-8");
    let base64 = bytes["stdoutBase64"].as_str().expect("base64");
    assert_eq!(base64.len(), PRINTED.len().div_ceil(3) * 4);

    for words in [
        vec!["attach", "w/x"],
        vec!["logs", "w/x"],
        vec!["logs", "w/x", "-o", "jsonl"],
    ] {
        let again = object(&fake, &words).await;
        assert_eq!(again["stdout"], "hello\n", "{words:?}");
        assert_eq!(again["result"]["exitCode"], 0, "{words:?}");
    }
    let output = run(&fake, &["-o", "json", "exec", "w", "exit", "7"]).await;
    assert_eq!(output.status.code(), Some(7), "the code passes through");
}

#[tokio::test]
async fn jsonl_prints_each_event_on_a_line_of_its_own() {
    let fake = fake();
    let output = run(&fake, &["-o", "jsonl", "exec", "w", "hello"]).await;
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .expect("utf-8")
        .lines()
        .map(|line| serde_json::from_str(line).expect("json"))
        .collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0]["started"]["pid"], 7);
    assert_eq!(lines[1]["output"]["data"], "aGVsbG8K");
    assert_eq!(lines[1]["output"]["text"], "hello\n");
    assert_eq!(lines[2]["exited"]["result"]["exitCode"], 0);
}

#[tokio::test]
async fn run_and_stage_print_one_object_for_all_their_steps() {
    let fake = fake();
    std::fs::write(fake.path("in.txt"), "x").expect("writes");
    fake.answer_collections([file("out/r", b"result"), vec![summary()]].concat());
    let ran = object(
        &fake,
        &[
            "run",
            "csv-report",
            "--input",
            "in.txt",
            "--to",
            "res",
            "hello",
        ],
    )
    .await;
    assert_eq!(ran["stdout"], "hello\n");
    assert_eq!(ran["collected"]["matchedCount"], "1");
    let words = [
        "stage",
        "w",
        "--skill",
        "csv-report",
        "in.txt",
        "in.txt=out/",
    ];
    let staged = object(&fake, &words).await;
    assert_eq!(staged["skills"].as_array().map(Vec::len), Some(1));
    assert_eq!(staged["inputs"], json!([]));
    assert_eq!(staged["files"][0]["to"], "work/inputs/in.txt");
    assert_eq!(staged["files"][1]["to"], "out/in.txt");
}

#[tokio::test]
async fn objects_staged_before_a_failure_are_printed() {
    let fake = fake();
    std::fs::write(fake.path("in.txt"), "x").expect("writes");
    let read_only = "in.txt=skills/y";
    for (words, key, reason) in [
        (vec!["in.txt", read_only], "files", "READ_ONLY"),
        (
            vec!["--skill", "csv-report", read_only],
            "skills",
            "READ_ONLY",
        ),
        (
            vec!["artifact://a@1=work/a", read_only],
            "inputs",
            "READ_ONLY",
        ),
        (
            vec![
                "--skill",
                "csv-report",
                "artifact://missing=work/a",
                "in.txt",
            ],
            "skills",
            "FILE_NOT_FOUND",
        ),
    ] {
        let words = [vec!["-o", "json", "stage", "w"], words].concat();
        let staged = object(&fake, &words[2..]).await;
        for list in ["skills", "inputs", "files"] {
            let count = staged[list].as_array().map(Vec::len);
            assert_eq!(count, Some(usize::from(list == key)), "{words:?}: {list}");
        }
        let (code, failed) = error(&fake, &words).await;
        assert_eq!((code, &failed["reason"]), (Some(1), &json!(reason)));
    }
    // Nothing was staged.
    let output = run(&fake, &["-o", "json", "stage", "w", read_only]).await;
    assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()));
}

#[tokio::test]
async fn an_object_that_cannot_be_printed_hides_no_error() {
    let fake = fake();
    std::fs::write(fake.path("in.txt"), "x").expect("writes");
    let dropped = refusal(Code::NotFound, "EXEC_NOT_FOUND", &[]);
    let refused = refusal(Code::NotFound, "FILE_NOT_FOUND", &[]);
    // After Closed.
    fake.calls.break_after(EVENTS, 6, Some(refused));
    for (words, breaks, reason) in [
        (
            vec!["stage", "w", "in.txt", "in.txt=skills/y"],
            false,
            "READ_ONLY",
        ),
        (
            vec!["run", "csv-report", "--to", "res", "hello"],
            false,
            "FILE_NOT_FOUND",
        ),
        (
            vec!["exec", "w", "--id", "x", "hello"],
            true,
            "EXEC_NOT_FOUND",
        ),
        (vec!["attach", "w/x"], true, "EXEC_NOT_FOUND"),
        (vec!["logs", "-f", "w/x"], true, "EXEC_NOT_FOUND"),
    ] {
        if breaks {
            fake.calls.break_after(EVENTS, 2, Some(dropped.clone()));
        }
        let full = std::fs::File::create("/dev/full").expect("opens");
        let words = [vec!["-o", "json"], words].concat();
        let mut command = skillctl(&fake, &words);
        let child = command
            .stdout(full)
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let output = child.wait_with_output().await.expect("runs");
        let text = String::from_utf8(output.stderr).expect("utf-8");
        let last = text.lines().last().unwrap_or_default();
        let error: Value = serde_json::from_str(last).expect("json");
        assert_eq!(error["error"]["reason"], reason, "{words:?}: {text}");
        let code = match words[2] {
            "stage" | "logs" => 1,
            _ => 125,
        };
        assert_eq!(output.status.code(), Some(code), "{words:?}");
    }
}

#[tokio::test]
async fn output_before_a_lost_exec_is_printed() {
    let fake = fake();
    for (words, events) in [
        (vec!["exec", "w", "hello"], 2),
        // The workspace and what was staged come first.
        (vec!["run", "csv-report", "hello"], 4),
    ] {
        let dropped = refusal(Code::NotFound, "EXEC_NOT_FOUND", &[]);
        fake.calls.break_after(EVENTS, events, Some(dropped));
        let words = [vec!["-o", "json"], words].concat();
        let output = run(&fake, &words).await;
        assert_eq!(output.status.code(), Some(125), "{words:?}");
        let printed: Value = serde_json::from_slice(&output.stdout).expect("an object");
        assert_eq!(printed["stdout"], "hello\n", "{words:?}");
        assert_eq!(printed["result"], Value::Null, "{words:?}");
    }
}

#[tokio::test]
async fn an_incomplete_result_is_printed_and_exits_with_1() {
    let fake = fake();
    let none = CollectSummary::default();
    fake.answer_collections(vec![CollectOutputsResponse {
        payload: Some(Payload::Summary(none)),
    }]);
    for words in [["collect", "w", "out/**"], ["skill", "check", "csv-report"]] {
        object(&fake, &words).await;
        let output = run(&fake, &[&["-o", "json", "-q"], words.as_slice()].concat()).await;
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(output.stderr.is_empty(), "{words:?}: there is no error");
    }
}

#[tokio::test]
async fn a_deletion_prints_what_it_deleted() {
    let fake = fake();
    for id in ["a", "b", "c"] {
        assert!(
            run(&fake, &["workspace", "create", "--id", id])
                .await
                .status
                .success()
        );
    }
    let deleted = object(&fake, &["workspace", "delete", "a", "nope", "b"]).await;
    assert_eq!(deleted, json!({"deleted": ["a", "b"]}));
    for words in [
        ["workspace", "delete", "nope"].as_slice(),
        &["rm", "nope"],
        &["forget", "w/nope"],
    ] {
        assert_eq!(object(&fake, words).await, json!({"deleted": []}));
        let (code, failed) = error(&fake, &[&["-o", "json"], words].concat()).await;
        assert_eq!((code, &failed["code"]), (Some(1), &json!("NOT_FOUND")));
    }
    object(&fake, &["exec", "w", "-d", "--id", "x", "forever"]).await;
    assert_eq!(
        object(&fake, &["rm", "w/x", "c"]).await,
        json!({"deleted": ["w/x", "c"]})
    );
    let deleted = object(&fake, &["skill", "delete", "csv@1.0"]).await;
    assert_eq!(deleted, json!({"deleted": ["csv@1.0"]}));
    let output = run(&fake, &["rm", "w"]).await;
    assert_eq!(output.stdout, b"w\n");
}

#[tokio::test]
async fn errors_and_remarks_are_json_on_stderr() {
    let fake = fake();
    let (code, failed) = error(&fake, &["-o", "json", "workspace", "get", "nope"]).await;
    assert_eq!(code, Some(1));
    assert_eq!(failed["code"], "NOT_FOUND");
    assert_eq!(failed["reason"], "WORKSPACE_NOT_FOUND");
    assert!(failed["message"].is_string() && failed["hint"].is_string());
    let (_, failed) = error(
        &fake,
        &["-o", "json", "workspace", "create", "--pool", "full"],
    )
    .await;
    assert_eq!(failed["retryAfterSeconds"], 3.0);
    let (_, failed) = error(&fake, &["-o", "json", "stage", "w"]).await;
    assert!(
        failed["message"]
            .as_str()
            .is_some_and(|it| it.contains("nothing to stage"))
    );
    for words in [
        vec!["-o", "json", "frobnicate"],
        vec!["frobnicate", "-o", "json"],
        vec!["frobnicate", "-o=jsonl"],
        vec!["frobnicate", "-qo", "json"],
        vec!["-qojson", "frobnicate"],
    ] {
        let (code, failed) = error(&fake, words.as_slice()).await;
        assert_eq!(
            (code, &failed["code"]),
            (Some(2), &json!("USAGE")),
            "{words:?}"
        );
    }
    let output = run(&fake, &["-o", "json", "run", "ok", "--keep", "hello"]).await;
    let note: Value = serde_json::from_slice(&output.stderr).expect("json");
    assert!(
        note["note"]
            .as_str()
            .is_some_and(|note| note.starts_with("kept workspace "))
    );
}

#[tokio::test]
async fn files_are_text_and_base64() {
    let fake = fake();
    fake.state
        .lock()
        .staged
        .insert("out/a".into(), b"a,b\n".to_vec());
    fake.state
        .lock()
        .staged
        .insert("out/b".into(), b"\xff".to_vec());
    let text = object(&fake, &["cat", "w", "out/a"]).await;
    assert_eq!(
        text,
        json!({"path": "out/a", "text": "a,b\n", "base64": "YSxiCg=="})
    );
    let bytes = object(&fake, &["cat", "w", "out/b"]).await;
    assert_eq!(
        bytes,
        json!({"path": "out/b", "text": null, "base64": "/w=="})
    );
}

#[tokio::test]
async fn a_list_with_quiet_is_its_ids_and_nothing_is_remarked() {
    let fake = fake();
    let name = "workspaces/v".to_owned();
    let workspace = Workspace {
        name: name.clone(),
        ..Default::default()
    };
    fake.state.lock().workspaces.insert(name, workspace);
    let output = run(&fake, &["workspace", "list", "-q"]).await;
    assert_eq!(output.stdout, b"v\nw\n");
    let output = run(&fake, &["-q", "pool", "list"]).await;
    assert_eq!(output.stdout, b"default\na-much-longer-name\n");
    let output = run(&fake, &["-q", "run", "ok", "--keep", "--timing", "hello"]).await;
    assert_eq!(
        (output.stdout, output.stderr),
        (b"hello\n".to_vec(), Vec::new())
    );
}

#[tokio::test]
async fn contexts_and_tokens_are_arrays_and_with_quiet_their_ids() {
    let fake = fake();
    let none = object(&fake, &["context", "list"]).await;
    assert_eq!(none, json!({"current": null, "contexts": []}));
    for name in ["b", "a"] {
        let words = ["context", "set", name, "--endpoint", "unix:/run/a.sock"];
        object(&fake, &words).await;
        let words = ["token", "create", name, "--for-tenant", "t", "--file", "f"];
        object(&fake, &words).await;
    }
    object(&fake, &["context", "use", "b"]).await;
    let contexts = object(&fake, &["context", "list"]).await;
    let context = |name| json!({"name": name, "endpoint": "unix:/run/a.sock"});
    assert_eq!(
        contexts,
        json!({"current": "b", "contexts": [context("a"), context("b")]})
    );
    let output = run(&fake, &["context", "list", "-q"]).await;
    assert_eq!(output.stdout, b"a\nb\n");
    let output = run(&fake, &["token", "list", "--file", "f", "-q"]).await;
    assert_eq!(output.stdout, b"b\na\n");
}

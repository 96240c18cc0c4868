//! Commands to their end: what is asked of the daemon, and what comes of its answers.

use std::time::Duration;

use serde_json::{Value, json};
use skilld_client::v1;
use skilld_tools::ToolOptions;
use skilld_tools::state::SessionState;

use tonic::Code;

use super::{Talk, file, payload, run, summary};
use crate::conversation::{check_fields, results, with_fields};
use skilld_testing::{EVENTS, refusal};

fn seconds(timeout: Option<prost_types::Duration>) -> Option<i64> {
    timeout.map(|timeout| timeout.seconds)
}

/// Runs a command with further arguments, and returns the collection that the daemon was asked for.
async fn run_and_take_spec(talk: &mut Talk, further: &Value) -> v1::CollectSpec {
    talk.calls();
    talk.call("skill_run", with_fields(&run("hello"), further))
        .await;
    let outputs = talk.fake.runs().pop().and_then(|run| run.outputs);
    let outputs = outputs.expect("asked");
    assert!(outputs.changed_only, "only of this run");
    outputs.spec.expect("set")
}

/// Number of calls to the daemon of a warm `skill_run`.
#[tokio::test]
async fn a_warm_run_of_a_loaded_skill_is_one_call() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.call("skill_run", run("hello")).await;
    talk.calls();
    talk.call("skill_run", run("hello")).await;
    let looked_up = ["SkillService/GetSkill", "ExecService/RunExec"];
    assert_eq!(talk.calls(), looked_up);
    talk.call("skill_load", json!({"skill": "demo"})).await;
    talk.calls();
    let one = ["ExecService/RunExec"];
    let mut asked = run("hello");
    for (name, value) in [
        ("timeout", json!(7)),
        ("output_files", json!(["out/**"])),
        ("inputs", json!([{"from": "artifact://a"}])),
        ("save_as_artifacts", json!(true)),
    ] {
        asked[name] = value;
        talk.call("skill_run", asked.clone()).await;
        assert_eq!(talk.calls(), one, "{asked}");
    }
    talk.call("workspace_exec", json!({"command": "hello"}))
        .await;
    assert_eq!(talk.calls(), one, "with a loaded skill");
    talk.state = SessionState::new();
    talk.call("workspace_exec", json!({"command": "hello"}))
        .await;
    assert_eq!(talk.calls(), one, "without");
}

#[tokio::test]
async fn arguments_become_the_command() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let arguments = json!({
        "Skill_Name": " demo ",
        "command": " hello ",
        "cwd": "/out/a",
        "env": {"A": "b"},
        "stdin": "typed",
        "timeoutSec": 7,
    });
    talk.call("skill_run", arguments).await;
    let spec = talk.spec();
    assert_eq!(
        (spec.skill.as_str(), spec.shell.as_str()),
        ("skills/demo", " hello ")
    );
    assert_eq!(spec.cwd, "/workspace/out/a");
    assert_eq!(spec.env.get("A").map(String::as_str), Some("b"));
    assert_eq!(spec.stdin_data, "typed");
    assert_eq!(seconds(spec.timeout), Some(7));
    for (given, in_force) in [
        (json!({}), 300),
        (json!({"timeout": 0}), 300),
        (json!({"timeout": -4}), 300),
    ] {
        talk.forget();
        let mut arguments = run("hello");
        arguments
            .as_object_mut()
            .expect("an object")
            .extend(given.as_object().expect("an object").clone());
        talk.call("skill_run", arguments).await;
        assert_eq!(seconds(talk.spec().timeout), Some(in_force));
        assert!(talk.spec().stdin_data.is_empty());
    }
}

#[tokio::test]
async fn the_hosts_time_is_the_default() {
    let mut talk =
        Talk::with_options(|options| options.timeout = Some(Duration::from_secs(9))).await;
    talk.call("skill_run", run("hello")).await;
    assert_eq!(seconds(talk.spec().timeout), Some(9));
    talk.forget();
    talk.call("workspace_exec", json!({"command": "hello"}))
        .await;
    assert_eq!(seconds(talk.spec().timeout), Some(9));
    assert_eq!(talk.spec().cwd, "$WORKSPACE_DIR");
}

#[tokio::test]
async fn an_editor_is_of_one_command() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let mut arguments = run("hello");
    arguments["editor_text"] = "text".into();
    let mut editors = Vec::new();
    for call in ["call_1", "call_2", "call_1"] {
        talk.id = call.into();
        talk.call("skill_run", arguments.clone()).await;
    }
    for spec in talk
        .fake
        .state
        .lock()
        .execs
        .values()
        .map(|exec| exec.spec.clone())
    {
        assert_eq!(spec.env.get("EDITOR"), spec.env.get("VISUAL"));
        editors.push(spec.env.get("EDITOR").cloned().expect("an editor"));
    }
    assert_eq!(editors.len(), 2, "a repeated call runs nothing twice");
    assert!(
        editors[0] != editors[1] && editors[0].starts_with("/workspace/work/.skilld/editor-call-")
    );
}

#[tokio::test]
async fn every_end_of_a_command_is_told_as_it_was() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    for (command, wanted) in [
        ("exit 0", json!([0, null, "exited", false])),
        ("exit 7", json!([7, null, "exited", false])),
        ("segv", json!([-1, 11, "signaled", false])),
        ("timeout", json!([-1, 9, "timeout", true])),
        ("missing", json!([-1, null, "spawn_failed", false])),
    ] {
        let result = talk.call("skill_run", run(command)).await;
        let found = ["exit_code", "signal", "reason", "timed_out"].map(|key| result[key].clone());
        assert_eq!(Value::from(found.to_vec()), wanted, "{command}");
        let shell = talk
            .call("workspace_exec", json!({"command": command}))
            .await;
        assert_eq!(
            (&shell["exit_code"], &shell["reason"]),
            (&wanted[0], &wanted[2]),
            "{command}"
        );
    }
    let late = talk.call("skill_run", run("timeout")).await;
    assert_eq!(late["stdout"], "so far\n");
    let missing = talk.call("skill_run", run("missing")).await;
    assert!(
        missing["warnings"][0]
            .as_str()
            .is_some_and(|text| text.contains("ENOENT"))
    );
}

/// However much is printed, a result holds its beginning and its end.
#[tokio::test]
async fn a_flood_is_shown_by_its_ends_and_said() {
    let mut talk = Talk::with_options(|options| options.output_bytes_max = 1000).await;
    let result = talk.call("skill_run", run("flood")).await;
    let stdout = result["stdout"].as_str().expect("text");
    assert!(stdout.len() < 1100 && stdout.starts_with("y\ny\n") && stdout.ends_with("y\n"));
    let bytes = 64 * 1024 * 1024;
    let said = format!(
        "stdout truncated: its first and last bytes are shown, 1000 of {bytes}; print less, or into a file in $OUTPUT_DIR"
    );
    assert_eq!(result["warnings"], json!([said]));
    let shell = talk
        .call("workspace_exec", json!({"command": "flood"}))
        .await;
    check_fields(&shell, &json!({"truncated": true, "total_bytes": bytes}));
    assert_eq!(shell["warnings"], json!([said]));
}

#[tokio::test]
async fn outputs_are_asked_for_as_the_call_says() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let cases = r#"
        {} => {"globs": ["out/**"], "limits": [20, 32769, 0], "prefix": null}
        {"output_files": ["$OUTPUT_DIR/*", " ", "workspace://work/x"]} => {"globs": ["$OUTPUT_DIR/*", "work/x"], "limits": [0, 0, 0], "prefix": null}
        // The older field counts before the newer one.
        {"output_files": ["a"], "outputs": {"globs": ["b"]}} => {"globs": ["a"], "limits": [0, 0, 0], "prefix": null}
        {"output_files": ["a"], "save_as_artifacts": true, "artifact_prefix": "p/"} => {"globs": ["a"], "limits": [0, 67108864, 0], "prefix": "p/"}
        {"outputs": {"globs": ["b"], "MaxFiles": 1, "max_file_bytes": 2, "maxTotalBytes": 3}} => {"globs": ["b"], "limits": [1, 2, 3], "prefix": null}
        {"outputs": {"globs": ["b"], "max_files": -1, "save": true, "name_template": "t-"}} => {"globs": ["b"], "limits": [0, 67108864, 0], "prefix": "t-"}
        // Saving is asked for, whichever way the files are.
        {"outputs": {"globs": ["b"]}, "save_as_artifacts": true, "artifact_prefix": "p/"} => {"globs": ["b"], "limits": [0, 67108864, 0], "prefix": "p/"}
        {"save_as_artifacts": true, "artifact_prefix": "p/"} => {"globs": ["out/**"], "limits": [20, 67108864, 0], "prefix": "p/"}
        // Without globs both count as left out; what else they say counts.
        {"outputs": {}} => {"globs": ["out/**"], "limits": [20, 32769, 0], "prefix": null}
        {"output_files": [" "], "outputs": {"globs": [""]}} => {"globs": ["out/**"], "limits": [20, 32769, 0], "prefix": null}
        {"output_files": [""], "outputs": {"globs": ["b"]}} => {"globs": ["b"], "limits": [0, 0, 0], "prefix": null}
        {"outputs": {"save": true, "name_template": "t-", "max_files": 5}} => {"globs": ["out/**"], "limits": [5, 67108864, 0], "prefix": "t-"}
    "#;
    for (line, given, wanted) in results(cases) {
        let spec = run_and_take_spec(&mut talk, &given).await;
        assert_eq!(json!(spec.globs), wanted["globs"], "{line}");
        let limits = json!([spec.max_files, spec.max_file_bytes, spec.max_total_bytes]);
        assert_eq!(limits, wanted["limits"], "{line}");
        let prefix = spec.save_as_artifacts.map(|save| save.prefix);
        assert_eq!(json!(prefix), wanted["prefix"], "{line}");
    }
}

#[tokio::test]
async fn force_save_saves_whatever_is_asked_for() {
    let mut talk = Talk::with_options(|options| options.force_save_artifacts = true).await;
    for given in [
        json!({}),
        json!({"output_files": ["a"]}),
        json!({"outputs": {"globs": ["b"]}}),
    ] {
        let spec = run_and_take_spec(&mut talk, &given).await;
        assert!(spec.save_as_artifacts.is_some(), "{given}");
    }
}

#[tokio::test]
async fn limits_cuts_and_reasons_are_in_the_result() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let skipped = |path: &str, reason: v1::SkipReason| v1::SkippedFile {
        path: path.into(),
        reason: reason.into(),
    };
    let answers = [
        file("out/a.txt", b"cut \xe2\x82", 100, true),
        file("out/b.bin", b"\0\xff", 2, false),
        file("out/c.txt", b"\xff", 1, true),
        file("out/d.txt", b"whole", 5, true),
        file("out/z.txt", b" \n", 2, true),
        vec![summary(v1::CollectSummary {
            limits_hit: true,
            skipped_files: vec![skipped("out/e", v1::SkipReason::MaxTotalBytes)],
            artifacts: vec!["artifact://p@q/a@12".into()],
            ..Default::default()
        })],
    ];
    talk.fake.answer_collections(answers.concat());
    let mut arguments = run("hello");
    arguments["output_files"] = json!(["out/*"]);
    talk.id = "call_7".into();
    let result = talk.call("skill_run", arguments.clone()).await;
    let sha = "5a".repeat(32);
    let entry = |name: &str| json!({"name": name, "ref": format!("workspace://{name}")});
    let with = |name: &str, rest: Value| {
        let mut entry = entry(name);
        entry
            .as_object_mut()
            .expect("an object")
            .extend(rest.as_object().expect("an object").clone());
        entry
    };
    let text = "text/plain";
    let files = json!([
        with(
            "out/a.txt",
            json!({"content": "cut ", "mime_type": text, "size_bytes": 100, "truncated": true,
                   "note": "4 of 100 bytes: read_file goes on with start_line 1 and start_byte 4"})
        ),
        with(
            "out/b.bin",
            json!({"mime_type": "application/octet-stream", "size_bytes": 2, "sha256": sha, "note": "not text"})
        ),
        with(
            "out/c.txt",
            json!({"mime_type": text, "size_bytes": 1, "sha256": sha, "note": "not plain UTF-8 text: read_file decodes it"})
        ),
        with(
            "out/d.txt",
            json!({"content": "whole", "mime_type": text, "size_bytes": 5, "sha256": sha})
        ),
        with(
            "out/z.txt",
            json!({"content": " \n", "mime_type": text, "size_bytes": 2, "sha256": sha})
        ),
    ]);
    assert_eq!(result["output_files"], files);
    // The first of those that are whole and not blank.
    assert_eq!(result["primary_output"]["name"], "out/d.txt");
    assert_eq!(result["limits_hit"], true);
    assert_eq!(
        result["skipped_files"],
        json!([{"name": "out/e", "reason": "MAX_TOTAL_BYTES"}])
    );
    let artifact = json!([{"name": "p@q/a", "version": 12, "ref": "artifact://p@q/a@12"}]);
    assert_eq!(result["artifact_files"], artifact);
    let kept = talk.state.get("temp:skill:artifacts").cloned();
    assert_eq!(
        kept,
        Some(json!({"tool_call_id": "call_7", "artifacts": artifact}))
    );

    arguments["omit_inline_content"] = true.into();
    talk.id.clear();
    let result = talk.call("skill_run", arguments).await;
    for file in result["output_files"].as_array().expect("files") {
        assert_eq!(file.get("content"), None, "{file}");
    }
    let primary = json!({"mime_type": text, "size_bytes": 5, "sha256": sha});
    assert_eq!(result["primary_output"], with("out/d.txt", primary));
}

#[tokio::test]
async fn calls_without_globs_show_the_main_output_and_name_the_rest() {
    let mut talk = Talk::with_options(|options| options.primary_bytes_max = 8).await;
    let cut = v1::CollectSummary {
        limits_hit: true,
        truncated_paths: vec!["out/a".into()],
        ..Default::default()
    };
    let answers = [
        file("out/a", b"longer than", 20, true),
        file("out/b", b"short", 5, true),
        vec![summary(cut)],
    ];
    talk.fake.answer_collections(answers.concat());
    let result = talk.call("skill_run", run("hello")).await;
    check_fields(
        &result["primary_output"],
        &json!({"name": "out/b", "content": "short"}),
    );
    assert_eq!(result.get("limits_hit"), None, "{result}");
    for file in result["output_files"].as_array().expect("files") {
        assert_eq!(
            (file.get("content"), file.get("truncated")),
            (None, None),
            "{file}"
        );
    }
}

#[tokio::test]
async fn omitted_files_are_counted_and_listed_up_to_a_bound() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let skipped = (0..1000).map(|number| v1::SkippedFile {
        path: format!("out/{number}"),
        reason: v1::SkipReason::MaxFiles.into(),
    });
    let answers = [
        file("out/a", b"text", 4, true),
        vec![summary(v1::CollectSummary {
            matched_count: 5000,
            returned_count: 1,
            limits_hit: true,
            skipped_files: skipped.collect(),
            ..Default::default()
        })],
    ];
    talk.fake.answer_collections(answers.concat());
    let result = talk.call("skill_run", run("hello")).await;
    assert_eq!(result.get("skipped_files"), None, "{result}");
    assert_eq!(result["limits_hit"], true);
    assert_eq!(
        result["warnings"],
        json!(["1 of 5000 files are named: ask for others with output_files"])
    );
    let mut arguments = run("hello");
    arguments["output_files"] = json!(["out/*"]);
    let result = talk.call("skill_run", arguments).await;
    let named = result["skipped_files"].as_array().map(Vec::len);
    assert_eq!(named, Some(100));
    let warnings = result["warnings"].to_string();
    assert!(
        warnings.contains("900 more files were left out"),
        "{warnings}"
    );
}

#[tokio::test]
async fn a_collection_that_breaks_goes_on_and_loses_no_output() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let whole = [
        file("out/a", b"text", 4, true),
        vec![summary(v1::CollectSummary {
            artifacts: vec!["artifact://out/a@0".into()],
            ..Default::default()
        })],
    ];
    talk.fake.answer_collections(whole.concat());
    let calls = talk.fake.calls.clone();
    // In the middle of the file.
    let break_once = |code, reason| {
        let status = refusal(code, reason, &[]);
        calls.break_after(EVENTS, 7, Some(status));
    };
    break_once(Code::Aborted, "GUEST_LOST");
    let mut arguments = run("hello");
    arguments["save_as_artifacts"] = true.into();
    let result = talk.call("skill_run", arguments.clone()).await;
    assert_eq!(result["artifact_files"][0]["ref"], "artifact://out/a@0");
    assert_eq!(result.get("warnings"), None, "{result}");
    break_once(Code::NotFound, "WORKSPACE_NOT_FOUND");
    let result = talk.call("skill_run", arguments).await;
    check_fields(&result, &json!({"stdout": "hello\n", "exit_code": 0}));
    let warnings = result["warnings"].to_string();
    assert!(
        warnings.contains("its files could not be collected"),
        "{warnings}"
    );
}

#[tokio::test]
async fn a_time_that_the_server_does_not_permit_is_told_by_each_tool() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.fake.state.lock().timeout_max = Some(100);
    for (tool, arguments) in [
        ("skill_run", run("hello")),
        ("skill_exec", run("cat")),
        ("workspace_exec", json!({"command": "hello"})),
        (
            "workspace_exec",
            json!({"command": "cat", "background": true}),
        ),
    ] {
        let mut arguments = arguments;
        arguments["timeout"] = 999_999.into();
        let result = talk.call(tool, arguments.clone()).await;
        let said = json!(["timeout: the server permits 100 s, which was in force"]);
        assert_eq!(result["warnings"], said, "{tool}: {result}");
        arguments["timeout"] = 99.into();
        let result = talk.call(tool, arguments).await;
        assert_eq!(result.get("warnings"), None, "{tool}: {result}");
    }
}

#[tokio::test]
async fn a_link_is_no_empty_file() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let link = v1::CollectedFile {
        path: "out/link".into(),
        link_target: "a".into(),
        ..Default::default()
    };
    talk.fake.answer_collections(vec![
        payload(v1::collect_outputs_response::Payload::File(link)),
        summary(v1::CollectSummary::default()),
    ]);
    let mut arguments = run("exit 1");
    arguments["output_files"] = json!(["out/*"]);
    let result = talk.call("skill_run", arguments).await;
    assert_eq!(result["output_files"][0]["name"], "out/link", "{result}");
    assert_eq!(result.get("skipped_files"), None);
}

/// Metadata is all that was asked for; and a good run has nothing to warn of.
#[tokio::test]
async fn files_are_named_without_text_where_no_text_is_asked_for() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let answers = [
        file("out/a", b"text", 4, true),
        vec![summary(v1::CollectSummary::default())],
    ];
    talk.fake.answer_collections(answers.concat());
    let mut arguments = run("hello");
    for (inline, content) in [(json!(false), None), (json!(true), Some(&json!("text")))] {
        arguments["outputs"] = json!({"globs": ["out/*"], "inline": inline});
        let result = talk.call("skill_run", arguments.clone()).await;
        let file = &result["output_files"][0];
        check_fields(file, &json!({"name": "out/a", "size_bytes": 4}));
        assert_eq!(file.get("content"), content);
        assert_eq!(result.get("warnings"), None, "{result}");
    }
}

#[tokio::test]
async fn empty_files_of_a_command_that_failed_are_left_out_and_named() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let mut answers = [file("out/a", b"", 0, true), file("out/b", b"x", 1, true)].concat();
    // The daemon may have said so too, of what it did not save.
    answers.push(summary(v1::CollectSummary {
        skipped_files: vec![v1::SkippedFile {
            path: "out/a".into(),
            reason: v1::SkipReason::EmptyAfterFailure.into(),
        }],
        ..Default::default()
    }));
    talk.fake.answer_collections(answers);
    let mut arguments = run("exit 1");
    arguments["output_files"] = json!(["out/*"]);
    let result = talk.call("skill_run", arguments.clone()).await;
    assert_eq!(result["output_files"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        result["skipped_files"],
        json!([{"name": "out/a", "reason": "EMPTY_AFTER_FAILURE"}])
    );
    arguments["command"] = "exit 0".into();
    let result = talk.call("skill_run", arguments).await;
    assert_eq!(result["output_files"].as_array().map(Vec::len), Some(2));
}

//! Files of a run in its result: what is shown of them once, what is only named, and where the rest is.

use serde_json::{Value, json};
use skilld_client::v1;
use skilld_client::v1::SkipReason;
use skilld_tools::ToolOptions;

use super::{Talk, file, run, summary};
use crate::conversation::check_fields;

/// A run that asks for the files of `out/`.
fn asking() -> Value {
    let mut arguments = run("hello");
    arguments["output_files"] = json!(["out/*"]);
    arguments
}

/// Lets every collection return one text.
fn collect_text(talk: &Talk, text: &str) {
    let size = i64::try_from(text.len()).expect("small");
    let whole = [
        file("out/a.txt", text.as_bytes(), size, true),
        vec![summary(v1::CollectSummary::default())],
    ];
    talk.fake.answer_collections(whole.concat());
}

#[tokio::test]
async fn the_main_output_is_in_a_result_once() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    collect_text(&talk, "text");
    let result = talk.call("skill_run", asking()).await;
    let metadata = json!({"name": "out/a.txt", "size_bytes": 4, "ref": "workspace://out/a.txt"});
    check_fields(&result["output_files"][0], &json!({"content": "text"}));
    check_fields(&result["primary_output"], &metadata);
    let elsewhere = json!({"content": null, "note": "its content is in output_files"});
    check_fields(&result["primary_output"], &elsewhere);
    // Without a request only the main output has a text.
    let result = talk.call("skill_run", run("hello")).await;
    check_fields(&result["output_files"][0], &json!({"content": null}));
    check_fields(&result["output_files"][0], &metadata);
    let shown = json!({"content": "text", "note": null});
    check_fields(&result["primary_output"], &shown);
    check_fields(&result["primary_output"], &metadata);
}

/// The daemon sends hidden files and caches last.
#[tokio::test]
async fn the_main_output_is_the_first_file_that_the_daemon_sends() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let files = ["out/report.md", "out/.cache/a.txt"]
        .map(|name| file(name, b"text", 4, true))
        .concat();
    let end = vec![summary(v1::CollectSummary::default())];
    talk.fake.answer_collections([files, end].concat());
    let result = talk.call("skill_run", run("hello")).await;
    assert_eq!(result["primary_output"]["name"], "out/report.md");
}

#[tokio::test]
async fn outputs_without_globs_count_as_left_out() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    collect_text(&talk, "text");
    // As clients fill arguments in that nobody gave.
    let empty = json!({
        "globs": [], "inline": false, "save": false, "name_template": "", "max_files": 0, "max_file_bytes": 0,
        "max_total_bytes": 0,
    });
    for outputs in [json!({}), json!("{}"), json!({"globs": ""}), empty] {
        let mut arguments = run("hello");
        arguments["outputs"] = outputs.clone();
        arguments["output_files"] = json!([]);
        let result = talk.call("skill_run", arguments).await;
        let named = json!({"name": "out/a.txt", "content": null});
        check_fields(&result["output_files"][0], &named);
        let shown = json!({"name": "out/a.txt", "content": "text"});
        check_fields(&result["primary_output"], &shown);
        assert_eq!(result.get("warnings"), None, "{outputs}");
    }
}

#[tokio::test]
async fn a_host_may_leave_out_texts_of_files_by_default() {
    let mut talk = Talk::with_options(|options| options.omit_inline_content = true).await;
    collect_text(&talk, "text");
    for arguments in [asking(), run("hello")] {
        let named = json!({"name": "out/a.txt", "size_bytes": 4, "content": null, "note": null});
        let result = talk.call("skill_run", arguments.clone()).await;
        check_fields(&result["output_files"][0], &named);
        check_fields(&result["primary_output"], &named);
        // A call decides for itself.
        let mut with_text = arguments;
        with_text["omit_inline_content"] = false.into();
        let result = talk.call("skill_run", with_text).await;
        assert!(
            result.to_string().contains("\"content\":\"text\""),
            "{result}"
        );
    }
}

#[tokio::test]
async fn text_of_another_encoding_says_what_reads_it() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    // "城市,数量" in GBK, and the beginning of an archive.
    let table = b"\xb3\xc7\xca\xd0,\xca\xfd\xc1\xbf\n".repeat(500);
    let archive = b"PK\x03\x04\0\0".repeat(500);
    for (bytes, note) in [
        (table, "not plain UTF-8 text: read_file decodes it"),
        (archive, "not text"),
    ] {
        let size = i64::try_from(bytes.len()).expect("small");
        let collected = [
            file("out/a.csv", &bytes, size, false),
            vec![summary(v1::CollectSummary::default())],
        ];
        talk.fake.answer_collections(collected.concat());
        let result = talk.call("skill_run", asking()).await;
        let named = json!({"name": "out/a.csv", "content": null, "note": note});
        check_fields(&result["output_files"][0], &named);
    }
}

#[tokio::test]
async fn notes_name_no_tool_that_is_not_offered() {
    let offered = ["skill_load", "skill_run"].map(str::to_owned);
    let mut talk = Talk::with_options(|options| options.tools = Some(offered.into())).await;
    let end = v1::CollectSummary {
        unchanged_count: 1,
        skipped_files: vec![v1::SkippedFile {
            path: "out/old.txt".into(),
            reason: SkipReason::Unchanged.into(),
        }],
        ..Default::default()
    };
    let long = "line\n".repeat(40_000);
    let size = i64::try_from(long.len()).expect("small");
    let files = ["out/a.txt", "out/b.txt", "out/c.txt"];
    let texts = files.map(|name| file(name, long.as_bytes(), size, true));
    let other = file("out/d.csv", &b"\xb3\xc7\n".repeat(500), 1500, false);
    talk.fake
        .answer_collections([texts.concat(), other, vec![summary(end)]].concat());
    let result = talk.call("skill_run", asking()).await;
    let text = result.to_string();
    assert!(!text.contains("read_file"), "{text}");
    assert!(text.contains("a command can read"), "{text}");
}

#[tokio::test]
async fn read_file_goes_on_where_the_text_of_an_output_file_ends() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let whole: String = (0..10_000)
        .map(|line| format!("line {line:05}\n"))
        .collect();
    collect_text(&talk, &whole);
    let path = "out/a.txt".to_owned();
    let staged = whole.clone().into_bytes();
    talk.fake.state.lock().staged.insert(path, staged);
    let result = talk.call("skill_run", asking()).await;
    assert_eq!(result["limits_hit"], true);
    let shown = &result["output_files"][0];
    assert_eq!(shown["truncated"], true);
    let mut text = shown["content"].as_str().expect("text").to_owned();
    let note = shown["note"].as_str().expect("a note");
    let beginning = format!(
        "{} of {} bytes: read_file goes on with start_line ",
        text.len(),
        whole.len()
    );
    let place = note.strip_prefix(&beginning).expect(note);
    let (line, byte) = place.split_once(" and start_byte ").unwrap_or((place, "0"));
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let mut next = json!({
        "file_name": shown["ref"], "start_line": number(line), "start_byte": number(byte),
    });
    loop {
        let read = talk.call("read_file", next).await;
        text.push_str(read["content"].as_str().expect("text"));
        let Some(line) = read["next_start_line"].as_u64() else {
            break;
        };
        next = json!({"file_name": "out/a.txt", "start_line": line});
    }
    assert!(text == whole, "each byte once, in its place");
}

#[tokio::test]
async fn requested_files_that_do_not_exist_are_named() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.fake
        .answer_collections(vec![summary(v1::CollectSummary {
            unmatched_globs: vec!["out/report.md".into(), "out/*.csv".into()],
            ..Default::default()
        })]);
    let result = talk.call("skill_run", asking()).await;
    let said =
        "no file matches \"out/report.md\", \"out/*.csv\"; paths are relative to the workspace";
    assert_eq!(result["warnings"], json!([format!("output_files: {said}")]));
    let mut nested = run("hello");
    nested["outputs"] = json!({"globs": ["out/report.md", "out/*.csv"]});
    let result = talk.call("skill_run", nested).await;
    assert_eq!(
        result["warnings"],
        json!([format!("outputs.globs: {said}")])
    );
    // Without a request nothing is missing.
    let result = talk.call("skill_run", run("hello")).await;
    assert_eq!(result.get("warnings"), None);
}

#[tokio::test]
async fn unchanged_files_that_a_call_would_save_are_named() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let old = v1::SkippedFile {
        path: "out/old.txt".into(),
        reason: SkipReason::Unchanged.into(),
    };
    let beside_new = |skipped, unchanged| {
        let summary = summary(v1::CollectSummary {
            skipped_files: skipped,
            unchanged_count: unchanged,
            ..Default::default()
        });
        [file("out/new.txt", b"x", 1, true), vec![summary]].concat()
    };
    for (skipped, unchanged, which) in [
        (vec![old], 1, "out/old.txt"),
        (Vec::new(), 3, "3 of the files that match"),
    ] {
        talk.fake.answer_collections(beside_new(skipped, unchanged));
        for mut arguments in [asking(), run("hello")] {
            arguments["save_as_artifacts"] = true.into();
            let result = talk.call("skill_run", arguments).await;
            let said = format!(
                "not changed by this command, and so not among output_files, and not saved either: {which}; read_file reads \
                 them, workspace_save_artifact saves them"
            );
            assert_eq!(result["warnings"], json!([said]));
        }
    }
}

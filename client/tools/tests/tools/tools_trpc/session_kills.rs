//! Ends of commands that go on between calls, by themselves or by a kill: the output, the result and the files that come
//! with the answer.

use serde_json::json;
use skilld_client::v1;
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_tools::ToolOptions;

use super::{Talk, file, run, summary};
use crate::conversation::check_fields;

#[tokio::test]
async fn killing_returns_the_remaining_output_and_the_result() {
    let mut talk = Talk::with_options(|options| options.output_bytes_max = 8).await;
    let mut arguments = run("cat");
    arguments["yield_ms"] = 1.into();
    let id = talk.call("skill_exec", arguments).await["session_id"].clone();
    let write =
        json!({"session_id": id, "chars": "0123456789abcdef", "poll_lines": 1, "yield_ms": 1});
    let seen = talk.call("skill_write_stdin", write).await;
    assert_eq!(seen["output"], "01234567");
    let killed = talk
        .call("skill_kill_session", json!({"session_id": id}))
        .await;
    check_fields(&killed, &json!({"ok": true, "status": "killed"}));
    check_fields(&killed, &json!({"output": "cdef", "lost_bytes": 4}));
    assert_eq!(killed["result"]["reason"], "killed_by_client");
    // Once more it is the same, and the output is not there twice.
    let again = talk
        .call("skill_kill_session", json!({"session_id": id}))
        .await;
    check_fields(&again, &json!({"output": "", "result": killed["result"]}));
}

#[tokio::test]
async fn killing_saves_the_files_and_later_calls_save_none_again() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let mut files = file("out/a", b"saved\n", 6, true);
    if let Some(Payload::FileEnd(end)) = files.last_mut().and_then(|last| last.payload.as_mut()) {
        end.artifact = "artifact://out/a@0".into();
    }
    files.push(summary(v1::CollectSummary {
        artifacts: vec!["artifact://out/a@0".into()],
        ..Default::default()
    }));
    talk.fake.answer_collections(files);
    let mut arguments = run("hold");
    arguments["yield_ms"] = 1.into();
    arguments["outputs"] = json!({"globs": ["out/*"], "inline": true, "save": true});
    let id = talk.call("skill_exec", arguments).await["session_id"].clone();
    let planned = talk.spec().planned_collect.expect("checked");
    assert!(planned.save_as_artifacts.is_some());
    talk.calls();
    let kill = json!({"session_id": id});
    let killed = talk.call("skill_kill_session", kill.clone()).await;
    let result = &killed["result"];
    let saved = json!([{"name": "out/a", "version": 0, "ref": "artifact://out/a@0"}]);
    assert_eq!(result["artifact_files"], saved);
    assert_eq!(result["output_files"].as_array().map(Vec::len), Some(1));
    let saved = json!({"name": "out/a", "content": "saved\n", "artifact": "artifact://out/a@0"});
    check_fields(&result["output_files"][0], &saved);
    assert_eq!(result.get("warnings"), None);
    // Later calls repeat the result and collect nothing.
    for tool in ["skill_kill_session", "skill_poll_session"] {
        let again = talk.call(tool, kill.clone()).await;
        assert_eq!(again["result"], *result, "{tool}");
    }
    let spec = talk.fake.collect_spec();
    assert!(spec.until_exec_end && spec.save_as_artifacts.is_some());
    let calls = talk.calls();
    let collections = calls.iter().filter(|call| call.ends_with("CollectOutputs"));
    assert_eq!(collections.count(), 1, "{calls:?}");
}

#[tokio::test]
async fn an_end_comes_with_what_children_printed_after_it() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let shell = json!({"command": "parent", "background": true});
    for (tool, arguments) in [("workspace_exec", shell), ("skill_exec", run("parent"))] {
        let ended = talk.call(tool, arguments).await;
        let all = json!({"status": "exited", "output": "parent\nchild\n", "more": null});
        check_fields(&ended, &all);
        assert_eq!(ended["next_offset"], 13, "{tool}");
    }
    // Where the call takes no more of it, the answer says that more comes.
    let mut arguments = run("parent");
    arguments["poll_lines"] = 1.into();
    let first = talk.call("skill_exec", arguments).await;
    check_fields(&first, &json!({"status": "exited", "output": "parent\n"}));
    assert_eq!(first["more"], true);
    let poll = json!({"session_id": first["session_id"]});
    let rest = talk.call("skill_poll_session", poll).await;
    check_fields(&rest, &json!({"output": "child\n", "more": null}));
}

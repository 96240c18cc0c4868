//! A session of an interactive program over two turns.
//!
//! Docker: the whole system answers the tools, with a program in a container that waits for input meanwhile.

use anyhow::{Context, Result};
use serde_json::json;
use skilld_tests::DefaultDaemon;
use skilld_tools::ToolOptions;

use super::Talk;

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one conversation, in its order")]
async fn an_interactive_session_spans_turns_and_gives_each_byte_once() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let mut talk = Talk::new(&daemon, "interactive", ToolOptions::default())?;
    let start = json!({
        "skill": "flash-cards", "yield_ms": 60000,
        "command": "python scripts/quiz.py --count 2 --rounds 1; echo done > $OUTPUT_DIR/end.txt",
    });
    let started = talk.call("skill_exec", start).await?;
    assert_eq!(started["status"], "running", "{started}");
    let prompt = started["output"].as_str().context("output")?.to_owned();
    assert!(
        prompt.starts_with("1/2 ") && prompt.ends_with("? "),
        "{prompt:?}"
    );
    assert_eq!(started["interaction"]["kind"], "prompt");
    assert_eq!(
        (&started["offset"], &started["next_offset"]),
        (&json!(0), &json!(prompt.len()))
    );
    let id = started["session_id"].as_str().context("an id")?.to_owned();

    // Nothing new: nothing comes, and not the prompt again.
    let polled = talk
        .call(
            "skill_poll_session",
            json!({"session_id": id, "yield_ms": 1}),
        )
        .await?;
    assert_eq!(polled["output"], "", "{polled}");

    // Another conversation does not know it, whatever state it is given.
    let mut other = talk.other("another");
    let unknown = format!("UNKNOWN_SESSION: unknown session_id: {id}");
    for (tool, arguments) in [
        ("skill_poll_session", json!({"session_id": id})),
        ("skill_write_stdin", json!({"session_id": id, "chars": "x"})),
        ("skill_kill_session", json!({"session_id": id})),
        (
            "workspace_write_stdin",
            json!({"session_id": id, "chars": "x"}),
        ),
    ] {
        assert_eq!(
            other.expect_refusal(tool, arguments).await,
            unknown,
            "{tool}"
        );
    }

    // The second turn goes on with it.
    let mut next = Talk::new(&daemon, "interactive", ToolOptions::default())?;
    (next.state, next.calls) = (talk.state.clone(), talk.calls);
    let write = json!({"session_id": id, "chars": "?", "submit": true, "yield_time_ms": 60000});
    let second = next.call("skill_write_stdin", write).await?;
    assert_eq!(second["offset"], json!(prompt.len()));
    let mut text = second["output"].as_str().context("output")?.to_owned();
    // A call may return when output has been quiet, so also before the next question.
    let poll = json!({"session_id": id, "yield_ms": 60000});
    while !text.ends_with("? ") {
        let polled = next.call("skill_poll_session", poll.clone()).await?;
        assert_eq!(polled["status"], "running", "{polled} after {text:?}");
        text += polled["output"].as_str().context("output")?;
    }
    assert!(text.contains("2/2 ") && !text.contains("1/2 "), "{text:?}");

    let last = json!({"session_id": id, "eof": true, "yield_ms": 60000});
    let last = next.run_to_end("skill_write_stdin", last).await?;
    assert_eq!(last["status"], "exited", "{last}");
    assert_eq!(last["exit_code"], 0);
    let result = last["result"].clone();
    assert!(
        result["stdout"]
            .as_str()
            .is_some_and(|text| text.starts_with("1/2 ") && text.contains("score ")),
        "{result}"
    );
    assert_eq!(result["output_files"][0]["name"], "out/end.txt");
    assert_eq!(result["primary_output"]["content"], "done\n");
    assert!(result["duration_ms"].as_u64() > Some(0));
    // And the same later, without any output twice.
    let again = next
        .call("skill_poll_session", json!({"session_id": id}))
        .await?;
    assert_eq!(again["result"], result);
    assert_eq!(again["output"], "");
    let write = json!({"session_id": id, "chars": "x"});
    let refused = next.expect_refusal("skill_write_stdin", write).await;
    assert!(
        refused.starts_with("SESSION_NOT_RUNNING: session is not running"),
        "{refused}"
    );
    next.end().await?;
    daemon.stop().await
}

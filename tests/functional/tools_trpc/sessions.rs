//! Sessions of interactive programs: input, terminals, polls, floods and limits.

use super::*;

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one conversation, in its order")]
async fn an_interactive_session_goes_on_over_turns_and_gives_each_byte_once() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
    let start = json!({"skill": "flash-cards", "command": "python scripts/quiz.py --count 2 --rounds 1; echo done > $OUTPUT_DIR/end.txt"});
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
    let mut other = talk.other("2");
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
    let mut next = Talk::new(&daemon, ToolOptions::default())?;
    (next.state, next.calls) = (talk.state.clone(), talk.calls);
    let write = json!({"session_id": id, "chars": "?", "submit": true, "yield_time_ms": 5000});
    let second = next.call("skill_write_stdin", write).await?;
    let text = second["output"].as_str().context("output")?;
    assert!(text.contains("2/2 ") && !text.contains("1/2 "), "{text:?}");
    assert_eq!(second["offset"], json!(prompt.len()));

    let last = json!({"session_id": id, "eof": true, "yield_ms": 20000});
    let mut last = next.call("skill_write_stdin", last).await?;
    if last["status"] == "running" {
        // It printed and was quiet before it ended.
        last = next
            .call(
                "skill_poll_session",
                json!({"session_id": id, "yield_ms": 20000}),
            )
            .await?;
    }
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
    daemon.stop().await
}

#[tokio::test]
async fn a_selection_is_hinted_at_a_terminal_is_one_and_kill_returns_the_tail() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
    let start = json!({
        "skill": "python-math",
        "command": "test -t 0 && printf '1. red\\n2. blue\\nWhich? '; read x; echo got $x; echo saved > $OUTPUT_DIR/a; trap 'echo bye; exit 3' TERM; while :; do read y; done",
        "tty": true,
        "outputs": {"globs": ["out/*"], "inline": true, "save": true},
    });
    let started = talk.call("skill_exec", start).await?;
    assert_eq!(started["interaction"]["kind"], "selection", "{started}");
    let id = started["session_id"].as_str().context("an id")?.to_owned();
    let write = json!({"session_id": id, "chars": "2", "submit": true, "yield_ms": 5000});
    let answered = talk.call("skill_write_stdin", write).await?;
    assert!(
        answered["output"]
            .as_str()
            .is_some_and(|text| text.contains("got 2")),
        "{answered}"
    );
    let killed = talk
        .call("skill_kill_session", json!({"session_id": id}))
        .await?;
    assert_eq!(
        (&killed["ok"], &killed["status"]),
        (&json!(true), &json!("killed")),
        "{killed}"
    );
    assert!(
        killed["output"]
            .as_str()
            .is_some_and(|text| text.contains("bye") && !text.contains("got 2")),
        "{killed}"
    );
    // What it left is collected, also if nobody had asked; kept by the daemon, once.
    assert_eq!(
        killed["result"]["output_files"][0]["content"], "saved\n",
        "{killed}"
    );
    let saved = json!([{"name": "out/a", "version": 0, "ref": "artifact://out/a@0"}]);
    until("its file is saved", Duration::from_secs(30), async || {
        let polled = json!({"session_id": id});
        let polled = talk.call("skill_poll_session", polled).await?;
        Ok((polled["result"]["artifact_files"] == saved).then_some(()))
    })
    .await?;
    daemon.stop().await
}

/// A program that reads when it is told to, by a file.
const WAITS: &str = "while [ ! -e $WORK_DIR/go ]; do sleep 0.05; done";

#[tokio::test]
async fn a_late_reader_blocks_no_call_and_gets_each_byte_once() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
    let start =
        json!({"skill": "python-math", "command": format!("{WAITS}; sha256sum"), "yield_ms": 1});
    let id = talk.call("skill_exec", start).await?["session_id"].clone();
    let text: String = (0..20_000).map(|n| format!("{n:05}\n")).collect();
    let write = json!({"session_id": id, "chars": text, "eof": true, "yield_ms": 1});
    let begin = std::time::Instant::now();
    let half = talk.call("skill_write_stdin", write).await?;
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    let left = half["unwritten_bytes"].as_u64().context("some are left")?;
    let left = usize::try_from(left)?;
    assert!(left > 0 && left < text.len(), "{half}");
    talk.call("workspace_exec", json!({"command": "touch work/go"}))
        .await?;
    let rest = json!({"session_id": id, "chars": &text[text.len() - left..], "eof": true, "yield_ms": 20000});
    let mut ended = talk.call("skill_write_stdin", rest).await?;
    if ended["status"] == "running" {
        let poll = json!({"session_id": id, "yield_ms": 20000});
        ended = talk.call("skill_poll_session", poll).await?;
    }
    assert_eq!(ended["unwritten_bytes"], Value::Null, "{ended}");
    let run = json!({"skill": "python-math", "command": "sha256sum", "stdin": text});
    let wanted = talk.call("skill_run", run).await?["stdout"].clone();
    assert_eq!(ended["result"]["stdout"], wanted, "{ended}");
    daemon.stop().await
}

/// After a line that was begun it takes two.
#[tokio::test]
async fn each_end_of_input_reaches_the_program_of_a_terminal() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
    let start = json!({"skill": "python-math", "command": "cat", "tty": true, "yield_ms": 1});
    let id = talk.call("skill_exec", start).await?["session_id"].clone();
    let first = json!({"session_id": id, "chars": "abc", "eof": true});
    let first = talk.call("skill_write_stdin", first).await?;
    assert_eq!(first["status"], "running", "{first}");
    let second = json!({"session_id": id, "eof": true, "yield_ms": 20000});
    let second = talk.call("skill_write_stdin", second).await?;
    assert_eq!(second["status"], "exited", "{second}");
    assert_eq!(second["exit_code"], 0);
    daemon.stop().await
}

#[tokio::test]
async fn a_session_polled_late_has_its_own_files_only() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
    let start = json!({"skill": "python-math", "command": format!("{WAITS}; echo a > $OUTPUT_DIR/a"), "yield_ms": 1});
    let id = talk.call("skill_exec", start).await?["session_id"].clone();
    talk.call("workspace_exec", json!({"command": "touch work/go"}))
        .await?;
    let exec = format!(
        "{}/{}",
        talk.session.workspace_id(),
        id.as_str().context("an id")?
    );
    until("it has ended", Duration::from_secs(30), async || {
        let found = daemon.client.get_exec(&exec).await?;
        Ok((found.state() == ExecState::Closed).then_some(()))
    })
    .await?;
    let run = json!({"skill": "python-math", "command": "echo b > $OUTPUT_DIR/b"});
    let later = talk.call("skill_run", run).await?;
    assert_eq!(later["output_files"][0]["name"], "out/b");
    let polled = talk
        .call("skill_poll_session", json!({"session_id": id}))
        .await?;
    let files = polled["result"]["output_files"]
        .as_array()
        .context("files")?;
    let names: Vec<&Value> = files.iter().map(|file| &file["name"]).collect();
    assert_eq!(names, ["out/a"]);
    daemon.stop().await
}

#[tokio::test]
async fn streams_of_a_session_are_separate_and_lost_bytes_are_counted() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(
        &daemon,
        ToolOptions {
            output_bytes_max: 1 << 20,
            ..ToolOptions::default()
        },
    )?;
    let command = "printf abc; echo err >&2; sleep 0.5; printf 'def\\r\\n'; read x; yes | head -c 10000000; echo end; read x";
    let start = json!({"skill": "python-math", "command": command, "yield_ms": 5000});
    let mut seen = talk.call("skill_exec", start).await?;
    let id = seen["session_id"].clone();
    let (mut stdout, mut stderr) = (String::new(), String::new());
    let poll = json!({"session_id": id, "yield_ms": 5000});
    while !stdout.ends_with('\n') {
        stdout.push_str(seen["output"].as_str().context("text")?);
        stderr.push_str(seen["stderr"].as_str().unwrap_or_default());
        if !stdout.ends_with('\n') {
            seen = talk.call("skill_poll_session", poll.clone()).await?;
        }
    }
    assert_eq!((&*stdout, &*stderr), ("abcdef\r\n", "err\n"));
    let write = json!({"session_id": id, "submit": true, "yield_ms": 1});
    let mut seen = talk.call("skill_write_stdin", write).await?;
    let exec = format!(
        "{}/{}",
        talk.session.workspace_id(),
        id.as_str().context("an id")?
    );
    until("it has printed all", Duration::from_secs(30), async || {
        let found = daemon.client.get_exec(&exec).await?;
        Ok((found.total.unwrap_or_default().stdout == 10_000_012).then_some(()))
    })
    .await?;
    let (mut shown, mut lost) = (0, 0);
    loop {
        shown += seen["output"].as_str().context("text")?.len() as u64;
        lost += seen["lost_bytes"].as_u64().unwrap_or(0);
        if seen["next_offset"] == 10_000_016 {
            break;
        }
        seen = talk.call("skill_poll_session", poll.clone()).await?;
    }
    // The window holds 4 MiB, and each look takes some of what comes.
    assert!(lost > 4_000_000, "{lost}");
    assert_eq!(shown + lost, 10_000_004);
    daemon.stop().await
}

#[tokio::test]
async fn sessions_beyond_the_workspaces_limit_are_refused() -> Result<()> {
    let options = skilld_tests::Options::default().set("execs.count_max", "2");
    let daemon = Daemon::start_with(options).await?;
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
    let start = json!({"skill": "python-math", "command": "cat", "yield_ms": 1});
    let first = talk.call("skill_exec", start.clone()).await?;
    talk.call("skill_exec", start.clone()).await?;
    let error = talk.try_call("skill_exec", start.clone()).await;
    let error = error.expect_err("too many").to_json();
    assert_eq!(
        (&error["error"], &error["reason"]),
        (&json!("DAEMON"), &json!("REASON_QUOTA_EXCEEDED"))
    );
    let kill = json!({"session_id": first["session_id"]});
    talk.call("skill_kill_session", kill).await?;
    talk.call("skill_exec", start).await?;
    daemon.stop().await
}

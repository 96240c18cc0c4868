//! The trpc family of skill tools, in conversations as a model has them: over several turns, on a real daemon.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::FutureExt;
use serde_json::{Value, json};
use skilld_client::prompt::{Upload, UploadContent};
use skilld_client::state::{Delta, SessionState, merge_all};
use skilld_client::tools::host::HostTools;
use skilld_client::tools::{Call, Definition, Options, Session, ToolError, Toolset};
use skilld_client::v1::{
    ArtifactScope, ExecState, ListWorkspacesRequest, LoadArtifactRequest, WorkspaceState,
};
use skilld_tests::wait::until;
use skilld_tests::{Daemon, docker};

/// A conversation: calls in order, each with a new id, and the state that they leave.
struct Talk {
    tools: Toolset,
    session: Session,
    state: SessionState,
    calls: u32,
}

impl Talk {
    fn new(daemon: &Daemon, options: Options) -> Result<Self> {
        Self::with(daemon, options, HostTools::new())
    }

    fn with(daemon: &Daemon, options: Options, host: HostTools) -> Result<Self> {
        Ok(Self {
            tools: Toolset::new(daemon.client.clone(), options, host)?,
            session: Session {
                app: "tests".into(),
                user: "ann".into(),
                session: "1".into(),
                agent: "helper".into(),
            },
            state: SessionState::new(),
            calls: 0,
        })
    }

    /// The same tools and nothing of what happened: another conversation.
    fn other(&self, session: &str) -> Self {
        Self {
            tools: self.tools.clone(),
            session: Session {
                session: session.into(),
                ..self.session.clone()
            },
            state: self.state.clone(),
            calls: 0,
        }
    }

    async fn try_call(&mut self, name: &str, arguments: Value) -> Result<Value, ToolError> {
        self.calls += 1;
        let call = Call {
            id: format!("call_{}", self.calls),
            name: name.into(),
            arguments,
        };
        let answer = self.tools.call(&self.session, &self.state, call).await?;
        // As a host keeps it: JSON.
        self.state.apply(&answer.delta);
        let kept = serde_json::to_string(&self.state).expect("JSON");
        self.state = serde_json::from_str(&kept).expect("JSON");
        Ok(answer.result)
    }

    async fn call(&mut self, name: &str, arguments: Value) -> Result<Value> {
        let made = format!("{name} {arguments}");
        self.try_call(name, arguments).await.context(made)
    }

    async fn refused(&mut self, name: &str, arguments: Value) -> String {
        let before = self.state.clone();
        let error = self.try_call(name, arguments).await.expect_err("refused");
        assert_eq!(self.state, before, "an error changes nothing");
        format!("{}: {error}", error.code())
    }

    async fn offered(&self) -> Result<Vec<String>> {
        let definitions = self.tools.definitions(&self.session, &self.state).await?;
        Ok(definitions.into_iter().map(|tool| tool.name).collect())
    }
}

fn forecast() -> HostTools {
    let mut host = HostTools::new();
    for name in ["get_forecast", "delete_everything"] {
        let definition = Definition {
            name: name.into(),
            description: String::new(),
            parameters: json!({"type": "object"}),
            returns: json!({}),
        };
        let answer =
            |arguments: Value| async move { Ok(json!({"for": arguments["place"], "rain": 0})) };
        host.register(
            definition,
            Arc::new(move |arguments| answer(arguments).boxed()),
        );
    }
    host
}

#[tokio::test]
async fn a_conversation_discovers_inspects_loads_selects_runs_and_reads_back_in_the_next_turn()
-> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::with(&daemon, Options::default(), forecast())?;

    let names = talk.call("skill_list", json!({})).await?;
    let names = names.as_array().context("a list")?;
    assert!(names.contains(&json!("csv-report")) && names.contains(&json!("trip-planner")));
    let docs = talk
        .call("skill_list_docs", json!({"skill_name": "image-info"}))
        .await?;
    assert_eq!(
        docs,
        json!([
            "references/formats.md",
            "references/presets.md",
            "scripts/image_info.py"
        ])
    );
    let declared = talk
        .call("skill_list_tools", json!({"skill": "trip-planner"}))
        .await?;
    assert_eq!(
        declared["available_tools"],
        json!(["get_forecast", "search_places", "travel_time"])
    );

    // What no loaded skill names is not offered, and not called.
    let is_offered = |offered: &[String], name: &str| offered.iter().any(|tool| tool == name);
    assert!(!is_offered(&talk.offered().await?, "get_forecast"));
    let refused = talk.refused("get_forecast", json!({})).await;
    assert!(refused.starts_with("UNKNOWN_TOOL"), "{refused}");
    let loaded = talk
        .call("skill_load", json!({"skill": "trip-planner"}))
        .await?;
    assert_eq!(loaded["message"], "loaded: trip-planner");
    let offered = talk.offered().await?;
    assert!(is_offered(&offered, "get_forecast") && !is_offered(&offered, "delete_everything"));
    let answer = talk.call("get_forecast", json!({"place": "Bonn"})).await?;
    assert_eq!(answer["for"], "Bonn");
    let selected = json!({"skill": "trip-planner", "tools": ["search_places", "nonsense"]});
    let selected = talk.call("skill_select_tools", selected).await?;
    // The skill declares one of them; the host has neither.
    assert_eq!(selected["selected_tools"], json!([]));
    assert_eq!(
        selected["unknown_tools"],
        json!(["nonsense", "search_places"])
    );
    assert!(!is_offered(&talk.offered().await?, "get_forecast"));

    talk.call("skill_load", json!({"skill": "csv-report"}))
        .await?;
    let table = Upload {
        name: "../Q1 sales.csv".into(),
        original_name: String::new(),
        content: UploadContent::Bytes("region,n\nnorth,1\nsouth,2\n".into()),
        key: String::new(),
    };
    let staged = talk.tools.stage_uploads(&talk.session, &[table]).await?;
    assert_eq!(staged.files[0].name, "work/inputs/Q1 sales.csv");
    let run = json!({
        "skill": "csv-report",
        "command": "python scripts/csv_report.py 'inputs/Q1 sales.csv'",
        "output_files": ["$OUTPUT_DIR/**"],
    });
    let result = talk.call("skill_run", run).await?;
    assert_eq!(result["exit_code"], 0, "{result}");
    let files = result["output_files"].as_array().context("files")?;
    let names: Vec<&str> = files
        .iter()
        .filter_map(|file| file["name"].as_str())
        .collect();
    assert_eq!(names, ["out/report.json", "out/report.md"]);
    assert_eq!(files[1]["mime_type"], "text/markdown");
    assert_eq!(files[1]["ref"], "workspace://out/report.md");
    assert_eq!(result["primary_output"]["name"], "out/report.json");
    let text = files[1]["content"].as_str().context("text")?.to_owned();
    assert!(text.contains("north"), "{text}");

    // The next turn: another process with what was kept of the first.
    let mut next = Talk::new(&daemon, Options::default())?;
    next.state = talk.state.clone();
    next.calls = talk.calls;
    let read = next
        .call(
            "read_file",
            json!({"file_name": "workspace://out/report.md"}),
        )
        .await?;
    assert_eq!(read["content"], text);
    let lines = json!({"file_name": "workspace://out/report.md", "start_line": 2, "num_lines": 1});
    let read = next.call("read_file", lines).await?;
    assert_eq!(read["content"].as_str(), text.split_inclusive('\n').nth(1));
    assert_eq!(read["next_start_line"], 3);
    let read = next
        .call("read_file", json!({"path": "skill://csv-report/SKILL.md"}))
        .await?;
    assert!(
        read["content"]
            .as_str()
            .is_some_and(|text| text.contains("# csv-report"))
    );

    let saved = next
        .call(
            "workspace_save_artifact",
            json!({"path": "$OUTPUT_DIR/report.md"}),
        )
        .await?;
    assert_eq!(saved["ref"], "artifact://out/report.md@0");
    assert_eq!(saved["size_bytes"], text.len());
    let read = next
        .call("read_file", json!({"file_name": saved["ref"]}))
        .await?;
    assert_eq!(read["content"], text);

    // An input from the artifact, a file of this run only, and the earlier ones are not in its result.
    let again = json!({
        "skill_name": "csv-report",
        "command": "wc -c < inputs/old.md > out/size.txt; cat out/size.txt",
        "inputs": [{"src": saved["ref"], "dst": "inputs/old.md"}],
    });
    let result = next.call("skill_run", again).await?;
    assert_eq!(
        result["stdout"].as_str().map(str::trim),
        Some(text.len().to_string().as_str())
    );
    assert_eq!(result["staged_inputs"][0]["name"], "work/inputs/old.md");
    assert_eq!(result["output_files"][0]["name"], "out/size.txt");
    assert_eq!(result["output_files"].as_array().map(Vec::len), Some(1));
    next.tools.end(&next.session).await?;
    let gone = next
        .refused(
            "read_file",
            json!({"file_name": "workspace://out/report.md"}),
        )
        .await;
    assert!(gone.starts_with("FILE_NOT_FOUND"), "{gone}");
    daemon.stop().await
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one conversation, in its order")]
async fn an_interactive_session_goes_on_over_turns_and_gives_each_byte_once() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
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
        assert_eq!(other.refused(tool, arguments).await, unknown, "{tool}");
    }

    // The second turn goes on with it.
    let mut next = Talk::new(&daemon, Options::default())?;
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
    let refused = next.refused("skill_write_stdin", write).await;
    assert!(
        refused.starts_with("SESSION_NOT_RUNNING: session is not running"),
        "{refused}"
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_selection_is_hinted_at_a_terminal_is_one_and_kill_returns_the_tail() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
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
async fn a_program_that_reads_late_holds_no_call_up_and_gets_each_byte_once() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
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
    let mut talk = Talk::new(&daemon, Options::default())?;
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
async fn a_session_that_is_looked_at_late_has_its_own_files_and_no_later_ones() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
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
async fn streams_of_a_session_are_apart_and_what_a_flood_drowns_is_counted() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(
        &daemon,
        Options {
            output_bytes_max: 1 << 20,
            ..Options::default()
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
async fn sessions_beyond_the_workspaces_limit_are_refused_and_said() -> Result<()> {
    let options = skilld_tests::Options::default().set("execs.count_max", "2");
    let daemon = Daemon::start_with(options).await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
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

#[tokio::test]
async fn a_run_reports_what_happened_as_it_happened() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
    let run = |command: &str| json!({"skill": "python-math", "command": command});

    // The time is the command's, not its limit; what was said until then is there, and so are its files.
    let late = json!({"skill": "python-math", "command": "echo early; echo x > $OUTPUT_DIR/x; sleep 60", "timeout": 1});
    let result = talk.call("skill_run", late).await?;
    assert_eq!(
        (&result["timed_out"], &result["exit_code"]),
        (&json!(true), &json!(-1)),
        "{result}"
    );
    assert_eq!(
        (&result["stdout"], &result["reason"]),
        (&json!("early\n"), &json!("timeout"))
    );
    let took = result["duration_ms"].as_u64().context("a time")?;
    assert!((1000..30_000).contains(&took), "{took}");
    assert_eq!(result["output_files"][0]["name"], "out/x");

    // A failure keeps what it printed, bytes that are no text do not spoil it, and a flood is cut in the open.
    let result = talk
        .call(
            "skill_run",
            run("echo out; echo err >&2; printf '\\377'; exit 7"),
        )
        .await?;
    assert_eq!(result["exit_code"], 7);
    assert_eq!(
        (&result["stdout"], &result["stderr"]),
        (&json!("out\n\u{fffd}"), &json!("err\n"))
    );
    let result = talk
        .call(
            "skill_run",
            run("echo first; yes | head -c 20000000; echo last"),
        )
        .await?;
    let stdout = result["stdout"].as_str().context("text")?;
    assert!(stdout.starts_with("first\n") && stdout.ends_with("last\n") && stdout.len() < 17_000);
    assert!(
        result["warnings"][0]
            .as_str()
            .is_some_and(|text| text.starts_with("stdout truncated")),
        "{result}"
    );

    // stdin, environment and editor.
    let typed = json!({"skill": "python-math", "command": "cat; echo $A; echo $SKILL_NAME; echo x > $WORK_DIR/e; $EDITOR $WORK_DIR/e; cat $WORK_DIR/e",
                       "stdin": "typed\n", "env": {"A": "b c"}, "editor_text": "edited\n"});
    let result = talk.call("skill_run", typed).await?;
    assert_eq!(
        result["stdout"], "typed\nb c\npython-math\nedited\n",
        "{result}"
    );
    for (cwd, wanted) in [
        ("", "/workspace/skills/python-math"),
        ("scripts", "/workspace/skills/python-math/scripts"),
        ("$SKILLS_DIR/$SKILL_NAME", "/workspace/skills/python-math"),
        ("/work", "/workspace/work"),
        ("$OUTPUT_DIR", "/workspace/out"),
    ] {
        let run = json!({"skill": "python-math", "command": "pwd", "cwd": cwd});
        let result = talk.call("skill_run", run).await?;
        assert_eq!(result["stdout"], format!("{wanted}\n"), "{cwd}");
    }
    let escape = json!({"skill": "python-math", "command": "pwd", "cwd": "../../.."});
    let refused = talk.refused("skill_run", escape).await;
    assert!(refused.starts_with("INVALID_ARGUMENTS"), "{refused}");
    daemon.stop().await
}

#[tokio::test]
async fn outputs_are_whole_named_and_accounted_for() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
    let make = "head -c 5000000 /dev/zero > $OUTPUT_DIR/big.bin; printf 'a\\0b' > $OUTPUT_DIR/bin; \
                echo text > $OUTPUT_DIR/text.txt; printf 'h\\000i\\000' | cat > $OUTPUT_DIR/wide; mkfifo $OUTPUT_DIR/pipe";
    let run = json!({"skill": "python-math", "command": make, "output_files": ["out/*"], "save_as_artifacts": true, "artifact_prefix": "run-1/"});
    let result = talk.call("skill_run", run).await?;
    let files = result["output_files"].as_array().context("files")?;
    let names: Vec<&str> = files
        .iter()
        .filter_map(|file| file["name"].as_str())
        .collect();
    assert_eq!(
        names,
        ["out/big.bin", "out/bin", "out/text.txt", "out/wide"]
    );
    assert_eq!(
        (&files[0]["size_bytes"], &files[0]["artifact"]),
        (&json!(5_000_000), &json!("artifact://run-1/out/big.bin@0"))
    );
    assert_eq!(
        (&files[1]["content"], &files[1]["note"]),
        (&Value::Null, &json!("not text"))
    );
    assert_eq!(files[1]["sha256"], skilld_tests::files::sha256(b"a\0b"));
    assert_eq!(
        result["skipped_files"],
        json!([{"name": "out/pipe", "reason": "FILE_TYPE"}])
    );
    assert_eq!(result["artifact_files"].as_array().map(Vec::len), Some(4));
    assert!(talk.state.get("temp:skill:artifacts").is_some());

    let load = LoadArtifactRequest {
        name: "artifacts/run-1/out/big.bin".into(),
        scope: Some(ArtifactScope {
            app: talk.session.app.clone(),
            user: talk.session.user.clone(),
            session: talk.session.session.clone(),
        }),
        version: None,
    };
    let mut saved = daemon.client.load_artifact(load).await?;
    let mut bytes = 0;
    while let Some(chunk) = saved.next().await? {
        bytes += chunk.len();
    }
    assert_eq!(
        bytes, 5_000_000,
        "what is saved is whole, whatever is shown"
    );
    assert_eq!(files[3]["note"], "not text");

    let few = json!({"skill": "python-math", "command": "for i in 1 2 3; do echo $i > $OUTPUT_DIR/$i; done; echo long enough > $OUTPUT_DIR/long",
                     "outputs": {"globs": ["$OUTPUT_DIR/[1-3l]*"], "MaxFiles": 3, "MaxFileBytes": 4, "Inline": true}});
    let result = talk.call("skill_run", few).await?;
    assert_eq!(result["limits_hit"], true, "{result}");
    assert_eq!(
        result["skipped_files"],
        json!([{"name": "out/long", "reason": "MAX_FILES"}])
    );
    let cut = json!({"skill": "python-math", "command": "echo long enough > $OUTPUT_DIR/cut; echo whole > $OUTPUT_DIR/whole",
                     "outputs": {"globs": ["out/cut", "out/whole"], "max_file_bytes": 7, "inline": true, "save": true}});
    let result = talk.call("skill_run", cut).await?;
    assert_eq!(
        (
            &result["output_files"][0]["content"],
            &result["output_files"][0]["truncated"]
        ),
        (&json!("long en"), &json!(true))
    );
    assert_eq!(
        result["artifact_files"],
        json!([{"name": "out/whole", "version": 0, "ref": "artifact://out/whole@0"}]),
        "one that is cut does not spoil the others"
    );
    assert_eq!(
        result["skipped_files"],
        json!([{"name": "out/cut", "reason": "NOT_WHOLE"}])
    );

    // The same of a command that goes on.
    let cut = json!({"skill": "python-math", "command": "echo long enough > $OUTPUT_DIR/cut; echo whole > $OUTPUT_DIR/whole",
                     "outputs": {"globs": ["out/cut", "out/whole"], "max_file_bytes": 7, "inline": true, "save": true}, "yield_ms": 10000});
    let mut of_session = talk.call("skill_exec", cut).await?;
    while of_session["result"]["artifact_files"].is_null() {
        let poll = json!({"session_id": of_session["session_id"]});
        of_session = talk.call("skill_poll_session", poll).await?;
    }
    let of_session = &of_session["result"];
    for key in ["skipped_files", "limits_hit"] {
        assert_eq!(of_session[key], result[key], "{key}");
    }
    assert_eq!(of_session["output_files"][0]["content"], "long en");
    assert_eq!(
        of_session["artifact_files"][0]["ref"],
        "artifact://out/whole@1"
    );

    // Names, sizes and references without text, and a glob that is wrong loses nothing of the run.
    let bare = json!({"skill": "python-math", "command": "echo x > $OUTPUT_DIR/bare", "output_files": ["out/bare"], "omit_inline_content": true});
    let result = talk.call("skill_run", bare).await?;
    assert_eq!(
        (
            &result["output_files"][0]["size_bytes"],
            &result["output_files"][0]["content"]
        ),
        (&json!(2), &Value::Null)
    );
    assert_eq!(result.get("primary_output"), None);
    let failed = json!({"skill": "python-math", "command": "touch $OUTPUT_DIR/empty; echo y > $OUTPUT_DIR/full; false", "output_files": ["out/empty", "out/full"]});
    let result = talk.call("skill_run", failed).await?;
    assert_eq!(result["output_files"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        result["skipped_files"],
        json!([{"name": "out/empty", "reason": "EMPTY_AFTER_FAILURE"}])
    );
    daemon.stop().await
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one conversation, in its order")]
async fn a_policy_holds_on_every_way_to_run_something() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut free = Talk::new(&daemon, Options::default())?;
    // Programs under the allowed name, where PATH would find them first and elsewhere.
    let plant = "mkdir -p .venv/bin work/bin && for f in .venv/bin/echo work/echo; do printf '#!/bin/sh\\nprintf evil' > $f; chmod +x $f; done";
    let planted = free
        .call(
            "skill_run",
            json!({"skill": "python-math", "command": plant}),
        )
        .await?;
    assert_eq!(planted["exit_code"], 0, "{planted}");
    let evil = json!({"skill": "python-math", "command": "env echo"});
    let evil = free.call("skill_run", evil).await?;
    assert_eq!(
        evil["stdout"], "evil",
        "the plant grows where nothing is restricted"
    );
    let mut options = Options {
        allowed_commands: vec!["echo".into(), "sort".into()],
        ..Options::default()
    };
    let mut talk = Talk::new(&daemon, options.clone())?;
    talk.calls = 100;
    for (tool, base) in [
        ("skill_run", json!({"skill": "python-math"})),
        (
            "skill_exec",
            json!({"skill": "python-math", "yield_ms": 10000}),
        ),
        ("workspace_exec", json!({})),
    ] {
        let with = |key: &str, value: Value| {
            let mut arguments = base.clone();
            arguments[key] = value;
            arguments
        };
        let result = talk
            .call(tool, with("command", json!("echo 'a; b' \"\" c")))
            .await?;
        let output = result.get("stdout").or(result.get("output")).cloned();
        assert_eq!(output, Some(json!("a; b  c\n")), "{tool}: {result}");
        for command in [
            "work/echo x",
            "/workspace/work/echo x",
            "cat x",
            "echo x; cat y",
            "echo $(cat y)",
            "bash -c 'echo x'",
        ] {
            let refused = talk.refused(tool, with("command", json!(command))).await;
            assert!(
                refused.starts_with(&format!("COMMAND_REFUSED: {tool}: ")),
                "{tool} {command}: {refused}"
            );
        }
        let mut loaded = with("command", json!("echo x"));
        loaded["env"] = json!({"LD_PRELOAD": "/workspace/work/x.so"});
        assert!(
            talk.refused(tool, loaded)
                .await
                .contains("env must not set LD_PRELOAD")
        );
        let result = talk
            .call(tool, with("command", json!("/bin/echo x")))
            .await?;
        let output = result.get("stdout").or(result.get("output")).cloned();
        assert_eq!(output, Some(json!("x\n")), "it is that program: {result}");
    }
    let typed =
        json!({"skill": "python-math", "command": "sort", "stdin": "b\na\n", "cwd": "scripts"});
    let result = talk.call("skill_run", typed).await?;
    assert_eq!(result["stdout"], "a\nb\n", "{result}");
    options.allowed_commands.clear();
    options.denied_commands = vec!["cat".into()];
    let mut talk = Talk::new(&daemon, options)?;
    talk.calls = 200;
    for command in ["cat x", "/bin/cat x", "sh -c 'cat x'", "work/echo"] {
        let run = json!({"skill": "python-math", "command": command});
        assert!(
            talk.refused("skill_run", run)
                .await
                .starts_with("COMMAND_REFUSED"),
            "{command}"
        );
    }
    let run = json!({"skill": "python-math", "command": "python3 scripts/python_math.py fib 10"});
    assert_eq!(talk.call("skill_run", run).await?["stdout"], "55\n");
    daemon.stop().await
}

/// Each tool that runs something, with a command.
fn ways(command: &str) -> [(&'static str, Value); 4] {
    [
        (
            "skill_run",
            json!({"skill": "python-math", "command": command}),
        ),
        (
            "skill_exec",
            json!({"skill": "python-math", "command": command, "yield_ms": 10000}),
        ),
        (
            "workspace_exec",
            json!({"command": command, "cwd": "skills/python-math"}),
        ),
        (
            "workspace_exec",
            json!({"command": command, "cwd": "skills/python-math", "yield_time_ms": 10000}),
        ),
    ]
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "lists of names, on one daemon")]
async fn a_program_is_denied_under_each_of_its_names_and_wherever_a_copy_lies() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut free = Talk::new(&daemon, Options::default())?;
    let plant = "mkdir -p out/x work/x && cp $(realpath $(command -v python3)) out/x/py && ln -s $(command -v python3) work/x/link \
                 && ln -s $(command -v bash) work/x/run && ln -s $(command -v wc) work/x/wc && ln -s $(command -v wc) work/x/other && echo ok";
    let planted = json!({"skill": "python-math", "command": plant});
    assert_eq!(free.call("skill_run", planted).await?["stdout"], "ok\n");
    let denied = |entries: &[&str]| Options {
        denied_commands: entries.iter().map(|entry| (*entry).to_owned()).collect(),
        ..Options::default()
    };
    let mut talk = Talk::new(&daemon, denied(&["python3", "/usr/bin/node"]))?;
    talk.calls = 100;
    for command in [
        "python -c 1",
        "python3.13 -c 1",
        "/usr/bin/python -c 1",
        "/usr//bin/./python3 -c 1",
        "nodejs -e 1",
        // Copies and links, by every way of writing their paths.
        "out/x/py -c 1",
        ".//out/x/py -c 1",
        "/workspace/skills/python-math//out/x/py -c 1",
        "/workspace/skills//python-math/out/x/py -c 1",
        "/workspace/skills/python-math/scripts/../out/x/py -c 1",
        "work/x/link -c 1",
        "/workspace/work/x/link -c 1",
        // Programs that run others, under other names.
        "work/x/run -c 'python3 -c 1'",
        "rbash -c 'python3 -c 1'",
        "gawk 'BEGIN{system(\"python3 -c 1\")}'",
        "/lib64/ld-linux-x86-64.so.2 /usr/bin/python3 -c 1",
    ] {
        for (tool, arguments) in ways(command) {
            let refused = talk.try_call(tool, arguments).await;
            let refused = match refused {
                Err(error) => format!("{}: {error}", error.code()),
                Ok(result) => anyhow::bail!("{tool} {command}: {result}"),
            };
            assert!(
                refused.starts_with(&format!("COMMAND_REFUSED: {tool}: ")),
                "{command}: {refused}"
            );
        }
    }
    for command in [
        "wc --version",
        "/usr/bin/wc --version",
        "work/x/other --version",
    ] {
        for (tool, arguments) in ways(command) {
            let result = talk.call(tool, arguments).await?;
            assert_eq!(result["exit_code"], 0, "{tool} {command}: {result}");
        }
    }

    let allowed = Options {
        allowed_commands: vec!["/usr/bin/wc".into(), "sort".into()],
        ..Options::default()
    };
    let mut talk = Talk::new(&daemon, allowed)?;
    talk.calls = 300;
    for (command, runs) in [
        ("wc --version", true),
        ("/bin/wc --version", true),
        ("work/x/wc --version", true),
        ("/usr/bin/sort --version", true),
        ("work/x/other --version", false),
        ("out/x/wc --version", false),
        // Of the workspace's own processes, none of the command's.
        ("/proc/self/cwd/work/x/wc --version", false),
        ("cat --version", false),
    ] {
        for (tool, arguments) in ways(command) {
            let ran = talk.try_call(tool, arguments).await;
            let ran = ran.is_ok_and(|result| result["exit_code"] == 0);
            assert_eq!(ran, runs, "{tool} {command}");
        }
    }
    daemon.stop().await
}

#[tokio::test]
async fn an_allowed_program_loads_nothing_that_a_command_left() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut free = Talk::new(&daemon, Options::default())?;
    let script = "/workspace/skills/python-math/scripts/python_math.py";
    let plant = "for d in $(python3 -c 'import site; print(site.getusersitepackages())') work/lib; do \
                 mkdir -p $d && echo \"open('/workspace/work/ran', 'a')\" | tee $d/usercustomize.py > $d/sitecustomize.py; done; \
                 cp work/lib/usercustomize.py work/evil.py; echo ok";
    let planted = json!({"skill": "python-math", "command": plant});
    assert_eq!(free.call("skill_run", planted).await?["stdout"], "ok\n");
    let run = json!({"skill": "python-math", "command": format!("{script} fib 10")});
    let look = json!({"command": "test -e work/ran && rm work/ran && echo ran; true"});
    assert_eq!(free.call("skill_run", run.clone()).await?["exit_code"], 0);
    let ran = free.call("workspace_exec", look.clone()).await?;
    assert_eq!(
        ran["output"], "ran\n",
        "it is loaded where nothing is restricted"
    );

    let options = Options {
        allowed_commands: vec!["echo".into(), script.into()],
        ..Options::default()
    };
    let mut talk = Talk::new(&daemon, options)?;
    talk.calls = 100;
    // A text of the model's, put where Python would load it from before the command.
    let typed = json!({"skill": "python-math", "command": "echo x", "editor_text": "import os"});
    let refused = talk.refused("skill_exec", typed).await;
    assert!(refused.starts_with("COMMAND_REFUSED"), "{refused}");
    let to = "work/.local/lib/python3.13/site-packages/usercustomize.py";
    let inputs = json!([{"from": "workspace://work/evil.py", "to": to}]);
    for (tool, mut arguments) in ways(&format!("{script} fib 10")) {
        if tool != "workspace_exec" {
            arguments["inputs"] = inputs.clone();
        }
        let result = talk.call(tool, arguments.clone()).await?;
        let output = result.get("stdout").or(result.get("output")).cloned();
        assert_eq!(output, Some(json!("55\n")), "{tool}: {result}");
        for (name, value) in [
            ("PYTHONUSERBASE", "/workspace/work/.local"),
            ("PYTHONPATH", "/workspace/work/lib"),
            ("HOME", "/workspace/work"),
            ("SKILL_DIR", "/workspace/work"),
        ] {
            arguments["env"] = json!({name: value});
            let refused = talk.refused(tool, arguments.clone()).await;
            assert!(
                refused.contains(&format!("env must not set {name}")),
                "{refused}"
            );
        }
    }
    free.calls = 50;
    let ran = free.call("workspace_exec", look).await?;
    assert_eq!(ran["output"], "", "nothing of it ran");
    daemon.stop().await
}

#[tokio::test]
async fn a_call_that_is_repeated_runs_nothing_twice() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
    let run =
        json!({"skill": "python-math", "command": "echo x >> $WORK_DIR/log; cat $WORK_DIR/log"});
    let first = talk.call("skill_run", run.clone()).await?;
    talk.calls -= 1;
    let again = talk.call("skill_run", run.clone()).await?;
    assert_eq!(
        (&again["stdout"], &again["duration_ms"]),
        (&first["stdout"], &first["duration_ms"])
    );
    talk.calls -= 1;
    let other = json!({"skill": "python-math", "command": "echo other"});
    assert!(
        talk.refused("skill_run", other)
            .await
            .starts_with("CALL_ID_TAKEN")
    );
    let save = json!({"skill": "python-math", "command": "echo same > $OUTPUT_DIR/same", "save_as_artifacts": true});
    for version in 0..2 {
        for _ in 0..2 {
            let saved = talk.call("skill_run", save.clone()).await?;
            let reference = format!("artifact://out/same@{version}");
            assert_eq!(saved["artifact_files"][0]["ref"], reference, "{saved}");
            talk.calls -= 1;
        }
        talk.calls += 1;
    }

    let started = talk
        .call(
            "skill_exec",
            json!({"skill": "python-math", "command": "cat"}),
        )
        .await?;
    let before = talk.state.clone();
    let write = json!({"session_id": started["session_id"], "chars": "once", "submit": true, "yield_ms": 5000});
    talk.call("skill_write_stdin", write.clone()).await?;
    // Its answer was lost, and with it the state.
    talk.state = before;
    talk.calls -= 1;
    let again = talk.call("skill_write_stdin", write).await?;
    assert_eq!(again["output"], "once\n");
    let ended = json!({"session_id": started["session_id"], "eof": true, "yield_ms": 10000});
    let ended = talk.call("skill_write_stdin", ended).await?;
    assert_eq!(ended["result"]["stdout"], "once\n", "{ended}");
    daemon.stop().await
}

#[tokio::test]
async fn editors_of_commands_side_by_side_are_their_own() -> Result<()> {
    let daemon = Daemon::start().await?;
    let talk = Talk::new(&daemon, Options::default())?;
    let edit = async |number: u32| {
        // Neither opens its editor before both are there.
        let command = format!(
            "cd $WORK_DIR; touch {number}; until [ -e 1 ] && [ -e 2 ]; do sleep 0.01; done; $EDITOR f{number}; cat f{number}"
        );
        let call = Call {
            id: format!("call_{number}"),
            name: "skill_run".into(),
            arguments: json!({"skill": "python-math", "command": command, "editor_text": format!("text {number}")}),
        };
        talk.tools.call(&talk.session, &talk.state, call).await
    };
    let (first, second) = tokio::join!(edit(1), edit(2));
    assert_eq!(first?.result["stdout"], "text 1");
    assert_eq!(second?.result["stdout"], "text 2");
    daemon.stop().await
}

#[tokio::test]
async fn large_files_of_a_conversation_are_sent_once_and_kept_apart() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
    let upload = |name: &str, byte: u8, length: usize| Upload {
        name: name.into(),
        original_name: format!("my {name}"),
        content: UploadContent::Bytes(vec![byte; length]),
        key: String::new(),
    };
    let large = 2 << 20;
    let missing = Upload {
        content: UploadContent::Reference("artifact://nobody-saved-it".into()),
        ..upload("gone", b'x', 0)
    };
    let first = [
        upload("a.txt", b'a', 1),
        upload("report.pdf", b'1', large),
        missing,
        upload("c.txt", b'c', 1),
    ];
    for turn in 0..2 {
        let staged = talk.tools.stage_uploads(&talk.session, &first).await?;
        let files: Vec<(&str, &str, u64)> = staged
            .files
            .iter()
            .map(|file| {
                (
                    file.name.as_str(),
                    file.original_name.as_str(),
                    file.size_bytes,
                )
            })
            .collect();
        assert_eq!(
            files,
            [
                ("work/inputs/a.txt", "my a.txt", 1),
                ("work/inputs/report.pdf", "my report.pdf", large as u64),
                ("work/inputs/c.txt", "my c.txt", 1)
            ],
            "turn {turn}"
        );
        assert_eq!(
            staged.warnings,
            ["gone: file not found: artifact://nobody-saved-it"]
        );
    }
    // After the history was cut, another one has the name of the first.
    let second = [upload("report.pdf", b'2', large)];
    let staged = talk.tools.stage_uploads(&talk.session, &second).await?;
    assert_eq!(staged.files[0].name, "work/inputs/report_2.pdf");
    let look = json!({"command": "head -c 1 work/inputs/report.pdf; head -c 1 work/inputs/report_2.pdf; wc -c < work/inputs/report.pdf; \
                                  echo changed > work/inputs/report.pdf"});
    let looked = talk.call("workspace_exec", look).await?;
    assert_eq!(looked["output"], format!("12{large}\n"), "{looked}");
    // What a command wrote over it is not what the user brought.
    let staged = talk.tools.stage_uploads(&talk.session, &first).await?;
    assert_eq!(staged.files[1].name, "work/inputs/report.pdf");
    let look = json!({"command": "wc -c < work/inputs/report.pdf"});
    let looked = talk.call("workspace_exec", look).await?;
    assert_eq!(looked["output"], format!("{large}\n"), "{looked}");
    daemon.stop().await
}

#[tokio::test]
async fn a_command_of_the_workspace_runs_to_its_end_or_goes_on() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
    let run = json!({"command": "pwd; echo $A; cat; echo err >&2; exit 4", "env": {"A": "b"}, "stdin": "in\n", "timeoutSec": 20});
    let result = talk.call("workspace_exec", run).await?;
    assert_eq!(
        (&result["status"], &result["exit_code"]),
        (&json!("exited"), &json!(4)),
        "{result}"
    );
    assert_eq!(result["output"], "/workspace\nb\nin\nerr\n");
    let globs = talk
        .refused("workspace_exec", json!({"command": "pwd", "cwd": "work/*"}))
        .await;
    assert!(globs.contains("cwd must not contain glob patterns"));
    let late = talk
        .call(
            "workspace_exec",
            json!({"command": "sleep 60", "timeout": 1}),
        )
        .await?;
    assert_eq!(late["timed_out"], true, "{late}");

    let started = talk
        .call(
            "workspace_exec",
            json!({"command": "read x; echo got $x", "background": true}),
        )
        .await?;
    assert_eq!(started["status"], "running", "{started}");
    let id = started["session_id"].clone();
    let skill = talk
        .refused("skill_poll_session", json!({"session_id": id}))
        .await;
    assert!(skill.starts_with("UNKNOWN_SESSION"), "{skill}");
    let write = json!({"sessionId": id, "chars": "it", "append_newline": true, "yieldMs": 10000});
    let ended = talk.call("workspace_write_stdin", write).await?;
    assert_eq!(
        (&ended["output"], &ended["status"]),
        (&json!("got it\n"), &json!("exited")),
        "{ended}"
    );
    let started = talk
        .call(
            "workspace_exec",
            json!({"command": "sleep 1000", "yield_time_ms": 1}),
        )
        .await?;
    let killed = talk
        .call(
            "workspace_kill_session",
            json!({"session_id": started["session_id"]}),
        )
        .await?;
    assert_eq!(killed["status"], "killed", "{killed}");
    daemon.stop().await
}

/// Calls of one turn that a framework makes side by side, the first ones of their session.
#[tokio::test]
async fn calls_side_by_side_share_one_workspace_and_do_not_disturb_each_other() -> Result<()> {
    let daemon = Daemon::start().await?;
    let talk = Talk::new(&daemon, Options::default())?;
    let skills = ["python-math", "text-stats", "json-shape", "image-info"];
    let calls = skills.iter().enumerate().map(|(index, skill)| {
        let command = format!("echo {skill} > $OUTPUT_DIR/{skill}; test -f SKILL.md && cat $OUTPUT_DIR/{skill}");
        let call = Call {
            id: format!("side_{index}"),
            name: "skill_run".into(),
            arguments: json!({"skill": skill, "command": command, "output_files": [format!("out/{skill}")],
                              "save_as_artifacts": true}),
        };
        talk.tools.call(&talk.session, &talk.state, call)
    });
    let answers = futures::future::try_join_all(calls).await?;
    for (skill, answer) in skills.iter().zip(&answers) {
        assert_eq!(
            answer.result["stdout"],
            format!("{skill}\n"),
            "{}",
            answer.result
        );
        assert_eq!(
            answer.result["output_files"][0]["content"],
            format!("{skill}\n")
        );
    }
    let deltas: Vec<&Delta> = answers.iter().map(|answer| &answer.delta).collect();
    let state = talk.state.with(&merge_all(&talk.state, &deltas));
    let saved = state
        .get("temp:skill:artifacts")
        .context("what was saved")?;
    let saved = saved["artifacts"].as_array().map(Vec::len);
    assert_eq!(saved, Some(skills.len()), "none overwrites another's");
    let workspaces = daemon
        .client
        .list_workspaces(ListWorkspacesRequest::default())
        .await?;
    assert_eq!(workspaces.workspaces.len(), 1);
    daemon.stop().await
}

/// A workspace that was lost stays listed for a while: the session does not wait for that.
#[tokio::test]
async fn a_session_goes_on_when_its_container_was_lost() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
    let run = json!({"skill": "python-math", "command": "echo here"});
    talk.call("skill_run", run.clone()).await?;
    let workspace = talk.session.workspace_id();
    docker::remove(&daemon.container(&workspace)?).await?;
    until("it is lost", Duration::from_secs(30), async || {
        let found = daemon.client.get_workspace(&workspace).await?;
        Ok((found.state() == WorkspaceState::Failed).then_some(()))
    })
    .await?;
    assert_eq!(talk.call("skill_run", run).await?["stdout"], "here\n");
    let again = talk
        .call("workspace_exec", json!({"command": "echo here"}))
        .await?;
    assert_eq!(again["output"], "here\n");
    daemon.stop().await
}

#[tokio::test]
async fn a_session_finds_a_new_workspace_when_its_own_has_gone() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
    let run = json!({"skill": "python-math", "command": "cat $WORK_DIR/seen; echo seen > $WORK_DIR/seen"});
    talk.call("skill_run", run.clone()).await?;
    assert_eq!(
        talk.call("skill_run", run.clone()).await?["stdout"],
        "seen\n"
    );
    daemon
        .client
        .delete_workspace(&talk.session.workspace_id())
        .await?;
    assert_eq!(talk.call("skill_run", run).await?["stdout"], "");
    daemon
        .client
        .delete_workspace(&talk.session.workspace_id())
        .await?;
    assert_eq!(
        talk.call("workspace_exec", json!({"command": "echo new"}))
            .await?["output"],
        "new\n"
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_failed_run_saves_no_empty_artifact() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
    let run = |command: &str| {
        json!({"skill": "python-math", "command": command, "output_files": ["out/r.txt"], "save_as_artifacts": true,
               "yield_ms": 10000})
    };
    let saved = talk
        .call("skill_run", run("echo good > $OUTPUT_DIR/r.txt"))
        .await?;
    assert_eq!(saved["artifact_files"][0]["ref"], "artifact://out/r.txt@0");
    let failed = "python3 missing.py > $OUTPUT_DIR/r.txt";
    for tool in ["skill_run", "skill_exec"] {
        let mut result = talk.call(tool, run(failed)).await?;
        while tool == "skill_exec" && !result["result"]["skipped_files"].is_array() {
            let poll = json!({"session_id": result["session_id"]});
            result = talk.call("skill_poll_session", poll).await?;
        }
        let result = result.get("result").unwrap_or(&result);
        let skipped = json!([{"name": "out/r.txt", "reason": "EMPTY_AFTER_FAILURE"}]);
        assert_eq!(result["skipped_files"], skipped, "{tool}: {result}");
        assert_eq!(result.get("artifact_files"), None, "{tool}: {result}");
    }
    let read = json!({"file_name": "artifact://out/r.txt"});
    assert_eq!(talk.call("read_file", read).await?["content"], "good\n");
    daemon.stop().await
}

#[tokio::test]
async fn a_bad_output_glob_is_refused_before_the_command_runs() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
    for tool in ["skill_run", "skill_exec"] {
        for (bad, said) in [
            (
                json!({"output_files": ["out/c.txt", "$UNKNOWN_DIR/d.txt"]}),
                "output_files \"$UNKNOWN_DIR/d.txt\": unknown variable",
            ),
            (
                json!({"output_files": ["out/c.txt", "../*.txt"]}),
                "output_files \"../*.txt\": leads out",
            ),
            (
                json!({"output_files": ["/out/c.txt"]}),
                "output_files \"/out/c.txt\": leads out",
            ),
            (json!({"outputs": {"globs": ["out/[a"]}}), "\"out/[a\": "),
            (
                json!({"save_as_artifacts": true, "artifact_prefix": "/x"}),
                "artifact_prefix: ",
            ),
        ] {
            let mut arguments =
                json!({"skill": "python-math", "command": "echo ran >> $WORK_DIR/ran"});
            for (key, value) in bad.as_object().context("an object")? {
                arguments[key] = value.clone();
            }
            let refused = talk.refused(tool, arguments).await;
            assert!(refused.starts_with("INVALID_ARGUMENTS"), "{refused}");
            assert!(refused.contains(said), "{tool} {bad}: {refused}");
        }
    }
    let ran = talk
        .refused("read_file", json!({"file_name": "work/ran"}))
        .await;
    assert!(ran.starts_with("FILE_NOT_FOUND"), "{ran}");
    daemon.stop().await
}

#[tokio::test]
async fn a_directory_as_an_output_means_everything_beneath_it() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, Options::default())?;
    for (number, glob) in ["out", "out/", "$OUTPUT_DIR", "/workspace/out/", "out/d"]
        .iter()
        .enumerate()
    {
        let command = format!("mkdir -p $OUTPUT_DIR/d/e; echo {number} > $OUTPUT_DIR/d/e/f");
        let run = json!({"skill": "python-math", "command": command, "output_files": [glob]});
        let result = talk.call("skill_run", run).await?;
        assert_eq!(
            result["output_files"][0]["name"], "out/d/e/f",
            "{glob}: {result}"
        );
        assert_eq!(
            result["output_files"][0]["content"],
            format!("{number}\n"),
            "{glob}"
        );
    }
    let run = json!({"skill": "python-math", "command": "true", "output_files": ["out/d/e/f"]});
    let unchanged = json!([{"name": "out/d/e/f", "reason": "UNCHANGED"}]);
    // The kernel stamps files every few milliseconds: what was written just before a command counts as changed by it.
    until(
        "the file counts as unchanged",
        Duration::from_secs(5),
        async || {
            let result = talk.call("skill_run", run.clone()).await?;
            Ok((result["skipped_files"] == unchanged).then_some(()))
        },
    )
    .await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_skills_own_programs_run_while_commands_are_restricted() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir()?;
    let bin = root.path().join("kit/bin");
    std::fs::create_dir_all(&bin)?;
    std::fs::write(
        root.path().join("kit/SKILL.md"),
        "---\nname: kit\ndescription: Has programs.\n---\n# Kit\n",
    )?;
    for (name, text) in [("hello", "echo kit $1"), ("wc", "echo not the image\'s")] {
        let path = bin.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    let roots = skilld_tests::Options::default().skills(root.path());
    let daemon = Daemon::start_with(roots).await?;
    for entry in ["hello", "bin/hello"] {
        let options = Options {
            allowed_commands: vec![entry.into(), "wc".into()],
            ..Options::default()
        };
        let mut talk = Talk::new(&daemon, options)?.other(&entry.replace('/', "-"));
        for command in [
            "hello x",
            "bin/hello x",
            "/workspace/skills/kit/bin/hello x",
        ] {
            let run = json!({"skill": "kit", "command": command});
            let result = talk.call("skill_run", run).await?;
            assert_eq!(result["stdout"], "kit x\n", "{entry} {command}: {result}");
        }
        // A skill takes no other program's place.
        let run = json!({"skill": "kit", "command": "wc --version"});
        let result = talk.call("skill_run", run).await?;
        let stdout = result["stdout"].as_str().unwrap_or_default();
        assert!(stdout.starts_with("wc (GNU"), "{result}");
        let run = json!({"skill": "kit", "command": "bin/wc"});
        assert!(
            talk.refused("skill_run", run)
                .await
                .starts_with("COMMAND_REFUSED")
        );
        // In no skill the entry is no program.
        for command in ["hello x", "/workspace/skills/kit/bin/hello x"] {
            let ran = talk
                .try_call("workspace_exec", json!({"command": command}))
                .await;
            let is_permitted = ran.is_ok_and(|result| result["output"] == "kit x\n");
            assert!(!is_permitted, "{entry} {command}");
        }
    }
    daemon.stop().await
}

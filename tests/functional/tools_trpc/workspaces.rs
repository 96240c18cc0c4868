//! Workspaces of a conversation: repeated calls, editors, uploads, side-by-side calls and losses.

use super::*;

#[tokio::test]
async fn a_call_that_is_repeated_runs_nothing_twice() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
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
        talk.expect_refusal("skill_run", other)
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
    let talk = Talk::new(&daemon, ToolOptions::default())?;
    let edit = async |number: u32| {
        // Neither opens its editor before both are there.
        let command = format!(
            "cd $WORK_DIR; touch {number}; until [ -e 1 ] && [ -e 2 ]; do sleep 0.01; done; $EDITOR f{number}; cat f{number}"
        );
        let call = ToolCall {
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
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
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
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
    let run = json!({"command": "pwd; echo $A; cat; echo err >&2; exit 4", "env": {"A": "b"}, "stdin": "in\n", "timeoutSec": 20});
    let result = talk.call("workspace_exec", run).await?;
    assert_eq!(
        (&result["status"], &result["exit_code"]),
        (&json!("exited"), &json!(4)),
        "{result}"
    );
    assert_eq!(result["output"], "/workspace\nb\nin\nerr\n");
    let globs = talk
        .expect_refusal("workspace_exec", json!({"command": "pwd", "cwd": "work/*"}))
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
        .expect_refusal("skill_poll_session", json!({"session_id": id}))
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
    let talk = Talk::new(&daemon, ToolOptions::default())?;
    let skills = ["python-math", "text-stats", "json-shape", "image-info"];
    let calls = skills.iter().enumerate().map(|(index, skill)| {
        let command = format!("echo {skill} > $OUTPUT_DIR/{skill}; test -f SKILL.md && cat $OUTPUT_DIR/{skill}");
        let call = ToolCall {
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
    let deltas: Vec<&StateDelta> = answers.iter().map(|answer| &answer.delta).collect();
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
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
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
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
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

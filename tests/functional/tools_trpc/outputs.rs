//! Results of runs: the reported outcome, and the files that a run leaves.

use super::*;

#[tokio::test]
async fn a_run_reports_what_happened_as_it_happened() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
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
    let refused = talk.expect_refusal("skill_run", escape).await;
    assert!(refused.starts_with("INVALID_ARGUMENTS"), "{refused}");
    daemon.stop().await
}

#[tokio::test]
async fn outputs_are_whole_named_and_accounted_for() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
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
async fn a_failed_run_saves_no_empty_artifact() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
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
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
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
            let refused = talk.expect_refusal(tool, arguments).await;
            assert!(refused.starts_with("INVALID_ARGUMENTS"), "{refused}");
            assert!(refused.contains(said), "{tool} {bad}: {refused}");
        }
    }
    let ran = talk
        .expect_refusal("read_file", json!({"file_name": "work/ran"}))
        .await;
    assert!(ran.starts_with("FILE_NOT_FOUND"), "{ran}");
    daemon.stop().await
}

#[tokio::test]
async fn a_directory_as_an_output_means_everything_beneath_it() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon, ToolOptions::default())?;
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

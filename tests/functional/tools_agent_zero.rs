//! Conversations with Agent Zero's tool as a model has them, and its arguments as a real script receives them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use skilld_client::{Client, workspace_name};
use skilld_tests::{Daemon, Options as DaemonOptions, files};
use skilld_tools::state::{SessionState, agent_zero};
use skilld_tools::{Family, Session, ToolCall, ToolError, ToolOptions, Toolset};

/// Conversation with the tool, with the state that the caller keeps.
struct Talk {
    tools: Toolset,
    session: Session,
    state: SessionState,
}

impl Talk {
    fn new(client: &Client, state: SessionState) -> Result<Self> {
        let options = ToolOptions {
            family: Family::AgentZero,
            ..ToolOptions::default()
        };
        Ok(Self {
            tools: Toolset::new(
                client.clone(),
                options,
                skilld_tools::host_tools::HostTools::new(),
            )?,
            session: Session {
                app: "tests".into(),
                user: "ann".into(),
                session: "agent-zero".into(),
                agent: String::new(),
            },
            state,
        })
    }

    async fn call(&mut self, arguments: Value) -> Result<Value, ToolError> {
        let call = ToolCall {
            id: String::new(),
            name: "skills_tool".to_owned(),
            arguments,
        };
        let answer = self.tools.call(&self.session, &self.state, call).await?;
        self.state.apply(&answer.delta);
        Ok(answer.result)
    }

    async fn expect_refusal(&mut self, arguments: Value) -> Result<String> {
        let result = self.call(arguments).await;
        let error = result.err().context("it succeeded")?;
        Ok(format!("{}: {error}", error.code()))
    }
}

fn text(result: &Value) -> &str {
    result["text"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_zero_conversation_keeps_its_state_across_turns() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon.client, SessionState::new())?;
    let listed = talk.call(json!({"method": "list"})).await?;
    assert!(text(&listed).contains("- unit-convert v1.0.0"), "{listed}");
    let found = talk
        .call(json!({"method": "Search", "query": "unit temperatures"}))
        .await?;
    assert_eq!(found["matches"][0]["name"], "unit-convert", "{found}");
    // Substrings: 3 for the name, 2 for each description.
    assert_eq!(found["matches"][0]["score"], 7.0, "{found}");
    stop_words_find_nothing(&mut talk).await?;
    let loaded = talk
        .call(json!({"method": "load", "skill_name": "**Unit Convert**"}))
        .await?;
    assert_eq!(loaded["name"], "unit-convert");
    assert!(text(&loaded).contains("# unit-convert\n"), "{loaded}");
    assert!(
        text(&loaded).contains("\nFiles:\n- scripts/convert.py\n"),
        "{loaded}"
    );
    let ran = talk
        .call(json!({
            "method": "execute_script", "skill_name": "`unit_convert`", "script_path": "scripts/convert.py",
            "argv": ["0.1"], "script_args": r#"{"from": "km", "to": "m", "quiet": true, "digits": null}"#,
            "arg_style": "named",
        }))
        .await?;
    assert_eq!(
        (&ran["exit_code"], &ran["stdout"]),
        (&json!(0), &json!("100\n")),
        "{ran}"
    );
    let bad = talk
        .call(json!({
            "method": "execute_script", "skill_name": "unit-convert", "script_path": "scripts/convert.py",
            "argv": ["--from", "km", "--to", "nonsense", "1"],
        }))
        .await?;
    assert_eq!(bad["exit_code"], 3, "{bad}");
    assert!(
        text(&bad).starts_with("Error: script failed: unit-convert/scripts/convert.py\n"),
        "{bad}"
    );
    assert!(
        !bad["stderr"].as_str().unwrap_or_default().is_empty(),
        "{bad}"
    );
    let read = json!({"method": "read_file", "skill_name": "image-info", "file_path": "References//formats.md"});
    assert_eq!(talk.call(read).await?["path"], "references/formats.md");

    let old = json!({"method": "load", "skill_name": "letter-template@^1"});
    assert_eq!(talk.call(old).await?["version"], "1.0.0");
    // The next turn, in another process: the workspace has what was written, the state what was loaded, in its version.
    let letter = json!({
        "method": "execute_script", "skill_name": "letter-template", "script_path": "scripts/letter.py",
        "script_args": {"to": "Bob", "subject": "Tea"}, "arg_style": "named", "stdin": "At four?",
    });
    let kept: SessionState = serde_json::from_str(&serde_json::to_string(&talk.state)?)?;
    let mut talk = Talk::new(&daemon.client, kept)?;
    let ran = talk.call(letter).await?;
    assert_eq!(ran["files"].as_array().map(Vec::len), Some(1), "{ran}");
    assert_eq!(ran["files"][0]["path"], "out/letter.txt", "{ran}");
    let letter = written(&daemon.client, &talk, "out/letter.txt").await?;
    assert!(letter.contains("At four?"), "{letter}");
    talk.call(json!({"method": "load", "skill_name": "text-stats"}))
        .await?;
    let loaded = agent_zero::list(&talk.state, agent_zero::scope(""));
    assert_eq!(loaded, ["unit-convert", "letter-template", "text-stats"]);
    talk.tools.end(&talk.session).await?;
    daemon.stop().await
}

/// Searches for words that nearly every description has.
async fn stop_words_find_nothing(talk: &mut Talk) -> Result<()> {
    for query in ["the of a", "use", "- e"] {
        let search = json!({"method": "search", "query": query});
        let none = talk.call(search).await?;
        assert_eq!(none["matches"], json!([]), "{query}: {none}");
    }
    Ok(())
}

async fn written(client: &Client, talk: &Talk, path: &str) -> Result<String> {
    let workspace = workspace_name(&talk.session.workspace_id());
    let text = files::read(client, &workspace, path).await?;
    Ok(String::from_utf8(text)?)
}

const SHOW: &str = "import json, os, sys
env = {k: v for k, v in os.environ.items() if k.startswith('SKILL_ARG_')}
print(json.dumps({'argv': sys.argv[1:], 'env': env, 'cwd': os.getcwd()}))
";

async fn kit() -> Result<(Daemon, tempfile::TempDir, Talk)> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    let dir = root.path().join("kit");
    fs::create_dir_all(dir.join("scripts"))?;
    for (name, text) in [
        (
            "SKILL.md",
            "---\nname: kit\ndescription: Shows what scripts get.\n---\n",
        ),
        ("scripts/show.py", SHOW),
        ("scripts/quiet.sh", "true\n"),
        (
            "scripts/main.js",
            "if (require.main === module) console.log('main')\n",
        ),
        ("scripts/note.txt", "no script\n"),
        ("scripts/slow.sh", "echo begun; sleep 600\n"),
    ] {
        fs::write(dir.join(name), text)?;
    }
    let daemon = Daemon::start_with(DaemonOptions::default().skills(root.path())).await?;
    let talk = Talk::new(&daemon.client, SessionState::new())?;
    Ok((daemon, root, talk))
}

fn run(path: &str, more: &Value) -> Value {
    let mut call = json!({"method": "execute_script", "skill_name": "kit", "script_path": path});
    if let (Some(call), Some(more)) = (call.as_object_mut(), more.as_object()) {
        call.extend(more.clone());
    }
    call
}

/// Arguments that other systems spoil, each value under one key.
#[tokio::test(flavor = "multi_thread")]
async fn arguments_come_as_scripts_want_them() -> Result<()> {
    let (daemon, _root, mut talk) = kit().await?;
    for (value, named, variable) in [
        (json!(true), json!(["--the_key"]), "true"),
        (json!(false), json!([]), "false"),
        (json!(null), json!([]), ""),
        (
            json!(["a", "b"]),
            json!(["--the_key", "a", "b"]),
            r#"["a","b"]"#,
        ),
        (
            json!({"k": 1}),
            json!(["--the_key", r#"{"k":1}"#]),
            r#"{"k":1}"#,
        ),
        (json!(1.0), json!(["--the_key", "1.0"]), "1.0"),
        (json!(1e21), json!(["--the_key", "1e+21"]), "1e+21"),
        (json!("-v"), json!(["--the_key=-v"]), "-v"),
        (
            json!("😀 $(id)"),
            json!(["--the_key", "😀 $(id)"]),
            "😀 $(id)",
        ),
    ] {
        let call = run(
            "scripts/show.py",
            &json!({"script_args": {"the_key": value}, "arg_style": "named"}),
        );
        let ran = talk.call(call).await?;
        let shown: Value = serde_json::from_str(ran["stdout"].as_str().unwrap_or_default())
            .with_context(|| ran.to_string())?;
        assert_eq!(shown["argv"], named, "{value}");
        assert_eq!(shown["env"]["SKILL_ARG_THE_KEY"], variable, "{value}");
    }
    for (style, argv) in [
        ("positional", json!(["sub", "2", "1"])),
        ("named", json!(["sub", "--b", "2", "--a", "1"])),
        ("env", json!(["sub"])),
    ] {
        let args = json!({"script_args": {"b": 2, "a": 1}, "arg_style": style, "argv": ["sub"]});
        let ran = talk.call(run("scripts/show.py", &args)).await?;
        let shown: Value = serde_json::from_str(ran["stdout"].as_str().unwrap_or_default())?;
        assert_eq!(shown["argv"], argv, "{style}");
        assert_eq!(shown["cwd"], "/workspace/work");
    }
    scripts_start_where_they_are_told(&mut talk).await?;
    let list = json!({"script_args": {"x": ["a", "b"]}, "arg_style": "named_repeated"});
    let ran = talk.call(run("scripts/show.py", &list)).await?;
    assert!(
        ran["stdout"]
            .as_str()
            .unwrap_or_default()
            .contains(r#"["--x", "a", "--x", "b"]"#),
        "{ran}"
    );
    for args in [json!({"a-b": 1, "a_b": 2}), json!({"x; rm": 1})] {
        let error = talk
            .expect_refusal(run("scripts/show.py", &json!({"script_args": args})))
            .await?;
        assert!(error.starts_with("INVALID_ARGUMENTS"), "{error}");
    }
    daemon.stop().await
}

async fn scripts_start_where_they_are_told(talk: &mut Talk) -> Result<()> {
    for (cwd, wanted) in [
        ("workspace", "/workspace/work"),
        ("skill_root", "/workspace/skills/kit"),
        ("script_dir", "/workspace/skills/kit/scripts"),
    ] {
        let call = run("scripts/show.py", &json!({"cwd": cwd}));
        let ran = talk.call(call).await?;
        let shown: Value = serde_json::from_str(ran["stdout"].as_str().unwrap_or_default())?;
        assert_eq!(shown["cwd"], wanted);
    }
    Ok(())
}

/// Exit codes reach the model, and a path that names no script is named in the error.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_end_as_they_end_and_what_is_none_is_named() -> Result<()> {
    let (daemon, _root, mut talk) = kit().await?;
    let main = talk.call(run("scripts/main.js", &json!({}))).await?;
    assert_eq!(main["stdout"], "main\n", "{main}");
    let quiet = talk.call(run("scripts/quiet.sh", &json!({}))).await?;
    assert_eq!(
        (&quiet["exit_code"], &quiet["stdout"]),
        (&json!(0), &json!("")),
        "{quiet}"
    );
    // More than the server permits is cut, and said.
    let long = talk
        .call(run("scripts/quiet.sh", &json!({"timeout": 1e9})))
        .await?;
    let warning = long["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.starts_with("timeout: the server permits"), "{long}");
    let slow = talk
        .call(run("scripts/slow.sh", &json!({"timeout": 1})))
        .await?;
    assert_eq!(
        (&slow["timed_out"], &slow["stdout"]),
        (&json!(true), &json!("begun\n")),
        "{slow}"
    );
    assert!(
        slow["duration_ms"].as_u64().unwrap_or_default() >= 1000,
        "{slow}"
    );
    for (path, said) in [
        (
            "scripts/note.txt",
            "UNSUPPORTED_SCRIPT: unsupported script type: scripts/note.txt",
        ),
        (
            "scripts/shown.py",
            "FILE_NOT_FOUND: file not found: scripts/shown.py; did you mean scripts/show.py",
        ),
        ("scripts", "INVALID_ARGUMENTS"),
        ("../kit/scripts/show.py", "INVALID_ARGUMENTS"),
        ("/etc/passwd", "INVALID_ARGUMENTS"),
    ] {
        let error = talk.expect_refusal(run(path, &json!({}))).await?;
        assert!(error.starts_with(said), "{path}: {error}");
    }
    let none = talk
        .expect_refusal(json!({"method": "load", "skill_name": "kits"}))
        .await?;
    assert_eq!(
        none,
        "UNKNOWN_SKILL: unknown skill: kits; did you mean kit?"
    );
    daemon.stop().await
}

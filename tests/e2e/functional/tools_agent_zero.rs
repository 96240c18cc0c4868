//! A conversation with Agent Zero's tool as a model has it.
//!
//! Docker: the whole system answers the tool, with the sample skills' scripts in a real container.

use anyhow::Result;
use serde_json::{Value, json};
use skilld_client::{Client, workspace_name};
use skilld_tests::{DefaultDaemon, files};
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
                ..Session::default()
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
}

fn text(result: &Value) -> &str {
    result["text"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_zero_conversation_keeps_its_state_across_turns() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
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

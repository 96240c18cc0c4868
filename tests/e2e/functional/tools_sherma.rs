//! A conversation with sherma's tools as a model has it: list, load a version, run, load another version, and the next
//! turn with nothing but the state.
//!
//! Docker: the whole system answers the tools, with two versions of a sample skill in a real container.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use skilld_client::{Client, workspace_name};
use skilld_tests::DefaultDaemon;
use skilld_tests::files::read;
use skilld_tools::host_tools::HostTools;
use skilld_tools::state::SessionState;
use skilld_tools::{Family, Session, ToolCall, ToolError, ToolOptions, Toolset};

/// Conversation with the tools, with the state that the caller keeps.
struct Talk {
    tools: Toolset,
    session: Session,
    state: SessionState,
}

impl Talk {
    fn new(client: &Client, state: SessionState) -> Result<Self> {
        let options = ToolOptions {
            family: Family::Sherma,
            additions: true,
            ..ToolOptions::default()
        };
        Ok(Self {
            tools: Toolset::new(client.clone(), options, HostTools::new())?,
            session: Session {
                app: "tests".into(),
                user: "ann".into(),
                session: "sherma".into(),
                ..Session::default()
            },
            state,
        })
    }

    async fn call(&mut self, name: &str, arguments: Value) -> Result<Value, ToolError> {
        let call = ToolCall {
            id: String::new(),
            name: name.to_owned(),
            arguments,
        };
        let answer = self.tools.call(&self.session, &self.state, call).await?;
        self.state.apply(&answer.delta);
        Ok(answer.result)
    }

    /// Returns a file that a script wrote into the session's workspace. The family has no tool that reads it.
    async fn written(&self, client: &Client, path: &str) -> Result<String> {
        let workspace = workspace_name(&self.session.workspace_id());
        let bytes = read(client, &workspace, path).await?;
        Ok(String::from_utf8(bytes)?)
    }
}

fn letter(argv: &[&str]) -> Value {
    json!({
        "skill_id": "letter-template", "script_path": "scripts/letter.py", "argv": argv,
        "script_args": {"to": "Bob", "subject": "Tea"}, "arg_style": "named", "stdin": "At four?",
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sherma_conversation_keeps_its_state_across_turns() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let mut talk = Talk::new(&daemon.client, SessionState::new())?;
    let listed = talk.call("list_skills", json!({})).await?;
    let letters = listed.as_array().context("a list")?.iter();
    let versions: Vec<&Value> = letters
        .filter(|skill| skill["id"] == "letter-template")
        .map(|skill| &skill["version"])
        .collect();
    assert!(
        versions.len() == 2 && versions.contains(&&json!("1.0.0")),
        "{listed}"
    );

    let load = json!({"skill_id": "letter-template", "version": "^1"});
    let loaded = talk.call("load_skill_md", load.clone()).await?;
    assert_eq!(
        (&loaded["outcome"], &loaded["version"]),
        (&json!("LOADED"), &json!("1.0.0"))
    );
    let content = loaded["content"].as_str().context("text")?;
    assert!(
        content.contains("# letter-template, version 1"),
        "{content}"
    );
    assert!(content.contains("- scripts/letter.py"), "{content}");
    assert!(!content.contains("\n---\n"), "{content}");
    assert_eq!(
        talk.call("load_skill_md", load).await?["outcome"],
        "ALREADY_ACTIVE"
    );
    // The current version is another one, but the loaded one is what is used.
    let assets = talk
        .call("list_skill_assets", json!({"skill_id": "letter-template"}))
        .await?;
    assert_eq!(assets, json!(["assets/letter.txt"]));
    let resources = talk
        .call(
            "list_skill_resources",
            json!({"skill_id": "letter-template"}),
        )
        .await?;
    assert_eq!(resources, json!([]));
    let ran = talk.call("run_skill_script", letter(&[])).await?;
    assert_eq!(ran["exit_code"], 0, "{ran}");
    assert_eq!(ran["files"][0]["path"], "out/letter.txt", "{ran}");
    let written = talk.written(&daemon.client, "out/letter.txt").await?;
    for part in ["Bob", "Tea", "At four?"] {
        assert!(written.contains(part), "{part} is not in: {written}");
    }

    // The next turn, in another process: nothing is left but the state as JSON.
    let kept: SessionState = serde_json::from_str(&serde_json::to_string(&talk.state)?)?;
    let mut talk = Talk::new(&daemon.client, kept)?;
    let load = json!({"skill_id": "letter-template", "version": "2.0.0"});
    let loaded = talk.call("load_skill_md", load).await?;
    assert_eq!(
        (&loaded["outcome"], &loaded["replaced_version"]),
        (&json!("REPLACED"), &json!("1.0.0"))
    );
    let ran = talk.call("run_skill_script", letter(&[])).await?;
    assert_eq!(ran["files"][0]["path"], "out/letter.html", "{ran}");
    let gone = talk
        .call(
            "unload_skill",
            json!({"skill_id": "letter-template", "version": ">=2"}),
        )
        .await?;
    assert_eq!(gone["outcome"], "UNLOADED");
    assert_eq!(serde_json::to_value(&talk.state)?, json!({}));
    talk.tools.end(&talk.session).await?;
    daemon.stop().await
}

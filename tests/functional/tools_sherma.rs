//! Conversations with sherma's tools as a model has them: list, load a version, read, run, load another version, and
//! the next turn with nothing but the state.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use skilld_client::{Client, workspace_name};
use skilld_tests::files::read;
use skilld_tests::{Daemon, Options as DaemonOptions};
use skilld_tools::host_tools::HostTools;
use skilld_tools::state::SessionState;
use skilld_tools::{Family, Session, ToolCall, ToolDefinition, ToolError, ToolOptions, Toolset};

/// Conversation with the tools, with the state that the caller keeps.
struct Talk {
    tools: Toolset,
    session: Session,
    state: SessionState,
}

impl Talk {
    fn new(client: &Client, host: HostTools, state: SessionState) -> Result<Self> {
        let options = ToolOptions {
            family: Family::Sherma,
            additions: true,
            ..ToolOptions::default()
        };
        Ok(Self {
            tools: Toolset::new(client.clone(), options, host)?,
            session: Session {
                app: "tests".into(),
                user: "ann".into(),
                session: "sherma".into(),
                agent: String::new(),
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

    async fn expect_refusal(&mut self, name: &str, arguments: Value) -> Result<String> {
        let result = self.call(name, arguments).await;
        let error = result.err().context("it succeeded")?;
        Ok(format!("{}: {error}", error.code()))
    }

    /// Returns a file that a script wrote into the session's workspace. The family has no tool that reads it.
    async fn written(&self, client: &Client, path: &str) -> Result<String> {
        let workspace = workspace_name(&self.session.workspace_id());
        let bytes = read(client, &workspace, path).await?;
        Ok(String::from_utf8(bytes)?)
    }

    async fn names(&self) -> Result<Vec<String>> {
        let definitions = self.tools.definitions(&self.session, &self.state).await?;
        Ok(definitions.into_iter().map(|it| it.name).collect())
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
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon.client, HostTools::new(), SessionState::new())?;
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
    let mut talk = Talk::new(&daemon.client, HostTools::new(), kept)?;
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

#[tokio::test(flavor = "multi_thread")]
async fn resources_and_versions_are_found_as_the_daemon_finds_them() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut talk = Talk::new(&daemon.client, HostTools::new(), SessionState::new())?;
    let resource = |path: &str| json!({"skill_id": "image-info", "resource_path": path});
    for path in [
        "references/formats.md",
        "./references//formats.md",
        "References/FORMATS.md",
    ] {
        let read = talk.call("load_skill_resource", resource(path)).await?;
        assert_eq!(read["path"], "references/formats.md");
        assert_eq!(read["binary"], false);
    }
    let near = talk
        .expect_refusal("load_skill_resource", resource("references/format.md"))
        .await?;
    assert!(
        near.starts_with("FILE_NOT_FOUND") && near.contains("references/formats.md"),
        "{near}"
    );
    let out = talk
        .expect_refusal("load_skill_resource", resource("references/../../x"))
        .await?;
    assert!(out.contains("leads out of the skill"), "{out}");
    let asset = json!({"skill_id": "image-info", "asset_path": "assets/sample.png"});
    let asset = talk.call("load_skill_asset", asset).await?;
    assert_eq!(
        (&asset["binary"], &asset["mime_type"]),
        (&json!(true), &json!("image/png"))
    );
    assert_eq!(asset["sha256"].as_str().map(str::len), Some(64));

    // Rows of the survey's A10.
    for (version, found) in [
        ("*", "2.0.0"),
        ("latest", "2.0.0"),
        ("^1.0", "1.0.0"),
        ("v1.0.0", "1.0.0"),
        ("~=1.0", "1.0.0"),
        ("==1.*", "1.0.0"),
        (">=1, <2", "1.0.0"),
    ] {
        let load = json!({"skill_id": "letter-template", "version": version, "reload": true});
        let loaded = talk.call("load_skill_md", load).await?;
        assert_eq!(loaded["version"], found, "{version}");
    }
    // The loaded version is in each of these, and it is not the highest that there is.
    for range in [">=1", "1.x", "~=1.0", ">=1, <3", "==1.*", "v1.0.0", "1"] {
        let load = json!({"skill_id": "letter-template", "version": "1.0.0"});
        talk.call("load_skill_md", load).await?;
        let unload = json!({"skill_id": "letter-template", "version": range});
        let gone = talk.call("unload_skill", unload).await?;
        assert_eq!(gone["outcome"], "UNLOADED", "{range}: {gone}");
    }
    let load = json!({"skill_id": "letter-template", "version": "1.0.0"});
    talk.call("load_skill_md", load).await?;
    for range in [">=2", "~=1.1", "0.9"] {
        let unload = json!({"skill_id": "letter-template", "version": range});
        let kept = talk.call("unload_skill", unload).await?;
        assert_eq!(kept["outcome"], "NOT_LOADED", "{range}: {kept}");
    }
    let before = talk.state.clone();
    for (version, said) in [
        ("3.0.0", "letter-template@2.0.0"),
        ("not a version!", "version"),
    ] {
        let load = json!({"skill_id": "letter-template", "version": version});
        let error = talk.expect_refusal("load_skill_md", load).await?;
        assert!(error.contains(said), "{error}");
    }
    assert_eq!(talk.state, before);
    daemon.stop().await
}

fn host() -> HostTools {
    let mut tools = HostTools::new();
    let definition = ToolDefinition {
        name: "add".into(),
        description: "Adds.".into(),
        parameters: json!({"type": "object"}),
        returns: json!({"type": "number"}),
    };
    tools.register(definition, async |arguments| {
        let number = |key: &str| arguments[key].as_f64().ok_or(format!("{key} is no number"));
        Ok(json!(number("a")? + number("b")?))
    });
    tools
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cards_tools_come_and_go_with_its_skill() -> Result<()> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    for (id, card) in [
        (
            "sums",
            json!({"local_tools": {"label": {"id": "add", "import_path": "pkg.add"}}}),
        ),
        (
            "more",
            json!({"local_tools": {"other": {"id": "multiply", "import_path": "pkg.mul"}}}),
        ),
        (
            "strict",
            json!({"extensions": [{"uri": "urn:x:unknown", "required": true}]}),
        ),
        (
            "remote",
            json!({"mcps": {"s": {"id": "s", "url": "http://127.0.0.1:9/", "transport": "streamable-http"}}}),
        ),
    ] {
        let dir = root.path().join(id);
        fs::create_dir(&dir)?;
        let text = format!("---\nname: {id}\ndescription: A skill with a card.\n---\nDo sums.\n");
        fs::write(dir.join("SKILL.md"), text)?;
        let mut card = card;
        for (key, value) in [
            ("id", id),
            ("name", id),
            ("version", "1.0.0"),
            ("description", "x"),
            ("base_uri", "."),
        ] {
            card[key] = json!(value);
        }
        fs::write(dir.join("skill-card.json"), card.to_string())?;
    }
    let daemon = Daemon::start_with(DaemonOptions::default().skills(root.path())).await?;
    let mut talk = Talk::new(&daemon.client, host(), SessionState::new())?;
    talk.call("load_skill_md", json!({"skill_id": "sums"}))
        .await?;
    assert!(talk.names().await?.contains(&"add".to_owned()));
    assert_eq!(talk.call("add", json!({"a": 1, "b": 2})).await?, json!(3.0));
    let before = talk.state.clone();
    for (skill, said) in [
        ("more", "HOST_LACKS: skill more needs the tools multiply"),
        ("strict", "SKILL_UNUSABLE"),
        (
            "remote",
            "MCP_FAILED: MCP server s: \"http://127.0.0.1:9/\" is not among the servers",
        ),
    ] {
        let error = talk
            .expect_refusal("load_skill_md", json!({"skill_id": skill}))
            .await?;
        assert!(error.starts_with(said), "{error}");
    }
    assert_eq!(talk.state, before);
    talk.call("unload_skill", json!({"skill_id": "sums"}))
        .await?;
    assert!(
        talk.expect_refusal("add", json!({}))
            .await?
            .starts_with("UNKNOWN_TOOL")
    );
    daemon.stop().await
}

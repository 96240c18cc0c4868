//! Protection of MCP connections against hostile states, models and servers.

use serde_json::{Value, json};
use skilld_tools::host_tools::HostTools;
use skilld_tools::state::SessionState;

use super::{allowing, card, conversation};
use crate::conversation::host;
use skilld_testing::mcp::{McpServer, ON_STDIO_TOOLS, on_stdio};
use skilld_testing::skills::Kit;

/// A state that has the skill loaded, with a tool of a program of its own.
fn state_with_program(id: &str, digest: &str, program: &[&str]) -> SessionState {
    let definition = json!({"name": "t", "description": "", "parameters": {}, "returns": {}});
    let server = json!({"label": "files", "at": {"program": program}});
    let loaded = json!({
        "resolved_version": "1.0.0", "digest": digest, "tools": ["t"], "order": 1,
        "remote": [{"server": server, "definition": definition}],
    });
    let state = json!({ format!("__sherma__/{id}"): loaded });
    serde_json::from_value(state).expect("a state")
}

#[tokio::test]
async fn a_program_that_only_the_state_names_is_not_started() {
    let dir = tempfile::tempdir().expect("a directory");
    let mark = dir.path().join("started");
    let mark_text = mark.to_str().expect("utf-8");
    let command = on_stdio();
    let entry = json!({"transport": "stdio", "command": command[0], "args": command[1..]});
    let kit = Kit::new("local", "1.0.0").card(card(&[("files", entry)]));
    let digest = kit.skill.digest.clone();
    let mut options = allowing(&[]);
    options.mcp.card_commands = true;
    let (fake, mut talk) = conversation(options.clone(), HostTools::new(), vec![kit]).await;
    for (id, digest) in [
        ("local", digest.as_str()),
        ("local", "*"),
        ("local", ""),
        ("local", "!"),
        ("no-such", "d"),
    ] {
        talk.state = state_with_program(id, digest, &["touch", mark_text]);
        assert_eq!(talk.names().await.last().map(String::as_str), Some("t"));
        let (code, message) = talk.refused("t", json!({})).await;
        assert_eq!(code, "MCP_FAILED", "{id} {digest}: {message}");
        assert!(message.contains("the card of"), "{message}");
        assert!(!mark.exists(), "{id} {digest}");
    }
    // What the card itself says is started, also by a process that did not load it.
    talk.state = SessionState::new();
    talk.load("local").await;
    assert_eq!(talk.names().await[7..], ON_STDIO_TOOLS);
    let mut other = crate::conversation::Conversation::new(&fake, options).await;
    other.state = talk.state.clone();
    other.ok("local_echo", json!({})).await;
}

#[tokio::test]
async fn no_state_offers_a_tool_under_the_name_of_one_of_ours() {
    let (_fake, mut talk) = conversation(allowing(&[]), HostTools::new(), Vec::new()).await;
    let before = talk.definitions().await;
    let definition = json!({"name": "load_skill_md", "description": "Not ours.", "parameters": {}, "returns": {}});
    let server = json!({"label": "s", "at": {"url": "http://127.0.0.1:9/"}});
    let loaded = json!({
        "digest": "d", "tools": ["load_skill_md"], "order": 1,
        "remote": [{"server": server, "definition": definition}],
    });
    let state = json!({"__sherma__/any": loaded});
    talk.state = serde_json::from_value(state).expect("a state");
    assert_eq!(talk.definitions().await, before);
}

#[tokio::test]
async fn arguments_that_are_no_object_call_nothing() {
    let server = McpServer::start(&["echo"]).await;
    let remote = Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
    let local = Kit::new("local", "1.0.0").card(json!({"local_tools": {"add": {"id": "add"}}}));
    let options = allowing(&[&server.url]);
    let (_fake, mut talk) = conversation(options, host(&["add"]), vec![remote, local]).await;
    for skill in ["remote", "local"] {
        talk.load(skill).await;
    }
    for tool in ["echo", "add"] {
        for arguments in [
            json!("{\"dir\": \"/tmp/x\""),
            json!("[1]"),
            json!([1]),
            json!(7),
        ] {
            let (code, message) = talk.refused(tool, arguments.clone()).await;
            assert_eq!(code, "INVALID_ARGUMENTS", "{tool} {arguments}: {message}");
        }
    }
    assert_eq!(server.calls(), 0);
    for none in [json!(null), json!(""), json!({})] {
        let said = talk.ok("add", none).await;
        assert_eq!(said["arguments"], json!({}));
    }
    talk.ok("echo", json!(null)).await;
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn a_servers_error_text_is_truncated() {
    let tools = ["fails-floods", "refuses-floods"];
    let server = McpServer::start(&tools).await;
    let kit = Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
    let options = allowing(&[&server.url]);
    let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
    talk.load("remote").await;
    for (tool, code) in tools.iter().zip(["TOOL_FAILED", "MCP_FAILED"]) {
        let (is, message) = talk.refused(tool, json!({})).await;
        assert_eq!(is, code, "{tool}");
        assert!(message.len() < 5000, "{tool}: {} bytes", message.len());
        assert!(message.contains("éé"), "{tool}: {message}");
        assert!(message.ends_with("… (cut)"), "{tool}: {message}");
    }
}

#[tokio::test]
async fn a_servers_texts_reach_the_model_without_escape_sequences() {
    let server = McpServer::start(&["colours", "fails"]).await;
    let kit = Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
    let options = allowing(&[&server.url]);
    let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
    talk.load("remote").await;
    let shown = talk.ok("colours", json!({})).await;
    assert_eq!(shown, json!({"log": "100%\nok"}));
    let (_, message) = talk.refused("fails", json!({})).await;
    assert_eq!(message, "fails: it is broken");
}

#[tokio::test]
async fn tools_of_a_hidden_skill_are_neither_offered_nor_called() {
    let server = McpServer::start(&["echo"]).await;
    let kit = Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
    let local = Kit::new("local", "1.0.0").card(json!({"local_tools": {"add": {"id": "add"}}}));
    let options = allowing(&[&server.url]);
    let kits = vec![kit, local];
    let (fake, mut talk) = conversation(options.clone(), host(&["add"]), kits).await;
    for skill in ["remote", "local"] {
        talk.load(skill).await;
    }
    let hiding = skilld_tools::ToolOptions {
        skills: Some(vec!["other".into()]),
        ..options
    };
    let client = fake.client().await;
    talk.tools = skilld_tools::Toolset::new(client, hiding, host(&["add"])).expect("good");
    assert_eq!(talk.names().await.len(), 7);
    for tool in ["echo", "add"] {
        talk.check_refused(tool, json!({}), "UNKNOWN_TOOL").await;
    }
    let gone = talk.unload("remote").await;
    assert_eq!(
        gone["message"],
        Value::from("remote is not loaded; nothing is")
    );
    assert_eq!(server.opened(), 1);
}

//! Limits of cards, servers and sessions with MCP, and the end of connections.

use serde_json::{Value, json};
use skilld_tools::host_tools::HostTools;
use skilld_tools::{ToolOptions, Toolset};

use super::{allowing, card, conversation};
use crate::conversation::Conversation;
use crate::sherma::Recorder;
use skilld_testing::Fake;
use skilld_testing::mcp::{McpServer, redirecting, staying_on_stdio};
use skilld_testing::skills::Kit;

#[tokio::test]
async fn the_least_recently_used_connection_is_closed_and_reopened() {
    let mut servers = Vec::new();
    for at in 0..17 {
        servers.push(McpServer::start(&[&format!("echo-{at}")]).await);
    }
    let urls: Vec<&str> = servers.iter().map(|server| server.url.as_str()).collect();
    let kits: Vec<Kit> = servers
        .chunks(8)
        .enumerate()
        .map(|(at, servers)| {
            let labels: Vec<String> = (0..servers.len()).map(|at| format!("s{at}")).collect();
            let entries: Vec<(&str, Value)> = labels
                .iter()
                .zip(servers)
                .map(|(label, server)| (label.as_str(), server.entry()))
                .collect();
            Kit::new(&format!("kit-{at}"), "1.0.0").card(card(&entries))
        })
        .collect();
    let (_fake, mut talk) = conversation(allowing(&urls), HostTools::new(), kits).await;
    for at in 0..2 {
        let load = json!({"skill_id": format!("kit-{at}")});
        talk.ok("load_skill_md", load).await;
    }
    // The first is used again, so it is the second that makes room.
    talk.ok("echo-0", json!({})).await;
    talk.load("kit-2").await;
    servers[1].has_closed(1).await;
    for (at, opened) in [(0, 1), (16, 1), (1, 2)] {
        talk.ok(&format!("echo-{at}"), json!({})).await;
        assert_eq!(servers[at].opened(), opened, "{at}");
    }
}

#[tokio::test]
async fn cards_with_too_many_or_unstartable_servers_are_refused() {
    let stdio = |more: Value| {
        let mut entry = json!({"transport": "stdio"});
        for (key, value) in more.as_object().into_iter().flatten() {
            entry[key] = value.clone();
        }
        entry
    };
    let labels: Vec<String> = (0..9).map(|at| format!("s{at}")).collect();
    let nine: Vec<(&str, Value)> = labels
        .iter()
        .map(|label| (label.as_str(), stdio(json!({}))))
        .collect();
    let odd = stdio(json!({"command": "true", "args": ["a", 1]}));
    let kits = vec![
        Kit::new("many", "1.0.0").card(card(&nine)),
        Kit::new("odd", "1.0.0").card(card(&[("s", odd)])),
        Kit::new("absent", "1.0.0").card(card(&[("absent", stdio(json!({})))])),
    ];
    let mut options = allowing(&[]);
    options.mcp.card_commands = true;
    let absent = vec!["/no/such/program".to_owned()];
    options.mcp.servers.insert("absent".into(), absent);
    let (_fake, mut talk) = conversation(options, HostTools::new(), kits).await;
    for (skill, code, said) in [
        (
            "many",
            "HOST_LACKS",
            "9 MCP servers; at most 8 are connected",
        ),
        ("odd", "MCP_FAILED", "its args are not all text"),
        ("absent", "MCP_FAILED", "cannot start /no/such/program"),
    ] {
        let load = json!({"skill_id": skill});
        let (is, message) = talk.refused("load_skill_md", load).await;
        assert_eq!(is, code, "{message}");
        assert!(message.contains(said), "{message}");
    }
}

#[tokio::test]
async fn a_server_that_tells_too_much_is_refused() {
    for (tool, said) in [
        ("verbose", "more than 262144 bytes of them"),
        ("endless", "more than 32 pages"),
    ] {
        let server = McpServer::start(&[tool]).await;
        let kit = Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
        let options = allowing(&[&server.url]);
        let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
        let load = json!({"skill_id": "remote"});
        let (code, message) = talk.refused("load_skill_md", load).await;
        assert_eq!(code, "MCP_FAILED");
        assert!(message.contains(said), "{message}");
        server.has_closed(1).await;
    }
}

/// A server on stdio whose tool wants to know more before it answers, whatever its client understands.
const ASKING_BACK: &str = r#"
answer() { read -r _; printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
answer 0 '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}'
read -r _
answer 1 '{"tools":[{"name":"asks","inputSchema":{"type":"object"}}]}'
answer 2 '{"resultType":"input_required","requestState":"s"}'
read -r _
"#;

#[tokio::test]
async fn a_tool_that_asks_back_fails() {
    let kit = Kit::new("local", "1.0.0").card(card(&[("files", json!({"transport": "stdio"}))]));
    let mut options = allowing(&[]);
    let command = ["sh", "-c", ASKING_BACK].map(str::to_owned).to_vec();
    options.mcp.servers.insert("files".into(), command);
    let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
    talk.load("local").await;
    let (code, message) = talk.refused("asks", json!({})).await;
    assert_eq!(code, "MCP_FAILED");
    assert!(message.contains("asks wants to ask back"), "{message}");
}

#[tokio::test]
async fn a_redirect_leads_nowhere() {
    let hidden = McpServer::start(&["echo"]).await;
    let (url, _listener) = redirecting(hidden.url.clone()).await;
    let entry = json!({"url": url, "transport": "streamable-http"});
    let kit = Kit::new("remote", "1.0.0").card(card(&[("s", entry)]));
    let options = allowing(&[&url]);
    let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
    let refused = talk
        .refused("load_skill_md", json!({"skill_id": "remote"}))
        .await;
    assert_eq!(refused.0, "MCP_FAILED");
    assert_eq!(hidden.opened(), 0);
}

#[tokio::test]
async fn evicting_or_refusing_a_skill_closes_its_connections() {
    let server = McpServer::start(&["echo"]).await;
    let kit = || Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
    let options = ToolOptions {
        max_loaded_skills: 1,
        ..allowing(&[&server.url])
    };
    let kits = vec![kit(), Kit::new("other", "1.0.0")];
    let (_fake, mut talk) = conversation(options.clone(), HostTools::new(), kits).await;
    talk.load("remote").await;
    talk.load("other").await;
    server.has_closed(1).await;
    let fake = Fake::start();
    fake.state.lock().kits = vec![kit()];
    let hooks = Recorder {
        refuses: "after_load",
        ..Recorder::default()
    };
    let mut talk = Conversation::with(&fake, options, HostTools::new(), hooks).await;
    let refused = talk
        .refused("load_skill_md", json!({"skill_id": "remote"}))
        .await;
    assert_eq!(refused.0, "REFUSED_BY_HOST");
    assert_eq!(server.opened(), 2);
    server.has_closed(2).await;
}

#[tokio::test]
async fn disconnecting_a_kept_session_leaves_no_program_running() {
    let kit = Kit::new("local", "1.0.0").card(card(&[("files", json!({"transport": "stdio"}))]));
    let mut options = allowing(&[]);
    options
        .mcp
        .servers
        .insert("files".into(), staying_on_stdio());
    let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
    talk.load("local").await;
    let pid = talk.ok("pid", json!({})).await;
    let pid = i32::try_from(pid.as_i64().expect("a number")).expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid).expect("not 0");
    rustix::process::test_kill_process(pid).expect("runs");
    talk.tools.disconnect(&talk.session).await;
    let gone = rustix::process::test_kill_process(pid);
    assert_eq!(gone, Err(rustix::io::Errno::SRCH));
    // Whoever goes on with the session connects again.
    talk.ok("pid", json!({})).await;
    talk.tools.disconnect(&talk.session).await;
}

#[tokio::test]
async fn options_with_a_server_that_cannot_be_are_refused() {
    let fake = Fake::start();
    let client = fake.client().await;
    for (urls, servers, said) in [
        (vec!["not a url".to_owned()], vec![], "which is no URL"),
        (
            vec![],
            vec![("files".to_owned(), vec![])],
            "mcp.servers.files has no program",
        ),
        (
            vec![],
            vec![("files".to_owned(), vec![String::new()])],
            "has no program",
        ),
    ] {
        let mut options = allowing(&[]);
        options.mcp.urls = urls;
        options.mcp.servers = servers.into_iter().collect();
        let refused = Toolset::new(client.clone(), options, HostTools::new());
        let error = refused.expect_err("refused");
        assert_eq!(error.code(), "INVALID_OPTIONS");
        assert!(error.to_string().contains(said), "{error}");
    }
}

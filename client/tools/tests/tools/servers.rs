//! MCP servers of loaded skills' cards: connected, offered, called, disconnected, and never without the host's leave.

mod connection_limits;
mod hostile_servers;

use std::time::Duration;

use serde_json::{Value, json};
use skilld_tools::hooks::NoHooks;
use skilld_tools::host_tools::HostTools;
use skilld_tools::{Family, McpOptions, ToolOptions};

use crate::conversation::{Conversation, host};
use skilld_testing::Fake;
use skilld_testing::mcp::{McpServer, ON_STDIO_TOOLS, on_stdio};
use skilld_testing::skills::Kit;

fn card(servers: &[(&str, Value)]) -> Value {
    let servers: serde_json::Map<_, _> = servers
        .iter()
        .map(|(label, entry)| ((*label).to_owned(), entry.clone()))
        .collect();
    json!({"mcps": servers})
}

fn allowing(urls: &[&str]) -> ToolOptions {
    ToolOptions {
        family: Family::Sherma,
        mcp: McpOptions {
            urls: urls.iter().map(|url| (*url).to_owned()).collect(),
            ..McpOptions::default()
        },
        ..ToolOptions::default()
    }
}

async fn conversation(
    options: ToolOptions,
    host: HostTools,
    kits: Vec<Kit>,
) -> (Fake, Conversation) {
    let fake = Fake::start();
    fake.state.lock().kits = kits;
    let talk = Conversation::with(&fake, options, host, NoHooks).await;
    (fake, talk)
}

#[tokio::test]
async fn loading_a_card_connects_servers_and_keeps_their_tool_names() {
    let server = McpServer::start(&["echo", "structured", "fails"]).await;
    let kit = Kit::new("remote", "1.0.0").card(card(&[("some-label", server.entry())]));
    let (_fake, mut talk) =
        conversation(allowing(&[&server.url]), HostTools::new(), vec![kit]).await;
    assert_eq!(server.opened(), 0);
    let loaded = talk.load("remote").await;
    assert_eq!(
        loaded["tools_loaded"],
        json!(["echo", "structured", "fails"])
    );
    let definitions = talk.definitions().await;
    assert_eq!(definitions[7].name, "echo");
    assert_eq!(definitions[7].description, "The tool echo.");
    let fields = json!({"x": {"type": "number"}, "note": {"type": "string"}});
    let reduced = json!({"type": "object", "properties": fields});
    assert_eq!(definitions[7].parameters, reduced);
    let said = talk.ok("echo", json!({"x": 1})).await;
    let said: Value = serde_json::from_str(said.as_str().expect("text")).expect("JSON");
    assert_eq!(said, json!({"tool": "echo", "arguments": {"x": 1}}));
    let said = talk.ok("structured", json!("{\"x\": 2}")).await;
    assert_eq!(said["arguments"], json!({"x": 2}));
    let failed = talk.refused("fails", json!({})).await;
    assert_eq!(failed, ("TOOL_FAILED".into(), "fails: it is broken".into()));
    // One connection for all of it, and another one only when that is asked for.
    assert_eq!(server.opened(), 1);
    talk.load("remote").await;
    assert_eq!(server.opened(), 1);
    talk.ok(
        "load_skill_md",
        json!({"skill_id": "remote", "reload": true}),
    )
    .await;
    assert_eq!(server.opened(), 2);
    talk.unload("remote").await;
    server.has_closed(2).await;
    assert_eq!(talk.names().await.len(), 7);
    talk.check_refused("echo", json!({}), "UNKNOWN_TOOL").await;
}

#[tokio::test]
async fn the_end_of_a_session_closes_its_connections() {
    let server = McpServer::start(&["echo"]).await;
    let kit = Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
    let (_fake, mut talk) =
        conversation(allowing(&[&server.url]), HostTools::new(), vec![kit]).await;
    talk.load("remote").await;
    talk.tools.end(&talk.session).await.expect("ends");
    server.has_closed(1).await;
}

#[tokio::test]
async fn a_server_on_stdio_is_the_hosts_program() {
    let kit = Kit::new("local", "1.0.0")
        .card(card(&[("files", json!({"transport": "stdio", "url": ""}))]));
    let mut options = allowing(&[]);
    options.mcp.servers.insert("files".into(), on_stdio());
    let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit.clone()]).await;
    talk.load("local").await;
    let said = talk.ok("local_echo", json!({"x": 3})).await;
    let said: Value = serde_json::from_str(said.as_str().expect("text")).expect("JSON");
    assert_eq!(said, json!({"tool": "local_echo", "arguments": {"x": 3}}));
    talk.unload("local").await;
    let (_fake, mut talk) = conversation(allowing(&[]), HostTools::new(), vec![kit]).await;
    let (code, message) = talk
        .refused("load_skill_md", json!({"skill_id": "local"}))
        .await;
    assert_eq!(code, "MCP_FAILED");
    assert!(message.contains("mcp.servers"), "{message}");
}

#[tokio::test]
async fn a_card_starts_a_program_only_where_the_host_allows_it() {
    let command = on_stdio();
    let entry = json!({"transport": "stdio", "command": command[0], "args": command[1..]});
    let kit = Kit::new("local", "1.0.0").card(card(&[("files", entry)]));
    let (_fake, mut talk) = conversation(allowing(&[]), HostTools::new(), vec![kit.clone()]).await;
    let (code, message) = talk
        .refused("load_skill_md", json!({"skill_id": "local"}))
        .await;
    assert_eq!(code, "MCP_FAILED");
    assert!(message.contains("mcp.card_commands"), "{message}");
    let mut options = allowing(&[]);
    options.mcp.card_commands = true;
    let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
    talk.load("local").await;
    assert_eq!(talk.names().await[7..], ON_STDIO_TOOLS);
}

#[tokio::test]
async fn an_unlisted_url_is_not_connected_even_on_loopback() {
    let server = McpServer::start(&["echo"]).await;
    let kit = Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
    for urls in [&[][..], &["https://example.com/mcp"][..]] {
        let (_fake, mut talk) =
            conversation(allowing(urls), HostTools::new(), vec![kit.clone()]).await;
        let (code, message) = talk
            .refused("load_skill_md", json!({"skill_id": "remote"}))
            .await;
        assert_eq!(code, "MCP_FAILED");
        assert!(message.contains("mcp.urls"), "{message}");
    }
    assert_eq!(server.opened(), 0);
}

#[tokio::test]
async fn a_load_that_fails_half_way_closes_what_it_opened() {
    let server = McpServer::start(&["echo"]).await;
    let dead = {
        let mut dead = McpServer::start(&["other"]).await;
        dead.end();
        dead.entry()
    };
    let url = dead["url"].as_str().expect("a URL").to_owned();
    let kit = Kit::new("both", "1.0.0").card(card(&[("a-good", server.entry()), ("b-dead", dead)]));
    let options = allowing(&[&server.url, &url]);
    let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
    let (code, message) = talk
        .refused("load_skill_md", json!({"skill_id": "both"}))
        .await;
    assert_eq!(code, "MCP_FAILED");
    assert!(message.starts_with("MCP server b-dead: "), "{message}");
    assert_eq!(server.opened(), 1);
    server.has_closed(1).await;
    assert_eq!(talk.names().await.len(), 7);
}

#[tokio::test]
async fn a_tools_name_that_is_taken_is_refused_with_both_owners() {
    let (one, two) = (
        McpServer::start(&["echo"]).await,
        McpServer::start(&["echo"]).await,
    );
    let odd = McpServer::start(&["add", "load_skill_md"]).await;
    let family = McpServer::start(&["load_skill_md"]).await;
    let kits = vec![
        Kit::new("one", "1.0.0").card(card(&[("s", one.entry())])),
        Kit::new("same", "1.0.0").card(card(&[("t", one.entry())])),
        Kit::new("two", "1.0.0").card(card(&[("s", two.entry())])),
        Kit::new("twice", "1.0.0").card(card(&[("a", one.entry()), ("b", two.entry())])),
        Kit::new("hosts", "1.0.0").card(card(&[("s", odd.entry())])),
        Kit::new("family", "1.0.0").card(card(&[("s", family.entry())])),
    ];
    let options = allowing(&[&one.url, &two.url, &odd.url, &family.url]);
    let (_fake, mut talk) = conversation(options, host(&["add"]), kits).await;
    for (skill, tool, owner) in [
        ("twice", "echo", "twice (another server of it)"),
        ("hosts", "add", "the host application"),
        ("family", "load_skill_md", "the skill tools themselves"),
    ] {
        let (code, message) = talk
            .refused("load_skill_md", json!({"skill_id": skill}))
            .await;
        assert_eq!(code, "TOOL_TAKEN");
        assert_eq!(
            message,
            format!("the tool {tool} of {skill} is also one of {owner}: unload that first")
        );
    }
    talk.load("one").await;
    let (code, message) = talk
        .refused("load_skill_md", json!({"skill_id": "two"}))
        .await;
    assert_eq!(code, "TOOL_TAKEN");
    assert_eq!(
        message,
        "the tool echo of two is also one of one: unload that first"
    );
    // The same server's tool is the same tool: it stays until both are unloaded.
    talk.load("same").await;
    let unloaded = talk.unload("one").await;
    assert_eq!(unloaded.get("tools_unloaded"), None);
    talk.ok("echo", json!({})).await;
}

#[tokio::test]
async fn a_server_that_hangs_or_floods_ends_only_its_call() {
    let late = |error: &Value| error["message"].to_string().contains("did not answer");
    let server = McpServer::start(&["echo", "hangs", "floods"]).await;
    // A busy machine delays the other calls beyond a short time, too.
    for seconds in [1, 10, 60] {
        let kit = Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
        let mut options = allowing(&[&server.url]);
        options.timeout = Some(Duration::from_secs(seconds));
        let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
        talk.load("remote").await;
        let mut call = async |tool: &str| talk.call(tool, json!({})).await;
        let hangs = call("hangs").await.expect_err("no answer");
        assert_eq!(hangs["error"], "MCP_FAILED", "{hangs}");
        assert!(late(&hangs), "{hangs}");
        let floods = call("floods").await.expect_err("too much");
        assert_eq!(floods["error"], "MCP_FAILED", "{floods}");
        let echo = call("echo").await;
        if late(&floods) || echo.as_ref().is_err_and(late) {
            continue;
        }
        let cut = "more than 1048576: ask for less of it";
        assert!(floods["message"].to_string().contains(cut), "{floods}");
        echo.expect("an answer");
        return;
    }
    panic!("no call after the one that hangs is answered");
}

#[tokio::test]
async fn large_pictures_and_files_are_named_by_type_and_size() {
    let server = McpServer::start(&["pictures", "picture"]).await;
    let kit = Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
    let options = allowing(&[&server.url]);
    let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
    talk.load("remote").await;
    let named = "Before and after:\n\
                 [an image, image/png, 49152 bytes: too large to show]\n\
                 [file:///a.zip, application/zip, 1572865 bytes: too large to show]";
    assert_eq!(talk.ok("pictures", json!({})).await, named);
    let image = json!([{"type": "image", "data": "AQID", "mimeType": "image/png"}]);
    assert_eq!(talk.ok("picture", json!({})).await, image);
}

#[tokio::test]
async fn another_process_goes_on_with_the_state_alone() {
    let server = McpServer::start(&["echo"]).await;
    let kit = Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
    let (fake, mut talk) =
        conversation(allowing(&[&server.url]), HostTools::new(), vec![kit]).await;
    talk.load("remote").await;
    let before = talk.definitions().await;
    let mut other = Conversation::new(&fake, allowing(&[&server.url])).await;
    other.state = serde_json::from_value(talk.stored()).expect("a state");
    // What is offered needs no server.
    assert_eq!(other.definitions().await, before);
    assert_eq!(server.opened(), 1);
    other.ok("echo", json!({})).await;
    assert_eq!(server.opened(), 2);
    // And one whose host allows nothing connects nothing, whatever a state says.
    let mut strict = Conversation::new(&fake, allowing(&[])).await;
    strict.state = other.state.clone();
    assert_eq!(strict.refused("echo", json!({})).await.0, "MCP_FAILED");
    assert_eq!(server.opened(), 2);
}

#[tokio::test]
async fn transports_that_cannot_be_had_are_named() {
    let kits = vec![
        Kit::new("old", "1.0.0").card(card(&[(
            "s",
            json!({"url": "http://127.0.0.1:1/", "transport": "sse"}),
        )])),
        Kit::new("odd", "1.0.0").card(card(&[(
            "s",
            json!({"url": "http://127.0.0.1:1/", "transport": "carrier-pigeon"}),
        )])),
        Kit::new("none", "1.0.0").card(card(&[("s", json!({"url": "http://127.0.0.1:1/"}))])),
    ];
    let (_fake, mut talk) =
        conversation(allowing(&["http://127.0.0.1:1/"]), HostTools::new(), kits).await;
    for skill in ["old", "odd", "none"] {
        let (code, message) = talk
            .refused("load_skill_md", json!({"skill_id": skill}))
            .await;
        assert_eq!(code, "MCP_FAILED");
        assert!(message.contains("streamable-http"), "{message}");
    }
}

#[tokio::test]
async fn a_dead_server_is_restarted_but_its_call_is_not_repeated() {
    let kit = Kit::new("local", "1.0.0").card(card(&[("files", json!({"transport": "stdio"}))]));
    let mut options = allowing(&[]);
    options.mcp.servers.insert("files".into(), on_stdio());
    let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
    talk.load("local").await;
    for _ in 0..2 {
        talk.check_refused("quits", json!({}), "MCP_FAILED").await;
        talk.ok("local_echo", json!({"x": 1})).await;
    }
}

#[tokio::test]
async fn a_servers_program_gets_no_secret_of_the_environment() {
    const SECRET: &str = "SKILLD_TEST_SECRET";
    if std::env::var_os(SECRET).is_none() {
        // Once more, in a process that has a secret.
        let name = "servers::a_servers_program_gets_no_secret_of_the_environment";
        let said = tokio::process::Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", name])
            .env(SECRET, "s")
            .output()
            .await
            .expect("runs");
        let text = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let kit = Kit::new("local", "1.0.0").card(card(&[("files", json!({"transport": "stdio"}))]));
    let mut options = allowing(&[]);
    options.mcp.servers.insert("files".into(), on_stdio());
    let (_fake, mut talk) = conversation(options, HostTools::new(), vec![kit]).await;
    talk.load("local").await;
    let names = talk.ok("environment", json!({})).await;
    let mut names: Vec<String> = serde_json::from_value(names).expect("names");
    names.retain(|name| {
        !["HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "USER"].contains(&name.as_str())
    });
    assert!(names.is_empty(), "{names:?}");
}

#[tokio::test]
async fn servers_with_too_many_or_badly_named_tools_are_refused() {
    let names: Vec<String> = (0..200).map(|at| format!("tool-{at}")).collect();
    let many: Vec<&str> = names.iter().map(String::as_str).collect();
    for (tools, said) in [
        (many, "more than 128 tools"),
        (
            vec!["good", "bad name"],
            "its tool \"bad name\" has a name that models cannot call",
        ),
        (vec![""], "its tool \"\""),
    ] {
        let server = McpServer::start(&tools).await;
        let kit = Kit::new("remote", "1.0.0").card(card(&[("s", server.entry())]));
        let (_fake, mut talk) =
            conversation(allowing(&[&server.url]), HostTools::new(), vec![kit]).await;
        let (code, message) = talk
            .refused("load_skill_md", json!({"skill_id": "remote"}))
            .await;
        assert_eq!(code, "MCP_FAILED");
        assert!(message.contains(said), "{message}");
        assert_eq!(talk.names().await.len(), 7);
    }
}

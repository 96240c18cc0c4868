//! `skillctl mcp --http`: who may connect, how many, and what all of them are told.

use std::process::Stdio;
use std::time::Duration;

use reqwest::StatusCode;
use rmcp::model::CallToolRequestParams;
use rmcp::service::{NotificationContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, RoleClient, ServiceExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::sync::watch;

use crate::commands::skillctl;
use crate::commands_tool::fake;
use crate::fake::Fake;
use crate::fake::mcp::{ON_STDIO_TOOLS, on_stdio};
use crate::fake::skills::Kit;

/// A server; ends with this value.
struct Server {
    url: String,
    http: reqwest::Client,
    _child: Child,
}

impl Server {
    async fn start(fake: &Fake, words: &[&str]) -> Self {
        // Of HTTP clients, which make themselves ready for TLS; another test may have been first.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut command = skillctl(fake, &[&["mcp", "--http"], words].concat());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("starts");
        let mut said = BufReader::new(child.stderr.take().expect("piped")).lines();
        let line = said
            .next_line()
            .await
            .expect("is read")
            .expect("says where");
        let url = line
            .strip_prefix("skillctl: serving ")
            .expect(&line)
            .to_owned();
        Self {
            url,
            http: reqwest::Client::new(),
            _child: child,
        }
    }

    /// The first request of a client.
    async fn hello(&self, headers: &[(&str, &str)]) -> reqwest::Response {
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }});
        let mut request = self
            .http
            .post(&self.url)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(hello.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.expect("answers")
    }
}

/// A client that counts how often it was told of other tools.
struct Listener(watch::Sender<u32>);

impl ClientHandler for Listener {
    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.send_modify(|count| *count += 1);
    }
}

async fn connect(server: &Server) -> (RunningService<RoleClient, Listener>, watch::Receiver<u32>) {
    let (told, heard) = watch::channel(0);
    let transport = StreamableHttpClientTransport::from_uri(server.url.clone());
    let client = Listener(told).serve(transport).await.expect("a session");
    (client, heard)
}

async fn call(client: &RunningService<RoleClient, Listener>, name: &'static str, arguments: Value) {
    let arguments = arguments.as_object().expect("an object").clone();
    let request = CallToolRequestParams::new(name).with_arguments(arguments);
    client.call_tool(request).await.expect("answers");
}

#[tokio::test]
async fn a_change_of_the_tools_is_told_to_every_client() {
    let fake = fake();
    let command = on_stdio();
    let entry = json!({"transport": "stdio", "command": command[0], "args": command[1..]});
    fake.state
        .lock()
        .kits
        .push(Kit::new("local", "1.0.0").card(json!({"mcps": {"s": entry}})));
    let options = json!({"family": "sherma", "mcp": {"card_commands": true}});
    std::fs::write(fake.path("o.json"), options.to_string()).expect("writes");
    let server = Server::start(&fake, &["127.0.0.1:0", "--options", "o.json"]).await;
    let (one, mut one_heard) = connect(&server).await;
    let (other, mut other_heard) = connect(&server).await;
    for client in [&one, &other] {
        assert_eq!(client.list_all_tools().await.expect("tools").len(), 7);
    }
    // A client that has only just come may not listen yet.
    let mut heard = false;
    for _ in 0..20 {
        call(&one, "load_skill_md", json!({"skill_id": "local"})).await;
        let wait = Duration::from_secs(1);
        let told = tokio::time::timeout(wait, other_heard.wait_for(|count| *count > 0)).await;
        if told.is_ok() {
            heard = true;
            break;
        }
        call(&one, "unload_skill", json!({"skill_id": "local"})).await;
    }
    assert!(heard, "the other client is told nothing");
    one_heard
        .wait_for(|count| *count > 0)
        .await
        .expect("is kept");
    let tools = other.list_all_tools().await.expect("tools");
    assert_eq!(tools.len(), 7 + ON_STDIO_TOOLS.len());
}

#[tokio::test]
async fn requests_of_other_hosts_and_pages_are_refused() {
    let fake = fake();
    for (address, own) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "[::1]")] {
        let server = Server::start(&fake, &[address]).await;
        assert!(
            server.url.starts_with(&format!("http://{own}:")),
            "{}",
            server.url
        );
        for (headers, status) in [
            (&[][..], StatusCode::OK),
            (&[("host", "evil.example")], StatusCode::FORBIDDEN),
            (&[("host", "127.0.0.1.evil.example")], StatusCode::FORBIDDEN),
            (&[("origin", "http://evil.example")], StatusCode::FORBIDDEN),
            (
                &[("origin", "http://localhost.evil.example:80")],
                StatusCode::FORBIDDEN,
            ),
            (&[("origin", "null")], StatusCode::FORBIDDEN),
            (&[("origin", "http://localhost:4321")], StatusCode::OK),
            (&[("origin", "http://127.0.0.1:4321")], StatusCode::OK),
            (&[("origin", "http://[::1]:4321")], StatusCode::OK),
        ] {
            let answer = server.hello(headers).await;
            assert_eq!(answer.status(), status, "{own}: {headers:?}");
        }
    }
}

#[tokio::test]
async fn clients_are_bounded_and_one_that_goes_makes_room() {
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let mut last = None;
    for number in 0..256 {
        let answer = server.hello(&[]).await;
        assert_eq!(answer.status(), StatusCode::OK, "client {number}");
        last = answer.headers().get("mcp-session-id").cloned();
    }
    assert!(server.hello(&[]).await.status().is_server_error());
    let ended = server
        .http
        .delete(&server.url)
        .header("mcp-session-id", last.expect("a session"))
        .send();
    assert!(ended.await.expect("answers").status().is_success());
    // Its place is free as soon as its session is over, which nobody tells.
    let again = async {
        while server.hello(&[]).await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    };
    let within = Duration::from_secs(20);
    tokio::time::timeout(within, again).await.expect("a place");
}

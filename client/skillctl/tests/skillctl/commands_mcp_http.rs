//! `skillctl mcp --http`: who may connect, how many, and what all of them are told.

use std::process::Stdio;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::HeaderValue;
use rmcp::model::CallToolRequestParams;
use rmcp::service::{NotificationContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, RoleClient, ServiceExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::sync::watch;

use crate::commands::skillctl;
use crate::commands_mcp::{is_killed, started_exec};
use crate::commands_mcp_schemas::largest_files;
use crate::commands_tool::fake;
use skilld_testing::mcp::{ON_STDIO_TOOLS, on_stdio};
use skilld_testing::skills::Kit;
use skilld_testing::{DEADLINE, Fake, FakeExec};

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
        self.hello_with_version("2025-06-18", headers).await
    }

    /// The first request of a client of a version of the protocol.
    async fn hello_with_version(
        &self,
        version: &str,
        headers: &[(&str, &str)],
    ) -> reqwest::Response {
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": version,
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
    for _ in 0..60 {
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

/// A client's session.
fn session(answer: &reqwest::Response) -> HeaderValue {
    assert_eq!(answer.status(), StatusCode::OK);
    let id = answer.headers().get("mcp-session-id");
    id.expect("a session").clone()
}

impl Server {
    /// The stream on which a client listens.
    async fn listen(&self, session: &HeaderValue) -> reqwest::Response {
        self.http
            .get(&self.url)
            .header("accept", "text/event-stream")
            .header("mcp-session-id", session)
            .send()
            .await
            .expect("answers")
    }

    /// Says something in a session.
    async fn say(&self, session: &HeaderValue, message: Value) -> reqwest::Response {
        self.http
            .post(&self.url)
            .body(message.to_string())
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-session-id", session)
            .send()
            .await
            .expect("answers")
    }

    /// Begins a session of the version with resumable streams, as clients do.
    async fn begin_session(&self) -> HeaderValue {
        let id = session(&self.hello_with_version("2025-11-25", &[]).await);
        self.be_ready(&id).await;
        id
    }

    /// Says that the client is ready for requests.
    async fn be_ready(&self, session: &HeaderValue) {
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let answer = self.say(session, ready).await;
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
    }

    /// Calls a tool in a session. `params` has its name and arguments.
    async fn call(&self, session: &HeaderValue, id: u32, params: Value) -> reqwest::Response {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        self.say(session, call).await
    }

    /// Goes on with a stream after an event.
    async fn resume(&self, session: &HeaderValue, last: &str) -> reqwest::Response {
        self.http
            .get(&self.url)
            .header("last-event-id", last)
            .header("accept", "text/event-stream")
            .header("mcp-protocol-version", "2025-11-25")
            .header("mcp-session-id", session)
            .send()
            .await
            .expect("answers")
    }

    /// Sends a request of the version of the protocol that has no sessions.
    async fn ask_without_session(&self, method: &str, mut params: Value) -> reqwest::Response {
        let name = params
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
            "progressToken": 1,
        });
        let fields = params.as_object_mut().expect("an object");
        fields.insert("_meta".into(), meta);
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let request = self
            .http
            .post(&self.url)
            .body(message.to_string())
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", method)
            .header("mcp-name", name);
        request.send().await.expect("answers")
    }

    /// Ends a session.
    async fn end(&self, session: &HeaderValue) {
        let delete = self.http.delete(&self.url);
        let ended = delete.header("mcp-session-id", session).send().await;
        assert_eq!(ended.expect("answers").status(), StatusCode::NO_CONTENT);
    }

    /// Connects a client when there is a place, of which nobody tells.
    async fn wait_for_a_place(&self) -> HeaderValue {
        let again = async {
            loop {
                let answer = self.hello(&[]).await;
                if answer.status() == StatusCode::OK {
                    return session(&answer);
                }
                tokio::task::yield_now().await;
            }
        };
        let place = tokio::time::timeout(DEADLINE, again).await;
        place.expect("a place")
    }
}

const CLIENTS_MAX: usize = 256;

#[tokio::test]
async fn clients_that_listen_are_bounded_and_one_that_goes_makes_room() {
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS_MAX {
        let session = session(&server.hello(&[]).await);
        let listening = server.listen(&session).await;
        assert_eq!(listening.status(), StatusCode::OK);
        clients.push((session, listening));
    }
    let refused = server.hello(&[]).await;
    assert!(refused.status().is_server_error());
    let why = refused.text().await.expect("is read");
    assert!(why.contains("256 clients have a session"), "{why}");

    let (ended, _listening) = clients.pop().expect("a client");
    let deleted = server
        .http
        .delete(&server.url)
        .header("mcp-session-id", ended)
        .send()
        .await
        .expect("answers");
    assert!(deleted.status().is_success());
    let other = server.wait_for_a_place().await;
    let _listening = server.listen(&other).await;

    // One that dies says nothing; its connection breaks.
    let (dead, listening) = clients.swap_remove(7);
    drop(listening);
    server.wait_for_a_place().await;
    assert_eq!(server.listen(&dead).await.status(), StatusCode::NOT_FOUND);
    for (session, _listening) in &clients {
        assert_eq!(server.listen(session).await.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn the_longest_silent_client_is_evicted_for_a_new_one() {
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let mut sessions = Vec::new();
    for _ in 0..CLIENTS_MAX {
        sessions.push(session(&server.hello(&[]).await));
    }
    // The first one says something: the second is the oldest then.
    drop(server.listen(&sessions[0]).await);
    session(&server.hello(&[]).await);
    for (number, status) in [
        (1, StatusCode::NOT_FOUND),
        (0, StatusCode::OK),
        (2, StatusCode::OK),
    ] {
        let answer = server.listen(&sessions[number]).await;
        assert_eq!(answer.status(), status, "client {number}");
    }
}

#[tokio::test]
async fn a_client_that_waits_for_a_result_keeps_its_place() {
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let waits = session(&server.hello(&[]).await);
    server.be_ready(&waits).await;
    let result = server.call(&waits, 2, call_without_end()).await;
    assert_eq!(result.status(), StatusCode::OK);
    let mut others = Vec::new();
    for _ in 0..CLIENTS_MAX {
        others.push(session(&server.hello(&[]).await));
    }
    let first = server.listen(&others[0]).await;
    assert_eq!(first.status(), StatusCode::NOT_FOUND, "the oldest other");
    assert_eq!(server.listen(&waits).await.status(), StatusCode::OK);
    drop(result);
}

#[tokio::test]
async fn requests_without_a_session_are_bounded_too() {
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let mut open = Vec::new();
    loop {
        let listen = json!({"notifications": {"toolsListChanged": true}});
        let listening = server.ask_without_session("subscriptions/listen", listen);
        let answer = listening.await;
        if answer.status() != StatusCode::OK {
            assert!(answer.status().is_server_error(), "{answer:?}");
            break;
        }
        open.push(answer);
        assert!(open.len() <= 2 * CLIENTS_MAX);
    }
    assert_eq!(open.len(), 2 * CLIENTS_MAX);
}

#[tokio::test]
async fn a_file_of_the_largest_size_is_written_over_http_too() {
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let (client, _) = connect(&server).await;
    for (arguments, size) in largest_files() {
        let path = arguments["path"].as_str().expect("a path").to_owned();
        let arguments = arguments.as_object().expect("an object").clone();
        let request = CallToolRequestParams::new("workspace_write_file").with_arguments(arguments);
        let result = client.call_tool(request).await.expect("answers");
        assert_eq!(result.is_error, Some(size.is_none()), "{path}");
        let written = fake.state.lock().staged.get(&path).map(Vec::len);
        assert_eq!(written, size, "{path}");
    }
}

/// Returns the number of events of a stream that have no message.
fn count_empty_events(stream: &str) -> usize {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data:"));
    data.filter(|data| data.trim().is_empty()).count()
}

#[tokio::test]
async fn a_client_over_http_gets_only_what_its_version_knows() {
    let call = json!({"name": "skill_list", "arguments": {}});
    for (version, has_empty, has_structure) in [
        ("2025-03-26", false, false),
        ("2025-06-18", false, true),
        ("2025-11-25", true, true),
    ] {
        let fake = fake();
        let server = Server::start(&fake, &["127.0.0.1:0"]).await;
        let hello = server.hello_with_version(version, &[]).await;
        let id = session(&hello);
        let greeting = hello.text().await.expect("is read");
        assert_eq!(count_empty_events(&greeting), 0, "{version}: {greeting}");
        server.be_ready(&id).await;
        let listening = server.listen(&id).await;
        let answer = server
            .call(&id, 2, call.clone())
            .await
            .text()
            .await
            .expect("is read");
        assert!(answer.contains("alpha"), "{version}: {answer}");
        let is_structured = answer.contains("structuredContent");
        assert_eq!(is_structured, has_structure, "{version}: {answer}");
        let is_empty = count_empty_events(&answer) > 0;
        assert_eq!(is_empty, has_empty, "{version}: {answer}");
        server.end(&id).await;
        let heard = tokio::time::timeout(DEADLINE, listening.text())
            .await
            .expect("ends")
            .expect("is read");
        assert_eq!(count_empty_events(&heard), 0, "{version}: {heard}");
    }
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let answer = server
        .ask_without_session("tools/call", call)
        .await
        .text()
        .await
        .expect("is read");
    assert!(answer.contains("structuredContent"), "{answer}");
    assert_eq!(count_empty_events(&answer), 0, "{answer}");
}

#[tokio::test]
async fn ending_a_session_returns_204_and_forgets_its_id() {
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let id = session(&server.hello(&[]).await);
    server.end(&id).await;
    assert_eq!(server.listen(&id).await.status(), StatusCode::NOT_FOUND);
}

/// Returns the id of the first event of a stream.
async fn first_event_id(stream: &mut reqwest::Response) -> String {
    let mut begin = String::new();
    loop {
        let piece = stream.chunk().await.expect("is read").expect(&begin);
        begin += &String::from_utf8_lossy(&piece);
        // The last line may not be whole.
        let (whole, _) = begin.rsplit_once('\n').unwrap_or_default();
        if let Some(id) = whole.lines().find_map(|line| line.strip_prefix("id: ")) {
            return id.to_owned();
        }
    }
}

#[tokio::test]
async fn an_answer_outlives_its_stream() {
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let id = server.begin_session().await;
    let ask = json!({"jsonrpc": "2.0", "id": 2, "method": "resources/templates/list"});
    let mut answer = server.say(&id, ask).await;
    let last = &first_event_id(&mut answer).await;
    drop(answer);
    // The second time, the answer came long ago.
    for _ in 0..2 {
        let resumed = server.resume(&id, last).await;
        let text = tokio::time::timeout(DEADLINE, resumed.text())
            .await
            .expect("ends")
            .expect("is read");
        assert!(text.contains("workspace://"), "{text}");
    }
}

/// Returns a call of a command that runs until it is killed.
fn call_without_end() -> Value {
    json!({"name": "skill_run", "arguments": {"skill": "alpha", "command": "forever"}})
}

/// Waits until the events of a command were read: it has ended, and its result comes next.
async fn events_are_read(exec: &FakeExec) {
    let mut readers = exec.readers.subscribe();
    let read = readers.wait_for(|count| *count == 0);
    let read = tokio::time::timeout(DEADLINE, read).await;
    drop(read.expect("ends in time").expect("is kept"));
}

#[tokio::test]
async fn an_answer_after_a_lost_stream_arrives_on_the_resumed_one() {
    for ends_first in [true, false] {
        let fake = fake();
        let server = Server::start(&fake, &["127.0.0.1:0"]).await;
        let id = server.begin_session().await;
        let mut result = server.call(&id, 2, call_without_end()).await;
        let last = first_event_id(&mut result).await;
        drop(result);
        let exec = started_exec(&fake).await;
        if ends_first {
            exec.killed.send_replace(true);
            events_are_read(&exec).await;
            // By the answer to a later call, the server has stored that of the command.
            let params = json!({"name": "skill_list", "arguments": {}});
            let listed = server.call(&id, 3, params).await.text().await;
            assert!(listed.expect("is read").contains("alpha"));
        }
        let resumed = server.resume(&id, &last).await;
        exec.killed.send_replace(true);
        let text = tokio::time::timeout(DEADLINE, resumed.text())
            .await
            .expect("ends")
            .expect("is read");
        assert!(text.contains("structuredContent"), "{text}");
    }
}

#[tokio::test]
async fn closing_its_stream_cancels_a_call_without_a_session() {
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let call = server.ask_without_session("tools/call", call_without_end());
    // It answers as soon as there is progress.
    let stream = call.await;
    assert_eq!(stream.status(), StatusCode::OK);
    drop(stream);
    is_killed(&fake).await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_the_streams_of_its_calls() {
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let id = server.begin_session().await;
    let mut result = server.call(&id, 2, call_without_end()).await;
    let resumed = server.resume(&id, &first_event_id(&mut result).await).await;
    assert_eq!(resumed.status(), StatusCode::OK);
    server.end(&id).await;
    for (kind, stream) in [("first", result), ("resumed", resumed)] {
        let text = tokio::time::timeout(DEADLINE, stream.text()).await;
        assert!(text.is_ok(), "the {kind} stream goes on");
    }
}

#[tokio::test]
async fn a_batch_is_refused_with_what_to_do() {
    let fake = fake();
    let server = Server::start(&fake, &["127.0.0.1:0"]).await;
    let id = session(&server.hello(&[]).await);
    let ask = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let refused = server.say(&id, json!([ask])).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let why = refused.text().await.expect("is read");
    assert!(
        why.contains("each message in a request of its own"),
        "{why}"
    );
}

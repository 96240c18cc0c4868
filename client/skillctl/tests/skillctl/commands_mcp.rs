//! `skillctl mcp` as a process, spoken to line by line: all families, what a call leaves when its client gives it up or
//! goes, and what is said when something after the call fails.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value without the key is how a test fails"
)]

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::commands::skillctl;
use crate::commands_tool::{answer_both, fake, signal};
use skilld_testing::mcp::{ON_STDIO_TOOLS, on_stdio};
use skilld_testing::skills::Kit;
use skilld_testing::{DEADLINE, Fake, FakeExec, STARTS};

/// Maximum size of a message that clients take, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A client on stdio. All that comes must be the protocol's.
pub(crate) struct Client {
    pub(crate) child: Child,
    stdin: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    next: u64,
    /// Notifications that came before what was waited for.
    pub(crate) told: Vec<Value>,
}

impl Client {
    pub(crate) async fn start(fake: &Fake, words: &[&str]) -> Self {
        Self::start_with_version(fake, words, "2025-06-18").await
    }

    /// Starts a client of a version of the protocol.
    pub(crate) async fn start_with_version(fake: &Fake, words: &[&str], version: &str) -> Self {
        let mut child = skillctl(fake, &[&["mcp"], words].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let stdin = child.stdin.take().expect("piped");
        let said = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut client = Self {
            child,
            stdin,
            said,
            next: 0,
            told: Vec::new(),
        };
        let hello = json!({
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        let hello = client
            .request("initialize", hello)
            .await
            .expect("a session");
        assert_eq!(hello["serverInfo"]["name"], "skilld");
        assert_eq!(hello["protocolVersion"], version);
        client
            .send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
        client
    }

    pub(crate) async fn send(&mut self, message: Value) {
        let line = format!("{message}\n");
        self.stdin
            .write_all(line.as_bytes())
            .await
            .expect("is read");
    }

    /// Sends a request; its id.
    async fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let id = self.next;
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        id
    }

    pub(crate) async fn line(&mut self) -> Value {
        let line = tokio::time::timeout(DEADLINE, self.said.next_line())
            .await
            .expect("says something")
            .expect("is read")
            .expect("goes on");
        assert!(line.len() < MESSAGE_BYTES_MAX, "{} bytes", line.len());
        let message: Value = serde_json::from_str(&line).expect("the protocol and nothing else");
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        message
    }

    /// The answer to a request, a result or an error.
    pub(crate) async fn answer(&mut self, id: u64) -> Result<Value, Value> {
        loop {
            let message = self.line().await;
            if message["id"] != json!(id) {
                assert!(
                    message.get("id").is_none(),
                    "an answer that nobody waits for: {message}"
                );
                self.told.push(message);
                continue;
            }
            return match message.get("error") {
                Some(error) => Err(error.clone()),
                None => Ok(message["result"].clone()),
            };
        }
    }

    /// Waits for a notification, or takes the one that came.
    async fn is_told(&mut self, method: &str) -> Value {
        loop {
            if let Some(at) = self.told.iter().position(|told| told["method"] == method) {
                return self.told.remove(at);
            }
            let message = self.line().await;
            self.told.push(message);
        }
    }

    pub(crate) async fn request(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.begin(method, params).await;
        self.answer(id).await
    }

    pub(crate) async fn tools(&mut self) -> Vec<Value> {
        let listed = self.request("tools/list", json!({})).await.expect("a list");
        listed["tools"].as_array().expect("tools").clone()
    }

    pub(crate) async fn begin_call(&mut self, name: &str, arguments: Value) -> u64 {
        self.begin("tools/call", json!({"name": name, "arguments": arguments}))
            .await
    }

    /// A call that answers.
    pub(crate) async fn call(&mut self, name: &str, arguments: Value) -> Value {
        let id = self.begin_call(name, arguments).await;
        let result = self.answer(id).await.expect("a result");
        assert_ne!(result["isError"], true, "{result}");
        result
    }

    /// The client goes; how the server ended.
    async fn end(self) -> std::process::ExitStatus {
        let Self {
            mut child,
            stdin,
            said,
            ..
        } = self;
        drop((stdin, said));
        let ended = tokio::time::timeout(DEADLINE, child.wait()).await;
        ended.expect("ends").expect("ran")
    }
}

pub(crate) fn names(tools: &[Value]) -> Vec<&str> {
    tools
        .iter()
        .map(|tool| tool["name"].as_str().expect("a name"))
        .collect()
}

pub(crate) fn options(fake: &Fake, options: &Value) {
    std::fs::write(fake.path("o.json"), options.to_string()).expect("writes");
}

/// Checks a result as a validating client does, as far as these schemas go.
pub(crate) fn fits(tools: &[Value], name: &str, result: &Value) {
    let tool = tools
        .iter()
        .find(|tool| tool["name"] == name)
        .expect("is offered");
    let text = result["content"][0]["text"].as_str().expect("text");
    let structured = &result["structuredContent"];
    let Some(schema) = tool.get("outputSchema") else {
        return;
    };
    assert_eq!(schema["type"], "object", "{name}");
    for key in schema["required"].as_array().into_iter().flatten() {
        let key = key.as_str().expect("text");
        assert!(
            structured.get(key).is_some(),
            "{name} has no {key}: {structured}"
        );
    }
    // Agent Zero's results have a text for models.
    if structured["text"] == text {
        return;
    }
    // The text is the same, for clients that read no structure.
    let same = serde_json::from_str::<Value>(text).unwrap_or_else(|_| json!(text));
    let wrapped = &structured["result"];
    assert!(&same == structured || &same == wrapped, "{name}: {text}");
}

/// Checks that a client knows what to ask its user about, and a model what the tool does, from this tool alone.
fn describes_itself(tool: &Value) {
    let name = tool["name"].as_str().expect("a name");
    let hints = &tool["annotations"];
    assert!(
        tool["title"].is_string() && hints["title"].is_string(),
        "{tool}"
    );
    for hint in [
        "readOnlyHint",
        "destructiveHint",
        "idempotentHint",
        "openWorldHint",
    ] {
        assert!(hints[hint].is_boolean(), "{name} has no {hint}");
    }
    let runs = [
        "skill_run",
        "skill_exec",
        "workspace_exec",
        "run_skill_script",
        "skills_tool",
    ];
    assert_eq!(
        hints["destructiveHint"] == json!(true),
        runs.contains(&name) || {
            name.ends_with("_stdin") || name.contains("_kill_") || name == "workspace_write_file"
        },
        "{name}"
    );
    let reads = name.starts_with("skill_list") || name.starts_with("list_") || {
        [
            "read_file",
            "search_skills",
            "load_skill_resource",
            "load_skill_asset",
        ]
        .contains(&name)
    };
    assert_eq!(hints["readOnlyHint"], reads, "{name}");
    // Inputs may be URLs; loading a card may connect to MCP servers.
    let leads_out = ["skill_run", "skill_exec", "load_skill_md"].contains(&name);
    assert_eq!(hints["openWorldHint"], leads_out, "{name}");
    let mut texts = vec![tool["description"].as_str().expect("a description")];
    let fields = tool["inputSchema"]["properties"].as_object();
    for (field, schema) in fields.into_iter().flatten() {
        let text = schema["description"].as_str();
        texts.push(text.unwrap_or_else(|| panic!("{name}: {field} is not described")));
    }
    for text in texts {
        let refers = ["The same", "Takes what", "What skill_run takes"];
        assert!(
            !refers.iter().any(|start| text.contains(start)),
            "{name}: {text}"
        );
    }
}

#[tokio::test]
async fn the_list_of_tools_stays_within_its_byte_budget() {
    for (family, all_max, output_max) in [
        ("trpc", 36_000, 17_000),
        ("sherma", 16_000, 7_500),
        ("agent-zero", 9_500, 6_000),
    ] {
        let fake = fake();
        options(&fake, &json!({"family": family, "additions": true}));
        let mut client = Client::start(&fake, &["--options", "o.json"]).await;
        let tools = client.tools().await;
        let all = json!(tools).to_string().len();
        let output: usize = tools
            .iter()
            .filter_map(|tool| tool.get("outputSchema"))
            .map(|schema| schema.to_string().len())
            .sum();
        println!("{family}: {all} bytes, of these output schemas {output}");
        assert!(all <= all_max, "{family}: {all} bytes");
        assert!(
            output <= output_max,
            "{family}: output schemas of {output} bytes"
        );
    }
}

#[tokio::test]
async fn every_family_is_served_with_schemas_that_its_results_fit() {
    let script = "scripts/run.sh";
    for (family, count, calls) in [
        (
            "trpc",
            17,
            vec![
                ("skill_list", json!({})),
                ("skill_load", json!({"skill": "alpha"})),
                ("skill_run", json!({"skill": "alpha", "command": "hello"})),
                ("workspace_exec", json!({"command": "hello"})),
                ("read_file", json!({"file_name": "skill://alpha/SKILL.md"})),
            ],
        ),
        (
            "sherma",
            11,
            vec![
                ("list_skills", json!({})),
                ("load_skill_md", json!({"skill_id": "alpha"})),
                ("list_skill_resources", json!({"skill_id": "alpha"})),
                (
                    "run_skill_script",
                    json!({"skill_id": "alpha", "script_path": script, "argv": ["hello"]}),
                ),
                ("unload_skill", json!({"skill_id": "alpha"})),
            ],
        ),
        (
            "agent-zero",
            2,
            vec![
                ("skills_tool", json!({"method": "list"})),
                (
                    "skills_tool",
                    json!({"method": "load", "skill_name": "alpha"}),
                ),
                (
                    "skills_tool",
                    json!({"method": "execute_script", "skill_name": "alpha", "script_path": script, "argv": ["hello"]}),
                ),
            ],
        ),
    ] {
        let fake = fake();
        options(
            &fake,
            &json!({"family": family, "additions": true, "inline_skills": true}),
        );
        let mut client = Client::start(&fake, &["--options", "o.json"]).await;
        let tools = client.tools().await;
        assert_eq!(tools.len(), count, "{family}: {:?}", names(&tools));
        for tool in &tools {
            describes_itself(tool);
        }
        for (name, arguments) in calls {
            let result = client.call(name, arguments).await;
            fits(&tools, name, &result);
        }
        assert_eq!(
            fake.state.lock().workspaces.len(),
            1,
            "{family}: one for all calls"
        );
        assert!(client.end().await.success());
        assert!(
            fake.state.lock().workspaces.is_empty(),
            "{family}: it goes with its client"
        );
    }
}

#[tokio::test]
async fn unknown_tools_are_protocol_errors_and_failed_calls_results() {
    let fake = fake();
    let mut client = Client::start(&fake, &[]).await;
    let id = client.begin_call("no_such_tool", json!({})).await;
    let error = client.answer(id).await.expect_err("no result");
    assert_eq!(error["code"], -32602, "{error}");
    let id = client
        .begin_call("skill_load", json!({"skill": "nope"}))
        .await;
    let result = client.answer(id).await.expect("a result");
    assert_eq!(result["isError"], true);
    let text = result["content"][0]["text"].as_str().expect("text");
    assert!(
        text.contains("UNKNOWN_SKILL") && text.contains("nope"),
        "{text}"
    );
}

#[tokio::test]
async fn tools_of_a_skill_are_announced_without_an_invented_schema() {
    let fake = fake();
    let command = on_stdio();
    let entry = json!({"transport": "stdio", "command": command[0], "args": command[1..]});
    let kit = Kit::new("local", "1.0.0").card(json!({"mcps": {"s": entry}}));
    fake.state.lock().kits.push(kit);
    options(
        &fake,
        &json!({"family": "sherma", "mcp": {"card_commands": true}}),
    );
    let mut client = Client::start(&fake, &["--options", "o.json"]).await;
    assert_eq!(client.tools().await.len(), 7);
    client
        .call("load_skill_md", json!({"skill_id": "local"}))
        .await;
    client.is_told("notifications/tools/list_changed").await;
    let tools = client.tools().await;
    assert_eq!(names(&tools)[7..], ON_STDIO_TOOLS);
    for name in ON_STDIO_TOOLS {
        let tool = tools
            .iter()
            .find(|tool| tool["name"] == name)
            .expect("is offered");
        assert!(tool.get("outputSchema").is_none(), "{tool}");
        assert!(tool.get("annotations").is_none(), "{tool}");
    }
    let said = client.call("local_echo", json!({"x": 3})).await;
    assert!(
        said["content"][0]["text"]
            .as_str()
            .expect("text")
            .contains("\"x\":3"),
        "{said}"
    );
    // What changes no tools is not announced.
    client
        .call("load_skill_md", json!({"skill_id": "alpha"}))
        .await;
    client.call("list_skills", json!({})).await;
    assert_eq!(client.told, Vec::<Value>::new());
    client
        .call("unload_skill", json!({"skill_id": "local"}))
        .await;
    client.is_told("notifications/tools/list_changed").await;
    assert_eq!(client.tools().await.len(), 7);
}

#[tokio::test]
async fn calls_side_by_side_over_one_session_lose_nothing() {
    let fake = fake();
    options(
        &fake,
        &json!({"max_loaded_skills": 3, "load_mode": "session"}),
    );
    let mut client =
        Client::start(&fake, &["--options", "o.json", "--session-file", "s.json"]).await;
    for skill in ["alpha", "beta"] {
        client.call("skill_load", json!({"skill": skill})).await;
    }
    let before = fake.calls.count("GetSkill");
    fake.calls.hold("GetSkill");
    let one = client
        .begin_call("skill_load", json!({"skill": "gamma"}))
        .await;
    let other = client
        .begin_call("skill_load", json!({"skill": "delta"}))
        .await;
    answer_both(&fake, before).await;
    let mut open = vec![one, other];
    while !open.is_empty() {
        let message = client.line().await;
        open.retain(|id| message["id"] != json!(id));
    }
    let text = std::fs::read_to_string(fake.path("s.json")).expect("is there");
    let kept: Value = serde_json::from_str(&text).expect("JSON");
    let order = kept["state"]["skill:loaded_order:"]
        .as_str()
        .expect("an order");
    let mut order: Vec<String> = serde_json::from_str(order).expect("JSON");
    order.sort();
    assert_eq!(order, ["beta", "delta", "gamma"], "{kept:#}");
}

#[tokio::test]
async fn cancelling_a_call_kills_its_command_even_if_it_starts_late() {
    for starts_late in [false, true] {
        let fake = fake();
        if starts_late {
            fake.calls.hold_until(STARTS, "KillExec");
        }
        let mut client = Client::start(&fake, &["--session-file", "s.json"]).await;
        let run = json!({"skill": "alpha", "command": "forever"});
        let id = client.begin_call("skill_run", run).await;
        fake.calls.wait_for(STARTS, 1).await;
        let params = json!({"requestId": id, "reason": "enough"});
        let cancel =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        client.send(cancel).await;
        is_killed(&fake).await;
        // The session goes on.
        client.call("skill_list", json!({})).await;
    }
}

/// Waits until the only command has started.
pub(crate) async fn started_exec(fake: &Fake) -> FakeExec {
    let starting = async {
        loop {
            let exec = fake.state.lock().execs.values().next().cloned();
            if let Some(exec) = exec {
                return exec;
            }
            tokio::task::yield_now().await;
        }
    };
    let started = tokio::time::timeout(DEADLINE, starting).await;
    started.expect("starts")
}

/// Waits until the only command has been killed.
pub(crate) async fn is_killed(fake: &Fake) {
    let exec = started_exec(fake).await;
    let mut killed = exec.killed.subscribe();
    let killed = tokio::time::timeout(DEADLINE, killed.wait_for(|killed| *killed)).await;
    killed.expect("is killed").expect("is kept");
}

#[tokio::test]
async fn a_kept_session_that_ends_mid_call_leaves_nothing_running() {
    for (by_signal, starts_late) in [(true, false), (true, true), (false, false)] {
        let fake = fake();
        if starts_late {
            fake.calls.hold_until(STARTS, "KillExec");
        }
        let mut client = Client::start(&fake, &["--session-file", "s.json"]).await;
        let run = json!({"skill": "alpha", "command": "forever"});
        client.begin_call("skill_run", run).await;
        fake.calls.wait_for(STARTS, 1).await;
        if by_signal {
            signal(&client.child, Signal::TERM);
            let ended = tokio::time::timeout(DEADLINE, client.child.wait()).await;
            assert!(ended.expect("ends").expect("ran").success());
        } else {
            assert!(client.end().await.success());
        }
        let state = fake.state.lock();
        assert_eq!(state.execs.len(), 1);
        assert!(
            state.execs.values().all(|exec| *exec.killed.borrow()),
            "it runs on"
        );
        assert_eq!(state.workspaces.len(), 1, "it is kept");
    }
}

#[tokio::test]
async fn a_second_signal_does_not_wait_for_the_end_of_the_workspace() {
    let fake = fake();
    fake.calls.hold("DeleteWorkspace");
    let mut client = Client::start(&fake, &[]).await;
    client
        .call("skill_run", json!({"skill": "alpha", "command": "hello"}))
        .await;
    signal(&client.child, Signal::TERM);
    fake.calls.wait_for("DeleteWorkspace", 1).await;
    signal(&client.child, Signal::TERM);
    let ended = tokio::time::timeout(DEADLINE, client.child.wait()).await;
    assert_eq!(ended.expect("ends").expect("ran").code(), Some(130));
}

#[tokio::test]
async fn a_result_is_given_whatever_fails_after_the_call() {
    let fake = fake();
    let mut client = Client::start(&fake, &["--session-file", "s.json"]).await;
    client.call("skill_load", json!({"skill": "alpha"})).await;
    // The session cannot be kept.
    std::fs::remove_file(fake.path("s.json")).expect("is there");
    std::fs::create_dir(fake.path("s.json")).expect("makes");
    let loaded = client.call("skill_load", json!({"skill": "beta"})).await;
    assert_eq!(loaded["structuredContent"]["message"], "loaded: beta");
    let fault = loaded["structuredContent"]["warnings"][0]
        .as_str()
        .expect("a warning");
    assert!(
        fault.contains("could not be kept: cannot open s.json"),
        "{fault}"
    );
}

#[tokio::test]
async fn instructions_promise_nothing_that_is_not_offered() {
    let fake = fake();
    for (options_given, runs) in [
        (json!({}), true),
        (json!({"profile": "knowledge_only"}), false),
        (json!({"tools": ["skill_load"]}), false),
        (json!({"family": "sherma"}), false),
        (json!({"family": "sherma", "additions": true}), true),
        (json!({"family": "agent-zero"}), true),
    ] {
        options(&fake, &options_given);
        let mut client = Client::start(&fake, &["--options", "o.json"]).await;
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let again = client.request("initialize", hello).await;
        let said = again.unwrap_or_default().to_string();
        assert_eq!(
            said.contains("run its scripts"),
            runs,
            "{options_given}: {said}"
        );
    }
}

//! `skillctl mcp` as a process, spoken to line by line: all families, what a call leaves when its client gives it up or
//! goes, and what is said when something after the call fails.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value without the key is how a test fails"
)]

use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tonic::Code;

use crate::commands::skillctl;
use crate::commands_tool::{answer_both, fake, signal};
use skilld_testing::mcp::{ON_STDIO_TOOLS, on_stdio};
use skilld_testing::skills::Kit;
use skilld_testing::{Fake, RunExec, refusal};

/// Longer than anything takes that ends.
const PATIENCE: Duration = Duration::from_secs(25);

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
        let mut command = skillctl(fake, &[&["mcp"], words].concat());
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("starts");
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
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        let hello = client
            .request("initialize", hello)
            .await
            .expect("a session");
        assert_eq!(hello["serverInfo"]["name"], "skilld");
        client
            .send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
        client
    }

    async fn send(&mut self, message: Value) {
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

    async fn line(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.said.next_line()).await;
        let line = line
            .expect("says something")
            .expect("is read")
            .expect("goes on");
        let message: Value = serde_json::from_str(&line).expect("the protocol and nothing else");
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        message
    }

    /// The answer to a request, a result or an error.
    async fn answer(&mut self, id: u64) -> Result<Value, Value> {
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

    async fn request(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.begin(method, params).await;
        self.answer(id).await
    }

    async fn tools(&mut self) -> Vec<Value> {
        let listed = self.request("tools/list", json!({})).await.expect("a list");
        listed["tools"].as_array().expect("tools").clone()
    }

    async fn begin_call(&mut self, name: &str, arguments: Value) -> u64 {
        self.begin("tools/call", json!({"name": name, "arguments": arguments}))
            .await
    }

    /// A call that answers.
    async fn call(&mut self, name: &str, arguments: Value) -> Value {
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
        let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
        ended.expect("ends").expect("ran")
    }
}

fn names(tools: &[Value]) -> Vec<&str> {
    tools
        .iter()
        .map(|tool| tool["name"].as_str().expect("a name"))
        .collect()
}

fn options(fake: &Fake, options: &Value) {
    std::fs::write(fake.path("o.json"), options.to_string()).expect("writes");
}

/// Checks a result as a validating client does, as far as these schemas go.
fn fits(tools: &[Value], name: &str, result: &Value) {
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
        let output = tools.iter().filter_map(|tool| tool.get("outputSchema"));
        let output: usize = output.map(|schema| schema.to_string().len()).sum();
        println!("{family}: {all} bytes, of these output schemas {output}");
        assert!(all <= all_max, "{family}: {all} bytes");
        assert!(
            output <= output_max,
            "{family}: output schemas of {output} bytes"
        );
    }
}

#[tokio::test]
async fn a_file_that_is_no_text_is_returned_as_what_it_is() {
    let fake = fake();
    let png = b"\x89PNG\r\n\x1a\n\0\0".to_vec();
    {
        let mut state = fake.state.lock();
        state.staged.insert("out/p.png".into(), png.clone());
        state.staged.insert("out/p.bin".into(), vec![1, 0, 2]);
        state
            .staged
            .insert("out/large.bin".into(), vec![0; (8 << 20) + 1]);
    }
    let mut client = Client::start(&fake, &[]).await;
    let tools = client.tools().await;
    let image = client
        .call("read_file", json!({"file_name": "workspace://out/p.png"}))
        .await;
    fits(&tools, "read_file", &image);
    assert_eq!(image["structuredContent"]["mime_type"], "image/png");
    assert_eq!(image["structuredContent"]["size_bytes"], 10);
    let wanted = json!({
        "type": "image",
        "data": data_encoding::BASE64.encode(&png),
        "mimeType": "image/png",
    });
    assert_eq!(image["content"][1], wanted);
    let other = client
        .call("read_file", json!({"file_name": "out/p.bin"}))
        .await;
    fits(&tools, "read_file", &other);
    let wanted = json!({"type": "resource", "resource": {
        "uri": "workspace://out/p.bin",
        "mimeType": "application/octet-stream",
        "blob": "AQAC",
    }});
    assert_eq!(other["content"][1], wanted);
    let id = client
        .begin_call("read_file", json!({"file_name": "out/large.bin"}))
        .await;
    let refused = client.answer(id).await.expect("a result");
    assert_eq!(refused["isError"], true);
    assert!(refused.to_string().contains("NOT_TEXT"), "{refused}");
}

#[tokio::test]
async fn a_large_file_that_is_no_text_is_a_link_to_its_resource() {
    let fake = fake();
    let png = |bytes: usize| {
        let mut png = b"\x89PNG\r\n\x1a\n\0".to_vec();
        png.resize(bytes, 0);
        png
    };
    {
        let mut state = fake.state.lock();
        for (path, bytes) in [
            ("out/one.bin", vec![0; 1 << 20]),
            ("out/more.bin", vec![0; (1 << 20) + 1]),
            ("out/two.png", png(2 << 20)),
            ("out/four.png", png(4 << 20)),
        ] {
            state.staged.insert(path.to_owned(), bytes);
        }
    }
    let mut client = Client::start(&fake, &[]).await;
    let tools = client.tools().await;
    for (path, kind) in [
        ("out/one.bin", "resource"),
        ("out/more.bin", "resource_link"),
        ("out/two.png", "image"),
        ("out/four.png", "resource_link"),
    ] {
        let read = client.call("read_file", json!({"file_name": path})).await;
        fits(&tools, "read_file", &read);
        assert_eq!(read["content"][1]["type"], kind, "{path}");
    }
    let link = client
        .call("read_file", json!({"file_name": "out/four.png"}))
        .await;
    let wanted = json!({
        "type": "resource_link",
        "uri": "workspace://out/four.png",
        "name": "out/four.png",
        "mimeType": "image/png",
        "size": 4 << 20,
    });
    assert_eq!(link["content"][1], wanted);
    assert_eq!(link["structuredContent"]["size_bytes"], 4 << 20);
}

#[tokio::test]
async fn an_asset_that_is_an_image_comes_with_its_description() {
    let fake = fake();
    let png = b"\x89PNG\r\n\x1a\n\0".to_vec();
    let mut kit = Kit::new("logo", "1.0.0").file("assets/logo.png", png.clone());
    kit.skill.description = "A logo.".into();
    fake.state.lock().kits.push(kit);
    options(&fake, &json!({"family": "sherma"}));
    let mut client = Client::start(&fake, &["--options", "o.json"]).await;
    let asset = json!({"skill_id": "logo", "asset_path": "assets/logo.png"});
    let asset = client.call("load_skill_asset", asset).await;
    assert_eq!(asset["structuredContent"]["binary"], true);
    assert_eq!(asset["content"][1]["type"], "image");
    assert_eq!(
        asset["content"][1]["data"],
        data_encoding::BASE64.encode(&png)
    );
}

#[tokio::test]
async fn a_file_that_the_client_writes_is_in_the_workspace_and_among_the_resources() {
    let fake = fake();
    let mut client = Client::start(&fake, &[]).await;
    let tools = client.tools().await;
    let text = json!({"path": "inputs/a b.csv", "content": "a,b\n"});
    let written = client.call("workspace_write_file", text).await;
    fits(&tools, "workspace_write_file", &written);
    assert_eq!(
        written["structuredContent"]["ref"],
        "workspace://work/inputs/a b.csv"
    );
    assert_eq!(written["structuredContent"]["size_bytes"], 4);
    let bytes = json!({"path": "out/p.bin", "content_base64": "AQAC"});
    client.call("workspace_write_file", bytes).await;
    {
        let state = fake.state.lock();
        assert_eq!(state.staged["work/inputs/a b.csv"], b"a,b\n");
        assert_eq!(state.staged["out/p.bin"], [1, 0, 2]);
        assert_eq!(state.workspaces.len(), 1, "the session's");
    }
    client
        .call("workspace_save_artifact", json!({"path": "out/p.bin"}))
        .await;
    let listed = client
        .request("resources/list", json!({}))
        .await
        .expect("a page");
    let listed = listed["resources"].as_array().expect("resources");
    let uris: Vec<&str> = listed
        .iter()
        .filter_map(|one| one["uri"].as_str())
        .collect();
    assert_eq!(
        uris[..3],
        [
            "workspace://out/p.bin",
            "workspace://work/inputs/a%20b.csv",
            "artifact://out/p.bin@0"
        ]
    );
    for (uri, key, wanted) in [
        (uris[0], "blob", "AQAC"),
        (uris[1], "text", "a,b\n"),
        (uris[2], "blob", "AQAC"),
    ] {
        let read = client.request("resources/read", json!({"uri": uri})).await;
        assert_eq!(read.expect(uri)["contents"][0][key], wanted, "{uri}");
    }
    let error = client
        .request("resources/read", json!({"uri": "workspace://out/no"}))
        .await;
    assert_eq!(error.expect_err("is not there")["code"], -32002);
}

#[tokio::test]
async fn many_uploads_hide_no_result_among_the_resources() {
    let fake = fake();
    {
        let mut state = fake.state.lock();
        for index in 0..1100 {
            for path in ["work/.skilld/u", "work/inputs/u", "out/old"] {
                state.staged.insert(format!("{path}{index:04}"), vec![b'a']);
            }
        }
        for path in ["work/result.csv", "out/z"] {
            state.staged.insert(path.to_owned(), vec![b'a']);
        }
        state.modified.insert("out/z".to_owned(), 5);
    }
    let mut client = Client::start(&fake, &[]).await;
    // A call makes the session's workspace.
    client
        .call("workspace_exec", json!({"command": "hello"}))
        .await;
    let listed = client.request("resources/list", json!({})).await;
    let listed = listed.expect("a page")["resources"].clone();
    let listed = listed.as_array().expect("resources").iter();
    let uris: Vec<&str> = listed.filter_map(|one| one["uri"].as_str()).collect();
    assert_eq!(uris[0], "workspace://out/z", "the newest is the first");
    assert!(uris.contains(&"workspace://work/result.csv"));
    let count = |prefix: &str| uris.iter().filter(|uri| uri.starts_with(prefix)).count();
    assert_eq!(count("workspace://out/"), 1000);
    assert_eq!(count("workspace://work/inputs/"), 1000);
    assert_eq!(count("workspace://work/.skilld/"), 0);
}

#[tokio::test]
async fn a_list_of_resources_ends_although_the_pages_do_not() {
    let fake = fake();
    let mut client = Client::start(&fake, &[]).await;
    client
        .call("workspace_exec", json!({"command": "hello"}))
        .await;
    fake.state.lock().pages_are_endless = true;
    let listed = client.request("resources/list", json!({})).await;
    assert_eq!(listed.expect("a page")["resources"], json!([]));
    let calls = std::mem::take(&mut fake.state.lock().calls);
    for (call, lists) in [
        ("FileService/ListFiles", 2),
        ("ArtifactService/ListArtifacts", 1),
        // Of two skills.
        ("SkillService/ListSkillFiles", 2),
    ] {
        let count = calls.iter().filter(|made| *made == call).count();
        assert!((lists..=100 * lists).contains(&count), "{count} {call}");
    }
}

#[tokio::test]
async fn long_names_do_not_make_a_list_of_resources_that_no_client_takes() {
    let fake = fake();
    let name = "ü".repeat(1000);
    {
        let mut state = fake.state.lock();
        let mut kit = Kit::new("large", "1.0.0");
        for index in 0..1000 {
            kit = kit.file(&format!("{index:03}{name}"), "a");
        }
        // On the first page.
        state.kits.insert(0, kit);
        for index in 0..1000 {
            let path = format!("out/{index:03}{name}");
            state.staged.insert(path, vec![b'a']);
        }
        state.staged.insert("work/a".to_owned(), vec![b'a']);
    }
    let mut client = Client::start(&fake, &[]).await;
    client
        .call("workspace_exec", json!({"command": "hello"}))
        .await;
    let listed = client.request("resources/list", json!({})).await;
    let listed = listed.expect("a page").to_string();
    assert!(listed.len() < 2 * 1024 * 1024, "{} bytes", listed.len());
    assert!(listed.contains("workspace://out/000"));
    assert!(listed.contains("workspace://work/a"), "the next kind");
    assert!(listed.contains("skill://large/000"));
}

#[tokio::test]
async fn a_file_to_write_needs_a_path_beneath_work_or_out_and_one_content() {
    let fake = fake();
    let mut client = Client::start(&fake, &[]).await;
    for (wrong, problem) in [
        (
            json!({"path": "skills/x", "content": ""}),
            "beneath work/ or out/",
        ),
        (
            json!({"path": "out/../../x", "content": ""}),
            "must not contain ..",
        ),
        (json!({"path": "out/x"}), "content is missing"),
        (
            json!({"path": "out/x", "content": "", "content_base64": ""}),
            "not both",
        ),
        (
            json!({"path": "out/x", "content_base64": "!"}),
            "is not base64",
        ),
    ] {
        let id = client.begin_call("workspace_write_file", wrong).await;
        let refused = client.answer(id).await.expect("a result");
        assert_eq!(refused["isError"], true);
        assert!(refused.to_string().contains(problem), "{refused}");
    }
}

#[tokio::test]
async fn without_tools_that_run_commands_there_is_no_workspace_to_write_to_or_read() {
    let fake = fake();
    fake.state
        .lock()
        .staged
        .insert("out/a".into(), b"a".to_vec());
    options(&fake, &json!({"profile": "knowledge_only"}));
    let mut client = Client::start(&fake, &["--options", "o.json"]).await;
    assert!(!names(&client.tools().await).contains(&"workspace_write_file"));
    let id = client
        .begin_call("workspace_write_file", json!({"path": "out/a"}))
        .await;
    assert_eq!(
        client.answer(id).await.expect_err("unknown")["code"],
        -32602
    );
    let read = client
        .request("resources/read", json!({"uri": "workspace://out/a"}))
        .await;
    assert_eq!(read.expect_err("hidden")["code"], -32002);
}

#[tokio::test]
async fn an_artifact_of_a_session_that_is_not_kept_is_saved_with_the_words_that_load_it() {
    let fake = fake();
    fake.state
        .lock()
        .staged
        .insert("out/a.txt".into(), b"a".to_vec());
    for kept in [false, true] {
        let more: &[&str] = if kept {
            &["--session-file", "s.json"]
        } else {
            &[]
        };
        let mut client = Client::start(&fake, more).await;
        let saved = client
            .call("workspace_save_artifact", json!({"path": "out/a.txt"}))
            .await;
        let name = format!("out/a.txt@{}", saved["structuredContent"]["version"]);
        assert_eq!(saved["content"][1]["uri"], format!("artifact://{name}"));
        let note = saved["content"][2]["text"].as_str();
        if kept {
            assert_eq!(note, None);
            continue;
        }
        let load = format!("skillctl artifact load {name} --app skillctl --session ");
        let note = note.expect("a note");
        let (_, session) = note.split_once(&load).expect(note);
        assert!(!session.is_empty() && !session.contains(' '), "{note}");
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
async fn a_tool_that_nobody_knows_is_an_error_of_the_protocol_and_a_failed_call_is_a_result() {
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
async fn tools_that_a_skill_brings_are_announced_and_have_a_schema_only_if_their_server_gave_one() {
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
    let before = *fake.state.got_skills.borrow();
    fake.state.holds_skills.send_replace(true);
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
async fn a_call_that_is_cancelled_ends_what_it_started_also_what_starts_only_then() {
    for when in [RunExec::Starts, RunExec::Late] {
        let fake = fake();
        fake.state.lock().run_exec = when;
        let mut client = Client::start(&fake, &["--session-file", "s.json"]).await;
        let run = json!({"skill": "alpha", "command": "forever"});
        let id = client.begin_call("skill_run", run).await;
        let mut asked = fake.state.run_calls.subscribe();
        asked.wait_for(|count| *count > 0).await.expect("is kept");
        let params = json!({"requestId": id, "reason": "enough"});
        let cancel =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        client.send(cancel).await;
        is_killed(&fake).await;
        // The session goes on.
        client.call("skill_list", json!({})).await;
    }
}

/// Waits until the only command has been killed.
async fn is_killed(fake: &Fake) {
    let killed = async {
        loop {
            let exec = fake.state.lock().execs.values().next().cloned();
            if let Some(exec) = exec {
                let mut killed = exec.killed.subscribe();
                killed.wait_for(|killed| *killed).await.expect("is kept");
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, killed)
        .await
        .expect("is killed");
}

#[tokio::test]
async fn a_kept_session_that_ends_in_the_middle_of_a_call_leaves_nothing_running() {
    for (by_signal, when) in [
        (true, RunExec::Starts),
        (true, RunExec::Late),
        (false, RunExec::Starts),
    ] {
        let fake = fake();
        fake.state.lock().run_exec = when;
        let mut client = Client::start(&fake, &["--session-file", "s.json"]).await;
        let run = json!({"skill": "alpha", "command": "forever"});
        client.begin_call("skill_run", run).await;
        let mut asked = fake.state.run_calls.subscribe();
        asked.wait_for(|count| *count > 0).await.expect("is kept");
        if by_signal {
            signal(&client.child, Signal::TERM);
            let ended = tokio::time::timeout(PATIENCE, client.child.wait()).await;
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
    fake.state.lock().deletes_hang = true;
    let mut client = Client::start(&fake, &[]).await;
    client
        .call("skill_run", json!({"skill": "alpha", "command": "hello"}))
        .await;
    signal(&client.child, Signal::TERM);
    let mut asked = fake.state.deletes.subscribe();
    asked.wait_for(|count| *count > 0).await.expect("is kept");
    signal(&client.child, Signal::TERM);
    let ended = tokio::time::timeout(PATIENCE, client.child.wait()).await;
    assert_eq!(ended.expect("ends").expect("ran").code(), Some(130));
}

#[tokio::test]
async fn a_result_is_given_whatever_fails_after_the_call() {
    let fake = fake();
    let mut client = Client::start(&fake, &["--session-file", "s.json"]).await;
    client.tools().await;
    // What is offered now cannot be found out.
    fake.state.lock().list_refusals = [refusal(Code::Internal, "INTERNAL", &[])].into();
    let loaded = client.call("skill_load", json!({"skill": "alpha"})).await;
    assert_eq!(loaded["structuredContent"]["message"], "loaded: alpha");
    client.is_told("notifications/tools/list_changed").await;
    // The session cannot be kept.
    std::fs::remove_file(fake.path("s.json")).expect("is there");
    std::fs::create_dir(fake.path("s.json")).expect("makes");
    let loaded = client.call("skill_load", json!({"skill": "beta"})).await;
    assert_eq!(loaded["structuredContent"]["message"], "loaded: beta");
    let fault = loaded["content"][1]["text"]
        .as_str()
        .expect("a second text");
    assert!(
        fault.contains("could not be kept: cannot open s.json"),
        "{fault}"
    );
}

#[tokio::test]
async fn a_skill_that_is_hidden_is_no_resource() {
    let fake = fake();
    options(&fake, &json!({"skills": ["alpha", "beta"]}));
    let mut client = Client::start(&fake, &["--options", "o.json"]).await;
    let mut uris = Vec::new();
    let mut cursor = None;
    loop {
        let page = client
            .request("resources/list", json!({"cursor": cursor}))
            .await
            .expect("a page");
        let found = page["resources"].as_array().expect("resources").iter();
        uris.extend(found.map(|resource| resource["uri"].as_str().expect("a URI").to_owned()));
        cursor = page
            .get("nextCursor")
            .and_then(Value::as_str)
            .map(ToOwned::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(
        uris,
        [
            "skill://alpha/SKILL.md",
            "skill://alpha/scripts/run.sh",
            "skill://beta/SKILL.md",
            "skill://beta/scripts/run.sh",
        ]
    );
    let read = client
        .request("resources/read", json!({"uri": "skill://alpha/SKILL.md"}))
        .await;
    assert_eq!(read.expect("a file")["contents"][0]["text"], "# alpha\n");
    for uri in [
        "skill://gamma/SKILL.md",
        "skill://alpha/no.md",
        "file:///etc/passwd",
        "skill://alpha",
    ] {
        let error = client.request("resources/read", json!({"uri": uri})).await;
        assert_eq!(error.expect_err(uri)["code"], -32002, "{uri}");
    }
    let error = client
        .request("resources/read", json!({"uri": "skill://alpha/..%2Fx"}))
        .await;
    assert_eq!(error.expect_err("leads out")["code"], -32602);
}

#[tokio::test]
async fn a_file_that_a_client_could_not_take_in_one_line_is_refused() {
    let fake = fake();
    let kit = Kit::new("large", "1.0.0")
        .file("a.bin", vec![0; 8 << 20])
        .file("b.bin", vec![0; (8 << 20) + 1]);
    fake.state.lock().kits = vec![kit];
    let mut client = Client::start(&fake, &[]).await;
    let read = client
        .request("resources/read", json!({"uri": "skill://large/a.bin"}))
        .await;
    let blob = read.expect("a file")["contents"][0]["blob"]
        .as_str()
        .expect("base64")
        .len();
    assert!(blob < 16 << 20, "{blob}");
    let error = client
        .request("resources/read", json!({"uri": "skill://large/b.bin"}))
        .await;
    assert_eq!(error.expect_err("too large")["code"], -32602);
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

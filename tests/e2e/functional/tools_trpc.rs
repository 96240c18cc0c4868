//! The trpc family of skill tools, in conversations as a model has them: over several turns, on a real daemon.
//!
//! Docker: the whole system answers the tools, with a sample skill's script in a real container.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use skilld_tests::{Daemon, DefaultDaemon};
use skilld_tools::host_tools::HostTools;
use skilld_tools::prompt::{Upload, UploadContent};
use skilld_tools::state::SessionState;
use skilld_tools::{Session, ToolCall, ToolDefinition, ToolError, ToolOptions, Toolset};

mod packages;
mod policies;
mod sessions;
mod workspaces;

/// A conversation: calls in order, each with a new id, and the state that they leave.
struct Talk {
    tools: Toolset,
    session: Session,
    state: SessionState,
    calls: u32,
}

impl Talk {
    /// Begins or continues a session. Tests share a daemon, so each has a session of its own.
    fn new(daemon: &Daemon, session: &str, options: ToolOptions) -> Result<Self> {
        Self::with(daemon, session, options, HostTools::new())
    }

    fn with(daemon: &Daemon, session: &str, options: ToolOptions, host: HostTools) -> Result<Self> {
        Ok(Self {
            tools: Toolset::new(daemon.client.clone(), options, host)?,
            session: Session {
                app: "tests".into(),
                user: "ann".into(),
                session: session.into(),
                agent: "helper".into(),
                ..Session::default()
            },
            state: SessionState::new(),
            calls: 0,
        })
    }

    /// The same tools and nothing of what happened: another conversation.
    fn other(&self, session: &str) -> Self {
        Self {
            tools: self.tools.clone(),
            session: Session {
                session: session.into(),
                ..self.session.clone()
            },
            state: self.state.clone(),
            calls: 0,
        }
    }

    async fn try_call(&mut self, name: &str, arguments: Value) -> Result<Value, ToolError> {
        self.calls += 1;
        let call = ToolCall {
            id: format!("call_{}", self.calls),
            name: name.into(),
            arguments,
        };
        let answer = self.tools.call(&self.session, &self.state, call).await?;
        // As a host keeps it: JSON.
        self.state.apply(&answer.delta);
        let kept = serde_json::to_string(&self.state).expect("JSON");
        self.state = serde_json::from_str(&kept).expect("JSON");
        Ok(answer.result)
    }

    async fn call(&mut self, name: &str, arguments: Value) -> Result<Value> {
        let made = format!("{name} {arguments}");
        self.try_call(name, arguments).await.context(made)
    }

    /// Calls a tool, and polls the command's session until its end: a call may return when output has been quiet. The
    /// result is the last one, with the output of all.
    async fn run_to_end(&mut self, tool: &str, arguments: Value) -> Result<Value, ToolError> {
        let poll = match tool {
            "workspace_exec" => "workspace_write_stdin",
            _ => "skill_poll_session",
        };
        let mut result = self.try_call(tool, arguments).await?;
        let mut output = String::new();
        loop {
            output += result["output"].as_str().unwrap_or_default();
            if result["status"] != "running" {
                break;
            }
            let arguments = json!({"session_id": result["session_id"], "yield_ms": 60000});
            result = self.try_call(poll, arguments).await?;
        }
        // That of `skill_run` has a field of another name.
        if let Some(last) = result.get_mut("output") {
            *last = json!(output);
        }
        Ok(result)
    }

    async fn expect_refusal(&mut self, name: &str, arguments: Value) -> String {
        let before = self.state.clone();
        let error = self.try_call(name, arguments).await.expect_err("refused");
        assert_eq!(self.state, before, "an error changes nothing");
        format!("{}: {error}", error.code())
    }

    /// Ends the session: its workspace is deleted.
    async fn end(&self) -> Result<()> {
        Ok(self.tools.end(&self.session).await?)
    }

    async fn offered(&self) -> Result<Vec<String>> {
        let definitions = self.tools.definitions(&self.session, &self.state).await?;
        Ok(definitions.into_iter().map(|tool| tool.name).collect())
    }
}

fn forecast() -> HostTools {
    let mut host = HostTools::new();
    for name in ["get_forecast", "delete_everything"] {
        let definition = ToolDefinition {
            name: name.into(),
            description: String::new(),
            parameters: json!({"type": "object"}),
            returns: json!({}),
        };
        host.register(definition, async |arguments| {
            Ok(json!({"for": arguments["place"], "rain": 0}))
        });
    }
    host
}

#[tokio::test]
async fn a_trpc_conversation_keeps_its_state_across_turns() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let mut talk = Talk::with(&daemon, "turns", ToolOptions::default(), forecast())?;

    let list = talk.call("skill_list", json!({})).await?;
    let names = list.as_array().context("a list")?;
    assert!(names.contains(&json!("csv-report")) && names.contains(&json!("trip-planner")));
    let docs = talk
        .call("skill_list_docs", json!({"skill_name": "image-info"}))
        .await?;
    assert_eq!(
        docs,
        json!(["references/formats.md", "references/presets.md"])
    );
    let declared = talk
        .call("skill_list_tools", json!({"skill": "trip-planner"}))
        .await?;
    assert_eq!(
        declared["available_tools"],
        json!(["get_forecast", "search_places", "travel_time"])
    );

    // What no loaded skill names is not offered, and not called.
    let is_offered = |offered: &[String], name: &str| offered.iter().any(|tool| tool == name);
    assert!(!is_offered(&talk.offered().await?, "get_forecast"));
    let refused = talk.expect_refusal("get_forecast", json!({})).await;
    assert!(refused.starts_with("UNKNOWN_TOOL"), "{refused}");
    let loaded = talk
        .call("skill_load", json!({"skill": "trip-planner"}))
        .await?;
    assert_eq!(loaded["message"], "loaded: trip-planner");
    let offered = talk.offered().await?;
    assert!(is_offered(&offered, "get_forecast") && !is_offered(&offered, "delete_everything"));
    let answer = talk.call("get_forecast", json!({"place": "Bonn"})).await?;
    assert_eq!(answer["for"], "Bonn");
    let selected = json!({"skill": "trip-planner", "tools": ["search_places", "nonsense"]});
    let selected = talk.call("skill_select_tools", selected).await?;
    // The skill declares one of them; the host has neither.
    assert_eq!(selected["selected_tools"], json!([]));
    assert_eq!(
        selected["unknown_tools"],
        json!(["nonsense", "search_places"])
    );
    assert!(!is_offered(&talk.offered().await?, "get_forecast"));

    talk.call("skill_load", json!({"skill": "csv-report"}))
        .await?;
    let table = Upload {
        name: "../Q1 sales.csv".into(),
        original_name: String::new(),
        content: UploadContent::Bytes("region,n\nnorth,1\nsouth,2\n".into()),
        key: String::new(),
    };
    let staged = talk.tools.stage_uploads(&talk.session, &[table]).await?;
    assert_eq!(staged.files[0].name, "work/inputs/Q1 sales.csv");
    let run = json!({
        "skill": "csv-report",
        "command": "python scripts/csv_report.py 'inputs/Q1 sales.csv'",
        "output_files": ["$OUTPUT_DIR/**"],
    });
    let result = talk.call("skill_run", run).await?;
    assert_eq!(result["exit_code"], 0, "{result}");
    let files = result["output_files"].as_array().context("files")?;
    let names: Vec<&str> = files
        .iter()
        .filter_map(|file| file["name"].as_str())
        .collect();
    assert_eq!(names, ["out/report.json", "out/report.md"]);
    assert_eq!(files[1]["mime_type"], "text/markdown");
    assert_eq!(files[1]["ref"], "workspace://out/report.md");
    assert_eq!(result["primary_output"]["name"], "out/report.json");
    let text = files[1]["content"].as_str().context("text")?.to_owned();
    assert!(text.contains("north"), "{text}");

    // The next turn: another process with what was kept of the first.
    let mut next = Talk::new(&daemon, "turns", ToolOptions::default())?;
    next.state = talk.state.clone();
    next.calls = talk.calls;
    let read = next
        .call(
            "read_file",
            json!({"file_name": "workspace://out/report.md"}),
        )
        .await?;
    assert_eq!(read["content"], text);
    let lines = json!({"file_name": "workspace://out/report.md", "start_line": 2, "num_lines": 1});
    let read = next.call("read_file", lines).await?;
    assert_eq!(read["content"].as_str(), text.split_inclusive('\n').nth(1));
    assert_eq!(read["next_start_line"], 3);
    let read = next
        .call("read_file", json!({"path": "skill://csv-report/SKILL.md"}))
        .await?;
    assert!(
        read["content"]
            .as_str()
            .is_some_and(|text| text.contains("# csv-report"))
    );

    let saved = next
        .call(
            "workspace_save_artifact",
            json!({"path": "$OUTPUT_DIR/report.md"}),
        )
        .await?;
    assert_eq!(saved["ref"], "artifact://out/report.md@0");
    assert_eq!(saved["size_bytes"], text.len());
    let read = next
        .call("read_file", json!({"file_name": saved["ref"]}))
        .await?;
    assert_eq!(read["content"], text);

    // An input from the artifact, a file of this run only, and the earlier ones are not in its result.
    let again = json!({
        "skill_name": "csv-report",
        "command": "wc -c < inputs/old.md > out/size.txt; cat out/size.txt",
        "inputs": [{"src": saved["ref"], "dst": "inputs/old.md"}],
    });
    let result = next.call("skill_run", again).await?;
    assert_eq!(
        result["stdout"].as_str().map(str::trim),
        Some(text.len().to_string().as_str())
    );
    assert_eq!(result["staged_inputs"][0]["name"], "work/inputs/old.md");
    assert_eq!(result["output_files"][0]["name"], "out/size.txt");
    assert_eq!(result["output_files"].as_array().map(Vec::len), Some(1));
    next.end().await?;
    let gone = next
        .expect_refusal(
            "read_file",
            json!({"file_name": "workspace://out/report.md"}),
        )
        .await;
    assert!(gone.starts_with("FILE_NOT_FOUND"), "{gone}");
    daemon.stop().await
}

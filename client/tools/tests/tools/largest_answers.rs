//! The largest answers of every tool of every family: how much text a model is given at once, and a word about the rest.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use skilld_client::v1;
use skilld_client::v1::SkipReason;
use skilld_testing::Fake;
use skilld_testing::mcp::McpServer;
use skilld_testing::skills::Kit;
use skilld_tools::{Family, McpOptions, ToolOptions};

use crate::conversation::{Conversation, all_tools, with_fields};
use crate::tools_trpc::{file, skill, summary};

/// Maximum size of an answer in bytes of JSON, as the documentation states it.
const ANSWER_BYTES_MAX: usize = 96 * 1024;
/// Number of documents, of tools, of files and so on: their names alone are more than an answer holds.
const MANY: usize = 600;
/// Parts of answers that say that something is left out.
const WORDS: [&str; 8] = [
    "next_offset",
    "next_start_line",
    "left out",
    "truncated",
    "[cut",
    "the first ",
    "\"more\":true",
    "lost_bytes",
];

/// Returns a text that is three times as long in JSON.
fn wild(bytes: usize) -> String {
    "\"\\\u{1}\n".repeat(bytes / 4)
}

fn names() -> impl Iterator<Item = String> {
    (0..MANY).map(|number| format!("{number:04}-{}", "n".repeat(180)))
}

/// Returns the files of a skill that has too many of each kind, and a long one.
fn files() -> Vec<(String, String)> {
    let folders = ["references", "assets", "scripts"];
    let many = folders.iter().flat_map(|folder| {
        names().map(move |name| (format!("{folder}/{name}.md"), "text\n".to_owned()))
    });
    let long = ["references/long.md", "assets/long.md", "SKILL.md"]
        .map(|path| (path.to_owned(), wild(1 << 20)));
    let script = ("scripts/run.sh".to_owned(), "#!/bin/sh\n".to_owned());
    many.chain(long).chain([script]).collect()
}

/// Makes everything that a skill says of itself long.
fn describe_at_length(skill: &mut v1::Skill) {
    skill.body = wild(1 << 19);
    skill.description = wild(4096);
    skill.author = wild(4096);
    skill.license = wild(4096);
    skill.compatibility = wild(4096);
    skill.tools = names().collect();
    skill.allowed_tools = names().collect();
    skill.restricts_tools = true;
    skill.triggers = names().collect();
    skill.tags = names().collect();
}

/// Returns a collection with too much of everything.
fn collection() -> Vec<v1::CollectOutputsResponse> {
    let text = wild(32 * 1024);
    let files = names().flat_map(|name| {
        let path = format!("out/{name}");
        file(&path, text.as_bytes(), 1 << 20, true)
    });
    let all =
        |prefix: &str| -> Vec<String> { names().map(|name| format!("{prefix}{name}")).collect() };
    let skipped = names().map(|name| v1::SkippedFile {
        path: format!("out/skipped-{name}"),
        reason: SkipReason::MaxTotalBytes.into(),
    });
    let mut artifacts = all("artifact://out/");
    for artifact in &mut artifacts {
        artifact.push_str("@0");
    }
    let summary = summary(v1::CollectSummary {
        matched_count: 5000,
        returned_count: 600,
        limits_hit: true,
        skipped_files: skipped.collect(),
        artifacts,
        unchanged_count: 100,
        outside_paths: all("/tmp/"),
        unmatched_globs: all("out/missing-"),
        ..Default::default()
    });
    files.chain([summary]).collect()
}

async fn conversation(family: Family) -> (Fake, Conversation) {
    let fake = Fake::start();
    fake.answer_collections(collection());
    {
        let mut state = fake.state.lock();
        for path in ["out/wild.txt", "out/saved.txt"] {
            state.staged.insert(path.to_owned(), wild(1 << 20).into());
        }
        let others = (0..MANY / 2).map(|number| {
            let mut other = skill(&format!("other-{number:03}"), &[]);
            other.description = wild(1024);
            Kit::from(other)
        });
        let mut large = Kit::new("large", "1.0.0");
        describe_at_length(&mut large.skill);
        for (path, text) in files() {
            large = large.file(&path, text);
        }
        state.kits = [large].into_iter().chain(others).collect();
    }
    let options = ToolOptions {
        inline_skills: true,
        ..all_tools(family)
    };
    let conversation = Conversation::new(&fake, options).await;
    (fake, conversation)
}

/// A conversation whose answers are measured.
struct MeasuredConversation {
    talk: Conversation,
    called: BTreeSet<&'static str>,
}

impl MeasuredConversation {
    /// Makes a call whose answer is bounded.
    async fn bounded(&mut self, tool: &'static str, arguments: Value) -> Value {
        self.called.insert(tool);
        let answer = self.talk.ok(tool, arguments).await;
        let bytes = answer.to_string().len();
        assert!(bytes <= ANSWER_BYTES_MAX, "{tool}: {bytes} bytes");
        answer
    }

    /// Makes a call whose answer is bounded and says that something is left out.
    async fn cut(&mut self, tool: &'static str, arguments: Value) -> Value {
        let answer = self.bounded(tool, arguments).await;
        let text = answer.to_string();
        let is_said = WORDS.iter().any(|word| text.contains(word));
        assert!(is_said, "{tool}: {}", text.get(..2000).unwrap_or(&text));
        answer
    }

    async fn check_that_all_were_called(&self) {
        let offered = self.talk.names().await;
        for name in &offered {
            assert!(self.called.contains(name.as_str()), "{name} is not called");
        }
    }
}

async fn measured(family: Family) -> (Fake, MeasuredConversation) {
    let (fake, talk) = conversation(family).await;
    let called = BTreeSet::new();
    (fake, MeasuredConversation { talk, called })
}

#[tokio::test]
async fn no_answer_of_trpcs_tools_exceeds_the_budget() {
    let (_fake, mut talk) = measured(Family::Trpc).await;
    let large = json!({"skill": "large"});
    let all_docs = json!({"skill": "large", "include_all_docs": true});
    // For each of them there are two that may have been meant.
    let unknown: Vec<String> = names()
        .take(MANY / 4)
        .map(|name| format!("missing/{name}.md"))
        .collect();
    talk.cut("skill_list", json!({"details": true})).await;
    talk.cut("skill_list_tools", large.clone()).await;
    talk.cut("skill_list_docs", large).await;
    let docs = json!({"skill": "large", "docs": unknown});
    talk.cut("skill_load", docs).await;
    talk.cut("skill_load", all_docs.clone()).await;
    let long = json!({"skill": "large", "docs": ["references/long.md"]});
    talk.cut("skill_select_docs", long).await;
    talk.cut("skill_select_docs", all_docs).await;
    let tools: Vec<String> = names().collect();
    let tools = json!({"skill": "large", "tools": tools});
    talk.cut("skill_select_tools", tools).await;
    talk.cut("read_file", json!({"file_name": "out/wild.txt"}))
        .await;
    let saved = json!({"path": "out/saved.txt"});
    let cat = json!({"skill": "large", "command": "cat"});
    let run = |further: Value| with_fields(&cat, &further);
    let typed = wild(1 << 20);
    let asked = json!({"stdin": typed, "output_files": ["out/**"], "save_as_artifacts": true});
    talk.cut("skill_run", run(asked)).await;
    talk.cut("skill_run", run(json!({"stdin": typed}))).await;
    talk.bounded("workspace_save_artifact", saved).await;
    let whole = json!({"stdin": typed, "eof": true, "output_files": ["out/**"]});
    talk.cut("skill_exec", run(whole)).await;
    let files = json!({"output_files": ["out/**"], "yield_ms": 1});
    let started = talk.bounded("skill_exec", run(files)).await;
    let id = started["session_id"].clone();
    let write = json!({"session_id": id, "chars": typed, "yield_ms": 1});
    talk.cut("skill_write_stdin", write).await;
    let poll = json!({"session_id": id, "yield_ms": 1});
    talk.cut("skill_poll_session", poll).await;
    let kill = json!({"session_id": id});
    talk.cut("skill_kill_session", kill).await;
    let shell = json!({"command": "cat", "stdin": typed});
    talk.cut("workspace_exec", shell).await;
    let background = json!({"command": "cat", "background": true});
    let started = talk.bounded("workspace_exec", background).await;
    let id = started["session_id"].clone();
    let write = json!({"session_id": id, "chars": typed, "yield_ms": 1});
    talk.cut("workspace_write_stdin", write).await;
    let kill = json!({"session_id": id});
    talk.cut("workspace_kill_session", kill).await;
    talk.check_that_all_were_called().await;
}

#[tokio::test]
async fn no_answer_of_shermas_tools_exceeds_the_budget() {
    let (_fake, mut talk) = measured(Family::Sherma).await;
    let large = json!({"skill_id": "large"});
    talk.cut("list_skills", json!({})).await;
    talk.bounded("search_skills", json!({"query": "other", "limit": 100}))
        .await;
    talk.cut("load_skill_md", large.clone()).await;
    for tool in [
        "list_skill_resources",
        "list_skill_assets",
        "list_skill_scripts",
    ] {
        talk.cut(tool, large.clone()).await;
    }
    let resource = json!({"skill_id": "large", "resource_path": "references/long.md"});
    talk.cut("load_skill_resource", resource).await;
    let asset = json!({"skill_id": "large", "asset_path": "assets/long.md"});
    talk.cut("load_skill_asset", asset).await;
    let run = json!({
        "skill_id": "large", "script_path": "scripts/run.sh", "argv": ["cat"], "stdin": wild(1 << 20),
    });
    talk.cut("run_skill_script", run).await;
    talk.bounded("unload_skill", large).await;
    talk.check_that_all_were_called().await;
}

#[tokio::test]
async fn no_answer_of_agent_zeros_tool_exceeds_the_budget() {
    let (_fake, mut talk) = measured(Family::AgentZero).await;
    let call = |method: &str, further: Value| {
        let call = json!({"method": method, "skill_name": "large"});
        with_fields(&call, &further)
    };
    let tool = "skills_tool";
    talk.cut(tool, call("list", json!({}))).await;
    let query = json!({"query": "other"});
    talk.bounded(tool, call("search", query)).await;
    talk.cut(tool, call("load", json!({}))).await;
    let read = json!({"file_path": "references/long.md"});
    talk.cut(tool, call("read_file", read)).await;
    let run = json!({"script_path": "scripts/run.sh", "argv": ["cat"], "stdin": wild(1 << 20)});
    talk.cut(tool, call("execute_script", run)).await;
    talk.check_that_all_were_called().await;
}

#[tokio::test]
async fn no_answer_of_a_skills_server_exceeds_the_budget() {
    let server = McpServer::start(&["echo"]).await;
    let kit = Kit::new("remote", "1.0.0").card(json!({"mcps": {"s": server.entry()}}));
    let fake = Fake::start();
    fake.state.lock().kits = vec![kit];
    let options = ToolOptions {
        family: Family::Sherma,
        mcp: McpOptions {
            urls: vec![server.url.clone()],
            ..McpOptions::default()
        },
        ..ToolOptions::default()
    };
    let mut talk = Conversation::new(&fake, options).await;
    talk.load("remote").await;
    let echo = talk.ok("echo", json!({"text": wild(128 * 1024)})).await;
    let text = echo.to_string();
    assert!(text.len() <= ANSWER_BYTES_MAX, "{} bytes", text.len());
    assert!(text.contains("left out: a result has at most 96 KiB"));
}

#[tokio::test]
async fn pages_of_documents_have_each_of_them_once() {
    let (_fake, mut talk) = conversation(Family::Trpc).await;
    let (mut seen, mut asked) = (BTreeSet::new(), json!({"skill": "large"}));
    loop {
        let page = talk.ok("skill_list_docs", asked.clone()).await;
        let paths = page["paths"].as_array().expect("a page").iter();
        for path in paths {
            let path = path.as_str().expect("a path");
            assert!(seen.insert(path.to_owned()), "{path} is there twice");
        }
        let Some(next) = page["next_offset"].as_u64() else {
            break;
        };
        let message = page["message"].as_str().expect("a message");
        let said = format!(
            "of {}; the others: the same call with offset {next}",
            MANY + 1
        );
        assert!(message.contains(&said), "{message}");
        asked["offset"] = next.into();
    }
    assert_eq!(seen.len(), MANY + 1, "the references, and no script");
}

#[tokio::test]
async fn a_load_of_all_documents_names_those_that_it_leaves_out() {
    let (fake, mut talk) = conversation(Family::Trpc).await;
    fake.state.lock().kits[0].skill.body = "# large\n".into();
    let all = json!({"skill": "large", "include_all_docs": true});
    let loaded = talk.ok("skill_load", all).await;
    let content = loaded["content"].as_str().expect("text");
    assert!(content.contains("text\n</skill>"), "documents are shown");
    assert!(!content.contains("#!/bin/sh"), "a script is no document");
    let warning = loaded["warnings"][0].as_str().expect("a warning");
    assert!(
        warning.starts_with("content has no room for ") && warning.contains("read_file reads them"),
        "{warning}"
    );
}

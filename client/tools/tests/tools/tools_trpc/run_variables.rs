//! Variables that a hook of the host gives to a run: its command gets them, and no result of a tool has their values.

use std::collections::BTreeMap;

use futures::future::ready;
use serde_json::json;
use skilld_tools::hooks::{Hooks, RunIdentity, RunVariables, VariablesFuture};
use skilld_tools::host_tools::HostTools;
use skilld_tools::{Session, ToolOptions, Toolset};

use super::{Talk, file, summary};
use skilld_client::v1::CollectSummary;

/// Gives each skill a token of its own, and refuses one skill.
struct Tokens;

impl Hooks for Tokens {
    fn run_environment<'a>(
        &'a self,
        session: &'a Session,
        run: RunIdentity<'a>,
    ) -> VariablesFuture<'a> {
        let token = format!("secret-of-{}-{}", session.user, run.skill);
        Box::pin(ready(match run.skill {
            "other" => Err("other has no account".to_owned()),
            _ => Ok(RunVariables {
                plain: variables(&[("REPORT", "report.md"), ("STAGE", "production")]),
                secret: variables(&[("API_TOKEN", &token), ("SHORT", "1")]),
            }),
        }))
    }
}

/// Gives a variable that no command can have.
struct BrokenToken;

impl Hooks for BrokenToken {
    fn run_environment<'a>(&'a self, _: &'a Session, _: RunIdentity<'a>) -> VariablesFuture<'a> {
        Box::pin(ready(Ok(RunVariables {
            secret: variables(&[("API_TOKEN", "with a \0 byte")]),
            ..RunVariables::default()
        })))
    }
}

fn variables(given: &[(&str, &str)]) -> BTreeMap<String, String> {
    let given = given.iter();
    given
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

async fn talk() -> Talk {
    talk_with(Tokens).await
}

async fn talk_with(hooks: impl Hooks + 'static) -> Talk {
    let mut options = ToolOptions::default();
    options
        .env
        .insert("API_TOKEN".into(), "of the options".into());
    let mut talk = Talk::new(options.clone()).await;
    let client = talk.fake.client().await;
    let tools = Toolset::with_hooks(client, options, HostTools::new(), hooks);
    talk.tools = tools.expect("options that fit");
    talk
}

#[tokio::test]
async fn a_run_gets_the_variables_of_its_skill_and_tells_none() {
    for (tool, skill, arguments) in [
        (
            "skill_run",
            "demo",
            json!({"skill": "demo", "command": "spec", "env": {"API_TOKEN": "of the model"}}),
        ),
        (
            "skill_exec",
            "demo",
            json!({"skill": "demo", "command": "spec", "eof": true}),
        ),
        ("workspace_exec", "", json!({"command": "spec"})),
    ] {
        let mut talk = talk().await;
        let secret = format!("secret-of-ann-{skill}");
        let files = file("out/a", secret.as_bytes(), 1, true);
        let end = vec![summary(CollectSummary::default())];
        talk.fake.answer_collections([files, end].concat());
        let result = talk.call(tool, arguments).await;
        assert_eq!(talk.spec().secret_env, ["API_TOKEN", "SHORT"], "{tool}");
        let env = talk.spec().env;
        assert_eq!(
            (env["API_TOKEN"].as_str(), env["SHORT"].as_str()),
            (secret.as_str(), "1"),
            "{tool}"
        );
        let shown = format!("{result} {:?}", talk.state);
        assert!(
            shown.contains("API_TOKEN") && shown.contains("***"),
            "{tool}: {shown}"
        );
        assert!(!shown.contains("secret-of"), "{tool}: {shown}");
        // A later call of the session shows none either.
        let read = talk
            .call(
                "workspace_exec",
                json!({"command": format!("echo {secret}")}),
            )
            .await;
        assert_eq!(read["output"], "echo ***\n", "{tool}");
    }
}

#[tokio::test]
async fn a_hook_without_variables_for_a_run_prevents_it() {
    let mut talk = talk().await;
    let arguments = json!({"skill": "other", "command": "hello"});
    let (code, message) = talk.refused("skill_run", arguments).await;
    assert_eq!(
        (code.as_str(), message.contains("other has no account")),
        ("REFUSED_BY_HOST", true),
        "{message}"
    );
    assert_eq!(talk.fake.state.lock().starts, 0);
}

#[tokio::test]
async fn an_error_shows_no_value_of_a_hook() {
    let mut talk = talk().await;
    let arguments = json!({"skill": "demo", "command": "hello"});
    talk.call("skill_run", arguments).await;
    let path = json!({"path": "out/secret-of-ann-demo.json"});
    let (code, message) = talk.refused("read_file", path).await;
    assert_eq!(code, "FILE_NOT_FOUND");
    assert_eq!(message, "file not found: out/***.json");
}

#[tokio::test]
async fn a_variable_that_cannot_be_set_prevents_the_run() {
    let mut talk = talk_with(BrokenToken).await;
    for (tool, arguments) in [
        ("skill_run", json!({"skill": "demo", "command": "hello"})),
        ("skill_exec", json!({"skill": "demo", "command": "hello"})),
        ("workspace_exec", json!({"command": "hello"})),
    ] {
        let mut arguments = arguments;
        arguments["env"] = json!({"API_TOKEN": "of the model"});
        let (code, message) = talk.refused(tool, arguments).await;
        assert_eq!(code, "REFUSED_BY_HOST", "{tool}");
        assert!(message.contains("\"API_TOKEN\""), "{tool}: {message}");
        assert!(!message.contains("with a"), "{tool}: {message}");
        assert_eq!(talk.fake.state.lock().starts, 0, "{tool}");
    }
}

#[tokio::test]
async fn plain_variables_stay_in_results_and_secrets_in_plans() {
    let mut talk = talk().await;
    let arguments = json!({"skill": "demo", "command": "spec", "eof": true,
        "outputs": {"globs": ["out/report.md", "out/secret-of-ann-demo"]}});
    let ended = talk.call("skill_exec", arguments).await;
    let id = ended["session_id"].as_str().expect("an id");
    let known = talk.state.get(&format!("temp:skill:exec:{id}"));
    let known = known.expect("it is remembered");
    for text in [&ended["output"], &known["result"]["stdout"]] {
        let text = text.as_str().expect("text");
        let shown = ["report.md", "production", "***"].map(|word| text.contains(word));
        assert_eq!(shown, [true; 3], "{text}");
        assert!(!text.contains("secret-of"), "{text}");
    }
    // What is collected later is found by the plan.
    let plan = known["plan"].to_string();
    assert!(plan.contains("out/secret-of-ann-demo"), "{plan}");
}

#[tokio::test]
async fn a_full_answer_ends_before_a_value_that_it_would_cut() {
    let mut talk = talk().await;
    let mut options = talk.tools.options().clone();
    options.output_bytes_max = 24;
    let client = talk.fake.client().await;
    let tools = Toolset::with_hooks(client, options, HostTools::new(), Tokens);
    talk.tools = tools.expect("options that fit");
    let arguments = json!({"skill": "demo", "command": "cat", "yield_ms": 1});
    let started = talk.call("skill_exec", arguments).await;
    let id = started["session_id"].clone();
    let write = json!({"session_id": id, "chars": "0123456789 secret-of-ann-demo.", "yield_ms": 1});
    let mut output = talk.call("skill_write_stdin", write).await["output"].to_string();
    assert_eq!(output, "\"0123456789 \"");
    let poll = json!({"session_id": id, "yield_ms": 1});
    output = talk.call("skill_poll_session", poll).await["output"].to_string();
    assert_eq!(output, "\"***.\"");
}

#[tokio::test]
async fn a_value_is_masked_before_output_is_cut() {
    let mut talk = talk().await;
    talk.call("skill_run", json!({"skill": "demo", "command": "hello"}))
        .await;
    // The middle of the output, which is left out, begins within the value.
    let half = 8 * 1024 - 4;
    let command = format!(
        "{} secret-of-ann-demo {}",
        "a".repeat(half),
        "b".repeat(9000)
    );
    let result = talk
        .call("workspace_exec", json!({"command": command}))
        .await;
    let output = result["output"].as_str().expect("text");
    assert!(output.contains("left out"), "{output}");
    assert!(!output.contains("secr"), "{output}");
}

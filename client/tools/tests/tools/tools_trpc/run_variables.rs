//! Variables that a hook of the host gives to a run: they reach its command, and their values reach nobody else.

use std::collections::BTreeMap;

use futures::future::ready;
use serde_json::json;
use skilld_tools::hooks::{Hooks, RunIdentity, VariablesFuture};
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
            _ => Ok(BTreeMap::from([
                ("API_TOKEN".to_owned(), token),
                ("SHORT".to_owned(), "1".to_owned()),
            ])),
        }))
    }
}

async fn talk() -> Talk {
    let mut options = ToolOptions::default();
    options
        .env
        .insert("API_TOKEN".into(), "of the options".into());
    let mut talk = Talk::new(options.clone()).await;
    let client = talk.fake.client().await;
    let tools = Toolset::with_hooks(client, options, HostTools::new(), Tokens);
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

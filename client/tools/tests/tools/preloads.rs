//! Loads that the host declares before a request: all of a list or none, in every family.

use serde_json::{Value, json};
use skilld_testing::Fake;
use skilld_testing::skills::Kit;
use skilld_tools::prompt::Provider;
use skilld_tools::state::loaded;
use skilld_tools::{Family, ToolOptions};

use crate::conversation::{Conversation, conversation_about, parse_json, rows};
use crate::tools_trpc::Talk;

async fn conversation(options: ToolOptions) -> (Fake, Conversation) {
    let kits = ["alpha", "beta", "gamma"].map(|id| Kit::new(id, "1.0.0").file("a.md", "A.\n"));
    conversation_about(kits.into(), options).await
}

fn options(family: Family) -> ToolOptions {
    ToolOptions {
        family,
        ..ToolOptions::default()
    }
}

fn loaded_names(talk: &Conversation) -> Vec<String> {
    let scope = talk.tools.scope(&talk.session);
    loaded(&talk.state, talk.tools.family(), scope)
}

/// Preloads a list that is refused. Returns the code and the message.
async fn refusal(talk: &Conversation, given: &Value) -> (&'static str, String) {
    let made = talk.tools.preload(&talk.session, &talk.state, given).await;
    let error = made.expect_err(&given.to_string());
    (error.code(), error.to_string())
}

#[tokio::test]
async fn every_family_loads_all_declared_skills() {
    for family in Family::ALL {
        let (_fake, mut talk) = conversation(options(family)).await;
        let given = json!(["alpha", {"id": "beta"}]);
        let preloaded = talk
            .tools
            .preload(&talk.session, &talk.state, &given)
            .await
            .expect("preloads");
        talk.state.apply(&preloaded.delta);
        assert_eq!(loaded_names(&talk), ["alpha", "beta"], "{family:?}");
        let messages = preloaded.messages(Provider::OpenAiChat);
        let tool = match family {
            Family::Trpc => "skill_load",
            Family::Sherma => "load_skill_md",
            Family::AgentZero => "skills_tool",
        };
        assert_eq!(messages[0]["tool_calls"][1]["function"]["name"], tool);
        assert_eq!(messages.len(), 3);
        let text = messages[1]["content"].as_str().expect("text");
        let said = match family {
            Family::Trpc => "loaded: alpha",
            Family::Sherma | Family::AgentZero => "# alpha 1.0.0",
        };
        assert!(text.contains(said), "{family:?}: {text}");
        let material = talk.tools.material(&talk.session, &talk.state).await;
        assert_eq!(material.expect("material").loaded.len(), 2);
    }
}

#[tokio::test]
async fn one_skill_that_cannot_be_loaded_keeps_all_from_loading() {
    for family in Family::ALL {
        let (_fake, talk) = conversation(ToolOptions {
            max_loaded_skills: 2,
            ..options(family)
        })
        .await;
        let refusals = r#"
            ["alpha", "nope"] => UNKNOWN_SKILL unknown skill: nope
            ["alpha", "alpha"] => INVALID_ARGUMENTS alpha is in the list twice
            ["alpha", 7] => INVALID_ARGUMENTS the name of a skill or a map with its id
            ["alpha", {"id": " "}] => INVALID_ARGUMENTS names no skill
            [{"id": "alpha", "doc": "a.md"}] => INVALID_ARGUMENTS unknown field `doc`
            ["alpha", "beta", "gamma"] => INVALID_ARGUMENTS at most 2 can be loaded at once
            "alpha" => INVALID_ARGUMENTS not a list
        "#;
        for (line, given, error) in rows(refusals) {
            let (code, said) = error.split_once(' ').expect(line);
            let (found, message) = refusal(&talk, &parse_json(given)).await;
            assert_eq!(found, code, "{family:?} {line}: {message}");
            assert!(message.contains(said), "{family:?} {line}: {message}");
        }
    }
}

#[tokio::test]
async fn documents_are_declared_with_trpcs_skills_and_have_to_exist() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let preload = async |talk: &Talk, given: Value| {
        talk.tools.preload(&talk.session, &talk.state, &given).await
    };
    for (given, said) in [
        (
            json!([{"id": "demo", "docs": ["USAGE.md", "no.md"]}]),
            r#"demo has no documents ["no.md"]"#,
        ),
        (
            json!([{"id": "demo", "docs": ["USAGE.md"], "include_all_docs": true}]),
            "give one of them",
        ),
    ] {
        let refused = preload(&talk, given).await.expect_err("refused");
        assert!(refused.to_string().contains(said), "{refused}");
    }
    let docs = json!([{"id": "demo", "docs": ["USAGE.md"]}]);
    let preloaded = preload(&talk, docs.clone()).await.expect("preloads");
    talk.state.apply(&preloaded.delta);
    let material = talk.tools.material(&talk.session, &talk.state).await;
    let shown = material.expect("material").loaded.remove(0).docs;
    assert_eq!(shown.len(), 1);
    let (_fake, other) = conversation(options(Family::Sherma)).await;
    let (_, message) = refusal(&other, &docs).await;
    assert!(message.contains("only the family trpc"), "{message}");
}

#[tokio::test]
async fn a_tool_that_the_model_is_not_offered_loads_for_the_host() {
    let (_fake, talk) = conversation(ToolOptions {
        tools: Some(vec!["workspace_exec".into()]),
        ..options(Family::Trpc)
    })
    .await;
    let given = json!(["alpha"]);
    let preloaded = talk.tools.preload(&talk.session, &talk.state, &given).await;
    assert!(!preloaded.expect("preloads").delta.is_empty());
}

//! Skills with `disable-model-invocation`: a model neither sees nor starts them, and a host starts them for the user.

use serde_json::{Value, json};
use skilld_testing::Fake;
use skilld_testing::skills::Kit;
use skilld_tools::Family;
use skilld_tools::prompt::{Provider, inject};
use skilld_tools::state::SessionState;

use crate::conversation::{Conversation, all_tools, conversation_about, read_calls};

/// Starts a conversation about two skills, one of which only the user may start.
async fn conversation(family: Family) -> (Fake, Conversation) {
    let mut kits = ["ship-it", "ship-up"].map(|id| {
        Kit::new(id, "1.0.0")
            .file("references/how.md", "Slowly.\n")
            .file("scripts/run.sh", "#!/bin/sh\n")
    });
    kits[0].skill.disable_model_invocation = true;
    conversation_about(kits.into(), all_tools(family)).await
}

/// Returns the calls that list or search skills in a family.
fn listings(family: Family) -> Vec<(String, Value)> {
    read_calls(match family {
        Family::Trpc => {
            r#"
            skill_list {}
            skill_list {"details": true}
            skill_list {"query": "ship"}
        "#
        }
        Family::Sherma => {
            r#"
            list_skills {}
            list_skills {"query": "ship"}
            search_skills {"query": "ship"}
        "#
        }
        Family::AgentZero => {
            r#"
            skills_tool {"method": "list"}
            skills_tool {"method": "search", "query": "ship"}
        "#
        }
    })
}

/// Returns the calls that load, read or run a skill in a family; the last one runs something.
fn uses(family: Family, skill: &str) -> Vec<(String, Value)> {
    let table = match family {
        Family::Trpc => {
            r#"
            skill_load {"skill": "NAME"}
            skill_list_docs {"skill": "NAME"}
            skill_list_tools {"skill": "NAME"}
            skill_select_docs {"skill": "NAME"}
            skill_select_tools {"skill": "NAME"}
            read_file {"file_name": "skill://NAME/references/how.md"}
            read_file {"file_name": "skills/NAME/references/how.md"}
            skill_exec {"skill": "NAME", "command": "hello"}
            skill_run {"skill": "NAME", "command": "hello"}
        "#
        }
        Family::Sherma => {
            r#"
            load_skill_md {"skill_id": "NAME"}
            list_skill_resources {"skill_id": "NAME"}
            load_skill_resource {"skill_id": "NAME", "resource_path": "references/how.md"}
            list_skill_scripts {"skill_id": "NAME"}
            run_skill_script {"skill_id": "NAME", "script_path": "scripts/run.sh", "argv": ["hello"]}
        "#
        }
        Family::AgentZero => {
            r#"
            skills_tool {"method": "load", "skill_name": "NAME"}
            skills_tool {"method": "read_file", "skill_name": "NAME", "file_path": "references/how.md"}
            skills_tool {"method": "execute_script", "skill_name": "NAME", "script_path": "scripts/run.sh", "argv": ["hello"]}
        "#
        }
    };
    read_calls(&table.replace("NAME", skill))
}

/// Returns the next prompt of an empty conversation, as JSON text.
async fn prompt(talk: &Conversation) -> String {
    let material = talk.tools.material(&talk.session, &talk.state).await;
    let mut body = json!({"messages": []});
    inject(
        Provider::OpenAiChat,
        &mut body,
        &material.expect("material"),
        &talk.state,
        &talk.tools.prompt_options(&talk.session),
    )
    .expect("a request");
    body.to_string()
}

#[tokio::test]
async fn no_list_search_schema_or_prompt_names_a_user_only_skill() {
    for family in Family::ALL {
        let (_fake, mut talk) = conversation(family).await;
        let definitions = json!(talk.definitions().await).to_string();
        assert!(!definitions.contains("ship-it"), "{family:?}");
        let prompt = prompt(&talk).await;
        assert!(prompt.contains("ship-up") && !prompt.contains("ship-it"));
        for (tool, arguments) in listings(family) {
            let listed = talk.ok(&tool, arguments.clone()).await.to_string();
            assert!(listed.contains("ship-up"), "{tool} {arguments}: {listed}");
            assert!(!listed.contains("ship-it"), "{tool} {arguments}: {listed}");
        }
    }
}

#[tokio::test]
async fn a_model_that_starts_a_user_only_skill_has_to_ask_the_user() {
    for family in Family::ALL {
        let (fake, mut talk) = conversation(family).await;
        for (tool, arguments) in uses(family, "ship-it") {
            let (code, message) = talk.refused(&tool, arguments.clone()).await;
            assert_eq!(code, "USER_ONLY", "{tool} {arguments}: {message}");
            assert!(message.contains("ask the user"), "{message}");
        }
        let state = fake.state.lock();
        assert!(fake.staged_skills().is_empty() && state.execs.is_empty());
    }
}

#[tokio::test]
async fn an_unknown_name_suggests_no_user_only_skill() {
    for family in Family::ALL {
        let (_fake, mut talk) = conversation(family).await;
        for (tool, arguments) in uses(family, "ship") {
            let (code, message) = talk.refused(&tool, arguments.clone()).await;
            assert_eq!(code, "UNKNOWN_SKILL", "{tool} {arguments}: {message}");
            assert!(message.contains("did you mean ship-up?"), "{message}");
        }
    }
}

#[tokio::test]
async fn a_host_starts_a_user_only_skill_for_the_user() {
    for family in Family::ALL {
        let (fake, mut talk) = conversation(family).await;
        let given = json!(["ship-it"]);
        let preloaded = talk.tools.preload(&talk.session, &talk.state, &given).await;
        talk.state.apply(&preloaded.expect("preloads").delta);
        assert!(prompt(&talk).await.contains("# ship-it 1.0.0"));
        for (tool, arguments) in uses(family, "ship-it") {
            talk.ok(&tool, arguments).await;
        }
        assert!(!fake.state.lock().execs.is_empty());
        // It is the user's until it is unloaded.
        talk.state = SessionState::new();
        let (tool, arguments) = uses(family, "ship-it").remove(0);
        talk.check_refused(&tool, arguments, "USER_ONLY").await;
    }
}

//! A whole agent: offers the skill tools to a model, makes the calls that it asks for, keeps the session's state.
//! The model is a stand-in that follows a script; put a call of yours in its place.
//!
//! ```sh
//! SKILLD_ENDPOINT=unix:.demo/skilld.sock cargo run -p skilld-client --example agent -- "What is the hundredth …?"
//! ```

#![expect(
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "an example says what it does, and indexes JSON, which gives null"
)]

use serde_json::{Value, json};
use skilld_client::state::SessionState;
use skilld_client::tools::host::HostTools;
use skilld_client::tools::{Call, Definition, Options, Session, Toolset};
use skilld_client::{Client, DEFAULT_ENDPOINT};

/// What a model says next.
enum Said {
    Calls(Vec<Call>),
    Answer(String),
}

/// Stands in for a model: lists, loads and runs, then says what came of it.
fn model(tools: &[Definition], messages: &[Value]) -> Said {
    let script = [
        ("skill_list", json!({})),
        ("skill_load", json!({"skill": "python-math"})),
        (
            "skill_run",
            json!({"skill": "python-math", "command": "python scripts/python_math.py fib 100"}),
        ),
    ];
    let results: Vec<&Value> = messages
        .iter()
        .filter(|said| said["role"] == "tool")
        .collect();
    let Some((name, arguments)) = script.get(results.len()) else {
        let last = results
            .last()
            .and_then(|said| said["content"]["stdout"].as_str());
        return Said::Answer(format!("It is {}.", last.unwrap_or("?").trim()));
    };
    assert!(
        tools.iter().any(|tool| tool.name == *name),
        "{name} is not offered"
    );
    Said::Calls(vec![Call {
        id: format!("call_{}", results.len()),
        name: (*name).to_owned(),
        arguments: arguments.clone(),
    }])
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let question = std::env::args().nth(1).ok_or("usage: agent QUESTION")?;
    let endpoint = std::env::vars()
        .find_map(|(name, value)| (name == "SKILLD_ENDPOINT").then_some(value))
        .unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    let tools = Toolset::new(
        Client::connect(&endpoint).await?,
        Options::default(),
        HostTools::new(),
    )?;
    // The workspace is found again by these names; the state is yours to keep.
    let session = Session {
        app: "example".into(),
        user: "ann".into(),
        session: uuid::Uuid::now_v7().to_string(),
        agent: String::new(),
    };
    let mut state = SessionState::new();
    let mut messages = vec![json!({"role": "user", "content": question})];
    let answer = loop {
        let offered = tools.definitions(&session, &state).await?;
        let calls = match model(&offered, &messages) {
            Said::Answer(answer) => break answer,
            Said::Calls(calls) => calls,
        };
        for call in calls {
            let id = call.id.clone();
            println!("{} {}", call.name, call.arguments);
            let content = match tools.call(&session, &state, call).await {
                Ok(answer) => {
                    state.apply(&answer.delta);
                    answer.result
                }
                // The model reads what went wrong, and may do better.
                Err(error) => error.to_json(),
            };
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        }
    };
    println!("{answer}");
    tools.end(&session).await?;
    Ok(())
}

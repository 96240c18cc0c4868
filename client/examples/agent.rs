//! A whole agent: tells a model of skills, offers it the skill tools, makes the calls that it asks for, keeps the session's
//! state. The model is a stand-in that follows a script; put a call of yours in its place.
//!
//! ```sh
//! SKILLD_ENDPOINT=unix:.demo/skilld.sock cargo run -p skilld-client --example agent -- "What is the hundredth …?"
//! ```

#![expect(
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "an example says what it does, and indexes JSON, which gives null"
)]

use std::error::Error;

use serde_json::{Map, Value, json};
use skilld_client::prompt::{Guidance, PromptOptions, Wire, materialise};
use skilld_client::state::SessionState;
use skilld_client::tools::host::HostTools;
use skilld_client::tools::{Call, Options, Profile, Session, Toolset};
use skilld_client::{Client, DEFAULT_ENDPOINT};

/// Stands in for OpenAI's Chat Completions, which `body` is a request of: loads the skill that the prompt lists, reads what
/// it says, runs it, and says what came of it.
fn model(body: &Map<String, Value>) -> Value {
    let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let prompt = messages[0]["content"].as_str().unwrap_or_default();
    let results: Vec<&Value> = messages
        .iter()
        .filter(|said| said["role"] == "tool")
        .collect();
    let run = "python scripts/python_math.py fib 100";
    let (name, arguments) = match results.len() {
        0 if prompt.contains("- python-math: ") => ("skill_load", json!({"skill": "python-math"})),
        1 if prompt.contains(run.trim_end_matches(" 100")) => {
            ("skill_run", json!({"skill": "python-math", "command": run}))
        }
        _ => {
            let last = results.last().and_then(|said| said["content"].as_str());
            let last: Value = serde_json::from_str(last.unwrap_or_default()).unwrap_or_default();
            let answer = last["stdout"].as_str().unwrap_or("?").trim();
            return json!({"role": "assistant", "content": format!("It is {answer}.")});
        }
    };
    json!({"role": "assistant", "content": null, "tool_calls": [{
        "id": format!("call_{}", results.len()), "type": "function",
        "function": {"name": name, "arguments": arguments.to_string()},
    }]})
}

/// The next request: the conversation, and what there is to be told of skills.
async fn request(
    tools: &Toolset,
    session: &Session,
    state: &mut SessionState,
    said: &[Value],
    is_new_turn: bool,
) -> Result<Map<String, Value>, Box<dyn Error>> {
    let messages = Wire::OpenAiChat.read(&json!({"messages": said}))?;
    let ready = match is_new_turn {
        true => tools.begin_turn(session, state, &messages),
        false => tools.before_prompt(session, state, &messages),
    };
    state.apply(&ready.delta);
    let material = tools.material(session, state).await?;
    let options = PromptOptions {
        guidance: Guidance::BuiltIn(tools.family(), Profile::Full),
        ..tools.prompt_options(session)
    };
    let made = materialise(&material, state, &messages, &options);
    let mut body = Map::new();
    Wire::OpenAiChat.write(&made.messages, &mut body);
    let offered = tools.definitions(session, state).await?;
    let offered = offered.iter().map(|tool| {
        json!({"type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": tool.parameters,
        }})
    });
    body.insert("tools".into(), offered.collect());
    state.apply(&tools.after_prompt(session, state, &made.report.shown));
    Ok(body)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let question = std::env::args().nth(1).ok_or("usage: agent QUESTION")?;
    let endpoint = std::env::vars()
        .find_map(|(name, value)| (name == "SKILLD_ENDPOINT").then_some(value))
        .unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    let tools = Toolset::new(
        Client::connect(&endpoint).await?,
        Options::default(),
        HostTools::new(),
    )?;
    // The workspace is found again by these names; the state and the conversation are yours to keep.
    let session = Session {
        app: "example".into(),
        user: "ann".into(),
        session: uuid::Uuid::now_v7().to_string(),
        agent: String::new(),
    };
    let mut state = SessionState::new();
    let mut said = vec![json!({"role": "user", "content": question})];
    let answer = loop {
        let is_new_turn = said.last().is_some_and(|last| last["role"] == "user");
        let body = request(&tools, &session, &mut state, &said, is_new_turn).await?;
        let message = model(&body);
        said.push(message.clone());
        let Some(calls) = message["tool_calls"].as_array() else {
            break message["content"].as_str().unwrap_or_default().to_owned();
        };
        for call in calls {
            let function = &call["function"];
            let name = function["name"].as_str().unwrap_or_default();
            println!(
                "{name} {}",
                function["arguments"].as_str().unwrap_or_default()
            );
            let made = Call {
                id: call["id"].as_str().unwrap_or_default().to_owned(),
                name: name.to_owned(),
                arguments: function["arguments"].clone(),
            };
            let result = match tools.call(&session, &state, made).await {
                Ok(answer) => {
                    state.apply(&answer.delta);
                    answer.result
                }
                // The model reads what went wrong, and may do better.
                Err(error) => error.to_json(),
            };
            let content = result.to_string();
            said.push(json!({"role": "tool", "tool_call_id": call["id"], "content": content}));
        }
    };
    println!("{answer}");
    tools.end(&session).await?;
    Ok(())
}

//! A whole agent. Its model is a script that loads a skill, runs it and says what came of it; call your provider there.
//!
//! ```sh
//! SKILLD_ENDPOINT=unix:.demo/skilld.sock cargo run -p skilld-tools --example agent -- "What is the hundredth …?"
//! ```

#![expect(
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "an example prints, and indexes JSON, which gives null"
)]

use std::error::Error;

use serde_json::{Value, json};
use skilld_tools::Skills;
use skilld_tools::prompt::Provider::OpenAiChat;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let question = std::env::args().nth(1).ok_or("usage: agent QUESTION")?;
    let name = format!("chat-{}", std::process::id());
    let skills = Skills::connect_default().await?.session(&name);
    let mut messages = vec![json!({"role": "user", "content": question})];
    loop {
        let mut body = json!({"model": "script", "messages": messages});
        skills.prepare(OpenAiChat, &mut body).await?;
        let reply = llm(&body);
        messages.push(reply.clone());
        let results = skills.answer(OpenAiChat, &reply).await?;
        if results.is_empty() {
            println!("{}", reply["content"].as_str().unwrap_or_default());
            break;
        }
        messages.extend(results);
    }
    skills.end().await?;
    Ok(())
}

/// Replaces a call of a model API: loads the skill that the prompt lists, runs a command that its text names, and says
/// what the command printed.
fn llm(body: &Value) -> Value {
    let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let prompt = messages[0]["content"].as_str().unwrap_or_default();
    let results: Vec<&Value> = messages
        .iter()
        .filter(|said| said["role"] == "tool")
        .collect();
    let command = "python scripts/python_math.py fib";
    let (name, input) = match results.len() {
        0 if prompt.contains("- python-math: ") => ("skill_load", json!({"skill": "python-math"})),
        1 if prompt.contains(command) => {
            let command = format!("{command} 100");
            (
                "skill_run",
                json!({"skill": "python-math", "command": command}),
            )
        }
        _ => {
            let content = results.last().and_then(|said| said["content"].as_str());
            let result: Value =
                serde_json::from_str(content.unwrap_or_default()).unwrap_or_default();
            let answer = result["stdout"].as_str().unwrap_or("?").trim();
            return json!({"role": "assistant", "content": format!("It is {answer}.")});
        }
    };
    let arguments = input.to_string();
    println!("{name} {arguments}");
    json!({"role": "assistant", "content": null, "tool_calls": [{
        "id": format!("call_{}", results.len()), "type": "function",
        "function": {"name": name, "arguments": arguments},
    }]})
}

//! Token counts of a conversation in which two skills are used, request by request: with skills that are loaded on
//! demand, and with all of them from the start.

use serde_json::{Value, json};
use skilld_tools::prompt::{
    Guidance, PromptBudget, PromptMaterial, PromptOptions, Provider, inject,
};
use skilld_tools::state::{LoadScope, Selection, SessionState, skill_loads};
use skilld_tools::{Family, LoadMode, Profile};
use tiktoken_rs::CoreBPE;

use crate::corpus::Corpus;
use crate::tokens;

const SCOPE: LoadScope<'static> = LoadScope {
    agent: "agent",
    mode: LoadMode::Session,
};
/// Approximate number of tokens that providers add to each message.
const MESSAGE_TOKENS: usize = 4;

/// Documents of skills that the prompts contain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Docs {
    /// No documents.
    None,
    /// First document of each loaded skill, beside all documents of all skills.
    Some,
}

/// Token counts of skilld and of the comparison.
pub(crate) struct Figures {
    /// Sum of all requests of a conversation.
    pub(crate) conversation: (usize, usize),
    /// Last request, in which both skills are loaded.
    pub(crate) last: (usize, usize),
}

/// Returns the mean of all conversations in which a skill is used and then the next one by name.
pub(crate) fn figures(corpus: &Corpus, docs: Docs, tokenizer: &CoreBPE) -> Figures {
    let skills = &corpus.material.loaded;
    let (mut ours, mut beside) = (Vec::new(), Vec::new());
    let everything = everything(corpus, docs);
    for (at, first) in skills.iter().enumerate() {
        let Some(second) = skills.get((at + 1) % skills.len()) else {
            continue;
        };
        let names = [first.name.as_str(), second.name.as_str()];
        ours.push(progressive(corpus, names, docs, tokenizer));
        beside.push(at_once(&everything, names, tokenizer));
    }
    let mean = |of: fn(&Vec<usize>) -> usize, all: &[Vec<usize>]| {
        all.iter().map(of).sum::<usize>() / all.len().max(1)
    };
    let sum = |requests: &Vec<usize>| requests.iter().sum();
    let last = |requests: &Vec<usize>| requests.last().copied().unwrap_or_default();
    Figures {
        conversation: (mean(sum, &ours), mean(sum, &beside)),
        last: (mean(last, &ours), mean(last, &beside)),
    }
}

/// Returns a state with all skills loaded, in which no overview and no guidance is needed.
fn everything(corpus: &Corpus, docs: Docs) -> (PromptMaterial, SessionState) {
    let mut state = SessionState::new();
    let all = (docs == Docs::Some).then_some(&Selection::All);
    for skill in &corpus.material.loaded {
        state.apply(&skill_loads::load(&state, SCOPE, &skill.name, all, None));
    }
    let material = PromptMaterial {
        loaded: corpus.material.loaded.clone(),
        ..PromptMaterial::default()
    };
    (material, state)
}

/// Returns the tokens of each request: ask, (load, run) twice, answer.
fn progressive(corpus: &Corpus, names: [&str; 2], docs: Docs, tokenizer: &CoreBPE) -> Vec<usize> {
    let mut state = SessionState::new();
    let mut history = beginning();
    let mut requests = vec![request(&corpus.material, &state, &history, tokenizer)];
    for name in names {
        let skill = corpus
            .material
            .loaded
            .iter()
            .find(|skill| skill.name == name);
        let doc = skill
            .and_then(|skill| skill.docs.first())
            .filter(|_| docs == Docs::Some);
        let chosen = doc.map(|doc| Selection::these([&doc.path]));
        state.apply(&skill_loads::load(
            &state,
            SCOPE,
            name,
            chosen.as_ref(),
            None,
        ));
        let mut arguments = json!({"skill": name});
        if let (Some(doc), Some(arguments)) = (doc, arguments.as_object_mut()) {
            arguments.insert("docs".into(), json!([doc.path]));
        }
        call(
            &mut history,
            "skill_load",
            &arguments,
            &format!("loaded: {name}"),
        );
        requests.push(request(&corpus.material, &state, &history, tokenizer));
        run(&mut history, name);
        requests.push(request(&corpus.material, &state, &history, tokenizer));
    }
    requests
}

/// Returns the tokens of each request: ask, run, run, with nothing to load.
fn at_once(
    everything: &(PromptMaterial, SessionState),
    names: [&str; 2],
    tokenizer: &CoreBPE,
) -> Vec<usize> {
    let (material, state) = everything;
    let mut history = beginning();
    let mut requests = vec![request(material, state, &history, tokenizer)];
    for name in names {
        run(&mut history, name);
        requests.push(request(material, state, &history, tokenizer));
    }
    requests
}

fn request(
    material: &PromptMaterial,
    state: &SessionState,
    history: &[Value],
    tokenizer: &CoreBPE,
) -> usize {
    let options = PromptOptions {
        guidance: Guidance::BuiltIn(Family::Trpc, Profile::Full),
        // All texts of all skills, whatever their size is.
        budget: PromptBudget {
            content: 0,
            ..PromptBudget::default()
        },
        ..PromptOptions::new(SCOPE)
    };
    let mut body = json!({"messages": history});
    inject(Provider::OpenAiChat, &mut body, material, state, &options).expect("a chat request");
    let messages = body.get("messages").and_then(Value::as_array);
    messages
        .into_iter()
        .flatten()
        .map(|message| count(message, tokenizer))
        .sum()
}

fn count(message: &Value, tokenizer: &CoreBPE) -> usize {
    let text = |value: &Value, pointer: &str| {
        let text = value.pointer(pointer).and_then(Value::as_str);
        tokens(tokenizer, text.unwrap_or_default())
    };
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let call_tokens: usize = calls
        .into_iter()
        .flatten()
        .map(|call| text(call, "/function/name") + text(call, "/function/arguments"))
        .sum();
    MESSAGE_TOKENS + text(message, "/content") + call_tokens
}

fn beginning() -> Vec<Value> {
    vec![
        json!({"role": "system",
            "content": "You are a helpful assistant. Use skills where they fit the task."}),
        json!({"role": "user",
            "content": "Please work on the two files that I sent, one after the other, and sum up what you found."}),
    ]
}

fn run(history: &mut Vec<Value>, name: &str) {
    let arguments = json!({
        "skill": name, "command": "python3 scripts/main.py work/inputs/input.csv -o out/report.md",
        "output_files": ["out/report.md"],
    });
    let result = json!({
        "exit_code": 0, "stdout": "120 rows read, 3 of them left out; see out/report.md\n", "stderr": "",
        "duration_ms": 41, "timed_out": false,
        "output_files": [{"name": "out/report.md", "mime_type": "text/markdown", "size_bytes": 512,
            "ref": "workspace://out/report.md"}],
    });
    call(history, "skill_run", &arguments, &result.to_string());
}

fn call(history: &mut Vec<Value>, tool: &str, arguments: &Value, result: &str) {
    let id = format!("call_{}", history.len());
    history.push(
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": id,
        "type": "function", "function": {"name": tool, "arguments": arguments.to_string()}}]}),
    );
    history.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
}

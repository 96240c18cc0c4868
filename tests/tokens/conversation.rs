//! A conversation in which two skills are used, as a model is sent it: request by request, with skills told of as they
//! are loaded, and with all of them from the start.

use serde_json::json;
use skilld_client::prompt::{
    Guidance, Material, Message, Part, PromptOptions, Role, ToolCall, ToolResult, materialise,
};
use skilld_client::state::{Scope, Selection, SessionState, loading};
use skilld_client::tools::{Family, LoadMode, Profile};
use tiktoken_rs::CoreBPE;

use crate::corpus::Corpus;
use crate::tokens;

const SCOPE: Scope<'static> = Scope {
    agent: "agent",
    mode: LoadMode::Session,
};
/// What providers add to each message, about.
const MESSAGE_TOKENS: usize = 4;

/// Whether docs are told of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Docs {
    /// No.
    None,
    /// All of all skills at once; the first of each skill that is used, where it is loaded.
    Some,
}

/// Ours and what it is compared with.
pub(crate) struct Figures {
    /// All requests of a conversation together.
    pub(crate) conversation: (usize, usize),
    /// Its last request, in which both skills are loaded.
    pub(crate) last: (usize, usize),
}

/// The mean of all conversations in which a skill is used and then the next one by name.
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

/// All skills loaded; no overview of them is needed then, nor guidance on how to load them.
fn everything(corpus: &Corpus, docs: Docs) -> (Material, SessionState) {
    let mut state = SessionState::new();
    let all = (docs == Docs::Some).then_some(&Selection::All);
    for skill in &corpus.material.loaded {
        state.apply(&loading::load(&state, SCOPE, &skill.name, all, None));
    }
    let material = Material {
        overview: Vec::new(),
        loaded: corpus.material.loaded.clone(),
    };
    (material, state)
}

/// Tokens of each request: ask, (load, run) twice, answer.
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
        state.apply(&loading::load(&state, SCOPE, name, chosen.as_ref(), None));
        let mut arguments = json!({"skill": name});
        if let (Some(doc), Some(arguments)) = (doc, arguments.as_object_mut()) {
            arguments.insert("docs".into(), json!([doc.path]));
        }
        call(
            &mut history,
            "skill_load",
            arguments,
            &format!("loaded: {name}"),
        );
        requests.push(request(&corpus.material, &state, &history, tokenizer));
        run(&mut history, name);
        requests.push(request(&corpus.material, &state, &history, tokenizer));
    }
    requests
}

/// Tokens of each request: ask, run, run; nothing has to be loaded.
fn at_once(
    everything: &(Material, SessionState),
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
    material: &Material,
    state: &SessionState,
    history: &[Message],
    tokenizer: &CoreBPE,
) -> usize {
    let options = PromptOptions {
        guidance: Guidance::BuiltIn(Family::Trpc, Profile::Full),
        ..PromptOptions::new(SCOPE)
    };
    let made = materialise(material, state, history, &options);
    made.messages
        .iter()
        .map(|message| count(message, tokenizer))
        .sum()
}

fn count(message: &Message, tokenizer: &CoreBPE) -> usize {
    let parts = message.parts.iter().map(|part| match part {
        Part::Text(text) => tokens(tokenizer, &text.text),
        Part::Call(call) => tokens(tokenizer, &call.name) + tokens(tokenizer, &call.to_text()),
        Part::Result(result) => tokens(tokenizer, &result.to_text()),
        Part::File(_) | Part::Other(..) => 0,
    });
    MESSAGE_TOKENS + parts.sum::<usize>()
}

fn beginning() -> Vec<Message> {
    vec![
        Message::text(
            Role::System,
            "You are a helpful assistant. Use skills where they fit the task.",
        ),
        Message::text(
            Role::User,
            "Please work on the two files that I sent, one after the other, and sum up what you found.",
        ),
    ]
}

fn run(history: &mut Vec<Message>, name: &str) {
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
    call(history, "skill_run", arguments, &result.to_string());
}

fn call(history: &mut Vec<Message>, tool: &str, arguments: serde_json::Value, result: &str) {
    let id = format!("call_{}", history.len());
    history.push(Message::of(
        Role::Assistant,
        vec![Part::Call(ToolCall {
            id: id.clone(),
            name: tool.to_owned(),
            arguments,
            extra: Default::default(),
        })],
    ));
    history.push(Message::of(
        Role::Tool,
        vec![Part::Result(ToolResult {
            id,
            parts: vec![Part::text(result)],
            is_error: false,
            extra: Default::default(),
        })],
    ));
}

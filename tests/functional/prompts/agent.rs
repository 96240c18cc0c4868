//! Host of a model that is a script. Each prompt is rendered for every provider and at both places, from that
//! provider's history; a test's expectation must hold for all of them.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use skilld_client::Client;
use skilld_tools::host_tools::HostTools;
use skilld_tools::prompt::{Placement, PromptOptions, Provider, inject};
use skilld_tools::state::SessionState;
use skilld_tools::{Session, ToolCall, ToolOptions, Toolset};

/// Host with its toolset, its session state and the history.
pub(crate) struct Agent {
    client: Client,
    tools: Toolset,
    session: Session,
    state: SessionState,
    history: Vec<Entry>,
    /// Set while no prompt was rendered since the user spoke.
    is_new_turn: bool,
    calls: u32,
}

/// Entry of the conversation, which each provider writes in its own format.
#[derive(Clone)]
enum Entry {
    Text(&'static str, String),
    /// A call with its id, tool and arguments, and the text of its result.
    Exchange(String, String, Value, String),
}

/// Prompt in the form of every provider.
pub(crate) struct Request {
    bodies: Vec<(Placement, Provider, String)>,
    /// Skills whose texts the prompt contains.
    pub(crate) shown: Vec<String>,
    offered: Vec<String>,
}

impl Request {
    /// Returns `true` if a text is in the prompt. All forms must agree.
    pub(crate) fn shows(&self, text: &str) -> bool {
        let shows = |body: &String| body.contains(text);
        let first = self.bodies.first().is_some_and(|(.., body)| shows(body));
        for (placement, provider, body) in &self.bodies {
            assert_eq!(
                shows(body),
                first,
                "{placement:?} {provider:?} {text}: {body}"
            );
        }
        first
    }
}

impl Agent {
    pub(crate) fn new(client: &Client, options: ToolOptions) -> Result<Self> {
        Ok(Self {
            tools: Toolset::new(client.clone(), options, HostTools::new())?,
            client: client.clone(),
            session: Session {
                app: "tests".into(),
                user: "ann".into(),
                session: "prompts".into(),
                agent: "helper".into(),
            },
            state: SessionState::new(),
            history: vec![Entry::Text("system", "Be brief.".to_owned())],
            is_new_turn: false,
            calls: 0,
        })
    }

    /// Continues in another process with the state as JSON.
    pub(crate) fn restarted(self) -> Result<Self> {
        let state = serde_json::from_str(&serde_json::to_string(&self.state)?)?;
        Ok(Self {
            state,
            history: self.history,
            calls: self.calls,
            session: self.session,
            ..Self::new(&self.client, self.tools.options().clone())?
        })
    }

    /// Adds a message of the user.
    pub(crate) fn user(&mut self, text: &str) {
        self.history.push(Entry::Text("user", text.to_owned()));
        self.is_new_turn = true;
    }

    /// Cuts the history to the messages of the system and the user.
    pub(crate) fn forget(&mut self) {
        self.history
            .retain(|entry| matches!(entry, Entry::Text(..)));
    }

    /// Renders the next prompt.
    pub(crate) async fn prompt(&mut self) -> Result<Request> {
        let (session, chat) = (&self.session, Provider::OpenAiChat);
        let history = body(chat, &self.history);
        let ready = match std::mem::take(&mut self.is_new_turn) {
            true => self.tools.begin_turn(session, &self.state, chat, &history),
            false => self
                .tools
                .before_prompt(session, &self.state, chat, &history),
        };
        self.state.apply(&ready.delta);
        let material = self.tools.material(session, &self.state).await?;
        let (mut bodies, mut shown) = (Vec::new(), Vec::new());
        for placement in [Placement::System, Placement::ToolResults] {
            let options = PromptOptions {
                placement,
                ..self.tools.prompt_options(session)
            };
            for provider in Provider::ALL {
                let make = || -> Result<_> {
                    let mut body = body(provider, &self.history);
                    let report = inject(provider, &mut body, &material, &self.state, &options)?;
                    Ok((body.to_string(), report))
                };
                let (body, report) = make()?;
                ensure!(body == make()?.0, "the same bytes");
                provider.check(&serde_json::from_str(&body)?)?;
                bodies.push((placement, provider, body));
                shown = report.shown;
            }
        }
        let after = self.tools.after_prompt(session, &self.state, &shown);
        let offered = self.tools.definitions(session, &self.state).await?;
        self.state.apply(&after);
        Ok(Request {
            bodies,
            shown,
            offered: offered.into_iter().map(|tool| tool.name).collect(),
        })
    }

    /// Renders the prompt, makes the call that the model answers with, and adds it to the history.
    pub(crate) async fn call(&mut self, name: &str, arguments: Value) -> Result<Value> {
        let request = self.prompt().await?;
        let is_offered = request.offered.iter().any(|offered| offered == name);
        ensure!(is_offered, "{name} is not offered: {:?}", request.offered);
        self.calls += 1;
        let id = format!("call_{}", self.calls);
        let call = ToolCall {
            id: id.clone(),
            name: name.to_owned(),
            arguments: arguments.clone(),
        };
        let answer = self.tools.call(&self.session, &self.state, call).await;
        let answer = answer.with_context(|| format!("{name} {arguments}"))?;
        self.state.apply(&answer.delta);
        let result = answer.result.to_string();
        let entry = Entry::Exchange(id, name.to_owned(), arguments, result);
        self.history.push(entry);
        Ok(answer.result)
    }

    pub(crate) async fn end(self) -> Result<()> {
        Ok(self.tools.end(&self.session).await?)
    }
}

/// The history as a request body of a provider.
fn body(provider: Provider, history: &[Entry]) -> Value {
    let (mut items, mut system) = (Vec::new(), None);
    for entry in history {
        match (provider, entry) {
            (Provider::OpenAiResponses | Provider::Anthropic, Entry::Text("system", text)) => {
                system = Some(text);
            }
            (_, Entry::Text(role, text)) => items.push(json!({"role": role, "content": text})),
            (Provider::OpenAiChat, Entry::Exchange(id, name, arguments, result)) => items.extend([
                json!({"role": "assistant", "content": null, "tool_calls": [{"id": id,
                    "type": "function",
                    "function": {"name": name, "arguments": arguments.to_string()}}]}),
                json!({"role": "tool", "tool_call_id": id, "content": result}),
            ]),
            (Provider::OpenAiResponses, Entry::Exchange(id, name, arguments, result)) => {
                items.extend([
                    json!({"type": "function_call", "call_id": id, "name": name,
                    "arguments": arguments.to_string()}),
                    json!({"type": "function_call_output", "call_id": id, "output": result}),
                ]);
            }
            (Provider::Anthropic, Entry::Exchange(id, name, arguments, result)) => items.extend([
                json!({"role": "assistant", "content": [
                    {"type": "tool_use", "id": id, "name": name, "input": arguments}]}),
                json!({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": id, "content": result}]}),
            ]),
        }
    }
    match provider {
        Provider::OpenAiChat => json!({"messages": items}),
        Provider::OpenAiResponses => json!({"instructions": system, "input": items}),
        Provider::Anthropic => json!({"system": system, "messages": items}),
    }
}

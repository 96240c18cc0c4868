//! A host around a model that is a script. Each prompt is made for every provider and in both places, from the history as
//! that provider's requests have it, and read again; what a test asks of it must hold of all of them.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};
use skilld_client::Client;
use skilld_client::prompt::{
    Extra, Message, Part, Placement, PromptOptions, Role, ToolCall, ToolResult, Wire, materialise,
};
use skilld_client::state::SessionState;
use skilld_client::tools::host::HostTools;
use skilld_client::tools::{Call, Options, Session, Toolset};

/// What a host keeps, and what it works with.
pub(crate) struct Agent {
    client: Client,
    tools: Toolset,
    session: Session,
    state: SessionState,
    history: Vec<Message>,
    /// No prompt was made since the user spoke.
    is_new_turn: bool,
    calls: u32,
}

/// What the model is sent, in every form.
pub(crate) struct Request {
    bodies: Vec<(Placement, Wire, String)>,
    /// Skills whose texts are in it.
    pub(crate) shown: Vec<String>,
    offered: Vec<String>,
}

impl Request {
    /// Whether a text is there. It is in all forms or in none.
    pub(crate) fn shows(&self, text: &str) -> bool {
        let shows = |body: &String| body.contains(text);
        let first = self.bodies.first().is_some_and(|(.., body)| shows(body));
        for (placement, wire, body) in &self.bodies {
            assert_eq!(shows(body), first, "{placement:?} {wire:?} {text}: {body}");
        }
        first
    }
}

impl Agent {
    pub(crate) fn new(client: &Client, options: Options) -> Result<Self> {
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
            history: vec![Message::text(Role::System, "Be brief.")],
            is_new_turn: false,
            calls: 0,
        })
    }

    /// Another process, with what was kept as JSON.
    pub(crate) fn restarted(self) -> Result<Self> {
        let state = serde_json::from_str(&serde_json::to_string(&self.state)?)?;
        let history = through(Wire::OpenAiChat, &self.history)?;
        Ok(Self {
            state,
            history,
            calls: self.calls,
            session: self.session,
            ..Self::new(&self.client, self.tools.options().clone())?
        })
    }

    /// The user speaks.
    pub(crate) fn user(&mut self, text: &str) {
        self.history.push(Message::text(Role::User, text));
        self.is_new_turn = true;
    }

    /// The history is cut to what the system and the user said.
    pub(crate) fn forget(&mut self) {
        let is_said = |message: &Message| matches!(message.role, Role::System | Role::User);
        self.history.retain(is_said);
    }

    /// What the model is sent now.
    pub(crate) async fn prompt(&mut self) -> Result<Request> {
        let (session, history) = (&self.session, &self.history);
        let ready = match std::mem::take(&mut self.is_new_turn) {
            true => self.tools.begin_turn(session, &self.state, history),
            false => self.tools.before_prompt(session, &self.state, history),
        };
        self.state.apply(&ready.delta);
        let material = self.tools.material(session, &self.state).await?;
        let (mut bodies, mut shown) = (Vec::new(), Vec::new());
        for placement in [Placement::System, Placement::ToolResults] {
            let options = PromptOptions {
                placement,
                ..self.tools.prompt_options(session)
            };
            for wire in Wire::ALL {
                let messages = through(wire, history)?;
                let make = || materialise(&material, &self.state, &messages, &options);
                let made = make();
                let body = Value::Object(written(wire, &made.messages)).to_string();
                let again = Value::Object(written(wire, &make().messages)).to_string();
                ensure!(body == again, "the same bytes");
                wire.read(&serde_json::from_str(&body)?)?;
                bodies.push((placement, wire, body));
                shown = made.report.shown;
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

    /// The model reads its prompt and answers with a call, which is made and goes into the history.
    pub(crate) async fn call(&mut self, name: &str, arguments: Value) -> Result<Value> {
        let request = self.prompt().await?;
        let is_offered = request.offered.iter().any(|offered| offered == name);
        ensure!(is_offered, "{name} is not offered: {:?}", request.offered);
        self.calls += 1;
        let id = format!("call_{}", self.calls);
        let call = Call {
            id: id.clone(),
            name: name.to_owned(),
            arguments: arguments.clone(),
        };
        let answer = self.tools.call(&self.session, &self.state, call).await;
        let answer = answer.with_context(|| format!("{name} {arguments}"))?;
        self.state.apply(&answer.delta);
        let call = Part::Call(ToolCall {
            id: id.clone(),
            name: name.to_owned(),
            arguments,
            extra: Extra::default(),
        });
        let result = Part::Result(ToolResult {
            id,
            parts: vec![Part::text(answer.result.to_string())],
            is_error: false,
            extra: Extra::default(),
        });
        self.history.push(Message::of(Role::Assistant, vec![call]));
        self.history.push(Message::of(Role::Tool, vec![result]));
        Ok(answer.result)
    }

    pub(crate) async fn end(self) -> Result<()> {
        Ok(self.tools.end(&self.session).await?)
    }
}

fn written(wire: Wire, messages: &[Message]) -> Map<String, Value> {
    let mut body = Map::new();
    wire.write(messages, &mut body);
    body
}

/// A history as a provider's requests have it.
fn through(wire: Wire, messages: &[Message]) -> Result<Vec<Message>> {
    Ok(wire.read(&Value::Object(written(wire, messages)))?)
}

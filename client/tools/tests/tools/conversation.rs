//! A conversation with tools: calls one after the other, the state kept as a caller keeps it.

use serde_json::{Value, json};
use skilld_tools::hooks::{Hooks, NoHooks};
use skilld_tools::host::HostTools;
use skilld_tools::state::SessionState;
use skilld_tools::{Session, ToolCall, ToolDefinition, ToolOptions, Toolset};

use skilld_testing::Fake;

/// Tools and what is remembered.
pub(crate) struct Conversation {
    pub(crate) tools: Toolset,
    pub(crate) session: Session,
    pub(crate) state: SessionState,
}

impl Conversation {
    pub(crate) async fn new(fake: &Fake, options: ToolOptions) -> Self {
        Self::with(fake, options, HostTools::new(), NoHooks).await
    }

    pub(crate) async fn with(
        fake: &Fake,
        options: ToolOptions,
        host: HostTools,
        hooks: impl Hooks + 'static,
    ) -> Self {
        let client = fake.client().await;
        Self {
            tools: Toolset::with_hooks(client, options, host, hooks).expect("good options"),
            session: Session {
                app: "app".into(),
                user: "ann".into(),
                session: "1".into(),
                agent: String::new(),
            },
            state: SessionState::new(),
        }
    }

    /// Makes a call. Returns what the model gets: a result, or an error as JSON.
    pub(crate) async fn call(&mut self, name: &str, arguments: Value) -> Result<Value, Value> {
        self.call_as("", name, arguments).await
    }

    /// The same with the call's id.
    pub(crate) async fn call_as(
        &mut self,
        id: &str,
        name: &str,
        arguments: Value,
    ) -> Result<Value, Value> {
        let call = ToolCall {
            id: id.into(),
            name: name.into(),
            arguments,
        };
        let answer = self.tools.call(&self.session, &self.state, call).await;
        let answer = answer.map_err(|error| error.to_json())?;
        // As a caller does that keeps its sessions as JSON.
        let delta = serde_json::to_string(&answer.delta).expect("JSON");
        self.state
            .apply(&serde_json::from_str(&delta).expect("a delta"));
        Ok(answer.result)
    }

    /// A call that must succeed.
    pub(crate) async fn ok(&mut self, name: &str, arguments: Value) -> Value {
        let result = self.call(name, arguments.clone()).await;
        result.unwrap_or_else(|error| panic!("{name} {arguments}: {error}"))
    }

    /// A call that must fail: code and message.
    pub(crate) async fn refused(&mut self, name: &str, arguments: Value) -> (String, String) {
        let error = self.call(name, arguments.clone()).await;
        let error = error.expect_err(&format!("{name} {arguments}"));
        let text = |key: &str| {
            error
                .get(key)
                .and_then(Value::as_str)
                .expect("text")
                .to_owned()
        };
        (text("error"), text("message"))
    }

    pub(crate) async fn definitions(&self) -> Vec<ToolDefinition> {
        let definitions = self.tools.definitions(&self.session, &self.state).await;
        definitions.expect("definitions")
    }

    pub(crate) async fn names(&self) -> Vec<String> {
        let definitions = self.definitions().await.into_iter();
        definitions.map(|definition| definition.name).collect()
    }

    /// The state as it is stored.
    pub(crate) fn stored(&self) -> Value {
        serde_json::to_value(&self.state).expect("JSON")
    }
}

/// Tools of a host: each answers with its name and arguments.
pub(crate) fn host(names: &[&'static str]) -> HostTools {
    let mut tools = HostTools::new();
    for name in names.iter().copied() {
        let definition = ToolDefinition {
            name: name.into(),
            description: format!("The host's {name}."),
            parameters: json!({"type": "object"}),
            returns: json!({}),
        };
        tools.register(definition, move |arguments: Value| async move {
            Ok(json!({"host": name, "arguments": arguments}))
        });
    }
    tools
}

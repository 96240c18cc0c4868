//! A conversation with tools: calls one after the other, the state kept as a caller keeps it.

use serde_json::{Value, json};
use skilld_tools::hooks::{Hooks, NoHooks};
use skilld_tools::host_tools::HostTools;
use skilld_tools::state::SessionState;
use skilld_tools::{Family, Session, ToolCall, ToolDefinition, ToolOptions, Toolset};

use skilld_testing::Fake;
use skilld_testing::collection_messages::summary;
use skilld_testing::skills::Kit;

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
                ..Session::default()
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
        let call = tool_call(id, name, arguments);
        let answer = self
            .tools
            .call(&self.session, &self.state, call)
            .await
            .map_err(|error| error.to_json())?;
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
        let error = self
            .call(name, arguments.clone())
            .await
            .expect_err(&format!("{name} {arguments}"));
        let text = |key: &str| {
            error
                .get(key)
                .and_then(Value::as_str)
                .expect("text")
                .to_owned()
        };
        (text("error"), text("message"))
    }

    /// Asserts that a call fails with an error of this code.
    pub(crate) async fn check_refused(&mut self, name: &str, arguments: Value, code: &str) {
        let (found, message) = self.refused(name, arguments.clone()).await;
        assert_eq!(found, code, "{name} {arguments}: {message}");
    }

    /// Asserts that the call of a table fails as the table says. Returns the message.
    pub(crate) async fn check_refusal(&mut self, case: &Refusal<'_>) -> String {
        let (code, message) = self.refused(case.tool, case.arguments.clone()).await;
        assert_eq!(code, case.code, "{}: {message}", case.line);
        assert!(message.contains(case.text), "{}: {message}", case.line);
        message
    }

    /// Loads the current version of a skill with sherma's tool.
    pub(crate) async fn load(&mut self, skill: &str) -> Value {
        self.ok("load_skill_md", json!({"skill_id": skill})).await
    }

    /// Loads a version of a skill with sherma's tool.
    pub(crate) async fn load_version(&mut self, skill: &str, version: impl Into<Value>) -> Value {
        let arguments = json!({"skill_id": skill, "version": version.into()});
        self.ok("load_skill_md", arguments).await
    }

    /// Unloads a skill with sherma's tool.
    pub(crate) async fn unload(&mut self, skill: &str) -> Value {
        self.ok("unload_skill", json!({"skill_id": skill})).await
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

/// Returns options with all tools of a family.
pub(crate) fn all_tools(family: Family) -> ToolOptions {
    ToolOptions {
        family,
        additions: true,
        ..ToolOptions::default()
    }
}

/// Starts a conversation about skills, with a daemon that has these alone and collects no files.
pub(crate) async fn conversation_about(
    kits: Vec<Kit>,
    options: ToolOptions,
) -> (Fake, Conversation) {
    let fake = Fake::start();
    fake.state.lock().kits = kits;
    fake.answer_collections(vec![summary()]);
    let conversation = Conversation::new(&fake, options).await;
    (fake, conversation)
}

/// Returns a call of a tool.
pub(crate) fn tool_call(id: &str, name: &str, arguments: Value) -> ToolCall {
    ToolCall {
        id: id.into(),
        name: name.into(),
        arguments,
    }
}

/// Returns arguments with further ones.
pub(crate) fn with_fields(arguments: &Value, further: &Value) -> Value {
    let mut all = arguments.clone();
    let fields = all.as_object_mut().expect("an object");
    fields.extend(further.as_object().expect("an object").clone());
    all
}

/// Asserts that an object has these fields. A field that is missing counts as `null`.
#[track_caller]
pub(crate) fn check_fields(object: &Value, fields: &Value) {
    for (name, value) in fields.as_object().expect("an object") {
        let found = object.get(name).unwrap_or(&Value::Null);
        assert_eq!(found, value, "{name} of {object}");
    }
}

/// Asserts that the first warning of a result begins with a text.
#[track_caller]
pub(crate) fn check_warning(result: &Value, beginning: &str) {
    let warning = result
        .pointer("/warnings/0")
        .and_then(Value::as_str)
        .expect("a warning");
    assert!(warning.starts_with(beginning), "{warning}");
}

/// Call that must fail: one line of a table.
pub(crate) struct Refusal<'a> {
    /// The line, which names the case when it fails.
    pub(crate) line: &'a str,
    pub(crate) tool: &'a str,
    pub(crate) arguments: Value,
    pub(crate) code: &'a str,
    /// Part of the message.
    pub(crate) text: &'a str,
}

/// Reads a table of calls that must fail, `tool arguments => code part of the message` a line.
pub(crate) fn refusals(table: &str) -> impl Iterator<Item = Refusal<'_>> {
    rows(table).map(|(line, call, error)| {
        let (tool, arguments) = call.split_once(' ').expect("arguments");
        let (code, text) = error.split_once(' ').expect("a message");
        Refusal {
            line,
            tool,
            arguments: parse_json(arguments),
            code,
            text,
        }
    })
}

/// Reads a table of calls, `tool arguments` a line.
pub(crate) fn read_calls(table: &str) -> Vec<(String, Value)> {
    let lines = table.trim().lines().map(str::trim);
    let calls = lines.map(|line| {
        let (tool, arguments) = line.split_once(' ').expect(line);
        (tool.to_owned(), parse_json(arguments))
    });
    calls.collect()
}

/// Reads a table of `arguments => result` lines, both in JSON.
pub(crate) fn results(table: &str) -> impl Iterator<Item = (&str, Value, Value)> {
    rows(table).map(|(line, arguments, result)| (line, parse_json(arguments), parse_json(result)))
}

/// Reads a JSON value of a table.
pub(crate) fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).expect(text)
}

/// Returns the lines of a table, each whole and as its two sides. Lines that begin with `//` are comments.
pub(crate) fn rows(table: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let lines = table.trim().lines().map(str::trim);
    lines.filter(|line| !line.starts_with("//")).map(|line| {
        let (left, right) = line.split_once(" => ").expect(line);
        (line, left, right)
    })
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

//! The trpc family of skill tools: JSON in, JSON out, and what goes to the daemon for it.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value without the key is how a test fails"
)]

mod errors;
mod fields;
mod files;
mod hooks;
mod knowledge;
mod material;
mod mistakes;
mod offer;
mod output_files;
mod policy;
mod run_variables;
mod run_warnings;
mod session_kills;
mod sessions;
mod skill_commands;
mod skill_files;
mod turns;
mod versions;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use skilld_client::v1;
use skilld_tools::host_tools::HostTools;
use skilld_tools::state::SessionState;
use skilld_tools::{Session, ToolError, ToolOptions, Toolset};

use crate::conversation::tool_call;
use crate::schema::fits;
use skilld_testing::Fake;
use skilld_testing::skills::Kit;

/// A conversation with the fake server.
pub(crate) struct Talk {
    pub(crate) fake: Fake,
    pub(crate) tools: Toolset,
    pub(crate) session: Session,
    pub(crate) state: SessionState,
    /// The id of the next call.
    pub(crate) id: String,
    /// Result schemas of the tools, by name.
    returns: BTreeMap<String, Value>,
}

impl Talk {
    pub(crate) async fn new(options: ToolOptions) -> Self {
        Self::with(options, HostTools::new()).await
    }

    /// Starts a conversation with a change of the default options.
    pub(crate) async fn with_options(change: impl FnOnce(&mut ToolOptions)) -> Self {
        let mut options = ToolOptions::default();
        change(&mut options);
        Self::new(options).await
    }

    pub(crate) async fn with(options: ToolOptions, host: HostTools) -> Self {
        let fake = Fake::start();
        let mut demo = Kit::from(skill("demo", &["look", "touch"]));
        for (path, text) in [
            ("SKILL.md", "# demo"),
            ("USAGE.md", "one\ntwo\nthree\n"),
            (".hidden.md", "no"),
            ("references/a.md", "a"),
            ("references/skill.md", "no"),
            ("references/picture.png", "\0"),
            ("scripts/run.sh", "#!/bin/sh"),
            ("assets/logo.svg", "<svg/>"),
        ] {
            demo = demo.file(path, text);
        }
        fake.state.lock().kits = vec![demo, skill("other", &[]).into()];
        fake.answer_collections(vec![summary(v1::CollectSummary::default())]);
        let client = fake.client().await;
        let tools = Toolset::new(client, options, host).expect("options that fit");
        let session = Session {
            app: "app".into(),
            user: "ann".into(),
            session: "1".into(),
            agent: "a".into(),
            ..Session::default()
        };
        let state = SessionState::new();
        let offered = tools
            .definitions(&session, &state)
            .await
            .expect("definitions");
        let returns = offered
            .into_iter()
            .map(|tool| (tool.name, tool.returns))
            .collect();
        fake.calls.take();
        Self {
            fake,
            tools,
            session,
            state,
            id: String::new(),
            returns,
        }
    }

    pub(crate) async fn try_call(
        &mut self,
        name: &str,
        arguments: Value,
    ) -> Result<Value, ToolError> {
        let call = tool_call(&self.id, name, arguments);
        let answer = self.tools.call(&self.session, &self.state, call).await?;
        if let Some(schema) = self.returns.get(name)
            && let Err(error) = fits(&answer.result, schema)
        {
            panic!("{name}: {error}: {}", answer.result);
        }
        self.state.apply(&answer.delta);
        Ok(answer.result)
    }

    pub(crate) async fn call(&mut self, name: &str, arguments: Value) -> Value {
        let made = format!("{name} {arguments}");
        match self.try_call(name, arguments).await {
            Ok(result) => result,
            Err(error) => panic!("{made}: {error}"),
        }
    }

    /// Makes a call that fails. Returns the code and the message of the error.
    pub(crate) async fn refused(&mut self, name: &str, arguments: Value) -> (String, String) {
        let made = format!("{name} {arguments}");
        let before = self.state.clone();
        let error = self
            .try_call(name, arguments)
            .await
            .expect_err(&made)
            .to_json();
        assert_eq!(self.state, before, "an error changes no state");
        assert_eq!(error["status"], "failed");
        let text = |key: &str| error[key].as_str().expect("text").to_owned();
        (text("error"), text("message"))
    }

    /// The specification of the command that was started last.
    pub(crate) fn spec(&self) -> v1::ExecSpec {
        let state = self.fake.state.lock();
        let last = state.execs.values().next_back().expect("a command");
        last.spec.clone()
    }

    /// The calls that an action makes.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.fake.calls.take()
    }

    /// Forgets the commands so far.
    pub(crate) fn forget(&self) {
        self.fake.state.lock().execs.clear();
    }
}

pub(crate) fn skill(name: &str, tools: &[&str]) -> v1::Skill {
    v1::Skill {
        name: format!("skills/{name}"),
        digest: format!("sha256:{}", "0f".repeat(32)),
        description: format!("What {name} does."),
        state: v1::SkillState::Loaded.into(),
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        ..Default::default()
    }
}

pub(crate) fn summary(summary: v1::CollectSummary) -> v1::CollectOutputsResponse {
    payload(v1::collect_outputs_response::Payload::Summary(summary))
}

pub(crate) fn payload(
    payload: v1::collect_outputs_response::Payload,
) -> v1::CollectOutputsResponse {
    v1::CollectOutputsResponse {
        payload: Some(payload),
    }
}

/// A file as it is collected.
pub(crate) fn file(
    path: &str,
    data: &[u8],
    size: i64,
    is_text: bool,
) -> Vec<v1::CollectOutputsResponse> {
    use v1::collect_outputs_response::Payload;
    let file = v1::CollectedFile {
        path: path.into(),
        size_bytes: size,
        mime_type: if is_text {
            "text/plain"
        } else {
            "application/octet-stream"
        }
        .into(),
        is_text,
        ..Default::default()
    };
    let sent = i64::try_from(data.len()).expect("small");
    let end = v1::FileEnd {
        sha256: "5a".repeat(32),
        sent_bytes: sent,
        truncated: sent < size,
        ..Default::default()
    };
    [
        Payload::File(file),
        Payload::Data(data.to_vec().into()),
        Payload::FileEnd(end),
    ]
    .map(payload)
    .into()
}

/// A run of the skill `demo`.
pub(crate) fn run(command: &str) -> Value {
    json!({"skill": "demo", "command": command})
}

//! What the host application decides about the tools; the model has no say in it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::tools::{ToolError, trpc};

/// Which system's tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// `skill_load`, `skill_run`, `skill_exec`, `workspace_exec` and their like.
    #[default]
    Trpc,
    /// `list_skills`, `load_skill_md` and their like; versions, MCP servers, local tools.
    Sherma,
    /// One `skills_tool` with methods.
    AgentZero,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Trpc, Self::Sherma, Self::AgentZero];

    /// As options and command lines write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Trpc => "trpc",
            Self::Sherma => "sherma",
            Self::AgentZero => "agent-zero",
        }
    }
}

/// How much of a family is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Everything.
    #[default]
    Full,
    /// Nothing that runs.
    KnowledgeOnly,
}

/// How long a skill stays loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadMode {
    /// For one prompt.
    Once,
    /// Until the user's next message.
    #[default]
    Turn,
    /// Until it is unloaded or evicted.
    Session,
}

/// Which MCP servers the tools may connect on behalf of a skill's card. A card is somebody else's text: by default it
/// makes this process connect nothing and start nothing, and a skill that names a server is not loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mcp {
    /// Servers by URL: one whose URL has the scheme, host and port of one of these, and its path or one beneath it. The
    /// host's own machine and network are not excepted: what is listed is meant. No redirect is followed.
    pub urls: Vec<String>,
    /// Servers that are programs, by the id or label that cards use: program and arguments.
    pub servers: std::collections::BTreeMap<String, Vec<String>>,
    /// Cards may say by themselves which program to start. It runs on this machine as the host application's user,
    /// outside of any container.
    pub card_commands: bool,
}

/// Decisions of the host. The default is what the family's own system does, where that is safe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Which tools.
    pub family: Family,
    /// How many of them.
    pub profile: Profile,
    /// Only these tools, by name; none for all of the profile.
    pub tools: Option<Vec<String>>,
    /// Only these skills exist for the model, by name; none for all.
    pub skills: Option<Vec<String>>,
    /// The pool of the sessions' workspaces; empty for the default one.
    pub pool: String,
    /// A session's workspace goes when nothing ran for so long; none for the daemon's default.
    #[serde(with = "seconds")]
    pub idle_timeout: Option<Duration>,
    /// Environment of all that runs, beneath what a call gives.
    pub env: std::collections::BTreeMap<String, String>,
    /// How long a skill stays loaded.
    pub load_mode: LoadMode,
    /// Skills loaded at once; 0 for any number.
    pub max_loaded_skills: usize,
    /// Running needs a loaded skill.
    pub require_loaded: bool,
    /// Results of `skill_load` and `skill_select_docs` hold the skill's text: for hosts that do not put it into the prompt
    /// themselves, with [`Toolset::material`](crate::tools::Toolset::material). The other families' results always do.
    pub inline_skills: bool,
    /// Every run saves its outputs as artifacts.
    pub force_save_artifacts: bool,
    /// Programs that may run, and no others; empty for all.
    pub allowed_commands: Vec<String>,
    /// Programs that may not run.
    pub denied_commands: Vec<String>,
    /// Of one run, unless the call says.
    #[serde(with = "seconds")]
    pub timeout: Option<Duration>,
    /// Bytes of stdout, and of stderr, that a result holds.
    pub output_bytes_max: usize,
    /// Bytes of text that a result shows as its main output.
    pub primary_bytes_max: usize,
    /// Only tools of skills that are loaded are offered of the host's.
    pub only_active_skills: bool,
    /// Tools that the family's own system does not have: `list_skill_scripts`, `run_skill_script`, `search_skills`.
    pub additions: bool,
    /// Servers that skills' cards may have connected.
    pub mcp: Mcp,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            family: Family::default(),
            profile: Profile::default(),
            tools: None,
            skills: None,
            pool: String::new(),
            idle_timeout: None,
            env: std::collections::BTreeMap::new(),
            load_mode: LoadMode::default(),
            max_loaded_skills: 0,
            require_loaded: false,
            inline_skills: false,
            force_save_artifacts: false,
            allowed_commands: Vec::new(),
            denied_commands: Vec::new(),
            // The reference's.
            timeout: Some(Duration::from_secs(300)),
            output_bytes_max: 16 * 1024,
            primary_bytes_max: 32 * 1024,
            only_active_skills: true,
            additions: false,
            mcp: Mcp::default(),
        }
    }
}

impl Options {
    /// Says what contradicts itself.
    pub(crate) fn check(&self) -> Result<(), ToolError> {
        if self.output_bytes_max == 0 {
            return Err(ToolError::Options {
                problem: "output_bytes_max is 0, so that no result would show any output".into(),
            });
        }
        self.mcp.check()?;
        match self.family {
            Family::Trpc => trpc::check(self),
            Family::Sherma | Family::AgentZero => Ok(()),
        }
    }

    /// A skill that the model may know of.
    #[must_use]
    pub fn shows(&self, skill: &str) -> bool {
        self.skills
            .as_ref()
            .is_none_or(|shown| shown.iter().any(|name| name == skill))
    }
}

impl Mcp {
    fn check(&self) -> Result<(), ToolError> {
        let options = |problem: String| Err(ToolError::Options { problem });
        for prefix in &self.urls {
            if let Err(error) = url::Url::parse(prefix) {
                return options(format!("mcp.urls has {prefix:?}, which is no URL: {error}"));
            }
        }
        for (id, command) in &self.servers {
            if command.first().is_none_or(String::is_empty) {
                return options(format!("mcp.servers.{id} has no program"));
            }
        }
        Ok(())
    }
}

/// Durations as whole or broken seconds in JSON.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(|value| value.as_secs_f64()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Option::<f64>::deserialize(deserializer)?
            .map(|seconds| Duration::try_from_secs_f64(seconds).map_err(D::Error::custom))
            .transpose()
    }
}

//! What the host application decides about the tools; the model has no say in it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use skilld_proto::v1::{Skill, SkillState};

use crate::state::Scope;
use crate::state::agent_zero::{self as agent_zero_state, LOADED_MAX};
use crate::tools::{ToolError, agent_zero, lookup, sherma, trpc};

/// Bytes of a character at most.
const CHAR_BYTES_MAX: usize = 4;

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
    /// Only these tools, by name in any case; none for all of the profile. An unknown name is an error.
    pub tools: Option<Vec<String>>,
    /// Only these skills exist for the model, by name; none for all.
    pub skills: Option<Vec<String>>,
    /// The pool of the sessions' workspaces; empty for the default one.
    pub pool: String,
    /// A session's workspace goes when nothing ran for so long; none for the daemon's default.
    #[serde(with = "seconds")]
    pub idle_timeout: Option<Duration>,
    /// Environment of each command, beneath what the call gives. A variable that no command can have is left out, and the
    /// result warns of it.
    pub env: std::collections::BTreeMap<String, String>,
    /// How long a skill stays loaded.
    pub load_mode: LoadMode,
    /// Skills loaded at once; 0 for any number, of agent-zero for five. Where a state has more, those that were touched last
    /// count.
    pub max_loaded_skills: usize,
    /// Running needs a loaded skill.
    pub require_loaded: bool,
    /// Results of `skill_load` and `skill_select_docs` hold the skill's text: for hosts that do not put it into the prompt
    /// themselves, with [`Toolset::material`](crate::tools::Toolset::material). The other families' results always do.
    pub inline_skills: bool,
    /// Every run saves its outputs as artifacts.
    pub force_save_artifacts: bool,
    /// Programs that may run, and no others; empty for all. Of sherma and agent-zero, scripts, as `SKILL/PATH`.
    pub allowed_commands: Vec<String>,
    /// Programs that may not run; as above.
    pub denied_commands: Vec<String>,
    /// Variables that a call may set while commands are restricted; none if it is empty. Many programs take what they run
    /// or load from one. `editor_text` needs `EDITOR` and `VISUAL`.
    pub allowed_env: Vec<String>,
    /// Of one run, unless the call says.
    #[serde(with = "seconds")]
    pub timeout: Option<Duration>,
    /// Of a command that goes on as a session, unless the call says; none for the daemon's maximum.
    #[serde(with = "seconds")]
    pub session_timeout: Option<Duration>,
    /// Such a command is ended when it has printed nothing for so long, unless the call gives a timeout; none for never.
    /// A workspace is in use while a command runs in it, so this is what ends one that everybody has forgotten.
    #[serde(with = "seconds")]
    pub session_idle_timeout: Option<Duration>,
    /// Bytes of stdout, and of stderr, that a result holds; at least 4.
    pub output_bytes_max: usize,
    /// Bytes of text that a result shows as its main output, or of a file; of sherma and agent-zero at least 4.
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
            allowed_env: Vec::new(),
            // The reference's.
            timeout: Some(Duration::from_secs(300)),
            session_timeout: None,
            // As long as a workspace lasts in which nothing runs.
            session_idle_timeout: Some(Duration::from_secs(15 * 60)),
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
        let wrong = |problem: String| Err(ToolError::Options { problem });
        if self.output_bytes_max < CHAR_BYTES_MAX {
            return wrong(too_small("output_bytes_max", self.output_bytes_max));
        }
        self.mcp.check()?;
        let tools = match self.family {
            Family::Trpc => trpc::all(),
            Family::Sherma => sherma::all(),
            Family::AgentZero => vec![agent_zero::NAME],
        };
        for name in self.tools.iter().flatten() {
            if !tools.iter().any(|tool| is_name(name, tool)) {
                return wrong(format!("tools: there is no tool {name:?}"));
            }
        }
        match self.family {
            Family::Trpc => return trpc::check(self),
            Family::Sherma => sherma::check(self)?,
            Family::AgentZero => {}
        }
        // Files are read in parts of so many bytes.
        if self.primary_bytes_max < CHAR_BYTES_MAX {
            return wrong(too_small("primary_bytes_max", self.primary_bytes_max));
        }
        self.check_scripts()
    }

    /// What runs in these families is scripts: an entry that is none would permit or deny nothing.
    fn check_scripts(&self) -> Result<(), ToolError> {
        let lists = [
            ("allowed_commands", &self.allowed_commands),
            ("denied_commands", &self.denied_commands),
        ];
        for (key, list) in lists {
            let odd = list.iter().find(|entry| {
                let mut names = entry.split('/');
                let is_plain = names.all(|name| !matches!(name.trim(), "" | "." | ".."));
                !(is_plain && entry.contains('/'))
            });
            if let Some(entry) = odd {
                return Err(ToolError::Options {
                    problem: format!(
                        "{key} has {entry:?}: the family {} runs scripts only, listed as SKILL/PATH",
                        self.family.name()
                    ),
                });
            }
        }
        Ok(())
    }

    /// Whose skills a session's state has, and how long they stay. sherma's and Agent Zero's stay for the session, whatever
    /// the load mode.
    pub(crate) fn scope<'a>(&self, agent: &'a str) -> Scope<'a> {
        match self.family {
            Family::Trpc => Scope::new(agent, self.load_mode),
            Family::Sherma => Scope::new(agent, LoadMode::Session),
            Family::AgentZero => agent_zero_state::scope(agent),
        }
    }

    /// Skills loaded at once in this family; 0 for any number.
    pub(crate) fn loaded_max(&self) -> usize {
        match (self.family, self.max_loaded_skills) {
            (Family::AgentZero, 0) => LOADED_MAX,
            (Family::AgentZero | Family::Trpc | Family::Sherma, max) => max,
        }
    }

    /// A tool that may be offered, as far as `tools` says.
    #[must_use]
    pub fn lists(&self, tool: &str) -> bool {
        let wanted = self.tools.as_ref();
        wanted.is_none_or(|wanted| wanted.iter().any(|name| is_name(name, tool)))
    }

    /// A skill that can be used and that the model may know of.
    #[must_use]
    pub fn offers(&self, skill: &Skill) -> bool {
        let state = skill.state();
        matches!(state, SkillState::Loaded | SkillState::LoadedWithWarnings)
            && self.shows(&lookup::id(skill))
    }

    /// A skill that the model may know of.
    #[must_use]
    pub fn shows(&self, skill: &str) -> bool {
        self.skills
            .as_ref()
            .is_none_or(|shown| shown.iter().any(|name| name == skill))
    }
}

fn is_name(given: &str, name: &str) -> bool {
    given.trim().eq_ignore_ascii_case(name)
}

fn too_small(key: &str, bytes: usize) -> String {
    format!("{key} is {bytes}: a character can have {CHAR_BYTES_MAX} bytes, and none is cut")
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skilld_proto::v1::SkillState;

    use super::*;

    #[test]
    fn options_are_json_with_durations_in_seconds_and_no_unknown_keys() {
        let read = |json| serde_json::from_value::<Options>(json);
        let options = read(json!({
            "family": "agent-zero",
            "profile": "knowledge_only",
            "load_mode": "once",
            "idle_timeout": 1.5,
            "timeout": null,
            "env": {"A": "b"},
            "mcp": {"urls": ["https://a.example"]},
        }))
        .expect("options");
        let wanted = Options {
            family: Family::AgentZero,
            profile: Profile::KnowledgeOnly,
            load_mode: LoadMode::Once,
            idle_timeout: Some(Duration::from_millis(1500)),
            timeout: None,
            env: [("A".to_owned(), "b".to_owned())].into(),
            mcp: Mcp {
                urls: vec!["https://a.example".into()],
                ..Mcp::default()
            },
            ..Options::default()
        };
        assert_eq!(options, wanted);
        let written = serde_json::to_value(&options).expect("JSON");
        assert_eq!(written["idle_timeout"], 1.5);
        assert_eq!(read(written).expect("options"), options);
        assert_eq!(read(json!({})).expect("options"), Options::default());
        for wrong in [
            json!({"famliy": "trpc"}),
            json!({"family": "agent_zero"}),
            json!({"mcp": {"url": []}}),
            json!({"timeout": -1}),
            json!({"timeout": "5s"}),
            json!({"idle_timeout": 1e300}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_skills_that_can_be_used_and_that_the_host_shows_are_offered() {
        let skill = |name: &str, state: SkillState| Skill {
            name: format!("skills/{name}"),
            state: state.into(),
            ..Skill::default()
        };
        let options = Options {
            skills: Some(vec!["a".into()]),
            ..Options::default()
        };
        assert!(options.offers(&skill("a", SkillState::LoadedWithWarnings)));
        assert!(!options.offers(&skill("a", SkillState::Rejected)));
        assert!(!options.offers(&skill("a", SkillState::Shadowed)));
        assert!(!options.offers(&skill("b", SkillState::Loaded)));
    }
}

//! Options of the host application; the model cannot change them.

use std::ffi::OsString;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use skilld_client::short_id;
use skilld_client::v1::{Skill, SkillState};

use crate::result_budget::RESULT_BYTES_MAX;
use crate::state::LoadScope;
use crate::state::agent_zero::{self as agent_zero_state, LOADED_MAX};
use crate::tool_definition::{Family, LoadMode, Profile};
use crate::tool_error::ToolError;

/// Maximum length of a character in bytes.
const CHAR_BYTES_MAX: usize = 4;
/// Variables in which hosts of trpc-agent list the allowed and the denied commands. Each counts where the options leave
/// its list empty.
const COMMAND_VARIABLES: [&str; 2] = [
    "TRPC_AGENT_SKILL_RUN_ALLOWED_COMMANDS",
    "TRPC_AGENT_SKILL_RUN_DENIED_COMMANDS",
];

/// MCP servers that the tools may connect on behalf of a skill's card. A card is third-party text: by default it makes
/// this process connect nothing and start nothing, and a skill that names a server is not loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct McpOptions {
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
pub struct ToolOptions {
    /// Family of the tools.
    pub family: Family,
    /// Selection of the family's tools.
    pub profile: Profile,
    /// Names of the tools to offer, in any case; `None` for all of the profile. An unknown name is an error.
    pub tools: Option<Vec<String>>,
    /// Names of the skills that the model may see; `None` for all.
    pub skills: Option<Vec<String>>,
    /// Pool of the sessions' workspaces; empty for the default one.
    pub pool: String,
    /// Idle time after which a session's workspace is removed; `None` for the daemon's default.
    #[serde(with = "seconds")]
    pub idle_timeout: Option<Duration>,
    /// `true` to stage skills as copies that commands can write, each private to its workspace and counted towards the
    /// workspace's disk; `false` for read-only ones, except in the profile `workspace`.
    pub writable_skills: bool,
    /// Environment of each command, beneath what the call gives. A variable that no command can have is left out, and
    /// the result warns of it.
    pub env: std::collections::BTreeMap<String, String>,
    /// Time that a skill stays loaded.
    pub load_mode: LoadMode,
    /// Maximum number of skills loaded at once; 0 for any number, of agent-zero for five. If a state has more, those
    /// that were used last count.
    pub max_loaded_skills: usize,
    /// `true` if a skill must be loaded before something of it runs.
    pub require_loaded: bool,
    /// Results of `skill_load` and `skill_select_docs` hold the skill's text: for hosts that do not put it into the
    /// prompt themselves, with [`Toolset::material`](crate::Toolset::material). The other families' results always do.
    pub inline_skills: bool,
    /// `true` if every run saves its outputs as artifacts.
    pub force_save_artifacts: bool,
    /// `true` if results of runs name files without their text, unless the call says otherwise.
    pub omit_inline_content: bool,
    /// Programs that may run, and no others; empty for all. For sherma and agent-zero they are scripts, as
    /// `SKILL/PATH`, with the skill's id, its name as it is written or an alias. In the family trpc the variable
    /// `TRPC_AGENT_SKILL_RUN_ALLOWED_COMMANDS` counts if the list is empty: entries between commas or blanks, as
    /// trpc-agent reads it.
    pub allowed_commands: Vec<String>,
    /// Programs that may not run, in the same form; likewise `TRPC_AGENT_SKILL_RUN_DENIED_COMMANDS`.
    pub denied_commands: Vec<String>,
    /// Variables that a call may set while commands are restricted; empty for none. Many programs take from a variable
    /// what they run or load. `editor_text` needs `EDITOR` and `VISUAL`.
    pub allowed_env: Vec<String>,
    /// Time limit of one run, unless the call sets one.
    #[serde(with = "seconds")]
    pub timeout: Option<Duration>,
    /// Time limit of a command that continues as a session, unless the call sets one; `None` for the daemon's maximum.
    #[serde(with = "seconds")]
    pub session_timeout: Option<Duration>,
    /// Time without output after which a command that continues as a session is killed, unless the call sets a time
    /// limit; `None` for never. A running command keeps its workspace in use, so this ends commands that everybody has
    /// forgotten.
    #[serde(with = "seconds")]
    pub session_idle_timeout: Option<Duration>,
    /// Maximum size of stdout, and of stderr, in a result, in bytes: from 4 to 96 KiB, which is the maximum size of a
    /// whole result in bytes of JSON.
    pub output_bytes_max: usize,
    /// Maximum size of the text of one file in a result, in bytes; likewise from 4 to 96 KiB.
    pub primary_bytes_max: usize,
    /// `true` to offer only those tools of the host that loaded skills name.
    pub only_active_skills: bool,
    /// Tools that the family's own system does not have: `list_skill_scripts`, `run_skill_script`, `search_skills`.
    pub additions: bool,
    /// Servers that skills' cards may have connected.
    pub mcp: McpOptions,
}

impl Default for ToolOptions {
    fn default() -> Self {
        Self {
            family: Family::default(),
            profile: Profile::default(),
            tools: None,
            skills: None,
            pool: String::new(),
            idle_timeout: None,
            writable_skills: false,
            env: std::collections::BTreeMap::new(),
            load_mode: LoadMode::default(),
            max_loaded_skills: 0,
            require_loaded: false,
            inline_skills: false,
            force_save_artifacts: false,
            omit_inline_content: false,
            allowed_commands: Vec::new(),
            denied_commands: Vec::new(),
            allowed_env: Vec::new(),
            // trpc-agent-go's, like the two sizes below.
            timeout: Some(Duration::from_secs(300)),
            session_timeout: None,
            // As long as a workspace lasts in which nothing runs.
            session_idle_timeout: Some(Duration::from_secs(15 * 60)),
            output_bytes_max: 16 * 1024,
            primary_bytes_max: 32 * 1024,
            only_active_skills: true,
            additions: false,
            mcp: McpOptions::default(),
        }
    }
}

impl ToolOptions {
    /// Returns the options with what their profile implies, and with the lists of commands that hosts of trpc-agent set
    /// in the environment. `variable` reads one of its variables.
    ///
    /// # Errors
    ///
    /// [`ToolError::Options`] for a list that is not UTF-8: a restriction must not be without effect.
    pub(crate) fn complete(
        mut self,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ToolError> {
        self.writable_skills |= self.profile == Profile::Workspace;
        if self.family != Family::Trpc {
            return Ok(self);
        }
        let lists = [&mut self.allowed_commands, &mut self.denied_commands];
        for (name, list) in COMMAND_VARIABLES.into_iter().zip(lists) {
            let Some(value) = variable(name).filter(|_| list.is_empty()) else {
                continue;
            };
            let text = value.into_string().map_err(|_| ToolError::Options {
                problem: format!("the variable {name} is not UTF-8"),
            })?;
            let entries = text
                .split(|char: char| char == ',' || char.is_whitespace())
                .map(|entry| entry.strip_prefix("./").unwrap_or(entry))
                .filter(|entry| !entry.is_empty());
            list.extend(entries.map(str::to_owned));
        }
        Ok(self)
    }

    /// Checks the limits, the MCP servers and the names of the tools, which are `known` ones of the family.
    pub(crate) fn check(&self, known: &[&str]) -> Result<(), ToolError> {
        let wrong = |problem: String| Err(ToolError::Options { problem });
        for (key, bytes) in [
            ("output_bytes_max", self.output_bytes_max),
            ("primary_bytes_max", self.primary_bytes_max),
        ] {
            if bytes < CHAR_BYTES_MAX {
                return wrong(format!(
                    "{key} is {bytes}: a character can have {CHAR_BYTES_MAX} bytes, and none is cut"
                ));
            }
            if bytes > RESULT_BYTES_MAX {
                return wrong(format!(
                    "{key} is {bytes}: a whole result has at most {RESULT_BYTES_MAX} bytes"
                ));
            }
        }
        if self.profile == Profile::Workspace && self.family != Family::Trpc {
            return wrong("profile: workspace is for the family trpc".to_owned());
        }
        self.mcp.check()?;
        for name in self.tools.iter().flatten() {
            if !known.iter().any(|tool| is_name(name, tool)) {
                return wrong(format!("tools: there is no tool {name:?}"));
            }
        }
        Ok(())
    }

    /// Checks the command lists of sherma and Agent Zero: these families run scripts, so an entry that is no script would
    /// permit or deny nothing.
    pub(crate) fn check_script_family(&self) -> Result<(), ToolError> {
        let lists = [
            ("allowed_commands", &self.allowed_commands),
            ("denied_commands", &self.denied_commands),
        ];
        for (key, list) in lists {
            let odd = list.iter().find(|entry| {
                let mut names = entry.split('/');
                let is_plain = names.all(|name| !matches!(name.trim(), "" | "." | ".."));
                // An entry is for all versions of a skill.
                let (skill, _) = entry.split_once('/').unwrap_or_default();
                !is_plain || skill.is_empty() || skill.contains('@')
            });
            if let Some(entry) = odd {
                return Err(ToolError::Options {
                    problem: format!(
                        "{key} has {entry:?}: the family {} runs scripts only, listed as SKILL/PATH without a version",
                        self.family.name()
                    ),
                });
            }
        }
        Ok(())
    }

    /// Returns the agent and the load mode of a session's state. sherma's and Agent Zero's skills stay for the session,
    /// whatever the load mode.
    pub(crate) fn scope<'a>(&self, agent: &'a str) -> LoadScope<'a> {
        match self.family {
            Family::Trpc => LoadScope::new(agent, self.load_mode),
            Family::Sherma => LoadScope::new(agent, LoadMode::Session),
            Family::AgentZero => agent_zero_state::scope(agent),
        }
    }

    /// Returns the maximum number of skills loaded at once in this family; 0 for any number.
    pub(crate) fn loaded_max(&self) -> usize {
        match (self.family, self.max_loaded_skills) {
            (Family::AgentZero, 0) => LOADED_MAX,
            (Family::AgentZero | Family::Trpc | Family::Sherma, max) => max,
        }
    }

    /// Returns `true` if [`tools`](Self::tools) lists a tool, or is `None`.
    #[must_use]
    pub fn lists(&self, tool: &str) -> bool {
        let wanted = self.tools.as_ref();
        wanted.is_none_or(|wanted| wanted.iter().any(|name| is_name(name, tool)))
    }

    /// Returns `true` if this tool of trpc's for the workspace is offered.
    pub(crate) fn offers_in_workspace(&self, tool: &str) -> bool {
        self.family == Family::Trpc && self.profile != Profile::KnowledgeOnly && self.lists(tool)
    }

    /// Returns `true` if trpc's tool `read_file` is offered.
    pub(crate) fn offers_read_file(&self) -> bool {
        self.offers_in_workspace("read_file")
    }

    /// Returns `true` if a tool is offered that runs something in a workspace.
    #[must_use]
    pub fn runs_commands(&self) -> bool {
        let lists = |tools: &[&str]| tools.iter().any(|tool| self.lists(tool));
        match (self.profile, self.family) {
            (Profile::KnowledgeOnly, _) => false,
            (Profile::Full, Family::Trpc) => lists(&["skill_run", "workspace_exec"]),
            (Profile::Workspace, _) => lists(&["workspace_exec"]),
            (Profile::Full, Family::Sherma) => self.additions && lists(&["run_skill_script"]),
            (Profile::Full, Family::AgentZero) => lists(&["skills_tool"]),
        }
    }

    /// Returns `true` if a skill can be used, and the model may know of it and start it.
    #[must_use]
    pub fn offers(&self, skill: &Skill) -> bool {
        let state = skill.state();
        matches!(state, SkillState::Loaded | SkillState::LoadedWithWarnings)
            && self.shows(&short_id(&skill.name))
            && !skill.disable_model_invocation
    }

    /// Returns `true` if the model may know of a skill.
    #[must_use]
    pub fn shows(&self, skill: &str) -> bool {
        self.skills
            .as_ref()
            .is_none_or(|shown| shown.iter().any(|name| name == skill))
    }
}

/// Returns a variable of this process's environment.
pub(crate) fn environment_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn is_name(given: &str, name: &str) -> bool {
    given.trim().eq_ignore_ascii_case(name)
}

impl McpOptions {
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
    use skilld_client::v1::SkillState;

    use super::*;

    #[test]
    fn options_read_durations_as_seconds_and_refuse_unknown_keys() {
        let read = |json| serde_json::from_value::<ToolOptions>(json);
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
        let wanted = ToolOptions {
            family: Family::AgentZero,
            profile: Profile::KnowledgeOnly,
            load_mode: LoadMode::Once,
            idle_timeout: Some(Duration::from_millis(1500)),
            timeout: None,
            env: [("A".to_owned(), "b".to_owned())].into(),
            mcp: McpOptions {
                urls: vec!["https://a.example".into()],
                ..McpOptions::default()
            },
            ..ToolOptions::default()
        };
        assert_eq!(options, wanted);
        let written = serde_json::to_value(&options).expect("JSON");
        assert_eq!(written["idle_timeout"], 1.5);
        assert_eq!(read(written).expect("options"), options);
        assert_eq!(read(json!({})).expect("options"), ToolOptions::default());
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
    fn trpc_agent_command_lists_fill_options_that_have_none() {
        let complete = |options: ToolOptions| {
            let variable = |name: &str| match name {
                "TRPC_AGENT_SKILL_RUN_ALLOWED_COMMANDS" => Some(" ./bin/x, ls\tcat ".into()),
                _ => Some("rm,".into()),
            };
            options.complete(variable).expect("UTF-8")
        };
        let own = complete(ToolOptions::default());
        assert_eq!(own.allowed_commands, ["bin/x", "ls", "cat"]);
        assert_eq!(own.denied_commands, ["rm"]);
        let given = complete(ToolOptions {
            allowed_commands: vec!["wc".into()],
            ..ToolOptions::default()
        });
        assert_eq!(given.allowed_commands, ["wc"]);
        assert_eq!(given.denied_commands, ["rm"]);
        let other = complete(ToolOptions {
            family: Family::Sherma,
            ..ToolOptions::default()
        });
        assert!(other.allowed_commands.is_empty() && other.denied_commands.is_empty());
    }

    #[test]
    fn the_profile_workspace_makes_skills_writable_for_trpc_only() {
        let workspace = |family| ToolOptions {
            family,
            profile: Profile::Workspace,
            ..ToolOptions::default()
        };
        let trpc = workspace(Family::Trpc).complete(|_| None).expect("no list");
        assert!(trpc.writable_skills && trpc.check(&[]).is_ok());
        for family in [Family::Sherma, Family::AgentZero] {
            assert!(workspace(family).check(&[]).is_err(), "{family:?}");
        }
    }

    #[test]
    fn only_usable_skills_that_the_host_shows_are_offered() {
        let skill = |name: &str, state: SkillState| Skill {
            name: format!("skills/{name}"),
            state: state.into(),
            ..Skill::default()
        };
        let options = ToolOptions {
            skills: Some(vec!["a".into()]),
            ..ToolOptions::default()
        };
        assert!(options.offers(&skill("a", SkillState::LoadedWithWarnings)));
        assert!(!options.offers(&skill("a", SkillState::Rejected)));
        assert!(!options.offers(&skill("a", SkillState::Shadowed)));
        assert!(!options.offers(&skill("b", SkillState::Loaded)));
        let user_only = Skill {
            disable_model_invocation: true,
            ..skill("a", SkillState::Loaded)
        };
        assert!(!options.offers(&user_only));
    }
}

//! Why a call gave no result, in words for a model and in a code for programs.

use serde_json::{Value, json};

use crate::Error;

/// Why a call gave no result. What a program did is no error: a run that fails has a result.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The options contradict each other. Of the host, never of a call.
    #[error("options: {problem}")]
    Options {
        /// What is wrong.
        problem: String,
    },
    /// No tool of that name is offered.
    #[error("unknown tool: {name}; there are {}", known.join(", "))]
    UnknownTool {
        /// As called.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The arguments cannot be used.
    #[error("invalid args: {problem}")]
    InvalidArguments {
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// No skill of that name, or none that this agent may see.
    #[error("unknown skill: {skill}{}", nearest(nearest_names))]
    UnknownSkill {
        /// As asked for.
        skill: String,
        /// Skills with names like it.
        nearest_names: Vec<String>,
    },
    /// The skill must be loaded first.
    #[error("{tool} requires {} first for {skill:?}", loader(tool))]
    NotLoaded {
        /// The tool that was called.
        tool: &'static str,
        /// The skill.
        skill: String,
    },
    /// No running or recent command of that id in this session.
    #[error("unknown session_id: {id}")]
    UnknownExec {
        /// As asked for.
        id: String,
    },
    /// The command is there and takes nothing more.
    #[error("session is not running: {id}: {problem}")]
    ExecNotRunning {
        /// As asked for.
        id: String,
        /// It has ended, or its stdin is closed.
        problem: &'static str,
    },
    /// Another call of this session had the same id: it ran something else, or so long ago that it is forgotten.
    #[error(
        "the call id {id:?} was used before in this session: for another command, or for one that is no longer known"
    )]
    CallIdTaken {
        /// The call's.
        id: String,
    },
    /// The workspace went away while a command ran in it. How that ended nobody knows; a call again makes a new one.
    #[error("the workspace was lost while the command ran; its files are gone")]
    WorkspaceLost,
    /// The file has no text that could be shown.
    #[error("not a UTF-8 text file: {path} ({mime_type})")]
    NotText {
        /// As asked for.
        path: String,
        /// What it is instead.
        mime_type: String,
    },
    /// The host does not let this program run.
    #[error("{tool}: {problem}")]
    CommandRefused {
        /// The tool that was called.
        tool: &'static str,
        /// Which rule, and what it is about.
        problem: String,
    },
    /// No file of that name.
    #[error("file not found: {path}{}", nearest(nearest_names))]
    FileNotFound {
        /// As asked for.
        path: String,
        /// Files with names like it.
        nearest_names: Vec<String>,
    },
    /// The skill is there and cannot be used.
    #[error("skill {skill} cannot be used: {problem}")]
    SkillUnusable {
        /// The skill.
        skill: String,
        /// Why.
        problem: String,
    },
    /// More than one skill may be meant.
    #[error("{name} may be any of {}: use one of these names", candidates.join(", "))]
    AmbiguousSkill {
        /// As asked for.
        name: String,
        /// What it may be.
        candidates: Vec<String>,
    },
    /// Nothing runs a script of this kind.
    #[error("unsupported script type: {path}: {problem}")]
    UnsupportedScript {
        /// As asked for.
        path: String,
        /// What is missing.
        problem: String,
    },
    /// A skill needs something of the host that the host does not have.
    #[error("skill {skill} needs {what}")]
    HostLacks {
        /// The skill.
        skill: String,
        /// What, and what it is good for.
        what: String,
    },
    /// Two skills, or a skill and these tools, have a tool of one name.
    #[error("the tool {tool} of {} is also one of {}: unload that first", owners.0, owners.1)]
    ToolTaken {
        /// The tool.
        tool: String,
        /// Who would bring it, and who has it.
        owners: (String, String),
    },
    /// An MCP server may not be connected, cannot be reached, or does what its protocol does not allow.
    #[error("MCP server {server}: {problem}")]
    Mcp {
        /// As the skill's card names it.
        server: String,
        /// What is wrong.
        problem: String,
    },
    /// A hook of the host refused.
    #[error("{problem}")]
    Hook {
        /// In its own words.
        problem: String,
    },
    /// A tool of the host, or of an MCP server, failed.
    #[error("{tool}: {problem}")]
    Host {
        /// The tool.
        tool: String,
        /// In its own words.
        problem: String,
    },
    /// The daemon refused, or could not be reached.
    #[error(transparent)]
    Daemon(#[from] Error),
}

impl ToolError {
    /// A stable word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Options { .. } => "INVALID_OPTIONS",
            Self::UnknownTool { .. } => "UNKNOWN_TOOL",
            Self::InvalidArguments { .. } => "INVALID_ARGUMENTS",
            Self::UnknownSkill { .. } => "UNKNOWN_SKILL",
            Self::NotLoaded { .. } => "NOT_LOADED",
            Self::UnknownExec { .. } => "UNKNOWN_SESSION",
            Self::ExecNotRunning { .. } => "SESSION_NOT_RUNNING",
            Self::CallIdTaken { .. } => "CALL_ID_TAKEN",
            Self::WorkspaceLost => "WORKSPACE_LOST",
            Self::NotText { .. } => "NOT_TEXT",
            Self::CommandRefused { .. } => "COMMAND_REFUSED",
            Self::FileNotFound { .. } => "FILE_NOT_FOUND",
            Self::SkillUnusable { .. } => "SKILL_UNUSABLE",
            Self::AmbiguousSkill { .. } => "AMBIGUOUS_SKILL",
            Self::UnsupportedScript { .. } => "UNSUPPORTED_SCRIPT",
            Self::HostLacks { .. } => "HOST_LACKS",
            Self::ToolTaken { .. } => "TOOL_TAKEN",
            Self::Mcp { .. } => "MCP_FAILED",
            Self::Hook { .. } => "REFUSED_BY_HOST",
            Self::Host { .. } => "TOOL_FAILED",
            Self::Daemon(_) => "DAEMON",
        }
    }

    /// What the model is given in place of a result.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut error = json!({
            "error": self.code(),
            "message": self.to_string(),
            "status": "failed",
        });
        if let Self::Daemon(daemon) = self
            && let (Some(reason), Some(error)) = (daemon.reason(), error.as_object_mut())
        {
            error.insert("reason".into(), reason.as_str_name().into());
        }
        error
    }

    /// There is no such skill, or none that can be used: no fault of the daemon or of the way to it.
    pub(crate) fn is_of_skill(&self) -> bool {
        matches!(
            self,
            Self::UnknownSkill { .. } | Self::SkillUnusable { .. } | Self::InvalidArguments { .. }
        )
    }

    pub(crate) fn arguments(problem: impl Into<String>) -> Self {
        Self::InvalidArguments {
            problem: problem.into(),
        }
    }
}

/// What loads a skill, where this is what needs it.
fn loader(tool: &str) -> &'static str {
    match tool {
        "run_skill_script" => "load_skill_md",
        "skills_tool" => "the method load",
        _ => "skill_load",
    }
}

fn nearest(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!("; did you mean {}?", names.join(" or "))
}

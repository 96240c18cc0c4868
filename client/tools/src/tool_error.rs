//! Errors of tool calls, in words for a model and with a code for programs.

use serde_json::{Value, json};

use skilld_client::Error;
use skilld_client::v1::ErrorReason;

use crate::prompt::MalformedRequest;
use crate::secret_mask::SecretMask;

/// Maximum size of a message for a model, in bytes.
const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// Result of a step of a tool call.
pub(crate) type ToolResult<T> = Result<T, ToolError>;

/// Error of a tool call. A program that fails is no error: its run has a result.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The host's options contradict each other. No call returns this.
    #[error("options: {problem}")]
    Options {
        /// Description of the fault.
        problem: String,
    },
    /// No tool of that name is offered.
    #[error("unknown tool: {name}; there are {}", known.join(", "))]
    UnknownTool {
        /// Name that was called.
        name: String,
        /// Names of the offered tools.
        known: Vec<String>,
    },
    /// The arguments cannot be used.
    #[error("invalid args: {problem}")]
    InvalidArguments {
        /// Description of the fault and of what would be right.
        problem: String,
    },
    /// An argument is longer than a command can be given.
    #[error("invalid args: {argument}: {bytes} bytes; at most {bytes_max}: {way_out}")]
    ArgumentTooLong {
        /// Name of the argument.
        argument: String,
        /// Size of the argument in bytes.
        bytes: usize,
        /// Maximum size in bytes.
        bytes_max: usize,
        /// Other ways to give the text to the command.
        way_out: String,
    },
    /// No skill of that name, or none that this agent may see.
    #[error("unknown skill: {skill}{}", nearest(nearest_names))]
    UnknownSkill {
        /// Name as the call gave it.
        skill: String,
        /// Skills with names like it.
        nearest_names: Vec<String>,
    },
    /// The call needs the skill to be loaded first.
    #[error("{tool} requires {} first for {skill:?}", loader(tool))]
    NotLoaded {
        /// Name of the tool that was called.
        tool: &'static str,
        /// Name of the skill.
        skill: String,
    },
    /// No running or recent command of that id in this session.
    #[error("unknown session_id: {id}")]
    UnknownExec {
        /// Name as the call gave it.
        id: String,
    },
    /// The command exists and takes no more input.
    #[error("session is not running: {id}: {problem}")]
    ExecNotRunning {
        /// Name as the call gave it.
        id: String,
        /// Reason: it has ended, or its stdin is closed.
        problem: &'static str,
    },
    /// An earlier call of this session had the same id and ran something else, or so long ago that the daemon forgot
    /// it.
    #[error(
        "the call id {id:?} was used before in this session: for another command, or for one that is no longer known"
    )]
    CallIdTaken {
        /// Id of the call.
        id: String,
    },
    /// The workspace was lost while a command ran in it, so the outcome of the command is unknown. Another call makes a
    /// new workspace.
    #[error("the workspace was lost while the command ran; its files are gone")]
    WorkspaceLost,
    /// The file is not text.
    #[error("not a text file: {path} ({mime_type}); commands can read it")]
    NotText {
        /// Name as the call gave it.
        path: String,
        /// Media type of the file.
        mime_type: String,
    },
    /// The host's policy refuses this program.
    #[error("{tool}: {problem}")]
    CommandRefused {
        /// Name of the tool that was called.
        tool: &'static str,
        /// Rule that refused the program.
        problem: String,
    },
    /// No such file.
    #[error("file not found: {path}{}", nearest(nearest_names))]
    FileNotFound {
        /// Name as the call gave it.
        path: String,
        /// Files with names like it.
        nearest_names: Vec<String>,
    },
    /// The skill exists and cannot be used.
    #[error("skill {skill} cannot be used: {problem}")]
    SkillUnusable {
        /// Name of the skill.
        skill: String,
        /// Reason.
        problem: String,
    },
    /// Only the user may start the skill: its front matter has `disable-model-invocation`.
    #[error("only the user may start the skill {skill}: ask the user to start it")]
    UserOnly {
        /// Name of the skill.
        skill: String,
    },
    /// The name may mean more than one skill.
    #[error("{name} may be any of {}: use one of these names", candidates.join(", "))]
    AmbiguousSkill {
        /// Name as the call gave it.
        name: String,
        /// Names that it may mean.
        candidates: Vec<String>,
    },
    /// No interpreter is known for this kind of script.
    #[error("unsupported script type: {path}: {problem}")]
    UnsupportedScript {
        /// Name as the call gave it.
        path: String,
        /// Missing interpreter.
        problem: String,
    },
    /// A skill needs something that the host does not provide.
    #[error("skill {skill} needs {what}")]
    HostLacks {
        /// Name of the skill.
        skill: String,
        /// Missing thing and its purpose.
        what: String,
    },
    /// Two skills, or a skill and these tools, have a tool of one name.
    #[error("the tool {tool} of {} is also one of {}: unload that first", owners.0, owners.1)]
    ToolTaken {
        /// Name of the tool.
        tool: String,
        /// Skill that would bring the tool, and its present owner.
        owners: (String, String),
    },
    /// An MCP server may not be connected, cannot be reached, or does what its protocol does not allow.
    #[error("MCP server {server}: {problem}")]
    Mcp {
        /// Name of the server in the skill's card.
        server: String,
        /// Description of the fault.
        problem: String,
    },
    /// A hook of the host refused.
    #[error("{problem}")]
    Hook {
        /// Message of the host or the server.
        problem: String,
    },
    /// A tool of the host, or of an MCP server, failed.
    #[error("{tool}: {problem}")]
    Host {
        /// Name of the tool.
        tool: String,
        /// Message of the host or the server.
        problem: String,
    },
    /// The daemon refused, or could not be reached.
    #[error(transparent)]
    Daemon(#[from] Error),
    /// An error of another kind, whose text had values that the host's hook gave to runs.
    #[error("{message}")]
    Masked {
        /// Code of the error.
        code: &'static str,
        /// Reason that the daemon gave; `None` if the error is not the daemon's.
        reason: Option<ErrorReason>,
        /// Text of the error with `***` in place of the values.
        message: String,
    },
    /// The request body or the reply is not in the provider's format.
    #[error("malformed request: {0}")]
    Request(#[from] MalformedRequest),
}

impl ToolError {
    /// Returns a stable code for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Options { .. } => "INVALID_OPTIONS",
            Self::UnknownTool { .. } => "UNKNOWN_TOOL",
            Self::InvalidArguments { .. } | Self::ArgumentTooLong { .. } => "INVALID_ARGUMENTS",
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
            Self::UserOnly { .. } => "USER_ONLY",
            Self::AmbiguousSkill { .. } => "AMBIGUOUS_SKILL",
            Self::UnsupportedScript { .. } => "UNSUPPORTED_SCRIPT",
            Self::HostLacks { .. } => "HOST_LACKS",
            Self::ToolTaken { .. } => "TOOL_TAKEN",
            Self::Mcp { .. } => "MCP_FAILED",
            Self::Hook { .. } => "REFUSED_BY_HOST",
            Self::Host { .. } => "TOOL_FAILED",
            Self::Daemon(_) => "DAEMON",
            Self::Masked { code, .. } => code,
            Self::Request(_) => "MALFORMED_REQUEST",
        }
    }

    /// Returns the error as JSON, which the model gets in place of a result. A long message is cut: it may repeat an
    /// argument.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut error = json!({
            "error": self.code(),
            "message": cut_message(self.to_string(), MESSAGE_BYTES_MAX),
            "status": "failed",
        });
        if let (Some(reason), Some(error)) = (self.reason(), error.as_object_mut()) {
            error.insert("reason".into(), reason.error_info_name().into());
        }
        error
    }

    /// Masks secrets in the text of the error, which keeps its code and its reason.
    pub(crate) fn masked(self, mask: &SecretMask) -> Self {
        let text = self.to_string();
        let mut message = text.clone();
        mask.mask_text(&mut message);
        if message == text {
            return self;
        }
        Self::Masked {
            code: self.code(),
            reason: self.reason(),
            message,
        }
    }

    /// Returns the reason that the daemon gave; `None` for an error that is not the daemon's.
    fn reason(&self) -> Option<ErrorReason> {
        if let Self::Daemon(daemon) = self {
            daemon.reason()
        } else if let Self::Masked { reason, .. } = self {
            *reason
        } else {
            None
        }
    }

    /// Returns `true` if the skill is missing or cannot be used; `false` for faults of the daemon or the connection.
    pub(crate) fn is_of_skill(&self) -> bool {
        matches!(
            self,
            Self::UnknownSkill { .. }
                | Self::SkillUnusable { .. }
                | Self::UserOnly { .. }
                | Self::InvalidArguments { .. }
        )
    }

    pub(crate) fn arguments(problem: impl Into<String>) -> Self {
        Self::InvalidArguments {
            problem: problem.into(),
        }
    }
}

/// Cuts a message at `bytes_max`.
pub(crate) fn cut_message(mut message: String, bytes_max: usize) -> String {
    if message.len() > bytes_max {
        message.truncate(message.floor_char_boundary(bytes_max));
        message.push_str("… (cut)");
    }
    message
}

/// Returns the name of the tool that loads a skill for `tool`.
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

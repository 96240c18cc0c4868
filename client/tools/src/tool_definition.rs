//! Vocabulary of all other modules: tool families and their profiles, definitions and calls of tools. Depends on
//! nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Definition of a tool for a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// Name of the tool.
    pub name: String,
    /// Description of its effect and of when to use it.
    pub description: String,
    /// JSON Schema of the arguments, an object.
    pub parameters: Value,
    /// JSON Schema of the result.
    pub returns: Value,
}

/// Call of a tool by a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Id that the model gave it, unique in the session; a call repeated with the same id runs nothing twice. Empty for
    /// none.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments from the model: an object, or a string that holds one.
    pub arguments: Value,
}

/// Family of skill tools, named as the agent system whose tools they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// `skill_load`, `skill_run`, `skill_exec`, `workspace_exec` and their like.
    #[default]
    Trpc,
    /// `list_skills`, `load_skill_md` and their like; versions, MCP servers, local tools.
    Sherma,
    /// Agent Zero's one tool `skills_tool`, with methods.
    AgentZero,
}

impl Family {
    /// Families in a fixed order.
    pub const ALL: [Self; 3] = [Self::Trpc, Self::Sherma, Self::AgentZero];

    /// Returns the name that options and command lines use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Trpc => "trpc",
            Self::Sherma => "sherma",
            Self::AgentZero => "agent-zero",
        }
    }
}

/// Selection of a family's tools. Each profile has the tools of the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Offers only tools that run nothing.
    KnowledgeOnly,
    /// Offers commands in the workspace, where loaded skills are copies that commands can write, and no tool that runs a
    /// skill's command. Only for the family trpc; the default of trpc-agent-go since April 2026.
    Workspace,
    /// Offers all tools.
    #[default]
    Full,
}

/// Time that a skill stays loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadMode {
    /// Lasts for one prompt.
    Once,
    /// The turn: to the user's next message.
    #[default]
    Turn,
    /// The session, unless it is unloaded or evicted.
    Session,
}

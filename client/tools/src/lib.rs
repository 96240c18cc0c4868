//! Skill tools for LLM agents on top of [`skilld_client`]: each tool has a name, a description, JSON Schemas and a call from
//! JSON to JSON, so that any framework can offer them to its model. The daemon runs every command and reads every file; this
//! crate holds wording, JSON and session state.
//!
//! [`Skills`] is all that an agent with a simple loop needs. [`Toolset`], [`state`] and [`prompt`] are its parts:
//!
//! ```text
//! caller ── definitions(session, state) ──► tools to offer the model
//!        ── call(session, state, call) ───► Answer { result for the model, delta of the state }
//! ```
//!
//! Layers, each of which uses only those before it: `tool` (families, definitions, calls), [`state`] and [`prompt`], `session`,
//! `error` and `options`, [`host`] and [`hooks`], `mcp` and `workspaces`, `context`, the shared core (`lookup`, `material`,
//! `scripts`, `exec_run`, `tool_row` and their like), the families `trpc`, `sherma` and `agent_zero`, `toolset` with
//! `prompt_state` and `cancel`, and `skills`.

mod agent_zero;
pub mod arguments;
mod cancel;
mod command_output;
mod context;
mod environment;
mod error;
mod exec_run;
pub mod hooks;
pub mod host;
pub mod host_tools;
mod lookup;
mod material;
mod mcp;
mod options;
mod output_collection;
pub mod prompt;
mod prompt_state;
mod proto_json;
mod scripts;
mod session;
mod sherma;
mod skill_tag;
mod skills;
pub mod state;
mod tool;
mod tool_row;
mod toolset;
mod trpc;
mod uploads;
mod workspace_path;
mod workspaces;

pub use cancel::CancelOutcome;
pub use context::ToolAnswer;
pub use error::ToolError;
pub use options::{McpOptions, ToolOptions};
pub use session::Session;
pub use sherma::{PreloadOutcome, SkippedPreload};
pub use skills::{SkillSession, Skills};
pub use tool::{Family, LoadMode, Profile, ToolCall, ToolDefinition};
pub use toolset::Toolset;
pub use uploads::{StagedUpload, StagedUploads};

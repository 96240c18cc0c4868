//! Skill tools for LLM agents on top of [`skilld_client`]. Each tool has a name, a description, JSON Schemas and a call
//! from JSON to JSON, so that any framework can offer them to its model. The daemon runs every command and reads every
//! file; this crate holds wording, JSON and session state.
//!
//! [`Skills`] is all that an agent with a simple loop needs. [`Toolset`], [`state`] and [`prompt`] are its parts:
//!
//! ```text
//! caller ── definitions(session, state) ──► tools to offer the model
//!        ── call(session, state, call) ───► Answer { result for the model, delta of the state }
//! ```
//!
//! Layers, each of which uses only those before it: `tool_definition` (families, definitions, calls),
//! `staged_uploads`, [`state`] and [`prompt`], `session`, `secret_mask`, `tool_error` and `tool_options`,
//! [`host_tools`] and [`hooks`], `mcp_client` and `workspaces`, `call_context`, the shared core (`skill_lookup`,
//! `skill_staging`, `prompt_material_reader`, `exec_run`, `run_outcome`, `script_run`, `builtin_tool` and their like),
//! the families `trpc`, `sherma` and `agent_zero`, `toolset` with `prompt_lifecycle`, `preload` and
//! `call_cancellation`, and `skills`.

mod agent_zero;
pub mod arguments;
mod builtin_tool;
mod call_cancellation;
mod call_context;
mod command_limits;
mod exec_run;
pub mod hooks;
mod host_environment;
pub mod host_tool_offer;
pub mod host_tools;
mod mcp_client;
mod output_buffer;
mod output_collection;
mod package_warnings;
mod preload;
pub mod prompt;
mod prompt_lifecycle;
mod prompt_material_reader;
mod proto_json;
mod result_budget;
mod run_outcome;
mod run_secrets;
mod run_variables;
mod run_warnings;
mod script_run;
mod secret_mask;
mod session;
mod sherma;
mod skill_file_path;
mod skill_list_page;
mod skill_lookup;
mod skill_staging;
mod skill_text_tag;
mod skills;
mod staged_uploads;
pub mod state;
mod terminal_output;
mod tool_definition;
mod tool_error;
mod tool_options;
mod toolset;
mod trpc;
mod workspace_path;
mod workspaces;

pub use call_cancellation::CancelOutcome;
pub use call_context::ToolAnswer;
pub use preload::PreloadOutcome;
pub use run_warnings::lacks_room;
pub use session::Session;
pub use skills::{SkillSession, Skills};
pub use staged_uploads::{StagedUpload, StagedUploads};
pub use tool_definition::{Family, LoadMode, Profile, ToolCall, ToolDefinition};
pub use tool_error::ToolError;
pub use tool_options::{McpOptions, ToolOptions};
pub use toolset::Toolset;
pub use workspace_path::relative_to_workspace;

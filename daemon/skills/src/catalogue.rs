//! The catalogue: all skills of all sources as one immutable snapshot, made by one task, and what is answered from it.

pub(crate) mod catalogue_assembly;
pub mod catalogue_snapshot;
pub(crate) mod catalogue_task;
mod document_reader;
mod environment_need_reader;
mod folder_precedence;
mod folder_watcher;
mod ingest_progress;
mod name_suggestions;
pub(crate) mod plugin_library;
pub mod preflight;
pub(crate) mod publisher;
pub mod search;
pub mod skill;
pub(crate) mod skill_library;
pub mod skill_material;
pub(crate) mod source_ingest;
pub(crate) mod source_scan_result;
pub(crate) mod source_scanner;

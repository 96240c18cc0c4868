//! Skill text for a model: inserted into a provider's request body from a session's state and what the skills say.
//! Pure: the caller has read the skills and sends the request; the same state and the same skills give the same bytes,
//! so that a provider's prompt cache stays warm.
//!
//! ```text
//! request body ── inject(provider, material, state, options) ──► the same body with skill text
//! ```
//!
//! In reading order: `provider` (formats of model APIs), `message_content` (editing texts in place), `prompt_material`
//! (input and report of an injection), `skill_overview`, `user_files` and `skill_blocks` (its wording), `prompt_budget`
//! (sharing too little room), `untrusted_text` (what skills must not do to a prompt), `inject` (where the text goes),
//! [`skill_load_history`] (which skills earlier messages loaded), `skill_text_removal` (removing the text of an
//! unloaded skill), `file_part` and `found_uploads` (files that a conversation brought).

mod file_part;
mod found_uploads;
mod guidance;
mod inject;
mod message_content;
mod prompt_budget;
mod prompt_material;
mod provider;
mod skill_blocks;
pub mod skill_load_history;
mod skill_overview;
mod skill_text_removal;
#[cfg(test)]
mod tests;
pub(crate) mod untrusted_text;
mod user_files;

pub use found_uploads::{FoundUploads, Upload, UploadContent, find_uploads};
pub use guidance::{Guidance, built_in};
pub use inject::{Placement, PromptOptions, inject};
pub(crate) use message_content::for_each_text;
pub use prompt_budget::{PromptBudget, TextMeasure};
pub use prompt_material::{
    CutText, InjectionReport, LoadedContent, PromptMaterial, SkillDoc, SkillSummary, UnknownDoc,
};
pub use provider::{MalformedRequest, Provider};
pub use skill_blocks::loaded_text;
pub(crate) use skill_blocks::{describe_whole, loaded_text_within};
pub use skill_text_removal::remove_skill_text;
pub use untrusted_text::{clean, is_hidden};

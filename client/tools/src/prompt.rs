//! Skill text for a model: inserted into a provider's request body from a session's state and what the skills say. Pure:
//! the caller has read the skills and sends the request; the same state and the same skills give the same bytes, so that a
//! provider's prompt cache stays warm.
//!
//! ```text
//! request body ── inject(provider, material, state, options) ──► the same body with skill text
//! ```
//!
//! In reading order: `provider` (formats of model APIs), `content` (editing texts in place), `material` (input and report of
//! an injection), `overview` and `blocks` (its wording), `budget` (sharing too little room), `clean` (what skills must not
//! do to a prompt), `inject` (where the text goes), [`history`] (which skills earlier messages loaded), `removal` (removing
//! the text of an unloaded skill), `file_part` and `uploads` (files that a conversation brought).

mod blocks;
mod budget;
pub(crate) mod clean;
mod content;
mod file_part;
mod guidance;
pub mod history;
mod inject;
mod material;
mod overview;
mod provider;
mod removal;
#[cfg(test)]
mod tests;
mod uploads;

pub use blocks::loaded_text;
pub use budget::{PromptBudget, TextMeasure};
pub use clean::clean;
pub use guidance::{Guidance, built_in};
pub use inject::{Placement, PromptOptions, inject};
pub use material::{
    CutText, Injection, LoadedContent, PromptMaterial, SkillDoc, SkillSummary, UnknownDoc,
};
pub use provider::{MalformedRequest, Provider};
pub use removal::remove_skill_text;
pub use uploads::{FoundUploads, Upload, UploadContent, find_uploads};

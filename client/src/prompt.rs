//! What a model is told of skills: messages made of a session's state and of what the skills say. Pure: who calls has
//! read the skills and sends the messages; the same state and the same skills give the same bytes, so that a provider's
//! prompt cache stays warm.
//!
//! ```text
//! request ── Wire::read ──► messages ── materialise(material, state, …) ──► messages ── Wire::write ──► request
//! ```
//!
//! In reading order: `message` (messages as no provider writes them), `openai_chat`, `openai_responses`, `anthropic`
//! (the providers' formats), `portable` (what one provider is given of another's messages), `material` (what is there to
//! be told), `overview` and `blocks` (its wording), `budget` (what gives way when there is too little room), `clean`
//! (what skills must not do to a prompt), `place` (where it goes), [`history`] (what earlier messages say of skills),
//! `unloaded` (dropping what they say of one), `uploads` (files that a conversation brought).

mod anthropic;
mod blocks;
mod budget;
pub(crate) mod clean;
mod guidance;
pub mod history;
mod json;
mod material;
mod message;
mod openai_chat;
mod openai_responses;
mod overview;
mod place;
mod portable;
#[cfg(test)]
mod tests;
mod unloaded;
mod uploads;

pub use blocks::loaded_text;
pub use budget::{Budget, Counter};
pub use clean::clean;
pub use guidance::{Guidance, built_in};
pub use material::{Cut, Doc, Loaded, Material, Report, Summary, UnknownDoc};
pub use message::{
    Extra, File, FileKind, FileSource, Malformed, Message, Part, Role, Text, ToolCall, ToolResult,
    Wire,
};
pub use place::{Materialised, Placement, PromptOptions, materialise};
pub use unloaded::without_skill;
pub use uploads::{Upload, UploadContent, Uploads, uploads};

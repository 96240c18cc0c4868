//! Skills of skilld: where they come from, what they say about themselves, and how they get into a workspace.
//!
//! ```text
//! parse/      pure: bytes of SKILL.md and skill-card.json → document, card, problems
//! sources/    local directories, URLs, published archives; each yields folders of skills
//! store/      content-addressed copies, verified and leased; staging copies them into a slot
//! catalogue/  one task scans the sources, ingests each changed folder into the store, publishes a snapshot
//! service.rs  every question about skills, answered from the latest snapshot and the store
//! ```
//!
//! A room uses those above it: the catalogue uses sources, store and parse; sources use store and parse. Nothing here
//! opens a path that a workspace can write. A scan begins at most 0.9 s after inotify reported a change of a folder, at
//! an interval of at least two seconds, and at once after RefreshSkills; the next listing has what it found.

pub mod catalogue;
pub mod error;
pub mod fault;
pub mod fetch;
pub mod interpreter;
pub mod mime;
pub mod openat2;
pub mod options;
pub mod parse;
pub mod placeholders;
mod service;
pub mod similar;
pub mod skill_path;
pub mod sources;
pub mod store;
pub mod tasks;
#[cfg(test)]
#[path = "../../tests/support/dir.rs"]
mod test_dir;

pub use catalogue::search::SearchMatch;
pub use catalogue::skill::{PageCursor, Skill, SkillState};
pub use catalogue::snapshot::Catalogue;
pub use catalogue::{preflight, search};
pub use error::{Error, Result};
pub use options::{RemoteOptions, SkillRoot, SkillsOptions};
pub use parse::card::{self, Card};
pub use parse::document::{self, Document};
pub use parse::finding::{self, Profile};
pub use parse::front_matter::{self, FrontMatter, Requires};
pub use parse::problem::{Problem, Severity};
pub use parse::reference::{SkillRef, VersionRef, is_digest, is_name};
pub use parse::version::{self, Specifier};
pub use service::{Listing, Skills};
pub use sources::archive;
pub use sources::published::VersionSelector;
pub use store::content::Content;
pub use store::stage::StagedSkill;
pub use store::{StoreCollection, files};
pub use tasks::Tasks;

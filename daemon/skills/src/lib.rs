//! Skills of skilld: where they come from, what they say about themselves, and how they get into a workspace.
//!
//! ```text
//! parse/             pure: bytes of SKILL.md and skill-card.json → document, card, problems
//! sources/           local directories, URLs, published archives; each yields folders of skills
//! content_store/     content-addressed copies, verified and leased; staging copies them into a slot
//! environments/      what a skill's packages are built from, and the store of what was built
//! catalogue/         one task scans the sources, ingests each changed folder into the store, publishes a snapshot
//! skills_service.rs  every question about skills, answered from the latest snapshot and the store
//! held_bytes.rs      how many bytes count for what is held on disk
//! ```
//!
//! A room uses those above it: the catalogue uses sources, store and parse; sources use store and parse. Nothing here
//! opens a path that a workspace can write. While no scan runs, one begins at most 0.9 s after inotify reported a
//! change of a folder, at an interval of at least two seconds, and at once after RefreshSkills; the next listing has
//! what it found.

pub mod catalogue;
pub mod content_store;
pub mod environments;
pub mod error;
pub mod fault;
pub mod fetch;
pub mod held_bytes;
pub mod interpreter;
pub mod name_similarity;
pub mod openat2;
pub mod parse;
pub mod placeholders;
pub mod skill_path;
mod skill_scope;
pub mod skills_options;
mod skills_service;
pub mod sources;
pub mod task_spawner;
mod tenant_permits;

pub use catalogue::catalogue_snapshot::Catalogue;
pub use catalogue::search::SearchMatch;
pub use catalogue::skill::{PageCursor, Skill, SkillState};
pub use catalogue::skill_material::{DOCUMENTS_MAX, DocumentChoice, SkillDocument, SkillMaterial};
pub use catalogue::{preflight, search};
pub use content_store::content_hashing::ContentSummary;
pub use content_store::staged_skill::{
    PluginFiles, StagedSkill, StagingEffect, WritableStaging, has_replaced_versions,
    measure_staged_bytes,
};
pub use content_store::{StoreCleanup, skill_files};
pub use error::{Error, Result};
pub use parse::added_packages::{ADDED_PACKAGES_MAX, AddedPackages};
pub use parse::document::{self, Document};
pub use parse::environment_need::{
    ENVIRONMENT_WARNING, EnvironmentNeed, InferredRequirement, NodeProject,
};
pub use parse::finding::{self, ValidationProfile};
pub use parse::front_matter::{self, FrontMatter, Requires};
pub use parse::problem::{Problem, Severity};
pub use parse::skill_card::{self, SkillCard};
pub use parse::skill_name::is_name;
pub use parse::skill_ref::{SkillRef, VersionRef, is_digest, requested_id, staged_folder};
pub use parse::version::{self, Specifier};
pub use skill_scope::SkillScope;
pub use skills_options::{ArchiveBounds, RemoteOptions, SkillRoot, SkillsOptions};
pub use skills_service::{LeasedSkills, Listing, Skills};
pub use sources::archive;
pub use sources::plugin_root::PluginRoot;
pub use sources::published_skills::VersionSelector;
pub use task_spawner::TaskSpawner;
pub use tenant_permits::{DAEMON_HOLDER, TenantPermit, TenantPermits};

//! Pure parsing: bytes of a skill's documents become a document, a card, and a list of problems. No I/O.

pub mod added_packages;
pub mod document;
pub(crate) mod environment_need;
pub mod finding;
pub mod front_matter;
pub(crate) mod npm_specifier;
pub mod problem;
pub(crate) mod requirement_line;
pub mod skill_card;
pub mod skill_name;
pub mod skill_ref;
pub mod version;

//! Environments: the Python and Node.js packages that a skill needs beyond its image. They are built once for each need
//! and image, kept in a store, and mounted read-only into every workspace that stages the skill.
//!
//! ```text
//! files of a skill ─► catalogue/environment_need_reader.rs: packages to install, checked
//!                     daemon: installs them in a container of the image
//! tar of the build ─► environment_store.rs: unpacked, recorded, found again by need and image
//! ```

pub mod environment_record;
pub mod environment_store;
pub(crate) mod remembered_packages;

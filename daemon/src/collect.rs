//! Collected files that are kept as artifacts: those of a CollectOutputs (`save.rs`), and those of an exec that ended,
//! without anyone asking (`exit.rs`). The guest finds and reads the files; the artifact store keeps them.

pub mod exit;
mod save;

pub use save::{SaveAs, save};

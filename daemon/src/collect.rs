//! Saves the files of CollectOutputs as artifacts (`collection_saver.rs`). The guest finds and reads the files; the
//! artifact store keeps them.

mod collection_saver;

use crate::error::Error;
pub use collection_saver::{SaveAs, save_collected_files};

/// Error of a CollectOutputs that saves artifacts and that the daemon's stop ends.
pub const STOPPED: Error = Error::Stopped {
    doing: "saving the collected files",
};

/// Mark of an answer whose stream saves artifacts before it reports them. The call layer reads it from the extensions
/// of the response.
#[derive(Debug, Clone, Copy)]
pub struct SavesArtifacts;

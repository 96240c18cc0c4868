//! Saves the files of CollectOutputs as artifacts (`collection_saver.rs`). The guest finds and reads the files; the
//! artifact store keeps them.

mod collection_saver;

use skilld_proto::v1 as pb;

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

/// Returns `true` if an exec ended by a timeout or with anything but exit code 0.
pub fn is_failed(exec: &pb::Exec) -> bool {
    let result = exec.result.as_ref();
    result.is_some_and(|result| !result.success)
}

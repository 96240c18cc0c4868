//! Saves collected files as artifacts: those of CollectOutputs (`save.rs`), and those that an exec leaves at its end
//! (`on_exit.rs`, `job.rs`). The guest finds and reads the files; the artifact store keeps them.

mod job;
pub mod on_exit;
mod save;

use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_result::{Outcome, Reason};

pub use save::{SaveAs, save_collected_files};

/// Returns `true` if an exec ended by a timeout or with anything but exit code 0.
#[must_use]
pub fn is_failed(exec: &pb::Exec) -> bool {
    exec.result.as_ref().is_some_and(|result| {
        let timed_out = matches!(result.reason(), Reason::Timeout | Reason::NoOutputTimeout);
        timed_out || result.outcome != Some(Outcome::ExitCode(0))
    })
}

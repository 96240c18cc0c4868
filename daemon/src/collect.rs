//! Collected files that are kept as artifacts: those of a CollectOutputs (`save.rs`), and those of an exec that ended,
//! without anyone asking (`exit.rs`). The guest finds and reads the files; the artifact store keeps them.

pub mod exit;
mod save;

use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_result::{Outcome, Reason};

pub use save::{SaveAs, save};

/// Returns `true` if an exec has ended with something else than exit code 0.
#[must_use]
pub fn failed(exec: &pb::Exec) -> bool {
    exec.result.as_ref().is_some_and(|result| {
        let timed_out = matches!(result.reason(), Reason::Timeout | Reason::NoOutputTimeout);
        timed_out || result.outcome != Some(Outcome::ExitCode(0))
    })
}

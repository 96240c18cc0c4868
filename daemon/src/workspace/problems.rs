//! What an operator should look at of slots, found out when it is asked for.

use std::time::SystemTime;

use crate::workspace::lease::from_unix_ms;
use crate::workspace::record::Phase;
use crate::workspace::registry::Registry;
use crate::workspace::slot;
use crate::workspace::state::State;

/// Something that an operator should look at.
#[derive(Debug, Clone)]
pub struct HostProblem {
    /// Stable, for programs.
    pub code: &'static str,
    /// Name of the container or path of the directory.
    pub subject: String,
    /// What is wrong and what to do.
    pub message: String,
    /// When it began, or when it was found.
    pub time: SystemTime,
}

/// Everything that an operator should look at.
#[expect(clippy::unused_async, reason = "the state disk is looked at as well, which waits")]
pub async fn find_all(registry: &Registry) -> Vec<HostProblem> {
    quarantined(registry)
}

/// Containers that the engine could not remove in time.
pub fn quarantined(registry: &Registry) -> Vec<HostProblem> {
    let context = registry.context();
    let limit = context.config.engine.remove_timeout;
    let mut problems = Vec::new();
    for slot in registry.slots() {
        let view = slot.view();
        let Phase::Quarantined { time_ms } = view.record.phase else {
            continue;
        };
        if view.state != State::Quarantined {
            continue;
        }
        let (number, uid) = (slot.number(), view.record.uid);
        let name = slot::container_name(context, number);
        let message = format!(
            "Docker did not remove {name} within {limit:?}: slot {number} and uid {uid} are not used again before it is gone, \
             and it counts in its pool's `max`; skilld goes on trying; if `docker rm -f {name}` hangs as well, restart \
             Docker, or the host"
        );
        problems.push(HostProblem {
            code: "container.quarantined",
            subject: name,
            message,
            time: from_unix_ms(time_ms),
        });
    }
    problems
}

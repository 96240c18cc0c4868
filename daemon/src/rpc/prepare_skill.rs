//! PrepareSkill: builds the environment of a skill and streams what the build writes.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use skilld_proto::v1 as pb;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::SharedDependencies;
use super::convert::environment::{line_message, prepared_message};
use crate::environments::{BUILD_FAILED, BuildEvent, EnvironmentRequest};
use crate::error::Result;
use crate::pool::Pool;
use crate::skills::{Problem, SkillRef};

/// Builds the environment of a skill unless it exists. Returns the messages of the answer.
pub(super) async fn prepare_skill(
    shared: &SharedDependencies,
    skill: SkillRef,
    pool: &Arc<Pool>,
) -> Result<BoxStream<'static, Result<pb::PrepareSkillResponse>>> {
    let skill = shared.skills.environment_need(skill).await?;
    let request = EnvironmentRequest {
        skill: skill.name,
        need: skill.environment_need,
        pool: Arc::clone(pool),
        image: pool.require_image()?.clone(),
    };
    let only = |message| stream::once(std::future::ready(Ok(message))).boxed();
    if request.need.is_empty() {
        return Ok(only(prepared_message(None, &[])));
    }
    Ok(match shared.environments.prepare(&request) {
        Err(problems) => only(prepared_message(None, &problems)),
        Ok(events) => stream::unfold(Some(events), next_message).boxed(),
    })
}

/// Returns the next message of a build, and its receiver unless the message is the last.
async fn next_message(
    events: Option<broadcast::Receiver<BuildEvent>>,
) -> Option<(
    Result<pb::PrepareSkillResponse>,
    Option<broadcast::Receiver<BuildEvent>>,
)> {
    let mut events = events?;
    let ended = match events.recv().await {
        Ok(BuildEvent::Line(line)) => return Some((Ok(line_message(line)), Some(events))),
        Err(RecvError::Lagged(lines)) => {
            let line = format!("({lines} lines are left out)");
            return Some((Ok(line_message(line)), Some(events)));
        }
        Ok(BuildEvent::Ended(ended)) => ended,
        Err(RecvError::Closed) => {
            let why = "the build ended without a result";
            Err(Problem::error(BUILD_FAILED, why))
        }
    };
    let message = match ended {
        Ok(record) => prepared_message(Some(&record), &[]),
        Err(problem) => prepared_message(None, &[problem]),
    };
    Some((Ok(message), None))
}

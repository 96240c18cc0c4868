//! PrepareSkill: builds the environment of a skill and streams what the build writes.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use skilld_proto::v1 as pb;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::SharedDependencies;
use super::convert::environment::{line_message, prepared_message};
use crate::access::TenantName;
use crate::environments::{
    AwaitedEnvironment, BuildEvent, EnvironmentRequest, LOST_BUILD, build_problem,
    environment_remarks,
};
use crate::error::Result;
use crate::pool::Pool;
use crate::skills::environments::environment_record::EnvironmentRecord;
use crate::skills::{AddedPackages, SkillRef, Skills};

/// Build that a client follows.
struct FollowedBuild {
    shared: SharedDependencies,
    request: EnvironmentRequest,
    added: AddedPackages,
    events: broadcast::Receiver<BuildEvent>,
}

/// Builds the environment of a skill for a tenant, unless it exists or the client `rebuilds` it. Returns the messages of
/// the answer.
pub(super) async fn prepare_skill(
    shared: &SharedDependencies,
    (tenant, skills): (&TenantName, &Skills),
    skill: SkillRef,
    pool: &Arc<Pool>,
    rebuilds: bool,
) -> Result<BoxStream<'static, Result<pb::PrepareSkillResponse>>> {
    let skill = skills.environment_need(skill).await?;
    let added = skill.added_packages.clone();
    let request = EnvironmentRequest::for_pool(tenant, skill, pool)?;
    let only = |message| stream::once(std::future::ready(Ok(message))).boxed();
    if request.need.is_empty() {
        let problems = request.need_problems();
        return Ok(only(prepared_message(None, &problems, &added)));
    }
    Ok(
        match shared.environments.prepare(&request, rebuilds).await {
            Err(problems) => only(prepared_message(None, &problems, &added)),
            Ok(AwaitedEnvironment::Built(record)) => {
                only(built_message(shared, (&request, &added), &record).await)
            }
            Ok(AwaitedEnvironment::Building(events)) => {
                let build = FollowedBuild {
                    shared: Arc::clone(shared),
                    request,
                    added,
                    events,
                };
                stream::unfold(Some(build), next_message).boxed()
            }
        },
    )
}

/// Returns the next message of a build, and the build unless the message is the last.
async fn next_message(
    build: Option<FollowedBuild>,
) -> Option<(Result<pb::PrepareSkillResponse>, Option<FollowedBuild>)> {
    let mut build = build?;
    let ended = match build.events.recv().await {
        Ok(BuildEvent::Line(line)) => return Some((Ok(line_message(line)), Some(build))),
        Err(RecvError::Lagged(lines)) => {
            let line = format!("({lines} lines are left out)");
            return Some((Ok(line_message(line)), Some(build)));
        }
        Ok(BuildEvent::Ended(ended)) => ended,
        Err(RecvError::Closed) => Err(LOST_BUILD.to_owned()),
    };
    let (request, added) = (&build.request, &build.added);
    let message = match ended {
        Ok(record) => built_message(&build.shared, (request, added), &record).await,
        Err(reason) => {
            let mut problems = request.need_problems();
            problems.push(build_problem(&request.skill, &reason));
            prepared_message(None, &problems, added)
        }
    };
    Some((Ok(message), None))
}

/// Returns the last message of a preparation whose environment exists. The build marked it as prepared too, but could only
/// log a failure.
async fn built_message(
    shared: &SharedDependencies,
    (request, added): (&EnvironmentRequest, &AddedPackages),
    record: &EnvironmentRecord,
) -> pb::PrepareSkillResponse {
    let environments = &shared.environments;
    let marked = environments.mark_prepared(record, &request.skill).await;
    let mut problems = environment_remarks(request, record);
    problems.extend(marked.err());
    prepared_message(Some(record), &problems, added)
}

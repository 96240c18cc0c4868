//! Builds of needs that were partly inferred from a skill's text. What was inferred never breaks what is certain: a build
//! that fails is repeated without it, once.

use std::sync::Arc;

use tokio::sync::broadcast;

use super::build::{run_build, send_line};
use super::build_failure::BuildFailure;
use super::{BuildEvent, EnvironmentBuilder, EnvironmentRequest};
use crate::skills::environments::environment_record::{EnvironmentKey, EnvironmentRecord};

/// Builds an environment and installs it in the store, without the inferred packages if it cannot be built with them.
pub(super) async fn build_need(
    builder: &EnvironmentBuilder,
    key: &EnvironmentKey,
    request: &EnvironmentRequest,
    events: &broadcast::Sender<BuildEvent>,
) -> Result<Arc<EnvironmentRecord>, BuildFailure> {
    let failure = match run_build(builder, key, (request, ""), events).await {
        Ok(record) => return Ok(record),
        Err(failure) => failure,
    };
    let Some(certain) = &request.need.certain else {
        return Err(failure);
    };
    let note = format!(
        "packages that were inferred from the skill's text are left out, because the environment could not be built with \
         them: {}",
        failure.reason()
    );
    send_line(events, &note);
    let request = EnvironmentRequest {
        need: Arc::clone(certain),
        ..request.clone()
    };
    run_build(builder, key, (&request, &note), events).await
}

//! Builds of needs that were partly inferred from a skill's text. What was inferred never breaks what is certain: a build
//! that cannot succeed is repeated without it, once. After a failure that may pass, the next try has all packages.

use std::sync::Arc;

use tokio::sync::broadcast;

use super::build::{run_build, send_line};
use super::build_failure::BuildFailure;
use super::environment_problems::LEFT_OUT;
use super::{BuildEvent, EnvironmentBuilder, EnvironmentRequest};
use crate::skills::EnvironmentNeed;
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
    let Some(certain) = reduced_need(&request.need, &failure) else {
        return Err(failure);
    };
    let note = format!(
        "{LEFT_OUT}packages that were inferred from the skill's text, because the environment could not be built with \
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

/// Returns the need with which a failed build is repeated. The environment is kept for the whole need, so an index that
/// does not answer for a moment must not leave packages out for good.
fn reduced_need<'a>(
    need: &'a EnvironmentNeed,
    failure: &BuildFailure,
) -> Option<&'a Arc<EnvironmentNeed>> {
    match failure {
        BuildFailure::Permanent(_) => need.certain.as_ref(),
        BuildFailure::Transient(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fails_again_is_built_without_inferred_packages() {
        let certain = Arc::new(EnvironmentNeed::default());
        let mut need = EnvironmentNeed::default();
        let permanent = BuildFailure::Permanent(String::new());
        let transient = BuildFailure::Transient(String::new());
        assert_eq!(reduced_need(&need, &permanent), None);
        need.certain = Some(Arc::clone(&certain));
        assert_eq!(reduced_need(&need, &permanent), Some(&certain));
        assert_eq!(reduced_need(&need, &transient), None);
    }
}

//! Packages that a skill names and that its commands would not find, for GetSkill. Builds nothing.

use std::sync::Arc;
use std::time::Duration;

use skilld_proto::v1 as pb;

use super::SharedDependencies;
use super::convert::skill::problem_messages;
use crate::access::TenantName;
use crate::environments::EnvironmentRequest;
use crate::error::{Chain, Result};
use crate::pool::Pool;
use crate::skills::preflight::{self, ImageInventory, NeedKind};
use crate::skills::{Severity, SkillRef, Skills};

/// Longest wait for a container of an image that was not examined before. A skill is read without it.
const INVENTORY_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the packages that commands of a usable skill would not find; `None` if none are known to be missing.
///
/// # Errors
/// `SkillNotFound`, `SkillInvalid`, `Io`.
pub(super) async fn find_missing_packages(
    shared: &SharedDependencies,
    (tenant, skills): (&TenantName, &Skills),
    skill: SkillRef,
    pool: &Arc<Pool>,
) -> Result<Option<pb::MissingPackages>> {
    let needing = skills.environment_need(skill.clone()).await?;
    let Ok(request) = EnvironmentRequest::for_pool(tenant, needing, pool) else {
        return Ok(None);
    };
    let problems = shared.environments.staging_problems(&request).await;
    if problems.is_empty() {
        return Ok(None);
    }
    let names = match find_image_inventory(shared, pool).await {
        Some(inventory) => Some(find_unmet_packages(skills, skill, &inventory).await?),
        None => None,
    };
    // A requirement that was refused is not among the names, so that the image may lack it all the same.
    let is_met = names.as_ref().is_some_and(Vec::is_empty) && request.need.problems.is_empty();
    Ok((!is_met).then(|| pb::MissingPackages {
        names: names.unwrap_or_default(),
        problems: problem_messages(&problems),
    }))
}

/// Returns the contents of a pool's image; `None` if it cannot be examined now.
async fn find_image_inventory(
    shared: &SharedDependencies,
    pool: &Pool,
) -> Option<Arc<ImageInventory>> {
    let inventory = shared.registry.image_inventory(pool);
    match tokio::time::timeout(INVENTORY_TIMEOUT, inventory).await {
        Ok(Ok(inventory)) => Some(inventory),
        Ok(Err(error)) => {
            tracing::debug!(error = %Chain(&error), "image was not examined for a skill's packages");
            None
        }
        Err(_) => None,
    }
}

/// Returns the names of the packages that a skill states and an image lacks, sorted.
async fn find_unmet_packages(
    skills: &Skills,
    skill: SkillRef,
    inventory: &ImageInventory,
) -> Result<Vec<String>> {
    let needs = skills.needs(skill).await?;
    let unmet = preflight::find_unmet_needs(&needs, inventory, None, &[]);
    let packages = unmet.into_iter().filter(|need| {
        let is_package = matches!(need.kind, NeedKind::PythonPackage | NeedKind::NodePackage);
        is_package && need.severity == Severity::Error
    });
    let mut names: Vec<String> = packages.map(|need| need.name).collect();
    names.sort();
    Ok(names)
}

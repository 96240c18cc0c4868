//! Software that a skill needs and that its commands would not find, for GetSkill. Builds nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use skilld_proto::v1 as pb;

use super::SharedDependencies;
use super::added_needs;
use super::convert::skill::problem_messages;
use crate::access::Caller;
use crate::environments::EnvironmentRequest;
use crate::error::{Chain, Result};
use crate::pool::Pool;
use crate::skills::preflight::{self, ImageInventory, Need, NeedKind, UnmetNeed};
use crate::skills::{Problem, Severity, SkillRef, Skills};

/// Longest wait for the answer about an image that was not examined before. A skill is read without it.
const INVENTORY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of pools that an answer names for missing software.
const OTHER_POOLS_MAX: usize = 8;

/// Returns the software that commands of a usable skill would not find; `None` if none is known to be missing.
/// `is_of_plugin` is `true` for a skill whose scripts may import modules of its plugin.
///
/// # Errors
/// `SkillNotFound`, `SkillInvalid`, `Io`.
pub(super) async fn find_missing_packages(
    shared: &SharedDependencies,
    (caller, skills): (&Caller, &Skills),
    (skill, is_of_plugin): (SkillRef, bool),
    pool: &Arc<Pool>,
) -> Result<Option<pb::MissingPackages>> {
    let needing = skills.environment_need(skill.clone()).await?;
    let added = needing.added_packages.clone();
    let Ok(request) = EnvironmentRequest::for_pool(caller.tenant(), needing, pool) else {
        return Ok(None);
    };
    let outlook = shared.environments.staging_outlook(&request).await;
    let mut problems = outlook.problems;
    // The environment has the packages that were not refused, or will have them, with those that they need in turn.
    let has_environment = outlook.has_environment;
    let has_problems = !problems.is_empty();
    let list = |needs: &[Need], inventory: &ImageInventory| {
        let unmet = preflight::find_unmet_needs(needs, inventory, None, &[]);
        list_missing(unmet.iter(), has_problems, has_environment, is_of_plugin)
    };
    let mut missing = pb::MissingPackages::default();
    if let Some(inventory) = find_image_inventory(shared, pool, has_problems).await {
        let needs = added_needs::with_added(&skills.needs(skill).await?, &added);
        missing = list(&needs, &inventory);
        // A requirement that was refused is not among the names, so that any image may lack it all the same.
        let has_refused = request.need.problems.iter().any(Problem::is_error);
        if !has_refused {
            let others = shared.registry.granted_pools(caller);
            let others = others.filter(|other| other.config.name != pool.config.name);
            let list = |found: &ImageInventory| list(&needs, found);
            missing.pools = find_equipped_pools(shared, others, &missing, list).await;
        }
        if missing.names.is_empty() && !has_refused {
            problems.clear();
        }
    }
    missing.problems = problem_messages(&problems);
    let is_empty = missing.problems.is_empty() && missing.software.is_empty();
    Ok((!is_empty).then_some(missing))
}

/// Returns the names of the pools whose images have all that is missing, of those that can be examined at once.
/// `list_missing_there` returns what an image lacks.
async fn find_equipped_pools(
    shared: &SharedDependencies,
    pools: impl Iterator<Item = &Arc<Pool>>,
    missing: &pb::MissingPackages,
    list_missing_there: impl Fn(&ImageInventory) -> pb::MissingPackages,
) -> Vec<String> {
    if missing.names.is_empty() && missing.software.is_empty() {
        return Vec::new();
    }
    let (pools, inventories): (Vec<_>, Vec<_>) = pools
        .map(|pool| (pool, find_image_inventory(shared, pool, false)))
        .unzip();
    let found = join_all(inventories).await;
    let is_equipped =
        |inventory: &ImageInventory| has_none_of(missing, &list_missing_there(inventory));
    let equipped = pools
        .into_iter()
        .zip(found)
        .filter(|(_, inventory)| inventory.as_deref().is_some_and(is_equipped));
    let names = equipped.map(|(pool, _)| pool.config.name.clone());
    names.take(OTHER_POOLS_MAX).collect()
}

/// Returns `true` if nothing that is missing here is also missing there.
fn has_none_of(here: &pb::MissingPackages, there: &pb::MissingPackages) -> bool {
    let there: HashSet<&String> = there.names.iter().chain(&there.software).collect();
    let mut here = here.names.iter().chain(&here.software);
    here.all(|name| !there.contains(name))
}

/// Divides unmet needs into packages that the skill states and software of the image, without their problems.
/// `has_problems` is `true` if packages that the skill states cannot be installed; where it has an environment, their
/// problems name them.
fn list_missing<'a>(
    unmet: impl Iterator<Item = &'a UnmetNeed>,
    has_problems: bool,
    has_environment: bool,
    is_of_plugin: bool,
) -> pb::MissingPackages {
    let mut missing = pb::MissingPackages::default();
    for need in unmet {
        let is_module_of_plugin = is_of_plugin && need.kind == NeedKind::PythonModule;
        if is_stated_package(need) && has_problems && !has_environment {
            missing.names.push(need.name.clone());
        } else if is_software(need.kind, has_environment) && !is_module_of_plugin {
            let kind = match need.kind {
                NeedKind::NodePackage => "npm ",
                NeedKind::Interpreter
                | NeedKind::Binary
                | NeedKind::AnyBinary
                | NeedKind::Env
                | NeedKind::PythonPackage
                | NeedKind::PythonModule
                | NeedKind::Network => "",
            };
            let names = need.name.replace(", ", " or ");
            missing.software.push(format!("{kind}{names}"));
        }
    }
    missing.names.sort();
    missing.software.sort();
    missing
}

/// Returns the contents of a pool's image; `None` if it cannot be examined now. Where `may_wait` is `false`, only a
/// container that is warm at that moment is asked.
async fn find_image_inventory(
    shared: &SharedDependencies,
    pool: &Pool,
    may_wait: bool,
) -> Option<Arc<ImageInventory>> {
    let inventory = async {
        match may_wait {
            true => shared.registry.image_inventory(pool).await.map(Some),
            false => shared.registry.image_inventory_at_once(pool).await,
        }
    };
    match tokio::time::timeout(INVENTORY_TIMEOUT, inventory).await {
        Ok(Ok(inventory)) => inventory,
        Ok(Err(error)) => {
            tracing::debug!(error = %Chain(&error), "image was not examined for a skill's needs");
            None
        }
        Err(_) => None,
    }
}

/// Returns `true` for a package that the skill states, which an environment would bring.
fn is_stated_package(need: &UnmetNeed) -> bool {
    let is_package = matches!(need.kind, NeedKind::PythonPackage | NeedKind::NodePackage);
    is_package && need.severity == Severity::Error
}

/// Returns `true` for software of an image: packages only where no environment brings them. Variables are the host's,
/// and a workspace's network is no software.
fn is_software(kind: NeedKind, has_environment: bool) -> bool {
    match kind {
        NeedKind::Interpreter | NeedKind::Binary | NeedKind::AnyBinary => true,
        NeedKind::PythonPackage | NeedKind::PythonModule | NeedKind::NodePackage => {
            !has_environment
        }
        NeedKind::Env | NeedKind::Network => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stated_packages_and_software_of_the_image_are_told_apart() {
        use NeedKind::{AnyBinary, Binary, Env, Network, NodePackage, PythonModule, PythonPackage};
        let unmet = [
            (PythonPackage, "pandas", Severity::Error),
            (PythonPackage, "numpy", Severity::Warning),
            (PythonModule, "yaml", Severity::Warning),
            (NodePackage, "docx", Severity::Warning),
            (Binary, "pandoc", Severity::Warning),
            (AnyBinary, "convert, magick", Severity::Error),
            (Env, "TOKEN", Severity::Error),
            (Network, "network", Severity::Warning),
        ]
        .map(|(kind, name, severity)| UnmetNeed {
            kind,
            name: name.to_owned(),
            severity,
            source: String::new(),
            message: String::new(),
        });
        let programs = ["convert or magick", "pandoc"];
        let modules = ["convert or magick", "npm docx", "numpy", "pandoc", "yaml"];
        for (has_problems, has_environment, is_of_plugin, names, software) in [
            // An environment brings the packages.
            (false, true, false, &[] as &[&str], programs.as_slice()),
            // Refused packages are named by their problems, and those beside them are installed.
            (true, true, false, &[], &programs),
            (true, false, false, &["pandas"], &modules),
            // Without an environment the image has to have them.
            (
                false,
                false,
                true,
                &[],
                &["convert or magick", "npm docx", "numpy", "pandas", "pandoc"],
            ),
        ] {
            let missing = list_missing(unmet.iter(), has_problems, has_environment, is_of_plugin);
            assert_eq!(missing.names, names);
            assert_eq!(missing.software, software);
        }
    }

    #[test]
    fn a_pool_has_what_is_missing_only_if_it_has_all_of_it() {
        let missing = |names: &[&str], software: &[&str]| pb::MissingPackages {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            software: software.iter().map(|&name| name.to_owned()).collect(),
            ..pb::MissingPackages::default()
        };
        let here = missing(&["pandas"], &["npm docx", "pandoc"]);
        for (there, has_all) in [
            (missing(&[], &[]), true),
            (missing(&["numpy"], &["magick"]), true),
            (missing(&[], &["pandoc"]), false),
            (missing(&["pandas"], &[]), false),
            // The same package may count as stated in one image and as software in another.
            (missing(&[], &["pandas"]), false),
        ] {
            assert_eq!(has_none_of(&here, &there), has_all, "{there:?}");
        }
    }
}

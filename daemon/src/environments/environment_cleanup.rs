//! Removal of environments that nothing uses or needs any more.

use std::collections::HashSet;
use std::sync::Arc;

use super::Environments;
use crate::error::Result;
use crate::skills::Skills;
use crate::workspace::registry::WorkspaceRegistry;
use crate::workspace::shared_slot_context::SharedSlotContext;

impl Environments {
    /// Removes environments that no workspace uses and that were not used for a while, and the least recently used ones
    /// beyond `skills.environments_disk`. Environments that were prepared stay while a listed skill needs them.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first; `Internal` when the runtime is shutting down.
    pub async fn collect(&self, skills: &Skills, registry: &WorkspaceRegistry) -> Result<()> {
        let context = Arc::clone(&self.0.context);
        let images: Option<HashSet<String>> = registry
            .pools
            .values()
            .map(|pool| Some(pool.image()?.id.clone()))
            .collect();
        let examined = self.0.store.prepared();
        let mut usable = examined.clone();
        if !usable.is_empty() {
            let policy = self.0.policy.digest(&context).await;
            usable.retain(|prepared| {
                let key = &prepared.key;
                // Without an image of each pool it is not known which images are still used.
                let has_pool = images
                    .as_ref()
                    .is_none_or(|images| images.contains(&key.image_id));
                has_pool && policy.as_ref().is_none_or(|policy| key.policy == *policy)
            });
        }
        let needed = match usable.is_empty() {
            true => HashSet::new(),
            false => skills.find_needed(usable).await?,
        };
        let keep = context.config.skills.options.keep_unused;
        let (store, tasks) = (Arc::clone(&self.0.store), context.tasks.clone());
        let collect = move || {
            store.collect(keep, &examined, &needed, &|| environments_in_use(&context));
            Ok(())
        };
        tasks.blocking(collect).await
    }
}

/// Returns the names of the environments that workspaces have.
pub(super) fn environments_in_use(context: &SharedSlotContext) -> HashSet<String> {
    let workspaces = context.workspaces.list_all().into_iter();
    workspaces
        .filter_map(|workspace| workspace.snapshot().record.claim.clone())
        .flat_map(|claim| claim.skills.into_values())
        .filter_map(|skill| skill.environment)
        .map(|environment| environment.name)
        .collect()
}

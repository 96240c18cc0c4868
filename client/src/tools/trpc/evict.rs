//! Skills that go to make room for another one: the host's hooks are asked before and told after.

use std::collections::HashMap;

use crate::state::{SessionState, loading};
use crate::tools::dynamic;
use crate::tools::hooks::{self, UnloadedSkill};
use crate::tools::trpc::loads;
use crate::tools::{Inner, Session, ToolError};

/// Skills that are loaded and go, the longest untouched first.
pub(super) struct Evict<'a> {
    pub(super) tools: &'a Inner,
    pub(super) session: &'a Session,
    /// That has them loaded still, and the other one already.
    pub(super) state: &'a SessionState,
    pub(super) names: &'a [String],
}

impl Evict<'_> {
    /// Asks.
    pub(super) async fn before(&self) -> Result<(), ToolError> {
        for name in self.names {
            hooks::may_go(self.tools, self.session, name, String::new()).await?;
        }
        Ok(())
    }

    /// Tells. A tool goes with the last skill that brought it.
    pub(super) async fn after(&self) -> Result<(), ToolError> {
        let scope = self.tools.options.scope(&self.session.agent);
        let declared = loads::declared(self.tools, loading::loaded(self.state, scope)).await?;
        let mut brought: HashMap<&str, Vec<String>> = HashMap::new();
        let mut owners: HashMap<String, usize> = HashMap::new();
        for own in &declared {
            let (own_alone, pool) = (std::slice::from_ref(own), self.tools.host.names());
            let names = dynamic::offered(self.state, scope, own_alone, pool).names;
            for tool in &names {
                *owners.entry(tool.clone()).or_default() += 1;
            }
            brought.insert(&own.skill, names);
        }
        for name in self.names {
            let mut tools_unloaded = brought.remove(name.as_str()).unwrap_or_default();
            tools_unloaded.retain(|tool| {
                owners.get_mut(tool).is_some_and(|left| {
                    *left -= 1;
                    *left == 0
                })
            });
            let unloaded = UnloadedSkill {
                skill_id: name.clone(),
                version: String::new(),
                tools_unloaded,
            };
            let hook = self
                .tools
                .hooks
                .after_skill_unload(self.session, &unloaded)
                .await;
            hook.map_err(hooks::refused)?;
        }
        Ok(())
    }
}

//! What the host application may do before and after a skill is loaded or unloaded, whoever asked for it: a call of
//! the model, a preload, or an eviction. Skills that go with their prompt or turn, as the load mode says, go unasked: that
//! is the host's own doing.

use futures::future::{BoxFuture, ready};

use crate::tools::{Inner, Session, ToolError};

/// Which skill is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkillChoice {
    /// Its id.
    pub skill_id: String,
    /// A version or a range of them; empty, `*` and `latest` stand for the current one.
    pub version: String,
}

/// A skill that is about to be loaded: everything that can fail has succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedSkill {
    /// Its id.
    pub skill_id: String,
    /// The one that was chosen.
    pub version: String,
    /// Of its content.
    pub digest: String,
    /// What the model is given; empty where the prompt brings it and not the result of the call.
    pub content: String,
    /// Names of the tools that it brings.
    pub tools_loaded: Vec<String>,
}

/// A skill that is about to be unloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnloadedSkill {
    /// Its id.
    pub skill_id: String,
    /// The one that was loaded; empty where the state does not have it, as for the current version of a skill.
    pub version: String,
    /// Names of the tools that go with it; not those that another skill brings too.
    pub tools_unloaded: Vec<String>,
}

/// How a hook ends: an error fails the call, in these words for the model, and nothing changes.
pub type Hooked<'a> = BoxFuture<'a, Result<(), String>>;

/// Hooks of the host. Each does nothing unless it is given.
pub trait Hooks: Send + Sync {
    /// Before a skill is looked up; may choose another one.
    fn before_skill_load<'a>(
        &'a self,
        _session: &'a Session,
        _choice: &'a mut SkillChoice,
    ) -> Hooked<'a> {
        Box::pin(ready(Ok(())))
    }

    /// When all of a load has succeeded; may change the content.
    fn after_skill_load<'a>(
        &'a self,
        _session: &'a Session,
        _loaded: &'a mut LoadedSkill,
    ) -> Hooked<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Before a skill is unloaded; may choose another one, except where the skill is evicted or another version
    /// takes its place.
    fn before_skill_unload<'a>(
        &'a self,
        _session: &'a Session,
        _choice: &'a mut SkillChoice,
    ) -> Hooked<'a> {
        Box::pin(ready(Ok(())))
    }

    /// When a skill was found to be loaded and goes.
    fn after_skill_unload<'a>(
        &'a self,
        _session: &'a Session,
        _unloaded: &'a UnloadedSkill,
    ) -> Hooked<'a> {
        Box::pin(ready(Ok(())))
    }
}

/// Those of a host that has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// Asks whether a loaded skill may go for another one, or for another version of it. The version is empty where the state
/// does not have it.
pub(crate) async fn may_go(
    tools: &Inner,
    session: &Session,
    id: &str,
    version: String,
) -> Result<(), ToolError> {
    let mut choice = SkillChoice {
        skill_id: id.to_owned(),
        version,
    };
    let hook = tools.hooks.before_skill_unload(session, &mut choice).await;
    hook.map_err(refused)
}

/// What a call answers where a hook says no.
pub(crate) fn refused(problem: String) -> ToolError {
    ToolError::Hook { problem }
}

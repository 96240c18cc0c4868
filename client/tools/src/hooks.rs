//! Hooks of the host application. It may refuse or change what is loaded and unloaded, learns what was, and gives
//! variables to runs. A call of the model, a preload or an eviction causes them. A skill that ends with its prompt or
//! turn calls no hook: the host itself ends it.

use std::collections::BTreeMap;
use std::fmt;

use futures::future::{BoxFuture, ready};

use crate::session::Session;

/// Skill and version that a load or unload is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkillChoice {
    /// Id of the skill.
    pub skill_id: String,
    /// A version or a range of them; empty, `*` and `latest` stand for the current one.
    pub version: String,
}

/// A skill that is about to be loaded: everything that can fail has succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedSkill {
    /// Id of the skill.
    pub skill_id: String,
    /// Version that was chosen.
    pub version: String,
    /// Digest of its content.
    pub digest: String,
    /// Text for the model; empty if the prompt brings it and not the result of the call.
    pub content: String,
    /// Names of the tools that it brings.
    pub tools_loaded: Vec<String>,
}

/// A skill that is about to be unloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnloadedSkill {
    /// Id of the skill.
    pub skill_id: String,
    /// The one that was loaded; empty where the state does not have it, as for the current version of a skill.
    pub version: String,
    /// Names of the tools that go with it; not those that another skill brings too.
    pub tools_unloaded: Vec<String>,
}

/// Run that the host may give variables to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunIdentity<'a> {
    /// Name of the tool that runs a command.
    pub tool: &'a str,
    /// Id of the skill that the command runs in; empty for none.
    pub skill: &'a str,
    /// Id that the model gave the call; empty for none.
    pub call_id: &'a str,
}

/// Variables that the host gives to a run. Where both maps have a name, the secret counts.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RunVariables {
    /// Variables whose values results may show.
    pub plain: BTreeMap<String, String>,
    /// Variables whose values results mask.
    pub secret: BTreeMap<String, String>,
}

impl fmt::Debug for RunVariables {
    /// Shows names only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunVariables")
            .field("plain", &self.plain.keys())
            .field("secret", &self.secret.keys())
            .finish()
    }
}

/// Future of the variables of a run. An error fails the call with this message for the model, and nothing starts.
pub type VariablesFuture<'a> = BoxFuture<'a, Result<RunVariables, String>>;

/// Future of a hook. An error fails the call with this message for the model, and nothing changes.
pub type HookFuture<'a> = BoxFuture<'a, Result<(), String>>;

/// Hooks of the host. The default of each does nothing.
pub trait Hooks: Send + Sync {
    /// Called before a skill is looked up; may choose another one.
    fn before_skill_load<'a>(
        &'a self,
        _session: &'a Session,
        _choice: &'a mut SkillChoice,
    ) -> HookFuture<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Called when every step of a load has succeeded; may change the content.
    fn after_skill_load<'a>(
        &'a self,
        _session: &'a Session,
        _loaded: &'a mut LoadedSkill,
    ) -> HookFuture<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Called before a skill is unloaded; may choose another one, unless the skill is evicted or another version
    /// takes its place.
    fn before_skill_unload<'a>(
        &'a self,
        _session: &'a Session,
        _choice: &'a mut SkillChoice,
    ) -> HookFuture<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Called when a loaded skill is unloaded.
    fn after_skill_unload<'a>(
        &'a self,
        _session: &'a Session,
        _unloaded: &'a UnloadedSkill,
    ) -> HookFuture<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Called before each run of a command; returns variables for it, such as the secrets of its skill. They take the
    /// place of variables that the call or the options give. A variable that no command can have fails the call.
    ///
    /// The tools log none of them. Later results and errors of the session have `***` for a secret value of at least 8
    /// bytes, also if a command prints it. This protects against accidents only: a part of a value is not masked, such
    /// as what one poll shows of it, nor is a value that a command encodes. Only this process remembers the values, and
    /// only the last 1024 of a workspace. A repeated call finds its command only with the same variables.
    fn run_environment<'a>(
        &'a self,
        _session: &'a Session,
        _run: RunIdentity<'a>,
    ) -> VariablesFuture<'a> {
        Box::pin(ready(Ok(RunVariables::default())))
    }
}

impl fmt::Debug for dyn Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}

/// Hooks that do nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

//! Tools of the host application. Skills name them, in a `Tools:` section or a card's `local_tools`; the pool that the
//! host registers is an allow-list, so that nothing a skill or a model writes brings up a tool that is not in it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use crate::tools::{Definition, ToolError};

/// What a host's tool does with its arguments: a result, or what went wrong in words for the model.
pub type Handler = Arc<dyn Fn(Value) -> BoxFuture<'static, Result<Value, String>> + Send + Sync>;

/// The host's tools, by name.
#[derive(Clone, Default)]
pub struct HostTools(BTreeMap<String, (Definition, Handler)>);

impl HostTools {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one; one of the same name is replaced.
    pub fn register(&mut self, definition: Definition, handler: Handler) {
        self.0
            .insert(definition.name.clone(), (definition, handler));
    }

    /// What the model is told of one.
    #[must_use]
    pub fn definition(&self, name: &str) -> Option<&Definition> {
        self.0.get(name).map(|(definition, _)| definition)
    }

    /// Returns true if no tool is registered, as in `skillctl`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Calls one.
    pub(crate) async fn call(&self, name: &str, arguments: Value) -> Result<Value, ToolError> {
        let Some((_, handler)) = self.0.get(name) else {
            return Err(ToolError::UnknownTool {
                name: name.to_owned(),
                known: self.0.keys().cloned().collect(),
            });
        };
        handler(arguments).await.map_err(|problem| ToolError::Host {
            tool: name.to_owned(),
            problem,
        })
    }
}

impl fmt::Debug for HostTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

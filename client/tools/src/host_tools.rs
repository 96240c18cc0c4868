//! Tools of the host application. Skills name them, in a `Tools:` section or a card's `local_tools`; the pool that the
//! host registers is an allow-list, so that nothing a skill or a model writes brings up a tool that is not in it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use crate::tool_definition::ToolDefinition;
use crate::tool_error::ToolError;

/// Handler of a host's tool: from the arguments to a result, or to an error message for the model.
type Handler = Arc<dyn Fn(Value) -> BoxFuture<'static, Result<Value, String>> + Send + Sync>;

/// The host's tools, by name.
#[derive(Clone, Default)]
pub struct HostTools(BTreeMap<String, (ToolDefinition, Handler)>);

impl HostTools {
    /// Returns an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool; a tool of the same name is replaced. The handler returns the result, or an error message for the
    /// model.
    ///
    /// ```
    /// # use serde_json::json;
    /// # use skilld_tools::{ToolDefinition, host_tools::HostTools};
    /// let mut tools = HostTools::new();
    /// let definition = ToolDefinition {
    ///     name: "double".into(),
    ///     description: "Doubles a number.".into(),
    ///     parameters: json!({"type": "object", "properties": {"n": {"type": "number"}}}),
    ///     returns: json!({"type": "number"}),
    /// };
    /// tools.register(definition, async |arguments| match arguments["n"].as_f64() {
    ///     Some(n) => Ok(json!(n * 2.0)),
    ///     None => Err("n must be a number".to_owned()),
    /// });
    /// ```
    pub fn register<F, R>(&mut self, definition: ToolDefinition, handler: F)
    where
        F: Fn(Value) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Value, String>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |arguments| Box::pin(handler(arguments)));
        self.0
            .insert(definition.name.clone(), (definition, handler));
    }

    /// Returns the definition of a tool.
    #[must_use]
    pub fn definition(&self, name: &str) -> Option<&ToolDefinition> {
        self.0.get(name).map(|(definition, _)| definition)
    }

    /// Returns true if no tool is registered, as in `skillctl`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Calls a tool.
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

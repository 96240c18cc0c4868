//! Table of a family's tools: each row has a tool's name, its texts for the model, its schemas and its handler.

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde_json::Value;

use crate::arguments::{result_schema, schema};
use crate::call_context::{CallContext, CallResult, SessionContext};
use crate::tool_definition::{Profile, ToolCall, ToolDefinition};
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;

/// Function that makes a call of a tool with the model's arguments.
type Handler = for<'a> fn(CallContext<'a>, Value) -> BoxFuture<'a, CallResult>;

/// Tool of a family: its name, its texts for the model, its schemas, its handler, and when it is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuiltinTool {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// JSON Schema of the arguments.
    pub(crate) parameters: fn() -> Value,
    /// JSON Schema of the result.
    pub(crate) returns: fn() -> Value,
    handler: Handler,
    /// `true` for tools that start, change or read what runs; the profile `KnowledgeOnly` has none of them.
    runs: bool,
    /// `true` for tools that the family's own system does not have.
    is_addition: bool,
    /// Tool without which this one is of no use.
    needs: Option<&'static str>,
    /// Arguments that a call must have.
    pub(crate) required: &'static [&'static str],
    /// Arguments of the type that this tool does not take.
    pub(crate) hidden_arguments: &'static [&'static str],
    /// Fields of the result's type that this tool never gives.
    pub(crate) hidden_results: &'static [&'static str],
}

impl BuiltinTool {
    /// Creates the row of a tool with arguments `A` and result `R`.
    pub(crate) const fn new<A: JsonSchema, R: JsonSchema>(
        name: &'static str,
        description: &'static str,
        handler: Handler,
    ) -> Self {
        Self {
            name,
            description,
            parameters: schema::<A>,
            returns: result_schema::<R>,
            handler,
            runs: false,
            is_addition: false,
            needs: None,
            required: &[],
            hidden_arguments: &[],
            hidden_results: &[],
        }
    }

    /// Marks a tool that starts, changes or reads what runs.
    pub(crate) const fn running(self) -> Self {
        Self { runs: true, ..self }
    }

    /// Marks a tool that the family's own system does not have.
    pub(crate) const fn addition(self) -> Self {
        let is_addition = true;
        Self {
            is_addition,
            ..self
        }
    }

    /// Sets the tool without which this one is of no use.
    pub(crate) const fn needing(self, tool: &'static str) -> Self {
        let needs = Some(tool);
        Self { needs, ..self }
    }

    /// Sets the arguments that a call must have.
    pub(crate) const fn requiring(self, required: &'static [&'static str]) -> Self {
        Self { required, ..self }
    }

    /// Sets the fields of the argument and result types that this tool does not have.
    pub(crate) const fn hiding(
        self,
        hidden_arguments: &'static [&'static str],
        hidden_results: &'static [&'static str],
    ) -> Self {
        Self {
            hidden_arguments,
            hidden_results,
            ..self
        }
    }

    /// Returns `true` if the options offer the tool.
    pub(crate) fn is_offered(&self, options: &ToolOptions) -> bool {
        options.lists(self.name) && self.missing_option(options).is_none()
    }

    /// Returns the missing option that the tool needs.
    fn missing_option(&self, options: &ToolOptions) -> Option<&'static str> {
        if self.is_addition && !options.additions {
            return Some("additions");
        }
        let needs_full = self.runs && options.profile == Profile::KnowledgeOnly;
        needs_full.then_some("the profile full, not knowledge_only")
    }

    /// Returns the definition of the tool as its types and texts are.
    pub(crate) fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: self.name.to_owned(),
            description: self.description.to_owned(),
            parameters: (self.parameters)(),
            returns: (self.returns)(),
        }
    }

    /// Makes a call of the tool.
    pub(crate) async fn call(&self, context: SessionContext<'_>, call: ToolCall) -> CallResult {
        let request = CallContext {
            context,
            tool: self.name,
            id: &call.id,
        };
        (self.handler)(request, call.arguments).await
    }
}

/// Finds a tool of a table.
pub(crate) fn find_tool<'a>(table: &'a [BuiltinTool], name: &str) -> Option<&'a BuiltinTool> {
    table.iter().find(|tool| tool.name == name)
}

/// Lists the tools of a table that the options offer, in the table's order.
pub(crate) fn list_offered<'a>(
    table: &'a [BuiltinTool],
    options: &ToolOptions,
) -> impl Iterator<Item = &'a BuiltinTool> {
    table.iter().filter(|tool| tool.is_offered(options))
}

/// Checks that the tools that the options list have everything that they need.
pub(crate) fn check_tools(table: &[BuiltinTool], options: &ToolOptions) -> ToolResult<()> {
    let names: Vec<&str> = table.iter().map(|tool| tool.name).collect();
    options.check(&names)?;
    for tool in table.iter().filter(|tool| options.lists(tool.name)) {
        let missing = tool
            .missing_option(options)
            .filter(|_| options.tools.is_some());
        let needed = tool.needs.filter(|needed| !options.lists(needed));
        if let Some(needed) = missing.or(needed) {
            return Err(ToolError::Options {
                problem: format!("tools: {} needs {needed}", tool.name),
            });
        }
    }
    Ok(())
}

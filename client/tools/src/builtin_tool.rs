//! Table of a family's tools: each row has a tool's name, its texts for the model, its schemas and its handler.

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

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
    /// JSON Schema of the arguments' type.
    parameters: fn() -> Value,
    /// JSON Schema of the result's type.
    returns: fn() -> Value,
    handler: Handler,
    /// Smallest profile that has the tool.
    profile: Profile,
    /// `true` for tools that the family's own system does not have.
    is_addition: bool,
    /// Tool without which this one is of no use.
    needs: Option<&'static str>,
    /// Arguments that a call must have; empty if their type says it.
    required: &'static [&'static str],
    /// Arguments of the type that this tool does not take.
    hidden_arguments: &'static [&'static str],
    /// Fields of the result's type that this tool never gives.
    hidden_results: &'static [&'static str],
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
            profile: Profile::KnowledgeOnly,
            is_addition: false,
            needs: None,
            required: &[],
            hidden_arguments: &[],
            hidden_results: &[],
        }
    }

    /// Marks a tool that starts, changes or reads what a skill runs.
    pub(crate) const fn running(self) -> Self {
        let profile = Profile::Full;
        Self { profile, ..self }
    }

    /// Marks a tool that starts, changes or reads what runs in the workspace, in no skill.
    pub(crate) const fn in_workspace(self) -> Self {
        let profile = Profile::Workspace;
        Self { profile, ..self }
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

    /// Sets the arguments that a call must have by the schema; the handler checks them.
    pub(crate) const fn requiring(self, required: &'static [&'static str]) -> Self {
        Self { required, ..self }
    }

    /// Sets the fields of the argument and result types that the schema of this tool does not have.
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
        match self.profile {
            profile if profile <= options.profile => None,
            Profile::Full => Some("the profile full"),
            Profile::Workspace | Profile::KnowledgeOnly => Some("the profile workspace or full"),
        }
    }

    /// Returns the definition of the tool.
    pub(crate) fn definition(&self) -> ToolDefinition {
        let (mut parameters, mut returns) = ((self.parameters)(), (self.returns)());
        if !self.required.is_empty()
            && let Some(parameters) = parameters.as_object_mut()
        {
            parameters.insert("required".into(), json!(self.required));
        }
        for (schema, hidden) in [
            (&mut parameters, self.hidden_arguments),
            (&mut returns, self.hidden_results),
        ] {
            if let Some(properties) = properties_mut(schema) {
                properties.retain(|name, _| !hidden.contains(&name.as_str()));
            }
        }
        ToolDefinition {
            name: self.name.to_owned(),
            description: self.description.to_owned(),
            parameters,
            returns,
        }
    }

    /// Makes a call of the tool. Its result keeps within the budget of results.
    pub(crate) async fn call(&self, context: SessionContext<'_>, call: ToolCall) -> CallResult {
        let request = CallContext {
            context,
            tool: self.name,
            id: &call.id,
        };
        let answer = (self.handler)(request, call.arguments).await;
        answer.map(|answer| answer.fitting(context))
    }
}

/// Returns the fields of a schema.
pub(crate) fn properties_mut(schema: &mut Value) -> Option<&mut Map<String, Value>> {
    schema.get_mut("properties")?.as_object_mut()
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

/// Checks that the tools that the options list have everything that they need. Returns the names of the offered tools.
pub(crate) fn check_tools(
    table: &[BuiltinTool],
    options: &ToolOptions,
) -> ToolResult<Vec<&'static str>> {
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
    Ok(list_offered(table, options).map(|tool| tool.name).collect())
}

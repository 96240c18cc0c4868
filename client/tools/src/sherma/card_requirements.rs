//! Requests of a skill's card: tools of the host, servers to connect, extensions. Pure.

use serde_json::{Map, Value};
use skilld_client::v1::Skill;

use crate::host_tools::HostTools;
use crate::mcp_client::{McpServer, ServerAddress};
use crate::tool_error::{ToolError, ToolResult};
use crate::{proto_json, skill_lookup};

/// Extensions that are understood.
const EXTENSIONS: [&str; 1] = ["urn:skill:tools:local"];
/// Servers of one card.
const SERVERS_MAX: usize = 8;

/// Checked requests of a card: each of them can be satisfied.
#[derive(Debug, Default, PartialEq)]
pub(super) struct CardRequirements {
    /// Names of the host's tools.
    pub(super) local_tools: Vec<String>,
    /// Names of tools that the card asks for and the host, which has registered none at all, does not have.
    pub(super) tools_missing: Vec<String>,
    pub(super) servers: Vec<McpServer>,
}

impl CardRequirements {
    /// Reads the card of a skill; one that has none asks for nothing.
    pub(super) fn read(skill: &Skill, host: &HostTools) -> ToolResult<Self> {
        let Some(fields) = &skill.card else {
            return Ok(Self::default());
        };
        let id = skill_lookup::skill_id(skill);
        let fields = proto_json::to_json_map(fields);
        check_extensions(&id, &fields)?;
        let named = read_local_tools(&id, &fields, host)?;
        // A program without tools of its own still shows what the skill says.
        let (local_tools, tools_missing) = match host.is_empty() {
            true => (Vec::new(), named),
            false => (named, Vec::new()),
        };
        Ok(Self {
            local_tools,
            tools_missing,
            servers: read_servers(&id, &fields)?,
        })
    }
}

/// Returns `true` if the card of a skill names this server.
pub(super) fn names_server(skill: &Skill, at: &ServerAddress) -> bool {
    let fields = skill
        .card
        .as_ref()
        .map(proto_json::to_json_map)
        .unwrap_or_default();
    read_servers(&skill_lookup::skill_id(skill), &fields)
        .is_ok_and(|servers| servers.iter().any(|server| server.at == *at))
}

/// Refuses a card that requires an unknown extension.
fn check_extensions(id: &str, fields: &Map<String, Value>) -> ToolResult<()> {
    let extensions = fields.get("extensions").and_then(Value::as_array);
    for extension in extensions.into_iter().flatten() {
        let uri = text(extension, "uri");
        let optional = matches!(
            extension.get("required"),
            None | Some(Value::Null | Value::Bool(false))
        );
        if !optional && !EXTENSIONS.contains(&uri) {
            return Err(ToolError::HostLacks {
                skill: id.to_owned(),
                what: format!("the extension {uri:?}, which is not known here"),
            });
        }
    }
    Ok(())
}

/// Returns the host tools of a card, each by the id within its entry, or by the label of the entry if that has none.
fn read_local_tools(
    id: &str,
    fields: &Map<String, Value>,
    host: &HostTools,
) -> ToolResult<Vec<String>> {
    let entries = entries(fields, "local_tools");
    let mut names = Vec::new();
    for (label, entry) in entries {
        let name = match text(entry, "id") {
            "" => label,
            name => name,
        };
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    let missing: Vec<&str> = names
        .iter()
        .filter(|name| host.definition(name).is_none())
        .map(String::as_str)
        .collect();
    if missing.is_empty() || host.is_empty() {
        return Ok(names);
    }
    Err(ToolError::HostLacks {
        skill: id.to_owned(),
        what: format!(
            "the tools {}, which the host application has not registered",
            missing.join(", ")
        ),
    })
}

/// Returns the MCP servers of a card, each once.
fn read_servers(id: &str, fields: &Map<String, Value>) -> ToolResult<Vec<McpServer>> {
    let mut servers: Vec<McpServer> = Vec::new();
    for (label, entry) in entries(fields, "mcps") {
        let server = read_server(label, entry)?;
        if !servers.iter().any(|known| known.at == server.at) {
            servers.push(server);
        }
    }
    if servers.len() > SERVERS_MAX {
        return Err(ToolError::HostLacks {
            skill: id.to_owned(),
            what: format!(
                "{} MCP servers; at most {SERVERS_MAX} are connected",
                servers.len()
            ),
        });
    }
    Ok(servers)
}

fn read_server(label: &str, entry: &Value) -> ToolResult<McpServer> {
    let failed = |problem: String| ToolError::Mcp {
        server: label.to_owned(),
        problem,
    };
    let transport = text(entry, "transport").to_lowercase().replace('_', "-");
    let at = match transport.as_str() {
        "streamable-http" | "http" => ServerAddress::Url(text(entry, "url").to_owned()),
        "stdio" => match read_command(entry).map_err(failed)? {
            Some(command) => ServerAddress::Program(command),
            None => ServerAddress::Named(match text(entry, "id") {
                "" => label.to_owned(),
                id => id.to_owned(),
            }),
        },
        "sse" => {
            return Err(failed(
                "the transport sse, which MCP has given up, is not supported: use streamable-http"
                    .into(),
            ));
        }
        other => {
            return Err(failed(format!(
                "the transport {other:?} is none of streamable-http, stdio"
            )));
        }
    };
    Ok(McpServer {
        label: label.to_owned(),
        at,
    })
}

/// Returns `command` and `args`, which only some cards have.
fn read_command(entry: &Value) -> Result<Option<Vec<String>>, String> {
    let program = text(entry, "command");
    if program.is_empty() {
        return Ok(None);
    }
    let mut command = vec![program.to_owned()];
    let args = entry.get("args").and_then(Value::as_array);
    for arg in args.into_iter().flatten() {
        let arg = arg.as_str().ok_or("its args are not all text")?;
        command.push(arg.to_owned());
    }
    Ok(Some(command))
}

fn entries<'a>(
    fields: &'a Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let entries = fields
        .get(key)
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    entries.map(|(label, entry)| (label.as_str(), entry))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

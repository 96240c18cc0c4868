//! State of sherma's tools: loaded skills with their versions, their tools, and the servers of these. A tool belongs to
//! every loaded skill that brings it and is removed with the last of them. A load that failed changes nothing.
//!
//! This file holds the loaded skills and their transitions; `storage` reads and writes them as keys of a session's
//! state.

mod storage;

use serde::{Deserialize, Serialize};

pub(super) use storage::{is_skill, is_view, latest, merge_view};

use crate::tool_definition::ToolDefinition;

/// State of one loaded skill: its version, digest, tools and position among the loads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadedSkill {
    /// Version that the requested reference resolved to.
    #[serde(rename = "resolved_version")]
    pub version: String,
    /// Digest of the content.
    pub digest: String,
    /// Tools of the skill, under the names that they are called by.
    pub tools: Vec<String>,
    /// Tools that MCP servers provide.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remote: Vec<RemoteTool>,
    /// Position among the loads; a later load has a larger one, because the order of a map's keys does not survive
    /// every store. 0 for a skill that sherma itself loaded.
    pub order: u64,
    /// Time of the load in the caller's format. The later one wins when branches loaded the same skill.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub loaded_at: String,
}

/// Tool of an MCP server. Its definition is stored, so that offering it needs no server and stays the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteTool {
    /// Server that provides the tool.
    pub server: McpServer,
    /// Definition of the tool for a model.
    pub definition: ToolDefinition,
}

/// MCP server as a skill's card names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct McpServer {
    /// Label for people.
    pub label: String,
    /// Address of the server. Two servers are the same if their addresses are.
    pub at: ServerAddress,
}

/// Address of an MCP server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerAddress {
    /// URL of a server with streamable HTTP.
    Url(String),
    /// A program of the host's options, by its name there.
    Named(String),
    /// A program that the card itself names, and its arguments.
    Program(Vec<String>),
}

/// Loaded skills of one agent, the last loaded at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedSkills(Vec<(String, LoadedSkill)>);

impl LoadedSkills {
    /// Returns the ids and records of the skills, in the order of their loads.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &LoadedSkill)> {
        self.0.iter().map(|(id, skill)| (id.as_str(), skill))
    }

    /// Keeps the skills with these ids.
    #[must_use]
    pub(crate) fn only(mut self, ids: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|(id, _)| ids(id));
        self
    }

    /// Returns a loaded skill.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&LoadedSkill> {
        self.iter()
            .find_map(|(own, skill)| (own == id).then_some(skill))
    }

    /// Returns the loaded skills with one more as the last; another version of it is replaced.
    #[must_use]
    pub fn with(&self, id: &str, mut skill: LoadedSkill) -> Self {
        let orders = self.0.iter().map(|(_, skill)| skill.order);
        skill.order = orders.max().unwrap_or_default().saturating_add(1);
        let mut loaded = self.without(id);
        loaded.0.push((id.to_owned(), skill));
        loaded
    }

    /// Returns the loaded skills without one of them.
    #[must_use]
    pub fn without(&self, id: &str) -> Self {
        let kept = self.0.iter().filter(|(own, _)| own != id);
        Self(kept.cloned().collect())
    }

    /// Returns the skills that were loaded first and exceed `max`; 0 is for any number.
    pub fn over(&self, max: usize) -> impl Iterator<Item = (&str, &LoadedSkill)> {
        let over = match max {
            0 => 0,
            max => self.0.len().saturating_sub(max),
        };
        self.iter().take(over)
    }

    /// Returns all tools, each once, in the order of their loads.
    #[must_use]
    pub fn tools(&self) -> Vec<&str> {
        let mut tools: Vec<&str> = Vec::new();
        for tool in self.0.iter().flat_map(|(_, skill)| &skill.tools) {
            if !tools.contains(&tool.as_str()) {
                tools.push(tool);
            }
        }
        tools
    }

    /// Returns the tools of these skills that no skill of `other` brings.
    #[must_use]
    pub fn tools_not_in(&self, other: &Self) -> Vec<String> {
        let (mut tools, others) = (self.tools(), other.tools());
        tools.retain(|tool| !others.contains(tool));
        tools.into_iter().map(str::to_owned).collect()
    }

    /// Returns the ids of the skills that bring a tool.
    pub fn owners<'a>(&'a self, tool: &'a str) -> impl Iterator<Item = &'a str> {
        let brings = move |skill: &LoadedSkill| skill.tools.iter().any(|own| own == tool);
        self.iter()
            .filter(move |(_, skill)| brings(skill))
            .map(|(id, _)| id)
    }

    /// Returns the MCP tool of this name and the skill that brings it; of two, the one whose skill was loaded first.
    #[must_use]
    pub fn remote(&self, tool: &str) -> Option<(&str, &RemoteTool)> {
        let named = |remote: &&RemoteTool| remote.definition.name == tool;
        self.iter()
            .find_map(|(id, skill)| Some((id, skill.remote.iter().find(named)?)))
    }

    /// Returns the addresses of servers that these skills need and those of `other` do not.
    #[must_use]
    pub fn places_not_in(&self, other: &Self) -> Vec<ServerAddress> {
        let others: Vec<&ServerAddress> = other.places().collect();
        let gone = self.places().filter(|place| !others.contains(place));
        gone.cloned().collect()
    }

    fn places(&self) -> impl Iterator<Item = &ServerAddress> {
        let remote = self.0.iter().flat_map(|(_, skill)| &skill.remote);
        remote.map(|remote| &remote.server.at)
    }
}

#[cfg(test)]
mod tests;

//! What sherma's tools remember: which skills are loaded in which version, which tools they brought, and from where. A
//! tool belongs to every loaded skill that brought it and goes with the last of them. State changes by results only: a
//! load that failed has none to give.
//!
//! Here is what is loaded and how that changes; `stored` is how a session's state says it.

mod stored;

use serde::{Deserialize, Serialize};

pub(super) use stored::{is_skill, is_view, latest, merge_view};

use crate::tools::Definition;

/// A skill that was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadedSkill {
    /// The version that was found for what was asked for.
    #[serde(rename = "resolved_version")]
    pub version: String,
    /// Of its content.
    pub digest: String,
    /// Tools that it brought, under the names that they are called by.
    pub tools: Vec<String>,
    /// Those of them that MCP servers have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remote: Vec<RemoteTool>,
    /// Larger is later; a load gives it. The order of a map's keys does not survive every store. 0 is what sherma itself
    /// loaded, which has none.
    pub order: u64,
    /// When, as the caller writes times. Tells which of two was later that branches loaded side by side.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub loaded_at: String,
}

/// A tool of an MCP server. Kept whole, so that what is offered needs no server to be asked, and stays the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteTool {
    /// Who has it.
    pub server: Server,
    /// What a model is told of it.
    pub definition: Definition,
}

/// A server as a card names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Server {
    /// For people.
    pub label: String,
    /// Where it is. Two servers are one if this is the same.
    pub at: Place,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Streamable HTTP.
    Url(String),
    /// A program of the host's options, by its name there.
    Named(String),
    /// A program that the card itself names, and its arguments.
    Program(Vec<String>),
}

/// The loaded skills of one agent, the one loaded last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded(Vec<(String, LoadedSkill)>);

impl Loaded {
    /// The skills and what is known of them, in the order of their loads.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &LoadedSkill)> {
        self.0.iter().map(|(id, skill)| (id.as_str(), skill))
    }

    /// Only those of these ids.
    #[must_use]
    pub(crate) fn only(mut self, ids: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|(id, _)| ids(id));
        self
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&LoadedSkill> {
        self.iter()
            .find_map(|(own, skill)| (own == id).then_some(skill))
    }

    /// With one more, the last one loaded; another version of it goes.
    #[must_use]
    pub fn with(&self, id: &str, mut skill: LoadedSkill) -> Self {
        let orders = self.0.iter().map(|(_, skill)| skill.order);
        skill.order = orders.max().unwrap_or_default().saturating_add(1);
        let mut loaded = self.without(id);
        loaded.0.push((id.to_owned(), skill));
        loaded
    }

    /// Without one of them; the same if it is not loaded.
    #[must_use]
    pub fn without(&self, id: &str) -> Self {
        let kept = self.0.iter().filter(|(own, _)| own != id);
        Self(kept.cloned().collect())
    }

    /// Those that were loaded first, where there are more than `max`; 0 is for any number.
    pub fn over(&self, max: usize) -> impl Iterator<Item = (&str, &LoadedSkill)> {
        let over = match max {
            0 => 0,
            max => self.0.len().saturating_sub(max),
        };
        self.iter().take(over)
    }

    /// All tools, each once, in the order in which they were brought.
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

    /// Tools that are here and not there: from one to the other, nobody brings them any more.
    #[must_use]
    pub fn tools_not_in(&self, other: &Self) -> Vec<String> {
        let (mut tools, others) = (self.tools(), other.tools());
        tools.retain(|tool| !others.contains(tool));
        tools.into_iter().map(str::to_owned).collect()
    }

    /// The skills that bring a tool.
    pub fn owners<'a>(&'a self, tool: &'a str) -> impl Iterator<Item = &'a str> {
        let brings = move |skill: &LoadedSkill| skill.tools.iter().any(|own| own == tool);
        self.iter()
            .filter(move |(_, skill)| brings(skill))
            .map(|(id, _)| id)
    }

    /// The tool of a server that has this name, and the skill that brought it. Where branches brought two, it is that of the
    /// skill loaded first.
    #[must_use]
    pub fn remote(&self, tool: &str) -> Option<(&str, &RemoteTool)> {
        let named = |remote: &&RemoteTool| remote.definition.name == tool;
        self.iter()
            .find_map(|(id, skill)| Some((id, skill.remote.iter().find(named)?)))
    }

    /// Servers that are needed here and not there.
    #[must_use]
    pub fn places_not_in(&self, other: &Self) -> Vec<Place> {
        let others: Vec<&Place> = other.places().collect();
        let gone = self.places().filter(|place| !others.contains(place));
        gone.cloned().collect()
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        let remote = self.0.iter().flat_map(|(_, skill)| &skill.remote);
        remote.map(|remote| &remote.server.at)
    }
}

#[cfg(test)]
mod tests;

//! What there is to tell a model of skills, and what came of it.

use serde::Serialize;

/// All that a prompt can be made of. Its order does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Material {
    /// Every skill that the agent may see.
    pub overview: Vec<Summary>,
    /// What the loaded skills say. Skills that are not loaded are not shown though they be here.
    pub loaded: Vec<Loaded>,
}

/// A skill in one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
}

/// What a skill says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Its name.
    pub name: String,
    /// Of its content.
    pub digest: String,
    /// SKILL.md without its front matter.
    pub body: String,
    /// Its docs, at least those that are selected.
    pub docs: Vec<Doc>,
    /// Tools that it declares.
    pub tools: Vec<String>,
    /// Those of its tools, declared or selected, that cannot be offered; the prompt does not name them.
    pub unavailable_tools: Vec<String>,
    /// Where its files are for commands; empty where nothing runs.
    pub dir: String,
}

/// A doc of a skill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doc {
    /// Within the skill.
    pub path: String,
    /// Its text.
    pub content: String,
}

/// What a prompt shows and what it does not: nothing is left out without a word here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Loaded skills that are shown, by name. In load mode `once` these are done: `after_prompt`.
    pub shown: Vec<String>,
    /// Loaded skills of which the material says nothing.
    pub missing: Vec<String>,
    /// Loaded skills that are left out since a summary stands for the history that had them.
    pub left_to_summary: Vec<String>,
    /// Selected docs that the skill does not have.
    pub unknown_docs: Vec<UnknownDoc>,
    /// Skills from whose name or description characters were taken that could deceive a reader.
    pub cleaned: Vec<String>,
    /// Skills whose description is shortened.
    pub shortened: usize,
    /// Skills that the overview does not list; it says how many.
    pub omitted: usize,
    /// Bodies and docs that are cut; each says so at its end.
    pub cut: Vec<Cut>,
    /// Budgets that the least that must be said does not fit into.
    pub over_budget: bool,
}

/// A doc that was selected and does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownDoc {
    /// The skill.
    pub skill: String,
    /// As selected.
    pub path: String,
}

/// A text of which a part is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// The skill.
    pub skill: String,
    /// Of its files; empty for the body.
    pub doc: String,
    /// Characters that are shown.
    pub shown: usize,
    /// Characters that there are.
    pub chars: usize,
}

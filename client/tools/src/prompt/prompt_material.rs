//! Input of an injection, and the report on its outcome.

use serde::Serialize;

use crate::staged_uploads::StagedUploads;

/// Skills that a prompt can show. Their order does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptMaterial {
    /// Skills that the agent may see.
    pub overview: Vec<SkillSummary>,
    /// Content of the loaded skills. A skill that the state does not have loaded is not shown.
    pub loaded: Vec<LoadedContent>,
    /// Files of the user that [`Toolset::stage_uploads`](crate::Toolset::stage_uploads) put into the workspace; the host
    /// adds them. The prompt names them, and says nothing of files without any.
    pub uploads: StagedUploads,
}

/// A skill in one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkillSummary {
    /// Name of the skill.
    pub name: String,
    /// Purpose of the skill.
    pub description: String,
}

/// Content of a skill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedContent {
    /// Name of the skill.
    pub name: String,
    /// Digest of the content.
    pub digest: String,
    /// SKILL.md without its front matter.
    pub body: String,
    /// Documents, at least the selected ones.
    pub docs: Vec<SkillDoc>,
    /// Tools that the skill declares.
    pub tools: Vec<String>,
    /// Declared or selected tools that cannot be offered; the prompt does not name them.
    pub unavailable_tools: Vec<String>,
    /// Folder of the skill's files for commands; empty if no tool runs commands.
    pub dir: String,
    /// Tool that reads files of the skill, which a text that is cut names; empty if none is offered.
    pub reader: String,
}

/// A doc of a skill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkillDoc {
    /// Path in the skill.
    pub path: String,
    /// Text of the document.
    pub content: String,
}

/// Report on an injection: skills that it shows, and everything that it leaves out or cuts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InjectionReport {
    /// Names of the loaded skills that are shown. In load mode `once`, `after_prompt` unloads them.
    pub shown: Vec<String>,
    /// Loaded skills that the material does not have.
    pub missing: Vec<String>,
    /// Loaded skills that are left out because a summary replaces the history that had them.
    pub left_to_summary: Vec<String>,
    /// Selected docs that the skill does not have.
    pub unknown_docs: Vec<UnknownDoc>,
    /// Skills with characters in their name or description that were removed because they could deceive a reader.
    pub cleaned: Vec<String>,
    /// Number of skills whose description is shortened.
    pub shortened: usize,
    /// Number of skills that the overview does not list; it says how many.
    pub omitted: usize,
    /// Bodies and docs that are cut; each has a note at its end.
    pub cut: Vec<CutText>,
    /// Set if the minimum text does not fit into a budget.
    pub over_budget: bool,
}

/// A doc that was selected and does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownDoc {
    /// Name of the skill.
    pub skill: String,
    /// Path as it was selected.
    pub path: String,
}

/// Text that is shown in part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CutText {
    /// Name of the skill.
    pub skill: String,
    /// Path of the document; empty for the body.
    pub doc: String,
    /// Number of characters that are shown.
    pub shown: usize,
    /// Number of characters of the whole text.
    pub chars: usize,
}

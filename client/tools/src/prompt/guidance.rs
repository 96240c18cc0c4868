//! Text on how to work with skills. The host may replace it or leave it out.

use crate::tool_definition::{Family, Profile};

/// Text that follows the overview.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guidance<'a> {
    /// Built-in text for the tools of this family and profile.
    BuiltIn(Family, Profile),
    /// No text.
    #[default]
    None,
    /// Text of the host.
    Text(&'a str),
}

impl Guidance<'_> {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::BuiltIn(family, profile) => built_in(*family, *profile),
            Self::None => "",
            Self::Text(text) => text,
        }
    }
}

/// Returns the built-in text for a family and profile.
#[must_use]
pub fn built_in(family: Family, profile: Profile) -> &'static str {
    match (family, profile) {
        (Family::Trpc, Profile::Full) => TRPC,
        (_, Profile::Workspace) => WORKSPACE,
        (Family::Sherma, Profile::Full) => SHERMA,
        (Family::AgentZero, Profile::Full) => AGENT_ZERO,
        (_, Profile::KnowledgeOnly) => KNOWLEDGE,
    }
}

const TRPC: &str = "\
Tooling and workspace guidance:
- A skill is listed by name until you load it: call skill_load before you use it, and skill_select_docs for the docs that \
the task needs. Load all docs only if you need all.
- Commands run in the session's isolated workspace, in the skill's folder unless you give a cwd. work/ and out/ \
(OUTPUT_DIR) are yours. There is no network unless the host grants it.
- Bring files in with `inputs`, not with copy commands.
- Write results to OUTPUT_DIR and name them in output_files or outputs. Text comes back inline; use a file's ref to hand it \
to another tool. A later command sees the same files, so do not run a command again to see its output.
- Look at exit_code, stderr, warnings and limits_hit before you go on. Use skill_exec only for programs that ask questions.
";

const WORKSPACE: &str = "\
Tooling and workspace guidance:
- A skill is listed by name until you load it: call skill_load before you use it. From then on its folder is skills/NAME in \
the workspace: read its documents and run its scripts there, with workspace_exec and cwd skills/NAME.
- Commands run in the session's isolated workspace. work/ and out/ (OUTPUT_DIR) are yours, and so is your copy of a loaded \
skill. There is no network unless the host grants it.
- Look at exit_code, output and warnings before you go on. A later command sees the same files, so do not run a command \
again to see its output.
";

const SHERMA: &str = "\
Tooling and workspace guidance:
- Call load_skill_md before you use a skill; its tools are offered from then on, until unload_skill.
- Read resources and assets one at a time, when the skill's text sends you there.
";

const AGENT_ZERO: &str = "\
Tooling and workspace guidance:
- Use skills_tool with method load before you use a skill, read_file for its files, execute_script for its scripts.
- A script's exit code, streams and files come back with its result; look at them before you go on.
";

const KNOWLEDGE: &str = "\
Skill tool availability:
- Skills can be read here and not run: load one for its instructions, then the docs that the task needs.
- Do not say that you ran a skill's script.
";

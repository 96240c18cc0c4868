//! The lexical rules for paths inside a workspace. Pure: nothing here touches a file system. What a name
//! really leads to is decided by the guest, which opens everything beneath /workspace.

/// Where the workspace is in the container.
pub const WORKSPACE_DIR: &str = "/workspace";
/// Skills, read-only.
pub const SKILLS_DIR: &str = "/workspace/skills";
/// Free for the commands' use.
pub const WORK_DIR: &str = "/workspace/work";
/// The user's files.
pub const INPUTS_DIR: &str = "/workspace/work/inputs";
/// Results.
pub const OUTPUT_DIR: &str = "/workspace/out";
/// One directory per exec.
pub const RUNS_DIR: &str = "/workspace/runs";

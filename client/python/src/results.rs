//! Answers of the daemon as Python gets them: dictionaries, whose keys are the fields of these types.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use skilld_client::short_id;
use skilld_client::v1::{
    Artifact, CollectSummary, CollectedFile, Exec, ExecResult, ExecState, ExitReason, FileEnd,
    FileEntry, FileType, Problem, Skill, SkipReason, StagedInput, StagedSkill, Workspace,
    WorkspaceState,
};

/// Returns the name of an enum's value without the prefix that all its values share.
pub(crate) fn value_name(full: &str, prefix: &str) -> String {
    full.strip_prefix(prefix).unwrap_or(full).to_owned()
}

/// Returns seconds since 1970.
fn seconds(time: Option<prost_types::Timestamp>) -> Option<f64> {
    let time = std::time::SystemTime::try_from(time?).ok()?;
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(since.as_secs_f64())
}

fn duration_seconds(duration: Option<prost_types::Duration>) -> Option<f64> {
    let duration = std::time::Duration::try_from(duration?).ok()?;
    Some(duration.as_secs_f64())
}

/// Workspace.
#[derive(IntoPyObject, Debug)]
pub(crate) struct WorkspaceAnswer {
    id: String,
    pool: String,
    state: String,
    labels: BTreeMap<String, String>,
    created: Option<f64>,
    expires: Option<f64>,
    cpu_millis: i64,
    memory_bytes: i64,
    disk_bytes: i64,
    skills: Vec<String>,
}

impl From<Workspace> for WorkspaceAnswer {
    fn from(workspace: Workspace) -> Self {
        let state = WorkspaceState::try_from(workspace.state).unwrap_or_default();
        let limits = workspace.limits.unwrap_or_default();
        let skills = workspace.skills.iter();
        Self {
            id: short_id(&workspace.name),
            pool: short_id(&workspace.pool),
            state: value_name(state.as_str_name(), "WORKSPACE_STATE_"),
            skills: skills.map(|skill| short_id(&skill.name)).collect(),
            labels: workspace.labels,
            created: seconds(workspace.create_time),
            expires: seconds(workspace.expire_time),
            cpu_millis: limits.cpu_millis,
            memory_bytes: limits.memory_bytes,
            disk_bytes: limits.disk_bytes,
        }
    }
}

/// Directory entry.
#[derive(IntoPyObject, Debug)]
pub(crate) struct EntryAnswer {
    path: String,
    kind: String,
    size: i64,
    mode: u32,
    modified: Option<f64>,
    link_target: String,
}

impl From<FileEntry> for EntryAnswer {
    fn from(entry: FileEntry) -> Self {
        let kind = FileType::try_from(entry.file_type).unwrap_or_default();
        Self {
            path: entry.path,
            kind: value_name(kind.as_str_name(), "FILE_TYPE_").to_lowercase(),
            size: entry.size_bytes,
            mode: entry.mode,
            modified: seconds(entry.modify_time),
            link_target: entry.link_target,
        }
    }
}

/// Outcome of an exec.
#[derive(IntoPyObject, IntoPyObjectRef, Clone, Debug)]
pub(crate) struct EndAnswer {
    exit_code: i32,
    reason: String,
    problem: String,
    wall_seconds: Option<f64>,
    peak_memory_bytes: i64,
}

impl From<ExecResult> for EndAnswer {
    fn from(result: ExecResult) -> Self {
        let reason = ExitReason::try_from(result.reason).unwrap_or_default();
        Self {
            exit_code: result.exit_code,
            reason: value_name(reason.as_str_name(), "EXIT_REASON_"),
            problem: result
                .spawn_failure
                .map(|failure| failure.message)
                .unwrap_or_default(),
            wall_seconds: duration_seconds(result.wall_duration),
            peak_memory_bytes: result.peak_memory_bytes,
        }
    }
}

/// Running or retained exec.
#[derive(IntoPyObject, Debug)]
pub(crate) struct ExecAnswer {
    id: String,
    state: String,
    pid: i32,
    argv: Vec<String>,
    shell: String,
    cwd: String,
    env: BTreeMap<String, String>,
    has_terminal: bool,
    end: Option<EndAnswer>,
}

impl From<Exec> for ExecAnswer {
    fn from(exec: Exec) -> Self {
        let state = ExecState::try_from(exec.state).unwrap_or_default();
        let spec = exec.effective_spec.unwrap_or_default();
        let id = short_id(&exec.name);
        Self {
            id: id.rsplit('/').next().unwrap_or(&id).to_owned(),
            state: value_name(state.as_str_name(), "EXEC_STATE_"),
            pid: exec.pid,
            argv: spec.argv,
            shell: spec.shell,
            cwd: spec.cwd,
            env: spec.env,
            has_terminal: spec.terminal.is_some(),
            end: exec.result.map(EndAnswer::from),
        }
    }
}

/// File that was collected.
#[derive(IntoPyObject, IntoPyObjectRef, Clone, Debug)]
pub(crate) struct OutputAnswer {
    path: String,
    size: i64,
    mode: u32,
    mime_type: String,
    link_target: String,
    pub(crate) data: Vec<u8>,
    sha256: String,
    truncated: bool,
    artifact: String,
}

impl OutputAnswer {
    /// Adds what the daemon sends after the bytes.
    pub(crate) fn finish(&mut self, end: FileEnd) {
        self.sha256 = end.sha256;
        self.truncated = end.truncated;
        self.artifact = end.artifact;
    }
}

impl From<CollectedFile> for OutputAnswer {
    fn from(file: CollectedFile) -> Self {
        Self {
            path: file.path,
            size: file.size_bytes,
            mode: file.mode,
            mime_type: file.mime_type,
            link_target: file.link_target,
            data: Vec::new(),
            sha256: String::new(),
            truncated: false,
            artifact: String::new(),
        }
    }
}

/// Summary of a collection.
#[derive(IntoPyObject, IntoPyObjectRef, Clone, Debug, Default)]
pub(crate) struct SummaryAnswer {
    skipped: Vec<(String, String)>,
    artifacts: Vec<String>,
    unmatched: Vec<String>,
}

impl From<CollectSummary> for SummaryAnswer {
    fn from(summary: CollectSummary) -> Self {
        let skipped = summary.skipped_files.into_iter().map(|file| {
            let reason = SkipReason::try_from(file.reason).unwrap_or_default();
            (file.path, value_name(reason.as_str_name(), "SKIP_REASON_"))
        });
        Self {
            skipped: skipped.collect(),
            artifacts: summary.artifacts,
            unmatched: summary.unmatched_globs,
        }
    }
}

/// Warning or problem.
#[derive(IntoPyObject, IntoPyObjectRef, Clone, Debug)]
pub(crate) struct ProblemAnswer {
    message: String,
}

impl From<Problem> for ProblemAnswer {
    fn from(problem: Problem) -> Self {
        Self {
            message: problem.message,
        }
    }
}

/// Skill that was staged.
#[derive(IntoPyObject, IntoPyObjectRef, Clone, Debug)]
pub(crate) struct StagedSkillAnswer {
    name: String,
    path: String,
    problems: Vec<ProblemAnswer>,
}

impl From<StagedSkill> for StagedSkillAnswer {
    fn from(skill: StagedSkill) -> Self {
        Self {
            name: short_id(&skill.name),
            path: skill.path,
            problems: skill
                .problems
                .into_iter()
                .map(ProblemAnswer::from)
                .collect(),
        }
    }
}

/// Input that was staged.
#[derive(IntoPyObject, IntoPyObjectRef, Clone, Debug)]
pub(crate) struct StagedInputAnswer {
    path: String,
}

impl From<StagedInput> for StagedInputAnswer {
    fn from(input: StagedInput) -> Self {
        Self {
            path: input.file.map(|file| file.path).unwrap_or_default(),
        }
    }
}

/// Version of an artifact.
#[derive(IntoPyObject, Debug)]
pub(crate) struct ArtifactAnswer {
    name: String,
    version: i64,
    size: i64,
    mime_type: String,
    sha256: String,
    created: Option<f64>,
}

impl From<Artifact> for ArtifactAnswer {
    fn from(artifact: Artifact) -> Self {
        let name = artifact.name.strip_prefix("artifacts/");
        Self {
            name: name.unwrap_or(&artifact.name).to_owned(),
            version: artifact.version,
            size: artifact.size_bytes,
            mime_type: artifact.mime_type,
            sha256: artifact.sha256,
            created: seconds(artifact.create_time),
        }
    }
}

/// Skill of the catalogue.
#[derive(IntoPyObject, Debug)]
pub(crate) struct SkillAnswer {
    name: String,
    description: String,
    version: String,
    digest: String,
    body: String,
    usable: bool,
    problems: Vec<ProblemAnswer>,
}

impl From<Skill> for SkillAnswer {
    fn from(skill: Skill) -> Self {
        use skilld_client::v1::SkillState::{Loaded, LoadedWithWarnings};
        Self {
            usable: matches!(skill.state(), Loaded | LoadedWithWarnings),
            name: short_id(&skill.name),
            description: skill.description,
            version: skill.version,
            digest: skill.digest,
            body: skill.body,
            problems: skill
                .problems
                .into_iter()
                .map(ProblemAnswer::from)
                .collect(),
        }
    }
}

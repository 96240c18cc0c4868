//! File requests → what the guest is asked: paths and globs resolved, limits filled in.

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use skilld_proto::v1::stage_files_header::Kind;
use skilld_proto::v1::stage_files_request::Payload;

use super::{Faults, exec_name, int64, page_size, page_token, workspace_name};
use crate::collect::SaveAs;
use crate::config::FileConfig;
use crate::error::{Error, Result};
use crate::paths::{self, Scope};
use crate::skills::{SkillRef, Staged};
use crate::workspace::WorkspaceId;

/// Largest data of one message, bytes.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// Skills of one request.
pub const SKILLS_MAX: usize = 64;
/// Globs of one request.
pub const GLOBS_MAX: usize = 64;
/// Of one glob, bytes.
pub const GLOB_BYTES_MAX: usize = 1024;
const PAGE_DEFAULT: usize = 1000;
const PAGE_MAX: usize = 10_000;
/// All of read, write and execute.
const PERMISSIONS: u32 = 0o777;

/// Collects faults; a path that leaves the workspace or may not be written has a reason of its own, which is
/// answered when nothing else is wrong.
#[derive(Default)]
pub(super) struct Checks {
    pub(super) faults: Faults,
    other: Option<Error>,
}

impl Checks {
    pub(super) fn take<T: Default>(&mut self, field: &str, checked: Result<T>) -> T {
        match checked {
            Err(error @ (Error::PathEscapes { .. } | Error::ReadOnly { .. })) => {
                self.other.get_or_insert(error);
                T::default()
            }
            checked => self.faults.take(field, checked),
        }
    }

    pub(super) fn workspace(&mut self, name: &str) -> Option<WorkspaceId> {
        self.take("workspace", workspace_name("workspace", name).map(Some))
    }

    /// Everything is fine, and `workspace` is there; or all that is wrong.
    pub(super) fn finish(self, workspace: Option<WorkspaceId>) -> Result<WorkspaceId> {
        self.faults.finish()?;
        match (self.other, workspace) {
            (Some(error), _) => Err(error),
            (None, Some(workspace)) => Ok(workspace),
            (None, None) => Err(Error::invalid("workspace", "is missing")),
        }
    }
}

/// Checks a `StageSkillsRequest`.
///
/// # Errors
/// `Invalid` with every fault.
pub fn stage_skills(request: &pb::StageSkillsRequest) -> Result<(WorkspaceId, Vec<SkillRef>)> {
    let mut checks = Checks::default();
    let workspace = checks.workspace(&request.workspace);
    if !(1..=SKILLS_MAX).contains(&request.skills.len()) {
        let given = request.skills.len();
        checks.faults.add(
            "skills",
            format!("{given} skills; 1 to {SKILLS_MAX} can be staged at once"),
        );
    }
    let mut skills: Vec<SkillRef> = Vec::new();
    for (index, text) in request.skills.iter().enumerate().take(SKILLS_MAX) {
        let field = format!("skills[{index}]");
        let Some(skill) = checks.take(&field, SkillRef::parse(&field, text).map(Some)) else {
            continue;
        };
        if skills.iter().any(|other| other.name == skill.name) {
            checks
                .faults
                .add(field, format!("{} is named twice", skill.name));
        }
        skills.push(skill);
    }
    Ok((checks.finish(workspace)?, skills))
}

/// Staged skills for the wire.
#[must_use]
pub fn staged(skills: &[Staged]) -> pb::StageSkillsResponse {
    let skills = skills.iter().map(|skill| pb::StagedSkill {
        name: skill.name.clone(),
        digest: format!("sha256:{}", skill.digest),
        path: format!("{}/{}", paths::SKILLS_DIR, skill.name),
        files: int64(skill.files),
        bytes: int64(skill.bytes),
        unchanged: skill.unchanged,
        own_links: skill
            .own_links
            .iter()
            .map(|&name| name.to_owned())
            .collect(),
    });
    pb::StageSkillsResponse {
        skills: skills.collect(),
    }
}

/// Checks the first message of a StageFiles stream.
///
/// # Errors
/// `Invalid` with every fault; `PathEscapes`; `ReadOnly`.
pub fn stage_files(
    first: pb::StageFilesRequest,
    config: &FileConfig,
) -> Result<(WorkspaceId, guest::PutFilesHeader)> {
    let mut checks = Checks::default();
    let workspace = checks.workspace(&first.workspace);
    let mut header = match first.payload {
        Some(Payload::Header(header)) => header,
        Some(Payload::Data(_)) | None => {
            checks
                .faults
                .add("header", "is missing: it comes in the first message");
            pb::StageFilesHeader::default()
        }
    };
    let kind = Kind::try_from(header.kind);
    if kind.is_err() {
        checks
            .faults
            .add("header.kind", "is not a value that this server knows");
    }
    let archive = matches!(kind, Ok(Kind::Tar | Kind::TarGz));
    let resolved = paths::resolve("header.path", &header.path, Scope::default());
    let given = std::mem::take(&mut header.path);
    let resolved = resolved.and_then(|path| match paths::writable(&path) {
        Ok(()) if path.is_empty() && !archive => {
            Err(Error::invalid("header.path", "names no file"))
        }
        Ok(()) => Ok(path),
        Err(_) => Err(Error::ReadOnly { path: given }),
    });
    header.path = checks.take("header.path", resolved);
    if archive && header.mode != 0 {
        let message = "is for FILE only: an archive has modes of its own";
        checks.faults.add("header.mode", message);
    } else if header.mode & !PERMISSIONS != 0 {
        let message = "must be permission bits, at most 0777: set-id and sticky bits are refused";
        checks.faults.add("header.mode", message);
    }
    header.sha256 = checks.take("header.sha256", sha256("header.sha256", &header.sha256));
    let workspace = checks.finish(workspace)?;
    let header = guest::PutFilesHeader {
        file: Some(header),
        entries_max: config.archive_entries_max,
        bytes_max: config.stage_bytes_max,
    };
    Ok((workspace, header))
}

/// Checks any other message of a StageFiles stream.
///
/// # Errors
/// `Invalid`.
pub fn stage_data(message: pb::StageFilesRequest) -> Result<guest::PutFilesRequest> {
    match message.payload {
        Some(Payload::Data(data)) if data.len() <= DATA_BYTES_MAX => Ok(guest::PutFilesRequest {
            payload: Some(guest::put_files_request::Payload::Data(data)),
        }),
        Some(Payload::Data(data)) => Err(Error::invalid(
            "data",
            format!(
                "{} bytes in one message; at most {DATA_BYTES_MAX}",
                data.len()
            ),
        )),
        Some(Payload::Header(_)) => {
            Err(Error::invalid("header", "comes in the first message only"))
        }
        None => Err(Error::invalid("data", "is missing")),
    }
}

/// 64 hex digits, in lower case, or nothing.
pub(super) fn sha256(field: &str, text: &str) -> Result<String> {
    if text.is_empty() || (text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(Error::invalid(field, "must be 64 hex digits"))
}

/// Checks a `ListFilesRequest`.
///
/// # Errors
/// `Invalid` with every fault; `PathEscapes`.
pub fn list_files(
    request: &pb::ListFilesRequest,
) -> Result<(WorkspaceId, guest::ListFilesRequest)> {
    let mut checks = Checks::default();
    let workspace = checks.workspace(&request.workspace);
    let path = checks.take(
        "path",
        paths::resolve("path", &request.path, Scope::default()),
    );
    let size = page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX);
    let size = checks.take("page_size", size);
    let token = checks.take("page_token", page_token(&request.page_token));
    let request = guest::ListFilesRequest {
        path,
        recursive: request.recursive,
        page_size: u32::try_from(size).unwrap_or(u32::MAX),
        page_token: token.to_owned(),
    };
    Ok((checks.finish(workspace)?, request))
}

/// Checks a `ReadFileRequest`.
///
/// # Errors
/// `Invalid` with every fault; `PathEscapes`.
pub fn read_file(request: &pb::ReadFileRequest) -> Result<(WorkspaceId, guest::ReadFileRequest)> {
    let mut checks = Checks::default();
    let workspace = checks.workspace(&request.workspace);
    let path = checks.take(
        "path",
        paths::resolve("path", &request.path, Scope::default()),
    );
    let mut count = |field: &str, value: i64| {
        let checked =
            u64::try_from(value).map_err(|_| Error::invalid(field, "must not be negative"));
        checks.take(field, checked)
    };
    let (offset, length) = (
        count("offset", request.offset),
        count("length", request.length),
    );
    let request = guest::ReadFileRequest {
        path,
        offset,
        length,
    };
    Ok((checks.finish(workspace)?, request))
}

/// Checks a `CollectOutputsRequest`: what the guest is asked, and under which names the files are kept.
///
/// # Errors
/// `Invalid` with every fault; `PathEscapes`.
pub fn collect(
    request: pb::CollectOutputsRequest,
    config: &FileConfig,
) -> Result<(WorkspaceId, guest::CollectRequest, Option<SaveAs>)> {
    let mut checks = Checks::default();
    let workspace = checks.workspace(&request.workspace);
    let spec = request
        .spec
        .ok_or_else(|| Error::invalid("spec", "is missing"));
    let mut spec = checks.take("spec", spec);
    let exec = if spec.changed_since_exec.is_empty() {
        if spec.until_exec_end {
            let problem = "needs changed_since_exec";
            checks.faults.add("spec.until_exec_end", problem);
        }
        None
    } else {
        let field = "spec.changed_since_exec";
        let exec = checks.take(field, exec_name(field, &spec.changed_since_exec).map(Some));
        let here = workspace.as_ref().zip(exec.as_ref());
        if here.is_some_and(|(workspace, (of, _))| of != workspace) {
            checks.faults.add(field, "is an exec of another workspace");
        }
        exec.map(|(_, exec)| exec)
    };
    let scope = Scope {
        exec: exec.as_deref(),
        ..Scope::default()
    };
    let save_as = collect_spec(&mut checks, "spec", &mut spec, scope, config);
    if spec.skip_empty_after_failure && spec.changed_since_exec.is_empty() {
        let problem = "needs changed_since_exec";
        checks.faults.add("spec.skip_empty_after_failure", problem);
    }
    spec.save_as_artifacts = None;
    let workspace = checks.finish(workspace)?;
    Ok((
        workspace,
        guest::CollectRequest { spec: Some(spec) },
        save_as,
    ))
}

/// Checks what the caller plans to collect after an exec.
///
/// # Errors
/// `Invalid` with every fault; `PathEscapes`.
pub fn planned_collect(
    mut spec: pb::CollectSpec,
    workspace: &WorkspaceId,
    exec: &str,
    config: &FileConfig,
) -> Result<()> {
    let mut checks = Checks::default();
    let scope = Scope {
        exec: Some(exec),
        ..Scope::default()
    };
    collect_spec(
        &mut checks,
        "spec.planned_collect",
        &mut spec,
        scope,
        config,
    );
    checks.finish(Some(workspace.clone()))?;
    Ok(())
}

/// Checks and completes what is collected when an exec ends.
///
/// # Errors
/// `Invalid` with every fault; `PathEscapes`.
pub fn collect_on_exit(
    spec: &mut pb::CollectSpec,
    workspace: &WorkspaceId,
    exec: &str,
    skill: &str,
    config: &FileConfig,
) -> Result<()> {
    let mut checks = Checks::default();
    let scope = Scope {
        exec: Some(exec),
        skill: Some(skill).filter(|skill| !skill.is_empty()),
        ..Scope::default()
    };
    let field = "spec.collect";
    collect_spec(&mut checks, field, spec, scope, config);
    if spec.save_as_artifacts.is_none() {
        let message = "is missing: nobody else would get the files";
        checks
            .faults
            .add(format!("{field}.save_as_artifacts"), message);
    }
    let name = format!("{}/execs/{exec}", workspace.name());
    if !spec.changed_since_exec.is_empty() && spec.changed_since_exec != name {
        let message = "is this exec: leave it out";
        checks
            .faults
            .add(format!("{field}.changed_since_exec"), message);
    }
    spec.changed_since_exec = name;
    spec.set_format(pb::CollectFormat::Files);
    checks.finish(Some(workspace.clone()))?;
    Ok(())
}

/// What both have in common.
fn collect_spec(
    checks: &mut Checks,
    field: &str,
    spec: &mut pb::CollectSpec,
    scope: Scope<'_>,
    config: &FileConfig,
) -> Option<SaveAs> {
    globs(checks, field, &mut spec.globs, scope);
    let mut limit =
        |name: &str, value: &mut i64, default: u64, max: u64| match u64::try_from(*value) {
            Ok(0) => *value = int64(default.min(max)),
            Ok(value) if value <= max => {}
            _ => checks.faults.add(
                format!("{field}.{name}"),
                format!("must be 0 to {max}, this server's maximum"),
            ),
        };
    limit(
        "max_files",
        &mut spec.max_files,
        config.collect_files_default,
        config.collect_files_max,
    );
    limit(
        "max_file_bytes",
        &mut spec.max_file_bytes,
        config.collect_file_bytes_default,
        config.collect_file_bytes_max,
    );
    limit(
        "max_total_bytes",
        &mut spec.max_total_bytes,
        config.collect_total_bytes_default,
        config.collect_total_bytes_max,
    );
    let format = pb::CollectFormat::try_from(spec.format);
    if format.is_err() {
        let message = "is not a value that this server knows";
        checks.faults.add(format!("{field}.format"), message);
    }
    let asked = spec.save_as_artifacts.as_ref()?;
    let field = format!("{field}.save_as_artifacts");
    if matches!(
        format,
        Ok(pb::CollectFormat::Tar | pb::CollectFormat::TarGz)
    ) {
        let message = "is for FILES only: an archive is one stream";
        checks.faults.add(field.clone(), message);
    }
    checks.take(&field, SaveAs::parse(&field, asked).map(Some))
}

fn globs(checks: &mut Checks, field: &str, globs: &mut [String], scope: Scope<'_>) {
    if !(1..=GLOBS_MAX).contains(&globs.len()) {
        let message = format!("{} globs; 1 to {GLOBS_MAX} can be given", globs.len());
        checks.faults.add(format!("{field}.globs"), message);
    }
    for (index, glob) in globs.iter_mut().enumerate().take(GLOBS_MAX) {
        let field = format!("{field}.globs[{index}]");
        if glob.len() > GLOB_BYTES_MAX {
            let message = format!("{} bytes; at most {GLOB_BYTES_MAX}", glob.len());
            checks.faults.add(field, message);
        } else {
            *glob = checks.take(&field, paths::glob(&field, glob, scope));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: FileConfig = FileConfig {
        archive_entries_max: 20_000,
        stage_bytes_max: 1 << 30,
        host_roots: Vec::new(),
        input_urls: false,
        input_private_addresses: false,
        collect_files_default: 100,
        collect_files_max: 1_000,
        collect_file_bytes_default: 4 << 20,
        collect_file_bytes_max: 8 << 20,
        collect_total_bytes_default: 64 << 20,
        collect_total_bytes_max: 128 << 20,
        collect_on_exit_timeout: std::time::Duration::from_secs(60),
    };

    /// Fields that are refused, in order, or the reason.
    fn refused<T: std::fmt::Debug>(result: Result<T>) -> Vec<String> {
        let error = result.expect_err("must be refused");
        if let Error::Invalid(violations) = error {
            violations
                .into_iter()
                .map(|violation| violation.field)
                .collect()
        } else {
            vec![error.kind().1.as_str_name().to_owned()]
        }
    }

    fn header(path: &str) -> pb::StageFilesHeader {
        pb::StageFilesHeader {
            path: path.to_owned(),
            ..Default::default()
        }
    }

    fn first(header: pb::StageFilesHeader) -> pb::StageFilesRequest {
        pb::StageFilesRequest {
            workspace: "workspaces/w".to_owned(),
            payload: Some(Payload::Header(header)),
        }
    }

    fn collected(spec: pb::CollectSpec) -> Result<pb::CollectSpec> {
        let request = pb::CollectOutputsRequest {
            workspace: "workspaces/w".to_owned(),
            spec: Some(spec),
        };
        collect(request, &CONFIG).map(|(_, request, _)| request.spec.expect("spec"))
    }

    fn spec(globs: &[&str]) -> pb::CollectSpec {
        pb::CollectSpec {
            globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn a_staged_file_is_resolved_and_bounded() {
        let sha256 = "A".repeat(64);
        let given = pb::StageFilesHeader {
            mode: 0o755,
            sha256: sha256.clone(),
            ..header("inputs/a.csv")
        };
        let (workspace, header) = stage_files(first(given), &CONFIG).expect("good");
        assert_eq!(workspace.as_str(), "w");
        assert_eq!((header.entries_max, header.bytes_max), (20_000, 1 << 30));
        let file = header.file.expect("file");
        assert_eq!(
            (file.path.as_str(), file.mode),
            ("work/inputs/a.csv", 0o755)
        );
        assert_eq!(file.sha256, sha256.to_lowercase());
    }

    #[test]
    fn paths_that_may_not_be_written_have_their_reason() {
        let stage = |path: &str| refused(stage_files(first(header(path)), &CONFIG));
        assert_eq!(stage("../x"), ["REASON_PATH_ESCAPES"]);
        assert_eq!(stage("/etc/passwd"), ["REASON_PATH_ESCAPES"]);
        assert_eq!(stage("skills/a/x"), ["REASON_READ_ONLY"]);
        assert_eq!(stage("$SKILLS_DIR"), ["REASON_READ_ONLY"]);
        assert_eq!(stage("a\0"), ["header.path"]);
        assert_eq!(stage(""), ["header.path"]);
        assert_eq!(stage("."), ["header.path"]);
    }

    #[test]
    fn every_fault_of_a_header_is_named_at_once() {
        let bad = pb::StageFilesHeader {
            kind: 99,
            mode: 0o4755,
            sha256: "x".to_owned(),
            path: "$NOPE/x".to_owned(),
        };
        let request = pb::StageFilesRequest {
            workspace: "nope".to_owned(),
            ..first(bad)
        };
        let expected = [
            "workspace",
            "header.kind",
            "header.path",
            "header.mode",
            "header.sha256",
        ];
        assert_eq!(refused(stage_files(request, &CONFIG)), expected);
        let tar = pb::StageFilesHeader {
            kind: Kind::Tar.into(),
            mode: 0o644,
            ..header("")
        };
        assert_eq!(refused(stage_files(first(tar), &CONFIG)), ["header.mode"]);
    }

    #[test]
    fn data_messages_are_bounded() {
        let data = |len: usize| pb::StageFilesRequest {
            workspace: String::new(),
            payload: Some(Payload::Data(vec![0; len].into())),
        };
        assert!(stage_data(data(DATA_BYTES_MAX)).is_ok());
        assert_eq!(refused(stage_data(data(DATA_BYTES_MAX + 1))), ["data"]);
        assert_eq!(refused(stage_data(first(header("a")))), ["header"]);
        assert_eq!(
            refused(stage_data(pb::StageFilesRequest::default())),
            ["data"]
        );
        assert_eq!(refused(stage_files(data(1), &CONFIG))[1], "header");
    }

    #[test]
    fn collect_limits_are_filled_in_and_never_cut_silently() {
        let filled = collected(spec(&["$OUTPUT_DIR/**", "inputs/*"])).expect("good");
        assert_eq!(filled.globs, ["out/**", "work/inputs/*"]);
        assert_eq!(
            (
                filled.max_files,
                filled.max_file_bytes,
                filled.max_total_bytes
            ),
            (100, 4 << 20, 64 << 20)
        );
        let over = pb::CollectSpec {
            max_files: 1_001,
            max_file_bytes: -1,
            max_total_bytes: i64::MAX,
            ..spec(&["**"])
        };
        assert_eq!(
            refused(collected(over)),
            [
                "spec.max_files",
                "spec.max_file_bytes",
                "spec.max_total_bytes"
            ]
        );
    }

    #[test]
    fn collect_specs_are_checked() {
        assert_eq!(refused(collected(spec(&[]))), ["spec.globs"]);
        assert_eq!(refused(collected(spec(&["x"; 65]))), ["spec.globs"]);
        assert_eq!(
            refused(collected(spec(&["ok", "[a", ""]))),
            ["spec.globs[1]", "spec.globs[2]"]
        );
        assert_eq!(refused(collected(spec(&["../*"]))), ["REASON_PATH_ESCAPES"]);
        assert_eq!(
            refused(collected(spec(&[&"x".repeat(1025)]))),
            ["spec.globs[0]"]
        );
        let since = |name: &str| pb::CollectSpec {
            changed_since_exec: name.to_owned(),
            ..spec(&["**"])
        };
        assert!(collected(since("workspaces/w/execs/e")).is_ok());
        for bad in ["e", "workspaces/other/execs/e", "workspaces/w"] {
            assert_eq!(
                refused(collected(since(bad))),
                ["spec.changed_since_exec"],
                "{bad}"
            );
        }
        let until = pb::CollectSpec {
            until_exec_end: true,
            ..spec(&["**"])
        };
        assert_eq!(refused(collected(until)), ["spec.until_exec_end"]);
        let save = pb::CollectSpec {
            save_as_artifacts: Some(pb::SaveAsArtifacts::default()),
            ..spec(&["**"])
        };
        assert!(collected(save.clone()).is_ok());
        let archive = pb::CollectSpec {
            format: pb::CollectFormat::Tar.into(),
            ..save
        };
        assert_eq!(refused(collected(archive)), ["spec.save_as_artifacts"]);
        let format = pb::CollectSpec {
            format: 9,
            ..spec(&["**"])
        };
        assert_eq!(refused(collected(format)), ["spec.format"]);
    }

    #[test]
    fn reading_and_listing_are_checked() {
        let read = pb::ReadFileRequest {
            workspace: "workspaces/w".to_owned(),
            path: "$WORK_DIR/../out/x".to_owned(),
            offset: -1,
            length: -1,
        };
        assert_eq!(refused(read_file(&read)), ["offset", "length"]);
        let list = pb::ListFilesRequest {
            workspace: "workspaces/w".to_owned(),
            path: "/workspace/out/".to_owned(),
            ..Default::default()
        };
        let (_, request) = list_files(&list).expect("good");
        assert_eq!((request.path.as_str(), request.page_size), ("out", 1000));
        let list = pb::ListFilesRequest {
            page_size: 10_001,
            ..list
        };
        assert_eq!(refused(list_files(&list)), ["page_size"]);
    }

    #[test]
    fn skills_are_named_once() {
        let request = |skills: &[&str]| pb::StageSkillsRequest {
            workspace: "workspaces/w".to_owned(),
            skills: skills.iter().map(|skill| (*skill).to_owned()).collect(),
        };
        assert_eq!(
            stage_skills(&request(&["a", "b@1"])).expect("good").1.len(),
            2
        );
        assert_eq!(refused(stage_skills(&request(&[]))), ["skills"]);
        assert_eq!(refused(stage_skills(&request(&["a"; 65])))[0], "skills");
        assert_eq!(
            refused(stage_skills(&request(&["a", "../x", "a@1"]))),
            ["skills[1]", "skills[2]"]
        );
    }
}

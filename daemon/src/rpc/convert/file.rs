//! Checks of file requests, converted to requests for the guest: paths and globs resolved, limits filled in.

use std::ops::RangeInclusive;

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1::stage_files_request::Payload;
use skilld_proto::v1::{self as pb, StageFormat};

use super::{ViolationCollector, check_upload_data, environment, int64, parse_exec_name};
use crate::collect::SaveAs;
use crate::config::FilesConfig;
use crate::environments::StagedEnvironment;
use crate::error::{Error, Result};
use crate::guest::ARCHIVE_ENTRIES_MAX;
use crate::skills::{SkillRef, StagedSkill};
use crate::workspace::WorkspaceId;
use crate::workspace_paths::{self, PathContext};

/// Maximum data of one message of a stream, in bytes.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// Maximum number of skills in one request.
pub const SKILLS_MAX: usize = 64;

/// Limit that a request may set.
#[derive(Debug, Clone, Copy)]
pub struct RequestLimit {
    /// Value of a request that sets none.
    pub default: u64,
    /// Largest value.
    pub max: u64,
}

/// Number of files of one collection. Files are streamed, so these limits protect clients from unexpected amounts, not
/// the daemon.
pub const COLLECT_FILES: RequestLimit = RequestLimit {
    default: 100,
    max: 50_000,
};
/// Size of one collected file in bytes, after which it is cut.
pub const COLLECT_FILE_BYTES: RequestLimit = RequestLimit {
    default: 4 << 20,
    max: 4 << 30,
};
/// Size of all files of one collection in bytes.
pub const COLLECT_TOTAL_BYTES: RequestLimit = RequestLimit {
    default: 64 << 20,
    max: 16 << 30,
};
/// Maximum number of globs in one request.
pub const GLOBS_MAX: usize = 64;
/// Maximum length of one glob, in bytes.
pub const GLOB_BYTES_MAX: usize = 1024;
const PAGE_SIZE_DEFAULT: usize = 1000;
const PAGE_SIZE_MAX: usize = 10_000;
/// Range of a protobuf Timestamp, in seconds since 1970.
const TIMESTAMP_SECONDS: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;
/// Permission bits that a staged file may have: read, write and execute for all.
const PERMISSION_BITS: u32 = 0o777;

/// Checks a `StageSkillsRequest`.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_stage_skills(
    request: &pb::StageSkillsRequest,
) -> Result<(WorkspaceId, Vec<SkillRef>)> {
    let mut violations = ViolationCollector::default();
    let workspace = violations.workspace_name("workspace", &request.workspace);
    violations.one_to("skills", request.skills.len(), SKILLS_MAX, "skills");
    let mut skills: Vec<SkillRef> = Vec::new();
    for (index, text) in request.skills.iter().enumerate().take(SKILLS_MAX) {
        let field = format!("skills[{index}]");
        let parsed = super::skill::check_skill_name(&field, text);
        let Some(skill) = violations.take(parsed) else {
            continue;
        };
        if skills.iter().any(|other| other.name == skill.name) {
            violations.add(field, format_args!("{} is named twice", skill.name));
        }
        skills.push(skill);
    }
    Ok((violations.finish_with(workspace)?, skills))
}

/// Makes the answer of a StageSkills.
pub fn staged_skills_message(
    skills: &[(StagedSkill, StagedEnvironment)],
) -> pb::StageSkillsResponse {
    let messages = skills.iter().map(|(skill, environment)| pb::StagedSkill {
        name: super::skill::skill_name(&skill.name),
        digest: format!("sha256:{}", skill.digest),
        path: format!("{}/{}", workspace_paths::SKILLS_DIR, skill.name),
        file_count: int64(skill.files),
        size_bytes: int64(skill.bytes),
        unchanged: skill.unchanged,
        writable: skill.writable_path.is_some(),
        modified: skill.is_modified,
        own_links: skill
            .own_links
            .iter()
            .map(|&name| name.to_owned())
            .collect(),
        environment: environment
            .record
            .as_deref()
            .map(environment::environment_summary),
        problems: super::skill::problem_messages(
            &[skill.problems.as_slice(), &environment.problems].concat(),
        ),
    });
    pb::StageSkillsResponse {
        skills: messages.collect(),
    }
}

/// Checks the first message of a StageFiles stream.
///
/// # Errors
/// `Invalid` with every violation; otherwise `PathEscapes` or `ReadOnly`.
pub fn check_stage_files(
    first: pb::StageFilesRequest,
    config: &FilesConfig,
) -> Result<(WorkspaceId, guest::PutFilesHeader)> {
    let Some(Payload::Header(mut header)) = first.payload else {
        let message = "is missing: it comes in the first message";
        return Err(Error::invalid("header", message));
    };
    let mut violations = ViolationCollector::default();
    let workspace = violations.workspace_name("header.workspace", &header.workspace);
    let format = violations.known_enum("header.format", header.format);
    let is_archive = matches!(format, Some(StageFormat::Tar | StageFormat::TarGz));
    header.path = violations
        .take(resolve_target(&header.path, is_archive))
        .unwrap_or_default();
    if is_archive && header.mode.is_some() {
        violations.add(
            "header.mode",
            "is for FILE only: an archive has modes of its own",
        );
    } else if header.mode.unwrap_or_default() & !PERMISSION_BITS != 0 {
        let message = "must be permission bits, at most 0777: set-id and sticky bits are refused";
        violations.add("header.mode", message);
    }
    header.sha256 = violations.sha256("header.sha256", &header.sha256);
    if is_archive && header.modify_time.is_some() {
        let message = "is for FILE only: an archive has times of its own";
        violations.add("header.modify_time", message);
    }
    // A file may have any time where it comes from. Its contents matter more, as those of an archive's entry do.
    header.modify_time = header.modify_time.filter(|mtime| {
        TIMESTAMP_SECONDS.contains(&mtime.seconds) && (0..1_000_000_000).contains(&mtime.nanos)
    });
    let workspace = violations.finish_with(workspace)?;
    let header = guest::PutFilesHeader {
        file: Some(header),
        entries_max: ARCHIVE_ENTRIES_MAX,
        bytes_max: config.stage_bytes_max,
    };
    Ok((workspace, header))
}

/// Resolves the path of a staged file or of the directory for an archive.
fn resolve_target(given: &str, is_archive: bool) -> Result<String> {
    let path = workspace_paths::resolve_path("header.path", given, PathContext::default())?;
    workspace_paths::check_writable(&path).map_err(|_| Error::ReadOnly {
        path: given.to_owned(),
    })?;
    if path.is_empty() && !is_archive {
        return Err(Error::invalid("header.path", "names no file"));
    }
    Ok(path)
}

/// Checks a later message of a StageFiles stream.
///
/// # Errors
/// `Invalid`.
pub fn check_stage_data(message: pb::StageFilesRequest) -> Result<guest::PutFilesRequest> {
    let data = check_upload_data(message.payload.map(|payload| match payload {
        Payload::Data(data) => Some(data),
        Payload::Header(_) => None,
    }))?;
    Ok(guest::PutFilesRequest {
        payload: Some(guest::put_files_request::Payload::Data(data)),
    })
}

/// Checks a `ListFilesRequest`.
///
/// # Errors
/// `Invalid` with every violation; otherwise `PathEscapes`.
pub fn check_list_files(
    request: &pb::ListFilesRequest,
) -> Result<(WorkspaceId, guest::ListFilesRequest)> {
    let mut violations = ViolationCollector::default();
    let workspace = violations.workspace_name("parent", &request.parent);
    let path = violations.take(workspace_paths::resolve_path(
        "path",
        &request.path,
        PathContext::default(),
    ));
    let size = violations.page_size(request.page_size, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX);
    let token = violations.page_token(&request.page_token);
    let request = guest::ListFilesRequest {
        path: path.unwrap_or_default(),
        recursive: request.recursive,
        page_size: u32::try_from(size).unwrap_or(u32::MAX),
        page_token: token.to_owned(),
    };
    Ok((violations.finish_with(workspace)?, request))
}

/// Checks a `ReadFileRequest`.
///
/// # Errors
/// `Invalid` with every violation; otherwise `PathEscapes`.
pub fn check_read_file(
    request: &pb::ReadFileRequest,
) -> Result<(WorkspaceId, guest::ReadFileRequest)> {
    let mut violations = ViolationCollector::default();
    let workspace = violations.workspace_name("workspace", &request.workspace);
    let path = violations.take(workspace_paths::resolve_path(
        "path",
        &request.path,
        PathContext::default(),
    ));
    let request = guest::ReadFileRequest {
        path: path.unwrap_or_default(),
        offset: violations.not_negative("offset", request.offset),
        length: violations.not_negative("length", request.length),
    };
    Ok((violations.finish_with(workspace)?, request))
}

/// Checks a `CollectOutputsRequest`. Returns the workspace, the guest's request, and how to save the files as artifacts
/// (`None` if the request does not ask for that).
///
/// # Errors
/// `Invalid` with every violation; otherwise `PathEscapes`.
pub fn check_collect_outputs(
    request: pb::CollectOutputsRequest,
) -> Result<(WorkspaceId, guest::CollectRequest, Option<SaveAs>)> {
    let mut violations = ViolationCollector::default();
    let workspace = violations.workspace_name("workspace", &request.workspace);
    let Some(mut spec) = request.spec else {
        violations.add("spec", "is missing");
        return violations.finish_with(None);
    };
    let is_since_exec = !spec.changed_since_exec.is_empty();
    for (field, is_set) in [
        ("spec.until_exec_end", spec.until_exec_end),
        (
            "spec.skip_empty_after_failure",
            spec.skip_empty_after_failure,
        ),
    ] {
        if is_set && !is_since_exec {
            violations.add(field, "needs changed_since_exec");
        }
    }
    let mut exec_id = None;
    if is_since_exec {
        let field = "spec.changed_since_exec";
        let exec = violations.take(parse_exec_name(field, &spec.changed_since_exec));
        let both = workspace.as_ref().zip(exec.as_ref());
        if both.is_some_and(|(workspace, (other, _))| other != workspace) {
            violations.add(field, "is an exec of another workspace");
        }
        exec_id = exec.map(|(_, exec)| exec);
    }
    let scope = PathContext {
        exec: exec_id.as_deref(),
        ..PathContext::default()
    };
    let save_as = check_collect_spec(&mut violations, "spec", &mut spec, scope);
    spec.save_as_artifacts = None;
    let workspace = violations.finish_with(workspace)?;
    let request = guest::CollectRequest { spec: Some(spec) };
    Ok((workspace, request, save_as))
}

/// Checks the collection that a caller plans to make after an exec.
///
/// # Errors
/// `Invalid` with every violation; otherwise `PathEscapes`.
pub fn check_planned_collect(mut spec: pb::CollectSpec, exec: &str) -> Result<()> {
    let mut violations = ViolationCollector::default();
    check_exec_collect(&mut violations, "spec.planned_collect", &mut spec, exec);
    violations.finish()
}

/// Checks the spec of a collection after an exec, with the fields that all collections share.
pub(super) fn check_exec_collect(
    violations: &mut ViolationCollector,
    field: &str,
    spec: &mut pb::CollectSpec,
    exec: &str,
) -> Option<SaveAs> {
    let scope = PathContext {
        exec: Some(exec),
        ..PathContext::default()
    };
    check_collect_spec(violations, field, spec, scope)
}

/// Checks the fields that all collections share, resolves the globs and fills in the limits.
fn check_collect_spec(
    violations: &mut ViolationCollector,
    field: &str,
    spec: &mut pb::CollectSpec,
    scope: PathContext<'_>,
) -> Option<SaveAs> {
    check_globs(
        violations,
        &format!("{field}.globs"),
        &mut spec.globs,
        scope,
    );
    let limits = [
        ("max_files", &mut spec.max_files, COLLECT_FILES),
        (
            "max_file_bytes",
            &mut spec.max_file_bytes,
            COLLECT_FILE_BYTES,
        ),
        (
            "max_total_bytes",
            &mut spec.max_total_bytes,
            COLLECT_TOTAL_BYTES,
        ),
    ];
    for (name, value, limit) in limits {
        let field = format!("{field}.{name}");
        *value = int64(violations.number_or(&field, *value, limit.default, limit.max));
    }
    let format = violations.known_enum(&format!("{field}.format"), spec.format);
    let requested = spec.save_as_artifacts.as_ref()?;
    let directories_field = format!("{field}.include_directories");
    let field = format!("{field}.save_as_artifacts");
    if matches!(
        format,
        Some(pb::CollectFormat::Tar | pb::CollectFormat::TarGz)
    ) {
        let message = "is for FILES only: an archive is one stream";
        violations.add(field.clone(), message);
    }
    if spec.include_directories {
        let message = "is not for save_as_artifacts: a directory has no bytes";
        violations.add(directories_field, message);
    }
    violations.request_id(&format!("{field}.request_id"), &requested.request_id);
    violations.take(SaveAs::parse(&field, requested))
}

fn check_globs(
    violations: &mut ViolationCollector,
    field: &str,
    globs: &mut [String],
    scope: PathContext<'_>,
) {
    violations.one_to(field, globs.len(), GLOBS_MAX, "globs");
    for (index, glob) in globs.iter_mut().enumerate().take(GLOBS_MAX) {
        let field = format!("{field}[{index}]");
        if glob.len() > GLOB_BYTES_MAX {
            violations.bytes_at_most(&field, glob.len(), GLOB_BYTES_MAX);
        } else if let Some(resolved) =
            violations.take(workspace_paths::resolve_glob(&field, glob, scope))
        {
            *glob = resolved;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: FilesConfig = FilesConfig {
        stage_bytes_max: 1 << 30,
        host_roots: Vec::new(),
        input_urls: false,
        input_private_addresses: false,
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
        let workspace = "workspaces/w".to_owned();
        pb::StageFilesRequest {
            payload: Some(Payload::Header(pb::StageFilesHeader {
                workspace,
                ..header
            })),
        }
    }

    fn collected(spec: pb::CollectSpec) -> Result<pb::CollectSpec> {
        let request = pb::CollectOutputsRequest {
            workspace: "workspaces/w".to_owned(),
            spec: Some(spec),
        };
        check_collect_outputs(request).map(|(_, request, _)| request.spec.expect("spec"))
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
            mode: Some(0o755),
            sha256: sha256.clone(),
            ..header("inputs/a.csv")
        };
        let (workspace, header) = check_stage_files(first(given), &CONFIG).expect("good");
        assert_eq!(workspace.as_str(), "w");
        assert_eq!(
            (header.entries_max, header.bytes_max),
            (ARCHIVE_ENTRIES_MAX, 1 << 30)
        );
        let file = header.file.expect("file");
        assert_eq!(
            (file.path.as_str(), file.mode),
            ("work/inputs/a.csv", Some(0o755))
        );
        assert_eq!(file.sha256, sha256.to_lowercase());
    }

    #[test]
    fn paths_that_may_not_be_written_have_their_reason() {
        let stage = |path: &str| refused(check_stage_files(first(header(path)), &CONFIG));
        assert_eq!(stage("../x"), ["ERROR_REASON_PATH_ESCAPES"]);
        assert_eq!(stage("/etc/passwd"), ["ERROR_REASON_PATH_ESCAPES"]);
        assert_eq!(stage("skills/a/x"), ["ERROR_REASON_READ_ONLY"]);
        assert_eq!(stage("$SKILLS_DIR"), ["ERROR_REASON_READ_ONLY"]);
        assert_eq!(stage("a\0"), ["header.path"]);
        assert_eq!(stage(""), ["header.path"]);
        assert_eq!(stage("."), ["header.path"]);
    }

    #[test]
    fn every_violation_of_a_header_is_reported_at_once() {
        let bad = pb::StageFilesHeader {
            workspace: "nope".to_owned(),
            format: 99,
            mode: Some(0o4755),
            sha256: "x".to_owned(),
            path: "$NOPE/x".to_owned(),
            ..Default::default()
        };
        let request = pb::StageFilesRequest {
            payload: Some(Payload::Header(bad)),
        };
        let expected = [
            "header.workspace",
            "header.format",
            "header.path",
            "header.mode",
            "header.sha256",
        ];
        assert_eq!(refused(check_stage_files(request, &CONFIG)), expected);
        let tar = pb::StageFilesHeader {
            format: StageFormat::Tar.into(),
            mode: Some(0o644),
            ..header("")
        };
        assert_eq!(
            refused(check_stage_files(first(tar), &CONFIG)),
            ["header.mode"]
        );
        let tar = pb::StageFilesHeader {
            format: StageFormat::Tar.into(),
            modify_time: Some(prost_types::Timestamp::default()),
            ..header("")
        };
        assert_eq!(
            refused(check_stage_files(first(tar), &CONFIG)),
            ["header.modify_time"]
        );
    }

    #[test]
    fn a_time_that_no_message_can_have_refuses_no_file() {
        for (seconds, nanos, is_kept) in [
            (7, 5, true),
            (-62_135_596_800, 0, true),
            (-62_135_596_801, 0, false),
            (253_402_300_799, 999_999_999, true),
            (253_402_300_800, 0, false),
            (i64::MAX, 0, false),
            (7, -1, false),
            (7, 1_000_000_000, false),
        ] {
            let mtime = Some(prost_types::Timestamp { seconds, nanos });
            let header = pb::StageFilesHeader {
                format: StageFormat::File.into(),
                modify_time: mtime,
                ..header("out/x")
            };
            let (_, request) = check_stage_files(first(header), &CONFIG).expect("staged");
            let kept = request.file.expect("a header").modify_time;
            assert_eq!(kept, mtime.filter(|_| is_kept), "{seconds}.{nanos}");
        }
    }

    #[test]
    fn data_messages_are_bounded() {
        let data = |len: usize| pb::StageFilesRequest {
            payload: Some(Payload::Data(vec![0; len].into())),
        };
        assert!(check_stage_data(data(DATA_BYTES_MAX)).is_ok());
        assert_eq!(
            refused(check_stage_data(data(DATA_BYTES_MAX + 1))),
            ["data"]
        );
        assert_eq!(refused(check_stage_data(first(header("a")))), ["header"]);
        assert_eq!(
            refused(check_stage_data(pb::StageFilesRequest::default())),
            ["data"]
        );
        assert_eq!(refused(check_stage_files(data(1), &CONFIG)), ["header"]);
    }

    #[test]
    fn collect_limits_are_filled_in_and_never_reduced_silently() {
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
            max_files: 50_001,
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
            refused(collected(spec(&["ok", "", "$NOPE/x"]))),
            ["spec.globs[1]", "spec.globs[2]"]
        );
        // A name is no reason to refuse a collection.
        for name in ["app/[[...slug]]/page.tsx", "x{1", "a\\", "[ä]"] {
            assert_eq!(collected(spec(&[name])).expect(name).globs, [name]);
        }
        assert_eq!(
            refused(collected(spec(&["../*"]))),
            ["ERROR_REASON_PATH_ESCAPES"]
        );
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
        let directories = pb::CollectSpec {
            include_directories: true,
            ..save.clone()
        };
        assert_eq!(
            refused(collected(directories)),
            ["spec.include_directories"]
        );
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
        assert_eq!(refused(check_read_file(&read)), ["offset", "length"]);
        let list = pb::ListFilesRequest {
            parent: "workspaces/w".to_owned(),
            path: "/workspace/out/".to_owned(),
            ..Default::default()
        };
        let (_, request) = check_list_files(&list).expect("good");
        assert_eq!((request.path.as_str(), request.page_size), ("out", 1000));
        let list = pb::ListFilesRequest {
            page_size: 10_001,
            ..list
        };
        let (_, request) = check_list_files(&list).expect("reduced");
        assert_eq!(request.page_size, 10_000);
        let list = pb::ListFilesRequest {
            page_size: -1,
            ..list
        };
        assert_eq!(refused(check_list_files(&list)), ["page_size"]);
    }

    #[test]
    fn skills_are_named_once() {
        let request = |skills: &[&str]| pb::StageSkillsRequest {
            workspace: "workspaces/w".to_owned(),
            skills: skills.iter().map(|skill| (*skill).to_owned()).collect(),
            writable: false,
        };
        assert_eq!(
            check_stage_skills(&request(&["skills/a", "skills/b@1"]))
                .expect("good")
                .1
                .len(),
            2
        );
        assert_eq!(refused(check_stage_skills(&request(&[]))), ["skills"]);
        assert_eq!(
            refused(check_stage_skills(&request(&["skills/a"; 65])))[0],
            "skills"
        );
        assert_eq!(
            refused(check_stage_skills(&request(&[
                "skills/a",
                "skills/../x",
                "skills/a@1",
                "b"
            ]))),
            ["skills[1]", "skills[2]", "skills[3]"]
        );
    }
}

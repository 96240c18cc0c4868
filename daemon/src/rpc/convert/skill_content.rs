//! Conversion of requests that search skills, read their files and preflight them, and of their answers.

use skilld_proto::v1::SkillFileKind as WireKind;
use skilld_proto::v1::{self as pb, NeedKind as Missing};

use super::page::{Page, keep_fitting};
use super::{ViolationCollector, int64, shown, skill as wire};
use crate::error::Result;
use crate::skills::preflight::{NeedKind, UnmetNeed};
use crate::skills::search::QUERY_BYTES_MAX;
use crate::skills::skill_files::{FilePurpose, Manifest, SkillFile};
use crate::skills::{ADDED_PACKAGES_MAX, AddedPackages, SearchMatch, Severity, SkillRef};
use crate::workspace_paths;

const LIMIT_DEFAULT: usize = 25;
const LIMIT_MAX: usize = 100;
const PAGE_DEFAULT: usize = 1000;
const PAGE_MAX: usize = 10_000;
/// Maximum number of environment variables of a preflight.
const ENV_MAX: usize = 1000;
/// Maximum length of one variable's name, in bytes.
const ENV_NAME_BYTES_MAX: usize = 256;

/// Checked `ListSkillFilesRequest`.
#[derive(Debug)]
pub struct FileListingRequest {
    /// Skill whose files are listed.
    pub skill: SkillRef,
    size: usize,
    /// Path after which the page begins; empty for the first page.
    after: String,
    /// Folder to list, with a slash at its end; empty for the whole skill.
    folder: String,
}

/// Checked `ReadSkillFileRequest`.
#[derive(Debug)]
pub struct FileReadRequest {
    /// Skill whose file is read.
    pub skill: SkillRef,
    /// Normalised path in the skill, with `..` at its beginning in the folders around it; or in its plugin.
    pub path: String,
    /// `true` if the path is that in the skill's plugin.
    pub in_plugin: bool,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes; `None` means up to the end.
    pub length: Option<u64>,
    /// `true` replaces placeholders by paths of the workspace.
    pub workspace_paths: bool,
}

/// Checks a `SearchSkillsRequest`. Returns the page of matches.
///
/// # Errors
/// `Invalid`.
pub fn check_search_skills(request: &pb::SearchSkillsRequest) -> Result<Page> {
    let mut violations = ViolationCollector::default();
    if request.query.len() > QUERY_BYTES_MAX {
        violations.add("query", format!("must be at most {QUERY_BYTES_MAX} bytes"));
    }
    let size = violations.page_size(request.page_size, LIMIT_DEFAULT, LIMIT_MAX);
    violations.known_enum::<pb::SkillScoring>("scoring", request.scoring);
    let page = Page::begin(&mut violations, size, &request.page_token);
    violations.finish()?;
    Ok(page)
}

/// Makes the answer of a search: one page of the matches.
pub fn matches_message(found: &[SearchMatch], page: Page) -> pb::SearchSkillsResponse {
    let one = |found: &SearchMatch| pb::SkillMatch {
        skill: Some(wire::skill_message(&found.skill, String::new())),
        score: found.score,
        matched_fields: found
            .fields
            .iter()
            .map(|field| (*field).to_owned())
            .collect(),
    };
    let (matches, next_page_token) = page.take(found.iter().map(one));
    pb::SearchSkillsResponse {
        matches,
        next_page_token,
    }
}

/// Checks a `ListSkillFilesRequest`.
///
/// # Errors
/// `Invalid`; `LeavesSkill` for its path.
pub fn check_list_skill_files(request: &pb::ListSkillFilesRequest) -> Result<FileListingRequest> {
    let mut violations = ViolationCollector::default();
    let skill = violations.take(wire::check_skill_name("parent", &request.parent));
    let size = violations.page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX);
    let after = violations.page_token(&request.page_token);
    let folder = violations
        .take(workspace_paths::normalise_skill_path("path", &request.path))
        .unwrap_or_default();
    Ok(FileListingRequest {
        skill: violations.finish_with(skill)?,
        size,
        after: after.to_owned(),
        folder: if folder.is_empty() {
            folder
        } else {
            folder + "/"
        },
    })
}

/// Makes one page of a skill's files.
pub fn files_message(manifest: &Manifest, page: &FileListingRequest) -> pb::ListSkillFilesResponse {
    let wanted: Vec<&SkillFile> = manifest
        .files()
        .iter()
        .filter(|file| {
            file.path.starts_with(&page.folder) && (page.after.is_empty() || file.path > page.after)
        })
        .take(page.size + 1)
        .collect();
    let files = keep_fitting(wanted.iter().take(page.size).map(|one| file_message(one)));
    let last = files.last().filter(|_| files.len() < wanted.len());
    pb::ListSkillFilesResponse {
        next_page_token: last.map(|file| file.path.clone()).unwrap_or_default(),
        files,
    }
}

/// Checks a `ReadSkillFileRequest`.
///
/// # Errors
/// `Invalid`; `LeavesSkill` for its path.
pub fn check_read_skill_file(request: &pb::ReadSkillFileRequest) -> Result<FileReadRequest> {
    let mut violations = ViolationCollector::default();
    let skill = violations.take(wire::check_skill_name("name", &request.name));
    let offset = violations.not_negative("offset", request.offset);
    let length = violations.not_negative("length", request.length);
    let path = violations.take(workspace_paths::normalise_path_in_plugin(
        "path",
        &request.path,
    ));
    if request.path.is_empty() {
        violations.add("path", "must name a file");
    }
    Ok(FileReadRequest {
        skill: violations.finish_with(skill)?,
        path: path.unwrap_or_default(),
        in_plugin: request.in_plugin,
        offset,
        length: (length > 0).then_some(length),
        workspace_paths: request.workspace_paths,
    })
}

/// Makes the message of one file.
pub fn file_message(file: &SkillFile) -> pb::SkillFile {
    let kind = match file.purpose {
        FilePurpose::Document => WireKind::Document,
        FilePurpose::Script => WireKind::Script,
        FilePurpose::Reference => WireKind::Reference,
        FilePurpose::Asset => WireKind::Asset,
        FilePurpose::Other => WireKind::Other,
    };
    pb::SkillFile {
        path: file.path.clone(),
        size_bytes: int64(file.size),
        mode: file.mode,
        mime_type: file.mime_type.to_owned(),
        kind: kind.into(),
        sha256: file.sha256.clone(),
        is_text: file.is_text,
        encoding: file.encoding.to_owned(),
    }
}

/// Checks a `PreflightSkillRequest`. Returns the skill.
///
/// # Errors
/// `Invalid`.
pub fn check_preflight_skill(request: &pb::PreflightSkillRequest) -> Result<SkillRef> {
    let mut violations = ViolationCollector::default();
    let skill = violations.take(wire::check_skill_name("name", &request.name));
    let long = |name: &String| name.len() > ENV_NAME_BYTES_MAX;
    if request.env_names.len() > ENV_MAX || request.env_names.iter().any(long) {
        let message = format!("must be at most {ENV_MAX} names of {ENV_NAME_BYTES_MAX} bytes");
        violations.add("env_names", message);
    }
    violations.finish_with(skill)
}

/// Checks a `PrepareSkillRequest`. Returns the skill, and the packages that replace those that are remembered for it:
/// `None` if it keeps them.
///
/// # Errors
/// `Invalid`.
pub fn check_prepare_skill(
    request: &pb::PrepareSkillRequest,
) -> Result<(SkillRef, Option<AddedPackages>)> {
    let mut violations = ViolationCollector::default();
    let skill = violations.take(wire::check_skill_name("name", &request.name));
    let mut added = AddedPackages::default();
    let mut add = |field: &str, given: &[String], is_node: bool| {
        if given.len() > ADDED_PACKAGES_MAX {
            let message = format!("{} packages; at most {ADDED_PACKAGES_MAX}", given.len());
            violations.add(field, message);
            return;
        }
        for (index, text) in given.iter().enumerate() {
            let taken = match is_node {
                true => added.add_node(text),
                false => added.add_python(text),
            };
            if let Err(reason) = taken {
                violations.add(
                    format!("{field}[{index}]"),
                    format!("{:?} {reason}", shown(text)),
                );
            }
        }
    };
    add("packages", &request.packages, false);
    add("npm_packages", &request.npm_packages, true);
    let has_packages = !request.packages.is_empty() || !request.npm_packages.is_empty();
    if has_packages && request.forget_packages {
        violations.add("forget_packages", "cannot be set together with packages");
    }
    let skill = violations.finish_with(skill)?;
    let replaces = has_packages || request.forget_packages;
    Ok((skill, replaces.then_some(added)))
}

/// Makes the answer of a preflight.
pub fn preflight_message(findings: &[UnmetNeed], image: &str) -> pb::PreflightSkillResponse {
    let errors = |finding: &UnmetNeed| finding.severity == Severity::Error;
    pb::PreflightSkillResponse {
        ready: !findings.iter().any(errors),
        findings: findings.iter().map(finding_message).collect(),
        image: image.to_owned(),
    }
}

fn finding_message(finding: &UnmetNeed) -> pb::PreflightFinding {
    let kind = match finding.kind {
        NeedKind::Interpreter => Missing::Interpreter,
        NeedKind::Binary => Missing::Binary,
        NeedKind::AnyBinary => Missing::AnyBinary,
        NeedKind::Env => Missing::Env,
        NeedKind::PythonPackage | NeedKind::PythonModule => Missing::PythonPackage,
        NeedKind::NodePackage => Missing::NodePackage,
        NeedKind::Network => Missing::Network,
    };
    pb::PreflightFinding {
        kind: kind.into(),
        name: finding.name.clone(),
        severity: wire::severity_message(finding.severity).into(),
        source: finding.source.clone(),
        message: finding.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message;

    use super::*;
    use crate::skills::{FrontMatter, Skill};

    /// Default limit of a message, in bytes.
    const MESSAGE_BYTES_MAX: usize = 4 << 20;

    #[test]
    fn no_search_finds_more_than_fits_into_an_answer() {
        let found = |name: String| SearchMatch {
            skill: Skill {
                name,
                front_matter: Arc::new(FrontMatter {
                    author: "x".repeat(200_000),
                    ..FrontMatter::default()
                }),
                ..Skill::default()
            },
            score: 1.0,
            fields: vec!["name"],
        };
        let all: Vec<SearchMatch> = (0..100).map(|n| found(format!("s{n}"))).collect();
        let page = Page {
            start: 0,
            size: 100,
        };
        let answer = matches_message(&all, page);
        assert!(answer.encoded_len() < MESSAGE_BYTES_MAX);
        assert_eq!((answer.matches.len(), &*answer.next_page_token), (5, "5"));
        let best = answer.matches.first().and_then(|one| one.skill.as_ref());
        assert_eq!(best.map(|skill| skill.name.as_str()), Some("skills/s0"));
    }

    #[test]
    fn no_page_of_files_is_larger_than_a_message_and_none_is_missed() {
        let dir = tempfile::tempdir().expect("temp dir");
        let folder = dir
            .path()
            .join(["x".repeat(250), "y".repeat(250), "z".repeat(250)].join("/"));
        std::fs::create_dir_all(&folder).expect("mkdir");
        for n in 0..2_500 {
            std::fs::write(folder.join(format!("{n:04}")), "").expect("write");
        }
        let manifest = Manifest::read(dir.path()).expect("readable");
        let (mut request, mut seen) = (pb::ListSkillFilesRequest::default(), Vec::new());
        request.parent = "skills/s".to_owned();
        request.page_size = 10_000;
        loop {
            let answer =
                files_message(&manifest, &check_list_skill_files(&request).expect("valid"));
            assert!(answer.encoded_len() < MESSAGE_BYTES_MAX / 2);
            seen.extend(answer.files.into_iter().map(|file| file.path));
            request.page_token = answer.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        assert_eq!(seen.len(), 2_500);
        assert!(seen.is_sorted_by(|a, b| a < b));
    }
}

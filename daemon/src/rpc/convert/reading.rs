//! Requests to search skills and to read their files → checked values; what was found → messages.

use skilld_proto::v1 as pb;
use skilld_proto::v1::preflight_finding::Kind as Missing;
use skilld_proto::v1::skill_file::Kind as WireKind;

use super::{Faults, int64, page_size, page_token, skill as wire};
use crate::error::{Error, Result};
use crate::paths;
use crate::skills::files::{Kind, Manifest, SkillFile};
use crate::skills::preflight::{self, Finding};
use crate::skills::search::QUERY_BYTES_MAX;
use crate::skills::{Match, Severity, SkillRef};

const LIMIT_DEFAULT: usize = 25;
const LIMIT_MAX: usize = 100;
const PAGE_DEFAULT: usize = 1000;
const PAGE_MAX: usize = 10_000;
/// Variables of a preflight, and bytes of a name.
const ENV_MAX: usize = 1000;
const ENV_NAME_BYTES_MAX: usize = 256;

/// A checked `SearchSkillsRequest`.
#[derive(Debug)]
pub struct Search {
    /// Some text.
    pub query: String,
    /// At most this many.
    pub limit: usize,
    /// Agent Zero's scoring.
    pub compat: bool,
}

/// A checked `ListSkillFilesRequest`.
#[derive(Debug)]
pub struct List {
    /// Whose files.
    pub skill: SkillRef,
    size: usize,
    /// Empty on the first page.
    after: String,
    /// With a slash at its end; empty for everything.
    folder: String,
}

/// A checked `ReadSkillFileRequest`.
#[derive(Debug)]
pub struct Read {
    /// Whose file.
    pub skill: SkillRef,
    /// Normalised.
    pub path: String,
    /// First byte.
    pub offset: u64,
    /// `None` is to the end.
    pub length: Option<u64>,
    /// Replace placeholders of the skill's folder.
    pub workspace_paths: bool,
}

/// Checks a `SearchSkillsRequest`.
///
/// # Errors
/// `Invalid`.
pub fn search(request: &pb::SearchSkillsRequest) -> Result<Search> {
    let mut faults = Faults::default();
    if request.query.len() > QUERY_BYTES_MAX {
        faults.add("query", format!("must be at most {QUERY_BYTES_MAX} bytes"));
    }
    let limit = match usize::try_from(request.limit) {
        Ok(0) => LIMIT_DEFAULT,
        Ok(limit) if limit <= LIMIT_MAX => limit,
        _ => {
            faults.add("limit", format!("must be 0 to {LIMIT_MAX}"));
            0
        }
    };
    faults.finish()?;
    Ok(Search {
        query: request.query.clone(),
        limit,
        compat: request.compat,
    })
}

/// What was found, for the wire: the best that fit into an answer.
#[must_use]
pub fn matches(found: &[Match]) -> pb::SearchSkillsResponse {
    let one = |found: &Match| pb::SkillMatch {
        skill: Some(wire::skill(&found.skill, String::new())),
        score: found.score,
        matched_fields: found
            .fields
            .iter()
            .map(|field| (*field).to_owned())
            .collect(),
    };
    pb::SearchSkillsResponse {
        matches: wire::fitting(found.iter().map(one)),
    }
}

/// Checks a `ListSkillFilesRequest`.
///
/// # Errors
/// `Invalid`; `LeavesSkill` for its path.
pub fn list(request: &pb::ListSkillFilesRequest) -> Result<List> {
    let mut faults = Faults::default();
    let skill = wire::reference(&request.name).map(Some);
    let skill = faults.take("name", skill);
    let size = page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX);
    let size = faults.take("page_size", size);
    let after = faults.take("page_token", page_token(&request.page_token));
    let folder = match paths::in_skill("path", &request.path) {
        Err(leaves @ Error::LeavesSkill { .. }) => {
            faults.finish()?;
            return Err(leaves);
        }
        checked => faults.take("path", checked),
    };
    faults.finish()?;
    Ok(List {
        skill: skill.ok_or_else(|| Error::invalid("name", "must be given"))?,
        size,
        after: after.to_owned(),
        folder: if folder.is_empty() {
            folder
        } else {
            folder + "/"
        },
    })
}

/// One page of a skill's files.
#[must_use]
pub fn page(manifest: &Manifest, page: &List) -> pb::ListSkillFilesResponse {
    let wanted = manifest.files().iter().filter(|file| {
        file.path.starts_with(&page.folder) && (page.after.is_empty() || file.path > page.after)
    });
    let wanted: Vec<&SkillFile> = wanted.take(page.size + 1).collect();
    let files = wire::fitting(wanted.iter().take(page.size).map(|one| file(one)));
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
pub fn read(request: &pb::ReadSkillFileRequest) -> Result<Read> {
    let mut faults = Faults::default();
    let skill = faults.take("name", wire::reference(&request.name).map(Some));
    let number = |faults: &mut Faults, field: &str, given: i64| {
        u64::try_from(given).unwrap_or_else(|_| {
            faults.add(field, "must not be negative");
            0
        })
    };
    let offset = number(&mut faults, "offset", request.offset);
    let length = number(&mut faults, "length", request.length);
    let path = match paths::in_skill("path", &request.path) {
        Err(leaves @ Error::LeavesSkill { .. }) => {
            faults.finish()?;
            return Err(leaves);
        }
        checked => faults.take("path", checked),
    };
    if request.path.is_empty() {
        faults.add("path", "must name a file");
    }
    faults.finish()?;
    Ok(Read {
        skill: skill.ok_or_else(|| Error::invalid("name", "must be given"))?,
        path,
        offset,
        length: (length > 0).then_some(length),
        workspace_paths: request.workspace_paths,
    })
}

/// A file, for the wire.
#[must_use]
pub fn file(file: &SkillFile) -> pb::SkillFile {
    let kind = match file.kind {
        Kind::Document => WireKind::Document,
        Kind::Script => WireKind::Script,
        Kind::Reference => WireKind::Reference,
        Kind::Asset => WireKind::Asset,
        Kind::Other => WireKind::Other,
    };
    pb::SkillFile {
        path: file.path.clone(),
        size: int64(file.size),
        mode: file.mode,
        mime_type: file.mime_type.to_owned(),
        kind: kind.into(),
        sha256: file.sha256.clone(),
        is_text: file.is_text,
    }
}

/// A checked `PreflightSkillRequest`.
#[derive(Debug)]
pub struct Preflight {
    /// Which skill.
    pub skill: SkillRef,
    /// `None` is the default one.
    pub pool: Option<String>,
    /// Names of variables.
    pub env: Vec<String>,
}

/// Checks a `PreflightSkillRequest`.
///
/// # Errors
/// `Invalid`.
pub fn preflight(request: &pb::PreflightSkillRequest) -> Result<Preflight> {
    let mut faults = Faults::default();
    let skill = faults.take("name", wire::reference(&request.name).map(Some));
    let long = |name: &String| name.len() > ENV_NAME_BYTES_MAX;
    if request.env.len() > ENV_MAX || request.env.iter().any(long) {
        let message = format!("must be at most {ENV_MAX} names of {ENV_NAME_BYTES_MAX} bytes");
        faults.add("env", message);
    }
    faults.finish()?;
    Ok(Preflight {
        skill: skill.ok_or_else(|| Error::invalid("name", "must be given"))?,
        pool: Some(request.pool.clone()).filter(|pool| !pool.is_empty()),
        env: request.env.clone(),
    })
}

/// What was found missing, for the wire.
#[must_use]
pub fn preflighted(findings: &[Finding], image: &str) -> pb::PreflightSkillResponse {
    let errors = |finding: &Finding| finding.severity == Severity::Error;
    pb::PreflightSkillResponse {
        ready: !findings.iter().any(errors),
        findings: findings.iter().map(finding).collect(),
        image: image.to_owned(),
    }
}

fn finding(finding: &Finding) -> pb::PreflightFinding {
    let kind = match finding.kind {
        preflight::Kind::Interpreter => Missing::Interpreter,
        preflight::Kind::Binary => Missing::Binary,
        preflight::Kind::AnyBinary => Missing::AnyBinary,
        preflight::Kind::Env => Missing::Env,
        preflight::Kind::PythonPackage | preflight::Kind::PythonModule => Missing::PythonPackage,
        preflight::Kind::NodePackage => Missing::NodePackage,
        preflight::Kind::Network => Missing::Network,
    };
    pb::PreflightFinding {
        kind: kind.into(),
        name: finding.name.clone(),
        severity: wire::severity(finding.severity).into(),
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

    /// What a message may have.
    const MESSAGE_BYTES_MAX: usize = 4 << 20;

    #[test]
    fn no_search_finds_more_than_fits_into_an_answer() {
        let found = |name: String| Match {
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
        let all: Vec<Match> = (0..100).map(|n| found(format!("s{n}"))).collect();
        let answer = matches(&all);
        assert!(answer.encoded_len() < MESSAGE_BYTES_MAX);
        assert_eq!(answer.matches.len(), 5);
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
        request.name = "skills/s".to_owned();
        request.page_size = 10_000;
        loop {
            let answer = page(&manifest, &list(&request).expect("valid"));
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

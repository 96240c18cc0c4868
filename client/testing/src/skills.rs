//! Skills of the fake: what a test puts in, found by name and version and read by path as the daemon does.

use std::collections::BTreeMap;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use skilld_client::to_proto_value;
use skilld_client::v1::SkillFileKind;
use skilld_client::v1::{
    ListSkillFilesRequest, ListSkillFilesResponse, ReadSkillFileRequest, Skill, SkillFile,
    SkillMatch, SkillState,
};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::{State, error_details, refusal};

/// Version of a skill with its files.
#[derive(Clone, Default)]
pub struct Kit {
    pub skill: Skill,
    pub files: BTreeMap<String, Bytes>,
    /// Files of the skill's plugin outside of the folders of skills; empty if it is in none.
    pub plugin: BTreeMap<String, Bytes>,
}

impl From<Skill> for Kit {
    fn from(skill: Skill) -> Self {
        Self {
            skill,
            ..Self::default()
        }
    }
}

impl Kit {
    pub fn new(id: &str, version: &str) -> Self {
        Self::from(Skill {
            name: format!("skills/{id}"),
            version: version.into(),
            digest: digest(id, version),
            description: format!("What {id} does."),
            body: format!("# {id} {version}\n"),
            root: "main".into(),
            state: SkillState::Loaded.into(),
            ..Skill::default()
        })
    }

    /// Adds a file to the skill.
    pub fn file(mut self, path: &str, bytes: impl Into<Bytes>) -> Self {
        self.files.insert(path.into(), bytes.into());
        self
    }

    /// Adds a card to the skill.
    pub fn card(mut self, card: serde_json::Value) -> Self {
        self.skill.card = match to_proto_value(card).kind {
            Some(prost_types::value::Kind::StructValue(fields)) => Some(fields),
            _ => None,
        };
        self
    }

    pub(super) fn id(&self) -> &str {
        self.skill.name.trim_start_matches("skills/")
    }
}

/// Returns the digest of a skill in this fake.
pub fn digest(id: &str, version: &str) -> String {
    let seed = format!("{id}{version}");
    let hex: String = seed.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex:0<64}")
}

impl State {
    /// Finds a kit by `name`, an alias or its title, and `@version`, `@^N`, `@==version`, a list of these, or
    /// `@digest`: the first of the versions, but a pre-release or an unusable one only where there is nothing else.
    pub(super) fn kit(&self, name: &str) -> Result<&Kit, Status> {
        let (id, wanted) = check_name(name)?;
        let is_named = |kit: &&Kit| kit.id() == id || kit.skill.aliases.iter().any(|it| it == id);
        let mut of_name: Vec<&Kit> = self.kits.iter().filter(is_named).collect();
        if of_name.is_empty() {
            let titled = self.kits.iter().filter(|kit| kit.skill.display_name == id);
            of_name = titled.filter(|_| !id.is_empty()).collect();
        }
        let fits_one = |kit: &Kit, wanted: &str| match wanted.strip_prefix('^') {
            Some(major) => kit.skill.version.split('.').next() == Some(major),
            None => {
                let version = wanted.trim_start_matches("==");
                wanted.is_empty() || kit.skill.version == version || kit.skill.digest == wanted
            }
        };
        let fits = |kit: &&Kit| wanted.split(',').all(|part| fits_one(kit, part.trim()));
        let fitting = || of_name.iter().copied().filter(fits);
        let is_usable = |kit: &&Kit| kit.skill.state() != SkillState::Rejected;
        let is_release = |kit: &&Kit| !kit.skill.version.contains('-');
        let found = fitting()
            .filter(is_usable)
            .find(is_release)
            .or_else(|| fitting().find(is_usable))
            .or_else(|| fitting().next());
        found.ok_or_else(|| {
            let mut near: Vec<String> = match of_name.is_empty() {
                true => self.kits.iter().map(|kit| kit.id().to_owned()).collect(),
                false => {
                    let versions = of_name.iter().map(|kit| &kit.skill.version);
                    versions.map(|version| format!("{id}@{version}")).collect()
                }
            };
            near.dedup();
            let names = near.iter().map(|name| format!("skills/{name}"));
            let names = names.collect::<Vec<_>>().join(",");
            let metadata = [("nearest", names.as_str())];
            refusal(Code::NotFound, "SKILL_NOT_FOUND", &metadata)
        })
    }

    /// Finds a kit for reading or staging.
    pub(super) fn usable_kit(&self, name: &str) -> Result<&Kit, Status> {
        let kit = self.kit(name)?;
        if kit.skill.state() == SkillState::Rejected {
            let problem = [("problem", "no front matter")];
            return Err(refusal(Code::FailedPrecondition, "SKILL_INVALID", &problem));
        }
        Ok(kit)
    }

    /// Lists the files of a kit: of few files four to a page.
    pub(super) fn kit_files(
        &self,
        request: &ListSkillFilesRequest,
    ) -> Result<ListSkillFilesResponse, Status> {
        let kit = self.usable_kit(&request.parent)?;
        let folder = format!("{}/", request.path);
        let is_within = |path: &str| request.path.is_empty() || path.starts_with(&folder);
        let size = match kit.files.len() {
            ..100 => 4,
            _ => 1000,
        };
        let from: usize = request.page_token.parse().unwrap_or(0);
        let files = kit.files.iter().filter(|(path, _)| is_within(path));
        let mut rest = files.skip(from);
        let page = rest.by_ref().take(size);
        let files = page.map(|(path, bytes)| described(path, bytes)).collect();
        Ok(ListSkillFilesResponse {
            files,
            next_page_token: match rest.next() {
                Some(_) => (from + size).to_string(),
                None => String::new(),
            },
        })
    }

    /// Reads a file of a kit, or of its plugin, in which the folders of skills lie in another folder.
    pub(super) fn kit_file(
        &self,
        request: &ReadSkillFileRequest,
    ) -> Result<(SkillFile, Bytes), Status> {
        let kit = self.usable_kit(&request.name)?;
        let has_plugin = !kit.plugin.is_empty();
        let shared = request.path.strip_prefix("../../");
        let (files, asked, up) = match shared.filter(|_| has_plugin) {
            Some(shared) => (&kit.plugin, shared, "../../"),
            None if request.in_plugin && has_plugin => {
                (&kit.plugin, request.path.as_str(), "../../")
            }
            None => (&kit.files, request.path.as_str(), ""),
        };
        let parts = asked.split('/').filter(|part| !matches!(*part, "" | "."));
        let path = parts.collect::<Vec<_>>().join("/");
        let wrong = |code, reason| Err(refusal(code, reason, &[("path", &path)]));
        if asked.starts_with('/') || path.split('/').any(|part| part == "..") {
            return wrong(Code::InvalidArgument, "PATH_ESCAPES");
        }
        let folder = format!("{path}/");
        if files.keys().any(|it| it.starts_with(&folder)) {
            return wrong(Code::FailedPrecondition, "WRONG_FILE_TYPE");
        }
        // Else the only file that differs in case only.
        let alike: Vec<&String> = files
            .keys()
            .filter(|it| it.eq_ignore_ascii_case(&path))
            .collect();
        let found = match (files.contains_key(&path), alike.as_slice()) {
            (true, _) => &path,
            (false, [only]) => *only,
            (false, _) => {
                let near = nearest(files.keys().collect(), alike.clone(), &path);
                let metadata = [("path", path.as_str()), ("nearest", near.as_str())];
                return Err(refusal(Code::NotFound, "FILE_NOT_FOUND", &metadata));
            }
        };
        let bytes = files.get(found).cloned().unwrap_or_default();
        let bytes = match request.workspace_paths {
            true => with_workspace_paths(kit.id(), bytes),
            false => bytes,
        };
        let number = |given: i64| usize::try_from(given).expect("no negative number");
        let from = number(request.offset).min(bytes.len());
        let to = match number(request.length) {
            0 => bytes.len(),
            length => (from + length).min(bytes.len()),
        };
        let file = described(&format!("{up}{found}"), &bytes);
        Ok((file, bytes.slice(from..to)))
    }

    /// Returns the skills whose names contain the query.
    pub(super) fn kits_like(&self, query: &str) -> Vec<SkillMatch> {
        let skills = self.kits.iter().map(|kit| &kit.skill);
        let like = skills.filter(|skill| skill.name.contains(query));
        like.map(|skill| SkillMatch {
            skill: Some(skill.clone()),
            score: 3.0,
            matched_fields: vec!["name".into()],
        })
        .collect()
    }
}

/// Returns the id of a skill's name, and the version that it asks for.
pub(super) fn check_name(name: &str) -> Result<(&str, &str), Status> {
    let Some(name) = name.strip_prefix("skills/") else {
        return Err(invalid("name", "is not of the form skills/{skill}"));
    };
    let (id, wanted) = name.split_once('@').unwrap_or((name, ""));
    if id.contains(char::is_whitespace) || id.starts_with('.') {
        return Err(invalid("name", "is no name"));
    }
    if wanted.contains('!') {
        return Err(invalid("name", "has no version: use 1.2, ^1.2, ~=1.2"));
    }
    Ok((id, wanted))
}

/// Returns the paths that a missing one may mean: those that differ in case only, or begin like it, or all.
fn nearest(all: Vec<&String>, alike: Vec<&String>, path: &str) -> String {
    let start = path.to_lowercase();
    let begins = |it: &&&String| it.to_lowercase().starts_with(&start);
    let beginning: Vec<&String> = all.iter().filter(begins).copied().collect();
    let near = [alike, beginning, all]
        .into_iter()
        .filter(|paths| !paths.is_empty())
        .map(|paths| {
            let names: Vec<&str> = paths.into_iter().map(String::as_str).collect();
            names.join(",")
        });
    near.take(1).collect()
}

/// Replaces a placeholder for the skill's folder, as the daemon replaces all of them.
fn with_workspace_paths(skill: &str, bytes: Bytes) -> Bytes {
    match str::from_utf8(&bytes) {
        Ok(text) => {
            let folder = format!("/workspace/skills/{skill}");
            text.replace("{baseDir}", &folder).into()
        }
        Err(_) => bytes,
    }
}

fn described(path: &str, bytes: &Bytes) -> SkillFile {
    let kind = match path.split('/').next() {
        Some("references") => SkillFileKind::Reference,
        Some("assets") => SkillFileKind::Asset,
        Some("scripts") => SkillFileKind::Script,
        _ => SkillFileKind::Document,
    };
    let is_text = !bytes.contains(&0);
    let mime_type = match is_text {
        true if path.ends_with(".md") => "text/markdown",
        true => "text/plain",
        false if bytes.starts_with(b"%PDF-") => "application/pdf",
        false => "image/png",
    };
    SkillFile {
        path: path.to_owned(),
        size_bytes: i64::try_from(bytes.len()).expect("small"),
        mime_type: mime_type.into(),
        kind: kind.into(),
        sha256: sha256(bytes),
        is_text,
        ..SkillFile::default()
    }
}

/// Returns the SHA-256 of some bytes in hex.
pub fn sha256(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(bytes))
}

/// Returns the daemon's status for one wrong field.
pub fn invalid(field: &str, description: &str) -> Status {
    let mut details = error_details("INVALID_REQUEST", &[]);
    details.add_bad_request_violation(field, description);
    let message = format!("{field} {description}");
    Status::with_error_details(Code::InvalidArgument, message, details)
}

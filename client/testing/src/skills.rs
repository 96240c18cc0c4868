//! Skills of the fake: what a test puts in, found by name and version as the daemon finds them.

use std::collections::BTreeMap;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use skilld_client::to_proto_value;
use skilld_client::v1::skill_file::Kind;
use skilld_client::v1::{
    ListSkillFilesRequest, ReadSkillFileRequest, Skill, SkillFile, SkillMatch,
};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::{State, error_details, refusal};

/// Version of a skill with its files.
#[derive(Clone, Default)]
pub struct Kit {
    pub skill: Skill,
    pub files: BTreeMap<String, Bytes>,
}

impl Kit {
    pub fn new(id: &str, version: &str) -> Self {
        Self {
            skill: Skill {
                name: format!("skills/{id}"),
                version: version.into(),
                digest: digest(id, version),
                description: format!("What {id} does."),
                body: format!("# {id} {version}\n"),
                root: "main".into(),
                state: skilld_client::v1::SkillState::Loaded.into(),
                ..Skill::default()
            },
            files: BTreeMap::new(),
        }
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
}

/// Returns the digest of a skill in this fake.
pub fn digest(id: &str, version: &str) -> String {
    let seed = format!("{id}{version}");
    let hex: String = seed.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex:0<64}")
}

impl State {
    /// Finds a kit by `name`, an alias or its title, and `@version`, `@^N`, `@==version`, a list of these, or `@digest`.
    pub(super) fn kit(&self, name: &str) -> Result<&Kit, Status> {
        let name = name.trim_start_matches("skills/");
        let (id, wanted) = name.split_once('@').unwrap_or((name, ""));
        if id.contains(char::is_whitespace) {
            return Err(invalid("name", "is no name"));
        }
        if wanted.contains('!') {
            return Err(invalid("name", "has no version: use 1.2, ^1.2, ~=1.2"));
        }
        let is_named = |kit: &&Kit| {
            let aliases = kit.skill.aliases.iter();
            kit.skill.name == format!("skills/{id}") || aliases.into_iter().any(|alias| alias == id)
        };
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
        let fits = |kit: &&&Kit| wanted.split(',').all(|part| fits_one(kit, part.trim()));
        of_name.iter().rfind(fits).copied().ok_or_else(|| {
            let near = match of_name.first() {
                Some(_) => of_name
                    .iter()
                    .map(|kit| format!("{id}@{}", kit.skill.version))
                    .collect(),
                None => self
                    .kits
                    .iter()
                    .map(|kit| kit.skill.name.replace("skills/", ""))
                    .collect::<Vec<_>>(),
            };
            refusal(
                Code::NotFound,
                "SKILL_NOT_FOUND",
                &[("nearest", &near.join(","))],
            )
        })
    }

    pub(super) fn kit_files(
        &self,
        request: &ListSkillFilesRequest,
    ) -> Result<Vec<SkillFile>, Status> {
        let kit = self.kit(&request.name)?;
        let folder = format!("{}/", request.path);
        let files = kit
            .files
            .iter()
            .filter(|(path, _)| request.path.is_empty() || path.starts_with(&folder));
        Ok(files.map(|(path, bytes)| described(path, bytes)).collect())
    }

    pub(super) fn kit_file(
        &self,
        request: &ReadSkillFileRequest,
    ) -> Result<(SkillFile, Bytes), Status> {
        let kit = self.kit(&request.name)?;
        let names = request
            .path
            .split('/')
            .filter(|name| !matches!(*name, "" | "."));
        let path = names.collect::<Vec<_>>().join("/");
        if path.contains("..") || request.path.starts_with('/') {
            return Err(refusal(
                Code::InvalidArgument,
                "PATH_ESCAPES",
                &[("path", &path)],
            ));
        }
        if kit
            .files
            .keys()
            .any(|other| other.starts_with(&format!("{path}/")))
        {
            return Err(refusal(
                Code::FailedPrecondition,
                "WRONG_FILE_TYPE",
                &[("path", &path)],
            ));
        }
        let Some(bytes) = kit.files.get(&path) else {
            let near = kit.files.keys().cloned().collect::<Vec<_>>().join(",");
            return Err(refusal(
                Code::NotFound,
                "FILE_NOT_FOUND",
                &[("path", &path), ("nearest", &near)],
            ));
        };
        let name = kit.skill.name.trim_start_matches("skills/");
        let bytes = match request.workspace_paths {
            true => &Bytes::from(with_workspace_paths(name, bytes)),
            false => bytes,
        };
        let from = usize::try_from(request.offset)
            .unwrap_or_default()
            .min(bytes.len());
        let length = match usize::try_from(request.length).unwrap_or_default() {
            0 => bytes.len(),
            length => length,
        };
        let to = (from + length).min(bytes.len());
        Ok((described(&path, bytes), bytes.slice(from..to)))
    }

    /// Returns the skills whose names contain the query.
    pub(super) fn kits_like(&self, query: &str) -> Vec<SkillMatch> {
        let skills = self.kits.iter().map(|kit| &kit.skill).chain(&self.skills);
        let like = skills.filter(|skill| skill.name.contains(query));
        like.map(|skill| SkillMatch {
            skill: Some(skill.clone()),
            score: 3.0,
            matched_fields: vec!["name".into()],
        })
        .collect()
    }
}

fn described(path: &str, bytes: &Bytes) -> SkillFile {
    let is_text = !bytes.contains(&0);
    let mime_type = match is_text {
        true => "text/plain",
        false if bytes.starts_with(b"%PDF-") => "application/pdf",
        false => "image/png",
    };
    let kind = if path.starts_with("scripts/") {
        Kind::Script
    } else {
        Kind::Other
    };
    SkillFile {
        path: path.to_owned(),
        size: i64::try_from(bytes.len()).expect("small"),
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

/// Replaces a placeholder for the skill's folder, as the daemon replaces all of them.
pub(super) fn with_workspace_paths(skill: &str, bytes: &[u8]) -> Vec<u8> {
    let Ok(text) = str::from_utf8(bytes) else {
        return bytes.to_vec();
    };
    let folder = format!("/workspace/skills/{skill}");
    text.replace("{baseDir}", &folder).into_bytes()
}

//! Material of a skill for a prompt: its body and the texts of documents, all from one digest.

use std::io::Read;

use skilld_common::text_decoding::decode_text;

use super::catalogue_snapshot::Catalogue;
use super::skill::Skill;
use super::skill_library::{SkillFilePath, SkillLibrary};
use crate::content_store::skill_files::{FileContent, FilePurpose, SkillFile, unreadable};
use crate::error::{Error, Result};
use crate::parse::finding::ValidationProfile;
use crate::parse::skill_ref::{SkillRef, VersionRef};

/// Maximum number of documents.
pub const DOCUMENTS_MAX: usize = 1000;

/// Choice of documents.
#[derive(Debug, Clone)]
pub enum DocumentChoice {
    /// Documents and references of the skill, without SKILL.md and hidden files.
    All,
    /// Files with these paths.
    These(Vec<String>),
}

/// Skill and the texts of its documents.
#[derive(Debug)]
pub struct SkillMaterial {
    /// Skill as the lenient profile judges it.
    pub skill: Skill,
    /// Body of its SKILL.md.
    pub body: String,
    /// Documents, in the order of the choice.
    pub documents: Vec<SkillDocument>,
    /// Chosen paths that name no text file.
    pub missing: Vec<String>,
}

/// Text of a document.
#[derive(Debug)]
pub struct SkillDocument {
    /// Path relative to the skill's root.
    pub path: String,
    /// Text with placeholders replaced, cut if there is no room for all of it.
    pub text: String,
    /// Size of the whole text in bytes.
    pub size: u64,
}

impl SkillLibrary {
    /// Reads the material of a skill. Paths and texts together have at most `bytes_max` bytes, unless the paths alone have
    /// more.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `LeavesSkill`, `Io`.
    pub(crate) fn read_material(
        &self,
        catalogue: &Catalogue,
        wanted: &SkillRef,
        choice: DocumentChoice,
        bytes_max: usize,
    ) -> Result<SkillMaterial> {
        let (leased, _lease) = self.lease(catalogue, wanted)?;
        // Everything else is read by the digest.
        let pinned = SkillRef {
            version: VersionRef::Digest(leased.digest.clone()),
            ..wanted.clone()
        };
        let (skill, body) = self.get(catalogue, &pinned, ValidationProfile::Lenient)?;
        let paths = match choice {
            DocumentChoice::These(paths) => paths,
            DocumentChoice::All => {
                let manifest = self.list_files(catalogue, &pinned)?;
                let documents = manifest.files().iter().filter(|file| is_document(file));
                let paths = documents.map(|file| file.path.clone());
                paths.take(DOCUMENTS_MAX).collect()
            }
        };
        let mut material = SkillMaterial {
            skill,
            body,
            documents: Vec::new(),
            missing: Vec::new(),
        };
        let mut room = bytes_max;
        for path in paths {
            room = room.saturating_sub(path.len());
            let opened = SkillFilePath::InSkill(&path);
            match self.open_file(catalogue, &pinned, opened, true) {
                Ok((file, content)) if file.is_text => {
                    let document = read_document(file, content, room)?;
                    room -= document.text.len();
                    material.documents.push(document);
                }
                Ok(_) | Err(Error::FileNotFound { .. }) => material.missing.push(path),
                Err(error) => return Err(error),
            }
        }
        Ok(material)
    }
}

/// Returns `true` for a text that belongs to the documents of a skill.
fn is_document(file: &SkillFile) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let is_purpose = matches!(file.purpose, FilePurpose::Document | FilePurpose::Reference);
    let is_other = name.eq_ignore_ascii_case("SKILL.md") || name.starts_with('.');
    is_purpose && file.is_text && !is_other
}

/// Reads the first `bytes_max` bytes of a document, up to a character boundary.
fn read_document(file: SkillFile, content: FileContent, bytes_max: usize) -> Result<SkillDocument> {
    let mut bytes = Vec::new();
    let limited = content.take(bytes_max as u64).read_to_end(&mut bytes);
    limited.map_err(unreadable)?;
    let is_whole = bytes.len() as u64 == file.size;
    let mut text = decode_text(&bytes, is_whole).text.into_owned();
    // A text of another encoding grows when it becomes UTF-8.
    text.truncate(text.floor_char_boundary(bytes_max));
    Ok(SkillDocument {
        path: file.path,
        text,
        size: file.size,
    })
}

//! Material of a skill for a prompt: its body and the texts of documents, all from one digest.

use std::collections::HashSet;
use std::io::Read;

use skilld_common::text_decoding::decode_text;

use super::catalogue_snapshot::Catalogue;
use super::skill::Skill;
use super::skill_library::SkillLibrary;
use crate::content_store::skill_files::{
    FileContent, FilePurpose, Manifest, SkillFile, unreadable,
};
use crate::error::Result;
use crate::parse::finding::ValidationProfile;
use crate::parse::skill_ref::{SkillRef, VersionRef};
use crate::placeholders::SkillFolder;

/// Maximum number of documents.
pub const DOCUMENTS_MAX: usize = 1000;

/// Maximum size of body and documents together, in bytes: with the skill itself, of at most 1 MiB, they fit into a
/// message.
const MATERIAL_BYTES_MAX: usize = (2 << 20) + (768 << 10);

/// Choice of documents.
#[derive(Debug, Clone)]
pub enum DocumentChoice {
    /// Documents and references of the skill, without SKILL.md and hidden files.
    All,
    /// Files with these paths.
    Paths(Vec<String>),
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
    /// Reads the material of a skill, all of it from one leased content. Paths and texts of the documents together have at
    /// most `bytes_max` bytes, unless the paths alone have more. A path that is chosen twice counts once.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub(crate) fn read_material(
        &self,
        catalogue: &Catalogue,
        wanted: &SkillRef,
        choice: DocumentChoice,
        bytes_max: usize,
    ) -> Result<SkillMaterial> {
        let (leased, _lease) = self.lease(catalogue, wanted)?;
        let pinned = SkillRef {
            version: VersionRef::Digest(leased.digest.clone()),
            ..wanted.clone()
        };
        let mut skill = Skill::clone(&*self.resolve(catalogue, &pinned)?);
        let folder = self.plugins.workspace_folder(catalogue, &skill)?;
        let body = self.read_body(&skill, &folder);
        skill.judge(ValidationProfile::Lenient);
        let manifest = self.manifest(&leased)?;
        let files = manifest.files();
        let mut missing = Vec::new();
        let chosen: Vec<&SkillFile> = match choice {
            DocumentChoice::All => {
                let documents = files.iter().filter(|file| is_document(file));
                documents.take(DOCUMENTS_MAX).collect()
            }
            DocumentChoice::Paths(paths) => {
                let mut seen = HashSet::new();
                let new = paths.into_iter().filter(|path| seen.insert(path.clone()));
                let find = |path: String| {
                    let found = files.binary_search_by(|file| file.path.cmp(&path)).ok();
                    let file = found.and_then(|index| files.get(index));
                    let text = file.filter(|file| file.is_text);
                    if text.is_none() {
                        missing.push(path);
                    }
                    text
                };
                new.filter_map(find).collect()
            }
        };
        let mut room = bytes_max.min(MATERIAL_BYTES_MAX.saturating_sub(body.len()));
        let mut documents = Vec::with_capacity(chosen.len());
        for file in chosen {
            room = room.saturating_sub(file.path.len());
            let document = read_document(&manifest, file, &folder, room)?;
            room = room.saturating_sub(document.text.len());
            documents.push(document);
        }
        Ok(SkillMaterial {
            skill,
            body,
            documents,
            missing,
        })
    }
}

/// Returns `true` for a text that belongs to the documents of a skill.
fn is_document(file: &SkillFile) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let has_document_purpose =
        matches!(file.purpose, FilePurpose::Document | FilePurpose::Reference);
    let is_skipped = name.eq_ignore_ascii_case("SKILL.md") || name.starts_with('.');
    has_document_purpose && file.is_text && !is_skipped
}

/// Reads the first `bytes_max` bytes of a document, up to a character boundary.
fn read_document(
    manifest: &Manifest,
    file: &SkillFile,
    folder: &SkillFolder,
    bytes_max: usize,
) -> Result<SkillDocument> {
    let mut document = SkillDocument {
        path: file.path.clone(),
        text: String::new(),
        size: file.size,
    };
    if bytes_max == 0 {
        return Ok(document);
    }
    let mut described = file.clone();
    let opened = manifest.open(file)?;
    let content = FileContent::with_workspace_paths(opened, &mut described, folder)?;
    document.size = described.size;
    let mut bytes = Vec::new();
    let limited = content.take(bytes_max as u64).read_to_end(&mut bytes);
    limited.map_err(unreadable)?;
    let is_whole = bytes.len() as u64 == document.size;
    document.text = decode_text(&bytes, is_whole).text.into_owned();
    // A text of another encoding grows when it becomes UTF-8.
    let end = document.text.floor_char_boundary(bytes_max);
    document.text.truncate(end);
    Ok(document)
}

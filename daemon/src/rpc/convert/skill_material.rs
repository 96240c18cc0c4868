//! Conversion of GetSkillMaterial and its answer.

use skilld_proto::v1 as pb;

use super::skill::{check_skill_name, skill_message};
use super::{ViolationCollector, int64};
use crate::error::Result;
use crate::skills::{DOCUMENTS_MAX, DocumentChoice, SkillMaterial, SkillRef};
use crate::workspace_paths;

/// Maximum size of all documents of an answer, in bytes: with the skill, it is smaller than a message.
const DOCUMENT_BYTES_MAX: usize = 1 << 20;

/// Checked `GetSkillMaterialRequest`.
#[derive(Debug)]
pub struct MaterialRequest {
    /// Skill to read.
    pub skill: SkillRef,
    /// Documents to read.
    pub choice: DocumentChoice,
    /// Maximum size of paths and texts of the documents, in bytes.
    pub bytes_max: usize,
}

/// Checks a `GetSkillMaterialRequest`.
///
/// # Errors
/// `Invalid` with every violation; `LeavesSkill` for a path.
pub fn check_material(request: &pb::GetSkillMaterialRequest) -> Result<MaterialRequest> {
    let mut violations = ViolationCollector::default();
    let skill = violations.take(check_skill_name("name", &request.name));
    let (field, most) = ("max_document_bytes", DOCUMENT_BYTES_MAX);
    let bytes_max = violations.number_or(field, request.max_document_bytes, most, most);
    let count = request.documents.len();
    if request.all_documents && count > 0 {
        let message = "is given with all_documents: give one of them";
        violations.add("documents", message);
    }
    let path_bytes: usize = request.documents.iter().map(String::len).sum();
    if count > DOCUMENTS_MAX || path_bytes > DOCUMENT_BYTES_MAX {
        let message = format_args!(
            "has {count} paths with {path_bytes} bytes in all: give at most {DOCUMENTS_MAX} paths and \
             {DOCUMENT_BYTES_MAX} bytes"
        );
        violations.add("documents", message);
    }
    let checked = request.documents.iter().take(DOCUMENTS_MAX).enumerate();
    let paths = checked.filter_map(|(index, path)| {
        let field = format!("documents[{index}]");
        if path.is_empty() {
            violations.add(field, "must name a file");
            return None;
        }
        violations.take(workspace_paths::normalise_skill_path(&field, path))
    });
    let paths = paths.collect();
    Ok(MaterialRequest {
        skill: violations.finish_with(skill)?,
        choice: match request.all_documents {
            true => DocumentChoice::All,
            false => DocumentChoice::Paths(paths),
        },
        bytes_max,
    })
}

/// Converts the material of a skill to its message.
pub fn material_message(material: SkillMaterial) -> pb::SkillMaterial {
    let documents = material.documents.into_iter();
    pb::SkillMaterial {
        skill: Some(skill_message(&material.skill, material.body)),
        documents: documents
            .map(|document| pb::SkillDocument {
                path: document.path,
                text: document.text,
                size_bytes: int64(document.size),
            })
            .collect(),
        missing_documents: material.missing,
    }
}

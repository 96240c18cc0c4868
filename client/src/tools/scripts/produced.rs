//! The files that a run left in its workspace.

use schemars::JsonSchema;
use serde::Serialize;
use skilld_proto::v1::{CollectSpec, SaveAsArtifacts};

use super::Ran;
use crate::tools::{Inner, Session, ToolError, collected};

/// Where scripts write.
const GLOBS: [&str; 2] = ["out/**", "work/**"];

/// One file.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Produced {
    /// Relative to the workspace.
    pub(crate) path: String,
    pub(crate) size: i64,
    pub(crate) mime_type: String,
    /// None where the file was too large to be read, and of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<String>,
    /// `artifact://name@version`, if it was saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) artifact: Option<String>,
}

/// Looks for files that changed since an exec, named in full, began, and saves them if the options say so.
pub(super) async fn collect(
    tools: &Inner,
    session: &Session,
    exec: &str,
    ran: &mut Ran,
) -> Result<(), ToolError> {
    let save = tools.options.force_save_artifacts.then(|| SaveAsArtifacts {
        prefix: String::new(),
        scope: Some(session.scope()),
    });
    let spec = CollectSpec {
        globs: GLOBS.map(str::to_owned).to_vec(),
        save_as_artifacts: save,
        skip_empty_after_failure: true,
        ..CollectSpec::default()
    };
    let (files, summary) = collected::collect(tools, exec, spec, 0).await?;
    ran.files.extend(files.into_iter().map(|collected| {
        let (file, end) = (collected.file, collected.end.unwrap_or_default());
        Produced {
            path: file.path,
            size: file.size,
            mime_type: file.mime_type,
            sha256: Some(end.sha256).filter(|sha256| !end.truncated && !sha256.is_empty()),
            artifact: Some(end.artifact).filter(|artifact| !artifact.is_empty()),
        }
    }));
    ran.limits_hit = summary.limits_hit;
    ran.warnings.extend(collected::unsaved_warning(&summary));
    if !summary.artifacts.is_empty() {
        ran.artifact_scope = Some(session.into());
    }
    ran.warnings.extend(collected::outside_warning(&summary));
    Ok(())
}

//! The files that a run left in its workspace.

use schemars::JsonSchema;
use serde::Serialize;
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::skipped_file::Reason;
use skilld_proto::v1::{CollectOutputsRequest, CollectSpec, SaveAsArtifacts};

use super::Ran;
use crate::tools::{Inner, Session, ToolError};

/// Where scripts write.
const GLOBS: [&str; 2] = ["out/**", "work/**"];

/// One file.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Produced {
    /// Relative to the workspace.
    pub(crate) path: String,
    pub(crate) size: i64,
    pub(crate) mime_type: String,
    /// None where the file was too large to be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<String>,
    /// `artifact://name@version`, if it was saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) artifact: Option<String>,
}

/// Looks for files that changed since an exec began, and saves them if the options say so.
pub(super) async fn collect(
    tools: &Inner,
    session: &Session,
    workspace: &str,
    exec: &str,
    ran: &mut Ran,
) -> Result<(), ToolError> {
    let save = tools.options.force_save_artifacts.then(|| SaveAsArtifacts {
        prefix: String::new(),
        scope: Some(session.scope()),
    });
    let request = CollectOutputsRequest {
        workspace: workspace.to_owned(),
        spec: Some(CollectSpec {
            globs: GLOBS.map(str::to_owned).to_vec(),
            changed_since_exec: exec.to_owned(),
            save_as_artifacts: save,
            ..CollectSpec::default()
        }),
    };
    let mut messages = tools.client.collect(request).await?;
    while let Some(message) = messages.next().await? {
        match message.payload {
            Some(Payload::File(file)) => ran.files.push(Produced {
                path: file.path,
                size: file.size,
                mime_type: file.mime_type,
                sha256: None,
                artifact: None,
            }),
            Some(Payload::FileEnd(end)) => {
                if let Some(file) = ran.files.last_mut() {
                    file.sha256 = Some(end.sha256).filter(|_| !end.truncated);
                    file.artifact = Some(end.artifact).filter(|artifact| !artifact.is_empty());
                }
            }
            Some(Payload::Summary(summary)) => {
                ran.limits_hit = summary.limits_hit;
                let not_saved = summary.skipped.iter().filter(|skipped| {
                    matches!(skipped.reason(), Reason::NotSaved | Reason::NotWhole)
                });
                let warnings = not_saved.map(|skipped| format!("{} was not saved", skipped.path));
                ran.warnings.extend(warnings);
            }
            Some(Payload::Data(_)) | None => {}
        }
    }
    Ok(())
}

//! The tool `workspace_write_file`: files that only the client has get into the session's workspace.

use data_encoding::{BASE64, HEXLOWER};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use skilld_tools::{Session, ToolDefinition, ToolError, Toolset, arguments};

use crate::mcp::resources::FILE_BYTES_MAX;

/// Name of the tool that writes a file into the workspace.
pub(crate) const NAME: &str = "workspace_write_file";

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct WriteArguments {
    /// Path in the workspace, beneath work/ or out/. Files that commands should read belong beneath work/inputs/.
    path: String,
    /// The file's content, if it is text. Give this or content_base64.
    content: Option<String>,
    /// The file's content in base64, for any bytes.
    content_base64: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct WriteResult {
    path: String,
    /// `workspace://PATH`, for read_file and for inputs.
    #[serde(rename = "ref")]
    reference: String,
    size_bytes: usize,
    sha256: String,
}

/// Returns the definition of the tool that a model is shown.
pub(crate) fn tool_definition() -> ToolDefinition {
    let mut parameters = arguments::schema::<WriteArguments>();
    if let Some(parameters) = parameters.as_object_mut() {
        parameters.insert("required".into(), json!(["path"]));
    }
    ToolDefinition {
        name: NAME.into(),
        description: "Writes a file into the conversation's workspace, from text or from base64, at most 8 MiB. \
                      Commands of skills find it under $WORKSPACE_DIR/PATH. A file of the same path is replaced; \
                      folders are created."
            .into(),
        parameters,
        returns: arguments::result_schema::<WriteResult>(),
    }
}

/// Writes the file that one call of the tool describes.
pub(crate) async fn call_tool(
    tools: &Toolset,
    session: &Session,
    given: Value,
) -> Result<Value, ToolError> {
    let asked: WriteArguments =
        arguments::decode(given, &[("file_name", "path"), ("file_path", "path")])?;
    let invalid = |problem: &str| ToolError::InvalidArguments {
        problem: problem.to_owned(),
    };
    let data = match (asked.content, asked.content_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(base64)) => BASE64
            .decode(base64.trim().as_bytes())
            .map_err(|error| invalid(&format!("content_base64 is not base64: {error}")))?,
        (Some(_), Some(_)) => return Err(invalid("give content or content_base64, not both")),
        (None, None) => {
            return Err(invalid(
                "content is missing: give content or content_base64",
            ));
        }
    };
    if data.len() > FILE_BYTES_MAX {
        return Err(invalid(&format!(
            "the content has {} bytes, more than {FILE_BYTES_MAX}",
            data.len()
        )));
    }
    let (size_bytes, sha256) = (data.len(), HEXLOWER.encode(&Sha256::digest(&data)));
    let path = tools.write_file(session, &asked.path, data).await?;
    Ok(json!(WriteResult {
        reference: format!("workspace://{path}"),
        path,
        size_bytes,
        sha256,
    }))
}

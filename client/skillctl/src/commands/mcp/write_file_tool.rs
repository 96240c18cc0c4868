//! The tool `workspace_write_file`: files that only the client has get into the session's workspace.

use data_encoding::{BASE64_MIME, HEXLOWER};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use skilld_tools::{Session, ToolDefinition, ToolError, Toolset, arguments};

/// Name of the tool that writes a file into the workspace.
pub(crate) const NAME: &str = "workspace_write_file";
/// Maximum size of a file that the tool writes, in MiB.
const FILE_MIB_MAX: usize = 8;
/// Maximum size of a message from a client, in bytes, on stdio and over HTTP: the largest file as text of which JSON
/// escapes every byte (`\u0001`), and 64 KiB for what stands around it.
pub(crate) const MESSAGE_BYTES_MAX: usize = (6 * FILE_MIB_MAX * 1024 + 64) * 1024;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct WriteArguments {
    /// Path in the workspace, beneath work/ or out/. Files that commands should read belong beneath work/inputs/.
    path: String,
    /// The file's content, if it is text. Give this or content_base64.
    content: Option<String>,
    /// The file's content in base64, for any bytes.
    content_base64: String,
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
        description: format!(
            "Writes a file into the conversation's workspace, from text or from base64, at most {FILE_MIB_MAX} MiB. \
             Commands of skills find it under $WORKSPACE_DIR/PATH. A file of the same path is replaced; folders are \
             created."
        ),
        parameters,
        returns: arguments::result_schema::<WriteResult>(),
    }
}

/// Adds this tool to the errors that lead to it: those of a text that is too long for a command, and of an unknown tool.
pub(crate) fn name_in_error(error: &mut ToolError) {
    if let ToolError::ArgumentTooLong { way_out, .. } = error {
        way_out.push_str(&format!("; {NAME} makes one"));
    } else if let ToolError::UnknownTool { known, .. } = error {
        known.push(NAME.to_owned());
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
    let data = match (asked.content, asked.content_base64.trim()) {
        // Empty text beside base64 is one that is left out; alone it is an empty file.
        (Some(text), base64) if !(text.is_empty() || base64.is_empty()) => {
            return Err(invalid("give content or content_base64, not both"));
        }
        (Some(text), "") => text.into_bytes(),
        (None, "") => {
            return Err(invalid(
                "content is missing: give content or content_base64",
            ));
        }
        // Some encoders break lines.
        (_, base64) => BASE64_MIME
            .decode(base64.as_bytes())
            .map_err(|error| invalid(&format!("content_base64 is not base64: {error}")))?,
    };
    let bytes = data.len();
    if bytes > FILE_MIB_MAX * 1024 * 1024 {
        return Err(invalid(&format!(
            "the content has {bytes} bytes; at most {FILE_MIB_MAX} MiB: write it in parts, and join them with a command"
        )));
    }
    let (size_bytes, sha256) = (bytes, HEXLOWER.encode(&Sha256::digest(&data)));
    let path = tools.write_file(session, &asked.path, data).await?;
    Ok(json!(WriteResult {
        reference: format!("workspace://{path}"),
        path,
        size_bytes,
        sha256,
    }))
}

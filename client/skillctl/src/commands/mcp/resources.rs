//! Files as MCP resources: `skill://NAME/PATH`, `workspace://PATH` and `artifact://NAME@VERSION`.

mod file;
mod listing;

pub(crate) use file::{ResourceFile, ResourceLocation, read_file};
pub(crate) use listing::list_resources;

use data_encoding::BASE64;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rmcp::ErrorData;
use rmcp::model::{
    ErrorCode, ListResourceTemplatesResult, ReadResourceResponse, ReadResourceResult,
    ResourceContents, ResourceTemplate,
};
use serde::Serialize;
use skilld_client::v1::ErrorReason;
use skilld_client::{Client, Error};
use skilld_tools::{Session, ToolOptions};

/// Maximum size of a message for a client, in bytes: widespread clients break off beyond 10 MiB.
const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum size of the content of a file in a message, in bytes of JSON; the rest is for what stands around it.
const CONTENT_JSON_MAX: usize = MESSAGE_BYTES_MAX - 64 * 1024;
/// Maximum size of a file that a message holds, in bytes: three of them are four of base64.
pub(crate) const FILE_BYTES_MAX: usize = CONTENT_JSON_MAX / 4 * 3;

/// Maximum number of characters of a URI that an error repeats.
const SHOWN_CHARS_MAX: usize = 1000;

/// Characters to percent-encode: all but those that a URI may hold unencoded (RFC 3986, 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Scope of the resources that a client sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceScope<'a> {
    pub(crate) client: &'a Client,
    pub(crate) options: &'a ToolOptions,
    pub(crate) session: &'a Session,
    /// Set if the tools run commands, so that the session can have files in a workspace.
    pub(crate) has_workspace: bool,
}

/// Returns the size of a value in bytes of JSON.
pub(crate) fn json_bytes(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(0, |json| json.len())
}

/// Returns the templates of the URIs that a client can read.
pub(crate) fn resource_templates(has_workspace: bool) -> ListResourceTemplatesResult {
    let mut templates = vec![
        ResourceTemplate::new("skill://{skill}/{+path}", "a file of a skill")
            .with_description("SKILL.md is its instructions; the other files are named there."),
    ];
    if has_workspace {
        templates.push(
            ResourceTemplate::new("workspace://{+path}", "a file of the workspace")
                .with_description("Commands leave their results beneath out/."),
        );
        templates.push(
            ResourceTemplate::new("artifact://{+name}", "a saved artifact")
                .with_description("NAME is the newest version, NAME@VERSION a certain one."),
        );
    }
    ListResourceTemplatesResult::with_all_items(templates)
}

/// Reads the resource with a URI for a client.
pub(crate) async fn read_resource(
    scope: ResourceScope<'_>,
    uri: &str,
) -> Result<ReadResourceResponse, ErrorData> {
    // A client may send any text as a URI.
    let shown: String = uri.chars().take(SHOWN_CHARS_MAX).collect();
    let unknown = || ErrorData::resource_not_found(format!("there is no resource {shown}"), None);
    let location = ResourceLocation::from_uri(uri).ok_or_else(unknown)?;
    if !(location.is_visible(scope) && is_offered(scope, &location).await?) {
        return Err(unknown());
    }
    let file = read_file(scope, &location)
        .await
        .map_err(|error| resource_error(&error))?;
    if !file.is_whole() {
        let problem = format!(
            "{shown} has {} bytes; a message has room for {FILE_BYTES_MAX}: read text in parts with a tool, or copy the file \
             with skillctl",
            file.size
        );
        return Err(ErrorData::invalid_params(problem, None));
    }
    Ok(ReadResourceResult::new(vec![resource_contents(file, uri)]).into())
}

/// Returns `false` for a file of a skill that does not exist or that no model may use.
async fn is_offered(
    scope: ResourceScope<'_>,
    location: &ResourceLocation,
) -> Result<bool, ErrorData> {
    let ResourceLocation::Skill(skill, _) = location else {
        return Ok(true);
    };
    match scope.client.get_skill(skill).await {
        Ok(skill) => Ok(!skill.disable_model_invocation),
        // The error would suggest names, also of skills that are not for models.
        Err(error) if error.reason() == Some(ErrorReason::SkillNotFound) => Ok(false),
        Err(error) => Err(resource_error(&error)),
    }
}

/// Returns the content of a file as text if it is text that a message has room for, else as base64.
fn resource_contents(file: ResourceFile, uri: &str) -> ResourceContents {
    let is_short = |text: &String| json_bytes(text) <= CONTENT_JSON_MAX;
    let contents = match String::from_utf8(file.bytes) {
        Ok(text) if file.is_text && is_short(&text) => ResourceContents::text(text, uri),
        Ok(text) => ResourceContents::blob(BASE64.encode(text.as_bytes()), uri),
        Err(error) => ResourceContents::blob(BASE64.encode(error.as_bytes()), uri),
    };
    contents.with_mime_type(file.mime_type)
}

/// Percent-encodes each segment of a path.
fn encode_path(path: &str) -> String {
    let parts = path
        .split('/')
        .map(|part| utf8_percent_encode(part, ESCAPED).to_string());
    parts.collect::<Vec<_>>().join("/")
}

fn resource_error(error: &Error) -> ErrorData {
    let code = match error.reason() {
        Some(
            ErrorReason::SkillNotFound
            | ErrorReason::FileNotFound
            | ErrorReason::WorkspaceNotFound
            | ErrorReason::ArtifactNotFound,
        ) => ErrorCode::RESOURCE_NOT_FOUND,
        Some(
            ErrorReason::InvalidRequest
            | ErrorReason::PathEscapes
            | ErrorReason::SkillInvalid
            | ErrorReason::WrongFileType,
        ) => ErrorCode::INVALID_PARAMS,
        _ => ErrorCode::INTERNAL_ERROR,
    };
    ErrorData::new(code, error.to_string(), None)
}

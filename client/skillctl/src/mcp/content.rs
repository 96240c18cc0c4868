//! Content blocks of results: the text that every client reads, images and other files that are no text, and links to
//! what was saved.

use data_encoding::{BASE64, HEXLOWER};
use rmcp::model::{CallToolResult, ContentBlock, Resource};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::mcp::resources::{self, ResourceFile, ResourceLocation, ResourceScope};
use crate::tool::find_saved_artifacts;

/// Maximum size of a file that a result holds, in bytes; a larger one is a link. Results stay in the conversation, and
/// few clients show more than an image of such a file.
const EMBEDDED_BYTES_MAX: usize = 1024 * 1024;
/// Maximum size of an image that a result holds, in bytes. Models see an image only there, and take at most 5 MB of
/// base64.
const IMAGE_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Returns the result of a call that succeeded. A result that is no object is wrapped in one.
pub(crate) fn success_result(result: Value) -> CallToolResult {
    let text = match result.as_str() {
        Some(text) => text.to_owned(),
        None => result.to_string(),
    };
    let links: Vec<ContentBlock> = find_saved_artifacts(&result)
        .iter()
        .map(|name| artifact_link(name))
        .collect();
    let structured = if result.is_object() {
        result
    } else {
        json!({"result": result})
    };
    let mut answer = CallToolResult::success(vec![ContentBlock::text(text)]);
    answer.content.extend(links);
    answer.structured_content = Some(structured);
    answer
}

/// Returns the result of a call that failed.
pub(crate) fn error_result(error: &Value) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(error.to_string())])
}

/// Returns the file that `read_file` refused because it is no text: an image as an image, any other file as an embedded
/// resource, and a large one as a link to its resource. `None` if the file is too large or cannot be read; the caller
/// reports its own error then.
pub(crate) async fn binary_file(
    scope: ResourceScope<'_>,
    reference: &str,
) -> Option<CallToolResult> {
    let location = ResourceLocation::from_reference(reference)?;
    let file = resources::read_file(scope, &location).await.ok()??;
    // As read_file describes a file of which it shows no line.
    let result = json!({
        "file_name": reference,
        "content": "",
        "start_line": 0,
        "end_line": 0,
        "size_bytes": file.bytes.len(),
        "mime_type": file.mime_type,
    });
    let mut answer = success_result(result);
    answer.content.push(file_block(file, &location));
    Some(answer)
}

/// Returns the bytes of a skill's file that a tool only described, `"binary": true`. `None` if the skill's current
/// version has other bytes there.
pub(crate) async fn described_file(
    scope: ResourceScope<'_>,
    arguments: &Value,
    result: &Value,
) -> Option<ContentBlock> {
    let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
    if result.get("binary") != Some(&Value::Bool(true)) {
        return None;
    }
    let skill = text(result, "name").or_else(|| text(arguments, "skill_id"))?;
    let location = ResourceLocation::Skill(skill, text(result, "path")?);
    if !location.is_visible(scope) {
        return None;
    }
    let file = resources::read_file(scope, &location).await.ok()??;
    let digest = HEXLOWER.encode(&Sha256::digest(&file.bytes));
    (text(result, "sha256")? == digest).then(|| file_block(file, &location))
}

fn file_block(file: ResourceFile, location: &ResourceLocation) -> ContentBlock {
    let kind = file.mime_type.split_once('/');
    let bytes_max = match kind {
        Some(("image", _)) if !file.is_text => IMAGE_BYTES_MAX,
        Some(_) | None => EMBEDDED_BYTES_MAX,
    };
    if file.bytes.len() > bytes_max {
        let resource = Resource::new(location.uri(), location.name())
            .with_mime_type(file.mime_type)
            .with_size(file.bytes.len() as u64);
        return ContentBlock::resource_link(resource);
    }
    match kind {
        Some(("image", _)) if !file.is_text => {
            ContentBlock::image(BASE64.encode(&file.bytes), file.mime_type)
        }
        Some(("audio", _)) if !file.is_text => {
            ContentBlock::audio(BASE64.encode(&file.bytes), file.mime_type)
        }
        _ => ContentBlock::resource(resources::resource_contents(file, &location.uri())),
    }
}

/// Returns a content block that links to an artifact, NAME@VERSION.
fn artifact_link(name: &str) -> ContentBlock {
    let uri = ResourceLocation::from_reference(&format!("artifact://{name}"));
    let uri = uri.map_or_else(String::new, |location| location.uri());
    ContentBlock::resource_link(Resource::new(uri, name))
}

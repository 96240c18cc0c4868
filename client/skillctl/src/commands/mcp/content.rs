//! Content of results: text for every client, the structured result, images, sounds, and links to files. A session gets
//! nothing that its version of the protocol does not know.

use data_encoding::{BASE64, HEXLOWER};
use rmcp::model::{CallToolResult, ContentBlock, ProtocolVersion, Resource};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use skilld_tools::Family;

use crate::commands::mcp::resources::{self, ResourceFile, ResourceLocation, ResourceScope};
use crate::commands::tool::find_saved_artifacts;

/// Media types of the images that models take.
const IMAGE_TYPES: [&str; 4] = ["image/gif", "image/jpeg", "image/png", "image/webp"];
/// Maximum size of an image that a result holds, in bytes. Models see an image only there; in base64 it is three and a
/// half of the four MiB of a message.
const IMAGE_BYTES_MAX: u64 = 5 * 1024 * 1024 / 2;
/// Maximum size of a sound that a result holds, in bytes. Results stay in the conversation.
const AUDIO_BYTES_MAX: u64 = 1024 * 1024;

/// Rules for the content of results, by the version of the session's protocol and by what the server's user asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContentRules {
    /// `true` if a result is structured too.
    pub(crate) has_structure: bool,
    /// `true` if tools have annotations, and audio is content of its own.
    pub(crate) has_annotations: bool,
    /// `true` if results link to files.
    has_links: bool,
}

impl ContentRules {
    /// Returns the rules for a version; `None` is the newest. Links are for clients whose user asks for them.
    pub(crate) fn new(version: Option<&ProtocolVersion>, wants_links: bool) -> Self {
        // Versions are dates.
        let knows = |since: &ProtocolVersion| {
            version.is_none_or(|version| version.as_str() >= since.as_str())
        };
        let has_structure = knows(&ProtocolVersion::V_2025_06_18);
        Self {
            has_structure,
            has_annotations: knows(&ProtocolVersion::V_2025_03_26),
            has_links: has_structure && wants_links,
        }
    }

    /// Returns the result of a call that succeeded. A structured result that is no object is wrapped in one. The text of
    /// Agent Zero's results is theirs, without the fields for programs.
    pub(crate) fn success_result(self, family: Family, result: Value) -> CallToolResult {
        let own_text = match family {
            Family::AgentZero => result.get("text").unwrap_or(&result),
            Family::Trpc | Family::Sherma => &result,
        };
        let text = match own_text.as_str() {
            Some(text) => text.to_owned(),
            None => result.to_string(),
        };
        let mut answer = CallToolResult::success(vec![ContentBlock::text(text)]);
        if self.has_links {
            let saved = find_saved_artifacts(&result);
            let links = saved.iter().map(|name| artifact_link(name));
            answer.content.extend(links);
        }
        if self.has_structure {
            answer.structured_content = Some(match result.is_object() {
                true => result,
                false => json!({"result": result}),
            });
        }
        answer
    }

    /// Returns the file that `read_file` refused because it is no text. `None` if the file cannot be read; the caller
    /// reports its own error then.
    pub(crate) async fn binary_file(
        self,
        scope: ResourceScope<'_>,
        reference: &str,
    ) -> Option<CallToolResult> {
        let location = ResourceLocation::from_reference(reference)?;
        let file = resources::read_file(scope, &location).await.ok()?;
        // As read_file describes a file of which it shows no line.
        let mut result = json!({
            "file_name": reference,
            "content": "",
            "start_line": 0,
            "end_line": 0,
            "size_bytes": file.size,
            "mime_type": file.mime_type,
        });
        let block = self.show_file(scope, file, &location, &mut result);
        let mut answer = self.success_result(Family::Trpc, result);
        answer.content.extend(block);
        Some(answer)
    }

    /// Returns the bytes of a skill's file that a tool only described, `"binary": true`. `None` if they are not shown, or
    /// if the skill's current version has other bytes there.
    pub(crate) async fn described_file(
        self,
        scope: ResourceScope<'_>,
        arguments: &Value,
        result: &mut Value,
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
        let file = resources::read_file(scope, &location).await.ok()?;
        let is_it = match file.is_whole() {
            true => text(result, "sha256")? == HEXLOWER.encode(&Sha256::digest(&file.bytes)),
            // Only the beginning was read, and none of it is shown.
            false => result.get("size").and_then(Value::as_u64) == Some(file.size),
        };
        is_it
            .then(|| self.show_file(scope, file, &location, result))
            .flatten()
    }

    /// Returns an image or a sound as content, and any other file as a link where links are wanted. `result` gets the
    /// file's reference and a note about its bytes.
    fn show_file(
        self,
        scope: ResourceScope<'_>,
        file: ResourceFile,
        location: &ResourceLocation,
        result: &mut Value,
    ) -> Option<ContentBlock> {
        let (size, mime_type) = (file.size, file.mime_type.as_str());
        let is_image = IMAGE_TYPES.contains(&mime_type) && size <= IMAGE_BYTES_MAX;
        let is_sound = mime_type.starts_with("audio/") && size <= AUDIO_BYTES_MAX;
        let (note, block) = if is_image && !file.is_text {
            let image = ContentBlock::image(BASE64.encode(&file.bytes), file.mime_type);
            ("an image, which is beside this result", Some(image))
        } else if is_sound && !file.is_text && self.has_annotations {
            let sound = ContentBlock::audio(BASE64.encode(&file.bytes), file.mime_type);
            ("a sound, which is beside this result", Some(sound))
        } else {
            let resource = Resource::new(location.uri(), location.name())
                .with_mime_type(file.mime_type)
                .with_size(size);
            let link = ContentBlock::resource_link(resource);
            let note = match scope.has_workspace {
                true => "no text, and not shown: commands can read it",
                false => "no text, and not shown",
            };
            (note, self.has_links.then_some(link))
        };
        if let Some(fields) = result.as_object_mut() {
            fields.insert("note".into(), note.into());
            fields.insert("ref".into(), location.reference().into());
        }
        block
    }
}

/// Returns the result of a call that failed.
pub(crate) fn error_result(error: &Value) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(error.to_string())])
}

/// Returns a content block that links to an artifact, NAME@VERSION.
fn artifact_link(name: &str) -> ContentBlock {
    let uri = ResourceLocation::from_reference(&format!("artifact://{name}"))
        .map_or_else(String::new, |location| location.uri());
    ContentBlock::resource_link(Resource::new(uri, name))
}

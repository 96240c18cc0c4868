//! Location of a resource, and its bytes.

use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use percent_encoding::percent_decode_str;
use skilld_client::v1::{LoadArtifactRequest, ReadFileRequest, ReadSkillFileRequest};
use skilld_client::{Error, split_version, workspace_name};
use skilld_tools::relative_to_workspace;

use super::{FILE_BYTES_MAX, ResourceScope, encode_path};

/// Types of media by the first bytes of a file, for files of a workspace, which have no recorded type.
const SIGNATURES: [(&[u8], &str); 7] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
];

/// Location of a file that is a resource: in a skill, in the workspace, or an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResourceLocation {
    /// Name of a skill, with a version or not, and a path in it.
    Skill(String, String),
    /// Path in the workspace.
    Workspace(String),
    /// Name and version of an artifact; `None` is the newest one.
    Artifact(String, Option<i64>),
}

/// Bytes of a resource with their media type.
#[derive(Debug)]
pub(crate) struct ResourceFile {
    /// Bytes of the file; only the beginning of one that is too large for a message.
    pub(crate) bytes: Vec<u8>,
    /// Size of the whole file in bytes.
    pub(crate) size: u64,
    pub(crate) mime_type: String,
    /// Set if a client may show the file as text.
    pub(crate) is_text: bool,
}

impl ResourceFile {
    /// Returns `true` if the bytes are all of the file.
    pub(crate) fn is_whole(&self) -> bool {
        self.bytes.len() as u64 >= self.size
    }
}

impl ResourceLocation {
    /// Parses the URI of a resource, whose path is percent-encoded; `None` for any other URI.
    pub(crate) fn from_uri(uri: &str) -> Option<Self> {
        let (scheme, path) = uri.split_once("://")?;
        let path = percent_decode_str(path).decode_utf8().ok()?;
        Self::new(scheme, &path)
    }

    /// Parses a reference as the tools take it: a path without a scheme is in the workspace, and nothing is encoded.
    pub(crate) fn from_reference(reference: &str) -> Option<Self> {
        match reference.trim().split_once("://") {
            Some((scheme, path)) => Self::new(scheme, path),
            None => Self::new("workspace", reference.trim()),
        }
    }

    fn new(scheme: &str, path: &str) -> Option<Self> {
        if path.is_empty() {
            return None;
        }
        match scheme {
            "skill" => {
                let (skill, path) = path.split_once('/')?;
                let is_whole = !(skill.is_empty() || path.is_empty());
                is_whole.then(|| Self::Skill(skill.to_owned(), path.to_owned()))
            }
            // The tools' forms of absolute paths. Others stay as they are, blanks at their ends included.
            "workspace" if path.starts_with('/') => {
                let inside = relative_to_workspace(path);
                (!inside.is_empty()).then(|| Self::Workspace(inside.into_owned()))
            }
            "workspace" => Some(Self::Workspace(path.to_owned())),
            "artifact" => {
                let (name, version) = split_version(path);
                let version = version.map(str::parse).transpose().ok()?;
                Some(Self::Artifact(name.to_owned(), version))
            }
            _ => None,
        }
    }

    /// Returns the URI of the resource, with its path percent-encoded.
    pub(crate) fn uri(&self) -> String {
        match self {
            Self::Skill(skill, path) => format!("skill://{skill}/{}", encode_path(path)),
            Self::Workspace(path) => format!("workspace://{}", encode_path(path)),
            Self::Artifact(name, None) => format!("artifact://{}", encode_path(name)),
            Self::Artifact(name, Some(version)) => {
                format!("artifact://{}@{version}", encode_path(name))
            }
        }
    }

    /// Returns the reference of the resource as the tools take it, in which nothing is encoded.
    pub(crate) fn reference(&self) -> String {
        let scheme = match self {
            Self::Skill(..) => "skill",
            Self::Workspace(_) => "workspace",
            Self::Artifact(..) => "artifact",
        };
        format!("{scheme}://{}", self.name())
    }

    /// Returns the name under which a client shows the resource.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Skill(skill, path) => format!("{skill}/{path}"),
            Self::Workspace(path) => path.clone(),
            Self::Artifact(name, None) => name.clone(),
            Self::Artifact(name, Some(version)) => format!("{name}@{version}"),
        }
    }

    /// Returns `true` if the options let the client see the file, provided that it exists.
    pub(crate) fn is_visible(&self, scope: ResourceScope<'_>) -> bool {
        match self {
            Self::Skill(skill, _) => scope.options.shows(skill),
            Self::Workspace(_) | Self::Artifact(..) => scope.has_workspace,
        }
    }
}

/// Opened resource: its size, its media type (empty if the daemon knows none), `false` if the daemon knows that it is
/// no text, and its bytes.
type OpenedResource = (i64, String, bool, BoxStream<'static, Result<Bytes, Error>>);

/// Opens a resource for reading.
async fn open_resource(
    scope: ResourceScope<'_>,
    location: &ResourceLocation,
) -> Result<OpenedResource, Error> {
    let client = scope.client;
    Ok(match location {
        ResourceLocation::Skill(skill, path) => {
            let request = ReadSkillFileRequest {
                name: skill.clone(),
                path: path.clone(),
                workspace_paths: true,
                ..ReadSkillFileRequest::default()
            };
            let (file, data) = client.read_skill_file(request).await?.into_parts();
            (file.size_bytes, file.mime_type, file.is_text, data)
        }
        ResourceLocation::Workspace(path) => {
            let request = ReadFileRequest {
                workspace: workspace_name(&scope.session.workspace_id()),
                path: path.clone(),
                ..ReadFileRequest::default()
            };
            let (file, data) = client.read_file(request).await?.into_parts();
            (file.size_bytes, String::new(), true, data)
        }
        ResourceLocation::Artifact(name, version) => {
            let request = LoadArtifactRequest {
                name: name.clone(),
                scope: Some(scope.session.scope()),
                version: *version,
            };
            let (artifact, data) = client.load_artifact(request).await?.into_parts();
            (artifact.size_bytes, artifact.mime_type, true, data)
        }
    })
}

/// Reads a file; of one that has more than [`FILE_BYTES_MAX`] bytes only the beginning.
pub(crate) async fn read_file(
    scope: ResourceScope<'_>,
    location: &ResourceLocation,
) -> Result<ResourceFile, Error> {
    let (size, mime_type, is_text, mut data) = open_resource(scope, location).await?;
    let size = u64::try_from(size).unwrap_or_default();
    let (mut bytes, mut is_cut) = (Vec::new(), false);
    while let Some(data) = data.try_next().await? {
        bytes.extend_from_slice(&data);
        is_cut = size > FILE_BYTES_MAX as u64 || bytes.len() > FILE_BYTES_MAX;
        if is_cut {
            break;
        }
    }
    // A command may be writing to it, so the size is what came unless that is not all.
    let received = bytes.len() as u64;
    bytes.truncate(FILE_BYTES_MAX);
    let mut file = recognise_type(bytes);
    if is_cut {
        file.size = size.max(received);
    }
    if !mime_type.is_empty() {
        file.mime_type = mime_type;
    }
    file.is_text &= is_text;
    Ok(file)
}

/// Recognises the media type of a file by its first bytes.
fn recognise_type(bytes: Vec<u8>) -> ResourceFile {
    let is_text = is_text(&bytes);
    let signature = SIGNATURES
        .iter()
        .find(|(first, _)| bytes.starts_with(first))
        .map(|(_, mime_type)| *mime_type);
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    let mime_type = match signature {
        Some(mime_type) => mime_type,
        None if is_webp => "image/webp",
        None if is_text => "text/plain",
        None => "application/octet-stream",
    };
    ResourceFile {
        size: bytes.len() as u64,
        bytes,
        mime_type: mime_type.to_owned(),
        is_text,
    }
}

fn is_text(bytes: &[u8]) -> bool {
    !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_the_file_that_it_was_made_of() {
        for location in [
            ResourceLocation::Skill("s".into(), "a b/ü.md".into()),
            ResourceLocation::Workspace("out/100 %.txt".into()),
            ResourceLocation::Artifact("out/r@final.pdf".into(), None),
            ResourceLocation::Artifact("out/r@final.pdf".into(), Some(3)),
        ] {
            assert_eq!(ResourceLocation::from_uri(&location.uri()), Some(location));
        }
        for uri in [
            "skill://s",
            "skill:///a",
            "workspace://",
            "file:///etc/passwd",
            "artifact://a@99999999999999999999",
            "x",
        ] {
            assert_eq!(ResourceLocation::from_uri(uri), None, "{uri}");
        }
        for uri in ["workspace:///out/a", "workspace:///workspace/out/a"] {
            let location = Some(ResourceLocation::Workspace("out/a".into()));
            assert_eq!(ResourceLocation::from_uri(uri), location, "{uri}");
        }
        let plain = ResourceLocation::from_reference("out/100 %.png");
        assert_eq!(
            plain,
            Some(ResourceLocation::Workspace("out/100 %.png".into()))
        );
    }

    #[test]
    fn images_are_recognised_by_their_first_bytes() {
        for (bytes, mime_type, is_text) in [
            (&b"\x89PNG\r\n\x1a\n\0"[..], "image/png", false),
            (b"RIFF\0\0\0\0WEBP", "image/webp", false),
            (b"RIFF\0\0\0\0WAVE", "application/octet-stream", false),
            (b"a,b\n", "text/plain", true),
        ] {
            let file = recognise_type(bytes.to_vec());
            assert_eq!(
                (file.mime_type.as_str(), file.is_text),
                (mime_type, is_text)
            );
        }
    }
}

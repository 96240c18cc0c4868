//! Files in a message's content, in the notations of all providers. Their part types are distinct, so no provider is asked
//! for.

use data_encoding::BASE64_MIME;
use serde_json::Value;

/// Types of parts that are files, of all providers.
const FILE_TYPES: [&str; 7] = [
    "document",
    "file",
    "image",
    "image_url",
    "input_audio",
    "input_file",
    "input_image",
];
/// Fields of such a part that hold its content, or an address of it.
const CONTENT_FIELDS: [&str; 6] = [
    "data",
    "file_data",
    "file_id",
    "file_url",
    "image_url",
    "url",
];

/// File in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilePart {
    /// Name of the file; empty if it has none.
    pub(super) name: String,
    /// Media type; empty if the part does not say it.
    pub(super) mime: String,
    pub(super) source: FileSource,
}

/// Source of a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileSource {
    /// Bytes in base64.
    Base64(String),
    /// Bytes as text.
    Text(String),
    Url(String),
    /// Id of a file that the provider has.
    Id(String),
}

impl FileSource {
    /// Returns the bytes if the part has them and they can be decoded.
    pub(super) fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            // Some encoders break lines.
            Self::Base64(text) => BASE64_MIME.decode(text.trim().as_bytes()).ok(),
            Self::Text(text) => Some(text.clone().into_bytes()),
            Self::Url(_) | Self::Id(_) => None,
        }
    }

    /// Takes `data:TYPE;base64,BYTES` apart into media type and bytes; any other URL stays as it is.
    fn from_url(url: &str) -> (String, Self) {
        let parts = url
            .strip_prefix("data:")
            .and_then(|rest| rest.split_once(";base64,"));
        match parts {
            Some((mime, bytes)) => (mime.to_owned(), Self::Base64(bytes.to_owned())),
            None => (String::new(), Self::Url(url.to_owned())),
        }
    }
}

impl FilePart {
    /// Parses a part of a message's content; `None` if it is no file, or one in a form that cannot be used.
    pub(super) fn parse(part: &Value) -> Option<Self> {
        let text = |name: &str| part.get(name).and_then(Value::as_str);
        let kind = text("type")?;
        let (name, (mime, source)) = match kind {
            "image_url" => {
                let url = part.get(kind)?.get("url")?.as_str()?;
                ("", FileSource::from_url(url))
            }
            "input_audio" => {
                let audio = part.get(kind)?;
                let format = audio.get("format")?.as_str()?;
                let data = FileSource::Base64(audio.get("data")?.as_str()?.to_owned());
                ("", (format!("audio/{format}"), data))
            }
            "file" => {
                let file = part.get(kind)?;
                let text = |name: &str| file.get(name).and_then(Value::as_str);
                let source = one_source(text("file_data"), None, text("file_id"))?;
                (text("filename").unwrap_or_default(), source)
            }
            "input_image" => {
                let url = text("image_url").map(FileSource::from_url);
                ("", one_source(None, url, text("file_id"))?)
            }
            "input_file" => {
                let url = |url: &str| (String::new(), FileSource::Url(url.to_owned()));
                let url = text("file_url").map(url);
                let source = one_source(text("file_data"), url, text("file_id"))?;
                (text("filename").unwrap_or_default(), source)
            }
            "image" => ("", block_source(part.get("source")?)?),
            "document" => {
                let title = text("title").unwrap_or_default();
                (title, block_source(part.get("source")?)?)
            }
            _ => return None,
        };
        Some(Self {
            name: name.to_owned(),
            mime,
            source,
        })
    }
}

/// Returns the source of an OpenAI part, which has exactly one of these: data, a URL or an id.
fn one_source(
    data: Option<&str>,
    url: Option<(String, FileSource)>,
    id: Option<&str>,
) -> Option<(String, FileSource)> {
    match (data, url, id) {
        (Some(data), None, None) if data.starts_with("data:") => Some(FileSource::from_url(data)),
        (None, Some(source), None) => Some(source),
        (None, None, Some(id)) => Some((String::new(), FileSource::Id(id.to_owned()))),
        _ => None,
    }
}

/// Returns the source of an Anthropic block.
fn block_source(source: &Value) -> Option<(String, FileSource)> {
    let text = |name: &str| Some(source.get(name)?.as_str()?.to_owned());
    Some(match text("type")?.as_str() {
        "base64" => (text("media_type")?, FileSource::Base64(text("data")?)),
        "text" => (text("media_type")?, FileSource::Text(text("data")?)),
        "url" => (String::new(), FileSource::Url(text("url")?)),
        "file" => (String::new(), FileSource::Id(text("file_id")?)),
        _ => return None,
    })
}

/// Returns the name and the problem of a part that is a file in no form that can be used, for instance without data and
/// without an id; `None` for parts that are no files.
pub(super) fn unusable_file(part: &Value) -> Option<(String, &'static str)> {
    let kind = part.get("type").and_then(Value::as_str)?;
    if !FILE_TYPES.contains(&kind) {
        return None;
    }
    let mut places = [part.get(kind), part.get("source"), Some(part)]
        .into_iter()
        .flatten();
    let mut names = places
        .clone()
        .flat_map(|place| [place.get("filename"), place.get("title")])
        .flatten()
        .filter_map(Value::as_str);
    let name = names.find(|name| !name.is_empty()).unwrap_or(kind);
    let has_content = places.any(|place| {
        let mut fields = CONTENT_FIELDS.iter().filter_map(|field| place.get(*field));
        let blocks = place.get("content").and_then(Value::as_array);
        fields.any(|content| content.as_str().is_some_and(|text| !text.is_empty()))
            || blocks.is_some_and(|blocks| !blocks.is_empty())
    });
    let problem = match has_content {
        true => "not a form of file that can be read here",
        false => "neither data nor an id",
    };
    Some((name.to_owned(), problem))
}

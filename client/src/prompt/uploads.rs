//! Files that the user put into the conversation, for staging into the workspace.

use std::collections::{HashMap, HashSet};

use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::message::{File, FileSource, Message, Part, Role};
use crate::names::split_version;

/// A name that says nothing.
const UNNAMED: &str = "upload";
/// What a reference to an artifact begins with, also where a provider has its ids.
const ARTIFACT: &str = "artifact://";
/// Types of parts that are files, of all providers.
const FILE_PARTS: [&str; 7] = [
    "document",
    "file",
    "image",
    "image_url",
    "input_audio",
    "input_file",
    "input_image",
];
/// Fields of such a part that have its content, or lead to it.
const CONTENT_FIELDS: [&str; 6] = [
    "data",
    "file_data",
    "file_id",
    "file_url",
    "image_url",
    "url",
];

/// A file to stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Its name in the workspace: one path segment, no two alike.
    pub name: String,
    /// Its name in the conversation; empty if it has none.
    pub original_name: String,
    /// Its bytes, or where they are.
    pub content: UploadContent,
    /// Of the same content under the same name always the same: staged once, it need not be again.
    pub key: String,
}

/// What an upload consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadContent {
    /// These.
    Bytes(Vec<u8>),
    /// An `artifact://` reference or a URL, for StageInputs to follow or refuse.
    Reference(String),
    /// The provider has it; only the host can fetch it.
    ProviderId(String),
}

/// All files of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uploads {
    /// In the order of the conversation, each once.
    pub files: Vec<Upload>,
    /// What could not be used, in words for the model.
    pub warnings: Vec<String>,
}

/// Finds the files in what the user said.
#[must_use]
pub fn uploads(messages: &[Message]) -> Uploads {
    let mut found = Uploads::default();
    let (mut keys, mut names) = (HashSet::new(), Names::default());
    let users = messages.iter().filter(|message| message.role == Role::User);
    let mut number = 0;
    for part in users.flat_map(|message| &message.parts) {
        let file = match part {
            Part::File(file) => file,
            Part::Other(_, value) => {
                found.warnings.extend(unusable_file(value));
                continue;
            }
            Part::Text(_) | Part::Call(_) | Part::Result(_) => continue,
        };
        number += 1;
        let name = file_name(&original_name(file, number));
        let Some((content, key)) = content(file) else {
            found
                .warnings
                .push(format!("user file input: {name}: not base64"));
            continue;
        };
        let key = format!("{key}/name/{}", name.to_lowercase());
        if keys.insert(key.clone()) {
            found.files.push(Upload {
                name: names.free(&name),
                original_name: file.name.clone(),
                content,
                key,
            });
        }
    }
    found
}

fn content(file: &File) -> Option<(UploadContent, String)> {
    let hash = |bytes: &[u8]| HEXLOWER.encode(&Sha256::digest(bytes));
    Some(match &file.source {
        FileSource::Base64(_) | FileSource::Text(_) => {
            let bytes = file.bytes()?;
            let key = format!("sha256/{}", hash(&bytes));
            (UploadContent::Bytes(bytes), key)
        }
        FileSource::Url(url) => {
            let key = format!("url/{}", hash(url.as_bytes()));
            (UploadContent::Reference(url.clone()), key)
        }
        FileSource::Id(id) if id.starts_with(ARTIFACT) => {
            let key = format!("url/{}", hash(id.as_bytes()));
            (UploadContent::Reference(id.clone()), key)
        }
        FileSource::Id(id) => (
            UploadContent::ProviderId(id.clone()),
            format!("file_id/{id}"),
        ),
    })
}

/// A warning about a file that is in no form that can be used, for instance without data and without an id.
fn unusable_file(part: &Value) -> Option<String> {
    let kind = part.get("type").and_then(Value::as_str)?;
    if !FILE_PARTS.contains(&kind) {
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
    Some(format!("user file input: {}: {problem}", file_name(name)))
}

/// As the conversation says, else as the reference does, else by its place in the conversation.
fn original_name(file: &File, number: usize) -> String {
    let name = file.name.trim();
    if !name.is_empty() {
        return name.to_owned();
    }
    let base = match &file.source {
        FileSource::Url(reference) | FileSource::Id(reference) => {
            match reference.strip_prefix(ARTIFACT) {
                // A name of an artifact has any character.
                Some(artifact) => split_version(artifact).0,
                None => {
                    let path = reference.split(['?', '#']).next().unwrap_or_default();
                    path.split_once("://").map_or("", |(_, rest)| rest)
                }
            }
        }
        FileSource::Base64(_) | FileSource::Text(_) => "",
    };
    let base = base.rsplit_once('/').map_or(base, |(_, base)| base);
    if !base.is_empty() {
        return base.to_owned();
    }
    let extension = extension(&file.mime);
    format!("{UNNAMED}_{number}{extension}")
}

/// The last segment of a name, fit for a file.
fn file_name(name: &str) -> String {
    let name = name.replace('\\', "/");
    let base = name
        .trim()
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default();
    let (base, _) = super::clean(base);
    match base.as_str() {
        "" | "." | ".." => UNNAMED.to_owned(),
        base => base.to_owned(),
    }
}

/// Names that are taken, in lower case, each with the number to try next.
#[derive(Default)]
struct Names(HashMap<String, usize>);

impl Names {
    /// `name`, `name_2`, `name_3`, …: also where names differ in case only.
    fn free(&mut self, name: &str) -> String {
        let (stem, extension) = match name.rsplit_once('.') {
            Some((stem, extension)) if !stem.is_empty() => (stem, format!(".{extension}")),
            _ => (name, String::new()),
        };
        let mut free = name.to_owned();
        let mut number = self.0.get(&name.to_lowercase()).copied().unwrap_or(2);
        while self.0.contains_key(&free.to_lowercase()) {
            free = format!("{stem}_{number}{extension}");
            number += 1;
        }
        self.0.insert(name.to_lowercase(), number);
        self.0.entry(free.to_lowercase()).or_insert(2);
        free
    }
}

fn extension(mime: &str) -> &'static str {
    match mime.split(';').next().unwrap_or_default() {
        "image/png" => ".png",
        "image/jpeg" => ".jpg",
        "image/gif" => ".gif",
        "image/webp" => ".webp",
        "application/pdf" => ".pdf",
        "text/plain" => ".txt",
        "text/csv" => ".csv",
        "audio/wav" => ".wav",
        "audio/mp3" | "audio/mpeg" => ".mp3",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::prompt::{Extra, FileKind, Wire};

    fn file(name: &str, mime: &str, source: FileSource) -> Part {
        Part::File(File {
            kind: FileKind::Document,
            name: name.into(),
            mime: mime.into(),
            source,
            extra: Extra::default(),
        })
    }

    fn base64(text: &str) -> FileSource {
        FileSource::Base64(data_encoding::BASE64.encode(text.as_bytes()))
    }

    fn found(parts: Vec<Part>) -> Uploads {
        uploads(&[Message::of(Role::User, parts)])
    }

    fn names(parts: Vec<Part>) -> Vec<String> {
        found(parts)
            .files
            .into_iter()
            .map(|upload| upload.name)
            .collect()
    }

    #[test]
    fn the_same_bytes_under_the_same_name_are_one_file() {
        let uploads = found(vec![
            file("a.csv", "", base64("1")),
            file("A.csv", "", base64("1")),
            file("b.csv", "", base64("1")),
            file("a.csv", "", base64("2")),
        ]);
        let names: Vec<&str> = uploads
            .files
            .iter()
            .map(|upload| upload.name.as_str())
            .collect();
        assert_eq!(names, ["a.csv", "b.csv", "a_2.csv"]);
        let key = uploads
            .files
            .first()
            .map(|upload| upload.key.clone())
            .expect("one");
        assert_eq!(
            key,
            format!(
                "sha256/{}/name/a.csv",
                HEXLOWER.encode(&Sha256::digest(b"1"))
            )
        );
        assert_eq!(
            uploads.files.get(2).map(|upload| &upload.content),
            Some(&UploadContent::Bytes(b"2".to_vec()))
        );
    }

    #[test]
    fn names_that_are_taken_are_counted_on() {
        let some = |name: &str, text: &str| file(name, "", FileSource::Text(text.into()));
        let parts = vec![
            some("a_2.csv", "1"),
            some("a.csv", "2"),
            some("A.csv", "3"),
            some("a.csv", "4"),
            some("a_2.csv", "5"),
        ];
        assert_eq!(
            names(parts),
            ["a_2.csv", "a.csv", "A_3.csv", "a_4.csv", "a_2_2.csv"]
        );
        let many = (0..20_000).map(|n| some("image.png", &n.to_string()));
        assert!(names(many.collect()).contains(&"image_20000.png".to_owned()));
    }

    #[test]
    fn a_name_is_one_segment_whatever_it_was() {
        let some = || FileSource::Text("x".into());
        let parts = vec![
            file("../../etc/passwd", "", some()),
            file("C:\\docs\\a b.txt", "", some()),
            file("..", "", some()),
            file("", "image/png", some()),
            file(
                "",
                "",
                FileSource::Url("artifact://reports/q1.csv@3".into()),
            ),
            file(
                "",
                "",
                FileSource::Url("https://example.com/x.pdf?sig=1".into()),
            ),
            file("", "", FileSource::Id("file-1".into())),
            file("a\u{202e}b\n.txt", "", some()),
        ];
        assert_eq!(
            names(parts),
            [
                "passwd",
                "a b.txt",
                "upload",
                "upload_4.png",
                "q1.csv",
                "x.pdf",
                "upload_7",
                "ab .txt"
            ]
        );
    }

    #[test]
    fn an_at_sign_that_is_no_version_stays_in_the_name() {
        let reference = |text: &str| FileSource::Url(text.into());
        let parts = vec![
            file("", "", reference("artifact://in/report@final.pdf")),
            file("", "", reference("artifact://report@final.pdf@2")),
            file("", "", reference("https://a.example/me@home.txt")),
        ];
        assert_eq!(
            names(parts),
            ["report@final.pdf", "report@final_2.pdf", "me@home.txt"]
        );
    }

    #[test]
    fn an_id_that_names_an_artifact_is_one() {
        let id = |text: &str| FileSource::Id(text.into());
        let uploads = found(vec![
            file("", "", id("artifact://in/a.csv@3")),
            file("", "", id("file-1")),
        ]);
        let found: Vec<_> = uploads
            .files
            .into_iter()
            .map(|upload| (upload.name, upload.content))
            .collect();
        let artifact = UploadContent::Reference("artifact://in/a.csv@3".into());
        let other = UploadContent::ProviderId("file-1".into());
        assert_eq!(
            found,
            [
                ("a.csv".to_owned(), artifact),
                ("upload_2".to_owned(), other)
            ]
        );
    }

    #[test]
    fn a_file_without_data_and_id_is_warned_of_in_each_providers_format() {
        let messages = |part: &Value| json!([{"role": "user", "content": [part]}]);
        let [chat, responses, anthropic] = Wire::ALL;
        let nothing = "neither data nor an id";
        let form = "not a form of file that can be read here";
        for (wire, part, said) in [
            (
                chat,
                json!({"type": "file", "file": {"filename": "a.pdf"}}),
                ("a.pdf", nothing),
            ),
            (
                chat,
                json!({"type": "file", "file": {"file_data": "JVBE"}}),
                ("file", form),
            ),
            (
                chat,
                json!({"type": "image_url", "image_url": {}}),
                ("image_url", nothing),
            ),
            (
                chat,
                json!({"type": "input_audio", "input_audio": {}}),
                ("input_audio", nothing),
            ),
            (
                responses,
                json!({"type": "input_file", "filename": "b"}),
                ("b", nothing),
            ),
            (
                responses,
                json!({"type": "input_image"}),
                ("input_image", nothing),
            ),
            (
                anthropic,
                json!({"type": "document", "title": "c", "source": {}}),
                ("c", nothing),
            ),
            (
                anthropic,
                json!({"type": "image", "source": {"data": "x"}}),
                ("image", form),
            ),
        ] {
            let messages = messages(&part);
            let body = json!({"messages": messages, "input": messages});
            let uploads = uploads(&wire.read(&body).expect("a request"));
            let (name, problem) = said;
            let warning = format!("user file input: {name}: {problem}");
            assert_eq!(uploads.warnings, [warning], "{part}");
            assert!(uploads.files.is_empty());
        }
    }

    #[test]
    fn only_the_user_uploads_and_what_is_broken_is_said() {
        let mut messages = vec![Message::of(
            Role::Assistant,
            vec![file("a", "", base64("1"))],
        )];
        assert_eq!(uploads(&messages), Uploads::default());
        messages.push(Message::of(
            Role::User,
            vec![file("b", "", FileSource::Base64("%".into()))],
        ));
        assert_eq!(
            uploads(&messages).warnings,
            ["user file input: b: not base64"]
        );
    }
}

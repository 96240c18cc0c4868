//! Files that the user put into the conversation, for staging into the workspace.

use std::collections::{HashMap, HashSet};

use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};
use unicode_normalization::UnicodeNormalization as _;

use super::file_part::{FilePart, FileSource, unusable_file};
use super::provider::{MalformedRequest, Provider, Role};
use skilld_client::split_version;

/// Name of a file whose own name is empty or unsafe.
const UNNAMED: &str = "upload";
/// Prefix of a reference to an artifact.
const ARTIFACT: &str = "artifact://";

/// File of the conversation to stage in the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Name in the workspace: one path segment, unique among the uploads.
    pub name: String,
    /// Name in the conversation; empty if it has none.
    pub original_name: String,
    /// Bytes, or a reference to them.
    pub content: UploadContent,
    /// Key of name and content: an upload with the same key is staged once.
    pub key: String,
}

/// Content of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadContent {
    /// Bytes of the file.
    Bytes(Vec<u8>),
    /// A reference such as `artifact://…` or `host:///…`, or a URL, for StageInputs to follow or refuse.
    Reference(String),
    /// Id of a file at the provider; only the host can fetch it.
    ProviderId(String),
}

/// Files that a conversation brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundUploads {
    /// Files in the order of the conversation, each once.
    pub files: Vec<Upload>,
    /// Files that cannot be used, in words for the model.
    pub warnings: Vec<String>,
}

/// Finds the files that the user sent in a request body.
///
/// # Errors
///
/// [`MalformedRequest`] if the body is no request of this provider.
pub fn find_uploads(provider: Provider, body: &Value) -> Result<FoundUploads, MalformedRequest> {
    let views = provider.messages(body)?;
    let users = views.iter().filter(|view| view.role == Role::User);
    let parts = users.filter_map(|view| view.content.get(body).as_array());
    Ok(collect_uploads(parts.flatten().filter_map(user_file)))
}

/// Reads a file of the user's; the error is a warning for the model.
fn user_file(part: &Value) -> Option<Result<FilePart, String>> {
    if let Some(file) = FilePart::parse(part) {
        return Some(Ok(file));
    }
    let (name, problem) = unusable_file(part)?;
    let name = file_name(&name);
    Some(Err(format!("user file input: {name}: {problem}")))
}

/// Names the files and drops repeated ones.
fn collect_uploads(files: impl Iterator<Item = Result<FilePart, String>>) -> FoundUploads {
    let mut found = FoundUploads::default();
    let (mut keys, mut names) = (HashSet::new(), TakenNames::default());
    let mut number = 0;
    for file in files {
        let file = match file {
            Ok(file) => file,
            Err(warning) => {
                found.warnings.push(warning);
                continue;
            }
        };
        number += 1;
        let name = file_name(&original_name(&file, number));
        let Some((content, key)) = upload_content(&file.source) else {
            let warning = format!("user file input: {name}: not base64");
            found.warnings.push(warning);
            continue;
        };
        let key = format!("{key}/name/{}", name.to_lowercase());
        if keys.insert(key.clone()) {
            found.files.push(Upload {
                name: names.take_free(&name),
                original_name: file.name,
                content,
                key,
            });
        }
    }
    found
}

/// Returns the content of an upload and a key that is the same for the same content; `None` if it cannot be decoded.
fn upload_content(source: &FileSource) -> Option<(UploadContent, String)> {
    let hash = |bytes: &[u8]| HEXLOWER.encode(&Sha256::digest(bytes));
    Some(match source {
        FileSource::Base64(_) | FileSource::Text(_) => {
            let bytes = source.bytes()?;
            let key = format!("sha256/{}", hash(&bytes));
            (UploadContent::Bytes(bytes), key)
        }
        FileSource::Id(id) if !id.contains("://") => (
            UploadContent::ProviderId(id.clone()),
            format!("file_id/{id}"),
        ),
        // Hosts also use references where a provider has its ids.
        FileSource::Url(reference) | FileSource::Id(reference) => {
            let key = format!("url/{}", hash(reference.as_bytes()));
            (UploadContent::Reference(reference.clone()), key)
        }
    })
}

/// Returns the name that the conversation has, else that of the reference, else one with the file's position.
fn original_name(file: &FilePart, number: usize) -> String {
    let name = file.name.trim();
    if !name.is_empty() {
        return name.to_owned();
    }
    let path = match &file.source {
        FileSource::Url(reference) | FileSource::Id(reference) => {
            match reference.strip_prefix(ARTIFACT) {
                // A name of an artifact has any character.
                Some(artifact) => split_version(artifact).0,
                None => {
                    let url = reference.split(['?', '#']).next().unwrap_or_default();
                    url.split_once("://").map_or("", |(_, rest)| rest)
                }
            }
        }
        FileSource::Base64(_) | FileSource::Text(_) => "",
    };
    let base = path.rsplit_once('/').map_or(path, |(_, base)| base);
    if !base.is_empty() {
        return base.to_owned();
    }
    let extension = extension_for(&file.mime);
    format!("{UNNAMED}_{number}{extension}")
}

/// Returns the last segment of a name, fit for a file, with composed characters: macOS writes `é` as two, and models
/// write one.
fn file_name(name: &str) -> String {
    let name: String = name.replace('\\', "/").nfc().collect();
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
struct TakenNames(HashMap<String, usize>);

impl TakenNames {
    /// Takes the first free name of `name`, `name_2`, `name_3`, …; names that differ in case only are the same.
    fn take_free(&mut self, name: &str) -> String {
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

/// Returns the extension of a media type; empty if it has none.
fn extension_for(mime: &str) -> &'static str {
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
    type UserFile = Result<FilePart, String>;

    #[expect(clippy::unnecessary_wraps, reason = "items of the tested function")]
    fn file(name: &str, mime: &str, source: FileSource) -> UserFile {
        Ok(FilePart {
            name: name.into(),
            mime: mime.into(),
            source,
        })
    }

    fn base64(text: &str) -> FileSource {
        FileSource::Base64(data_encoding::BASE64.encode(text.as_bytes()))
    }

    fn found(files: Vec<UserFile>) -> FoundUploads {
        collect_uploads(files.into_iter())
    }

    fn names(parts: Vec<UserFile>) -> Vec<String> {
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
    fn names_of_macos_are_composed() {
        let parts = vec![file("Gro\u{308}ße.csv", "", base64("1"))];
        assert_eq!(names(parts), ["Größe.csv"]);
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
    fn an_id_that_is_a_reference_is_what_a_url_of_the_same_text_is() {
        let id = |text: &str| FileSource::Id(text.into());
        let uploads = found(vec![
            file("", "", id("artifact://in/a.csv@3")),
            file("", "", id("file-1")),
            file("", "", id("host:///data/b.csv")),
            file("", "", FileSource::Url("host:///data/b.csv".into())),
        ]);
        let found: Vec<_> = uploads
            .files
            .into_iter()
            .map(|upload| (upload.name, upload.content))
            .collect();
        let artifact = UploadContent::Reference("artifact://in/a.csv@3".into());
        let other = UploadContent::ProviderId("file-1".into());
        let host = UploadContent::Reference("host:///data/b.csv".into());
        assert_eq!(
            found,
            [
                ("a.csv".to_owned(), artifact),
                ("upload_2".to_owned(), other),
                ("b.csv".to_owned(), host)
            ]
        );
    }

    #[test]
    fn every_provider_warns_of_a_file_without_data_and_id() {
        let messages = |part: &Value| json!([{"role": "user", "content": [part]}]);
        let [chat, responses, anthropic] = Provider::ALL;
        let nothing = "neither data nor an id";
        let form = "not a form of file that can be read here";
        for (provider, part, said) in [
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
            let uploads = find_uploads(provider, &body).expect("a request");
            let (name, problem) = said;
            let warning = format!("user file input: {name}: {problem}");
            assert_eq!(uploads.warnings, [warning], "{part}");
            assert!(uploads.files.is_empty());
        }
    }

    #[test]
    fn only_user_files_are_uploads_and_broken_ones_cause_warnings() {
        let part = |data: &str| {
            let url = format!("data:text/plain;base64,{data}");
            json!([{"type": "file", "file": {"filename": "b", "file_data": url}}])
        };
        let body =
            |role: &str, data: &str| json!({"messages": [{"role": role, "content": part(data)}]});
        let found = |role, data| find_uploads(Provider::OpenAiChat, &body(role, data));
        let none = found("assistant", "MQ==").expect("a request");
        assert_eq!(none, FoundUploads::default());
        let broken = found("user", "%").expect("a request");
        assert_eq!(broken.warnings, ["user file input: b: not base64"]);
        let wrapped = found("user", "M\r\nQ==\n").expect("a request");
        let bytes = UploadContent::Bytes(b"1".to_vec());
        assert_eq!(wrapped.files[0].content, bytes);
    }
}

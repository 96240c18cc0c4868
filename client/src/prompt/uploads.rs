//! Files that the user put into the conversation, for staging into the workspace.

use std::collections::{HashMap, HashSet};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::message::{File, FileSource, Message, Part, Role};

/// A name that says nothing.
const UNNAMED: &str = "upload";

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
    let files = users
        .flat_map(|message| &message.parts)
        .filter_map(|part| match part {
            Part::File(file) => Some(file),
            Part::Text(_) | Part::Call(_) | Part::Result(_) | Part::Other(..) => None,
        });
    for (index, file) in files.enumerate() {
        let name = file_name(&original_name(file, index + 1));
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
        FileSource::Id(id) => (
            UploadContent::ProviderId(id.clone()),
            format!("file_id/{id}"),
        ),
    })
}

/// As the conversation says, else as the reference does, else by its place in the conversation.
fn original_name(file: &File, number: usize) -> String {
    let name = file.name.trim();
    if !name.is_empty() {
        return name.to_owned();
    }
    if let FileSource::Url(url) = &file.source {
        let path = url.split(['?', '#']).next().unwrap_or_default();
        let base = path.split_once("://").map_or("", |(_, rest)| rest);
        let base = base.rsplit_once('/').map_or(base, |(_, base)| base);
        let base = if path.starts_with("artifact://") {
            base.rsplit_once('@').map_or(base, |(name, _)| name)
        } else {
            base
        };
        if !base.is_empty() {
            return base.to_owned();
        }
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
    use super::*;
    use crate::prompt::{Extra, FileKind};

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

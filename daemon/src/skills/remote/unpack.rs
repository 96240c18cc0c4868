//! The blocking part of a fetch: from the bytes of one download to folders of skills, or to a document that leads to others.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};

use super::super::archive::{self, Bounds, Kind, Refused};
use super::super::{Problem, document, is_name};
use super::CARD;
use super::fault::not_stored;
use super::gather::DOCUMENT_BYTES_MAX;
use crate::fetch::{Fetched, WebUrl};

const SKILL_MD: &str = "SKILL.md";

/// What was made of the bytes.
pub(super) enum Done {
    Unpacked(archive::Unpacked),
    Document(String),
}

/// The blocking part: from a file to folders of skills.
pub(super) struct Unpack {
    pub(super) bounds: Bounds,
    /// Does not exist yet.
    pub(super) into: PathBuf,
    /// Where the skills go: folders of them, or with a name the skill itself.
    pub(super) tree: PathBuf,
    pub(super) name: Option<String>,
    /// Of the URL.
    pub(super) stem: String,
    pub(super) is_skill_md: bool,
}

impl Unpack {
    pub(super) fn run(self, mut file: File) -> Result<Done, Problem> {
        let kind = archive::detect(&mut file).map_err(Refused::into_problem)?;
        if kind == Kind::SkillMd
            && let Some(document) = self.text(&mut file)?
        {
            return Ok(Done::Document(document));
        }
        let unpacked = archive::unpack(&mut file, Some(kind), &self.into, &self.bounds)
            .map_err(Refused::into_problem)?;
        let placed = self.place(&unpacked);
        let removed = remove(&self.into);
        placed?;
        removed?;
        Ok(Done::Unpacked(unpacked))
    }

    /// The text of a document, `None` of a SKILL.md.
    fn text(&self, file: &mut File) -> Result<Option<String>, Problem> {
        let invalid = |what: &str| Err(Problem::error("archive.invalid", what));
        let mut text = String::new();
        file.rewind().map_err(|error| not_stored(&error))?;
        let read = std::io::Read::by_ref(file)
            .take(DOCUMENT_BYTES_MAX + 1)
            .read_to_string(&mut text);
        if read.is_err() || text.len() as u64 > DOCUMENT_BYTES_MAX {
            return invalid("it is neither an archive nor a text of at most 4 MiB");
        }
        let start = text.trim_start_matches('\u{feff}').trim_start();
        if start.starts_with('{') {
            return Ok(Some(start.to_owned()));
        }
        let head: String = start.chars().take(15).collect::<String>().to_lowercase();
        if head.starts_with("<!doctype html") || head.starts_with("<html") {
            return invalid("it is a web page and no archive; is a login needed, or another URL?");
        }
        if self.is_skill_md || start.starts_with("---") {
            return Ok(None);
        }
        invalid("it is a text and no SKILL.md: it has no front matter, and its URL another name")
    }

    /// Moves the skills to where they belong.
    fn place(&self, unpacked: &archive::Unpacked) -> Result<(), Problem> {
        let root = &unpacked.root;
        let entries = fs::read_dir(root).map_err(|error| not_stored(&error))?;
        let is_skill = entries.filter_map(Result::ok).any(|entry| {
            let name = entry.file_name();
            name.eq_ignore_ascii_case(SKILL_MD) || name == CARD
        });
        if self.name.is_some() && !is_skill {
            let message = "the archive has no SKILL.md at its top";
            return Err(Problem::error("archive.invalid", message));
        }
        let target = if self.name.is_some() || !is_skill {
            // An empty directory, which gives way, or nothing.
            self.tree.clone()
        } else {
            self.tree.join(self.folder(unpacked))
        };
        fs::rename(root, target).map_err(|error| not_stored(&error))
    }

    /// The folder of the only skill: as it calls itself, so that its folder is no reason for a warning.
    fn folder(&self, unpacked: &archive::Unpacked) -> String {
        let names = [
            own_name(&unpacked.root),
            unpacked.wrapper.clone(),
            Some(self.stem.clone()),
        ];
        let name = names.into_iter().flatten().find(|name| is_name(name));
        name.unwrap_or_else(|| "skill".to_owned())
    }
}

/// Its id, as everybody else will see it.
fn own_name(dir: &Path) -> Option<String> {
    let skill_md = fs::read(dir.join(SKILL_MD)).ok();
    let card = fs::read(dir.join(CARD)).ok();
    let document = document::read(skill_md.as_deref(), card.as_deref(), "");
    Some(document.front_matter.name).filter(|name| !name.is_empty())
}

/// Removes a directory, if there is one.
pub(super) fn remove(dir: &Path) -> Result<(), Problem> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(not_stored(&error)),
        _ => Ok(()),
    }
}

/// What a URL calls what it leads to: its last name, without what says that it is an archive; of a SKILL.md, its folder.
pub(super) fn stem(url: &WebUrl) -> String {
    let mut last = last_name(url);
    if last.eq_ignore_ascii_case(SKILL_MD) {
        last = url.url().path().rsplit('/').nth(1).unwrap_or_default();
    }
    let lower = last.to_lowercase();
    let ending = [".tar.gz", ".tgz", ".tar", ".zip"]
        .iter()
        .find(|ending| lower.ends_with(**ending));
    let length = ending.map_or(last.len(), |ending| last.len() - ending.len());
    last.get(..length).unwrap_or_default().to_owned()
}

fn last_name(url: &WebUrl) -> &str {
    url.url().path().rsplit('/').next().unwrap_or_default()
}

/// Whether name or type say that a text is a SKILL.md.
pub(super) fn is_skill_md(url: &WebUrl, fetched: &Fetched) -> bool {
    last_name(url).eq_ignore_ascii_case(SKILL_MD)
        || fetched.content_type.starts_with("text/markdown")
}

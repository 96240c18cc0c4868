//! Fetches a URL, detects by the bytes what it leads to, and stores a tree of skills of it.
//!
//! ```text
//! bytes ─ zip, tar, tar.gz ─► archive.rs
//!       ─ text ─ `{`        ─► fetch_plan.rs: a plan ─► each skill: an archive, a SKILL.md, or its files one by one
//!              ─ SKILL.md   ─► a folder with it
//! ```
//!
//! A document or pinned artifact that did not change is not fetched again, and a skill that cannot be fetched stays as
//! it was. An attempt has a blocking thread of its own, which waits for the runtime only while it downloads.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use skilld_common::text_decoding::decode_text;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::RemoteContext;
use super::fetch_plan::{self, FetchPlan, PlannedFiles, PlannedSkill};
use super::refresh_error::RefreshError;
use super::root_record::RootRecord;
use crate::content_store::Lease;
use crate::content_store::content_hashing::{self, ContentBounds, ContentSource, IngestError};
use crate::error::tolerate;
use crate::fetch::{
    CacheValidators, FetchError, FetchErrorKind, FetchRequest, FetchedFile, WebUrl,
};
use crate::parse::problem::Problem;
use crate::parse::skill_name::is_name;
use crate::parse::{document, skill_card};
use crate::skills_options::ArchiveBounds;
use crate::sources::archive::{self, ArchiveKind, UnpackedArchive, archive_problem};
use crate::sources::directory_listing::SKILL_MD;

/// Maximum size of a document that is not an archive, in bytes.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// Paths of indexes, relative to a URL that ends with a slash: of the draft, and as many servers have it.
const INDEXES: [&str; 2] = [
    ".well-known/agent-skills/index.json",
    ".well-known/skills/index.json",
];

/// Attempt to fetch a remote root.
#[derive(Debug)]
pub(super) struct RefreshAttempt<'a> {
    context: &'a RemoteContext,
    url: &'a WebUrl,
    /// Record of the previous success.
    before: Option<&'a RootRecord>,
    /// Directory of this attempt, which its caller removes.
    work: &'a Path,
    /// Directory of the skills, beneath `work`.
    tree: PathBuf,
    deadline: Instant,
    runtime: Handle,
    record: RootRecord,
    /// Remainder of the root's limits, which hold for all of its skills together.
    budget: ArchiveBounds,
}

/// Download of an archive or a document.
struct Download {
    file: File,
    fetched: FetchedFile,
}

// === impl RefreshAttempt ===

impl<'a> RefreshAttempt<'a> {
    /// Prepares an attempt. Must be called within a runtime.
    pub(super) fn new(
        context: &'a RemoteContext,
        url: &'a WebUrl,
        before: Option<&'a RootRecord>,
        work: &'a Path,
    ) -> Self {
        let options = &context.options;
        Self {
            context,
            url,
            before,
            work,
            tree: work.join("tree"),
            deadline: Instant::now() + options.attempt_timeout(),
            runtime: Handle::current(),
            record: RootRecord::default(),
            budget: options.archive,
        }
    }

    /// Fetches the root and stores its tree. Returns `None` if the document of the URL has not changed and nothing else
    /// needs to be fetched. Blocks.
    pub(super) fn run(mut self) -> Result<Option<(RootRecord, Lease)>, RefreshError> {
        let final_before = self.before.filter(|before| before.is_final);
        let validators = final_before.map(|before| &before.validators);
        let Some(download) = self.fetch_document(validators)? else {
            return Ok(None);
        };
        if final_before.is_some_and(|before| before.sha256 == download.fetched.sha256) {
            return Ok(None);
        }
        self.record.sha256.clone_from(&download.fetched.sha256);
        self.record.validators = download.fetched.validators.clone();
        fs::create_dir(&self.tree)?;
        let from = download.fetched.url.clone();
        match self.unpack(download, None)? {
            None => self.record.is_final = true,
            Some(text) => {
                let plan = fetch_plan::plan_fetches(&text, &from, self.files_max())
                    .map_err(|why| RefreshError::of_document(&from, &why))?;
                self.fetch_planned_skills(plan, text.as_bytes())?;
            }
        }
        self.store_tree().map(Some)
    }

    /// Fetches the files of a card, whose `base_uri` is the attempt's URL, and stores their tree. Blocks.
    pub(super) fn run_card(mut self, card: &[u8]) -> Result<(RootRecord, Lease), RefreshError> {
        self.fetch_card(card)?;
        self.store_tree()
    }

    /// Fetches the files of a card into the tree.
    pub(super) fn fetch_card(&mut self, card: &[u8]) -> Result<(), RefreshError> {
        self.record.sha256 = HEXLOWER.encode(&Sha256::digest(card));
        fs::create_dir(&self.tree)?;
        let text = decode_text(card, true).text;
        let plan = fetch_plan::plan_card_files(&text, self.url, self.files_max())
            .map_err(|why| RefreshError::of_document(self.url, &why))?;
        self.fetch_planned_skills(plan, card)
    }

    /// Returns the directory of the fetched skills.
    pub(super) fn into_tree(self) -> PathBuf {
        self.tree
    }

    fn store_tree(mut self) -> Result<(RootRecord, Lease), RefreshError> {
        let folder = ContentSource::stored(&self.tree);
        let store = &self.context.store;
        let (content, lease) = store.copy_unbounded(&folder, &self.url.to_string())?;
        self.record.tree = content.digest;
        Ok((self.record, lease))
    }

    fn files_max(&self) -> usize {
        usize::try_from(self.budget.entries).unwrap_or(usize::MAX)
    }

    /// Fetches the document of the URL; with a slash at its end, the index there. Returns `None` if it has not changed.
    fn fetch_document(
        &self,
        validators: Option<&CacheValidators>,
    ) -> Result<Option<Download>, FetchError> {
        if !self.url.url().path().ends_with('/') {
            let bytes_max = self.context.options.archive.bytes;
            return self.fetch_if_changed(self.url, bytes_max, validators);
        }
        let mut missing = None;
        for index in INDEXES {
            let index = self
                .url
                .join(index)?
                .pinned(self.url.sha256().map(str::to_owned));
            match self.fetch_if_changed(&index, DOCUMENT_BYTES_MAX, validators) {
                Err(error)
                    if matches!(error.kind, FetchErrorKind::Status { status: 404 | 410 }) =>
                {
                    missing = Some(error);
                }
                other => return other,
            }
        }
        missing.map_or(Ok(None), Err)
    }

    fn fetch_if_changed(
        &self,
        url: &WebUrl,
        bytes_max: u64,
        validators: Option<&CacheValidators>,
    ) -> Result<Option<Download>, FetchError> {
        let failed = |source| url.fetch_error(FetchErrorKind::File { source });
        let mut file = tempfile::tempfile_in(self.work).map_err(failed)?;
        let Some(fetched) = self.fetch_into(&file, url, bytes_max, validators)? else {
            return Ok(None);
        };
        file.rewind().map_err(failed)?;
        Ok(Some(Download { file, fetched }))
    }

    /// Downloads into an empty file, until the attempt's deadline. Returns `None` if the validators are still valid.
    fn fetch_into(
        &self,
        file: &File,
        url: &WebUrl,
        bytes_max: u64,
        validators: Option<&CacheValidators>,
    ) -> Result<Option<FetchedFile>, FetchError> {
        let handle = file.try_clone();
        let handle = handle.map_err(|source| url.fetch_error(FetchErrorKind::File { source }))?;
        let mut file = tokio::fs::File::from_std(handle);
        let get = FetchRequest {
            url: url.clone(),
            bytes_max,
            validators: validators.cloned(),
        };
        let RemoteContext { fetcher, tasks, .. } = self.context;
        let answer = self.runtime.block_on(async {
            tokio::select! {
                () = tasks.stop.cancelled() => None,
                answer = timeout_at(self.deadline, fetcher.fetch(&get, &mut file)) => answer.ok(),
            }
        });
        answer.unwrap_or_else(|| {
            let limit = self.context.options.attempt_timeout();
            Err(self.url.fetch_error(FetchErrorKind::Timeout { limit }))
        })
    }

    /// Returns `true` if nothing more can be fetched.
    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline || self.context.tasks.stop.is_cancelled()
    }

    /// Unpacks an archive or takes a SKILL.md, into the folder of a skill's name if it is given. Returns the text of a
    /// document that leads to other files.
    fn unpack(
        &mut self,
        mut download: Download,
        name: Option<&str>,
    ) -> Result<Option<String>, RefreshError> {
        let kind = archive::detect_archive_kind(&mut download.file)
            .map_err(|error| archive_problem(&error))?;
        if kind == ArchiveKind::SkillMd
            && let Some(text) = read_referring_document(&mut download)?
        {
            return Ok(Some(text));
        }
        let place = tempfile::tempdir_in(self.work)?;
        let into = place.path().join("unpacked");
        let unpacked = archive::unpack_archive(&mut download.file, Some(kind), &into, &self.budget)
            .map_err(|error| archive_problem(&error))?;
        self.spend(unpacked.entries, unpacked.bytes)?;
        let is_skill = fs::read_dir(&unpacked.root)?.flatten().any(|entry| {
            let name = entry.file_name();
            name.eq_ignore_ascii_case(SKILL_MD) || name == skill_card::FILE_NAME
        });
        let target = match name {
            Some(_) if !is_skill => {
                let left_out = unpacked.left_out.appendix();
                let message = format!("the archive has no SKILL.md at its top{left_out}");
                return Err(Problem::error("archive.invalid", message).into());
            }
            Some(name) => self.tree.join(name),
            None => {
                if is_skill {
                    self.record.top = folder_name(&unpacked, &download.fetched.url);
                }
                self.record.wrapper.clone_from(&unpacked.wrapper);
                // Without a name this is the tree, an empty directory, which the rename replaces.
                self.tree.join(&self.record.top)
            }
        };
        fs::rename(&unpacked.root, target)?;
        if let Some(left_out) = unpacked.left_out.describe() {
            let name = name.unwrap_or_default().to_owned();
            self.record.left_out.insert(name, left_out);
        }
        Ok(None)
    }

    /// Fetches all skills of an index or a card, whose bytes are `document`.
    fn fetch_planned_skills(
        &mut self,
        plan: FetchPlan,
        document: &[u8],
    ) -> Result<(), RefreshError> {
        self.record.is_final = plan.is_pinned;
        self.record.skipped = plan.skipped;
        let (mut taken, mut first_problem) = (0, None);
        for skill in &plan.skills {
            let budget = self.budget;
            let card = plan.is_card.then_some(document);
            let Err(RefreshError(problem)) = self.fetch_skill(skill, card) else {
                taken += 1;
                continue;
            };
            if self.is_over() {
                return Err(problem.into());
            }
            // The downloads of a skill that failed count as well, so that many of them cannot exceed the limits.
            let rest = std::mem::replace(&mut self.budget, budget);
            self.record.is_final = false;
            tolerate(
                io::ErrorKind::NotFound,
                fs::remove_dir_all(self.tree.join(&skill.name)),
            )?;
            let is_kept = self.keep_skill(&skill.name)?;
            self.budget.bytes = self.budget.bytes.min(rest.bytes);
            self.budget.entries = self.budget.entries.min(rest.entries);
            taken += usize::from(is_kept);
            let note = if is_kept {
                "; what was there is kept"
            } else {
                ""
            };
            let why = format!("{}: {}{note}", skill.name, problem.message);
            self.record.skipped.push(why);
            first_problem.get_or_insert(problem);
        }
        match first_problem {
            Some(problem) if taken == 0 => Err(problem.into()),
            _ => Ok(()),
        }
    }

    /// Fetches one skill of an index; `card` has the bytes of the card that lists its files.
    fn fetch_skill(
        &mut self,
        skill: &PlannedSkill,
        card: Option<&[u8]>,
    ) -> Result<(), RefreshError> {
        match &skill.files {
            PlannedFiles::Artifact(url) => self.fetch_artifact(&skill.name, url),
            PlannedFiles::Listed(files) => {
                let dir = self.tree.join(&skill.name);
                let folders = folders_of_files(files);
                self.spend((folders.len() + files.len()) as u64, 0)?;
                fs::create_dir_all(&dir)?;
                for folder in folders {
                    fs::create_dir(dir.join(folder))?;
                }
                for (path, url) in files {
                    let file = File::create_new(dir.join(path))?;
                    let bytes_max = self.budget.file_bytes.min(self.budget.bytes);
                    let fetched = self.fetch_into(&file, url, bytes_max, None)?;
                    self.spend(0, fetched.map_or(0, |fetched| fetched.bytes))?;
                }
                if let Some(card) = card.map(skill_card::with_own_base) {
                    self.spend(1, card.len() as u64)?;
                    fs::write(dir.join(skill_card::FILE_NAME), card)?;
                }
                Ok(())
            }
        }
    }

    /// Fetches the archive or SKILL.md of one skill, unless the tree before was made of the same bytes.
    fn fetch_artifact(&mut self, name: &str, url: &WebUrl) -> Result<(), RefreshError> {
        let known = self.before.and_then(|before| before.artifacts.get(name));
        if known.map(String::as_str) == url.sha256() && self.keep_skill(name)? {
            return Ok(());
        }
        let bytes_max = self.context.options.archive.bytes;
        let download = self.fetch_if_changed(url, bytes_max, None)?;
        let sha256 = url.sha256().unwrap_or_default().to_owned();
        if let Some(download) = download
            && self.unpack(download, Some(name))?.is_some()
        {
            let message = format!("{url} is neither an archive nor a SKILL.md");
            return Err(Problem::error("archive.invalid", message).into());
        }
        self.record.artifacts.insert(name.to_owned(), sha256);
        Ok(())
    }

    /// Copies a skill from the tree of the record before. Returns `false` if it has none of this name, or if the skill
    /// exceeds the budget.
    fn keep_skill(&mut self, name: &str) -> Result<bool, RefreshError> {
        let Some(before) = self.before else {
            return Ok(false);
        };
        let from = self.context.store.dir(&before.tree).join(name);
        if !from.is_dir() {
            return Ok(false);
        }
        let bounds = ContentBounds {
            files_max: self.budget.entries,
            bytes_max: self.budget.bytes,
        };
        let target = self.tree.join(name);
        fs::create_dir(&target)?;
        let copied =
            content_hashing::read_content(&ContentSource::stored(&from), Some(&target), bounds);
        let is_kept = match copied {
            Ok(copied) => {
                let entries = copied.files + copied.directories;
                copied.left_out.total == 0 && self.spend(entries, copied.bytes).is_ok()
            }
            Err(IngestError::Skill(_)) => false,
            Err(error @ IngestError::Host(_)) => return Err(error.into()),
        };
        if !is_kept {
            fs::remove_dir_all(&target)?;
            return Ok(false);
        }
        self.record.copy_skill(name, before);
        Ok(true)
    }

    /// Takes files, folders and bytes from the budget.
    fn spend(&mut self, entries: u64, bytes: u64) -> Result<(), RefreshError> {
        let entries_left = self.budget.entries.checked_sub(entries);
        let bytes_left = self.budget.bytes.checked_sub(bytes);
        let (Some(entries), Some(bytes)) = (entries_left, bytes_left) else {
            let options = &self.context.options;
            let message = format!(
                "more than {} files and folders, or {} bytes, in all",
                options.archive.entries, options.archive.bytes
            );
            return Err(Problem::error("archive.too_large", message).into());
        };
        (self.budget.entries, self.budget.bytes) = (entries, bytes);
        Ok(())
    }
}

/// Returns the text of a document that leads to other files; `None` if the text is a SKILL.md.
fn read_referring_document(download: &mut Download) -> Result<Option<String>, RefreshError> {
    let invalid = |what: &str| Err(Problem::error("archive.invalid", what).into());
    let mut bytes = Vec::new();
    download.file.rewind()?;
    let mut bounded = (&mut download.file).take(DOCUMENT_BYTES_MAX + 1);
    bounded.read_to_end(&mut bytes)?;
    let decoded = decode_text(&bytes, true);
    if !decoded.is_text || bytes.len() as u64 > DOCUMENT_BYTES_MAX {
        return invalid("it is neither an archive nor a text of at most 4 MiB");
    }
    let start = decoded.text.trim_start();
    if start.starts_with('{') {
        return Ok(Some(start.to_owned()));
    }
    let head: String = start.chars().take(15).collect::<String>().to_lowercase();
    if head.starts_with("<!doctype html") || head.starts_with("<html") {
        return invalid("it is a web page and no archive; is a login needed, or another URL?");
    }
    let FetchedFile {
        url, content_type, ..
    } = &download.fetched;
    if last_segment(url).eq_ignore_ascii_case(SKILL_MD)
        || content_type.starts_with("text/markdown")
        || start.starts_with("---")
    {
        return Ok(None);
    }
    invalid("it is a text and no SKILL.md: it has no front matter, and its URL another name")
}

/// Returns the name of the folder for the only skill of a URL: as it calls itself, so that the folder is no reason for
/// a warning.
fn folder_name(unpacked: &UnpackedArchive, url: &WebUrl) -> String {
    let skill_md = fs::read(unpacked.root.join(SKILL_MD)).ok();
    let card = fs::read(unpacked.root.join(skill_card::FILE_NAME)).ok();
    let document = document::parse_documents(skill_md.as_deref(), card.as_deref(), "");
    let names = [
        Some(document.front_matter.name),
        unpacked.wrapper.clone(),
        Some(stem_of_url(url)),
    ];
    let name = names.into_iter().flatten().find(|name| is_name(name));
    name.unwrap_or_else(|| "skill".to_owned())
}

/// Returns the last name of a URL without an archive's extension; for a SKILL.md, its folder.
fn stem_of_url(url: &WebUrl) -> String {
    let mut last = last_segment(url);
    if last.eq_ignore_ascii_case(SKILL_MD) {
        last = url.url().path().rsplit('/').nth(1).unwrap_or_default();
    }
    let lower = last.to_lowercase();
    let endings = [".tar.gz", ".tgz", ".tar", ".zip"];
    let ending = endings.iter().find(|ending| lower.ends_with(**ending));
    let length = ending.map_or(last.len(), |ending| last.len() - ending.len());
    last.get(..length).unwrap_or_default().to_owned()
}

fn last_segment(url: &WebUrl) -> &str {
    url.url().path().rsplit('/').next().unwrap_or_default()
}

/// Returns the folders that files need, outer ones first.
fn folders_of_files(files: &[(String, WebUrl)]) -> BTreeSet<&str> {
    let paths = files.iter().map(|(path, _)| path);
    let folders = paths.flat_map(|path| {
        let ends = path.match_indices('/');
        ends.filter_map(|(at, _)| path.get(..at))
    });
    folders.collect()
}

//! From a URL to a tree of skills: fetches, tells by the bytes what it is, and unpacks.
//!
//! ```text
//! bytes ─ zip, tar, tar.gz ─► archive.rs
//!       ─ text ─ `{`        ─► documents.rs: a plan ─► each skill: an archive, a SKILL.md, or its files one by one
//!              ─ SKILL.md   ─► a folder with it
//! ```
//!
//! What did not change since the generation before is not fetched again, and what cannot be had stays as it was there.
//! All work on the disk is done off the runtime's threads.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::Problem;
use super::super::archive::{self, Bounds};
use super::cache::{self, Generation, Part, Ready, Size};
use super::documents::{self, Item, Plan, What};
use super::fault::{Fault, not_stored, problem, unexpected};
use super::unpack::{Done, Unpack, is_skill_md, remove, stem};
use super::{CARD, off};
use crate::config::RemoteConfig;
use crate::fetch::{Answer, FetchError, Fetched, Fetcher, Get, Validators, WebUrl};
use crate::shutdown::Tasks;

/// Largest document that is not an archive, bytes.
pub(super) const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// Where indexes are, relative to a URL that ends with a slash: as the draft says, and as many servers have it.
const INDEXES: [&str; 2] = [
    ".well-known/agent-skills/index.json",
    ".well-known/skills/index.json",
];

/// One attempt.
#[derive(Debug)]
pub(super) struct Gather<'a> {
    pub(super) fetcher: &'a Fetcher,
    pub(super) config: &'a RemoteConfig,
    pub(super) tasks: &'a Tasks,
    /// What there is already.
    pub(super) before: Option<&'a Generation>,
    /// A directory of our own; the tree is made in it.
    pub(super) work: &'a Path,
}

/// What is left of the limits of one root, which hold for all that is in its tree together.
#[derive(Debug, Clone, Copy)]
struct Budget {
    bytes: u64,
    /// Files, links and directories.
    entries: u64,
}

/// Something that was fetched, rewound.
struct Download {
    file: File,
    fetched: Fetched,
}

impl Gather<'_> {
    /// Makes the tree. `None` if nothing changed.
    pub(super) async fn run(&self, url: &WebUrl) -> Result<Option<Ready>, Problem> {
        let Some((download, from)) = self.document(url).await.map_err(|error| problem(&error))?
        else {
            return Ok(None);
        };
        let fetched = &download.fetched;
        let mut ready = Ready {
            sha256: fetched.sha256.clone(),
            validators: fetched.validators.clone(),
            ..Ready::default()
        };
        let before = self.before.map(|before| &before.ready);
        if before.is_some_and(|before| before.settled && before.sha256 == ready.sha256) {
            return Ok(None);
        }
        let mut budget = Budget {
            bytes: self.config.archive_bytes_max,
            entries: self.config.archive_entries_max,
        };
        let tree = cache::tree(self.work);
        match self
            .single(download, &from, &tree, None, &mut budget)
            .await?
        {
            None => {
                ready.settled = true;
                return Ok(Some(ready));
            }
            Some(text) => {
                self.several(text.into(), from, &mut ready, &mut budget)
                    .await?;
            }
        }
        // An index may have changed only its spaces; its parts say what it leads to.
        let same = before.is_some_and(|before| {
            before.parts == ready.parts && before.skipped == ready.skipped && !before.settled
        });
        Ok((!same).then_some(ready))
    }

    /// What the URL leads to; with a slash at its end, the index there. `None` if it is what there is already.
    async fn document(&self, url: &WebUrl) -> Result<Option<(Download, WebUrl)>, FetchError> {
        let settled = self.before.filter(|before| before.ready.settled);
        let validators = settled.map(|before| before.ready.validators.clone());
        if !url.url().path().ends_with('/') {
            return self
                .fetch(url, self.config.download_bytes_max, validators)
                .await;
        }
        let mut last = None;
        for index in INDEXES {
            let index = url.join(index)?.pinned(url.sha256().map(str::to_owned));
            match self
                .fetch(&index, DOCUMENT_BYTES_MAX, validators.clone())
                .await
            {
                Err(
                    error @ FetchError::Status {
                        status: 404 | 410, ..
                    },
                ) => last = Some(error),
                other => return other,
            }
        }
        last.map_or(Ok(None), Err)
    }

    async fn fetch(
        &self,
        url: &WebUrl,
        bytes_max: u64,
        validators: Option<Validators>,
    ) -> Result<Option<(Download, WebUrl)>, FetchError> {
        let failed = |source| FetchError::File {
            url: url.to_string(),
            source,
        };
        let work = self.work.to_owned();
        let file = self.blocking(move || tempfile::tempfile_in(work)).await;
        let file = file.map_err(|problem| failed(io::Error::other(problem.message)))?;
        let mut file = tokio::fs::File::from_std(file);
        let get = Get {
            url: url.clone(),
            bytes_max,
            validators,
        };
        let Answer::Fetched(fetched) = self.fetcher.fetch(&get, &mut file).await? else {
            return Ok(None);
        };
        let mut file = file.into_std().await;
        file.rewind().map_err(failed)?;
        let from = fetched.url.clone();
        let fetched = *fetched;
        Ok(Some((Download { file, fetched }, from)))
    }

    /// Unpacks an archive or takes a SKILL.md. Of a document that leads to others, its text. `name` is the folder of
    /// the only skill in it; without one it is found out.
    async fn single(
        &self,
        download: Download,
        from: &WebUrl,
        tree: &Path,
        name: Option<&str>,
        budget: &mut Budget,
    ) -> Result<Option<String>, Problem> {
        let bounds = Bounds {
            bytes: budget.bytes,
            file_bytes: self.config.archive_file_bytes_max.min(budget.bytes),
            entries: budget.entries,
            depth: self.config.archive_depth_max,
            ratio: self.config.archive_ratio_max,
        };
        let unpack = Unpack {
            bounds,
            into: self.work.join("unpacked"),
            tree: tree.to_owned(),
            name: name.map(str::to_owned),
            stem: stem(from),
            is_skill_md: is_skill_md(from, &download.fetched),
        };
        let done = off(self.tasks, move || unpack.run(download.file)).await??;
        Ok(match done {
            Done::Unpacked(archive::Unpacked { entries, bytes, .. }) => {
                budget.entries = budget.entries.saturating_sub(entries);
                budget.bytes = budget.bytes.saturating_sub(bytes);
                None
            }
            Done::Document(text) => Some(text),
        })
    }

    /// All skills of an index or a card.
    async fn several(
        &self,
        text: Arc<str>,
        from: WebUrl,
        ready: &mut Ready,
        budget: &mut Budget,
    ) -> Result<(), Problem> {
        let files_max = usize::try_from(self.config.archive_entries_max).unwrap_or(usize::MAX);
        let (document, base) = (Arc::clone(&text), from.clone());
        let plan = off(self.tasks, move || {
            documents::read(&document, &base, files_max)
        });
        let Plan {
            items,
            skipped,
            settled,
            is_card,
        } = plan
            .await?
            .map_err(|why| Problem::error("root.document_invalid", format!("{from} {why}")))?;
        let card = is_card.then_some(&text);
        ready.skipped = skipped;
        let (mut taken, mut first_fault) = (0, None);
        let complete = ready.skipped.is_empty();
        let mut failed = false;
        for item in items {
            let dir = cache::tree(self.work).join(&item.name);
            let mut room = *budget;
            let fault = match self.item(&item, card, &dir, ready, budget).await {
                Ok(()) => {
                    taken += 1;
                    continue;
                }
                Err(fault) => fault.into_problem(),
            };
            failed = true;
            let name = &item.name;
            let half = dir.clone();
            off(self.tasks, move || remove(&half)).await??;
            ready.parts.retain(|path, _| !is_of(path, name));
            // In the place of what failed, which has cost as much as it has.
            let kept = self.keep(name, &dir, ready, &mut room).await?;
            *budget = budget.min(room);
            taken += usize::from(kept);
            let note = if kept { "; what was there is kept" } else { "" };
            ready
                .skipped
                .push(format!("{name}: {}{note}", fault.message));
            first_fault.get_or_insert(fault);
        }
        ready.settled = settled && !failed;
        match first_fault {
            Some(fault) if taken == 0 => Err(fault),
            _ if taken == 0 && complete => {
                ready.skipped.push(format!("{from} names no skill"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn item(
        &self,
        item: &Item,
        card: Option<&Arc<str>>,
        dir: &Path,
        ready: &mut Ready,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        match &item.what {
            What::Artifact(url) => {
                let part = self.part(&item.name);
                let known = part.is_some_and(|part| Some(part.sha256.as_str()) == url.sha256());
                if known {
                    let kept = self.keep(&item.name, dir, ready, budget).await;
                    if kept.map_err(Fault::Other)? {
                        return Ok(());
                    }
                }
                let limit = self.config.download_bytes_max;
                let Some((download, from)) =
                    self.fetch(url, limit, None).await.map_err(Fault::Fetch)?
                else {
                    return Err(unexpected());
                };
                let part = part_of(&download.fetched);
                let name = Some(item.name.as_str());
                let document = self.single(download, &from, dir, name, budget).await;
                if document.map_err(Fault::Other)?.is_some() {
                    let message = format!("{url} is neither an archive nor a SKILL.md");
                    return Err(Fault::Other(Problem::error("archive.invalid", message)));
                }
                ready.parts.insert(item.name.clone(), part);
            }
            What::Files(files) => {
                let folders = folders(files);
                self.spend(budget, folders.len() as u64, 0)?;
                let top = dir.to_owned();
                self.stored(move || {
                    fs::create_dir_all(&top)?;
                    let mut folders = folders.iter();
                    folders.try_for_each(|folder| fs::create_dir(top.join(folder)))
                })
                .await?;
                for (path, url) in files {
                    let key = format!("{}/{path}", item.name);
                    let part = self.file(&key, url, dir.join(path), budget).await?;
                    ready.parts.insert(key, part);
                }
                if let Some(card) = card {
                    self.spend(budget, 1, card.len() as u64)?;
                    let (card, path) = (Arc::clone(card), dir.join(CARD));
                    self.stored(move || fs::write(path, &*card)).await?;
                    let part = Part {
                        sha256: ready.sha256.clone(),
                        validators: Validators::default(),
                    };
                    ready.parts.insert(format!("{}/{CARD}", item.name), part);
                }
            }
        }
        Ok(())
    }

    /// One file of a skill whose files are fetched one by one. Its folder is there.
    async fn file(
        &self,
        key: &str,
        url: &WebUrl,
        path: PathBuf,
        budget: &mut Budget,
    ) -> Result<Part, Fault> {
        self.spend(budget, 1, 0)?;
        let limit = self.config.archive_file_bytes_max.min(budget.bytes);
        let known = self.part(key);
        let validators = known.map(|part| part.validators.clone());
        let fetched = self.fetch(url, limit, validators).await;
        let Some((mut download, _)) = fetched.map_err(Fault::Fetch)? else {
            let (Some(part), Some(before)) = (known, self.before) else {
                return Err(unexpected());
            };
            let from = before.tree().join(key);
            let linked = self.stored(move || {
                fs::hard_link(&from, path)?;
                Ok(fs::metadata(&from)?.len())
            });
            self.spend(budget, 0, linked.await?)?;
            return Ok(part.clone());
        };
        self.spend(budget, 0, download.fetched.bytes)?;
        let part = part_of(&download.fetched);
        self.stored(move || {
            let mut file = File::create_new(path)?;
            io::copy(&mut download.file, &mut file)
        })
        .await?;
        Ok(part)
    }

    /// Takes from what is left.
    fn spend(&self, budget: &mut Budget, entries: u64, bytes: u64) -> Result<(), Fault> {
        let too_large =
            |message: String| Fault::Other(Problem::error("archive.too_large", message));
        *budget = budget.less(entries, bytes).ok_or_else(|| {
            let (files, bytes) = (
                self.config.archive_entries_max,
                self.config.archive_bytes_max,
            );
            too_large(format!(
                "more than {files} files and folders, or {bytes} bytes, in all"
            ))
        })?;
        Ok(())
    }

    fn part(&self, key: &str) -> Option<&Part> {
        self.before?.ready.parts.get(key)
    }

    /// Takes a skill over from the generation before; false if it had none of this name, or none that fits.
    async fn keep(
        &self,
        name: &str,
        dir: &Path,
        ready: &mut Ready,
        budget: &mut Budget,
    ) -> Result<bool, Problem> {
        let Some(before) = self.before else {
            return Ok(false);
        };
        let (from, to, left) = (before.tree().join(name), dir.to_owned(), *budget);
        let linked = self.blocking(move || {
            if !from.is_dir() {
                return Ok(None);
            }
            let size = Size::of(&from)?;
            let left = left.less(size.entries, size.bytes);
            if left.is_some() {
                cache::link_tree(&from, &to)?;
            }
            Ok(left)
        });
        let Some(left) = linked.await? else {
            return Ok(false);
        };
        *budget = left;
        let parts = before.ready.parts.iter();
        let parts = parts.filter(|(path, _)| is_of(path, name));
        ready
            .parts
            .extend(parts.map(|(path, part)| (path.clone(), part.clone())));
        Ok(true)
    }

    async fn stored<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        self.blocking(work).await.map_err(Fault::Other)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let done = off(self.tasks, work).await?;
        done.map_err(|error| not_stored(&error))
    }
}

// === impl Budget ===

impl Budget {
    /// What is left without this; `None` if it does not fit.
    fn less(self, entries: u64, bytes: u64) -> Option<Self> {
        Some(Self {
            bytes: self.bytes.checked_sub(bytes)?,
            entries: self.entries.checked_sub(entries)?,
        })
    }

    fn min(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.min(other.bytes),
            entries: self.entries.min(other.entries),
        }
    }
}

fn part_of(fetched: &Fetched) -> Part {
    Part {
        sha256: fetched.sha256.clone(),
        validators: fetched.validators.clone(),
    }
}

/// Whether a part belongs to the skill of a folder.
fn is_of(part: &str, name: &str) -> bool {
    part.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Folders that files need, those around others first.
fn folders(files: &[(String, WebUrl)]) -> BTreeSet<String> {
    let paths = files.iter().map(|(path, _)| path);
    let folders = paths.flat_map(|path| {
        let ends = path.match_indices('/');
        ends.filter_map(|(at, _)| path.get(..at).map(str::to_owned))
    });
    folders.collect()
}

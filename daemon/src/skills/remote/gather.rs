//! From a URL to a tree of skills: fetches, tells by the bytes what it is, and unpacks.
//!
//! ```text
//! bytes ─ zip, tar, tar.gz ─► archive.rs
//!       ─ text ─ `{`        ─► documents.rs: a plan ─► each skill: an archive, a SKILL.md, or its files one by one
//!              ─ SKILL.md   ─► a folder with it
//! ```
//!
//! What did not change since the generation before is not fetched again, and what cannot be had stays as it was there.

use std::fs::{self, File};
use std::io::Seek as _;
use std::path::Path;

use super::super::Problem;
use super::super::archive::{self, Bounds};
use super::CARD;
use super::cache::{self, Generation, Part, Ready};
use super::documents::{self, Item, Plan, What};
use super::unpack::{Done, Unpack, is_skill_md, remove, stem};
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

/// What is left of the limits of one root.
#[derive(Debug, Clone, Copy)]
struct Budget {
    bytes: u64,
    entries: u64,
}

/// Something that was fetched, rewound.
struct Download {
    file: File,
    fetched: Fetched,
}

/// Why one skill of several is not there.
enum Fault {
    Fetch(FetchError),
    Other(Problem),
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
            Some(text) => self.several(&text, &from, &mut ready, &mut budget).await?,
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
        let file = tempfile::tempfile_in(self.work).map_err(failed)?;
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
        let done = self.tasks.blocking(move || Ok(unpack.run(download.file)));
        let done = done.await.map_err(|error| {
            Problem::error("root.cache", format!("it could not be unpacked: {error}"))
        })??;
        Ok(match done {
            Done::Unpacked(archive::Unpacked { files, bytes, .. }) => {
                budget.entries = budget.entries.saturating_sub(files);
                budget.bytes = budget.bytes.saturating_sub(bytes);
                None
            }
            Done::Document(text) => Some(text),
        })
    }

    /// All skills of an index or a card.
    async fn several(
        &self,
        text: &str,
        from: &WebUrl,
        ready: &mut Ready,
        budget: &mut Budget,
    ) -> Result<(), Problem> {
        let files_max = usize::try_from(self.config.archive_entries_max).unwrap_or(usize::MAX);
        let Plan {
            items,
            skipped,
            settled,
        } = documents::read(text, from, files_max)
            .map_err(|why| Problem::error("root.document_invalid", format!("{from} {why}")))?;
        ready.skipped = skipped;
        let (mut taken, mut first_fault) = (0, None);
        let complete = ready.skipped.is_empty();
        let mut failed = false;
        for item in items {
            let dir = cache::tree(self.work).join(&item.name);
            let fault = match self.item(&item, text, &dir, ready, budget).await {
                Ok(()) => {
                    taken += 1;
                    continue;
                }
                Err(fault) => fault.into_problem(),
            };
            failed = true;
            let name = &item.name;
            remove(&dir)?;
            ready.parts.retain(|path, _| !is_of(path, name));
            let kept = self.keep(name, &dir, ready)?;
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
        document: &str,
        dir: &Path,
        ready: &mut Ready,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        match &item.what {
            What::Artifact(url) => {
                let part = self.part(&item.name);
                let known = part.is_some_and(|part| Some(part.sha256.as_str()) == url.sha256());
                if known && self.keep(&item.name, dir, ready).map_err(Fault::Other)? {
                    return Ok(());
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
                make(dir)?;
                for (path, url) in files {
                    let key = format!("{}/{path}", item.name);
                    let part = self.file(&key, url, &dir.join(path), budget).await?;
                    ready.parts.insert(key, part);
                }
                if documents::is_card(document) {
                    fs::write(dir.join(CARD), document).map_err(stored)?;
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

    /// One file of a skill whose files are fetched one by one.
    async fn file(
        &self,
        key: &str,
        url: &WebUrl,
        path: &Path,
        budget: &mut Budget,
    ) -> Result<Part, Fault> {
        let Some(entries) = budget.entries.checked_sub(1) else {
            let message = format!("more than {} files in all", self.config.archive_entries_max);
            return Err(Fault::Other(Problem::error("archive.too_large", message)));
        };
        budget.entries = entries;
        if let Some(parent) = path.parent() {
            make(parent)?;
        }
        let limit = self.config.archive_file_bytes_max.min(budget.bytes);
        let known = self.part(key);
        let validators = known.map(|part| part.validators.clone());
        let fetched = self.fetch(url, limit, validators).await;
        let Some((mut download, _)) = fetched.map_err(Fault::Fetch)? else {
            let (Some(part), Some(before)) = (known, self.before) else {
                return Err(unexpected());
            };
            let from = before.tree().join(key);
            let bytes = fs::metadata(&from).map_err(stored)?.len();
            budget.bytes = budget.bytes.saturating_sub(bytes);
            fs::hard_link(from, path).map_err(stored)?;
            return Ok(part.clone());
        };
        budget.bytes = budget.bytes.saturating_sub(download.fetched.bytes);
        let mut file = File::create_new(path).map_err(stored)?;
        std::io::copy(&mut download.file, &mut file).map_err(stored)?;
        Ok(part_of(&download.fetched))
    }

    fn part(&self, key: &str) -> Option<&Part> {
        self.before?.ready.parts.get(key)
    }

    /// Takes a skill over from the generation before; false if it had none of this name.
    fn keep(&self, name: &str, dir: &Path, ready: &mut Ready) -> Result<bool, Problem> {
        let Some(before) = self.before else {
            return Ok(false);
        };
        let from = before.tree().join(name);
        if !from.is_dir() {
            return Ok(false);
        }
        cache::link_tree(&from, dir).map_err(|error| not_stored(&error))?;
        let parts = before.ready.parts.iter();
        let parts = parts.filter(|(path, _)| is_of(path, name));
        ready
            .parts
            .extend(parts.map(|(path, part)| (path.clone(), part.clone())));
        Ok(true)
    }
}

// === impl Fault ===

impl Fault {
    fn into_problem(self) -> Problem {
        match self {
            Self::Fetch(error) => problem(&error),
            Self::Other(problem) => problem,
        }
    }
}

/// A failed fetch as a problem of its root.
fn problem(error: &FetchError) -> Problem {
    let code = match error {
        FetchError::Url { .. } => "root.url_invalid",
        FetchError::Address { .. } | FetchError::Downgrade { .. } => "root.refused",
        FetchError::Redirects { .. }
        | FetchError::Unreachable { .. }
        | FetchError::Timeout { .. }
        | FetchError::Status { .. }
        | FetchError::Client { .. } => "root.unreachable",
        FetchError::TooLarge { .. } => "root.too_large",
        FetchError::Checksum { .. } => "root.checksum_mismatch",
        FetchError::File { .. } => "root.cache",
    };
    Problem::error(code, error.to_string())
}

/// The cache cannot be used.
pub(super) fn not_stored(error: &std::io::Error) -> Problem {
    Problem::error(
        "root.cache",
        format!("the cache cannot be used, see skills.cache_dir: {error}"),
    )
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn stored(error: std::io::Error) -> Fault {
    Fault::Other(not_stored(&error))
}

fn unexpected() -> Fault {
    let message = "its server says that it has not changed, which was not asked";
    Fault::Other(Problem::error("root.unreachable", message))
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

fn make(dir: &Path) -> Result<(), Fault> {
    fs::create_dir_all(dir).map_err(stored)
}

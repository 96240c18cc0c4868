//! Scans all sources and builds the catalogue. Owned by the catalogue's task; every call blocks.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::catalogue_assembly::assemble_catalogue;
use super::catalogue_snapshot::Catalogue;
use super::folder_watcher::FolderWatcher;
use super::source_ingest::{KnownFolders, SourceIngest};
use super::source_scan_result::SourceScanResult;
use crate::content_store::ContentStore;
use crate::content_store::link_policy::LinkPolicy;
use crate::parse::problem::Problem;
use crate::skills_options::SkillsOptions;
use crate::sources::Sources;
use crate::sources::root_walk::RootWalk;
use crate::sources::skill_source::{SkillSource, SourceFolders};

/// Maximum number of problems that one scan logs; the others are counted.
const LOGGED_MAX: usize = 100;

/// Extent of a scan. Variants are ordered: of several requests the greatest wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ScanExtent {
    /// Only what is published.
    Published,
    /// All folders; files are read only where a fingerprint differs.
    Changed,
    /// Every file of every folder.
    Everything,
}

/// Result of one scan.
#[derive(Debug)]
pub(crate) struct ScanOutcome {
    /// The new snapshot; the one before if nothing changed.
    pub(crate) catalogue: Arc<Catalogue>,
    /// `true` if directories are watched from now on whose changes since the scan nobody reported, so that a second
    /// scan must follow.
    pub(crate) is_unwatched_change: bool,
}

/// Scans sources; remembers what it ingested.
#[derive(Debug)]
pub(crate) struct SourceScanner {
    options: SkillsOptions,
    watcher: FolderWatcher,
    latest: Option<Arc<Catalogue>>,
    /// Result of the last scan, by rank of the source.
    scans: Vec<Arc<SourceScanResult>>,
    /// Problems that the last scan logged, so that a standing problem is logged once.
    logged: HashSet<Problem>,
}

impl SourceScanner {
    pub(crate) fn new(options: &SkillsOptions) -> Self {
        Self {
            options: options.clone(),
            watcher: FolderWatcher::new(options.watches_max),
            latest: None,
            scans: Vec::new(),
            logged: HashSet::new(),
        }
    }

    /// Waits until a change is reported.
    pub(crate) async fn reported(&self) {
        self.watcher.changed().await;
    }

    /// Scans all sources.
    pub(crate) fn scan(
        &mut self,
        all_sources: &Sources,
        scope: ScanExtent,
        store: &ContentStore,
    ) -> ScanOutcome {
        let sources = all_sources.list();
        let real_roots = sources.iter().filter_map(real_root).collect();
        let link_policy = Arc::new(LinkPolicy::new(real_roots));
        // A root whose path leads to another directory now is scanned whatever the scope.
        let has_same_roots = |latest: &Arc<Catalogue>| latest.link_policy == link_policy;
        let only_published =
            scope == ScanExtent::Published && self.latest.as_ref().is_some_and(has_same_roots);
        if !only_published {
            // A scan of what is published leaves the reports of other folders to the next scan.
            self.watcher.drain_reports();
        }
        let mut walk = RootWalk::new(&link_policy, &self.options, &all_sources.remote);
        let (mut directories, mut is_complete) = (BTreeSet::new(), true);
        let mut previous_scans = std::mem::take(&mut self.scans).into_iter();
        // Rank 0 is that of a tenant's own publications in its view.
        for (rank, source) in (1..).zip(sources) {
            let is_published = matches!(source.folders, SourceFolders::Stored(_));
            match previous_scans.next() {
                Some(previous) if only_published && !is_published && previous.source == source => {
                    is_complete = false;
                    self.scans.push(previous);
                }
                previous => {
                    let reusable = previous.filter(|_| scope != ScanExtent::Everything);
                    let known = reusable
                        .as_ref()
                        .filter(|scan| scan.has_origin_of(&source))
                        .map_or(&[][..], |scan| &scan.folders);
                    let ingest = SourceIngest {
                        store,
                        link_policy: &link_policy,
                        source: &source,
                        rank,
                        known: KnownFolders::new(known),
                    };
                    let scan = scan_source(&ingest, &mut walk, &mut directories);
                    self.scans.push(Arc::new(scan));
                }
            }
        }
        let (walked, cards) = walk.into_paths_and_cards();
        directories.extend(walked);
        // A root that cannot be read now may have cards.
        if is_complete && self.scans.iter().all(|scan| scan.is_readable) {
            all_sources.remote.keep_cards(&cards);
        }
        // Publications of other tenants are in the views of those only.
        let scans: Vec<_> = self
            .scans
            .iter()
            .filter(|scan| !scan.is_of_other_tenant())
            .cloned()
            .collect();
        let catalogue = assemble_catalogue(&scans, self.options.skills_max, link_policy)
            .with_scans(self.scans.clone());
        self.log_problems(&catalogue);
        ScanOutcome {
            catalogue: self.publish(catalogue),
            // Directories of sources that were not scanned stay watched.
            is_unwatched_change: is_complete && self.watcher.watch_only(&directories),
        }
    }

    /// Numbers a new snapshot; returns the latest one if it is the same.
    fn publish(&mut self, mut catalogue: Catalogue) -> Arc<Catalogue> {
        if let Some(latest) = &self.latest {
            if latest.is_same(&catalogue) {
                return Arc::clone(latest);
            }
            catalogue.generation = latest.generation;
        }
        catalogue.generation += 1;
        let catalogue = Arc::new(catalogue);
        self.latest = Some(Arc::clone(&catalogue));
        catalogue
    }

    fn log_problems(&mut self, catalogue: &Catalogue) {
        let all: HashSet<Problem> = catalogue.all_problems().cloned().collect();
        let new = || all.difference(&self.logged);
        for problem in new().take(LOGGED_MAX) {
            tracing::warn!(
                code = problem.code,
                subject = problem.subject,
                line = problem.line,
                problem = problem.message,
                "skill problem"
            );
        }
        let more = new().count().saturating_sub(LOGGED_MAX);
        if more > 0 {
            tracing::warn!(more, "more skill problems: see ListProblems");
        }
        self.logged = all;
    }
}

/// Scans one source, and adds the directories inside of its skills to `directories`.
fn scan_source(
    ingest: &SourceIngest<'_>,
    walk: &mut RootWalk<'_>,
    directories: &mut BTreeSet<PathBuf>,
) -> SourceScanResult {
    let source = ingest.source;
    let mut scan = SourceScanResult {
        source: source.clone(),
        folders: Vec::new(),
        problems: source.problems.clone(),
        is_readable: !source.problems.iter().any(Problem::is_error),
    };
    match &source.folders {
        SourceFolders::Missing => scan.is_readable = false,
        SourceFolders::Beneath(root) => {
            let contents = walk.walk_root(root);
            scan.is_readable &= contents.is_readable;
            let problems = contents.problems.into_iter();
            scan.problems.extend(problems.map(|problem| {
                // The place of a fetched root in the store says nothing to its operator.
                match &source.origin {
                    Some(origin) if Path::new(&problem.subject) == root => {
                        problem.about(Path::new(origin))
                    }
                    _ => problem,
                }
            }));
            if contents.folders.is_empty() && scan.problems.is_empty() {
                scan.problems.push(no_skills_problem(source));
            }
            let (folders, inner) = ingest.ingest_local(&contents.folders);
            scan.folders = folders;
            directories.extend(inner);
        }
        SourceFolders::Stored(folders) => {
            scan.folders = folders
                .iter()
                .map(|it| ingest.ingest_published(it))
                .collect();
        }
    }
    scan
}

/// Makes the problem of a source that was read and has no skill.
fn no_skills_problem(source: &SkillSource) -> Problem {
    let message = format!(
        "{} has no skill: put folders with a SKILL.md there, or take it out of skills.roots",
        source.root
    );
    Problem::warning("root.no_skills", message).about(Path::new(&source.root))
}

/// Returns the real path of a local source.
fn real_root(source: &SkillSource) -> Option<PathBuf> {
    match &source.folders {
        SourceFolders::Beneath(dir) => dir.canonicalize().ok(),
        SourceFolders::Missing | SourceFolders::Stored(_) => None,
    }
}

//! Files of cards in folders and archives whose `base_uri` is a URL. They are fetched by the rules of remote roots, in the
//! background for the cards of roots, and at once for a card that is published. The URL of a published card comes from a
//! client, so the settings for URLs of clients decide whether and where it is fetched.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::refresh_attempt::RefreshAttempt;
use super::refresh_error::RefreshError;
use super::{RemoteContext, RemoteRoot, RemoteRoots};
use crate::error::tolerate;
use crate::fetch::{FetchError, WebUrl};
use crate::parse::problem::Problem;

/// Maximum number of cards whose files are fetched.
const CARDS_MAX: usize = 256;

/// State of the fetches for one card.
#[derive(Debug)]
pub(crate) struct FetchedFiles {
    /// Key of the card, for [`RemoteRoots::keep_cards`].
    pub(crate) key: String,
    /// Directory in the store with the card and its files; `None` if none were fetched yet.
    pub(crate) dir: Option<PathBuf>,
    /// Problems of the fetches, without a subject.
    pub(crate) problems: Vec<Problem>,
}

impl RemoteRoots {
    /// Returns what was fetched for a card whose `base_uri` was this URL. The first call for a card begins to fetch its
    /// files. Must be called within a runtime. Blocks.
    pub(crate) fn fetched_files(&self, card: &Arc<[u8]>, base: &str) -> FetchedFiles {
        let key = HEXLOWER.encode(&Sha256::digest([base.as_bytes(), b"\n", &**card].concat()));
        let refused = |problem: Problem| FetchedFiles {
            key: key.clone(),
            dir: None,
            problems: vec![problem],
        };
        let url = match parse_base(base) {
            Ok(url) => url,
            Err(RefreshError(problem)) => return refused(problem),
        };
        let mut cards = self.cards.lock();
        let root = match cards.get(&key) {
            Some(root) => Arc::clone(root),
            None if cards.len() >= CARDS_MAX => {
                let message = format!(
                    "more than {CARDS_MAX} cards have a URL as `base_uri`: put the files of this one beside it"
                );
                return refused(Problem::error("card.too_many_urls", message));
            }
            None => {
                let root = Arc::new(self.open_card(card, &url, &key));
                self.start_root(&root);
                cards.insert(key.clone(), Arc::clone(&root));
                root
            }
        };
        drop(cards);
        let status = root.status.borrow().clone();
        let tree = status.record.as_ref().map(|record| &record.tree);
        FetchedFiles {
            dir: tree.and_then(|tree| only_folder(&self.context.store.dir(tree))),
            problems: status.problems(&url),
            key,
        }
    }

    fn open_card(&self, card: &Arc<[u8]>, url: &WebUrl, key: &str) -> RemoteRoot {
        let path = self.records.join(format!("{key}.json"));
        let context = &self.context;
        let root = RemoteRoot::read(url, &url.to_string(), path, &context.store, &context.tasks);
        RemoteRoot {
            card: Some(Arc::clone(card)),
            ..root
        }
    }

    /// Ends the fetches for all other cards than these, and removes the records of all that is no root or card any more,
    /// also of what went away while no daemon ran.
    pub(crate) fn keep_cards(&self, keys: &HashSet<String>) {
        self.cards.lock().retain(|key, root| {
            let is_kept = keys.contains(key);
            if !is_kept {
                root.stop.cancel();
            }
            is_kept
        });
        let roots = self.all_roots();
        let kept: HashSet<&Path> = roots.iter().map(|root| root.path.as_path()).collect();
        let records = fs::read_dir(&self.records).into_iter().flatten().flatten();
        for path in records.map(|record| record.path()) {
            if !kept.contains(path.as_path())
                && let Err(error) = tolerate(ErrorKind::NotFound, fs::remove_file(&path))
            {
                tracing::warn!(
                    path = %path.display(),
                    %error,
                    "record of a root that is gone was not removed"
                );
            }
        }
    }

    /// Fetches the files of a published card into a directory in `work`, and returns it. Blocks, within a runtime.
    ///
    /// # Errors
    /// The problem of the fetch.
    pub(crate) fn fetch_card(
        &self,
        card: &[u8],
        base: &str,
        work: &Path,
    ) -> Result<PathBuf, Problem> {
        let shared = RemoteContext::clone(&self.context);
        if !shared.options.published_urls {
            let message = "`base_uri` is a URL, and files.input_urls does not allow those of clients here: publish \
                           SKILL.md and the files beside the card";
            return Err(Problem::error("root.refused", message));
        }
        let context = RemoteContext {
            fetcher: self.client_fetcher.clone(),
            ..shared
        };
        let fetched = parse_base(base).and_then(|url| {
            let mut attempt = RefreshAttempt::new(&context, &url, None, work);
            attempt.fetch_card(card)?;
            Ok(attempt.into_tree())
        });
        let tree = fetched.map_err(|RefreshError(problem)| problem)?;
        let missing =
            || Problem::error("card.no_instructions", "no files of the card were fetched");
        only_folder(&tree).ok_or_else(missing)
    }
}

/// Parses the URL of a folder.
fn parse_base(base: &str) -> Result<WebUrl, RefreshError> {
    let url: Result<WebUrl, FetchError> = format!("{}/", base.trim_end_matches('/')).parse();
    Ok(url?)
}

/// Returns the only folder of a directory.
fn only_folder(dir: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(dir).ok()?.flatten();
    let folder = entries.next()?.path();
    (entries.next().is_none() && folder.is_dir()).then_some(folder)
}

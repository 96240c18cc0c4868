//! What the catalogue and the store are asked by those who read: search, and the files of one skill.

use std::sync::{Arc, Mutex, PoisonError};

use super::content::Folder;
use super::documents::Documents;
use super::files::{FileContent, Manifest, SkillFile};
use super::preflight::{self, Need};
use super::search::{Index, Searched};
use super::{Catalogue, Document, Inner, Skill, SkillRef, SkillState, Skills, Staged};
use crate::error::{Error, Result};

/// A skill that a search found.
#[derive(Debug, Clone)]
pub struct Match {
    /// The one that its name stands for.
    pub skill: Skill,
    /// More is better; comparable within one answer only.
    pub score: f64,
    /// Which fields matched.
    pub fields: Vec<&'static str>,
}

/// The index of the catalogue that was searched last.
#[derive(Debug, Default)]
pub(super) struct Searcher {
    latest: Mutex<Option<Arc<Searchable>>>,
}

#[derive(Debug)]
struct Searchable {
    catalogue: Arc<Catalogue>,
    /// Places in it, by place in the index.
    places: Vec<usize>,
    index: Index,
}

impl Skills {
    /// The best skills for some words, at most `limit`. `compat` scores as Agent Zero does.
    ///
    /// # Errors
    /// `Invalid` for a query without a word to look for.
    pub async fn search(&self, query: String, limit: usize, compat: bool) -> Result<Vec<Match>> {
        self.look(move |inner| inner.search(&query, limit, compat))
            .await
    }

    /// The files of a skill.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub async fn files(&self, skill: SkillRef) -> Result<Arc<Manifest>> {
        self.copy(move |inner| inner.files(&skill)).await
    }

    /// Opens the file of a skill that a path stands for, with `workspace_paths` a text in which placeholders of the
    /// skill's folder are replaced. The version stays in the store until that is done; what is open is read to its end
    /// whatever becomes of it.
    ///
    /// # Errors
    /// As [`Self::files`] and [`Manifest::find`].
    pub async fn open_file(
        &self,
        skill: SkillRef,
        path: String,
        workspace_paths: bool,
    ) -> Result<(SkillFile, FileContent)> {
        self.copy(move |inner| inner.open_file(&skill, &path, workspace_paths))
            .await
    }

    /// What a skill needs.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub async fn needs(&self, skill: SkillRef) -> Result<Arc<Vec<Need>>> {
        self.copy(move |inner| inner.needs(&skill)).await
    }
}

impl Inner {
    fn search(&self, query: &str, limit: usize, compat: bool) -> Result<Vec<Match>> {
        let searchable = self.searcher.of(self.catalogue());
        let index = &searchable.index;
        let hits = if compat {
            index.search_compat(query, limit)?
        } else {
            index.search(query, limit)?
        };
        let found = hits.into_iter().filter_map(|hit| {
            let place = searchable.places.get(hit.position)?;
            let skill = self.with_content(searchable.catalogue.skills.get(*place)?);
            let fields = hit
                .fields
                .iter()
                .filter_map(|field| super::search::FIELDS.get(*field));
            let found = Match {
                fields: fields.copied().collect(),
                score: hit.score,
                skill,
            };
            // Its files may just have become unusable.
            is_usable(&found.skill).then_some(found)
        });
        Ok(found.collect())
    }

    fn files(&self, wanted: &SkillRef) -> Result<Arc<Manifest>> {
        let (stored, _lease) = self.stored(&self.catalogue(), wanted)?;
        self.manifest(&stored, wanted)
    }

    fn open_file(
        &self,
        wanted: &SkillRef,
        path: &str,
        workspace_paths: bool,
    ) -> Result<(SkillFile, FileContent)> {
        let (stored, _lease) = self.stored(&self.catalogue(), wanted)?;
        let manifest = self.manifest(&stored, wanted)?;
        let mut file = manifest.find(path)?.clone();
        let opened = manifest.open(&file)?;
        let content = if workspace_paths {
            FileContent::with_workspace_paths(opened, &mut file, &stored.name)?
        } else {
            FileContent::Stored(opened)
        };
        Ok((file, content))
    }

    /// The files of a version that is in the store; those that its card names, if it has one that names any.
    fn manifest(&self, stored: &Staged, wanted: &SkillRef) -> Result<Arc<Manifest>> {
        self.manifests.get(&stored.digest, || {
            let dir = self.store.dir(&stored.digest);
            let manifest = Manifest::read(&dir).map_err(|source| Error::Io {
                operation: format!("read {}", dir.display()),
                source,
            })?;
            // Without its card nobody knows what it leaves out.
            let document = self.document(stored, wanted)?;
            Ok(match document.front_matter.card {
                Some(card) => manifest.restricted(|path| card.allows(path)),
                None => manifest,
            })
        })
    }

    /// What the documents of a version in the store say.
    fn document(&self, stored: &Staged, wanted: &SkillRef) -> Result<Document> {
        let Folder { dir, trust, .. } = Folder::stored(&self.store.dir(&stored.digest));
        let document = Documents::read(self.skill_md_bytes_max, &dir, &trust, &stored.name);
        document.map_err(|problem| Error::SkillInvalid {
            name: wanted.to_string(),
            problem: problem.message,
        })
    }

    fn needs(&self, wanted: &SkillRef) -> Result<Arc<Vec<Need>>> {
        let (stored, _lease) = self.stored(&self.catalogue(), wanted)?;
        self.needs.get(&stored.digest, || {
            let manifest = self.manifest(&stored, wanted)?;
            let document = self.document(&stored, wanted)?;
            preflight::collect(&document.front_matter, &manifest)
        })
    }
}

impl Searcher {
    fn of(&self, catalogue: Arc<Catalogue>) -> Arc<Searchable> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = &*latest
            && there.catalogue.generation == catalogue.generation
        {
            return Arc::clone(there);
        }
        let made = Arc::new(Searchable::new(catalogue));
        *latest = Some(Arc::clone(&made));
        made
    }
}

impl Searchable {
    fn new(catalogue: Arc<Catalogue>) -> Self {
        let mut places: Vec<usize> = Vec::new();
        let mut last = "";
        for (place, skill) in catalogue.skills.iter().enumerate() {
            // Of several versions the first is the one that the name stands for.
            if is_usable(skill) && skill.name != last {
                places.push(place);
                last = &skill.name;
            }
        }
        let searched = places.iter().filter_map(|place| {
            let skill = catalogue.skills.get(*place)?;
            Some(Searched {
                name: &skill.name,
                description: &skill.front_matter.description,
                tags: &skill.front_matter.tags,
                triggers: &skill.front_matter.triggers,
            })
        });
        let index = Index::build(searched);
        Self {
            catalogue,
            places,
            index,
        }
    }
}

fn is_usable(skill: &Skill) -> bool {
    matches!(
        skill.state,
        SkillState::Loaded | SkillState::LoadedWithWarnings
    )
}

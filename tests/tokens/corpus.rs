//! Skills beneath a folder, read as the daemon reads them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use skilld::skills::document;
use skilld_client::prompt::{Doc, Loaded, Material, Summary};
use tiktoken_rs::CoreBPE;

use crate::tokens;

/// How long skills are made to see what that changes, in characters.
pub(crate) struct Lengths {
    pub(crate) name: &'static str,
    description: usize,
    body: usize,
    docs: usize,
    doc: usize,
}

/// The median of 25,897 published SKILL.md files, and of their descriptions; docs of the same length.
pub(crate) const MEDIAN: Lengths = Lengths {
    name: "as long as the median published skill",
    description: 202,
    body: 5_000,
    docs: 3,
    doc: 5_000,
};

/// What trpc-agent-go's comparison over 17 public skills must have injected: 238,302 tokens of bodies, 846,713 with docs,
/// which in three requests is 4,670 tokens for each body and 11,930 for its docs, of which those skills have about seven.
pub(crate) const REFERENCE: Lengths = Lengths {
    name: "as long as the reference's skills",
    description: 202,
    body: 17_100,
    docs: 7,
    doc: 6_240,
};

/// Skills to compare with.
pub(crate) struct Corpus {
    pub(crate) name: String,
    pub(crate) material: Material,
}

impl Corpus {
    pub(crate) fn read(root: &Path, name: &str) -> Result<Self> {
        let mut folders = Vec::new();
        find(root, 0, &mut folders).with_context(|| format!("read {}", root.display()))?;
        let mut material = Material::default();
        for folder in &folders {
            if let Some((summary, skill)) = read_skill(folder, &folders)?
                && !material.loaded.iter().any(|known| known.name == skill.name)
            {
                material.overview.push(summary);
                material.loaded.push(skill);
            }
        }
        if material.loaded.is_empty() {
            bail!("{} has no skills", root.display());
        }
        material.loaded.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self {
            name: name.to_owned(),
            material,
        })
    }

    /// The same skills with their own words said over and over.
    pub(crate) fn lengthened(&self, to: &Lengths) -> Self {
        let repeat = |text: &str, chars: usize| -> String {
            let text = if text.trim().is_empty() {
                "More of it.\n"
            } else {
                text
            };
            text.chars().cycle().take(chars).collect()
        };
        let mut material = self.material.clone();
        for summary in &mut material.overview {
            summary.description = repeat(&format!("{} ", summary.description), to.description);
        }
        for skill in &mut material.loaded {
            let words = skill.body.clone();
            skill.body = repeat(&words, to.body);
            let doc = |number| Doc {
                path: format!("references/{number}.md"),
                content: repeat(&words, to.doc),
            };
            skill.docs = (1..=to.docs).map(doc).collect();
        }
        Self {
            name: to.name.to_owned(),
            material,
        }
    }

    /// Docs of all skills.
    pub(crate) fn docs(&self) -> usize {
        self.material
            .loaded
            .iter()
            .map(|skill| skill.docs.len())
            .sum()
    }

    pub(crate) fn size(&self, tokenizer: &CoreBPE) -> String {
        let of = |texts: Vec<&str>| {
            texts
                .into_iter()
                .map(|text| tokens(tokenizer, text))
                .sum::<usize>()
        };
        let loaded = &self.material.loaded;
        let bodies = of(loaded.iter().map(|skill| skill.body.as_str()).collect());
        let docs = of(loaded
            .iter()
            .flat_map(|skill| &skill.docs)
            .map(|doc| doc.content.as_str())
            .collect());
        let said = self
            .material
            .overview
            .iter()
            .map(|summary| summary.description.as_str());
        format!(
            "{}: {} skills, {} docs; tokens of descriptions {}, bodies {bodies}, docs {docs}",
            self.name,
            loaded.len(),
            self.docs(),
            of(said.collect())
        )
    }
}

fn find(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    if folder.join("SKILL.md").is_file() {
        found.push(folder.to_owned());
    }
    let mut entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let is_hidden = name.to_string_lossy().starts_with('.') || name == "node_modules";
        if entry.file_type()?.is_dir() && !is_hidden && depth < 8 {
            find(&entry.path(), depth + 1, found)?;
        }
    }
    Ok(())
}

fn read_skill(folder: &Path, folders: &[PathBuf]) -> Result<Option<(Summary, Loaded)>> {
    let bytes = fs::read(folder.join("SKILL.md"))?;
    let base = folder.file_name().unwrap_or_default().to_string_lossy();
    let card = fs::read(folder.join("skill-card.json")).ok();
    let read = document::read(Some(&bytes), card.as_deref(), &base);
    if read.front_matter.name.is_empty() {
        return Ok(None);
    }
    let mut docs = Vec::new();
    find_docs(folder, folder, folders, &mut docs)?;
    let name = read.front_matter.name;
    let summary = Summary {
        name: name.clone(),
        description: read.front_matter.description,
    };
    let hex: String = Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let skill = Loaded {
        digest: format!("sha256:{hex}"),
        body: read.body,
        docs,
        tools: Vec::new(),
        unavailable_tools: Vec::new(),
        dir: format!("skills/{name}"),
        name,
    };
    Ok(Some((summary, skill)))
}

/// Texts in the folder that are not those of a skill within the skill.
fn find_docs(root: &Path, folder: &Path, skills: &[PathBuf], docs: &mut Vec<Doc>) -> Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if entry.file_type()?.is_dir() {
            if !skills.contains(&path) && !name.starts_with('.') {
                find_docs(root, &path, skills, docs)?;
            }
        } else if (name.ends_with(".md") || name.ends_with(".txt")) && name != "skill.md" {
            docs.push(Doc {
                path: path.strip_prefix(root)?.to_string_lossy().into_owned(),
                content: String::from_utf8_lossy(&fs::read(&path)?).into_owned(),
            });
        }
    }
    Ok(())
}

//! Skills beneath a folder, read as the daemon reads them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use skilld::skills::document;
use skilld_tools::prompt::{LoadedContent, PromptMaterial, SkillDoc, SkillSummary};
use tiktoken_rs::CoreBPE;

use crate::tokens;

/// Lengths to which skills are extended, in characters.
pub(crate) struct Lengths {
    pub(crate) name: &'static str,
    description: usize,
    body: usize,
    docs: usize,
    doc: usize,
}

/// Median lengths of 25,897 published SKILL.md files and of their descriptions, with documents of the same length.
pub(crate) const MEDIAN: Lengths = Lengths {
    name: "as long as the median published skill",
    description: 202,
    body: 5_000,
    docs: 3,
    doc: 5_000,
};

/// Lengths worked out of trpc-agent-go's comparison over 17 public skills: 238,302 tokens of bodies, 846,713 with documents,
/// in three requests. That is 4,670 tokens for each body and 11,930 for its documents, about seven per skill.
pub(crate) const REFERENCE: Lengths = Lengths {
    name: "as long as the reference's skills",
    description: 202,
    body: 17_100,
    docs: 7,
    doc: 6_240,
};

/// Skills whose tokens are counted.
pub(crate) struct Corpus {
    pub(crate) name: String,
    pub(crate) material: PromptMaterial,
}

impl Corpus {
    pub(crate) fn read(root: &Path, name: &str) -> Result<Self> {
        let mut folders = Vec::new();
        find(root, 0, &mut folders).with_context(|| format!("read {}", root.display()))?;
        let mut material = PromptMaterial::default();
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

    /// Returns the same skills with their own words repeated up to given lengths.
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
            let doc = |number| SkillDoc {
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

    /// Returns the number of documents of all skills.
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

fn read_skill(folder: &Path, folders: &[PathBuf]) -> Result<Option<(SkillSummary, LoadedContent)>> {
    let bytes = fs::read(folder.join("SKILL.md"))?;
    let base = folder.file_name().unwrap_or_default().to_string_lossy();
    let card = fs::read(folder.join("skill-card.json")).ok();
    let read = document::parse_documents(Some(&bytes), card.as_deref(), &base);
    if read.front_matter.name.is_empty() {
        return Ok(None);
    }
    let mut docs = Vec::new();
    find_docs(folder, folder, folders, &mut docs)?;
    let name = read.front_matter.name;
    let summary = SkillSummary {
        name: name.clone(),
        description: read.front_matter.description,
    };
    let hex: String = Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let skill = LoadedContent {
        digest: format!("sha256:{hex}"),
        body: read.body,
        docs,
        tools: Vec::new(),
        unavailable_tools: Vec::new(),
        dir: format!("skills/{name}"),
        reader: String::new(),
        name,
    };
    Ok(Some((summary, skill)))
}

/// Returns the texts of a folder, without those of skills inside it.
fn find_docs(
    root: &Path,
    folder: &Path,
    skills: &[PathBuf],
    docs: &mut Vec<SkillDoc>,
) -> Result<()> {
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
            docs.push(SkillDoc {
                path: path.strip_prefix(root)?.to_string_lossy().into_owned(),
                content: String::from_utf8_lossy(&fs::read(&path)?).into_owned(),
            });
        }
    }
    Ok(())
}

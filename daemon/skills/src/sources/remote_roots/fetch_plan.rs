//! Parses a skill index or a skill card of a server into a plan of what to fetch. Nothing in them is believed: names
//! are one path segment, paths stay beneath their folder, counts are bounded.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use unicode_normalization::char::is_combining_mark;

use crate::fetch::WebUrl;
use crate::parse::finding::quote_excerpt;
use crate::parse::skill_card;
use crate::parse::skill_name::{id_of_name, is_name};
use crate::parse::skill_ref::is_digest;
use crate::skill_path::normalise_skill_path;
use crate::sources::directory_listing::SKILL_MD;

/// The schema of an index whose entries have digests.
const SCHEMA: &str = "https://schemas.agentskills.io/discovery/0.2.0/schema.json";
/// Maximum number of skills of an index; the others are left out.
pub(super) const SKILLS_MAX: usize = 1000;
/// Maximum number of characters of a parser's message, which may quote the document.
const ERROR_CHARS_MAX: usize = 200;

/// Skills that a document names, and those that are left out.
#[derive(Debug, Default)]
pub(super) struct FetchPlan {
    pub(super) skills: Vec<PlannedSkill>,
    /// Reasons why skills are left out.
    pub(super) skipped: Vec<String>,
    /// `true` if the document names the digest of everything.
    pub(super) is_pinned: bool,
    /// `true` if the document is the card of the only skill, and one of its files.
    pub(super) is_card: bool,
}

/// Skill that a document names.
#[derive(Debug)]
pub(super) struct PlannedSkill {
    /// Name of its folder.
    pub(super) name: String,
    pub(super) files: PlannedFiles,
}

/// Files of a planned skill.
#[derive(Debug)]
pub(super) enum PlannedFiles {
    /// URL of an archive or a SKILL.md, with the pin of its digest.
    Artifact(WebUrl),
    /// Path of each file relative to the folder, and its URL.
    Listed(Vec<(String, WebUrl)>),
}

/// Index of skills or skill card.
#[derive(Deserialize)]
struct IndexOrCard {
    #[serde(rename = "$schema")]
    schema: Option<String>,
    skills: Option<Vec<Value>>,
    base_uri: Option<String>,
    id: Option<String>,
    #[serde(default)]
    files: Vec<String>,
}

/// Entry of an index with digests.
#[derive(Deserialize)]
struct PinnedEntry {
    name: String,
    r#type: String,
    url: String,
    digest: String,
}

/// Entry of an index with lists of files.
#[derive(Deserialize)]
struct FilesEntry {
    name: String,
    files: Vec<String>,
}

/// Plans the fetches that a document asks for. `from` is its URL.
///
/// # Errors
/// The fault of the document, worded so that it fits after its URL.
pub(super) fn plan_fetches(
    text: &str,
    from: &WebUrl,
    files_max: usize,
) -> Result<FetchPlan, String> {
    let mut document: IndexOrCard = parse_json(serde_json::from_str(text))
        .map_err(|why| format!("is neither an index of skills nor a skill card: {why}"))?;
    match (
        document.schema.as_deref(),
        document.skills.take(),
        &document.base_uri,
    ) {
        (Some(SCHEMA), Some(skills), _) => Ok(FetchPlan {
            is_pinned: true,
            ..plan_index(skills, |entry| plan_pinned_skill(entry, from))
        }),
        (Some(other), Some(_), _) => Err(format!(
            "is an index of an unknown kind ({}); {SCHEMA} is known",
            quote_excerpt(other)
        )),
        (None, Some(skills), _) => {
            // The limit holds for all skills together: files beyond it would not be fetched anyway.
            let mut left = files_max;
            Ok(plan_index(skills, |entry| {
                let entry: FilesEntry = parse_json(serde_json::from_value(entry))?;
                let skill = plan_listed_skill(&entry, from, left)?;
                left = left.saturating_sub(entry.files.len());
                Ok(skill)
            }))
        }
        (_, None, Some(base)) => plan_card(&document, base, from, files_max),
        (_, None, None) => Err(
            "has neither `skills`, as an index of skills, nor `base_uri`, as a skill card".into(),
        ),
    }
}

/// Plans the fetches of a card's files from the URL of their folder.
///
/// # Errors
/// As [`plan_fetches`].
pub(super) fn plan_card_files(
    text: &str,
    folder: &WebUrl,
    files_max: usize,
) -> Result<FetchPlan, String> {
    let document: IndexOrCard = parse_json(serde_json::from_str(text))
        .map_err(|why| format!("has files of a card that cannot be read: {why}"))?;
    plan_card(&document, ".", folder, files_max)
}

/// Plans the skills of an index, each with `plan_skill`.
fn plan_index(
    mut skills: Vec<Value>,
    mut plan_skill: impl FnMut(Value) -> Result<PlannedSkill, String>,
) -> FetchPlan {
    let mut plan = FetchPlan::default();
    if skills.len() > SKILLS_MAX {
        let message = format!(
            "the index has {} skills; those after the first {SKILLS_MAX} are left out",
            skills.len()
        );
        plan.skipped.push(message);
        skills.truncate(SKILLS_MAX);
    }
    let mut names = BTreeSet::new();
    for (index, entry) in skills.into_iter().enumerate() {
        let shown = match entry.get("name").and_then(Value::as_str) {
            Some(name) => quote_excerpt(name),
            None => format!("number {}", index + 1),
        };
        match plan_skill(entry) {
            Ok(skill) if names.insert(skill.name.to_lowercase()) => plan.skills.push(skill),
            Ok(_) => plan
                .skipped
                .push(format!("{shown}: an earlier skill has this name")),
            Err(why) => plan.skipped.push(format!("{shown}: {why}")),
        }
    }
    plan
}

fn plan_pinned_skill(entry: Value, from: &WebUrl) -> Result<PlannedSkill, String> {
    let entry: PinnedEntry = parse_json(serde_json::from_value(entry))?;
    let name = folder_of_name(&entry.name)?;
    if !matches!(entry.r#type.as_str(), "skill-md" | "archive") {
        let kind = quote_excerpt(&entry.r#type);
        return Err(format!("its type {kind} is neither skill-md nor archive"));
    }
    let digest = entry
        .digest
        .strip_prefix("sha256:")
        .filter(|digest| is_digest(digest))
        .ok_or("its digest is not sha256: and 64 lower-case hex digits")?;
    let url = from.join(&entry.url).map_err(|error| error.to_string())?;
    Ok(PlannedSkill {
        name,
        files: PlannedFiles::Artifact(url.pinned(Some(digest.to_owned()))),
    })
}

fn plan_listed_skill(
    entry: &FilesEntry,
    from: &WebUrl,
    files_max: usize,
) -> Result<PlannedSkill, String> {
    let name = folder_of_name(&entry.name)?;
    let base = from
        .join(&format!("{}/", entry.name))
        .map_err(|error| error.to_string())?;
    let files = resolve_files(&entry.files, &base, files_max, &[])?;
    if !files.iter().any(|(path, _)| path == SKILL_MD) {
        return Err("its files have no SKILL.md".to_owned());
    }
    Ok(PlannedSkill {
        name,
        files: PlannedFiles::Listed(files),
    })
}

/// Plans the files of a card. A `base_uri` that is not a URL is relative to the card.
fn plan_card(
    document: &IndexOrCard,
    base: &str,
    from: &WebUrl,
    files_max: usize,
) -> Result<FetchPlan, String> {
    let name = folder_of_name(document.id.as_deref().unwrap_or_default())?;
    let joined = if base.trim_matches('/').is_empty() {
        from.join(".")
    } else {
        from.join(&format!("{}/", base.trim_end_matches('/')))
    };
    let base = joined.map_err(|error| format!("has a base_uri that is not fetched: {error}"))?;
    let is_file = |path: &str, file| normalise_skill_path("", path).is_ok_and(|path| path == file);
    let mut paths = document.files.clone();
    if !paths.iter().any(|path| is_file(path, SKILL_MD)) {
        paths.push(SKILL_MD.to_owned());
    }
    // The card itself is fetched already.
    paths.retain(|path| !is_file(path, skill_card::FILE_NAME));
    let files = resolve_files(&paths, &base, files_max, &[skill_card::FILE_NAME])
        .map_err(|why| format!("is a card that cannot be used: {why}"))?;
    Ok(FetchPlan {
        skills: vec![PlannedSkill {
            name,
            files: PlannedFiles::Listed(files),
        }],
        is_card: true,
        ..FetchPlan::default()
    })
}

/// Shortens the message of a failed read: it may hold a text of the document, which is as long as its server likes.
fn parse_json<T>(parsed: serde_json::Result<T>) -> Result<T, String> {
    let shorten =
        |error: serde_json::Error| error.to_string().chars().take(ERROR_CHARS_MAX).collect();
    parsed.map_err(shorten)
}

/// Returns the id of a name, which is the folder of its files. The name is one segment of a URL.
fn folder_of_name(name: &str) -> Result<String, String> {
    let is_part = |c: char| c.is_alphanumeric() || is_combining_mark(c) || "._-".contains(c);
    let is_segment = is_name(name) || !name.is_ascii() && name.chars().all(is_part);
    let id = id_of_name(name).filter(|_| is_segment);
    id.ok_or_else(|| {
        let name = quote_excerpt(name);
        format!("its name {name} is not of the form of names: letters, digits and ._- after a letter or digit")
    })
}

/// Returns normalised path and URL of each file. `existing` are files that the folder has already.
fn resolve_files(
    paths: &[String],
    base: &WebUrl,
    files_max: usize,
    existing: &[&str],
) -> Result<Vec<(String, WebUrl)>, String> {
    if paths.len() > files_max {
        let count = paths.len();
        return Err(format!(
            "{count} files are more than the {files_max} that are left: one for each 4 KiB of skills.archive_bytes_max"
        ));
    }
    let mut seen: BTreeSet<String> = existing.iter().map(|&name| name.to_owned()).collect();
    let mut folders = BTreeSet::new();
    let mut files = Vec::new();
    for given in paths {
        let shown = quote_excerpt(given);
        let path = normalise_skill_path("files", given)
            .ok()
            .filter(|path| !path.is_empty())
            .ok_or_else(|| format!("the path {shown} does not stay in its folder"))?;
        let lower = path.to_lowercase();
        let above: Vec<&str> = lower
            .match_indices('/')
            .filter_map(|(at, _)| lower.get(..at))
            .collect();
        if folders.contains(&lower) || above.iter().any(|folder| seen.contains(*folder)) {
            return Err(format!("the path {shown} makes a folder of a file"));
        }
        folders.extend(above.into_iter().map(str::to_owned));
        if !seen.insert(lower) {
            return Err(format!("the path {shown} is there twice"));
        }
        let mut url = base.url().clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            // Segments are escaped, so that no character of a name becomes syntax.
            segments.pop_if_empty().extend(path.split('/'));
        }
        let url = WebUrl::try_from(url).map_err(|error| error.to_string())?;
        files.push((path, url));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_hostile_documents_are_bounded() {
        let from: WebUrl = "https://skills.example/".parse().expect("a URL");
        let long = "x".repeat(1 << 20);
        for text in [
            format!("{{\"skills\": \"{long}\"}}"),
            format!("{{\"$schema\": \"{long}\", \"skills\": []}}"),
            format!("{{\"skills\": [{{\"name\": \"a\", \"files\": \"{long}\"}}]}}"),
            format!("{{\"skills\": [{{\"name\": \"{long}\", \"files\": []}}]}}"),
            format!("{{\"skills\": [{{\"name\": \"a\", \"files\": [\"/{long}\"]}}]}}"),
            format!("{{\"base_uri\": \"b\", \"id\": \"{long}\"}}"),
        ] {
            let said = match plan_fetches(&text, &from, 10) {
                Ok(plan) => plan.skipped.join(""),
                Err(why) => why,
            };
            assert!(
                !said.is_empty() && said.len() < 1000,
                "{} bytes",
                said.len()
            );
        }
    }
}

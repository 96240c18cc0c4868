//! Documents that name what to fetch: the well-known index in its two shapes, and skill cards whose files are on a
//! server. Nothing in them is believed: names are one path segment, paths stay beneath their folder, counts are bounded.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::super::is_name;
use crate::fetch::WebUrl;

/// The schema of an index whose entries have digests.
const SCHEMA: &str = "https://schemas.agentskills.io/discovery/0.2.0/schema.json";
/// Skills of an index that are looked at.
pub(super) const SKILLS_MAX: usize = 1000;
const SKILL_MD: &str = "SKILL.md";
/// Longest path of a file, bytes, and its names.
const PATH_BYTES_MAX: usize = 512;
const PATH_NAMES_MAX: usize = 32;

/// What to fetch, and what of it is not fetched.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) items: Vec<Item>,
    pub(super) skipped: Vec<String>,
    /// The document names the digest of everything.
    pub(super) settled: bool,
    /// The document is the card of the only skill, and one of its files.
    pub(super) is_card: bool,
}

/// One skill.
#[derive(Debug)]
pub(super) struct Item {
    /// Its folder.
    pub(super) name: String,
    pub(super) what: What,
}

/// Of what it is made.
#[derive(Debug)]
pub(super) enum What {
    /// An archive or a SKILL.md; the URL is pinned.
    Artifact(WebUrl),
    /// Files one by one, paths relative to the folder.
    Files(Vec<(String, WebUrl)>),
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "$schema")]
    schema: Option<String>,
    skills: Option<Vec<serde_json::Value>>,
    base_uri: Option<String>,
    id: Option<String>,
    #[serde(default)]
    files: Vec<String>,
}

#[derive(Deserialize)]
struct Pinned {
    name: String,
    r#type: String,
    url: String,
    digest: String,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    files: Vec<String>,
}

/// Reads a document that was found at `from`.
///
/// # Errors
/// What is wrong with it, as it fits after its name.
pub(super) fn read(text: &str, from: &WebUrl, files_max: usize) -> Result<Plan, String> {
    let mut document: Document = serde_json::from_str(text)
        .map_err(|error| format!("is neither an index of skills nor a skill card: {error}"))?;
    match (
        document.schema.as_deref(),
        document.skills.take(),
        &document.base_uri,
    ) {
        (Some(SCHEMA), Some(skills), _) => Ok(index(skills, true, |skill| pinned(skill, from))),
        (Some(other), Some(_), _) => Err(format!(
            "is an index of an unknown kind ({other}); {SCHEMA} is known"
        )),
        (None, Some(skills), _) => {
            // All of them together: each file takes a URL, and what is over would not be fetched either.
            let mut left = files_max;
            Ok(index(skills, false, |skill| {
                let (item, files) = listed(skill, from, left)?;
                left = left.saturating_sub(files);
                Ok(item)
            }))
        }
        (_, None, Some(base)) => card(&document, base, from, files_max),
        (_, None, None) => Err(
            "has neither `skills`, as an index of skills, nor `base_uri`, as a skill card".into(),
        ),
    }
}

fn index(
    mut skills: Vec<serde_json::Value>,
    settled: bool,
    mut item: impl FnMut(serde_json::Value) -> Result<Item, String>,
) -> Plan {
    let mut plan = Plan {
        settled,
        ..Plan::default()
    };
    if skills.len() > SKILLS_MAX {
        let message = format!(
            "the index has {} skills; those after the first {SKILLS_MAX} are left out",
            skills.len()
        );
        plan.skipped.push(message);
        skills.truncate(SKILLS_MAX);
    }
    let mut names = BTreeSet::new();
    for (number, skill) in skills.into_iter().enumerate() {
        let named = skill.get("name").and_then(|name| name.as_str());
        let named = named.map_or_else(|| format!("number {}", number + 1), printable);
        match item(skill) {
            Ok(item) if names.insert(item.name.to_lowercase()) => plan.items.push(item),
            Ok(_) => plan
                .skipped
                .push(format!("{named}: an earlier skill has this name")),
            Err(why) => plan.skipped.push(format!("{named}: {why}")),
        }
    }
    plan
}

fn pinned(skill: serde_json::Value, from: &WebUrl) -> Result<Item, String> {
    let skill: Pinned = serde_json::from_value(skill).map_err(|error| error.to_string())?;
    let name = name(skill.name)?;
    if !matches!(skill.r#type.as_str(), "skill-md" | "archive") {
        let kind = printable(&skill.r#type);
        return Err(format!("its type {kind} is neither skill-md nor archive"));
    }
    let digest = skill.digest.strip_prefix("sha256:").filter(|digest| {
        let lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        digest.len() == 64 && digest.bytes().all(lower)
    });
    let Some(digest) = digest else {
        return Err("its digest is not sha256: and 64 lower-case hex digits".to_owned());
    };
    let url = from.join(&skill.url).map_err(|error| error.to_string())?;
    Ok(Item {
        name,
        what: What::Artifact(url.pinned(Some(digest.to_owned()))),
    })
}

/// A skill and how many files it has.
fn listed(
    skill: serde_json::Value,
    from: &WebUrl,
    files_max: usize,
) -> Result<(Item, usize), String> {
    let skill: Listed = serde_json::from_value(skill).map_err(|error| error.to_string())?;
    let name = name(skill.name)?;
    let base = from
        .join(&format!("{name}/"))
        .map_err(|error| error.to_string())?;
    let files = files(&skill.files, &base, files_max, &[])?;
    if !files.iter().any(|(path, _)| path == SKILL_MD) {
        return Err("its files have no SKILL.md".to_owned());
    }
    let count = files.len();
    let what = What::Files(files);
    Ok((Item { name, what }, count))
}

/// The card of one skill. A `base_uri` that is not a URL is relative to the card.
fn card(document: &Document, base: &str, from: &WebUrl, files_max: usize) -> Result<Plan, String> {
    let name = name(document.id.clone().unwrap_or_default())?;
    let folder = format!("{}/", base.trim_end_matches('/'));
    let base = if base.trim_matches('/').is_empty() {
        from.join(".")
    } else {
        from.join(&folder)
    };
    let base = base.map_err(|error| format!("has a base_uri that is not fetched: {error}"))?;
    let mut paths = document.files.clone();
    if !paths.iter().any(|path| names(path).eq([SKILL_MD])) {
        paths.push(SKILL_MD.to_owned());
    }
    // The card itself is there already.
    paths.retain(|path| !names(path).eq([super::CARD]));
    let files = files(&paths, &base, files_max, &[super::CARD])
        .map_err(|why| format!("is a card that cannot be used: {why}"))?;
    Ok(Plan {
        items: vec![Item {
            name,
            what: What::Files(files),
        }],
        is_card: true,
        ..Plan::default()
    })
}

fn name(name: String) -> Result<String, String> {
    if is_name(&name) {
        return Ok(name);
    }
    let name = printable(&name);
    Err(format!(
        "its name {name} is not of the form [A-Za-z0-9][A-Za-z0-9._-]{{0,63}}"
    ))
}

/// Where each file is. `there` are files that lie in the folder already.
fn files(
    paths: &[String],
    base: &WebUrl,
    files_max: usize,
    there: &[&str],
) -> Result<Vec<(String, WebUrl)>, String> {
    if paths.len() > files_max {
        let count = paths.len();
        return Err(format!(
            "{count} files are more than the {files_max} that are left of skills.archive_entries_max"
        ));
    }
    let mut seen: BTreeSet<String> = there.iter().map(|&name| name.to_owned()).collect();
    let mut folders = BTreeSet::new();
    let mut files = Vec::new();
    for path in paths {
        let shown = printable(path);
        if !is_path(path) {
            return Err(format!("the path {shown} does not stay in its folder"));
        }
        let path = names(path).collect::<Vec<_>>().join("/");
        let lower = path.to_lowercase();
        let above = lower.match_indices('/');
        let above: Vec<&str> = above.filter_map(|(at, _)| lower.get(..at)).collect();
        if folders.contains(&lower) || above.iter().any(|folder| seen.contains(*folder)) {
            return Err(format!("the path {shown} makes a folder of a file"));
        }
        folders.extend(above.into_iter().map(str::to_owned));
        if !seen.insert(lower) {
            return Err(format!("the path {shown} is there twice"));
        }
        let mut url = base.url().clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            // Whatever is in a name, it stays a name.
            segments.pop_if_empty().extend(path.split('/'));
        }
        let url = WebUrl::try_from(url).map_err(|error| error.to_string())?;
        files.push((path, url));
    }
    Ok(files)
}

/// Whether a path is relative, made of names only, and of a length that fits.
fn is_path(path: &str) -> bool {
    let plain = |name: &str| name.len() <= 255 && name != "..";
    path.len() <= PATH_BYTES_MAX
        && path.split('/').count() <= PATH_NAMES_MAX
        && !path.starts_with('/')
        && names(path).next().is_some()
        && names(path).all(plain)
        && !path.contains(|c: char| c.is_control() || c == '\\')
}

/// The names in a path; `a//b` and `./a/b` are `a/b`.
fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !matches!(*name, "" | "."))
}

/// At most so much of it that a message stays readable, and nothing invisible.
fn printable(text: &str) -> String {
    let shown: String = text.chars().take(80).collect();
    format!("{shown:?}")
}

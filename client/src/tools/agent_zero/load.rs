//! The methods load and read_file.

use serde_json::{Value, json};
use skilld_proto::v1::{Skill, SkillFile};

use super::names;
use crate::state::{SessionState, agent_zero};
use crate::tools::{Answer, Inner, Session, ToolError, lookup};

/// Files that a text lists. All of them are beside it.
const FILES_SHOWN_MAX: usize = 80;
/// Folders that come first, in this order; files of the root come before them, all others after.
const FOLDERS: [&str; 5] = ["scripts", "references", "assets", "templates", "docs"];

pub(super) async fn load(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    name: &str,
) -> Result<Answer, ToolError> {
    let skill = names::find(tools, name).await?;
    let pinned = lookup::pinned(&skill);
    let mut files = lookup::files(&tools.client, &pinned, "").await?;
    files.retain(|file| file.path != "SKILL.md");
    files.sort_by_cached_key(|file| (place(&file.path), file.path.clone()));
    let id = lookup::id(&skill);
    let scope = agent_zero::scope(&session.agent);
    let loaded = agent_zero::load(state, scope, &id, tools.options.max_loaded_skills);
    let evicted = loaded.names;
    let listed = files
        .iter()
        .map(|file| json!({"path": file.path, "size": file.size, "binary": !file.is_text}));
    let result = json!({
        "text": text(&skill, &files, &evicted),
        "name": id,
        "version": skill.version,
        "digest": skill.digest,
        "files": listed.collect::<Vec<Value>>(),
        "evicted": evicted,
    });
    Ok(Answer {
        result,
        delta: loaded.delta,
    })
}

fn place(path: &str) -> usize {
    let Some((folder, _)) = path.split_once('/') else {
        return 0;
    };
    let known = FOLDERS.iter().position(|known| *known == folder);
    known.map_or(FOLDERS.len() + 1, |at| at + 1)
}

fn text(skill: &Skill, files: &[SkillFile], evicted: &[String]) -> String {
    let id = lookup::id(skill);
    let mut text = String::new();
    let source = match (skill.root.as_str(), skill.source.as_str()) {
        ("", source) | (source, "") => source.to_owned(),
        (root, source) => format!("{root} ({source})"),
    };
    let allowed = match (skill.restricts_tools, skill.allowed_tools.is_empty()) {
        (true, true) => "none".to_owned(),
        _ => skill.allowed_tools.join(", "),
    };
    for (name, value) in [
        ("Skill", id.clone()),
        ("Source", source),
        ("Path", format!("/workspace/skills/{id}")),
        ("Version", skill.version.clone()),
        ("Digest", skill.digest.clone()),
        ("Author", skill.author.clone()),
        ("License", skill.license.clone()),
        ("Compatibility", skill.compatibility.clone()),
        ("Tags", skill.tags.join(", ")),
        ("Allowed tools", allowed),
        ("Triggers", skill.triggers.join(", ")),
        ("Description", skill.description.clone()),
    ] {
        if !value.is_empty() {
            text += &format!("{name}: {value}\n");
        }
    }
    let body = match skill.body.trim() {
        "" => "(empty)",
        body => body,
    };
    text += &format!("\n{body}\n\nFiles:\n");
    if files.is_empty() {
        text += "(none)\n";
    }
    for file in files.iter().take(FILES_SHOWN_MAX) {
        text += &format!("- {}\n", file.path);
    }
    if files.len() > FILES_SHOWN_MAX {
        let more = files.len() - FILES_SHOWN_MAX;
        text += &format!("and {more} more, which read_file reads too\n");
    }
    if !evicted.is_empty() {
        text += &format!("\nNo longer loaded, to make room: {}\n", evicted.join(", "));
    }
    text
}

pub(super) async fn read_file(
    tools: &Inner,
    name: &str,
    path: &str,
    offset: u64,
) -> Result<Answer, ToolError> {
    let path = path.trim();
    if path.is_empty() {
        return Err(ToolError::arguments(
            "file_path is empty: use one that the method load shows",
        ));
    }
    let skill = names::find(tools, name).await?;
    let max = tools.options.primary_bytes_max;
    let read = lookup::read(&tools.client, &lookup::pinned(&skill), path, offset, max).await?;
    let file = read.file;
    let binary = read.text.is_none();
    let mut text = read.text.unwrap_or_else(|| {
        format!(
            "{} is binary, {} bytes, sha256 {}, {}: a script can read it",
            file.path, file.size, file.sha256, file.mime_type
        )
    });
    if let Some(next) = read.next_offset {
        text += &format!(
            "\n[bytes {offset} to {next} of {}; go on with offset {next}]\n",
            file.size
        );
    }
    Ok(Answer::of(json!({
        "text": text,
        "name": lookup::id(&skill),
        "path": file.path,
        "mime_type": file.mime_type,
        "size": file.size,
        "sha256": file.sha256,
        "binary": binary,
        "next_offset": read.next_offset,
    })))
}

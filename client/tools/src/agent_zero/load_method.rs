//! The method load.

use schemars::JsonSchema;
use serde::Serialize;
use skilld_client::v1::{Skill, SkillFile};

use super::skill_name_resolution;
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::hooks::{LoadedSkill, UnloadedSkill};
use crate::package_warnings::describe_missing_packages;
use crate::prompt::untrusted_text::one_line;
use crate::skill_lookup;
use crate::skill_text_tag::wrap_in_tag;
use crate::state::agent_zero;

/// Maximum number of files that a text lists. All of them are beside it.
const FILES_SHOWN_MAX: usize = 80;
/// Folders that come first, in this order; files of the root come before them, all others after.
const FOLDERS: [&str; 5] = ["scripts", "references", "assets", "templates", "docs"];

/// Result of `load`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LoadResult {
    /// For the model.
    text: String,
    name: String,
    version: String,
    digest: String,
    /// All files of the skill.
    files: Vec<FileEntry>,
    /// Skills that are not loaded any more, to make room.
    evicted: Vec<String>,
}

/// File of a skill.
#[derive(Debug, Serialize, JsonSchema)]
struct FileEntry {
    path: String,
    size: i64,
    binary: bool,
}

pub(super) async fn load_skill(call: CallContext<'_>, name: &str) -> CallResult {
    let (tools, scope) = (call.tools, call.scope());
    let mut choice = skill_name_resolution::parse_choice(name);
    call.before_load(&mut choice).await?;
    let skill = skill_name_resolution::find_skill(tools, &choice).await?;
    let pinned = skill_lookup::pinned_reference(&skill);
    let skill = match tools.options.runs_commands() {
        true => skill_lookup::find_skill_to_load(tools, &pinned).await?,
        false => skill,
    };
    let mut files = skill_lookup::list_files(tools, &pinned, "").await?;
    files.retain(|file| file.path != "SKILL.md");
    files.sort_by_cached_key(|file| (folder_rank(&file.path), file.path.clone()));
    let id = skill_lookup::skill_id(&skill);
    let max = tools.options.max_loaded_skills;
    let loaded = match skill_name_resolution::has_version(&choice) {
        true => agent_zero::load_version(call.state, scope, &id, &skill.digest, max),
        false => agent_zero::load(call.state, scope, &id, max),
    };
    let mut report = LoadedSkill {
        skill_id: id.clone(),
        version: skill.version.clone(),
        digest: skill.digest.clone(),
        content: describe_skill(&skill, &files),
        tools_loaded: Vec::new(),
    };
    let leaving = loaded.names.iter().map(|id| UnloadedSkill {
        skill_id: id.clone(),
        ..UnloadedSkill::default()
    });
    let leaving: Vec<UnloadedSkill> = leaving.collect();
    call.complete_load(&mut report, &leaving).await?;
    let mut text = report.content;
    if !loaded.names.is_empty() {
        let evicted = loaded.names.join(", ");
        text += &format!("\nNo longer loaded, to make room: {evicted}\n");
    }
    if let Some(warning) = describe_missing_packages(&skill) {
        text += &format!("\nNote: {warning}\n");
    }
    let files = files.into_iter().map(|file| FileEntry {
        path: file.path,
        size: file.size,
        binary: !file.is_text,
    });
    let result = LoadResult {
        text,
        name: id,
        version: skill.version,
        digest: skill.digest,
        files: files.collect(),
        evicted: loaded.names,
    };
    Ok(ToolAnswer::with(&result, loaded.delta))
}

/// Returns the position of a file's folder in listings.
fn folder_rank(path: &str) -> usize {
    let Some((folder, _)) = path.split_once('/') else {
        return 0;
    };
    let known = FOLDERS.iter().position(|known| *known == folder);
    known.map_or(FOLDERS.len() + 1, |at| at + 1)
}

/// Returns the text that the model gets: the fields of the skill, its instructions and its files.
fn describe_skill(skill: &Skill, files: &[SkillFile]) -> String {
    let id = skill_lookup::skill_id(skill);
    let source = match (skill.root.as_str(), skill.source.as_str()) {
        ("", source) | (source, "") => source.to_owned(),
        (root, source) => format!("{root} ({source})"),
    };
    let allowed = match (skill.restricts_tools, skill.allowed_tools.is_empty()) {
        (true, true) => "none".to_owned(),
        _ => skill.allowed_tools.join(", "),
    };
    let mut text = String::new();
    for (name, value) in [
        ("Skill", &id),
        ("Source", &source),
        ("Path", &format!("/workspace/skills/{id}")),
        ("Version", &skill.version),
        ("Digest", &skill.digest),
        ("Author", &skill.author),
        ("License", &skill.license),
        ("Compatibility", &skill.compatibility),
        ("Tags", &skill.tags.join(", ")),
        ("Allowed tools", &allowed),
        ("Triggers", &skill.triggers.join(", ")),
        ("Description", &skill.description),
    ] {
        if !value.is_empty() {
            text += &format!("{name}: {}\n", one_line(value));
        }
    }
    let body = match skill.body.trim() {
        "" => "(empty)",
        body => body,
    };
    text += &format!("\n{}\nFiles:\n", wrap_in_tag(skill, None, body));
    if files.is_empty() {
        text += "(none)\n";
    }
    for file in files.iter().take(FILES_SHOWN_MAX) {
        text += &format!("- {}\n", one_line(&file.path));
    }
    if files.len() > FILES_SHOWN_MAX {
        let more = files.len() - FILES_SHOWN_MAX;
        text += &format!("and {more} more, which read_file reads too\n");
    }
    text
}

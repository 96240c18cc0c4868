//! Method `load`: loads a skill, and answers with its instructions and its files.

use schemars::JsonSchema;
use serde::Serialize;
use skilld_client::v1::{Skill, SkillFile};
use skilld_common::excerpts::cut_chars;

use super::skill_name_resolution;
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::hooks::{LoadedSkill, UnloadedSkill};
use crate::package_warnings::describe_missing_packages;
use crate::prompt::untrusted_text::one_line;
use crate::result_budget::{cut_instructions, json_bytes, take_fitting};
use crate::skill_lookup;
use crate::skill_text_tag::wrap_in_tag;
use crate::state::agent_zero;

/// Maximum number of files that a text lists, which is Agent Zero's, and maximum size of their names in bytes of JSON.
const FILES_SHOWN_MAX: usize = 80;
const FILES_BYTES_MAX: usize = 8 * 1024;
/// Maximum size of the list of files beside the text, in bytes of JSON.
const ENTRIES_BYTES_MAX: usize = 12 * 1024;
/// Maximum number of characters of a field of the skill.
const FIELD_CHARS_MAX: usize = 1100;
/// Advice on reading instructions that a result has no room for.
const REST: &str = "read_file with file_path SKILL.md reads all of it in parts";
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
    /// Files of the skill.
    files: Vec<FileEntry>,
    /// Number of files that `files` has no room for; `read_file` reads them too.
    #[serde(skip_serializing_if = "is_zero")]
    files_left_out: usize,
    /// Skills that are not loaded any more, to make room.
    evicted: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// File of a skill.
#[derive(Debug, Serialize, JsonSchema)]
struct FileEntry {
    path: String,
    size: i64,
    binary: bool,
}

pub(crate) async fn load_skill(call: CallContext<'_>, name: &str) -> CallResult {
    let (tools, scope) = (call.tools, call.scope());
    let mut choice = skill_name_resolution::parse_choice(name);
    call.before_load(&mut choice).await?;
    let skill = skill_name_resolution::find_skill(call.context, &choice).await?;
    let pinned = skill_lookup::pinned_reference(&skill);
    let skill = match tools.options.runs_commands() {
        true => skill_lookup::find_skill_to_load(call.context, &pinned).await?,
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
        content: describe_skill(&skill, &files, tools.options.runs_commands()),
        tools_loaded: Vec::new(),
    };
    let leaving: Vec<UnloadedSkill> = loaded
        .names
        .iter()
        .map(|id| UnloadedSkill {
            skill_id: id.clone(),
            ..UnloadedSkill::default()
        })
        .collect();
    call.complete_load(&mut report, &leaving).await?;
    let mut text = report.content;
    if !loaded.names.is_empty() {
        let evicted = loaded.names.join(", ");
        text += &format!("\nNo longer loaded, to make room: {evicted}\n");
    }
    if let Some(warning) = describe_missing_packages(&skill) {
        text += &format!("\nNote: {warning}\n");
    }
    let total = files.len();
    let entries = files.into_iter().map(|file| FileEntry {
        path: file.path,
        size: file.size_bytes,
        binary: !file.is_text,
    });
    let files: Vec<FileEntry> = take_fitting(entries, ENTRIES_BYTES_MAX, json_bytes).collect();
    let result = LoadResult {
        text,
        name: id,
        version: skill.version,
        digest: skill.digest,
        files_left_out: total - files.len(),
        files,
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

/// Returns the text that the model gets: the fields of the skill, its instructions and its files. Only commands find
/// its folder.
fn describe_skill(skill: &Skill, files: &[SkillFile], runs_commands: bool) -> String {
    let id = skill_lookup::skill_id(skill);
    let folder = match runs_commands {
        true => format!("/workspace/skills/{id}"),
        false => String::new(),
    };
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
        ("Path", &folder),
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
            let line = cut_chars(&one_line(value), FIELD_CHARS_MAX);
            text += &format!("{name}: {line}\n");
        }
    }
    let body = match skill.body.trim() {
        "" => "(empty)".to_owned(),
        body => cut_instructions(body, REST),
    };
    text += &format!("\n{}\nFiles:\n", wrap_in_tag(skill, None, &body));
    if files.is_empty() {
        text += "(none)\n";
    }
    let paths = files
        .iter()
        .map(|file| file.path.as_str())
        .take(FILES_SHOWN_MAX);
    let first: Vec<&str> = take_fitting(paths, FILES_BYTES_MAX, json_bytes).collect();
    for path in &first {
        text += &format!("- {}\n", one_line(path));
    }
    if files.len() > first.len() {
        let more = files.len() - first.len();
        text += &format!("and {more} more, which read_file reads too\n");
    }
    text
}

//! The methods load and read_file.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use skilld_proto::v1::{Skill, SkillFile};

use super::marked::tagged;
use super::{Arguments, names};
use crate::prompt::clean::one_line;
use crate::state::{SessionState, agent_zero};
use crate::tools::hooks::{self, LoadedSkill, UnloadedSkill};
use crate::tools::{Answer, Inner, Session, ToolError, lookup};

/// Files that a text lists. All of them are beside it.
const FILES_SHOWN_MAX: usize = 80;
/// Folders that come first, in this order; files of the root come before them, all others after.
const FOLDERS: [&str; 5] = ["scripts", "references", "assets", "templates", "docs"];

/// What `load` returns.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Loaded {
    /// For the model.
    text: String,
    name: String,
    version: String,
    digest: String,
    /// All of them.
    files: Vec<File>,
    /// Skills that are not loaded any more, to make room.
    evicted: Vec<String>,
}

/// One file of a skill.
#[derive(Debug, Serialize, JsonSchema)]
struct File {
    path: String,
    size: i64,
    binary: bool,
}

/// What `read_file` returns.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Content {
    /// For the model.
    text: String,
    name: String,
    /// The file's own path, however it was asked for.
    path: String,
    mime_type: String,
    /// Of the whole file.
    size: i64,
    sha256: String,
    binary: bool,
    /// Where to go on reading.
    next_offset: Option<u64>,
}

pub(super) async fn load(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    name: &str,
) -> Result<Answer, ToolError> {
    let mut choice = names::parse(name);
    let hook = tools.hooks.before_skill_load(session, &mut choice).await;
    hook.map_err(hooks::refused)?;
    let skill = names::find(tools, &choice).await?;
    let pinned = lookup::pinned(&skill);
    let mut files = lookup::files(tools, &pinned, "").await?;
    files.retain(|file| file.path != "SKILL.md");
    files.sort_by_cached_key(|file| (place(&file.path), file.path.clone()));
    let id = lookup::id(&skill);
    let scope = agent_zero::scope(&session.agent);
    let max = tools.options.max_loaded_skills;
    let loaded = match names::asks_for_a_version(&choice) {
        true => agent_zero::load_version(state, scope, &id, &skill.digest, max),
        false => agent_zero::load(state, scope, &id, max),
    };
    let mut told = LoadedSkill {
        skill_id: id.clone(),
        version: skill.version.clone(),
        digest: skill.digest.clone(),
        content: text(&skill, &files),
        tools_loaded: Vec::new(),
    };
    with_hooks(tools, session, &loaded.names, &mut told).await?;
    let mut text = told.content;
    if !loaded.names.is_empty() {
        let evicted = loaded.names.join(", ");
        text += &format!("\nNo longer loaded, to make room: {evicted}\n");
    }
    let files = files.into_iter().map(|file| File {
        path: file.path,
        size: file.size,
        binary: !file.is_text,
    });
    Ok(Answer {
        result: json!(Loaded {
            text,
            name: id,
            version: skill.version,
            digest: skill.digest,
            files: files.collect(),
            evicted: loaded.names,
        }),
        delta: loaded.delta,
    })
}

/// All hooks but the first, in the order in which sherma's loads call them.
async fn with_hooks(
    tools: &Inner,
    session: &Session,
    evicted: &[String],
    told: &mut LoadedSkill,
) -> Result<(), ToolError> {
    for id in evicted {
        hooks::may_go(tools, session, id, String::new()).await?;
    }
    let hook = tools.hooks.after_skill_load(session, told).await;
    hook.map_err(hooks::refused)?;
    for id in evicted {
        let unloaded = UnloadedSkill {
            skill_id: id.clone(),
            ..UnloadedSkill::default()
        };
        let hook = tools.hooks.after_skill_unload(session, &unloaded).await;
        hook.map_err(hooks::refused)?;
    }
    Ok(())
}

fn place(path: &str) -> usize {
    let Some((folder, _)) = path.split_once('/') else {
        return 0;
    };
    let known = FOLDERS.iter().position(|known| *known == folder);
    known.map_or(FOLDERS.len() + 1, |at| at + 1)
}

fn text(skill: &Skill, files: &[SkillFile]) -> String {
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
            text += &format!("{name}: {}\n", one_line(&value));
        }
    }
    let body = match skill.body.trim() {
        "" => "(empty)",
        body => body,
    };
    text += &format!("\n{}\nFiles:\n", tagged(skill, None, body));
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

pub(super) async fn read_file(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    arguments: &Arguments,
) -> Result<Answer, ToolError> {
    let (path, offset) = (arguments.file_path.trim(), arguments.offset);
    if path.is_empty() {
        return Err(ToolError::arguments(
            "file_path is empty: use one that the method load shows",
        ));
    }
    let scope = agent_zero::scope(&session.agent);
    let skill = names::find_loaded(tools, state, scope, &arguments.skill_name).await?;
    let max = tools.options.primary_bytes_max;
    let read = lookup::read(tools, &lookup::pinned(&skill), path, offset, max).await?;
    let file = read.file;
    let binary = read.text.is_none();
    let mut text = match read.text {
        Some(text) => tagged(&skill, Some(&file.path), &text),
        None => format!(
            "{} is binary, {} bytes, sha256 {}, {}: a script can read it",
            one_line(&file.path),
            file.size,
            file.sha256,
            file.mime_type
        ),
    };
    if let Some(next) = read.next_offset {
        text += &format!(
            "[bytes {offset} to {next} of {}; go on with offset {next}]\n",
            file.size
        );
    }
    Ok(Answer::of(json!(Content {
        text,
        name: lookup::id(&skill),
        path: file.path,
        mime_type: file.mime_type,
        size: file.size,
        sha256: file.sha256,
        binary,
        next_offset: read.next_offset,
    })))
}

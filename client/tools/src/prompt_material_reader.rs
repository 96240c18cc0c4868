//! Prompt material of a session, for every family: a line for every skill, and the texts of the loaded ones.

use std::collections::{HashMap, HashSet};

use skilld_client::v1::{Skill, SkillFile};

use crate::call_context::{SessionContext, ToolsetContext};
use crate::output_collection::join_paths;
use crate::prompt::{self, LoadedContent, PromptBudget, PromptMaterial, SkillDoc, SkillSummary};
use crate::result_budget::{TEXT_BYTES_MAX, json_bytes};
use crate::skill_lookup::{self, pinned_reference, skill_id, skill_reference};
use crate::staged_uploads::StagedUploads;
use crate::state::{Selection, agent_zero, sherma, skill_loads};
use crate::tool_definition::Family;
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;

/// Maximum size of one document in bytes; the rest is left to `read_file`. No document of a skill that people wrote is
/// nearly as long.
const DOCUMENT_BYTES_MAX: u64 = 1024 * 1024;
/// Limits on the documents of one skill in a prompt.
const PROMPT_LIMITS: DocumentLimits = DocumentLimits {
    text_bytes: 4 * 1024 * 1024,
    frame_bytes: u64::MAX,
};
/// Limits on the documents of one skill in a result.
const RESULT_LIMITS: DocumentLimits = DocumentLimits {
    text_bytes: TEXT_BYTES_MAX as u64,
    frame_bytes: 16 * 1024,
};
/// Size of the tags and headings around one document, which name its path three times, in bytes.
const FRAME_BYTES: u64 = 224;
/// Bytes by which a document may be longer than its file, since placeholders in it become paths.
const PATHS_BYTES: u64 = 4096;
/// Maximum growth of a text of another encoding when it becomes UTF-8.
const UTF8_GROWTH_MAX: u64 = 3;
/// Maximum number of attempts to read a skill that changes meanwhile.
const ATTEMPTS_MAX: usize = 3;

/// Limits on the documents of one skill.
#[derive(Clone, Copy)]
struct DocumentLimits {
    /// Maximum size of all their texts, in bytes.
    text_bytes: u64,
    /// Maximum size of what stands around the texts, in bytes. Documents beyond it are left out.
    frame_bytes: u64,
}

/// Request for the text of a loaded skill.
struct SkillContentRequest {
    /// Name as the state has it.
    name: String,
    /// Reference of the skill for the daemon.
    reference: String,
    /// Selected documents.
    documents: Option<Selection>,
    /// Tools that the load brought; `None` for those that the skill declares.
    tools: Option<Vec<String>>,
    /// Selected tools.
    selected: Option<Selection>,
}

/// Reads the material of a prompt: a line for each visible skill, and the content of the loaded ones, least recently
/// used first. A loaded skill that is gone, cannot be used or exceeds the limit is left out, which the injection
/// reports; so is a document that is gone.
pub(crate) async fn read_material(context: SessionContext<'_>) -> ToolResult<PromptMaterial> {
    let overview: Vec<SkillSummary> = skill_lookup::list_current_skills(context)
        .await?
        .into_iter()
        .map(|skill| SkillSummary {
            name: skill_id(&skill),
            description: skill_lookup::described(&skill),
        })
        .collect();
    let names: HashSet<&str> = overview.iter().map(|skill| skill.name.as_str()).collect();
    let mut requests = loaded_requests(context);
    // A version that was loaded may exist though its skill is gone, and only then is worth a request.
    requests
        .retain(|wanted| wanted.reference != wanted.name || names.contains(wanted.name.as_str()));
    let loaded = requests
        .into_iter()
        .map(|wanted| read_content(context, wanted));
    Ok(PromptMaterial {
        loaded: skill_lookup::collect_found(loaded).await?,
        overview,
        uploads: StagedUploads::default(),
    })
}

/// Returns the names and references of the loaded skills that count, least recently used first.
pub(crate) fn loaded_references(context: SessionContext<'_>) -> Vec<(String, String)> {
    let requests = loaded_requests(context).into_iter();
    requests
        .map(|request| (request.name, request.reference))
        .collect()
}

/// Returns the content requests of the loaded skills that count, in the form of their family.
fn loaded_requests(context: SessionContext<'_>) -> Vec<SkillContentRequest> {
    match context.tools.options.family {
        Family::Sherma => sherma_requests(context),
        Family::Trpc | Family::AgentZero => named_requests(context),
    }
}

/// Returns the content requests of trpc's and Agent Zero's loaded skills.
fn named_requests(context: SessionContext<'_>) -> Vec<SkillContentRequest> {
    let (state, scope) = (context.state, context.scope());
    let names = context.active_skills().into_iter();
    let requests = names.map(|name| SkillContentRequest {
        reference: match context.tools.options.family {
            Family::AgentZero => agent_zero::reference(state, scope, &name),
            Family::Trpc | Family::Sherma => name.clone(),
        },
        documents: skill_loads::docs(state, scope, &name),
        tools: None,
        selected: skill_loads::tools(state, scope, &name),
        name,
    });
    requests.collect()
}

/// Returns the content requests of sherma's loaded skills: one version each, without documents.
fn sherma_requests(context: SessionContext<'_>) -> Vec<SkillContentRequest> {
    let options = &context.tools.options;
    let loads = sherma::LoadedSkills::read(context.state, &context.session.agent)
        .only(|id| options.shows(id));
    let over = loads.over(options.max_loaded_skills).count();
    let requests = loads
        .iter()
        .skip(over)
        .map(|(id, load)| SkillContentRequest {
            name: id.to_owned(),
            reference: match load.digest.starts_with("sha256:") {
                true => skill_reference(id, &load.digest),
                false => skill_reference(id, &load.version),
            },
            documents: None,
            tools: Some(load.tools.clone()),
            selected: None,
        });
    requests.collect()
}

/// Reads the content of a skill, all of it from one digest; `None` if the skill cannot be read.
async fn read_content(
    context: SessionContext<'_>,
    wanted: SkillContentRequest,
) -> ToolResult<Option<LoadedContent>> {
    for _ in 0..ATTEMPTS_MAX {
        let Some(skill) = skill_lookup::find_usable_skill(context, &wanted.reference).await? else {
            return Ok(None);
        };
        match read_loaded_content(context.tools, skill, &wanted, PROMPT_LIMITS).await {
            Ok((loaded, _)) => return Ok(Some(loaded)),
            // The skill has changed since, and its earlier content is gone.
            Err(error) if error.is_of_skill() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Reads the content of a skill that was looked up, with documents within the limits. Returns it with the paths of the
/// documents that are left out.
async fn read_loaded_content(
    tools: &ToolsetContext,
    skill: Skill,
    wanted: &SkillContentRequest,
    limits: DocumentLimits,
) -> ToolResult<(LoadedContent, Vec<String>)> {
    let chosen = wanted.documents.as_ref();
    let (docs, left_out) = read_documents(tools, &skill, chosen, limits).await?;
    let declared = wanted.tools.clone().unwrap_or_else(|| skill.tools.clone());
    let loaded = LoadedContent {
        dir: match tools.options.runs_commands() {
            true => format!("/workspace/skills/{}", skill_id(&skill)),
            false => String::new(),
        },
        reader: name_reader(&tools.options).to_owned(),
        name: wanted.name.clone(),
        digest: skill.digest,
        body: skill.body,
        docs,
        unavailable_tools: unavailable_tools(tools, &declared, wanted.selected.as_ref()),
        tools: declared,
    };
    Ok((loaded, left_out))
}

/// Returns the tool that reads a skill's files as a prompt names it; empty if none is offered.
fn name_reader(options: &ToolOptions) -> &'static str {
    match options.family {
        Family::Trpc if options.offers_read_file() => "read_file",
        Family::Sherma if options.lists("load_skill_resource") => "load_skill_resource",
        Family::AgentZero => "the method read_file",
        Family::Trpc | Family::Sherma => "",
    }
}

/// Returns the tools, declared or selected, that neither the host nor this family has. The other families' skills bring
/// their tools with them.
fn unavailable_tools(
    tools: &ToolsetContext,
    declared: &[String],
    selected: Option<&Selection>,
) -> Vec<String> {
    if tools.options.family != Family::Trpc {
        return Vec::new();
    }
    let selected = match selected {
        Some(Selection::These(names)) => names.as_slice(),
        Some(Selection::All) | None => &[],
    };
    let all = declared.iter().chain(selected);
    all.filter(|tool| !tools.has_tool(tool)).cloned().collect()
}

/// Text of a loaded skill as a prompt would show it, for hosts that take it from a result.
#[derive(Debug, Default)]
pub(crate) struct InlineSkillText {
    /// Text of the skill; `None` unless the options ask for it and the skill is loaded.
    pub(crate) content: Option<String>,
    /// Selected documents that do not exist.
    pub(crate) unknown_docs: Vec<String>,
    /// Warning about selected documents that the text has no room for.
    pub(crate) warning: Option<String>,
}

/// Reads the text of a skill for the result of a call, in the state that the call leads to.
pub(crate) async fn read_inline_content(
    context: SessionContext<'_>,
    skill: Skill,
) -> ToolResult<InlineSkillText> {
    let (tools, state, scope) = (context.tools, context.state, context.scope());
    let name = skill_id(&skill);
    if !(tools.options.inline_skills && skill_loads::is_loaded(state, scope, &name)) {
        return Ok(InlineSkillText::default());
    }
    let request = SkillContentRequest {
        reference: name.clone(),
        documents: skill_loads::docs(state, scope, &name),
        tools: None,
        selected: skill_loads::tools(state, scope, &name),
        name,
    };
    let (loaded, left_out) = read_loaded_content(tools, skill, &request, RESULT_LIMITS).await?;
    let budget = PromptBudget {
        content: TEXT_BYTES_MAX,
        count: &|text: &str| json_bytes(&text),
        ..PromptBudget::default()
    };
    let content = prompt::loaded_text_within(&loaded, state, scope, &budget);
    let warning = (!left_out.is_empty()).then(|| describe_left_out(&tools.options, &left_out));
    let paths: Vec<String> = loaded
        .docs
        .into_iter()
        .map(|doc| doc.path)
        .chain(left_out)
        .collect();
    let chosen = request.documents;
    Ok(InlineSkillText {
        content: Some(content),
        unknown_docs: chosen.map_or_else(Vec::new, |chosen| chosen.unknown(&paths)),
        warning,
    })
}

/// Returns the warning about documents that a result has no room for.
fn describe_left_out(options: &ToolOptions, paths: &[String]) -> String {
    let names: Vec<&str> = paths.iter().map(String::as_str).collect();
    let (count, names) = (names.len(), join_paths(&names));
    let reading = match options.offers_read_file() {
        true => "read_file reads them, and ",
        false => "",
    };
    format!(
        "content has no room for {count} documents: {names}; {reading}skill_select_docs chooses fewer"
    )
}

/// Reads the selected documents that exist, each with its share of the room. Returns them with the paths of those that
/// are left out.
async fn read_documents(
    tools: &ToolsetContext,
    skill: &Skill,
    chosen: Option<&Selection>,
    limits: DocumentLimits,
) -> ToolResult<(Vec<SkillDoc>, Vec<String>)> {
    let pinned = pinned_reference(skill);
    let mut files: Vec<SkillFile> = match chosen {
        None => return Ok((Vec::new(), Vec::new())),
        Some(Selection::These(paths)) if paths.is_empty() => return Ok((Vec::new(), Vec::new())),
        Some(Selection::All) => skill_lookup::list_documents(tools, &pinned).await?,
        Some(Selection::These(paths)) => {
            let mut files: HashMap<String, SkillFile> =
                skill_lookup::list_files(tools, &pinned, "")
                    .await?
                    .into_iter()
                    .filter(|file| file.is_text)
                    .map(|file| (file.path.clone(), file))
                    .collect();
            let others: Vec<&str> = paths
                .iter()
                .map(String::as_str)
                .filter(|path| !files.contains_key(*path))
                .collect();
            files.extend(skill_lookup::find_shared_files(tools, skill, &others).await?);
            // In their order: what was chosen first has room first.
            paths.iter().filter_map(|path| files.remove(path)).collect()
        }
    };
    let mut room = limits.frame_bytes;
    let fitting = files.iter().take_while(|file| {
        let rest = room.checked_sub(FRAME_BYTES + 3 * file.path.len() as u64);
        room = rest.unwrap_or(0);
        rest.is_some()
    });
    let count = fitting.count();
    let left_out = files.split_off(count);
    let mut room = limits.text_bytes;
    let shares: Vec<(SkillFile, u64)> = files
        .into_iter()
        .map(|file| {
            let mut size = u64::try_from(file.size_bytes).unwrap_or_default();
            if !file.encoding.is_empty() {
                size = size.saturating_mul(UTF8_GROWTH_MAX);
            }
            // Placeholders for the skill's folder become longer when they are replaced.
            let share = match size {
                0 => 0,
                _ => (size + PATHS_BYTES).min(DOCUMENT_BYTES_MAX).min(room),
            };
            room -= share.min(size);
            (file, share)
        })
        .collect();
    let pinned = pinned.as_str();
    let requests = shares
        .into_iter()
        .map(|(file, share)| read_document(tools, pinned, file, share));
    let docs = skill_lookup::collect_found(requests).await?;
    Ok((docs, left_out.into_iter().map(|file| file.path).collect()))
}

/// Reads one document, with a note at its end if it was cut; `None` if it is no text.
async fn read_document(
    tools: &ToolsetContext,
    pinned: &str,
    file: SkillFile,
    share: u64,
) -> ToolResult<Option<SkillDoc>> {
    let mut size = u64::try_from(file.size_bytes).unwrap_or_default();
    let (mut content, mut shown) = (String::new(), 0);
    if share > 0 {
        let max = usize::try_from(share).unwrap_or(usize::MAX);
        let read = match skill_lookup::read_file(tools, pinned, &file.path, 0, max).await {
            Err(ToolError::FileNotFound { .. } | ToolError::InvalidArguments { .. }) => {
                return Ok(None);
            }
            read => read?,
        };
        let Some(text) = read.text else {
            return Ok(None);
        };
        size = u64::try_from(read.size).unwrap_or_default();
        (content, shown) = (text, read.next_offset.unwrap_or(size));
    }
    if shown < size {
        let name = pinned.split_once('@').map_or(pinned, |(name, _)| name);
        let rest = prompt::describe_whole(name, &file.path, name_reader(&tools.options));
        content.push_str(&format!("\n[cut: {shown} of {size} bytes; {rest}]"));
    }
    Ok(Some(SkillDoc {
        path: file.path,
        content,
    }))
}

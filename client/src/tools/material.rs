//! What a prompt of a session is made of, for every family: every skill in a line, and the texts of those that are loaded.

use std::collections::{HashMap, HashSet};

use futures::{StreamExt, TryStreamExt};
use skilld_proto::v1::{Skill, SkillFile};

use crate::prompt::{self, Doc, Loaded, Material, Summary};
use crate::state::{Scope, Selection, SessionState, agent_zero, loading, sherma};
use crate::tools::{Family, Inner, Options, Profile, Session, ToolError, lookup, trpc};

/// Bytes of one document that are read; what follows is left to `read_file`. No document of a skill that people wrote is
/// nearly as long.
const DOC_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes of all documents of one skill, for a prompt and in a result.
const DOCS_BYTES_MAX: u64 = 4 * 1024 * 1024;
const INLINE_BYTES_MAX: u64 = 256 * 1024;
/// Bytes by which a document may be longer than its file since paths in it are.
const PATHS_BYTES: u64 = 4096;
/// A skill that is changed while it is read is read again, so often.
const TRIES: usize = 3;

/// A skill of which the text is wanted.
struct Wanted {
    /// As the state has it.
    name: String,
    /// How the daemon is asked for it.
    reference: String,
    docs: Option<Selection>,
    /// None for those that it declares.
    tools: Option<Vec<String>>,
    /// Tools of it that were selected.
    selected: Option<Selection>,
}

/// Of all skills that the model may see, and of those that are loaded, the longest untouched first. A loaded skill that is
/// not there any more, or cannot be used, or is one too many, is left out, which materialising reports; so is a document.
pub(crate) async fn material(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
) -> Result<Material, ToolError> {
    let overview = lookup::current(tools).await?.into_iter();
    let overview = overview.map(|skill| Summary {
        name: lookup::id(&skill),
        description: skill.description,
    });
    let overview: Vec<Summary> = overview.collect();
    let names: HashSet<&str> = overview.iter().map(|skill| skill.name.as_str()).collect();
    let mut wanted = wanted(tools, session, state);
    // A version that was loaded may still be there though its skill is gone, and only then is worth asking for.
    wanted.retain(|wanted| wanted.reference != wanted.name || names.contains(wanted.name.as_str()));
    let loaded = wanted.into_iter().map(|wanted| of(tools, wanted));
    let loaded = futures::stream::iter(loaded).buffered(lookup::REQUESTS);
    let loaded = loaded.try_filter_map(|skill| async move { Ok(skill) });
    Ok(Material {
        loaded: loaded.try_collect().await?,
        overview,
    })
}

/// The loaded skills that count: those that were touched last, as many as the host wants at once, however many a state
/// has that was merged or comes from elsewhere. The longest untouched is first.
pub(crate) fn active(state: &SessionState, scope: Scope<'_>, options: &Options) -> Vec<String> {
    let mut names = loading::loaded(state, scope);
    // A hidden one takes nobody's place.
    names.retain(|name| options.shows(name));
    match options.loaded_max() {
        0 => names,
        max => names.split_off(names.len().saturating_sub(max)),
    }
}

fn wanted(tools: &Inner, session: &Session, state: &SessionState) -> Vec<Wanted> {
    let options = &tools.options;
    if options.family == Family::Sherma {
        return of_sherma(session, state, options);
    }
    let scope = options.scope(&session.agent);
    let names = active(state, scope, options).into_iter();
    let wanted = names.map(|name| Wanted {
        reference: match options.family {
            Family::AgentZero => agent_zero::reference(state, scope, &name),
            Family::Trpc | Family::Sherma => name.clone(),
        },
        docs: loading::docs(state, scope, &name),
        tools: None,
        selected: loading::tools(state, scope, &name),
        name,
    });
    wanted.collect()
}

/// Its skills are loaded in a version of each, and no documents with them.
fn of_sherma(session: &Session, state: &SessionState, options: &Options) -> Vec<Wanted> {
    let loads = sherma::Loaded::read(state, &session.agent).only(|id| options.shows(id));
    let over = loads.over(options.max_loaded_skills).count();
    let wanted = loads.iter().skip(over).map(|(id, load)| Wanted {
        name: id.to_owned(),
        reference: match load.digest.starts_with("sha256:") {
            true => lookup::reference(id, &load.digest),
            false => lookup::reference(id, &load.version),
        },
        docs: None,
        tools: Some(load.tools.clone()),
        selected: None,
    });
    wanted.collect()
}

/// What a skill says, all of it from the same content; none if it cannot be had.
async fn of(tools: &Inner, wanted: Wanted) -> Result<Option<Loaded>, ToolError> {
    for _ in 0..TRIES {
        let skill = match lookup::skill(tools, &wanted.reference).await {
            Ok(skill) => skill,
            Err(error) if error.is_of_skill() => return Ok(None),
            Err(error) => return Err(error),
        };
        match docs(tools, &skill, wanted.docs.as_ref(), DOCS_BYTES_MAX).await {
            Ok(docs) => {
                let mut loaded = loaded(&tools.options, skill, docs);
                loaded.name = wanted.name;
                loaded.tools = wanted.tools.unwrap_or(loaded.tools);
                loaded.unavailable_tools = unavailable(tools, &loaded.tools, wanted.selected);
                return Ok(Some(loaded));
            }
            // It has changed since, and what it was is nowhere any more.
            Err(error) if error.is_of_skill() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn loaded(options: &Options, skill: Skill, docs: Vec<Doc>) -> Loaded {
    let name = lookup::id(&skill);
    Loaded {
        dir: match runs(options) {
            true => format!("/workspace/skills/{name}"),
            false => String::new(),
        },
        name,
        digest: skill.digest,
        body: skill.body,
        docs,
        tools: skill.tools,
        unavailable_tools: Vec::new(),
    }
}

/// Returns the tools, declared or selected, that neither the host nor this family has. The other families' skills bring
/// their tools with them.
fn unavailable(tools: &Inner, declared: &[String], selected: Option<Selection>) -> Vec<String> {
    if tools.options.family != Family::Trpc {
        return Vec::new();
    }
    let selected = match selected {
        Some(Selection::These(names)) => names,
        Some(Selection::All) | None => Vec::new(),
    };
    let all = declared.iter().cloned().chain(selected);
    all.filter(|tool| !trpc::has_tool(tools, tool)).collect()
}

/// Whether anything that is offered runs something in a skill's folder.
fn runs(options: &Options) -> bool {
    options.profile == Profile::Full
        && match options.family {
            Family::Trpc => ["skill_run", "workspace_exec"]
                .iter()
                .any(|tool| options.lists(tool)),
            Family::Sherma => options.additions && options.lists("run_skill_script"),
            Family::AgentZero => true,
        }
}

/// The text of a loaded skill as a prompt would show it, for hosts that take it from a result.
#[derive(Debug, Default)]
pub(crate) struct Inline {
    /// None unless the options ask for it and the skill is loaded.
    pub(crate) content: Option<String>,
    /// Documents that were chosen and are not there.
    pub(crate) unknown_docs: Vec<String>,
}

pub(crate) async fn inline(
    tools: &Inner,
    state: &SessionState,
    scope: Scope<'_>,
    skill: Skill,
) -> Result<Inline, ToolError> {
    let name = lookup::id(&skill);
    if !(tools.options.inline_skills && loading::is_loaded(state, scope, &name)) {
        return Ok(Inline::default());
    }
    let chosen = loading::docs(state, scope, &name);
    let docs = docs(tools, &skill, chosen.as_ref(), INLINE_BYTES_MAX).await?;
    let paths: Vec<String> = docs.iter().map(|doc| doc.path.clone()).collect();
    let mut loaded = loaded(&tools.options, skill, docs);
    let selected = loading::tools(state, scope, &name);
    loaded.unavailable_tools = unavailable(tools, &loaded.tools, selected);
    Ok(Inline {
        content: Some(prompt::loaded_text(&loaded, state, scope)),
        unknown_docs: chosen.map_or_else(Vec::new, |chosen| chosen.unknown(&paths)),
    })
}

/// The documents that were chosen and are there, each with its share of so many bytes.
async fn docs(
    tools: &Inner,
    skill: &Skill,
    chosen: Option<&Selection>,
    mut room: u64,
) -> Result<Vec<Doc>, ToolError> {
    let pinned = lookup::pinned(skill);
    let files = match chosen {
        None => return Ok(Vec::new()),
        Some(Selection::These(paths)) if paths.is_empty() => return Ok(Vec::new()),
        Some(Selection::All) => lookup::docs(tools, &pinned).await?,
        Some(Selection::These(paths)) => {
            let files = lookup::files(tools, &pinned, "").await?.into_iter();
            let mut files: HashMap<String, SkillFile> = files
                .filter(|file| file.is_text)
                .map(|file| (file.path.clone(), file))
                .collect();
            // In their order: what was chosen first has room first.
            paths.iter().filter_map(|path| files.remove(path)).collect()
        }
    };
    let shares = files.into_iter().map(|file| {
        let size = u64::try_from(file.size).unwrap_or_default();
        // Placeholders for the skill's folder become longer when they are replaced.
        let share = match size {
            0 => 0,
            _ => (size + PATHS_BYTES).min(DOC_BYTES_MAX).min(room),
        };
        room -= share.min(size);
        (file, share)
    });
    let shares: Vec<(SkillFile, u64)> = shares.collect();
    let pinned = pinned.as_str();
    let docs = shares
        .into_iter()
        .map(|(file, share)| doc(tools, pinned, file, share));
    let docs = futures::stream::iter(docs).buffered(lookup::REQUESTS);
    docs.try_filter_map(|doc| async move { Ok(doc) })
        .try_collect()
        .await
}

/// One of them, which says at its end if it is not all of it; none if it is no text after all.
async fn doc(
    tools: &Inner,
    pinned: &str,
    file: SkillFile,
    share: u64,
) -> Result<Option<Doc>, ToolError> {
    let mut size = u64::try_from(file.size).unwrap_or_default();
    let (mut content, mut shown) = (String::new(), 0);
    if share > 0 {
        let max = usize::try_from(share).unwrap_or(usize::MAX);
        let read = match lookup::read(tools, pinned, &file.path, 0, max).await {
            Ok(read) => read,
            Err(ToolError::FileNotFound { .. } | ToolError::InvalidArguments { .. }) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let Some(text) = read.text else {
            return Ok(None);
        };
        size = u64::try_from(read.file.size).unwrap_or_default();
        (content, shown) = (text, read.next_offset.unwrap_or(size));
    }
    if shown < size {
        let name = pinned.split_once('@').map_or(pinned, |(name, _)| name);
        content.push_str(&format!(
            "\n[cut: {shown} of {size} bytes; all of it is in skill://{name}/{}]",
            file.path
        ));
    }
    Ok(Some(Doc {
        path: file.path,
        content,
    }))
}

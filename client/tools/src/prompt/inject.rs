//! Inserts skill text into a request body. The overview is always in the system message; the text of loaded skills is
//! there too, or replaces the results of the calls that loaded them, which keeps the system message the same for the
//! whole conversation. A loaded skill whose result is gone from the history gets a message of its own. A result that
//! reports a skill as loaded which no longer is gets a line that says so.
//!
//! The host sends the body and keeps its own transcript. A body that an earlier injection changed may be the history of
//! the next one: blocks that are there are not repeated, and the message of loaded skills is renewed.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::guidance::Guidance;
use super::message_content::{self, ContentPointer};
use super::prompt_budget::PromptBudget;
use super::prompt_material::{InjectionReport, PromptMaterial};
use super::provider::{MalformedRequest, MessageView, Provider, Role};
use super::skill_blocks::SkillBlocks;
use super::skill_load_history::{self, SkillLoadResult};
use super::skill_overview;
use super::untrusted_text::one_line;
use super::user_files;
use crate::state::{self, LoadScope, SessionState};
use crate::tool_definition::Family;

/// First words of the message for loaded skills whose results are gone.
const FALLBACK_PREFIX: &str = "Loaded skill context:\n\n[Loaded] ";

/// Start and end of the tag around the text of a skill.
const TAG_BEGIN: &str = "\n<skill id=\"";
const TAG_END: &str = "\n</skill>";

/// Text after an overview or a skill's block that makes it a longer one.
const CONTINUATIONS: [&str; 3] = ["\n- ", "\nTools selected: ", "\n\n[Doc] "];

/// Place of the text of loaded skills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The system message.
    #[default]
    System,
    /// The last result of `skill_load`, `skill_select_docs`, `load_skill_md` or the `load` of `skills_tool` of each
    /// skill that is loaded; where a result holds the text already nothing is added.
    ToolResults,
}

/// Options of an injection: scope, tool family, placement, guidance and size limits.
#[derive(Clone, Copy, Debug)]
pub struct PromptOptions<'a> {
    /// Agent and load mode whose skills are shown.
    pub scope: LoadScope<'a>,
    /// Family of the tools that loaded them.
    pub family: Family,
    /// Place of their text.
    pub placement: Placement,
    /// Text on how to work with skills.
    pub guidance: Guidance<'a>,
    /// Maximum size of the text.
    pub budget: PromptBudget<'a>,
    /// `true` if a summary replaces the older part of the history. The summary then speaks of results that are gone,
    /// and no message is made for them unless one of the next two options is set.
    pub has_summary: bool,
    /// `true` if results of tools were taken out of the history, so that the summary does not speak of them.
    pub results_were_compacted: bool,
    /// `true` to make the message for results that are gone even if there is a summary.
    pub fallback_despite_summary: bool,
}

impl<'a> PromptOptions<'a> {
    /// Returns options that put everything into the system message, without guidance and with the default
    /// budget, for the default family.
    #[must_use]
    pub fn new(scope: LoadScope<'a>) -> Self {
        Self {
            scope,
            family: Family::default(),
            placement: Placement::default(),
            guidance: Guidance::default(),
            budget: PromptBudget::default(),
            has_summary: false,
            results_were_compacted: false,
            fallback_despite_summary: false,
        }
    }

    fn leaves_to_summary(&self) -> bool {
        self.has_summary && !self.results_were_compacted && !self.fallback_despite_summary
    }
}

/// Inserts the overview and the text of loaded skills into a request body, in place. The same state, material and body
/// give the same bytes; everything else in the body stays as it is.
///
/// # Errors
///
/// [`MalformedRequest`] if the body is no request of this provider; it is not changed then.
pub fn inject(
    provider: Provider,
    body: &mut Value,
    material: &PromptMaterial,
    state: &SessionState,
    options: &PromptOptions<'_>,
) -> Result<InjectionReport, MalformedRequest> {
    provider.check(body)?;
    let mut report = InjectionReport::default();
    let fallback_index = remove_fallback(provider, body)?;
    let views = provider.messages(body)?;
    let shown = system_texts(&views, body);
    let mut system = new_overview(material, &shown, options, &mut report);
    let user_files = user_files::render_user_files(&material.uploads);
    if !user_files.is_empty() && !has_block_in(&shown, &user_files) {
        system.push_str(&user_files);
    }
    let loaded = state::loaded(state, options.family, options.scope);
    let loads = skill_load_history::loads(&views, body);
    let gone: Vec<(ContentPointer, String)> = loads
        .iter()
        .filter(|load| !loaded.contains(&load.skill))
        .filter(|load| skill_load_history::claims_loaded(&load.text, &load.skill))
        .map(|load| (load.content.clone(), gone_line(&load.skill)))
        .collect();
    let scope = (state, options.scope);
    let mut blocks = SkillBlocks::select(&material.loaded, loaded, scope, &mut report);
    let results = match options.placement {
        Placement::System => HashMap::new(),
        Placement::ToolResults => last_results(&loads),
    };
    if options.placement == Placement::ToolResults && options.leaves_to_summary() {
        let mut left = blocks.names();
        left.retain(|name| !results.contains_key(name));
        blocks.retain(|name| results.contains_key(name));
        report.left_to_summary = left;
    }
    report.shown = blocks.names();
    if options.placement == Placement::ToolResults {
        blocks.skip_shown(&loads);
    }
    let (mut orphans, mut replaced) = (String::new(), Vec::new());
    for (name, text) in blocks.render(&options.budget, &mut report) {
        match (options.placement, results.get(&name)) {
            (Placement::System, _) if has_block_in(&shown, &text) => {}
            (Placement::System, _) => system.push_str(&text),
            (Placement::ToolResults, Some(place)) => replaced.push((place, name, text)),
            (Placement::ToolResults, None) => orphans.push_str(&text),
        }
    }
    for (place, line) in &gone {
        if let Some(text) = place.get_mut(body).and_then(message_content::sole_text_mut) {
            line.clone_into(text);
        }
    }
    for (place, name, text) in replaced {
        put_into_result(provider, body, place, (&name, &text));
    }
    let shifted = usize::from(append_to_system(provider, body, &system)?);
    if !orphans.is_empty() {
        // Each text begins with an empty line.
        let text = format!("Loaded skill context:\n{orphans}");
        insert_fallback(provider, body, fallback_index.map(|at| at + shifted), &text)?;
    }
    Ok(report)
}

/// Returns the overview; empty if the system message has the very same text already.
fn new_overview(
    material: &PromptMaterial,
    system: &[&str],
    options: &PromptOptions<'_>,
    report: &mut InjectionReport,
) -> String {
    let mut text = skill_overview::render_overview(
        &material.overview,
        options.family,
        &options.budget,
        report,
    );
    let guidance = options.guidance.text().trim();
    if !text.is_empty() && !guidance.is_empty() {
        text.push_str(&format!("\n{guidance}\n"));
    }
    if !text.is_empty() && has_block_in(system, &text) {
        text.clear();
    }
    text
}

/// Returns the texts of all system messages.
fn system_texts<'a>(views: &[MessageView<'_>], body: &'a Value) -> Vec<&'a str> {
    let system = views.iter().filter(|view| view.is_system());
    system
        .flat_map(|view| message_content::texts(view.content.get(body)))
        .collect()
}

/// Returns `true` if one of the texts has the very same text already, as a block of its own.
fn has_block_in(texts: &[&str], text: &str) -> bool {
    texts.iter().any(|shown| has_block(shown, text.trim()))
}

/// Returns `true` if the text has `block` behind a blank line, and not in the text of a skill, which may quote
/// anything.
fn has_block(text: &str, block: &str) -> bool {
    let mut found = text.match_indices(block);
    found.any(|(start, _)| {
        let (before, rest) = text.split_at(start);
        let after = rest.strip_prefix(block).unwrap_or_default();
        let begins = before.trim_matches('\n').is_empty() || before.ends_with("\n\n");
        // The host may go on in the next line.
        let ends = after.is_empty() || after.starts_with('\n');
        let is_longer = CONTINUATIONS.iter().any(|next| after.starts_with(next));
        begins && ends && !is_longer && !is_in_skill(before, rest)
    })
}

/// Returns `true` if a text is split within the text of a skill. A tag begins a line; elsewhere it is only mentioned. A
/// tag without its end is an example, or was cut off, and holds nothing: no text of a skill has a tag.
fn is_in_skill(before: &str, after: &str) -> bool {
    let is_open = before.rfind(TAG_BEGIN) > before.rfind(TAG_END);
    let end = after.find(TAG_END);
    let is_closed = end.is_some_and(|end| after.find(TAG_BEGIN).is_none_or(|next| end < next));
    is_open && is_closed
}

/// Removes the message that an earlier injection made for results that are gone. Returns its index in the list.
fn remove_fallback(
    provider: Provider,
    body: &mut Value,
) -> Result<Option<usize>, MalformedRequest> {
    let is_fallback = |text: &str| text.starts_with(FALLBACK_PREFIX);
    let views = provider.messages(body)?;
    let system: Vec<(ContentPointer, Option<usize>)> = views
        .iter()
        .filter(|view| view.is_system())
        .map(|view| (view.content.clone(), view.index))
        .collect();
    let mut first = None;
    // From the end, so that the indexes of the others stay right.
    for (place, index) in system.into_iter().rev() {
        if !message_content::texts(place.get(body))
            .into_iter()
            .any(is_fallback)
        {
            continue;
        }
        let Some(content) = place.get_mut(body) else {
            continue;
        };
        message_content::remove_texts(content, is_fallback);
        let is_empty = content.as_array().map_or(content.is_null(), Vec::is_empty);
        if is_empty {
            remove_message(provider, body, &place, index);
        }
        first = index.map(|index| index + usize::from(!is_empty));
    }
    Ok(first)
}

fn remove_message(
    provider: Provider,
    body: &mut Value,
    place: &ContentPointer,
    index: Option<usize>,
) {
    let list = body.get_mut(provider.list_field());
    match (index, list.and_then(Value::as_array_mut)) {
        (Some(index), Some(items)) if index < items.len() => drop(items.remove(index)),
        _ => place.remove(body),
    }
}

/// Returns the place of the last result of each skill.
fn last_results(loads: &[SkillLoadResult]) -> HashMap<String, ContentPointer> {
    let last = loads
        .iter()
        .map(|load| (load.skill.clone(), load.content.clone()));
    last.collect()
}

/// Returns the line that replaces a result which a model would take for "the text is here".
fn gone_line(skill: &str) -> String {
    let name = one_line(skill);
    format!("{name} was loaded earlier and is not now: load it again to read it")
}

/// Appends a text to the first system message of the beginning, else to the first developer message there, else to a
/// new one. Returns `true` if the list has a new first message.
fn append_to_system(
    provider: Provider,
    body: &mut Value,
    text: &str,
) -> Result<bool, MalformedRequest> {
    let text = text.trim_start_matches('\n');
    if text.is_empty() {
        return Ok(false);
    }
    let views = provider.messages(body)?;
    let leading: Vec<&MessageView<'_>> = views.iter().take_while(|view| view.is_system()).collect();
    let first = |role| leading.iter().find(|view| view.role == role);
    let place = first(Role::System)
        .or_else(|| first(Role::Developer))
        .map(|view| view.content.clone());
    if let Some(content) = place.and_then(|place| place.get_mut(body)) {
        message_content::append_text(content, provider.text_type(), text);
        return Ok(false);
    }
    let field = match provider {
        Provider::OpenAiChat => {
            let message = json!({"role": "system", "content": text});
            insert_message(provider, body, 0, message);
            return Ok(true);
        }
        Provider::OpenAiResponses => "instructions",
        Provider::Anthropic => "system",
    };
    if let Some(body) = body.as_object_mut() {
        body.insert(field.to_owned(), text.into());
    }
    Ok(false)
}

/// Inserts the message for results that are gone: at `index`, or after the system messages of the beginning.
fn insert_fallback(
    provider: Provider,
    body: &mut Value,
    index: Option<usize>,
    text: &str,
) -> Result<(), MalformedRequest> {
    if provider == Provider::Anthropic {
        let system = ContentPointer::of_body("system");
        match system.get_mut(body) {
            Some(content @ Value::Null) => *content = text.into(),
            Some(content) => {
                let part = json!({"type": provider.text_type(), "text": text});
                if let Some(parts) = message_content::make_list(content, provider.text_type()) {
                    parts.push(part);
                }
            }
            None => {}
        }
        return Ok(());
    }
    let index = match index {
        Some(index) => index,
        None => {
            let views = provider.messages(body)?;
            let leading = views.iter().take_while(|view| view.is_system());
            leading.filter(|view| view.index.is_some()).count()
        }
    };
    insert_message(
        provider,
        body,
        index,
        json!({"role": "system", "content": text}),
    );
    Ok(())
}

/// Inserts a message into the provider's list; the plain `input` of OpenAI Responses becomes a list.
fn insert_message(provider: Provider, body: &mut Value, index: usize, message: Value) {
    let place = ContentPointer::of_body(provider.list_field());
    let Some(list) = place.get_mut(body) else {
        return;
    };
    if let Some(text) = list.as_str() {
        *list = json!([{"role": "user", "content": text}]);
    } else if list.is_null() {
        *list = json!([]);
    }
    if let Some(items) = list.as_array_mut() {
        items.insert(index.min(items.len()), message);
    }
}

/// Puts a skill's text into a result. A result that says no more than that the skill is loaded is replaced; any other
/// keeps its words before the text.
fn put_into_result(
    provider: Provider,
    body: &mut Value,
    place: &ContentPointer,
    (skill, text): (&str, &str),
) {
    let text = text.trim_start_matches('\n');
    let Some(content) = place.get_mut(body) else {
        return;
    };
    if let Some(only) = message_content::sole_text_mut(content)
        .filter(|only| skill_load_history::is_stub(only, skill))
    {
        text.clone_into(only);
        return;
    }
    message_content::append_text(content, provider.text_type(), text);
}

#[cfg(test)]
mod tests;

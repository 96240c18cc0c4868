//! Inserts skill text into a message history. The overview is always in the system message; the text of loaded skills is
//! there too, or replaces the results of the calls that loaded them, which keeps the system message the same for the
//! whole conversation. A loaded skill whose result is gone from the history gets a message of its own. A result that
//! reports a skill as loaded which no longer is gets a line that says so.
//!
//! The messages are those of the history: nothing here changes the transcript. A message of its own that an earlier
//! answer had is taken for no part of it.

use std::collections::HashMap;

use super::blocks::Blocks;
use super::budget::Budget;
use super::clean::one_line;
use super::guidance::Guidance;
use super::history::{self, At, Load};
use super::material::{Material, Report};
use super::message::{Message, Part, Role, ToolResult};
use super::overview;
use crate::state::{self, Scope, SessionState};
use crate::tools::Family;

/// Beginning of the message that replaces results which are gone.
const FALLBACK: &str = "Loaded skill context:\n\n[Loaded] ";

/// Beginning and end of the tag around the text of a skill.
const TAG_BEGIN: &str = "\n<skill id=\"";
const TAG_END: &str = "\n</skill>";

/// Beginnings of what makes an overview or the block of a skill a longer one.
const CONTINUATIONS: [&str; 3] = ["\n- ", "\nTools selected: ", "\n\n[Doc] "];

/// Place of the text of loaded skills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The system message.
    #[default]
    System,
    /// The last result of `skill_load`, `skill_select_docs`, `load_skill_md` or the `load` of `skills_tool` of each skill
    /// that is loaded; where a result holds the text already nothing is added.
    ToolResults,
}

/// Options of a prompt.
#[derive(Clone, Copy, Debug)]
pub struct PromptOptions<'a> {
    /// Agent and load mode whose skills are shown.
    pub scope: Scope<'a>,
    /// Family of the tools that loaded them.
    pub family: Family,
    /// Place of their text.
    pub placement: Placement,
    /// Text on how to work with skills.
    pub guidance: Guidance<'a>,
    /// Maximum size of the text.
    pub budget: Budget<'a>,
    /// A summary stands for the older part of the history. Then no message is made for results that are gone, since
    /// the summary speaks of them, unless one of the next two says otherwise.
    pub has_summary: bool,
    /// Results of tools were taken out of the history, so that the summary cannot stand for them.
    pub results_were_compacted: bool,
    /// The message is made even so.
    pub fallback_despite_summary: bool,
}

impl<'a> PromptOptions<'a> {
    /// Everything with the system's words, without guidance and bounds, of the default family's skills.
    #[must_use]
    pub fn new(scope: Scope<'a>) -> Self {
        Self {
            scope,
            family: Family::default(),
            placement: Placement::default(),
            guidance: Guidance::default(),
            budget: Budget::default(),
            has_summary: false,
            results_were_compacted: false,
            fallback_despite_summary: false,
        }
    }

    fn leaves_to_summary(&self) -> bool {
        self.has_summary && !self.results_were_compacted && !self.fallback_despite_summary
    }
}

/// Messages for a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Materialised {
    /// Messages that replace those of the history.
    pub messages: Vec<Message>,
    /// Report on the skills that they show.
    pub report: Report,
}

/// Tells of skills in messages: the same state, material and messages give the same bytes.
#[must_use]
pub fn materialise(
    material: &Material,
    state: &SessionState,
    messages: &[Message],
    options: &PromptOptions<'_>,
) -> Materialised {
    let mut report = Report::default();
    let (mut messages, place) = without_fallback(messages);
    let mut system = overview(material, &messages, options, &mut report);
    let loaded = state::loaded(state, options.family, options.scope);
    let loads = history::loads(&messages);
    let gone = loads.iter().filter(|load| !loaded.contains(&load.skill));
    let gone: Vec<(At, String)> = gone
        .filter(|load| history::claims_loaded(&load.text, &load.skill))
        .map(|load| (load.at, gone_line(&load.skill)))
        .collect();
    let scope = (state, options.scope);
    let mut blocks = Blocks::of(&material.loaded, loaded, scope, &mut report);
    let results = match options.placement {
        Placement::System => HashMap::new(),
        Placement::ToolResults => last_of_each(&loads),
    };
    if options.placement == Placement::ToolResults && options.leaves_to_summary() {
        let mut left = blocks.names();
        left.retain(|name| !results.contains_key(name));
        blocks.retain(|name| results.contains_key(name));
        report.left_to_summary = left;
    }
    report.shown = blocks.names();
    if options.placement == Placement::ToolResults {
        blocks.without_told(&loads);
    }
    for (at, line) in &gone {
        replace(&mut messages, *at, line);
    }
    let mut orphans = String::new();
    for (name, text) in blocks.render(&options.budget, &mut report) {
        match (options.placement, results.get(&name)) {
            // An earlier answer that is the history now has it already.
            (Placement::System, _) if system_says(&messages, &text) => {}
            (Placement::System, _) => system.push_str(&text),
            (Placement::ToolResults, Some(at)) => {
                put_into_result(&mut messages, *at, (&name, &text));
            }
            (Placement::ToolResults, None) => orphans.push_str(&text),
        }
    }
    if !orphans.is_empty() {
        // Each text begins with an empty line.
        let text = format!("Loaded skill context:\n{orphans}");
        let place = place.unwrap_or_else(|| leading(&messages).count());
        messages.insert(place.min(messages.len()), Message::text(Role::System, text));
    }
    append_to_system(&mut messages, &system);
    Materialised { messages, report }
}

/// Returns the overview; empty if the system message has the very same text already.
fn overview(
    material: &Material,
    messages: &[Message],
    options: &PromptOptions<'_>,
    report: &mut Report,
) -> String {
    let mut text = overview::render(&material.overview, &options.budget, report);
    let guidance = options.guidance.text().trim();
    if !text.is_empty() && !guidance.is_empty() {
        text.push_str(&format!("\n{guidance}\n"));
    }
    if !text.is_empty() && system_says(messages, &text) {
        text.clear();
    }
    text
}

/// Returns `true` if a system message has the very same text already, as a block of its own.
fn system_says(messages: &[Message], text: &str) -> bool {
    let system = messages.iter().filter(|message| is_system(message));
    let mut parts = system.flat_map(|message| &message.parts);
    parts.any(|part| match part {
        Part::Text(said) => has_block(&said.text, text.trim()),
        Part::File(_) | Part::Call(_) | Part::Result(_) | Part::Other(..) => false,
    })
}

/// Returns `true` if the text has `block` behind a blank line, and not in the text of a skill, which may quote anything.
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

/// Returns `true` if a text is split within the text of a skill. A tag begins a line; elsewhere it is only mentioned. A tag
/// without its end is an example, or was cut off, and holds nothing: no text of a skill has a tag.
fn is_in_skill(before: &str, after: &str) -> bool {
    let is_open = before.rfind(TAG_BEGIN) > before.rfind(TAG_END);
    let end = after.find(TAG_END);
    let is_closed = end.is_some_and(|end| after.find(TAG_BEGIN).is_none_or(|next| end < next));
    is_open && is_closed
}

fn is_system(message: &Message) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

/// Returns the system messages at the beginning. A later one belongs where it is.
fn leading(messages: &[Message]) -> impl Iterator<Item = &Message> {
    messages.iter().take_while(|message| is_system(message))
}

/// Removes the message that an earlier request got for results that are gone, and returns its position. Some providers
/// write all system messages as parts of one.
fn without_fallback(messages: &[Message]) -> (Vec<Message>, Option<usize>) {
    let is_fallback =
        |part: &Part| matches!(part, Part::Text(text) if text.text.starts_with(FALLBACK));
    let (mut place, mut rest) = (None, Vec::with_capacity(messages.len()));
    for message in messages {
        let is_one = is_system(message) && message.parts.iter().any(is_fallback);
        if !is_one {
            rest.push(message.clone());
            continue;
        }
        let mut message = message.clone();
        message.parts.retain(|part| !is_fallback(part));
        if !message.parts.is_empty() {
            rest.push(message);
        }
        place = place.or(Some(rest.len()));
    }
    (rest, place)
}

fn last_of_each(loads: &[Load<'_>]) -> HashMap<String, At> {
    let last = loads.iter().map(|load| (load.skill.clone(), load.at));
    last.collect()
}

/// Returns the line that replaces a result which a model would take for "the text is here".
fn gone_line(skill: &str) -> String {
    let name = one_line(skill);
    format!("{name} was loaded earlier and is not now: load it again to read it")
}

fn append_to_system(messages: &mut Vec<Message>, text: &str) {
    let text = text.trim_start_matches('\n');
    if text.is_empty() {
        return;
    }
    let is = |role| {
        move |message: &Message| message.role == role && !message.to_text().starts_with(FALLBACK)
    };
    let place = leading(messages).position(|message| is(Role::System)(message));
    let developer = || leading(messages).position(|message| is(Role::Developer)(message));
    let place = place.or_else(developer);
    match place.and_then(|place| messages.get_mut(place)) {
        None => messages.insert(0, Message::text(Role::System, text)),
        Some(message) => match message.parts.last_mut() {
            // A list may have marks for the provider's cache on its texts: those stay as they are.
            Some(Part::Text(last)) if !message.extra.list => {
                let gap = if last.text.is_empty() { "" } else { "\n\n" };
                last.text.push_str(&format!("{gap}{text}"));
            }
            _ => message.parts.push(Part::text(text)),
        },
    }
}

fn result_mut(messages: &mut [Message], at: At) -> Option<&mut ToolResult> {
    let message = messages.get_mut(at.message)?;
    match message.parts.get_mut(at.part)? {
        Part::Result(result) => Some(result),
        Part::Text(_) | Part::File(_) | Part::Call(_) | Part::Other(..) => None,
    }
}

/// The words of a result; what else there is of it stays, such as marks for the provider's cache.
fn replace(messages: &mut [Message], at: At, line: &str) {
    if let Some(result) = result_mut(messages, at)
        && let [Part::Text(only)] = result.parts.as_mut_slice()
    {
        line.clone_into(&mut only.text);
    }
}

/// A result that says no more than that the skill is loaded gives way; any other keeps its words before ours.
fn put_into_result(messages: &mut [Message], at: At, (skill, text): (&str, &str)) {
    let text = text.trim_start_matches('\n');
    let Some(ToolResult { parts, extra, .. }) = result_mut(messages, at) else {
        return;
    };
    match parts.as_mut_slice() {
        [Part::Text(only)] if history::is_stub(&only.text, skill) => {
            text.clone_into(&mut only.text);
        }
        [Part::Text(only)] if !extra.list => only.text.push_str(&format!("\n\n{text}")),
        _ => parts.push(Part::text(text)),
    }
}

#[cfg(test)]
mod tests;

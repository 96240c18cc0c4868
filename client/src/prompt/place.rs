//! Where in the messages skills are told of. The overview always stands with the system's words; what loaded skills say
//! stands there too, or in place of the results of the calls that loaded them, which keeps the system's words the same
//! for the whole conversation. A loaded skill whose result is gone from the history is told of in a message of its own.
//! A result that says that a skill is loaded which no longer is says so.
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

/// What the message begins with that stands for results that are gone.
const FALLBACK: &str = "Loaded skill context:\n\n[Loaded] ";

/// Where loaded skills are told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// With the system's words.
    #[default]
    System,
    /// In the last result of `skill_load`, `skill_select_docs`, `load_skill_md` or the `load` of `skills_tool` of each skill
    /// that is loaded; where a result holds the text already nothing is added.
    ToolResults,
}

/// How a prompt is made.
#[derive(Clone, Copy, Debug)]
pub struct PromptOptions<'a> {
    /// Whose skills.
    pub scope: Scope<'a>,
    /// Whose tools loaded them.
    pub family: Family,
    /// Where what they say goes.
    pub placement: Placement,
    /// What is said on how to work with skills.
    pub guidance: Guidance<'a>,
    /// How much room there is.
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
    /// In place of the history's.
    pub messages: Vec<Message>,
    /// What they show of skills.
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

/// Empty where the very same text is there already. Words that merely look like it change nothing.
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

/// Returns `true` if the system says the very same text already.
fn system_says(messages: &[Message], text: &str) -> bool {
    let mut system = messages.iter().filter(|message| is_system(message));
    system.any(|message| message.to_text().contains(text.trim()))
}

fn is_system(message: &Message) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

/// The system's words before anybody else's. What it says later belongs there.
fn leading(messages: &[Message]) -> impl Iterator<Item = &Message> {
    messages.iter().take_while(|message| is_system(message))
}

/// Takes out what an earlier request was given for results that are gone; says where it was. Some providers write all
/// that the system says as parts of one message.
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

/// What a model would otherwise take for "the text is here".
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

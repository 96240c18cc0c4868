//! Where in the messages skills are told of. The overview always stands with the system's words; what loaded skills say
//! stands there too, or in place of the results of the calls that loaded them, which keeps the system's words the same
//! for the whole conversation. A loaded skill whose result is gone from the history is told of in a message of its own.
//!
//! The messages are those of the history, never what an earlier call gave: nothing here changes the transcript.

use std::collections::HashMap;

use super::blocks::Blocks;
use super::budget::Budget;
use super::guidance::Guidance;
use super::history::{self, At};
use super::material::{Material, Report};
use super::message::{Message, Part, Role, ToolResult};
use super::overview;
use crate::state::{Scope, SessionState};

/// What the message begins with that stands for results that are gone.
const FALLBACK: &str = "Loaded skill context:\n\n[Loaded] ";

/// Where loaded skills are told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// With the system's words.
    #[default]
    System,
    /// In the last result of `skill_load` or `skill_select_docs` of each skill that is loaded.
    ToolResults,
}

/// How a prompt is made.
#[derive(Clone, Copy, Debug)]
pub struct PromptOptions<'a> {
    /// Whose skills.
    pub scope: Scope<'a>,
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
    /// Everything with the system's words, without guidance and bounds.
    #[must_use]
    pub fn new(scope: Scope<'a>) -> Self {
        Self {
            scope,
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
    let mut blocks = Blocks::of(&material.loaded, state, options.scope, &mut report);
    let results = match options.placement {
        Placement::System => HashMap::new(),
        Placement::ToolResults => history::last_results(&messages),
    };
    if options.placement == Placement::ToolResults && options.leaves_to_summary() {
        let mut left = blocks.names();
        left.retain(|name| !results.contains_key(name));
        blocks.retain(|name| results.contains_key(name));
        report.left_to_summary = left;
    }
    report.shown = blocks.names();
    let mut orphans = String::new();
    for (name, text) in blocks.render(&options.budget, &mut report) {
        match (options.placement, results.get(&name)) {
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
        let place = place.unwrap_or_else(|| after_system(&messages));
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
    let mut system = messages.iter().filter(|message| is_system(message));
    if !text.is_empty() && system.any(|message| message.to_text().contains(text.trim_end())) {
        text.clear();
    }
    text
}

fn is_system(message: &Message) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

/// Takes out the message that an earlier request was given for results that are gone; says where it was.
fn without_fallback(messages: &[Message]) -> (Vec<Message>, Option<usize>) {
    let is_fallback = |message: &&Message| {
        message.role == Role::System && message.to_text().starts_with(FALLBACK)
    };
    let place = messages.iter().position(|message| is_fallback(&message));
    let rest = messages.iter().filter(|message| !is_fallback(message));
    (rest.cloned().collect(), place)
}

fn after_system(messages: &[Message]) -> usize {
    messages
        .iter()
        .rposition(is_system)
        .map_or(0, |last| last + 1)
}

fn append_to_system(messages: &mut Vec<Message>, text: &str) {
    let text = text.trim_start_matches('\n');
    if text.is_empty() {
        return;
    }
    let is = |role| {
        move |message: &Message| message.role == role && !message.to_text().starts_with(FALLBACK)
    };
    let place = messages.iter().position(is(Role::System));
    let place = place.or_else(|| messages.iter().position(is(Role::Developer)));
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

/// A result that says no more than that the skill is loaded gives way; any other keeps its words before ours.
fn put_into_result(messages: &mut [Message], at: At, (skill, text): (&str, &str)) {
    let part = messages
        .get_mut(at.message)
        .and_then(|message| message.parts.get_mut(at.part));
    let Some(Part::Result(ToolResult { parts, extra, .. })) = part else {
        return;
    };
    let text = text.trim_start_matches('\n');
    let said = match parts.as_slice() {
        [Part::Text(only)] => history::is_stub(&only.text, skill),
        parts => parts.is_empty(),
    };
    if said {
        parts.clear();
    }
    match parts.as_mut_slice() {
        [Part::Text(only)] if !extra.list => only.text.push_str(&format!("\n\n{text}")),
        _ => parts.push(Part::text(text)),
    }
}

#[cfg(test)]
mod tests;

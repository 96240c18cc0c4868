//! Messages on their way to a provider that did not write them: what only their own provider has is left out, and with it
//! what would then be wrong, so that no message is empty and no result is without its call.

use std::borrow::Cow;
use std::collections::HashSet;

use super::message::{Message, Part, Role, ToolResult, Wire};

/// The messages that are written for a provider. Those that were read from it stay as they are.
pub(super) fn portable(messages: &[Message], wire: Wire) -> Vec<Cow<'_, Message>> {
    let lost = lost_calls(messages, wire);
    let mut written: Vec<Cow<'_, Message>> = Vec::with_capacity(messages.len());
    for message in messages {
        let is_own = message.extra.wire == Some(wire);
        let kept = filtered(message, wire, &lost);
        if kept.parts.is_empty() && !is_own {
            continue;
        }
        match written.last_mut().filter(|last| joins(last, &kept, wire)) {
            Some(last) => last.to_mut().parts.extend(kept.into_owned().parts),
            None => written.push(kept),
        }
    }
    written
}

/// Ids of calls of kinds that this provider does not know: their results would answer nothing.
fn lost_calls(messages: &[Message], wire: Wire) -> HashSet<&str> {
    let parts = messages.iter().flat_map(|message| &message.parts);
    let ids = parts.filter_map(|part| match part {
        Part::Other(of, value) if *of != wire => value.get("call_id").or(value.get("id"))?.as_str(),
        Part::Text(_) | Part::File(_) | Part::Call(_) | Part::Result(_) | Part::Other(..) => None,
    });
    ids.collect()
}

fn filtered<'a>(message: &'a Message, wire: Wire, lost: &HashSet<&str>) -> Cow<'a, Message> {
    let is_own = message.extra.wire == Some(wire);
    let keep = |part: &Part| match part {
        Part::Result(result) => is_own || !lost.contains(result.id.as_str()),
        Part::Text(_) | Part::File(_) | Part::Call(_) | Part::Other(..) => {
            has_words(part, wire, is_own)
        }
    };
    let is_whole = |part: &Part| match part {
        Part::Result(result) => {
            let is_own = result.extra.wire == Some(wire);
            let mut parts = result.parts.iter();
            parts.all(|part| has_words(part, wire, is_own))
        }
        Part::Text(_) | Part::File(_) | Part::Call(_) | Part::Other(..) => true,
    };
    let mut parts = message.parts.iter();
    if parts.all(|part| keep(part) && is_whole(part)) {
        return Cow::Borrowed(message);
    }
    let parts = message.parts.iter().filter(|part| keep(part));
    Cow::Owned(Message {
        parts: parts.map(|part| whole(part, wire)).collect(),
        role: message.role,
        author: message.author.clone(),
        extra: message.extra.clone(),
    })
}

fn whole(part: &Part, wire: Wire) -> Part {
    let Part::Result(result) = part else {
        return part.clone();
    };
    let is_own = result.extra.wire == Some(wire);
    let parts = result.parts.iter();
    let parts = parts.filter(|part| has_words(part, wire, is_own));
    Part::Result(ToolResult {
        parts: parts.cloned().collect(),
        id: result.id.clone(),
        is_error: result.is_error,
        extra: result.extra.clone(),
    })
}

/// Blank texts, which some providers write beside calls, are refused by others.
fn has_words(part: &Part, wire: Wire, is_own: bool) -> bool {
    match part {
        Part::Text(text) => is_own || !text.text.trim().is_empty(),
        Part::Other(of, _) => *of == wire,
        Part::File(_) | Part::Call(_) | Part::Result(_) => true,
    }
}

/// Calls that are items of their own with one provider are one message with another, which their results must follow.
fn joins(last: &Message, next: &Message, wire: Wire) -> bool {
    let is_foreign =
        |message: &Message| message.role == Role::Assistant && message.extra.wire != Some(wire);
    let calls = |message: &Message| {
        let mut parts = message.parts.iter();
        parts.any(|part| matches!(part, Part::Call(_)))
    };
    wire != Wire::OpenAiResponses
        && is_foreign(last)
        && is_foreign(next)
        && last.author == next.author
        && (calls(last) || calls(next))
}

//! Dropping what a skill said from a conversation when it was unloaded: its text is found by the tag around it, which no
//! text of a skill can imitate.

use serde_json::Value;

use super::clean::attribute;
use super::message::{Message, Part};

const BEGIN: &str = "<skill id=\"";
const END: &str = "</skill>";

/// The messages without the texts of this content of a skill, as results of tools and prompts hold them: a short note stands
/// in their place. Everything else, and every other skill, stays as it is.
#[must_use]
pub fn without_skill(messages: &[Message], id: &str, digest: &str) -> Vec<Message> {
    let tag = Tag {
        begin: format!("{BEGIN}{}\" ", attribute(id)),
        digest: format!(" digest=\"{}\"", attribute(digest)),
        note: format!(
            "[the text of {} was dropped: it is unloaded]",
            attribute(id)
        ),
    };
    let mut messages = messages.to_vec();
    for message in &mut messages {
        tag.drop_from(&mut message.parts);
    }
    messages
}

struct Tag {
    begin: String,
    digest: String,
    note: String,
}

impl Tag {
    fn drop_from(&self, parts: &mut [Part]) {
        for part in parts {
            match part {
                Part::Text(text) => {
                    if let Some(short) = self.without(&text.text) {
                        text.text = short;
                    }
                }
                Part::Result(result) => self.drop_from(&mut result.parts),
                Part::File(_) | Part::Call(_) | Part::Other(..) => {}
            }
        }
    }

    /// The text without what is in the tag, if it is there: as it stands, or within JSON.
    fn without(&self, text: &str) -> Option<String> {
        if let Ok(mut json @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
            return self.drop_from_json(&mut json).then(|| json.to_string());
        }
        let (mut kept, mut rest, mut dropped) = (String::new(), text, false);
        while let Some((before, inside)) = rest.split_once(&self.begin) {
            let (head, _) = inside.split_once('>').unwrap_or((inside, ""));
            // What was cut off has no end of its own.
            let next = inside.find(BEGIN).unwrap_or(inside.len());
            let end = inside.find(END).filter(|end| *end < next);
            kept.push_str(before);
            match end {
                Some(end) if format!(" {head}").contains(&self.digest) => {
                    kept.push_str(&self.note);
                    rest = inside.get(end + END.len()..).unwrap_or_default();
                    dropped = true;
                }
                Some(_) | None => {
                    kept.push_str(&self.begin);
                    rest = inside;
                }
            }
        }
        kept.push_str(rest);
        dropped.then_some(kept)
    }

    fn drop_from_json(&self, json: &mut Value) -> bool {
        let mut dropped = false;
        match json {
            Value::String(text) => {
                if let Some(short) = self.without(text) {
                    *text = short;
                    dropped = true;
                }
            }
            Value::Array(items) => {
                for item in items {
                    dropped |= self.drop_from_json(item);
                }
            }
            Value::Object(fields) => {
                for (_, item) in fields {
                    dropped |= self.drop_from_json(item);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::prompt::{Role, Wire};

    fn text(id: &str, digest: &str) -> String {
        format!(
            "<skill id=\"{id}\" version=\"1\" digest=\"{digest}\">\n# body of {id} {digest}\n</skill>"
        )
    }

    #[test]
    fn an_unloaded_skills_text_goes_and_nothing_else_does() {
        let result = json!({"outcome": "LOADED", "content": text("letter", "sha256:1"), "n": 1.0});
        let body = json!({"messages": [
            {"role": "system", "content": format!("a {} b {} c", text("letter", "sha256:1"), text("notes", "sha256:1"))},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "load_skill_md", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": result.to_string()},
            {"role": "user", "content": format!("{} and {}", text("letter", "sha256:2"), text("letter-2", "sha256:1"))},
        ]});
        let messages = Wire::OpenAiChat.read(&body).expect("a request");
        let dropped = without_skill(&messages, "letter", "sha256:1");
        let note = "[the text of letter was dropped: it is unloaded]";
        let system = dropped.first().expect("one").to_text();
        assert_eq!(
            system,
            format!("a {note} b {} c", text("notes", "sha256:1"))
        );
        let Some([Part::Result(said)]) = dropped.get(2).map(|message| message.parts.as_slice())
        else {
            panic!("{dropped:?}");
        };
        let said: Value = serde_json::from_str(&said.to_text()).expect("JSON");
        assert_eq!(
            said,
            json!({"outcome": "LOADED", "content": note, "n": 1.0})
        );
        assert_eq!(dropped.get(3), messages.get(3));
        assert_eq!(without_skill(&messages, "other", "sha256:1"), messages);
    }

    #[test]
    fn a_tag_without_an_end_is_left_alone() {
        let cut = "<skill id=\"a\" digest=\"d\">\nthe rest was cut";
        let cut = format!("{cut} {}", text("b", "d"));
        let messages = [Message::text(Role::User, cut)];
        assert_eq!(without_skill(&messages, "a", "d"), messages);
    }
}

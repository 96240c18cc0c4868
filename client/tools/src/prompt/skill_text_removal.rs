//! Removes the text of an unloaded skill from a request body. The text is found by the tag around it, which no text of
//! a skill can imitate.

use serde_json::Value;

use super::message_content::{self, ContentPointer, for_each_text};
use super::provider::{MalformedRequest, Provider};
use super::untrusted_text::attribute;

const BEGIN: &str = "<skill id=\"";
const END: &str = "</skill>";

/// Replaces the texts of an unloaded skill by a short note, in prompts and in results of tools. Everything else in the
/// body stays as it is. `id` is the skill's name, `digest` that of the unloaded content.
///
/// # Errors
///
/// [`MalformedRequest`] if the body is no request of this provider; it is not changed then.
pub fn remove_skill_text(
    provider: Provider,
    body: &mut Value,
    id: &str,
    digest: &str,
) -> Result<(), MalformedRequest> {
    let tag = TextTagAttributes {
        begin: format!("{BEGIN}{}\" ", attribute(id)),
        digest: format!(" digest=\"{}\"", attribute(digest)),
        note: format!(
            "[the text of {} was dropped: it is unloaded]",
            attribute(id)
        ),
    };
    let views = provider.messages(body)?.into_iter();
    let places: Vec<ContentPointer> = views
        .flat_map(|view| {
            let results = view.results.into_iter().map(|result| result.content);
            std::iter::once(view.content).chain(results)
        })
        .collect();
    for place in places {
        if place.get(body).is_null() {
            continue;
        }
        let content = place.get_mut(body);
        for text in content.map(message_content::texts_mut).unwrap_or_default() {
            if let Some(short) = tag.without(text) {
                *text = short;
            }
        }
    }
    Ok(())
}

/// Tag around the text that is removed.
struct TextTagAttributes {
    begin: String,
    digest: String,
    note: String,
}

impl TextTagAttributes {
    /// Returns the text without the contents of the tag, in plain text or within JSON; `None` if it has no such tag.
    fn without(&self, text: &str) -> Option<String> {
        if let Ok(mut json @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
            let mut dropped = false;
            for_each_text(&mut json, &mut |text| {
                if let Some(short) = self.without(text) {
                    *text = short;
                    dropped = true;
                }
            });
            return dropped.then(|| json.to_string());
        }
        let (mut kept, mut rest, mut dropped) = (String::new(), text, false);
        while let Some((before, inside)) = rest.split_once(&self.begin) {
            let (head, _) = inside.split_once('>').unwrap_or((inside, ""));
            // A text that was cut off has no end of its own.
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
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(id: &str, digest: &str) -> String {
        format!(
            "<skill id=\"{id}\" version=\"1\" digest=\"{digest}\">\n# body of {id} {digest}\n</skill>"
        )
    }

    fn without(body: &Value, id: &str, digest: &str) -> Value {
        let mut body = body.clone();
        let removed = remove_skill_text(Provider::OpenAiChat, &mut body, id, digest);
        removed.expect("a request");
        body
    }

    #[test]
    fn removal_leaves_every_other_text_alone() {
        let result = json!({"outcome": "LOADED", "content": text("letter", "sha256:1"), "n": 1.0});
        let body = json!({"messages": [
            {"role": "system", "content": format!("a {} b {} c", text("letter", "sha256:1"), text("notes", "sha256:1"))},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "load_skill_md", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": result.to_string()},
            {"role": "user", "content": format!("{} and {}", text("letter", "sha256:2"), text("letter-2", "sha256:1"))},
        ]});
        let dropped = without(&body, "letter", "sha256:1");
        let note = "[the text of letter was dropped: it is unloaded]";
        assert_eq!(
            dropped["messages"][0]["content"],
            format!("a {note} b {} c", text("notes", "sha256:1"))
        );
        let said = dropped["messages"][2]["content"].as_str().expect("text");
        let said: Value = serde_json::from_str(said).expect("JSON");
        assert_eq!(
            said,
            json!({"outcome": "LOADED", "content": note, "n": 1.0})
        );
        assert_eq!(dropped["messages"][3], body["messages"][3]);
        assert_eq!(without(&body, "other", "sha256:1"), body);
    }

    #[test]
    fn a_tag_without_an_end_is_left_alone() {
        let cut = "<skill id=\"a\" digest=\"d\">\nthe rest was cut";
        let cut = format!("{cut} {}", text("b", "d"));
        let body = json!({"messages": [{"role": "user", "content": cut}]});
        assert_eq!(without(&body, "a", "d"), body);
    }
}

//! What a model is given of a skill that it loads.

use skilld_proto::v1::Skill;

use crate::tools::{Inner, ToolError, lookup};

/// Files that a text lists.
const FILES_SHOWN_MAX: usize = 100;

/// The instructions in a tag that says whose they are. The text cannot close the tag.
pub(super) async fn of(tools: &Inner, skill: &Skill) -> Result<String, ToolError> {
    let files = lookup::files(&tools.client, &lookup::pinned(skill), "").await?;
    let id = lookup::id(skill);
    let mut text = format!(
        "<skill id=\"{}\" version=\"{}\" digest=\"{}\">\n{}\n",
        attribute(&id),
        attribute(&skill.version),
        attribute(&skill.digest),
        skill.body.trim_end()
    );
    text += &format!("\nIts folder, in the workspace: /workspace/skills/{id}\n");
    let shown = files.iter().filter(|file| file.path != "SKILL.md");
    let shown: Vec<&str> = shown.map(|file| file.path.as_str()).collect();
    if !shown.is_empty() {
        text += "Its files:\n";
    }
    for path in shown.iter().take(FILES_SHOWN_MAX) {
        text += &format!("- {path}\n");
    }
    if shown.len() > FILES_SHOWN_MAX {
        text += &format!("and {} more\n", shown.len() - FILES_SHOWN_MAX);
    }
    let (head, body) = text.split_at(text.find('\n').map_or(0, |end| end + 1));
    Ok(format!("{head}{}</skill>", unclosing(body)))
}

fn attribute(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('"', "&quot;");
    text.replace('<', "&lt;").replace('\n', " ")
}

/// With every `</skill`, in any case, made harmless.
fn unclosing(text: &str) -> String {
    const CLOSE: &str = "</skill";
    let lower = text.to_ascii_lowercase();
    let mut safe = String::with_capacity(text.len());
    let mut from = 0;
    for (at, _) in lower.match_indices(CLOSE) {
        safe.push_str(text.get(from..at).unwrap_or_default());
        safe.push_str("&lt;");
        from = at + 1;
    }
    safe.push_str(text.get(from..).unwrap_or_default());
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skills_text_cannot_close_its_tag() {
        assert_eq!(
            unclosing("a </skill> b </SKILL x"),
            "a &lt;/skill> b &lt;/SKILL x"
        );
        assert_eq!(unclosing("İ </Skill>"), "İ &lt;/Skill>");
        assert_eq!(attribute("1\"><x\n"), "1&quot;>&lt;x ");
    }
}

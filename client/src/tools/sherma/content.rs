//! What a model is given of a skill that it loads.

use skilld_proto::v1::Skill;

use crate::prompt::clean::{attribute, one_line, without_tags};
use crate::tools::{Inner, ToolError, lookup};

/// Files that a text lists.
const FILES_SHOWN_MAX: usize = 100;

/// The instructions in a tag that says whose they are. The text can neither end that tag nor begin another one.
pub(super) async fn of(tools: &Inner, skill: &Skill) -> Result<String, ToolError> {
    let files = lookup::files(tools, &lookup::pinned(skill), "").await?;
    let id = lookup::id(skill);
    let body = skill.body.trim_end();
    let mut text = format!("{body}\n\nIts folder, in the workspace: /workspace/skills/{id}\n");
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
    Ok(format!(
        "<skill id=\"{}\" version=\"{}\" digest=\"{}\">\n{}</skill>",
        attribute(&id),
        attribute(&skill.version),
        attribute(&skill.digest),
        without_tags(&text)
    ))
}

/// Note for the model, after the skill's tag, about tools that the skill's card asks for and the host does not have.
pub(super) fn unavailable(tools_missing: &[String]) -> String {
    if tools_missing.is_empty() {
        return String::new();
    }
    let names: Vec<String> = tools_missing.iter().map(|name| one_line(name)).collect();
    format!(
        "\nNot available here, since the host application has registered no tools of its own: {}\n",
        names.join(", ")
    )
}

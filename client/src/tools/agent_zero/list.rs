//! The methods list and search.

use std::fmt::Write as _;

use serde_json::{Value, json};
use skilld_proto::v1::{SearchSkillsRequest, Skill, SkillState};

use crate::tools::{Answer, Inner, ToolError, lookup};

/// Characters of a description.
const DESCRIPTION_CHARS_MAX: usize = 200;
/// Skills that a search shows.
const FOUND_MAX: i32 = 25;

/// All skills, by name and then by source; those that cannot be used after them, with the reason.
pub(super) async fn list(tools: &Inner) -> Result<Answer, ToolError> {
    let mut skills = lookup::skills(tools).await?;
    skills.retain(|skill| skill.state() != SkillState::Shadowed);
    skills.sort_by_cached_key(|skill| (lookup::id(skill).to_lowercase(), skill.root.clone()));
    let (bad, good): (Vec<Skill>, Vec<Skill>) = skills
        .into_iter()
        .partition(|skill| lookup::unusable(skill).is_some());
    let mut text = match good.len() {
        0 => "There are no skills.\n".to_owned(),
        count => format!("{count} skills:\n"),
    };
    for skill in &good {
        text += &line(skill);
    }
    if !bad.is_empty() {
        text += "\nCannot be used:\n";
    }
    for skill in &bad {
        let problem = lookup::unusable(skill).unwrap_or_default();
        text += &format!("- {}: {}\n", lookup::id(skill), short(&problem));
    }
    let unusable = bad
        .iter()
        .map(|skill| json!({"name": lookup::id(skill), "problem": lookup::unusable(skill)}));
    Ok(Answer::of(json!({
        "text": text,
        "skills": good.iter().map(described).collect::<Vec<_>>(),
        "unusable": unusable.collect::<Vec<_>>(),
    })))
}

/// Scored as the other system does: 3, 2 and 1 for each word that is in the name, the description, a tag.
pub(super) async fn search(tools: &Inner, query: &str) -> Result<Answer, ToolError> {
    if query.trim().is_empty() {
        return Err(ToolError::arguments(
            "query is empty: the method search needs some words",
        ));
    }
    let request = SearchSkillsRequest {
        query: query.to_owned(),
        limit: FOUND_MAX,
        compat: true,
    };
    let found = tools
        .client
        .search_skills(request)
        .await?
        .matches
        .into_iter();
    let found = found.filter_map(|found| Some((found.skill?, found.score)));
    let found: Vec<(Skill, f64)> = found
        .filter(|(skill, _)| tools.options.shows(&lookup::id(skill)))
        .collect();
    let mut text = match found.len() {
        0 => format!("No skill matches {query:?}.\n"),
        count => format!("{count} skills match {query:?}:\n"),
    };
    for (skill, _) in &found {
        text += &line(skill);
    }
    let matches = found.iter().map(|(skill, score)| {
        let mut described = described(skill);
        if let Some(fields) = described.as_object_mut() {
            fields.insert("score".into(), json!(score));
        }
        described
    });
    Ok(Answer::of(
        json!({"text": text, "matches": matches.collect::<Vec<_>>()}),
    ))
}

fn described(skill: &Skill) -> Value {
    json!({
        "name": lookup::id(skill),
        "version": skill.version,
        "source": skill.root,
        "tags": skill.tags,
        "author": skill.author,
        "description": skill.description,
    })
}

fn line(skill: &Skill) -> String {
    let mut line = format!("- {}", lookup::id(skill));
    // Writing to a String does not fail.
    if !skill.version.is_empty() {
        let _ = write!(line, " v{}", skill.version);
    }
    if !skill.root.is_empty() {
        let _ = write!(line, " [{}]", skill.root);
    }
    if !skill.tags.is_empty() {
        let _ = write!(line, " tags={}", skill.tags.join(","));
    }
    if !skill.author.is_empty() {
        let _ = write!(line, " by {}", skill.author);
    }
    let _ = writeln!(line, ": {}", short(&skill.description));
    line
}

/// On one line, and cut.
fn short(text: &str) -> String {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if flat.chars().count() <= DESCRIPTION_CHARS_MAX {
        return flat;
    }
    flat.chars()
        .take(DESCRIPTION_CHARS_MAX)
        .chain(['…'])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_whatever_a_description_has() {
        let skill = Skill {
            name: "skills/pdf".into(),
            version: "1.0".into(),
            root: "main".into(),
            tags: vec!["a".into(), "b".into()],
            description: format!("One.\n- two v9: {}", "x".repeat(300)),
            ..Skill::default()
        };
        let line = line(&skill);
        assert!(
            line.starts_with("- pdf v1.0 [main] tags=a,b: One. - two v9: xxx"),
            "{line}"
        );
        assert!(
            line.ends_with("x…\n") && line.matches('\n').count() == 1,
            "{line}"
        );
    }
}

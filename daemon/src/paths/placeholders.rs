//! Placeholders that skills were taught to use for their own folder, replaced with its path in a workspace. Pure.

use super::SKILLS_DIR;

/// Placeholders of the systems that skills come from, outermost form first.
const PLACEHOLDERS: [&str; 4] = [
    "__BASE_DIR__",
    "{baseDir}",
    "${CLAUDE_PLUGIN_ROOT}",
    "${CLAUDE_SKILL_DIR}",
];
/// Maximum number of replacements of each placeholder in one text, so that it cannot grow much.
const REPLACEMENTS_MAX: usize = 2000;

/// Replaces placeholders in text that a model reads, and in one argument of a command.
#[must_use]
pub fn resolve_placeholders(text: &str, skill: &str) -> String {
    replace_all(text, skill, &PLACEHOLDERS)
}

/// Replaces those placeholders that a shell would not replace itself. A skill's name is one of letters, digits and
/// `._-`, so the path means nothing to a shell, within quotes or without.
#[must_use]
pub fn resolve_placeholders_for_shell(text: &str, skill: &str) -> String {
    let (for_shell, _variables) = PLACEHOLDERS.split_at(2);
    replace_all(text, skill, for_shell)
}

fn replace_all(text: &str, skill: &str, placeholders: &[&str]) -> String {
    placeholders
        .iter()
        .fold(text.to_owned(), |text, mark| match text.contains(mark) {
            true => replace(&text, skill, mark),
            false => text,
        })
}

fn replace(text: &str, skill: &str, placeholder: &str) -> String {
    // A plugin keeps its skills in such a folder; a workspace has only the skill.
    let in_plugin = format!("/skills/{skill}");
    let mut pieces = text.splitn(REPLACEMENTS_MAX + 1, placeholder);
    let mut replaced = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        if placeholder.starts_with('{') && replaced.ends_with('$') {
            // `${baseDir}` is a variable of a program.
            replaced += placeholder;
            replaced += piece;
            continue;
        }
        replaced += SKILLS_DIR;
        replaced += "/";
        replaced += skill;
        let rest = piece.strip_prefix(in_plugin.as_str());
        replaced += match rest {
            Some(rest) if placeholder.contains("PLUGIN") && !rest.starts_with(is_of_name) => rest,
            _ => piece,
        };
    }
    replaced
}

/// Returns `true` for characters of skills' names.
fn is_of_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_become_the_skills_folder_in_the_workspace() {
        for (text, expected) in [
            ("run __BASE_DIR__/x.py", "run /workspace/skills/pdf/x.py"),
            (
                "`{baseDir}/a` {baseDir}",
                "`/workspace/skills/pdf/a` /workspace/skills/pdf",
            ),
            ("\"${CLAUDE_PLUGIN_ROOT}/x\"", "\"/workspace/skills/pdf/x\""),
            ("${CLAUDE_SKILL_DIR}", "/workspace/skills/pdf"),
            // As it lies in a plugin, and another skill of the plugin.
            (
                "${CLAUDE_PLUGIN_ROOT}/skills/pdf/x",
                "/workspace/skills/pdf/x",
            ),
            (
                "${CLAUDE_PLUGIN_ROOT}/skills/pdf-2/x",
                "/workspace/skills/pdf/skills/pdf-2/x",
            ),
            // Variables of programs, and words that only look alike.
            (
                "`${baseDir}/x` {BASE_DIR} {basedir}",
                "`${baseDir}/x` {BASE_DIR} {basedir}",
            ),
            (
                "$CLAUDE_PLUGIN_ROOT __BASE_DIR",
                "$CLAUDE_PLUGIN_ROOT __BASE_DIR",
            ),
            ("", ""),
        ] {
            assert_eq!(resolve_placeholders(text, "pdf"), expected, "{text:?}");
        }
    }

    #[test]
    fn a_shells_text_keeps_its_variables() {
        let text = "{baseDir}/x '${CLAUDE_PLUGIN_ROOT}' ${baseDir} __BASE_DIR__";
        assert_eq!(
            resolve_placeholders_for_shell(text, "pdf"),
            "/workspace/skills/pdf/x '${CLAUDE_PLUGIN_ROOT}' ${baseDir} /workspace/skills/pdf"
        );
    }

    #[test]
    fn a_text_of_placeholders_grows_by_a_bounded_amount() {
        let name = "n".repeat(64);
        for mark in PLACEHOLDERS {
            let text = mark.repeat((1 << 20) / mark.len());
            let replaced = resolve_placeholders(&text, &name);
            assert!(replaced.len() < text.len() + (256 << 10), "{mark}");
        }
    }
}

//! Replaces the placeholders that skill documents use for the skill's own folder with its path in a workspace. Pure.

/// Path of the staged skills in the container.
const SKILLS_DIR: &str = "/workspace/skills";
/// Directory in `skills/` with the plugins of staged skills, by the names of the skills. No skill's name begins with a
/// dot.
pub(crate) const PLUGINS_DIR: &str = ".plugins";

/// Placeholders of other skill systems. A shell does not expand the first two.
const PLACEHOLDERS: [&str; 6] = [
    "__BASE_DIR__",
    "{baseDir}",
    "${CLAUDE_PLUGIN_ROOT}",
    "${CLAUDE_SKILL_DIR}",
    "$CLAUDE_PLUGIN_ROOT",
    "$CLAUDE_SKILL_DIR",
];
/// Maximum number of replacements of each placeholder in one text. It limits how much a text grows.
const REPLACEMENTS_MAX: usize = 2000;
/// Maximum length of a skill's path in its plugin that replaces a placeholder, in bytes. It limits the growth too.
const PATH_IN_PLUGIN_BYTES_MAX: usize = 128;

/// Returns the path of the staged files of a skill's plugin, relative to `skills/`.
pub(crate) fn plugin_root(skill: &str) -> String {
    format!("{PLUGINS_DIR}/{skill}")
}

/// Place of a staged skill in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillFolder {
    /// Name of the folder beneath `skills/`.
    pub name: String,
    /// Path of the skill's folder relative to its plugin's, if the skill is staged with the files that it shares there.
    pub path_in_plugin: Option<String>,
}

impl SkillFolder {
    /// Returns the absolute path of the skill's folder in the container. It has no links, so that `find` and `tar`
    /// enter it and programs that shorten it as text reach the plugin's files.
    ///
    /// A path with other characters than those of names is not returned: it would mean something to a shell or in a
    /// search path. The link to it is returned instead.
    pub fn path(&self) -> String {
        format!("{SKILLS_DIR}/{}", self.relative_path())
    }

    /// Returns the path of the skill's folder relative to `skills/`, as [`Self::path`] does.
    pub fn relative_path(&self) -> String {
        let path = self.path_in_plugin.as_deref();
        match path.filter(|path| is_plain_path(path)) {
            Some(path) => format!("{}/{path}", plugin_root(&self.name)),
            None => self.name.clone(),
        }
    }

    /// Returns the absolute path of the plugin's folder; that of the skill if it is staged alone.
    pub fn plugin_path(&self) -> String {
        match self.path_in_plugin {
            Some(_) => format!("{SKILLS_DIR}/{}", plugin_root(&self.name)),
            None => self.path(),
        }
    }
}

/// Replaces all placeholders, in text for a model or in one argument of a command. That of the plugin becomes the plugin's
/// folder, if the skill is staged in it.
pub fn resolve_placeholders(text: &str, folder: &SkillFolder) -> String {
    replace_placeholders(text, folder, &PLACEHOLDERS)
}

/// Replaces only the placeholders that a shell does not expand itself. The path consists of letters, digits and `/._-`,
/// so it has no special meaning to a shell, quoted or not.
pub fn resolve_placeholders_for_shell(text: &str, folder: &SkillFolder) -> String {
    let (for_shell, _variables) = PLACEHOLDERS.split_at(2);
    replace_placeholders(text, folder, for_shell)
}

/// Replaces all occurrences of some placeholders.
fn replace_placeholders(text: &str, folder: &SkillFolder, placeholders: &[&str]) -> String {
    placeholders
        .iter()
        .fold(text.to_owned(), |text, mark| match text.contains(mark) {
            true => replace_placeholder(&text, folder, mark),
            false => text,
        })
}

fn replace_placeholder(text: &str, folder: &SkillFolder, placeholder: &str) -> String {
    let is_of_plugin = placeholder.contains("PLUGIN");
    let is_in_plugin = folder.path_in_plugin.is_some();
    let path = match is_of_plugin {
        true => folder.plugin_path(),
        false => folder.path(),
    };
    // A plugin keeps its skills in this folder; without the plugin a workspace contains only the skill itself.
    let in_plugin = format!("/skills/{}", folder.name);
    let is_bare_variable = placeholder.starts_with("$C");
    let mut pieces = text.splitn(REPLACEMENTS_MAX + 1, placeholder);
    let mut replaced = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        // `${baseDir}` and `$CLAUDE_SKILL_DIRECTORY` are variables of some program and not placeholders.
        let is_in_variable = placeholder.starts_with('{') && replaced.ends_with('$');
        let is_longer_name = is_bare_variable && piece.starts_with(is_variable_character);
        if is_in_variable || is_longer_name {
            replaced += placeholder;
            replaced += piece;
            continue;
        }
        replaced += &path;
        let rest = piece.strip_prefix(in_plugin.as_str());
        replaced += match rest {
            Some(rest) if is_of_plugin && !is_in_plugin && !rest.starts_with(is_name_character) => {
                rest
            }
            _ => piece,
        };
    }
    replaced
}

/// Returns `true` if a path consists of characters of names and is short.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |char| char == '/' || is_name_character(char);
    path.len() <= PATH_IN_PLUGIN_BYTES_MAX && path.chars().all(is_plain)
}

/// Returns `true` if a skill's name may contain the character.
fn is_name_character(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '.' | '_' | '-')
}

/// Returns `true` if the name of a variable may contain the character.
fn is_variable_character(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folder of a skill that is staged without a plugin.
    fn alone(name: &str) -> SkillFolder {
        SkillFolder {
            name: name.to_owned(),
            path_in_plugin: None,
        }
    }

    /// Folder of the skill `pdf` that is staged in its plugin.
    fn in_plugin(path: &str) -> SkillFolder {
        SkillFolder {
            path_in_plugin: Some(path.to_owned()),
            ..alone("pdf")
        }
    }

    #[test]
    fn placeholders_become_the_path_of_the_skills_folder() {
        for (text, expected) in [
            ("run __BASE_DIR__/x.py", "run /workspace/skills/pdf/x.py"),
            (
                "`{baseDir}/a` {baseDir}",
                "`/workspace/skills/pdf/a` /workspace/skills/pdf",
            ),
            ("\"${CLAUDE_PLUGIN_ROOT}/x\"", "\"/workspace/skills/pdf/x\""),
            ("${CLAUDE_SKILL_DIR}", "/workspace/skills/pdf"),
            // The skill's own folder in a plugin, and that of another skill.
            (
                "${CLAUDE_PLUGIN_ROOT}/skills/pdf/x",
                "/workspace/skills/pdf/x",
            ),
            (
                "${CLAUDE_PLUGIN_ROOT}/skills/pdf-2/x",
                "/workspace/skills/pdf/skills/pdf-2/x",
            ),
            // Variables of programs, and words that only resemble placeholders.
            (
                "`${baseDir}/x` {BASE_DIR} {basedir}",
                "`${baseDir}/x` {BASE_DIR} {basedir}",
            ),
            (
                "$CLAUDE_PLUGIN_ROOTS $CLAUDE_SKILL_DIR_2 $CLAUDE_SKILL_DIRECTORY __BASE_DIR",
                "$CLAUDE_PLUGIN_ROOTS $CLAUDE_SKILL_DIR_2 $CLAUDE_SKILL_DIRECTORY __BASE_DIR",
            ),
            // Without braces, up to a character that the variable's name cannot have.
            (
                "$CLAUDE_SKILL_DIR/x, $CLAUDE_SKILL_DIR.",
                "/workspace/skills/pdf/x, /workspace/skills/pdf.",
            ),
            (
                "$CLAUDE_PLUGIN_ROOT/skills/pdf/x $CLAUDE_PLUGIN_ROOT",
                "/workspace/skills/pdf/x /workspace/skills/pdf",
            ),
            ("", ""),
        ] {
            assert_eq!(
                resolve_placeholders(text, &alone("pdf")),
                expected,
                "{text:?}"
            );
        }
    }

    #[test]
    fn folders_of_a_staged_plugin_have_paths_without_links() {
        let text = "${CLAUDE_PLUGIN_ROOT}/skills/pdf/x ${CLAUDE_PLUGIN_ROOT} ${CLAUDE_SKILL_DIR}/x {baseDir}";
        let plugin = "/workspace/skills/.plugins/pdf";
        assert_eq!(
            resolve_placeholders(text, &in_plugin("skills/pdf")),
            format!("{plugin}/skills/pdf/x {plugin} {plugin}/skills/pdf/x {plugin}/skills/pdf")
        );
    }

    #[test]
    fn a_path_unsafe_for_a_shell_is_replaced_by_the_link() {
        let long = "n/".repeat(65);
        for path in [
            "my skills/pdf",
            "a:b",
            "$(id)/pdf",
            "a;b",
            "a\nb",
            "\u{fffd}",
            &long,
        ] {
            let folder = in_plugin(path);
            assert_eq!(folder.path(), "/workspace/skills/pdf", "{path:?}");
            assert_eq!(folder.plugin_path(), "/workspace/skills/.plugins/pdf");
            let text = resolve_placeholders_for_shell("{baseDir}/x", &folder);
            assert_eq!(text, "/workspace/skills/pdf/x", "{path:?}");
        }
    }

    #[test]
    fn shell_text_keeps_variables_that_the_shell_expands() {
        let text = "{baseDir}/x '${CLAUDE_PLUGIN_ROOT}' $CLAUDE_SKILL_DIR ${baseDir} __BASE_DIR__";
        assert_eq!(
            resolve_placeholders_for_shell(text, &alone("pdf")),
            "/workspace/skills/pdf/x '${CLAUDE_PLUGIN_ROOT}' $CLAUDE_SKILL_DIR ${baseDir} /workspace/skills/pdf"
        );
    }

    #[test]
    fn growth_by_replacements_is_limited() {
        let name = "n".repeat(64);
        for mark in PLACEHOLDERS {
            let text = mark.repeat((1 << 20) / mark.len());
            let folder = SkillFolder {
                path_in_plugin: Some("p".repeat(PATH_IN_PLUGIN_BYTES_MAX)),
                ..alone(&name)
            };
            let replaced = resolve_placeholders(&text, &folder);
            assert!(replaced.len() < text.len() + (512 << 10), "{mark}");
        }
    }
}

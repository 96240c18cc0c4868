//! Parses paths of a skill's files as skills, prompts and models write them. They begin with a placeholder for the
//! skill's folder or with the folder's path in a workspace, or are relative to the folder. Pure.

use skilld_common::names::base_name;

/// Placeholders and variables for the folder of the skill that a text belongs to.
const OWN_FOLDERS: [&str; 8] = [
    "{baseDir}",
    "__BASE_DIR__",
    "${CLAUDE_SKILL_DIR}",
    "$CLAUDE_SKILL_DIR",
    "${SKILL_DIR}",
    "$SKILL_DIR",
    "${SKILL_ROOT}",
    "$SKILL_ROOT",
];
/// Placeholders for the folder of the plugin that the skill of a text belongs to; the skill's own folder if it belongs to
/// none.
const OWN_PLUGINS: [&str; 2] = ["${CLAUDE_PLUGIN_ROOT}", "$CLAUDE_PLUGIN_ROOT"];
/// Folder in [`SKILLS_FOLDERS`] that contains the plugin of each staged skill under the skill's name.
const PLUGINS_FOLDER: &str = ".plugins";
/// Folders that contain each staged skill under its name. Other systems mount them at `/mnt/skills`.
const SKILLS_FOLDERS: [&str; 7] = [
    "/workspace/skills",
    "/mnt/skills",
    "/skills",
    "skills",
    "${SKILLS_DIR}",
    "$SKILLS_DIR",
    "skill:/",
];
/// Maximum number of documents that may have been meant by an unknown name.
const CANDIDATES_MAX: usize = 5;

/// Place of a file, by the beginning of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SkillFilePath<'a> {
    /// In the folder of the skill with this name: the rest of the path.
    Named(&'a str, &'a str),
    /// In the plugin's folder of the skill with this name: the rest of the path.
    NamedPlugin(&'a str, &'a str),
    /// In the folder of the skill that the text with this path belongs to: the rest of the path.
    Own(&'a str),
    /// In the plugin's folder of that skill: the rest of the path.
    OwnPlugin(&'a str),
    /// Elsewhere.
    Other,
}

impl<'a> SkillFilePath<'a> {
    /// Recognises the place of a file. A path of a folder itself is elsewhere.
    pub(crate) fn parse(path: &'a str) -> Self {
        let strip = |folders: &[&str]| folders.iter().find_map(|folder| beneath(path, folder));
        if let Some(rest) = strip(&OWN_FOLDERS) {
            return Self::Own(rest);
        }
        if let Some(rest) = strip(&OWN_PLUGINS) {
            // A plugin keeps its skills in this folder.
            let named = beneath(rest, "skills").and_then(split_name);
            return named.map_or(Self::OwnPlugin(rest), |(skill, rest)| {
                Self::Named(skill, rest)
            });
        }
        let named = SKILLS_FOLDERS
            .iter()
            .find_map(|folder| beneath(path, folder).and_then(split_name));
        match named {
            Some((PLUGINS_FOLDER, rest)) => {
                split_name(rest).map_or(Self::Other, |(skill, rest)| Self::NamedPlugin(skill, rest))
            }
            Some((skill, rest)) => Self::Named(skill, rest),
            None => Self::Other,
        }
    }
}

/// Returns a path relative to the folder of a skill, without the folder if the path begins with it.
pub(crate) fn relative_path<'a>(skill: &str, path: &'a str) -> &'a str {
    let rest = match SkillFilePath::parse(path) {
        SkillFilePath::Named(named, rest) if named == skill => rest,
        SkillFilePath::Own(rest) | SkillFilePath::OwnPlugin(rest) => rest,
        SkillFilePath::NamedPlugin(named, rest) if named == skill => {
            strip_skill_folder(skill, rest).unwrap_or(path)
        }
        SkillFilePath::Named(..) | SkillFilePath::NamedPlugin(..) | SkillFilePath::Other => path,
    };
    rest.strip_prefix("./").unwrap_or(rest)
}

/// Returns what follows the folder of a skill in a path within its plugin: the first folder with the skill's name.
fn strip_skill_folder<'a>(skill: &str, mut path: &'a str) -> Option<&'a str> {
    let name = skill.rsplit_once("--").map_or(skill, |(_, name)| name);
    loop {
        let (folder, inner) = split_name(path)?;
        if folder == name {
            return Some(inner);
        }
        path = inner;
    }
}

/// Returns a path relative to the folder of a skill's plugin; `None` if it does not begin with that folder.
pub(crate) fn path_in_plugin<'a>(skill: &str, path: &'a str) -> Option<&'a str> {
    match SkillFilePath::parse(path) {
        SkillFilePath::OwnPlugin(rest) => Some(rest),
        SkillFilePath::NamedPlugin(named, rest) => (named == skill).then_some(rest),
        SkillFilePath::Named(..) | SkillFilePath::Own(_) | SkillFilePath::Other => None,
    }
}

/// Returns what follows a folder and slashes in a path; `None` if nothing does.
fn beneath<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    let rest = path
        .strip_prefix(folder)?
        .strip_prefix('/')?
        .trim_start_matches('/');
    (!rest.is_empty()).then_some(rest)
}

/// Splits a path into its first name and the rest; `None` if there is no rest.
fn split_name(path: &str) -> Option<(&str, &str)> {
    let (name, _) = path.split_once('/')?;
    Some((name, beneath(path, name)?))
}

/// Document that a name means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DocumentMatch {
    /// Path of the document as the skill has it.
    Found(String),
    /// Documents that may have been meant, sorted; empty if none is like it.
    Unknown(Vec<String>),
}

/// Finds the document of a skill that a name means: by its path, else as the only one whose path differs in case only.
pub(crate) fn find_document(skill: &str, docs: &[String], asked: &str) -> DocumentMatch {
    let path = relative_path(skill, asked);
    let exact = [asked, path];
    if let Some(doc) = docs.iter().find(|doc| exact.contains(&doc.as_str())) {
        return DocumentMatch::Found(doc.clone());
    }
    let lower = path.to_lowercase();
    let alike = |is_alike: &dyn Fn(&str) -> bool| -> Vec<String> {
        docs.iter()
            .filter(|doc| is_alike(&doc.to_lowercase()))
            .take(CANDIDATES_MAX)
            .cloned()
            .collect()
    };
    let mut same_path = alike(&|doc| doc == lower);
    match same_path.len() {
        1 => DocumentMatch::Found(same_path.remove(0)),
        0 => {
            let name = base_name(&lower);
            DocumentMatch::Unknown(alike(&|doc| base_name(doc) == name))
        }
        _ => DocumentMatch::Unknown(same_path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_skills_folder_is_recognised_in_every_spelling() {
        for path in [
            "skills/pdf/a/b.md",
            "/skills/pdf/a/b.md",
            "/workspace/skills/pdf//a/b.md",
            "/mnt/skills/pdf/a/b.md",
            "$SKILLS_DIR/pdf/a/b.md",
            "${SKILLS_DIR}/pdf/a/b.md",
            "skill://pdf/a/b.md",
            "${CLAUDE_PLUGIN_ROOT}/skills/pdf/a/b.md",
        ] {
            let named = SkillFilePath::Named("pdf", "a/b.md");
            assert_eq!(SkillFilePath::parse(path), named, "{path}");
            assert_eq!(relative_path("pdf", path), "a/b.md", "{path}");
            assert_eq!(relative_path("other", path), path, "{path}");
        }
        for folder in OWN_FOLDERS {
            let path = format!("{folder}/a/b.md");
            assert_eq!(SkillFilePath::parse(&path), SkillFilePath::Own("a/b.md"));
            assert_eq!(relative_path("pdf", &path), "a/b.md");
        }
        for folder in OWN_PLUGINS {
            let path = format!("{folder}/a/b.md");
            assert_eq!(
                SkillFilePath::parse(&path),
                SkillFilePath::OwnPlugin("a/b.md")
            );
            assert_eq!(relative_path("pdf", &path), "a/b.md");
        }
        for folder in ["/workspace/skills", "skills", "$SKILLS_DIR", "/mnt/skills"] {
            let path = format!("{folder}/.plugins/pdf/a/b.md");
            let plugin = SkillFilePath::NamedPlugin("pdf", "a/b.md");
            assert_eq!(SkillFilePath::parse(&path), plugin);
            assert_eq!(path_in_plugin("pdf", &path), Some("a/b.md"));
            assert_eq!(path_in_plugin("other", &path), None);
        }
        for (path, in_plugin) in [
            (
                "/workspace/skills/.plugins/pdf/skills/pdf/a.md",
                "skills/pdf/a.md",
            ),
            ("skills/.plugins/pdf/pdf/a.md", "pdf/a.md"),
        ] {
            assert_eq!(path_in_plugin("pdf", path), Some(in_plugin));
            assert_eq!(relative_path("pdf", path), "a.md");
        }
        for path in [
            "",
            "a/b.md",
            "out/a",
            "skills",
            "skills/pdf",
            "skills/pdf/",
            "skills/.plugins/pdf",
            "skillset/pdf/a",
            "$CLAUDE_SKILL_DIRECTORY/a",
            "${CLAUDE_SKILL_DIR}",
            "{baseDir}",
            "/mnt/data/a",
            "$SKILLS_DIRS/pdf/a",
            "/workspace/skills/.plugins/pdf",
        ] {
            assert_eq!(SkillFilePath::parse(path), SkillFilePath::Other, "{path}");
        }
        let scoped = "skills/.plugins/acme--pdf/skills/pdf/a.md";
        assert_eq!(relative_path("acme--pdf", scoped), "a.md");
        assert_eq!(relative_path("pdf", "./a.md"), "a.md");
    }

    #[test]
    fn a_document_is_found_by_path_in_any_unambiguous_case() {
        let docs = [
            "REFERENCE.md",
            "docs/a.md",
            "docs/A.md",
            "docs/x/Columns.md",
        ]
        .map(str::to_owned);
        let find = |asked| find_document("pdf", &docs, asked);
        for (asked, found) in [
            ("REFERENCE.md", "REFERENCE.md"),
            ("reference.MD", "REFERENCE.md"),
            ("./Reference.md", "REFERENCE.md"),
            ("${CLAUDE_SKILL_DIR}/reference.md", "REFERENCE.md"),
            (
                "/workspace/skills/pdf/docs/x/columns.md",
                "docs/x/Columns.md",
            ),
            ("docs/A.md", "docs/A.md"),
        ] {
            assert_eq!(
                find(asked),
                DocumentMatch::Found(found.to_owned()),
                "{asked}"
            );
        }
        for (asked, candidates) in [
            ("DOCS/a.md", vec!["docs/a.md", "docs/A.md"]),
            ("columns.md", vec!["docs/x/Columns.md"]),
            ("skills/other/REFERENCE.md", vec!["REFERENCE.md"]),
            ("nope.md", vec![]),
        ] {
            let candidates = candidates.into_iter().map(str::to_owned).collect();
            assert_eq!(find(asked), DocumentMatch::Unknown(candidates), "{asked}");
        }
    }
}

//! Order of the folders of one root: of two skills with one name and version, the one in the earlier folder is used.

use std::cmp::Ordering;

/// Folder in which collections keep the skills that are meant to be used.
const SKILLS_DIR: &str = "skills";

/// Compares two folders of a root by their paths relative to it. Folders below one whose name begins with a dot come
/// last: they hold copies for the tools of a project. Then the less deep folder comes first, then the one with a
/// component `skills`, the nearer to the root the better (`skills/x` before `preview/x`), then the alphabet decides.
pub(crate) fn compare_folders(a: &str, b: &str) -> Ordering {
    precedence(a).cmp(&precedence(b))
}

fn precedence(path: &str) -> (bool, usize, usize, &str) {
    let mut components = path.split('/');
    let is_hidden = components.clone().any(|name| name.starts_with('.'));
    let depth = components.clone().count();
    let skills_depth = components.position(|name| name == SKILLS_DIR);
    (is_hidden, depth, skills_depth.unwrap_or(usize::MAX), path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_comes_before_plainness_and_that_before_the_alphabet() {
        let ordered = [
            "",
            "pdf",
            "skills/pdf",
            "preview/pdf",
            "skills/zzz/pdf",
            "aaa/skills/pdf",
            "providers/acme/pdf",
            "plugins/acme/skills/pdf",
            "a/b/c/d/pdf",
            ".claude/pdf",
            "skills/.curated/pdf",
            "aaa/.claude/pdf",
        ];
        for (index, earlier) in ordered.iter().enumerate() {
            assert_eq!(compare_folders(earlier, earlier), Ordering::Equal);
            for later in ordered.iter().skip(index + 1) {
                let order = compare_folders(earlier, later);
                assert_eq!(order, Ordering::Less, "{earlier} and {later}");
                assert_eq!(compare_folders(later, earlier), Ordering::Greater);
            }
        }
    }
}

//! Roots of skills: directories and URLs, from the list `skills.roots` or the variable SKILLS_ROOT.

use skilld_skills::SkillRoot;
use url::Url;

/// Parses a root: a path, `file://`, `http://` or `https://`.
///
/// # Errors
/// A message that says what is wrong with the text.
pub(super) fn parse_skill_root(text: &str) -> Result<SkillRoot, String> {
    let written = text.to_owned();
    if text.trim().is_empty() || text.contains('\0') {
        return Err("must be a path or a URL".to_owned());
    }
    if !text.contains("://") {
        let path = super::values::absolute_path(text)?;
        return Ok(SkillRoot::Dir {
            text: written,
            path,
        });
    }
    if !text.to_ascii_lowercase().starts_with("file:") {
        return SkillRoot::parse_url(text).map_err(|error| error.to_string());
    }
    let url = Url::parse(text).map_err(|error| format!("{text:?} is not a URL: {error}"))?;
    match url.scheme() {
        // The URL parser removes the host `localhost`.
        "file" if url.host().is_some() => Err(format!(
            "{text:?} names another host; write file:///PATH for a directory of this one"
        )),
        "file" => url
            .to_file_path()
            .map(|path| SkillRoot::Dir {
                text: written,
                path,
            })
            .map_err(|()| format!("{text:?} is not a path; write file:///PATH")),
        _ => Err(format!(
            "{text:?} is neither a path nor of file://, http:// or https://"
        )),
    }
}

/// Splits the value of SKILLS_ROOT at `:` into roots. The `:` of a URL's scheme or port does not separate roots.
pub(super) fn split_roots(text: &str) -> Vec<String> {
    let mut roots = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices(':') {
        let item = text.get(start..at).unwrap_or_default();
        let rest = text.get(at + 1..).unwrap_or_default();
        let in_scheme = rest.starts_with("//") && !item.contains('/');
        let in_url = item.contains("://") && !begins_root(rest);
        if !in_scheme && !in_url {
            roots.push(item);
            start = at + 1;
        }
    }
    roots.push(text.get(start..).unwrap_or_default());
    let given = roots.into_iter().map(str::trim);
    given
        .filter(|root| !root.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Returns `true` if the text after a URL and a `:` begins another root, and not the URL's port.
fn begins_root(rest: &str) -> bool {
    let scheme = rest.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphabetic())
    });
    rest.is_empty() || rest.starts_with('/') || scheme
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_a_directory_or_a_url() {
        for (text, expected) in [
            ("/srv/skills", Some("/srv/skills")),
            ("/srv/a b", Some("/srv/a b")),
            ("file:///srv/skills", Some("/srv/skills")),
            ("FILE:///srv/a%20b", Some("/srv/a b")),
            ("file://localhost/srv/skills", Some("/srv/skills")),
            ("https://example.com/x.zip#sha256=00", None),
            ("https://user:secret@example.com/x.zip", None),
            ("http://127.0.0.1:8080/x.tar.gz", Some("")),
            ("https://example.com/x.tar.gz#a/b", Some("")),
            ("https://example.com/x.tar.gz#../b", None),
            ("https://example.com/x.tar.gz#/a", None),
            ("file://elsewhere/srv", None),
            ("ftp://example.com/x.zip", None),
            ("https://", None),
            ("", None),
            ("  ", None),
            ("/a\0", None),
        ] {
            let read = parse_skill_root(text).ok();
            let path = read.as_ref().map(|root| match root {
                SkillRoot::Dir { path, .. } => path.display().to_string(),
                SkillRoot::Url { .. } => String::new(),
            });
            assert_eq!(path.as_deref(), expected, "{text:?}");
            assert!(read.is_none_or(|root| root.text() == text));
        }
    }

    #[test]
    fn a_list_of_roots_is_split_like_a_path() {
        for (text, expected) in [
            ("", &[][..]),
            (" ", &[]),
            ("/a", &["/a"]),
            ("/a:/b", &["/a", "/b"]),
            ("/a::/b:", &["/a", "/b"]),
            ("https://h/x.zip", &["https://h/x.zip"]),
            ("https://h:8443/x.zip:/b", &["https://h:8443/x.zip", "/b"]),
            (
                "/a:https://h/x.zip:file:///b:c",
                &["/a", "https://h/x.zip", "file:///b:c"],
            ),
        ] {
            assert_eq!(split_roots(text), expected, "{text:?}");
        }
    }
}

//! Names and specifiers of npm: where the package comes from that a package.json, an installation line or a caller names.
//! Pure.

use skilld_common::excerpts::cut_chars;

/// Maximum length of a package's name in bytes: npm accepts no longer one.
const NAME_BYTES_MAX: usize = 214;
/// Maximum number of characters of a name or a place in a message.
const SHOWN_CHARS_MAX: usize = 100;
/// Keys of a package.json whose packages npm installs.
pub(crate) const DEPENDENCY_KEYS: [&str; 4] = [
    "dependencies",
    "devDependencies",
    "optionalDependencies",
    "peerDependencies",
];
/// Endings of the names of packed packages.
const ARCHIVE_ENDINGS: [&str; 3] = [".tgz", ".tar.gz", ".tar"];

/// Source of a package, as its specifier names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DependencySource<'a> {
    /// A version from the package index.
    Index,
    /// A folder or archive, by its path relative to the folder of the package.json.
    Local(&'a str),
    /// A place that no build reaches. The reason completes a sentence that begins with the specifier.
    Refused(&'static str),
}

/// Returns the source that a specifier of npm leads to.
pub(crate) fn classify_specifier(specifier: &str) -> DependencySource<'_> {
    let specifier = specifier.trim();
    let alias = specifier.strip_prefix("npm:");
    let path = specifier.strip_prefix("file:");
    if specifier.contains(char::is_control) {
        return DependencySource::Refused("has control characters");
    }
    if let Some(alias) = alias {
        return match package_of_specifier(alias).is_some() && !alias.contains([':', '\\']) {
            true => DependencySource::Index,
            false => DependencySource::Refused("names no package of an index"),
        };
    }
    if let Some(path) = path.or_else(|| specifier.starts_with('.').then_some(specifier)) {
        return classify_path(path);
    }
    if specifier.starts_with(['/', '\\']) || specifier.starts_with("~/") || is_drive(specifier) {
        return classify_path("/");
    }
    match specifier.split_once(':') {
        Some(("http" | "https", _)) => {
            DependencySource::Refused("is an address: name a version that the package index has")
        }
        Some((protocol, _)) if protocol.starts_with("git") => REPOSITORY,
        Some(_) => DependencySource::Refused(
            "has a protocol that builds do not have: name a version, or a folder of the skill as file:FOLDER",
        ),
        None if is_archive_name(specifier) => classify_path(specifier),
        None if specifier.contains('/') => REPOSITORY,
        None => DependencySource::Index,
    }
}

const REPOSITORY: DependencySource<'_> =
    DependencySource::Refused("is a repository: name a version that the package index has");

/// Returns the source that a path relative to a package.json leads to.
pub(crate) fn classify_path(path: &str) -> DependencySource<'_> {
    match path.starts_with(['/', '~']) || path.contains('\\') || is_drive(path) {
        true => DependencySource::Refused("is no path relative to the package.json"),
        false => DependencySource::Local(path),
    }
}

/// Returns `true` for the name of a packed package.
pub(crate) fn is_archive_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ARCHIVE_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Returns `true` for a path that begins with a drive of Windows.
fn is_drive(path: &str) -> bool {
    matches!(path.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic())
}

/// Returns the package of an import's or an installation's specifier: `@scope/x` for `@scope/x/lib/run.js`, `x` for
/// `x@^1` and `npm:x`. `None` for a path, an address or an alias of a project's own folders.
pub(crate) fn package_of_specifier(specifier: &str) -> Option<String> {
    let specifier = specifier.strip_prefix("npm:").unwrap_or(specifier);
    let end = match specifier.strip_prefix('@') {
        Some(scoped) => scoped.find('/')? + 2,
        None => 0,
    };
    let rest = specifier.get(end..)?;
    let length = rest.find(['/', '@']).unwrap_or(rest.len());
    let name = specifier.get(..end + length)?;
    let is_start = |text: &str| text.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_scope = end != 2 && (end == 0 || is_start(specifier.get(1..)?));
    (is_scope && is_start(rest) && is_node_name(name)).then(|| name.to_owned())
}

/// Returns `true` for `NAME` and `@SCOPE/NAME`, each part beginning with a letter or digit, as npm permits them; of old
/// packages also with capitals.
pub(crate) fn is_node_name(name: &str) -> bool {
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-~".contains(c))
    };
    let fits = name.len() <= NAME_BYTES_MAX;
    fits && match name.strip_prefix('@') {
        Some(scoped) => {
            let parts = scoped.split_once('/');
            parts.is_some_and(|(scope, name)| is_part(scope) && is_part(name))
        }
        None => is_part(name) && !matches!(name, "node_modules" | "favicon.ico"),
    }
}

/// Returns a name or a place for messages.
pub(crate) fn shown(text: &str) -> String {
    cut_chars(text, SHOWN_CHARS_MAX).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifier_names_its_package() {
        for (specifier, expected) in [
            ("docx", Some("docx")),
            ("csv-parse/sync", Some("csv-parse")),
            ("@scope/x/lib/run.js", Some("@scope/x")),
            ("@scope/x@1.2", Some("@scope/x")),
            ("x@^1", Some("x")),
            ("npm:chalk@5", Some("chalk")),
            ("lodash.merge", Some("lodash.merge")),
            ("./x", None),
            ("../x", None),
            ("/x", None),
            (".", None),
            ("@/x/y", None),
            ("~/x", None),
            ("#x", None),
            ("@scope", None),
            ("https://x.example/y.js", None),
            ("", None),
            ("@", None),
            ("a b", None),
        ] {
            assert_eq!(
                package_of_specifier(specifier).as_deref(),
                expected,
                "{specifier:?}"
            );
        }
    }

    #[test]
    fn specifiers_lead_to_the_index_the_skill_or_nowhere() {
        for specifier in [
            "",
            "*",
            "^1.2.3",
            ">=1 <3 || 5.x",
            "~1.2",
            "latest",
            "1.0.0 - 2.0.0",
            "npm:chalk@5",
            "npm:@scope/x@^1",
        ] {
            assert_eq!(
                classify_specifier(specifier),
                DependencySource::Index,
                "{specifier:?}"
            );
        }
        for (specifier, path) in [
            ("file:../lib", "../lib"),
            ("file:lib", "lib"),
            ("./lib", "./lib"),
            ("..", ".."),
            ("vendor/x-1.0.0.tgz", "vendor/x-1.0.0.tgz"),
        ] {
            assert_eq!(
                classify_specifier(specifier),
                DependencySource::Local(path),
                "{specifier:?}"
            );
        }
        for specifier in [
            "git+https://x.example/y.git",
            "git://x.example/y",
            "github:user/repo",
            "user/repo#main",
            "git@x.example:y.git",
            "https://x.example/y.tgz",
            "link:../x",
            "portal:../x",
            "workspace:*",
            "jsr:@x/y",
            "npm:../x",
            "npm:x@file:y",
            "file:///etc",
            "file:~/x",
            "file:..\\x",
            "file:c:/x",
            "/etc",
            "~/x",
            "C:\\x",
            "1.0.0\n",
            "a\u{0}b",
        ] {
            let source = classify_specifier(specifier);
            let is_control = specifier == "1.0.0\n";
            // npm trims, too.
            let is_expected = matches!(source, DependencySource::Refused(_)) != is_control;
            assert!(is_expected, "{specifier:?}: {source:?}");
        }
    }

    #[test]
    fn names_with_dots_slashes_or_spaces_are_refused() {
        for name in ["x", "lodash.merge", "@scope/x", "JSONStream", "7zip"] {
            assert!(is_node_name(name), "{name:?}");
        }
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in [
            "",
            "..",
            "../x",
            ".x",
            "_x",
            "a/b",
            "a/../b",
            "@scope",
            "@/x",
            "@scope/",
            "@scope/..",
            "@../x",
            "@a/b/c",
            "a b",
            "a\\b",
            "a%2fb",
            "ü",
            "node_modules",
            &long,
        ] {
            assert!(!is_node_name(name), "{name:?}");
        }
    }
}

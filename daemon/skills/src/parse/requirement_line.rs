//! Checks one requirement of a Python package (PEP 508) before a build sees it. Pure. Only packages of the configured
//! index pass: what names a URL, a file or an option of pip would let a skill choose where code comes from.

/// Maximum length of one requirement in bytes. The longest lines of real files are lists of hashes; 50 of them fit.
const REQUIREMENT_BYTES_MAX: usize = 4096;
/// Characters that follow a package's name: extras, version specifiers and markers.
const PUNCTUATION: &str = " \t[]()<>=!~;,.*+'\"_-";

/// Checks a requirement and returns it with single spaces. Its hashes must be SHA-256.
///
/// # Errors
/// Returns the reason for people, as the end of a sentence that begins with the requirement.
pub(crate) fn check_requirement(text: &str) -> Result<String, &'static str> {
    if text.len() > REQUIREMENT_BYTES_MAX {
        return Err("is longer than 4,096 bytes");
    }
    let mut words = text.split_whitespace();
    let mut requirement = String::new();
    while let Some(word) = words.next() {
        if let Some(option) = word.strip_prefix("--hash") {
            let given = match option.strip_prefix('=') {
                Some(hash) => Some(hash),
                None => words.next(),
            };
            let hash = given
                .filter(|hash| is_sha256(hash))
                .ok_or("has a hash that is not sha256: and 64 hex digits")?;
            requirement += " --hash=";
            requirement += &hash.to_ascii_lowercase();
        } else if requirement.contains(" --hash=") {
            return Err("has text after its hashes");
        } else {
            if !requirement.is_empty() {
                requirement.push(' ');
            }
            requirement += word;
        }
    }
    check_specifier(requirement.split(" --hash=").next().unwrap_or_default())?;
    Ok(requirement)
}

/// Checks a requirement without its hashes.
fn check_specifier(text: &str) -> Result<(), &'static str> {
    if text.starts_with('-') {
        return Err(
            "is an option of pip: state packages only; the operator configures where they come from \
             (skills.package_index, skills.wheelhouse)",
        );
    }
    if text.contains("://") || text.starts_with("git+") || text.contains('@') {
        return Err("names a URL or a repository: name a package and its version instead");
    }
    let is_wheel = text.ends_with(".whl") || text.ends_with(".tar.gz") || text.ends_with(".zip");
    if is_wheel || text.starts_with('.') || text.contains(['/', '\\']) {
        return Err("names a file: name a package and its version instead");
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || PUNCTUATION.contains(c);
    let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    let follows_well = text
        .get(end..)
        .and_then(|rest| rest.trim_start().chars().next())
        .is_none_or(|c| "[(<>=!~;".contains(c));
    if !starts_well || !follows_well || !text.chars().all(is_allowed) {
        return Err("is not a package's name, optionally with extras, versions and a marker");
    }
    Ok(())
}

/// Returns the normalised name (PEP 503) at the beginning of a requirement; empty if it begins with none.
pub(crate) fn normalised_name(requirement: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let trimmed = requirement.trim();
    let name = trimmed.split(|c| !is_name(c)).next().unwrap_or_default();
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_lowercase()
}

/// Returns the normalised name that variants of a package share: `opencv-python` for `opencv-python-headless`.
pub(crate) fn without_variant(package: &str) -> &str {
    let variants = ["-headless", "-binary", "-slim"];
    let base = variants.iter().find_map(|end| package.strip_suffix(end));
    base.unwrap_or(package)
}

fn is_sha256(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:");
    digits.is_some_and(|digits| {
        digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn packages_with_versions_markers_and_hashes_pass() {
        let hash = format!("sha256:{}", "0a".repeat(32));
        for (given, expected) in [
            ("pandas", "pandas"),
            ("  pandas   >= 2.0,<3 ", "pandas >= 2.0,<3"),
            ("uvicorn[standard]~=0.30", "uvicorn[standard]~=0.30"),
            (
                "tomli; python_version < \"3.11\"",
                "tomli; python_version < \"3.11\"",
            ),
            ("zope.interface==7.*", "zope.interface==7.*"),
            ("foo (>=1)", "foo (>=1)"),
        ] {
            assert_eq!(check_requirement(given), Ok(expected.to_owned()));
        }
        for separator in ["=", " "] {
            let given = format!("six==1.17.0 --hash{separator}{hash} --hash={hash}");
            let expected = format!("six==1.17.0 --hash={hash} --hash={hash}");
            assert_eq!(check_requirement(&given), Ok(expected));
        }
    }

    #[test]
    fn urls_repositories_files_and_options_are_refused() {
        let long = "a".repeat(REQUIREMENT_BYTES_MAX + 1);
        for (given, part) in [
            ("-e .", "option of pip"),
            ("-r other.txt", "option of pip"),
            ("--index-url https://evil.example/simple", "option of pip"),
            ("--extra-index-url=https://evil.example", "option of pip"),
            ("-f wheels", "option of pip"),
            ("--trusted-host evil.example", "option of pip"),
            ("git+https://evil.example/x.git", "a URL or a repository"),
            ("x @ file:///etc/passwd", "a URL or a repository"),
            ("x@https://evil.example/x.whl", "a URL or a repository"),
            ("https://evil.example/x.whl", "a URL or a repository"),
            ("./x", "names a file"),
            ("../x", "names a file"),
            ("/x/y", "names a file"),
            ("x-1.0-py3-none-any.whl", "names a file"),
            ("C:\\x", "names a file"),
            ("x==1 --hash=md5:00", "not sha256"),
            ("x==1 --hash", "not sha256"),
            ("x --global-option=a", "not a package's name"),
            ("x\u{0}y", "not a package's name"),
            ("$(id)", "not a package's name"),
            ("x y", "not a package's name"),
            ("", "not a package's name"),
            (&long, "longer than"),
        ] {
            let refused = check_requirement(given).expect_err(given);
            assert!(refused.contains(part), "{given}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn accepted_requirements_are_one_line_of_harmless_characters(text in "\\PC{0,60}") {
            if let Ok(passed) = check_requirement(&text) {
                prop_assert!(!passed.contains(['\n', '\r', '@', '/', '\\', '$', '`', '%']));
                prop_assert!(passed.starts_with(|c: char| c.is_ascii_alphanumeric()));
            }
        }
    }
}

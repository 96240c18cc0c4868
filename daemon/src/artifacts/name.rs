//! Who an artifact belongs to and what it is called. Pure: nothing here knows of keys or files.

use crate::error::{Error, Result};

/// Longest name, bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// Longest part of a scope, bytes.
pub const SCOPE_BYTES_MAX: usize = 256;
/// Largest version: what the wire can carry.
pub const VERSION_MAX: u64 = i64::MAX as u64;

/// Names that begin so belong to a user and not to one of his sessions.
const USER_PREFIX: &str = "user:";
/// What a reference begins with.
const REF_PREFIX: &str = "artifact://";

/// Whose artifacts are meant. An empty part is a part like any other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Scope {
    app: String,
    user: String,
    session: String,
}

/// The name of an artifact: a relative path, perhaps with `user:` before it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// `artifact://name[@version]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactRef {
    /// Which one.
    pub name: Name,
    /// `None` is the newest.
    pub version: Option<u64>,
}

// === impl Scope ===

impl Scope {
    /// Checks the three parts.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the parts beneath `field`, all at once.
    pub fn parse(field: &str, app: &str, user: &str, session: &str) -> Result<Self> {
        let parts = [("app", app), ("user", user), ("session", session)];
        let faults = parts.into_iter().filter_map(|(part, text)| {
            let fault = if text.len() > SCOPE_BYTES_MAX {
                format!("has {} bytes; at most {SCOPE_BYTES_MAX}", text.len())
            } else if text.chars().any(char::is_control) {
                "has a control character".to_owned()
            } else {
                return None;
            };
            Some(crate::error::Violation::new(
                format!("{field}.{part}"),
                fault,
            ))
        });
        let faults: Vec<_> = faults.collect();
        if !faults.is_empty() {
            return Err(Error::Invalid(faults));
        }
        Ok(Self {
            app: app.to_owned(),
            user: user.to_owned(),
            session: session.to_owned(),
        })
    }

    /// Of the application.
    #[must_use]
    pub fn app(&self) -> &str {
        &self.app
    }

    /// Of the user.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Of the session; empty for what belongs to the user.
    #[must_use]
    pub fn session(&self) -> &str {
        &self.session
    }

    /// The scope that an artifact with this name really has: a user's is in no session.
    #[must_use]
    pub fn of(&self, name: &Name) -> Self {
        if name.is_users() {
            self.users()
        } else {
            self.clone()
        }
    }

    /// What the user's sessions share.
    #[must_use]
    pub(super) fn users(&self) -> Self {
        Self {
            session: String::new(),
            ..self.clone()
        }
    }
}

// === impl Name ===

impl Name {
    /// Checks a name, without any prefix but `user:`.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming `field`.
    pub fn parse(field: &str, text: &str) -> Result<Self> {
        let path = text.strip_prefix(USER_PREFIX).unwrap_or(text);
        let fault = if text.len() > NAME_BYTES_MAX {
            Some(format!(
                "has {} bytes; at most {NAME_BYTES_MAX}",
                text.len()
            ))
        } else if path.is_empty() {
            Some("is empty".to_owned())
        } else if text.chars().any(char::is_control) {
            Some("has a control character".to_owned())
        } else if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            Some("must be a relative path without empty parts, '.' and '..'".to_owned())
        } else {
            None
        };
        match fault {
            Some(fault) => Err(Error::invalid(field, fault)),
            None => Ok(Self(text.to_owned())),
        }
    }

    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether all sessions of the user share it.
    #[must_use]
    pub fn is_users(&self) -> bool {
        self.0.starts_with(USER_PREFIX)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl ArtifactRef ===

impl ArtifactRef {
    /// Reads `artifact://name[@version]`. What follows the last `@` is a version if it is digits and nothing else;
    /// otherwise it belongs to the name.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming `field`.
    pub fn parse(field: &str, text: &str) -> Result<Self> {
        let Some(rest) = text.strip_prefix(REF_PREFIX) else {
            let form = "is not of the form artifact://NAME[@VERSION]";
            return Err(Error::invalid(field, form));
        };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let Some((name, version)) = rest.rsplit_once('@').filter(|(_, tail)| digits(tail)) else {
            let name = Name::parse(field, rest)?;
            return Ok(Self {
                name,
                version: None,
            });
        };
        let known = version
            .parse()
            .ok()
            .filter(|version| *version < VERSION_MAX);
        let Some(version) = known else {
            return Err(Error::invalid(field, "has a version that is too large"));
        };
        Ok(Self {
            name: Name::parse(field, name)?,
            version: Some(version),
        })
    }
}

impl std::fmt::Display for ArtifactRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.version {
            Some(version) => write!(f, "{REF_PREFIX}{}@{version}", self.name),
            None => write!(f, "{REF_PREFIX}{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_relative_paths() {
        let long = "x".repeat(NAME_BYTES_MAX);
        let good = [
            "a",
            "out/report.pdf",
            "user:avatar.png",
            "user:a/b",
            "a b",
            "übung/ß.txt",
            "a@b",
            "a@2",
            "..a",
            "a..",
            "...",
            "C:\\x",
            "users:x",
            "%2e%2e/x",
            "a#1",
            "CON",
            "~",
            long.as_str(),
        ];
        for name in good {
            assert_eq!(Name::parse("name", name).expect(name).as_str(), name);
        }
    }

    #[test]
    fn hostile_names_are_refused() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let bad = [
            "",
            "/",
            "/etc/passwd",
            ".",
            "..",
            "../x",
            "a/../b",
            "a/./b",
            "a//b",
            "a/",
            "a\0b",
            "a\nb",
            "a\u{7f}",
            "a\u{85}b",
            "user:",
            "user:/x",
            "user:..",
            "user:../x",
            "user:a/..",
            long.as_str(),
        ];
        for name in bad {
            assert!(Name::parse("name", name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn references_carry_a_version_only_as_digits_after_the_last_at() {
        let check = |text: &str, name: &str, version: Option<u64>| {
            let read = ArtifactRef::parse("from", text).expect(text);
            assert_eq!(
                (read.name.as_str(), read.version),
                (name, version),
                "{text}"
            );
            assert_eq!(read.to_string(), text);
        };
        check("artifact://a", "a", None);
        check("artifact://a@0", "a", Some(0));
        check("artifact://dir/a.txt@17", "dir/a.txt", Some(17));
        check("artifact://a@b@123", "a@b", Some(123));
        check("artifact://tail@", "tail@", None);
        check("artifact://x@v1", "x@v1", None);
        check("artifact://a@1@2", "a@1", Some(2));
        check("artifact://user:a@3", "user:a", Some(3));
        for bad in [
            "a",
            "artifact:/a",
            "artifact://",
            "artifact://@123",
            "artifact://../x",
            "artifact:///etc/passwd",
            "artifact://user:@1",
            "artifact://a@99999999999999999999",
            "artifact://a@9223372036854775807",
            "workspace://a",
        ] {
            assert!(ArtifactRef::parse("from", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn scopes_are_bounded_and_printable() {
        let long = "x".repeat(SCOPE_BYTES_MAX + 1);
        Scope::parse("scope", "", "", "").expect("empty parts are parts");
        Scope::parse("scope", "../..", "a/b", "\u{1f980}").expect("they never become paths");
        for bad in ["a\0b", "a\n", long.as_str()] {
            let refused = Scope::parse("scope", bad, bad, bad);
            let Err(Error::Invalid(faults)) = refused else {
                panic!("{bad:?} must be refused");
            };
            assert_eq!(faults.len(), 3);
        }
    }
}

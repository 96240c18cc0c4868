//! Scopes, names and references of artifacts. Pure parsing, without keys or files.

use crate::access::TenantName;
use crate::error::{Error, Result};

/// Maximum length of a name in bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// Maximum length of each part of a scope in bytes.
pub const SCOPE_BYTES_MAX: usize = 256;
/// Largest version number that the API can carry.
pub const VERSION_MAX: u64 = i64::MAX as u64;

/// Prefix of names that belong to a user and not to one session.
const USER_PREFIX: &str = "user:";
/// Prefix of a reference.
const REF_PREFIX: &str = "artifact://";

/// Application, user and session that a request names. An empty part is a valid value. [`Self::of_tenant`] makes the
/// scope of artifacts from it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RequestedScope {
    app: String,
    user: String,
    session: String,
}

/// Tenant, application, user and session that an artifact belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ArtifactScope {
    tenant: TenantName,
    requested: RequestedScope,
}

/// Name of an artifact: a relative path, optionally after `user:`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArtifactName(String);

/// Reference `artifact://name[@version]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactRef {
    /// Name of the artifact.
    pub name: ArtifactName,
    /// Version; `None` refers to the newest.
    pub version: Option<u64>,
}

// === impl RequestedScope ===

impl RequestedScope {
    /// Parses the three parts of a scope.
    ///
    /// # Errors
    /// [`Error::Invalid`] with all wrong parts, as fields beneath `field`.
    pub fn parse(field: &str, app: &str, user: &str, session: &str) -> Result<Self> {
        let parts = [("app", app), ("user", user), ("session", session)];
        let faults: Vec<_> = parts
            .into_iter()
            .filter_map(|(part, text)| {
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
            })
            .collect();
        if !faults.is_empty() {
            return Err(Error::Invalid(faults));
        }
        Ok(Self {
            app: app.to_owned(),
            user: user.to_owned(),
            session: session.to_owned(),
        })
    }

    /// Returns the scope of a tenant's artifacts.
    pub fn of_tenant(self, tenant: &TenantName) -> ArtifactScope {
        ArtifactScope {
            tenant: tenant.clone(),
            requested: self,
        }
    }
}

// === impl ArtifactScope ===

impl ArtifactScope {
    /// Returns the tenant.
    pub fn tenant(&self) -> &TenantName {
        &self.tenant
    }

    /// Returns the application.
    pub fn app(&self) -> &str {
        &self.requested.app
    }

    /// Returns the user.
    pub fn user(&self) -> &str {
        &self.requested.user
    }

    /// Returns the session; empty for artifacts of the user.
    pub fn session(&self) -> &str {
        &self.requested.session
    }

    /// Returns the effective scope of an artifact: names with `user:` have no session.
    pub fn of(&self, name: &ArtifactName) -> Self {
        if name.is_shared_by_sessions() {
            self.without_session()
        } else {
            self.clone()
        }
    }

    /// Returns the scope that all sessions of the user share.
    pub(super) fn without_session(&self) -> Self {
        let requested = RequestedScope {
            session: String::new(),
            ..self.requested.clone()
        };
        requested.of_tenant(&self.tenant)
    }
}

// === impl ArtifactName ===

impl ArtifactName {
    /// Parses a name without `artifact://` and version.
    ///
    /// # Errors
    /// [`Error::Invalid`] for `field`.
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

    /// Returns the name as the client gave it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns `true` if all sessions of the user share the artifact.
    pub fn is_shared_by_sessions(&self) -> bool {
        self.0.starts_with(USER_PREFIX)
    }
}

impl std::fmt::Display for ArtifactName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl ArtifactRef ===

impl ArtifactRef {
    /// Parses `artifact://name[@version]`. Text after the last `@` is a version if it consists of digits; otherwise it
    /// belongs to the name.
    ///
    /// # Errors
    /// [`Error::Invalid`] for `field`.
    pub fn parse(field: &str, text: &str) -> Result<Self> {
        let Some(rest) = text.strip_prefix(REF_PREFIX) else {
            let form = "is not of the form artifact://NAME[@VERSION]";
            return Err(Error::invalid(field, form));
        };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let Some((name, version)) = rest.rsplit_once('@').filter(|(_, tail)| digits(tail)) else {
            let name = ArtifactName::parse(field, rest)?;
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
            name: ArtifactName::parse(field, name)?,
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
            assert_eq!(
                ArtifactName::parse("name", name).expect(name).as_str(),
                name
            );
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
            assert!(ArtifactName::parse("name", name).is_err(), "{name:?}");
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
        RequestedScope::parse("scope", "", "", "").expect("empty parts are parts");
        RequestedScope::parse("scope", "../..", "a/b", "\u{1f980}")
            .expect("they never become paths");
        for bad in ["a\0b", "a\n", long.as_str()] {
            let refused = RequestedScope::parse("scope", bad, bad, bad);
            let Err(Error::Invalid(faults)) = refused else {
                panic!("{bad:?} must be refused");
            };
            assert_eq!(faults.len(), 3);
        }
    }
}

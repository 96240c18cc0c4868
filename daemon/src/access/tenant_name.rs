//! Name of a tenant, validated.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use skilld_common::names::{RESOURCE_ID_BYTES_MAX, is_resource_id};

/// Tenant of all callers while authentication is off, and of everything that earlier releases made.
pub const DEFAULT_TENANT: &str = "default";

/// Validated name of a tenant: `[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?`. Clones share the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantName(Arc<str>);

impl TenantName {
    /// Parses a name.
    ///
    /// # Errors
    /// A message that shows the grammar.
    pub fn parse(text: &str) -> Result<Self, String> {
        if is_resource_id(text) {
            return Ok(Self(text.into()));
        }
        let shown: String = text.chars().take(RESOURCE_ID_BYTES_MAX + 1).collect();
        Err(format!(
            "{shown:?} is not a tenant's name: 1 to {RESOURCE_ID_BYTES_MAX} of a-z, 0-9, '.', '_' and '-', with a \
             letter or digit at both ends"
        ))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TenantName {
    fn default() -> Self {
        Self(DEFAULT_TENANT.into())
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Serialize for TenantName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TenantName {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let text = String::deserialize(source)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_grammar_of_ids() {
        let longest = "a".repeat(RESOURCE_ID_BYTES_MAX);
        for good in ["a", "team-1", "a.b_c", "0", &longest] {
            assert_eq!(TenantName::parse(good).expect(good).as_str(), good);
        }
        let long = "a".repeat(RESOURCE_ID_BYTES_MAX + 1);
        for bad in [
            "", "A", "a b", "-a", "a-", "a/b", "a\n", "ä", "..", "a\0", &long,
        ] {
            assert!(TenantName::parse(bad).is_err(), "{bad:?}");
        }
    }
}

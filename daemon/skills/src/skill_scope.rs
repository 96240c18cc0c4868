//! Selection of the skills that a caller sees.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Tenant to which everything belongs that was published without one.
pub(crate) const DEFAULT_TENANT: &str = "default";

/// Selects the skills that a caller sees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum SkillScope {
    /// All roots, then what the tenant `default` published: the view of a daemon that knows no tenants.
    #[default]
    Single,
    /// The publications of a tenant, then the roots that it was granted. Content that only the store has is not found by its
    /// digest, because it may be another tenant's.
    Tenant {
        /// Name of the tenant.
        name: String,
        /// Texts of the granted roots, as configured; `None` means all.
        roots: Option<Arc<BTreeSet<String>>>,
    },
}

impl SkillScope {
    /// Returns the name of the tenant.
    pub fn tenant(&self) -> &str {
        match self {
            Self::Single => DEFAULT_TENANT,
            Self::Tenant { name, .. } => name,
        }
    }

    /// Returns `true` if the scope sees the root with this text.
    pub(crate) fn sees_root(&self, text: &str) -> bool {
        match self {
            Self::Tenant {
                roots: Some(roots), ..
            } => roots.contains(text),
            Self::Single | Self::Tenant { roots: None, .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_sees_only_its_granted_roots() {
        let of_tenant = |roots| SkillScope::Tenant {
            name: "a".to_owned(),
            roots,
        };
        let one = "https://example.org/one.zip".to_owned();
        let granted = of_tenant(Some(Arc::new(BTreeSet::from([one.clone()]))));
        assert!(granted.sees_root(&one));
        assert!(!granted.sees_root("https://example.org/other.zip"));
        assert!(of_tenant(None).sees_root(&one) && SkillScope::Single.sees_root(&one));
    }
}

//! Roles of principals, in order: each includes the ones before it.

use skilld_proto::v1 as pb;

/// Role of a principal within its tenant. A later role includes the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Lists objects and usage; sees no output, files or stdin.
    Observer,
    /// Uses workspaces, execs, files and artifacts, and reads skills.
    User,
    /// Publishes and deletes skills.
    Publisher,
    /// Creates tokens for workspaces.
    TenantAdmin,
    /// Calls AdminService, and all tenants.
    Admin,
}

/// All roles, the lowest first.
const ROLES: [Role; 5] = [
    Role::Observer,
    Role::User,
    Role::Publisher,
    Role::TenantAdmin,
    Role::Admin,
];

impl Role {
    /// Returns the name in files, tokens and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observer => "observer",
            Self::User => "user",
            Self::Publisher => "publisher",
            Self::TenantAdmin => "tenant_admin",
            Self::Admin => "admin",
        }
    }

    /// Parses a name; `None` for unknown ones.
    pub fn parse(name: &str) -> Option<Self> {
        ROLES.into_iter().find(|role| role.as_str() == name)
    }

    /// Converts a value of the API; `None` if it is unspecified or unknown.
    pub fn from_number(number: i32) -> Option<Self> {
        ROLES
            .into_iter()
            .find(|role| role.message() as i32 == number)
    }

    /// Returns the value of the API.
    pub fn message(self) -> pb::PrincipalRole {
        match self {
            Self::Observer => pb::PrincipalRole::Observer,
            Self::User => pb::PrincipalRole::User,
            Self::Publisher => pb::PrincipalRole::Publisher,
            Self::TenantAdmin => pb::PrincipalRole::TenantAdmin,
            Self::Admin => pb::PrincipalRole::Admin,
        }
    }

    /// Parses names and returns the highest role.
    ///
    /// # Errors
    /// A message if there is no name, or one is unknown.
    pub fn highest_of<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut highest = None;
        for name in names {
            let role = Self::parse(name).ok_or_else(|| {
                let known = ROLES.map(Self::as_str).join(", ");
                format!("{name:?} is not a role; the roles are {known}")
            })?;
            highest = highest.max(Some(role));
        }
        highest.ok_or_else(|| "it needs at least one role".to_owned())
    }
}

//! File of tenants: which tenants exist, and which users of the host and certificates belong to them.
//!
//! ```toml
//! [tenants.default]          # applies to every tenant, as far as its own section is silent
//! pools = ["default"]
//!
//! [tenants.billing]
//! pools = ["default", "office"]
//! roots = ["/srv/skills"]    # as written in skills.roots; without this line all of them
//! allowed_programs = ["python3", "node"]   # programs that commands may be; without this line all
//! denied_programs = ["curl"]
//! allowed_env = ["LANG", "REPORT_*"]       # variables that requests may set; without this line all
//! workspaces = 20            # quotas; "unlimited" is possible too
//! memory = "16GiB"
//! cpus = 8
//! execs = 50
//! streams = 500
//! artifact_bytes = "100GiB"
//! published_bytes = "1GiB"
//! connections = 100
//! workspace_creates_per_minute = 60
//! requests_per_second = 200
//! requests_burst = 400
//! workspace_lifetime_max = "8h"
//! weight = 2                 # among tenants that wait for a container
//!
//! [[peers]]                  # users that connect to a Unix socket; the first rule that matches counts
//! uid = 1000
//! tenant = "billing"
//! roles = ["user"]
//!
//! [[certificates]]           # URI or DNS name among the certificate's alternative names
//! name = "spiffe://example.org/billing"
//! tenant = "billing"
//! roles = ["publisher"]
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use super::protected_file::{Secrecy, read_protected_text};
use super::run_policy::RunPolicy;
use super::tenant_limits::{RawLimits, TenantLimits};
use super::tenant_name::TenantName;
use crate::config::{Config, Role, parse_toml};

/// Maximum number of tenants, and of rules of each kind.
const ENTRIES_MAX: usize = 10_000;

/// Parsed and checked file of tenants.
#[derive(Debug, Default)]
pub(crate) struct TenantsFile {
    tenants: BTreeMap<TenantName, TenantConfig>,
    peers: Vec<PeerRule>,
    certificates: HashMap<String, Membership>,
}

/// Pools and roots that a tenant may use, its quotas, and the policy for its execs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TenantConfig {
    /// Names of the pools; `None` means all.
    pub(crate) pools: Option<Arc<BTreeSet<String>>>,
    /// Roots of skills, as configured; `None` means all.
    pub(crate) roots: Option<Arc<BTreeSet<String>>>,
    /// Quotas.
    pub(crate) limits: Arc<TenantLimits>,
    /// Policy for programs and variables of execs.
    pub(crate) policy: Arc<RunPolicy>,
}

/// Names that a tenant's section may use.
#[derive(Debug, Clone)]
pub(crate) struct KnownNames {
    /// Names of the configured pools.
    pub(crate) pools: BTreeSet<String>,
    /// Roots of skills, as configured.
    pub(crate) roots: BTreeSet<String>,
}

impl KnownNames {
    /// Returns the names of a configuration.
    pub(crate) fn of(config: &Config) -> Self {
        let pools = config.pools.iter().map(|pool| pool.name.clone());
        let roots = config.skills.options.roots.iter();
        Self {
            pools: pools.collect(),
            roots: roots.map(|root| root.text().to_owned()).collect(),
        }
    }
}

/// Tenant and highest role that a rule or token gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) tenant: TenantName,
    pub(crate) role: Role,
}

#[derive(Debug)]
struct PeerRule {
    uid: Option<u32>,
    gid: Option<u32>,
    member: Membership,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTenantsFile {
    #[serde(default)]
    tenants: BTreeMap<TenantName, RawLimits>,
    #[serde(default)]
    peers: Vec<RawPeer>,
    #[serde(default)]
    certificates: Vec<RawCertificate>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPeer {
    uid: Option<u32>,
    gid: Option<u32>,
    tenant: TenantName,
    roles: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCertificate {
    name: String,
    tenant: TenantName,
    roles: Vec<String>,
}

impl TenantsFile {
    /// Reads and checks the file. `known` has the names that it may use.
    ///
    /// # Errors
    /// A message with every fault of the file.
    pub(crate) fn load(path: &Path, known: &KnownNames) -> Result<Self, String> {
        let text = read_protected_text(path, Secrecy::Public)?;
        Self::parse(&text, known).map_err(|faults| format!("{}: {faults}", path.display()))
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// A message with every fault.
    pub(crate) fn parse(text: &str, known: &KnownNames) -> Result<Self, String> {
        let raw: RawTenantsFile = parse_toml(text)?;
        let mut faults = Vec::new();
        let parsed = Self::check(raw, known, &mut faults);
        if faults.is_empty() {
            return Ok(parsed);
        }
        Err(faults.join("; "))
    }

    fn check(raw: RawTenantsFile, known: &KnownNames, faults: &mut Vec<String>) -> Self {
        let counts = [raw.tenants.len(), raw.peers.len(), raw.certificates.len()];
        if counts.iter().any(|count| *count > ENTRIES_MAX) {
            faults.push(format!("more than {ENTRIES_MAX} entries of one kind"));
            return Self::default();
        }
        let default = raw.tenants.get(&TenantName::default());
        let tenants: BTreeMap<TenantName, TenantConfig> = raw
            .tenants
            .iter()
            .map(|(tenant, own)| {
                let config_key = format!("tenants.{tenant}");
                let config = check_tenant(own, default, &config_key, known, faults);
                (tenant.clone(), config)
            })
            .collect();
        let mut peers = Vec::new();
        for (index, rule) in raw.peers.into_iter().enumerate() {
            let config_key = format!("peers.{index}");
            if rule.uid.is_none() && rule.gid.is_none() {
                faults.push(format!("{config_key}: needs uid or gid"));
            }
            let member = check_member(&tenants, &config_key, rule.tenant, &rule.roles, faults);
            peers.extend(member.map(|member| PeerRule {
                uid: rule.uid,
                gid: rule.gid,
                member,
            }));
        }
        let mut certificates = HashMap::new();
        for (index, rule) in raw.certificates.into_iter().enumerate() {
            let config_key = format!("certificates.{index}");
            let member = check_member(&tenants, &config_key, rule.tenant, &rule.roles, faults);
            let Some(member) = member else {
                continue;
            };
            let name = rule.name.clone();
            if let Some(other) = certificates.insert(rule.name, member) {
                faults.push(format!(
                    "{config_key}.name: {name:?} belongs to tenant {} already; a name belongs to one tenant",
                    other.tenant
                ));
            }
        }
        Self {
            tenants,
            peers,
            certificates,
        }
    }

    /// Returns what a tenant may use; `None` if it is not configured.
    pub(crate) fn tenant(&self, name: &TenantName) -> Option<&TenantConfig> {
        self.tenants.get(name)
    }

    /// Returns all tenants with their quotas, sorted by name.
    pub(crate) fn list(&self) -> Vec<(TenantName, Arc<TenantLimits>)> {
        let tenants = self.tenants.iter();
        tenants
            .map(|(name, config)| (name.clone(), Arc::clone(&config.limits)))
            .collect()
    }

    /// Returns the membership of a user of the host; the first matching rule counts.
    pub(crate) fn peer(&self, uid: u32, gid: u32) -> Option<&Membership> {
        let matches = |rule: &&PeerRule| {
            rule.uid.is_none_or(|wanted| wanted == uid)
                && rule.gid.is_none_or(|wanted| wanted == gid)
        };
        self.peers.iter().find(matches).map(|rule| &rule.member)
    }

    /// Returns the membership of a certificate's name.
    pub(crate) fn certificate(&self, name: &str) -> Option<&Membership> {
        self.certificates.get(name)
    }
}

/// Checks the section of a tenant, with that of `default` in place of absent keys.
fn check_tenant(
    own: &RawLimits,
    default: Option<&RawLimits>,
    config_key: &str,
    known: &KnownNames,
    faults: &mut Vec<String>,
) -> TenantConfig {
    for pool in own.pools.iter().flatten() {
        if !known.pools.contains(pool) {
            faults.push(format!("{config_key}.pools: there is no pool {pool:?}"));
        }
    }
    for root in own.roots.iter().flatten() {
        if !known.roots.contains(root) {
            faults.push(format!(
                "{config_key}.roots: {root:?} is not in skills.roots"
            ));
        }
    }
    let pick = |key: fn(&RawLimits) -> Option<&BTreeSet<String>>| {
        let names = key(own).or(default.and_then(key));
        names.cloned().map(Arc::new)
    };
    TenantConfig {
        pools: pick(|raw| raw.pools.as_ref()),
        roots: pick(|raw| raw.roots.as_ref()),
        limits: Arc::new(own.check(default, config_key, faults)),
        policy: Arc::new(RunPolicy::check(own, default, config_key, faults)),
    }
}

/// Checks tenant and roles of a rule; `None` if it has no role.
fn check_member(
    tenants: &BTreeMap<TenantName, TenantConfig>,
    config_key: &str,
    tenant: TenantName,
    roles: &[String],
    faults: &mut Vec<String>,
) -> Option<Membership> {
    if !tenants.contains_key(&tenant) {
        faults.push(format!(
            "{config_key}.tenant: there is no section [tenants.{tenant}]"
        ));
    }
    match Role::highest_of(roles.iter().map(String::as_str)) {
        Ok(role) => Some(Membership { tenant, role }),
        Err(why) => {
            faults.push(format!("{config_key}.roles: {why}"));
            None
        }
    }
}

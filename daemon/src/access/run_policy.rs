//! Programs and variables of the execs of one tenant, as the file of tenants limits them. Each request can narrow the
//! lists, but not widen them.

use std::collections::BTreeMap;

use super::tenant_limits::RawLimits;
use crate::error::{Error, Result, Violation};

/// Maximum number of entries in a list of programs.
pub const PROGRAMS_MAX: usize = 256;
/// Maximum length of one entry, in bytes: Linux's PATH_MAX.
pub const PROGRAM_BYTES_MAX: usize = 4096;
/// Maximum number of entries in the list of variables.
const VARIABLES_MAX: usize = 1024;

/// Programs that the execs of a tenant may start, and variables that their requests may set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunPolicy {
    /// Allowed programs; empty for all that are not denied.
    allowed_programs: Vec<String>,
    /// Denied programs.
    denied_programs: Vec<String>,
    /// Names of variables, or their beginnings followed by `*`; `None` for all.
    allowed_env: Option<Vec<String>>,
}

impl RunPolicy {
    /// Checks the lists of a tenant's section, with those of `default` in place of absent ones. `config_key` names the
    /// section in faults.
    pub(super) fn check(
        own: &RawLimits,
        default: Option<&RawLimits>,
        config_key: &str,
        faults: &mut Vec<String>,
    ) -> Self {
        type ListOf = fn(&RawLimits) -> Option<&Vec<String>>;
        let pick = |of: ListOf| of(own).or(default.and_then(of)).cloned();
        let policy = Self {
            allowed_programs: pick(|raw| raw.allowed_programs.as_ref()).unwrap_or_default(),
            denied_programs: pick(|raw| raw.denied_programs.as_ref()).unwrap_or_default(),
            allowed_env: pick(|raw| raw.allowed_env.as_ref()),
        };
        if matches!(&own.allowed_programs, Some(list) if list.is_empty()) {
            faults.push(format!(
                "{config_key}.allowed_programs: is empty: list programs, or leave it out to allow all"
            ));
        }
        let has_programs =
            !policy.allowed_programs.is_empty() || !policy.denied_programs.is_empty();
        if has_programs && policy.allowed_env.is_none() {
            faults.push(format!(
                "{config_key}.allowed_env: is missing: with lists of programs it is needed, because a variable such \
                 as PATH leads around them"
            ));
        }
        for (key, list) in [
            ("allowed_programs", &policy.allowed_programs),
            ("denied_programs", &policy.denied_programs),
        ] {
            if list.len() > PROGRAMS_MAX {
                let count = list.len();
                faults.push(format!(
                    "{config_key}.{key}: {count} programs; at most {PROGRAMS_MAX}"
                ));
            }
            for entry in list.iter().filter(|entry| !is_program(entry)) {
                faults.push(format!(
                    "{config_key}.{key}: {entry:?} is neither a name without a slash nor an absolute path"
                ));
            }
        }
        let variables = policy.allowed_env.iter().flatten();
        if variables.clone().count() > VARIABLES_MAX {
            faults.push(format!(
                "{config_key}.allowed_env: more than {VARIABLES_MAX} variables"
            ));
        }
        for entry in variables.filter(|entry| !is_variable(entry)) {
            faults.push(format!(
                "{config_key}.allowed_env: {entry:?} is neither a variable's name nor its beginning and `*`"
            ));
        }
        policy
    }

    /// Returns the allowed programs; empty for all that are not denied.
    pub fn allowed_programs(&self) -> &[String] {
        &self.allowed_programs
    }

    /// Returns the denied programs.
    pub fn denied_programs(&self) -> &[String] {
        &self.denied_programs
    }

    /// Checks the variables of a request.
    ///
    /// # Errors
    /// `Invalid` with every variable that may not be set.
    pub fn check_env(&self, field: &str, env: &BTreeMap<String, String>) -> Result<()> {
        let Some(allowed) = &self.allowed_env else {
            return Ok(());
        };
        let refused: Vec<&String> = env
            .keys()
            .filter(|name| !is_allowed_variable(allowed, name))
            .collect();
        if refused.is_empty() {
            return Ok(());
        }
        let allowed_text = match allowed.is_empty() {
            true => "it may set none".to_owned(),
            false => format!("it may set {}", allowed.join(", ")),
        };
        let problem = format!("may not be set for the tenant: {allowed_text}");
        let violation =
            |name: &String| Violation::new(format!("{field}[{name:?}]"), problem.clone());
        Err(Error::Invalid(refused.into_iter().map(violation).collect()))
    }
}

/// Returns `true` for what can be an entry of a list of programs: a name, or an absolute path.
pub fn is_program(entry: &str) -> bool {
    let is_name = !entry.contains('/') || (entry.starts_with('/') && !entry.ends_with('/'));
    is_name && !entry.is_empty() && !entry.contains('\0') && entry.len() <= PROGRAM_BYTES_MAX
}

/// Returns `true` for the name of a variable, or its beginning followed by `*`.
fn is_variable(entry: &str) -> bool {
    let name = entry.strip_suffix('*').unwrap_or(entry);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && name.bytes().all(is_word)
}

/// Returns `true` if a list has the name of a variable.
fn is_allowed_variable(allowed: &[String], name: &str) -> bool {
    allowed.iter().any(|entry| match entry.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => entry == name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the keys that the faults of a section name.
    fn faulty_keys(own: &str, default: &str) -> Vec<String> {
        let raw = |text: &str| toml::from_str::<RawLimits>(text).expect("toml");
        let mut faults = Vec::new();
        RunPolicy::check(&raw(own), Some(&raw(default)), "tenants.a", &mut faults);
        let key = |fault: &String| fault.split(':').next().map(str::to_owned);
        faults.iter().filter_map(key).collect()
    }

    #[test]
    fn a_policy_that_would_not_hold_is_a_fault_of_the_file() {
        let none: [&str; 0] = [];
        let env = "allowed_env = [\"LANG\"]\n";
        assert_eq!(faulty_keys("", ""), none);
        assert_eq!(faulty_keys("allowed_programs = [\"sh\"]", env), none);
        let missing = ["tenants.a.allowed_env"];
        assert_eq!(faulty_keys("denied_programs = [\"curl\"]", ""), missing);
        let programs = ["tenants.a.allowed_programs"];
        for list in ["[]", "[\"a/b\"]", "[\"\"]"] {
            let own = format!("{env}allowed_programs = {list}");
            assert_eq!(faulty_keys(&own, ""), programs, "{list}");
        }
        assert_eq!(
            faulty_keys("allowed_env = [\"A-B\", \"*\"]", ""),
            [missing[0]; 2]
        );
    }
}

//! Resource names: completes bare ids to full names and makes new ids. Validates nothing: the server reports faults of
//! a name, in one place for all clients.

use uuid::Uuid;

/// Returns `workspaces/{id}` for an id or for the name itself.
#[must_use]
pub fn workspace_name(name: &str) -> String {
    prefixed("workspaces/", name)
}

/// Returns `workspaces/{workspace}/execs/{exec}` for `{workspace}/{exec}` or for the name itself.
#[must_use]
pub fn exec_name(name: &str) -> String {
    match name.split_once('/') {
        Some((workspace, exec)) if !name.starts_with("workspaces/") => {
            format!("workspaces/{workspace}/execs/{exec}")
        }
        Some(_) | None => name.to_owned(),
    }
}

/// Returns `skills/{skill}` for a skill's name, with a version or not, or for the resource name itself.
#[must_use]
pub fn skill_name(name: &str) -> String {
    prefixed("skills/", name)
}

/// Returns `artifacts/{name}` for an artifact's name or for the resource name itself. An artifact whose own name begins
/// with `artifacts/` needs the latter.
#[must_use]
pub fn artifact_name(name: &str) -> String {
    prefixed("artifacts/", name)
}

/// Returns `pools/{pool}` for a pool's id or for the name itself.
#[must_use]
pub fn pool_name(name: &str) -> String {
    prefixed("pools/", name)
}

/// Returns the name of the pool that a request asks for; empty for the default pool.
pub(crate) fn requested_pool(name: &str) -> String {
    match name {
        "" => String::new(),
        name => pool_name(name),
    }
}

/// Returns `{workspace}` for a workspace's full name or for the id itself.
pub(crate) fn workspace_id(name: &str) -> String {
    name.strip_prefix("workspaces/").unwrap_or(name).to_owned()
}

/// Returns the short form that people type: `{workspace}`, `{workspace}/{exec}`, `{skill}` or `{pool}` for a full name.
#[must_use]
pub fn short_id(name: &str) -> String {
    let id = ["workspaces/", "skills/", "pools/"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    id.replacen("/execs/", "/", 1)
}

/// Returns the value of `ExecSpec.skill` for a skill that was staged by this reference: the reference without its
/// version; of a skill within a skill, `parent/child`, the last id. Any other `/` is part of the name.
#[must_use]
pub fn staged_skill_name(reference: &str) -> &str {
    let is_id = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && part
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))
    };
    let name = reference.split('@').next().unwrap_or(reference);
    match name.rsplit_once('/') {
        Some((_, last)) if name.split('/').all(is_id) => last,
        Some(_) | None => name,
    }
}

/// Returns a new id for a workspace. The client chooses it so that a repeated request makes nothing twice.
#[must_use]
pub fn new_workspace_id() -> String {
    Uuid::now_v7().to_string()
}

/// Returns a new `request_id`, by which the server recognises retries of one request.
pub(crate) fn new_request_id() -> String {
    Uuid::now_v7().to_string()
}

/// Returns a new id for an exec. The client chooses it so that a repeated request starts nothing twice.
#[must_use]
pub fn new_exec_id() -> String {
    format!("x-{}", Uuid::now_v7().simple())
}

/// Splits an artifact's `NAME@VERSION`. A version is what follows the last `@` if it is digits only, so that
/// `report@final.pdf` is a name; it may be too large for any number.
#[must_use]
pub fn split_version(artifact: &str) -> (&str, Option<&str>) {
    let is_version = |version: &str| version.bytes().all(|byte| byte.is_ascii_digit());
    match artifact.rsplit_once('@') {
        Some((name, version))
            if !(name.is_empty() || version.is_empty()) && is_version(version) =>
        {
            (name, Some(version))
        }
        _ => (artifact, None),
    }
}

/// Returns the id that the caller chose, or a new one if it is empty.
pub(crate) fn id_or_new(id: String, new: fn() -> String) -> String {
    if id.is_empty() { new() } else { id }
}

fn prefixed(prefix: &str, name: &str) -> String {
    if name.starts_with(prefix) {
        name.to_owned()
    } else {
        format!("{prefix}{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_names_and_bare_ids_mean_the_same() {
        for name in ["w1", "workspaces/w1"] {
            assert_eq!(workspace_name(name), "workspaces/w1");
        }
        for name in ["w1/x1", "workspaces/w1/execs/x1"] {
            assert_eq!(exec_name(name), "workspaces/w1/execs/x1");
        }
        assert_eq!(
            skill_name("csv@sha256:0f"),
            skill_name("skills/csv@sha256:0f")
        );
        assert_eq!(pool_name("default"), pool_name("pools/default"));
    }

    #[test]
    fn short_ids_are_what_the_command_line_takes() {
        for name in ["workspaces/w1", "workspaces/w1/execs/x1", "skills/s"] {
            let short = short_id(name);
            let full = match short.split_once('/') {
                Some(_) => exec_name(&short),
                None if name.starts_with("skills/") => skill_name(&short),
                None => workspace_name(&short),
            };
            assert_eq!(full, name);
        }
    }

    #[test]
    fn only_digits_after_the_last_at_sign_are_a_version() {
        for (text, wanted) in [
            ("a@3", ("a", Some("3"))),
            ("a@b@12", ("a@b", Some("12"))),
            ("report@final.pdf", ("report@final.pdf", None)),
            ("a@", ("a@", None)),
            ("@1", ("@1", None)),
            ("a", ("a", None)),
        ] {
            assert_eq!(split_version(text), wanted);
        }
    }

    #[test]
    fn new_ids_are_valid_and_differ() {
        let (a, b) = (new_exec_id(), new_exec_id());
        assert_ne!(a, b);
        assert!(a.len() <= 63 && a.starts_with("x-"));
        assert!(
            a.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        );
    }

    #[test]
    fn a_slash_divides_ids_and_no_other_names() {
        for (reference, folder) in [
            ("csv@1", "csv"),
            ("parent/child", "child"),
            ("a/b_1/c.d-e@sha256:00", "c.d-e"),
            ("acme:deploy", "acme:deploy"),
            ("CI/CD helper", "CI/CD helper"),
            ("数据/report", "数据/report"),
            ("a//b", "a//b"),
        ] {
            assert_eq!(staged_skill_name(reference), folder, "{reference}");
        }
    }
}

//! Grammar of the ids in resource names, and the last components of paths.

/// Maximum length of an id in a resource name, in bytes.
pub const RESOURCE_ID_BYTES_MAX: usize = 63;

/// Returns `true` for the id of a workspace, exec, pool or tenant: `[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?`. Such an id
/// is one component of a path, and neither `.` nor `..`.
pub fn is_resource_id(text: &str) -> bool {
    let is_outer = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_inner = |byte: &u8| is_outer(byte) || b"._-".contains(byte);
    let bytes = text.as_bytes();
    bytes.len() <= RESOURCE_ID_BYTES_MAX
        && bytes.first().is_some_and(is_outer)
        && bytes.last().is_some_and(is_outer)
        && bytes.iter().all(is_inner)
}

/// Returns the last component of a path whose components are separated by slashes; empty after a trailing slash.
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the id of a skill, given its resource name. The id is also the folder of a staged skill beneath `skills/`.
#[must_use]
pub fn strip_skill_prefix(name: &str) -> &str {
    name.strip_prefix("skills/").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_cannot_leave_their_directory() {
        let longest = "x".repeat(RESOURCE_ID_BYTES_MAX);
        for good in ["a", "0", "a.b-c_d", "x-1.a_b", &longest] {
            assert!(is_resource_id(good), "{good:?}");
        }
        let too_long = format!("{longest}x");
        for bad in [
            "", ".", "..", "a/b", "../a", "-a", "a-", "a.", "A", "a ", "a b", "a\n", "a\0", "ä",
            &too_long,
        ] {
            assert!(!is_resource_id(bad), "{bad:?}");
        }
    }
}

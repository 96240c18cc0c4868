//! Ids of commands, as models hand them back.

/// Whether a session id can be the id of a command. Another one leads nowhere else.
pub(super) fn is_exec_id(id: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inner = |byte: u8| letter(byte) || matches!(byte, b'.' | b'_' | b'-');
    id.len() <= 63
        && id.bytes().all(inner)
        && id.bytes().next().is_some_and(letter)
        && id.bytes().last().is_some_and(letter)
}

/// The full name of a command.
pub(super) fn exec_name(workspace: &str, id: &str) -> String {
    format!("{workspace}/execs/{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_nowhere_else() {
        for id in ["", "a/b", "../a", "A", "a ", "-a", "a-", &"a".repeat(64)] {
            assert!(!is_exec_id(id), "{id:?}");
        }
        assert!(is_exec_id("x-1.a_b"));
    }
}

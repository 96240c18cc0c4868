//! Keys of loaded skills and selections in a session's state, spelled as the reference systems spell them. Older
//! spellings are read where they can only mean this agent; the first spelling is written.

use std::fmt::Write;

use crate::tool_definition::LoadMode;

/// Key of the artifacts that the last call with artifacts saved; one key for all agents.
pub const ARTIFACTS: &str = "temp:skill:artifacts";
/// Prefix of keys that do not outlive the process in the reference systems.
const TEMP: &str = "temp:";

/// Agent whose skills a key is about, and the time that they stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadScope<'a> {
    /// Name of the agent; blank where there is only one.
    pub agent: &'a str,
    /// Time that a skill stays loaded.
    pub mode: LoadMode,
}

impl<'a> LoadScope<'a> {
    /// Creates the scope of an agent.
    #[must_use]
    pub fn new(agent: &'a str, mode: LoadMode) -> Self {
        Self {
            agent: agent.trim(),
            mode,
        }
    }
}

/// Kind of a key: what it stores of a skill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyKind {
    /// Mark of a loaded skill.
    Loaded,
    /// Selected docs.
    Docs,
    /// Selected tools.
    Tools,
}

impl KeyKind {
    pub(crate) const ALL: [Self; 3] = [Self::Loaded, Self::Docs, Self::Tools];

    fn word(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Docs => "docs",
            Self::Tools => "tools",
        }
    }
}

/// Returns the key to write.
pub(crate) fn key(scope: LoadScope<'_>, kind: KeyKind, skill: &str) -> String {
    let mut prefixes = prefixes(scope, kind);
    let mut key = prefixes.swap_remove(0);
    key.push_str(skill.trim());
    key
}

/// Returns the keys to read, the one that counts first.
pub(crate) fn keys(scope: LoadScope<'_>, kind: KeyKind, skill: &str) -> Vec<String> {
    let prefixes = prefixes(scope, kind);
    let skill = skill.trim();
    let keys = prefixes
        .into_iter()
        .map(|prefix| format!("{prefix}{skill}"));
    keys.collect()
}

/// Returns the prefix of a key before the skill's name, in each spelling.
pub(crate) fn prefixes(scope: LoadScope<'_>, kind: KeyKind) -> Vec<String> {
    let word = kind.word();
    spellings(scope, |agent| match agent {
        Some(agent) => format!("skill:{word}_by_agent:{agent}/"),
        None => format!("skill:{word}:"),
    })
}

/// Returns the keys of the order in which skills were touched.
pub(crate) fn order_keys(scope: LoadScope<'_>) -> Vec<String> {
    spellings(scope, |agent| match agent {
        Some(agent) => format!("skill:loaded_order_by_agent:{agent}"),
        None => "skill:loaded_order:".to_owned(),
    })
}

fn spellings(scope: LoadScope<'_>, key: impl Fn(Option<&str>) -> String) -> Vec<String> {
    let agents = agent_spellings(scope.agent);
    let keys: Vec<String> = if agents.is_empty() {
        vec![key(None)]
    } else {
        agents.iter().map(|agent| key(Some(agent))).collect()
    };
    let temporary = keys.iter().map(|key| format!("{TEMP}{key}"));
    match scope.mode {
        // The Go system keeps `temp:` also where skills stay for the session.
        LoadMode::Session => keys.iter().cloned().chain(temporary).collect(),
        LoadMode::Once | LoadMode::Turn => temporary.collect(),
    }
}

/// Returns an agent's name for keys: as it is, or percent-encoded where it has a slash or a percent sign. Encoded names
/// have a percent sign and the others have none, so no two agents share a spelling.
#[must_use]
pub fn escape_agent(agent: &str) -> String {
    if agent.contains(['/', '%']) {
        percent(agent, "-_.~")
    } else {
        agent.to_owned()
    }
}

/// Returns all spellings of an agent's name; the first is the one that is written.
fn agent_spellings(agent: &str) -> Vec<String> {
    let agent = agent.trim();
    if agent.is_empty() {
        return Vec::new();
    }
    let mut names = vec![escape_agent(agent)];
    if agent.contains('/') {
        // As Go's url.PathEscape does it.
        names.push(percent(agent, "-_.~$&+=:@"));
    } else if agent.contains('%') && !is_of_another(agent) {
        names.push(agent.to_owned());
    }
    names.dedup();
    names
}

/// Returns `true` if a name with a percent sign is the encoded name of another agent, which owns the key.
fn is_of_another(agent: &str) -> bool {
    decode(agent).is_some_and(|other| other.contains(['/', '%']))
}

fn percent(text: &str, safe: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || safe.as_bytes().contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// Decodes percent escapes; `None` if a percent sign is not followed by two hex digits.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scope(agent: &str) -> LoadScope<'_> {
        LoadScope::new(agent, LoadMode::Turn)
    }

    #[test]
    fn keys_are_those_of_the_reference_systems() {
        assert_eq!(
            key(scope("planner"), KeyKind::Loaded, "csv"),
            "temp:skill:loaded_by_agent:planner/csv"
        );
        assert_eq!(
            key(scope("a/b"), KeyKind::Docs, "csv"),
            "temp:skill:docs_by_agent:a%2Fb/csv"
        );
        assert_eq!(
            key(scope(" "), KeyKind::Tools, "csv"),
            "temp:skill:tools:csv"
        );
        assert_eq!(
            order_keys(scope("planner")),
            ["temp:skill:loaded_order_by_agent:planner"]
        );
        assert_eq!(order_keys(scope("")), ["temp:skill:loaded_order:"]);
        assert_eq!(
            keys(
                LoadScope::new("p", LoadMode::Session),
                KeyKind::Loaded,
                "csv"
            ),
            [
                "skill:loaded_by_agent:p/csv",
                "temp:skill:loaded_by_agent:p/csv"
            ]
        );
    }

    #[test]
    fn an_agent_name_with_a_slash_shares_no_key_with_its_escape() {
        let slash = keys(scope("a/b"), KeyKind::Loaded, "s");
        let escape = keys(scope("a%2Fb"), KeyKind::Loaded, "s");
        assert_eq!(slash, ["temp:skill:loaded_by_agent:a%2Fb/s"]);
        assert_eq!(escape, ["temp:skill:loaded_by_agent:a%252Fb/s"]);
    }

    #[test]
    fn old_spellings_are_read_where_they_are_nobody_elses() {
        assert_eq!(agent_spellings("100%"), ["100%25", "100%"]);
        assert_eq!(agent_spellings("a/b:c"), ["a%2Fb%3Ac", "a%2Fb:c"]);
        assert_eq!(agent_spellings("a:b"), ["a:b"]);
    }

    proptest! {
        #[test]
        fn no_two_agents_share_a_spelling(a in "[ab/%25F:]{1,8}", b in "[ab/%25F:]{1,8}") {
            prop_assume!(a != b);
            let (a, b) = (agent_spellings(&a), agent_spellings(&b));
            prop_assert!(a.iter().all(|name| !b.contains(name)), "{a:?} {b:?}");
        }
    }
}

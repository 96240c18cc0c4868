//! Section `[audit]`: where the audit log is written, and what a call waits for.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::Deserializer;

use super::values;

/// Section `[audit]`: the log of decisions.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditConfig {
    /// Absolute path of the audit log; `None` writes none.
    #[serde(deserialize_with = "values::optional_path")]
    pub file: Option<PathBuf>,
    /// Behaviour when the log can't be written.
    pub delivery: AuditDelivery,
    /// Maximum time until a written record is on the disk. With zero a call waits for the disk.
    #[serde(deserialize_with = "sync_interval")]
    pub sync_interval: Duration,
    /// Name of this host in records; `None` means the host's own.
    #[serde(deserialize_with = "values::optional_text")]
    pub node: Option<String>,
}

/// Behaviour of the daemon when the audit log can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditDelivery {
    /// Calls wait for their records, and those that change something are refused while none can be written.
    Enforced,
    /// Calls never wait, and lost records are counted.
    BestEffort,
}

fn sync_interval<'de, D: Deserializer<'de>>(source: D) -> Result<Duration, D::Error> {
    values::parsed(source, |text| {
        humantime::parse_duration(text)
            .map_err(|_| format!("{text:?} is not a time; write it like \"100ms\""))
    })
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn settings_are_checked_with_their_relations() {
        let long = format!("audit.node = \"{}\"", "n".repeat(254));
        for (text, fault) in [
            (
                "audit.delivery = \"maybe\"",
                "audit.delivery: \"maybe\" is none of its values; use \"enforced\" or \"best_effort\"",
            ),
            (
                "audit.sync_interval = \"soon\"",
                "audit.sync_interval: \"soon\" is not a time",
            ),
            (
                "audit.sync_interval = \"11s\"",
                "audit.sync_interval: must not be over 10s",
            ),
            (
                "audit = { delivery = \"best_effort\", sync_interval = \"0s\" }",
                "audit.sync_interval: must be over zero with",
            ),
            (&long, "audit.node: must have at most 253 bytes, has 254"),
            (
                "audit.file = \"/var/lib/skilld/slots/a.log\"",
                "audit.file: is a path that skilld uses",
            ),
            (
                "audit.file = \"/var/lib/skilld/workspace_token.key\"",
                "audit.file: is a path that skilld uses",
            ),
            (
                "audit.file = \"/var/lib/skilld/usage.json\"",
                "audit.file: is a path that skilld uses",
            ),
            (
                "audit.file = \"/var/lib/skilld/podman/a.log\"",
                "audit.file: is a path that skilld uses",
            ),
            (
                "audit.file = \"/run/skilld/skilld.sock\"",
                "audit.file: is a path that skilld uses",
            ),
            (
                "files.host_roots = [\"/srv\"]\naudit.file = \"/srv/log/audit.log\"",
                "audit.file: lies in /srv, whose files every client can read",
            ),
        ] {
            let faults = Config::from_toml(text).expect_err(text).0;
            assert!(
                faults.len() == 1 && faults[0].starts_with(fault),
                "{faults:?}"
            );
        }
        for text in [
            "audit.file = \"/var/lib/skilld/audit.log\"",
            "audit.sync_interval = \"0s\"",
        ] {
            Config::from_toml(text).expect(text);
        }
    }
}

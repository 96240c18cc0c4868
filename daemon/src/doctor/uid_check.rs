//! Check that the uids of containers, which are their gids too, belong to no account, group or user of the host.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

use skilld_common::excerpts::join_first;

use super::report::CheckLine;
use crate::config::EngineConfig;

/// Files of ids that have an owner: path, field of an id or of the first one of a range, and field of a range's length. Each
/// line begins with the owner's name.
const FILES: [(&str, usize, Option<usize>); 4] = [
    ("/etc/passwd", 2, None),
    ("/etc/group", 2, None),
    ("/etc/subuid", 1, Some(2)),
    ("/etc/subgid", 1, Some(2)),
];
/// Name under which the operator reserves the range.
const OWNER: &str = "skilld";
/// Maximum number of bytes that are read of each file: hundreds of thousands of accounts.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Maximum number of owners that a finding names.
const NAMED_MAX: usize = 3;

/// Checks the range of uids against the files of this host. Users that only a network knows are not seen. Blocks.
pub(super) fn check_uids(engine: &EngineConfig) -> CheckLine {
    let texts = FILES.map(|(path, ..)| read_bounded(path).unwrap_or_default());
    check_range(engine, &texts)
}

fn read_bounded(path: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Checks the range against the texts of [`FILES`].
fn check_range(engine: &EngineConfig, texts: &[String; 4]) -> CheckLine {
    let (check, subject) = ("uids", "uids");
    let (start, count) = (u64::from(engine.uid_base), u64::from(engine.uid_count));
    let end = start + count;
    let range = format!("{start} to {}", end.saturating_sub(1));
    let (mut owners, mut is_reserved) = (Vec::new(), false);
    for ((path, first, number), text) in FILES.iter().zip(texts) {
        for line in text.lines() {
            let Some((owner, ids)) = parse_line(line, *first, *number) else {
                continue;
            };
            let is_range = number.is_some();
            if is_range && owner == OWNER {
                is_reserved |= ids.start <= start && ids.end >= end;
            } else if ids.start < end && ids.end > start {
                owners.push(format!("{owner} of {path}"));
            }
        }
    }
    let reserve = format!("run `echo '{OWNER}:{start}:{count}' >> /etc/subuid`");
    if owners.is_empty() && is_reserved {
        return CheckLine::ok(check, subject, format!("{range} are free and reserved"));
    }
    if owners.is_empty() {
        let finding =
            format!("{range} are free, and not reserved: useradd can give them to a new user");
        return CheckLine::warning(check, subject, finding, reserve);
    }
    let finding = format!(
        "{range} are not free, but belong to {}: processes of containers could share files, limits and signals with them",
        join_first(owners.into_iter(), NAMED_MAX)
    );
    let remedy = format!(
        "set engine.uid_base to the first of {count} free uids, and reserve them with a line `{OWNER}:BASE:{count}` in /etc/subuid"
    );
    CheckLine::failed(check, subject, finding, remedy)
}

/// Returns owner and ids of a line; `None` for one of another form.
fn parse_line(line: &str, first: usize, number: Option<usize>) -> Option<(&str, Range<u64>)> {
    let fields: Vec<&str> = line.split(':').map(str::trim).collect();
    let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let start = field(first)?;
    let count = number.map_or(Some(1), field)?;
    Some((fields.first()?, start..start.checked_add(count)?))
}

#[cfg(test)]
mod tests {
    use super::super::report::CheckState;
    use super::*;
    use crate::config::Config;

    #[test]
    fn uids_of_others_fail_and_unreserved_ones_warn() {
        let engine = Config::from_toml("").expect("valid").config.engine;
        let ours = "skilld:200000:65536\n";
        for (file, text, state) in [
            (2, ours, CheckState::Ok),
            (3, "", CheckState::Warning),
            (2, "skilld:200000:65535\n", CheckState::Warning),
            (
                0,
                "a:x:199999:1::/:\nb:x:265536:1::/:\n",
                CheckState::Warning,
            ),
            (0, "a:x:200000:1::/:\n", CheckState::Failed),
            (1, "g:x:265535:\n", CheckState::Failed),
            (
                2,
                "b:165536:65536\nskilld:200000:65536\n",
                CheckState::Failed,
            ),
            (2, "b:100000:100000\nskilld:200000:65536\n", CheckState::Ok),
            (3, "b:265535:1\n", CheckState::Failed),
            (
                2,
                "b:1:18446744073709551615\n:\n\nb:-1:5\n#",
                CheckState::Warning,
            ),
        ] {
            let mut texts: [String; 4] = Default::default();
            texts[file] = text.to_owned();
            let line = check_range(&engine, &texts);
            assert_eq!(line.state, state, "{text}: {line:?}");
            if state == CheckState::Failed {
                let owner = text.split(':').next().expect("an owner");
                let named = format!("{owner} of {}", FILES[file].0);
                assert!(line.finding.contains(&named), "{line:?}");
            }
        }
    }
}

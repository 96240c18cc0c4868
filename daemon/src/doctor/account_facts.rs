//! Facts about uids and gids of the host: accounts, groups, and the ranges that `/etc/subuid` and `/etc/subgid` reserve.

use std::fs::File;
use std::io::{self, Read};

/// Maximum number of bytes that are read of each file: hundreds of thousands of accounts.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Range of ids of one owner, from `start` to before `end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IdRange {
    /// Name of the account, the group, or the owner of the reservation.
    pub(super) owner: String,
    /// File that has the range.
    pub(super) file: &'static str,
    /// First id.
    pub(super) start: u64,
    /// First id after the range.
    pub(super) end: u64,
}

/// Ids that the host has given away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AccountFacts {
    /// Accounts and groups, each a range of one id.
    pub(super) accounts: Vec<IdRange>,
    /// Ranges that `/etc/subuid` and `/etc/subgid` reserve for their owners.
    pub(super) reserved: Vec<IdRange>,
    /// Files that can't be read, with the reason.
    pub(super) unreadable: Vec<String>,
}

impl AccountFacts {
    /// Returns the name of a user of this host; `None` if `/etc/passwd` does not have it.
    pub(super) fn user_name(&self, uid: u32) -> Option<&str> {
        let is_user =
            |account: &&IdRange| account.file == "/etc/passwd" && account.start == u64::from(uid);
        let account = self.accounts.iter().find(is_user)?;
        Some(&account.owner)
    }
}

/// Reads the files of accounts, and not the directories of users that a network may have: those can hang. Blocks for a
/// moment.
pub(super) fn read_account_facts() -> AccountFacts {
    let mut facts = AccountFacts::default();
    for file in ["/etc/passwd", "/etc/group"] {
        match read_bounded(file) {
            Ok(text) => facts.accounts.extend(parse_accounts(file, &text)),
            Err(error) => facts.unreadable.push(format!("{file}: {error}")),
        }
    }
    for file in ["/etc/subuid", "/etc/subgid"] {
        match read_bounded(file) {
            Ok(text) => facts.reserved.extend(parse_reserved(file, &text)),
            // Without the file nothing is reserved.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => facts.unreadable.push(format!("{file}: {error}")),
        }
    }
    facts
}

fn read_bounded(path: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(FILE_BYTES_MAX)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses lines `NAME:PASSWORD:ID:…`. Skips lines that have another form.
fn parse_accounts(file: &'static str, text: &str) -> Vec<IdRange> {
    let parse = |line: &str| {
        let mut fields = line.split(':');
        let owner = fields.next()?.to_owned();
        let start = u64::from(fields.nth(1)?.parse::<u32>().ok()?);
        Some(IdRange {
            owner,
            file,
            start,
            end: start + 1,
        })
    };
    text.lines().filter_map(parse).collect()
}

/// Parses lines `OWNER:START:COUNT`. Skips lines that have another form, and empty ranges.
fn parse_reserved(file: &'static str, text: &str) -> Vec<IdRange> {
    let parse = |line: &str| {
        let mut fields = line.split(':');
        let owner = fields.next()?.to_owned();
        let start = fields.next()?.trim().parse::<u64>().ok()?;
        let count = fields.next()?.trim().parse::<u64>().ok()?;
        let end = start.checked_add(count)?;
        (count > 0 && !owner.starts_with('#')).then_some(IdRange {
            owner,
            file,
            start,
            end,
        })
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(ranges: &[IdRange]) -> Vec<(&str, u64, u64)> {
        ranges
            .iter()
            .map(|range| (range.owner.as_str(), range.start, range.end))
            .collect()
    }

    #[test]
    fn accounts_are_parsed_and_odd_lines_skipped() {
        let text = "root:x:0:0:root:/root:/bin/sh\n+::::::\n\nx\nbad:x:-1:0\nbig:x:4294967296:0\nlast:x:4294967295:";
        let found = parse_accounts("/etc/passwd", text);
        assert_eq!(
            bounds(&found),
            [("root", 0, 1), ("last", 4_294_967_295, 4_294_967_296)]
        );
    }

    #[test]
    fn reserved_ranges_are_parsed_and_odd_lines_skipped() {
        let text = "skilld:200000:65536\n#off:1:2\n1000:100000: 65536 \nempty:5:0\nodd:x:1\nover:18446744073709551615:2\nshort:1\n";
        let found = parse_reserved("/etc/subuid", text);
        assert_eq!(
            bounds(&found),
            [("skilld", 200_000, 265_536), ("1000", 100_000, 165_536)]
        );
    }

    #[test]
    fn accounts_of_this_host_can_be_read() {
        let facts = read_account_facts();
        assert!(facts.accounts.iter().any(|account| account.start == 0));
        assert!(facts.unreadable.is_empty(), "{facts:?}");
        assert_eq!(facts.user_name(0), Some("root"));
        assert_eq!(facts.user_name(u32::MAX), None);
    }
}

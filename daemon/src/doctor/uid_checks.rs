//! Check that no account, group or reservation of another user lies in the range of uids that containers use. Pure.

use super::account_facts::{AccountFacts, IdRange};
use super::report::CheckLine;
use crate::config::EngineConfig;

/// Name under which the operator reserves the range.
const OWNER: &str = "skilld";
/// Maximum number of owners that a finding names.
const NAMED_MAX: usize = 3;
/// First id that no range may contain: the largest u32 means "no uid" to the kernel.
const ID_END: u64 = u32::MAX as u64;

/// Checks the range of uids, which containers use as gids, too.
pub(super) fn check_uids(engine: &EngineConfig, accounts: &AccountFacts, uid: u32) -> CheckLine {
    let (check, subject) = ("uids", "uids");
    let start = u64::from(engine.uid_base);
    let count = u64::from(engine.uid_count);
    let end = start + count;
    let range = format!("{start} to {}", end.saturating_sub(1));
    let user = accounts.user_name(uid);
    let (own, foreign): (Vec<&IdRange>, Vec<&IdRange>) = accounts
        .reserved
        .iter()
        .partition(|reserved| is_own(&reserved.owner, uid, user));
    let mut taken: Vec<&IdRange> = accounts.accounts.iter().chain(foreign).collect();
    taken.sort_by_key(|taken| taken.start);
    let conflicts: Vec<&IdRange> = taken
        .iter()
        .filter(|taken| taken.start < end && taken.end > start)
        .copied()
        .collect();
    if !conflicts.is_empty() {
        let finding = format!(
            "{range} are not free: {}; processes of containers could share files, limits and signals with them",
            describe_conflicts(&conflicts)
        );
        let remedy = match find_free_base(start, count, &taken) {
            Some(base) => format!(
                "set engine.uid_base = {base}, from where {count} uids are free, and run `echo '{OWNER}:{base}:{count}' \
                 >> /etc/subuid`"
            ),
            None => "set engine.uid_base and engine.uid_count to a range that is free".to_owned(),
        };
        return CheckLine::failed(check, subject, finding, remedy);
    }
    if !accounts.unreadable.is_empty() {
        return CheckLine::warning(
            check,
            subject,
            format!(
                "{range} can't be checked: {}",
                accounts.unreadable.join(", ")
            ),
            "make these files readable",
        );
    }
    let is_reserved = own.iter().any(|reserved| {
        reserved.file == "/etc/subuid" && reserved.start <= start && reserved.end >= end
    });
    if !is_reserved {
        return CheckLine::warning(
            check,
            subject,
            format!("{range} are free, and not reserved: useradd can give them to a new user"),
            format!("run `echo '{OWNER}:{start}:{count}' >> /etc/subuid`"),
        );
    }
    CheckLine::ok(check, subject, format!("{range} are free and reserved"))
}

/// Returns `true` if a reservation is that of skilld, or of the user who runs it. The reservation of root belongs to
/// other container engines.
fn is_own(owner: &str, uid: u32, user: Option<&str>) -> bool {
    let is_user = user == Some(owner) || uid.to_string() == owner;
    owner == OWNER || (is_user && uid != 0)
}

fn describe_conflicts(conflicts: &[&IdRange]) -> String {
    let mut shown: Vec<String> = conflicts
        .iter()
        .take(NAMED_MAX)
        .map(|range| match range.end - range.start {
            1 => format!("{} of {} is {}", range.start, range.file, range.owner),
            _ => format!(
                "{} has {} to {} in {}",
                range.owner,
                range.start,
                range.end - 1,
                range.file
            ),
        })
        .collect();
    let more = conflicts.len().saturating_sub(NAMED_MAX);
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

/// Returns the first id from `base` on after which `count` ids are free. `taken` is sorted by its starts.
fn find_free_base(mut base: u64, count: u64, taken: &[&IdRange]) -> Option<u64> {
    for range in taken {
        if base + count <= range.start {
            break;
        }
        base = base.max(range.end);
        if base >= ID_END {
            return None;
        }
    }
    (base + count <= ID_END).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::super::report::CheckState;
    use super::*;
    use crate::config::Config;

    fn range(owner: &str, file: &'static str, start: u64, count: u64) -> IdRange {
        IdRange {
            owner: owner.to_owned(),
            file,
            start,
            end: start + count,
        }
    }

    fn check(uid_base: u32, accounts: &[IdRange], reserved: &[IdRange]) -> CheckLine {
        let mut engine = Config::from_toml("").expect("defaults").config.engine;
        engine.uid_base = uid_base;
        let facts = AccountFacts {
            accounts: accounts.to_vec(),
            reserved: reserved.to_vec(),
            unreadable: Vec::new(),
        };
        check_uids(&engine, &facts, 0)
    }

    #[test]
    fn accounts_and_ranges_of_others_within_the_uids_fail() {
        let subuid = |owner, start, count| range(owner, "/etc/subuid", start, count);
        let own = subuid("skilld", 200_000, 65_536);
        let account = |id| range("eve", "/etc/passwd", id, 1);
        for (accounts, reserved, state) in [
            (vec![], vec![own.clone()], CheckState::Ok),
            (vec![], vec![], CheckState::Warning),
            (
                vec![],
                vec![subuid("skilld", 200_000, 65_535)],
                CheckState::Warning,
            ),
            (
                vec![account(199_999), account(265_536)],
                vec![own.clone()],
                CheckState::Ok,
            ),
            (
                vec![account(200_000)],
                vec![own.clone()],
                CheckState::Failed,
            ),
            (
                vec![account(265_535)],
                vec![own.clone()],
                CheckState::Failed,
            ),
            (
                vec![],
                vec![subuid("eve", 165_536, 65_536)],
                CheckState::Failed,
            ),
            (
                vec![],
                vec![own.clone(), subuid("root", 0, u64::MAX)],
                CheckState::Failed,
            ),
            (
                vec![],
                vec![own.clone(), subuid("eve", 265_536, 65_536)],
                CheckState::Ok,
            ),
            (
                vec![],
                vec![own.clone(), subuid("eve", 134_464, 65_536)],
                CheckState::Ok,
            ),
            (
                vec![],
                vec![range("skilld", "/etc/subgid", 200_000, 65_536)],
                CheckState::Warning,
            ),
        ] {
            let line = check(200_000, &accounts, &reserved);
            assert_eq!(line.state, state, "{line:?}");
        }
    }

    #[test]
    fn remedy_names_a_range_that_is_free() {
        let taken = [
            range("a", "/etc/subuid", 165_536, 65_536),
            range("b", "/etc/subuid", 231_072, 65_536),
            range("c", "/etc/subuid", 231_072, 10),
            range("d", "/etc/subuid", 500_000, 65_536),
        ];
        let line = check(200_000, &[range("e", "/etc/passwd", 300_000, 1)], &taken);
        let remedy = line.remedy.expect("a remedy");
        assert!(remedy.contains("uid_base = 300001,"), "{remedy}");
        let full = [range("a", "/etc/subuid", 0, u64::from(u32::MAX))];
        let line = check(200_000, &[], &full);
        let remedy = line.remedy.expect("a remedy");
        assert!(remedy.contains("a range that is free"), "{remedy}");
    }

    #[test]
    fn ranges_at_the_end_of_all_numbers_do_no_harm() {
        let beyond = [range("a", "/etc/subuid", u64::MAX - 1, 1)];
        assert_eq!(check(u32::MAX, &[], &beyond).state, CheckState::Warning);
        let many: Vec<IdRange> = (0..9)
            .map(|id| range("x", "/etc/group", 200_000 + id, 1))
            .collect();
        let line = check(200_000, &many, &[]);
        assert!(line.finding.contains("6 more"), "{line:?}");
    }

    #[test]
    fn a_user_other_than_root_may_own_the_reservation() {
        let engine = Config::from_toml("").expect("defaults").config.engine;
        let facts = AccountFacts {
            accounts: vec![range("agent", "/etc/passwd", 1000, 1)],
            reserved: vec![range("agent", "/etc/subuid", 200_000, 65_536)],
            unreadable: Vec::new(),
        };
        assert_eq!(check_uids(&engine, &facts, 1000).state, CheckState::Ok);
        assert_eq!(check_uids(&engine, &facts, 1001).state, CheckState::Failed);
    }

    #[test]
    fn files_that_cannot_be_read_are_a_warning() {
        let engine = Config::from_toml("").expect("defaults").config.engine;
        let facts = AccountFacts {
            unreadable: vec!["/etc/passwd: denied".to_owned()],
            ..AccountFacts::default()
        };
        let line = check_uids(&engine, &facts, 0);
        assert_eq!(line.state, CheckState::Warning);
        assert!(line.finding.contains("/etc/passwd: denied"), "{line:?}");
    }
}

//! Tests of the ledger: days, restarts, bounds.

use skilld_proto::v1::ExitReason;

use super::*;

fn tenant() -> TenantName {
    TenantName::default()
}

fn ended(reason: ExitReason, user_ms: i32, sys_ms: i32) -> ExecResult {
    let time = |ms: i32| prost_types::Duration {
        seconds: i64::from(ms / 1000),
        nanos: ms % 1000 * 1_000_000,
    };
    ExecResult {
        reason: reason.into(),
        user_duration: Some(time(user_ms)),
        system_duration: Some(time(sys_ms)),
        ..ExecResult::default()
    }
}

/// Makes a ledger that starts at `start_ms` without a file.
fn ledger(start_ms: u64) -> UsageLedger {
    UsageLedger::new(start_ms, None)
}

#[test]
fn time_of_a_workspace_is_split_at_midnight_and_at_the_start() {
    let midnight = now_ms() / DAY_MS * DAY_MS;
    let day = midnight / DAY_MS;
    let ledger = ledger(midnight + 1000);
    ledger.add_workspace_time(&tenant(), 3 << 30, midnight - 5000..midnight + 2000);
    let usage = ledger.read(&tenant());
    assert_eq!(usage.since_start.workspace_ms, 1000);
    let of = |day: u64| usage.days.get(&day).expect("a day").clone();
    assert_eq!(
        (of(day - 1).workspace_ms, of(day).workspace_ms),
        (5000, 2000)
    );
    assert_eq!(of(day).memory_byte_ms, (3 << 30) * 2000);
}

#[test]
fn usage_days_are_bounded_even_after_a_long_absence() {
    let now = now_ms();
    let ledger = ledger(now);
    ledger.add_workspace_time(&tenant(), 1, now - 100 * DAY_MS..now);
    let days = ledger.read(&tenant()).days;
    let expected: Vec<u64> = (now / DAY_MS - PAST_DAYS..=now / DAY_MS).collect();
    assert_eq!(days.into_keys().collect::<Vec<_>>(), expected);
}

#[test]
fn execs_are_counted_by_end_reason_with_processor_time() {
    let ledger = ledger(now_ms());
    ledger.add_exec(&tenant(), &ended(ExitReason::Exited, 1500, 250));
    ledger.add_exec(&tenant(), &ended(ExitReason::Exited, 0, 1));
    ledger.add_exec(&tenant(), &ended(ExitReason::OomKilled, -5, 0));
    let counters = ledger.read(&tenant()).since_start;
    assert_eq!(counters.cpu_us, 1_751_000, "a negative time counts as none");
    let execs = [
        (ExitReason::Exited.into(), 2),
        (ExitReason::OomKilled.into(), 1),
    ];
    assert_eq!(counters.execs, BTreeMap::from(execs));
}

#[test]
fn bytes_of_calls_are_counted_once() {
    let ledger = ledger(now_ms());
    let meter = ledger.meter(&tenant());
    meter.count_in(3);
    ledger.meter(&tenant()).count_out(5);
    for _ in 0..2 {
        let counters = ledger.read(&tenant()).since_start;
        assert_eq!((counters.bytes_in, counters.bytes_out), (3, 5));
    }
    ledger.add_stored(&tenant(), 7);
    assert_eq!(ledger.read(&tenant()).since_start.bytes_stored, 7);
}

#[test]
fn days_survive_a_restart_and_the_gap_is_filled_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = ledger(now_ms());
    first.add_exec(&tenant(), &ended(ExitReason::Exited, 1, 0));
    first.meter(&tenant()).count_in(9);
    // The later daemons start and end in the past.
    let saved = now_ms() - 120_000;
    first.save(dir.path(), saved).expect("saved");
    let today = first.read(&tenant()).days;

    let second = UsageLedger::open(dir.path());
    assert_eq!(second.read(&tenant()).days, today);
    assert_eq!(second.read(&tenant()).since_start, UsageCounters::default());
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);

    let file = usage_file::load(dir.path()).expect("a file");
    assert_eq!(file.saved_ms, saved);
    let third = UsageLedger::new(saved + 60_000, Some(file));
    let exec = |start_ms: u64, end_ms: u64| {
        let at = |ms: u64| Some(from_unix_ms(ms).into());
        Exec {
            start_time: at(start_ms),
            end_time: at(end_ms),
            result: Some(ended(ExitReason::Exited, 0, 0)),
            ..Exec::default()
        }
    };
    for end in [saved, saved + 1, saved + 59_999, saved + 60_001] {
        third.add_earlier_exec(&tenant(), &exec(saved - 5, end));
    }
    // This daemon has seen the end of an exec that it started itself.
    third.add_earlier_exec(&tenant(), &exec(saved + 60_000, saved + 60_001));
    let usage = third.read(&tenant());
    let exited = ExitReason::Exited.into();
    assert_eq!(usage.since_start.execs, BTreeMap::from([(exited, 1)]));
    let counted: u64 = usage.days.values().flat_map(|day| day.execs.values()).sum();
    assert_eq!(counted, 1 + 3);
}

#[test]
fn a_damaged_file_is_ignored_and_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    for text in ["{", r#"{"version":2,"saved_ms":1,"tenants":{}}"#, ""] {
        std::fs::write(dir.path().join("usage.json"), text).expect("written");
        let ledger = UsageLedger::open(dir.path());
        assert_eq!(ledger.read(&tenant()), TenantUsage::default());
        ledger.save(dir.path(), now_ms()).expect("saved");
        assert!(usage_file::load(dir.path()).is_some());
    }
}

#[test]
fn a_guest_with_hostile_times_and_reasons_leaves_one_valid_day() {
    let ledger = ledger(now_ms() - 1000);
    let exec = |end_seconds: i64| Exec {
        start_time: Some(prost_types::Timestamp::default()),
        end_time: Some(prost_types::Timestamp {
            seconds: end_seconds,
            nanos: i32::MAX,
        }),
        result: Some(ExecResult {
            reason: i32::MAX,
            user_duration: Some(prost_types::Duration {
                seconds: i64::MAX,
                nanos: i32::MIN,
            }),
            ..ExecResult::default()
        }),
        ..Exec::default()
    };
    // Years 9999, 10000 and 292 billion.
    for end_seconds in [253_402_300_799, 253_402_300_800, i64::MAX] {
        ledger.add_earlier_exec(&tenant(), &exec(end_seconds));
    }
    for reason in 100..200 {
        let result = ExecResult {
            reason,
            ..ExecResult::default()
        };
        ledger.add_exec(&tenant(), &result);
    }
    let usage = ledger.read(&tenant());
    let today = now_ms() / DAY_MS;
    assert!(
        usage
            .days
            .keys()
            .all(|day| (today - 1..=today).contains(day))
    );
    let reasons: Vec<i32> = usage.since_start.execs.into_keys().collect();
    assert_eq!(reasons, [i32::from(ExitReason::Unspecified)]);
}

#[test]
fn days_to_come_are_dropped_from_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let today = now_ms() / DAY_MS;
    let days = [0, today - 1, today, today + 2, 2_932_897, u64::MAX]
        .map(|day| (day, UsageCounters::default()));
    let tenants = BTreeMap::from([(tenant(), BTreeMap::from(days))]);
    usage_file::save(dir.path(), now_ms(), tenants).expect("saved");
    let kept: Vec<u64> = UsageLedger::open(dir.path())
        .read(&tenant())
        .days
        .into_keys()
        .collect();
    assert!(kept.ends_with(&[today - 1, today]), "{kept:?}");
    assert_eq!(kept.len(), 2);
}

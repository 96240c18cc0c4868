//! Changes of what was written, each of which verification finds.

use skilld_common::audit_chain::{ChainKey, LINE_BYTES_MAX, LineHash, MAC_BEGIN};

use super::*;

/// Returns the lines of an intact log, line ends included.
async fn write_lines() -> Vec<String> {
    write_keyed_lines().await.0
}

/// Returns the lines of an intact log, and the key of their MACs.
async fn write_keyed_lines() -> (Vec<String>, ChainKey) {
    let dir = LogDir::new();
    let log = dir.open().await;
    for number in 0..20 {
        log.record(record(&format!("id-{number}")))
            .await
            .expect("written");
    }
    log.close().await;
    let text = fs::read_to_string(dir.file()).expect("reads");
    let key = ArgvKey::load_or_create(&dir.state_dir()).expect("a key");
    let lines = text.split_inclusive('\n').map(str::to_owned).collect();
    (lines, key.chain_key())
}

/// Returns a line without its MAC.
fn remove_mac(line: &str) -> String {
    let begin = std::str::from_utf8(MAC_BEGIN).expect("ASCII");
    let (covered, _) = line.rsplit_once(begin).expect("a mac");
    format!("{covered}}}\n")
}

/// Puts the hash of the line before into each of the lines from an index on, as anyone can.
fn chain_again(lines: &mut [String], from: usize) {
    for index in from..lines.len() {
        let hash = LineHash::of_line(lines[index - 1].as_bytes());
        let at = lines[index].find("\"prev\":\"").expect("prev") + "\"prev\":\"".len();
        lines[index].replace_range(at..at + 64, &hash.to_string());
    }
}

/// Verifies with a key. Returns line and fault, and the number of records whose MAC is right.
fn verify_keyed(lines: &[String], key: ChainKey) -> (Option<(u64, ChainFault)>, Option<u64>) {
    let text = lines.concat();
    let report = verify_chain([(String::new(), text.as_bytes())], &[key]).expect("reads");
    let broken = report.broken.map(|broken| (broken.line, broken.fault));
    (broken, report.authenticated)
}

#[tokio::test]
async fn a_record_of_someone_without_the_key_is_found() {
    let (lines, key) = write_keyed_lines().await;
    assert_eq!(verify_keyed(&lines, key), (None, Some(22)));
    let forge = async |change: fn(&mut [String])| {
        let (mut lines, key) = write_keyed_lines().await;
        change(&mut lines);
        assert_eq!(
            verify_files(&[lines.concat()]).broken,
            None,
            "the hashes fit"
        );
        verify_keyed(&lines, key).0
    };
    let changed = forge(|lines| {
        lines[9] = lines[9].replace("blue", "grey");
        chain_again(lines, 10);
    });
    assert_eq!(changed.await, Some((10, ChainFault::WrongMac)));
    let without = forge(|lines| {
        for line in &mut lines[9..] {
            *line = remove_mac(line);
        }
        chain_again(lines, 10);
    });
    assert_eq!(without.await, Some((10, ChainFault::NoMac)));
    let without_any = forge(|lines| {
        for line in lines.iter_mut() {
            *line = remove_mac(line);
        }
        chain_again(lines, 1);
    });
    assert_eq!(without_any.await, Some((22, ChainFault::NoMac)));
    let (lines, _) = write_keyed_lines().await;
    let (_, other) = write_keyed_lines().await;
    let foreign = verify_keyed(&lines, other).0;
    assert_eq!(foreign, Some((1, ChainFault::WrongMac)));
}

#[tokio::test]
async fn records_without_a_mac_before_the_first_one_are_covered_by_it() {
    let dir = LogDir::new();
    dir.open().await.close().await;
    // As a release wrote it that had no MACs.
    let text = fs::read_to_string(dir.file()).expect("reads");
    let mut old: Vec<String> = text.split_inclusive('\n').map(remove_mac).collect();
    chain_again(&mut old, 1);
    fs::write(dir.file(), old.concat()).expect("writes");
    fs::remove_file(dir.state_dir().join("audit-chain")).expect("removes");
    dir.open().await.close().await;
    let text = fs::read_to_string(dir.file()).expect("reads");
    let lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    let key = || {
        let key = ArgvKey::load_or_create(&dir.state_dir()).expect("a key");
        key.chain_key()
    };
    assert_eq!(verify_files(&[text]).broken, None);
    assert_eq!(verify_keyed(&lines, key()), (None, Some(2)));
    let mut changed = lines.clone();
    changed[0] = changed[0].replace("started", "stopped");
    chain_again(&mut changed, 1);
    let fault = verify_keyed(&changed, key()).0;
    assert_eq!(fault, Some((3, ChainFault::WrongMac)));
}

#[tokio::test]
async fn an_empty_file_may_follow_an_incomplete_line() {
    let text = write_lines().await.concat();
    let report = verify_files(&[text + "{\"time\":", String::new()]);
    assert_eq!((report.broken, report.incomplete_bytes), (None, 8));
}

fn verify_files(files: &[String]) -> ChainReport {
    let named = files
        .iter()
        .enumerate()
        .map(|(number, text)| (number.to_string(), text.as_bytes()));
    verify_chain(named, &[]).expect("reads")
}

#[track_caller]
fn check_broken(lines: &[String], line: u64, says: &str) {
    let report = verify_files(&[lines.concat()]);
    let broken = report.broken.expect("is found");
    let fault = broken.fault.to_string();
    assert_eq!((broken.line, fault.contains(says)), (line, true), "{fault}");
    assert_eq!(report.records, line - 1);
}

#[tokio::test]
async fn each_change_of_a_record_is_found_at_its_line_or_the_next() {
    let lines = write_lines().await;
    assert_eq!(verify_files(&[lines.concat()]).records, 22);
    let mut changed = lines.clone();
    changed[9] = changed[9].replace("blue", "grey");
    check_broken(&changed, 11, "one of both was changed");
    changed[9] = lines[9].replace("blue", "bl\\u0075e");
    check_broken(&changed, 11, "one of both was changed");
    changed[9] = lines[9].replace("\"prev\":\"", "\"prev\":\"0");
    check_broken(&changed, 10, "64 lower-case hex digits");
    changed[9] = lines[9].replace("\"sequence\":10", "\"sequence\":-1");
    check_broken(&changed, 10, "not a record");
    changed[9] = lines[9].replace("{\"time\":\"20", "{\"time\":\"xx");
    check_broken(&changed, 10, "RFC 3339");
    changed[9] = "{}\n".to_owned();
    check_broken(&changed, 10, "missing field");
    changed[9] = "\n".to_owned();
    check_broken(&changed, 10, "not a record");
    changed[9] = format!("{}\n", "x".repeat(LINE_BYTES_MAX));
    check_broken(&changed, 10, "has over");
}

#[tokio::test]
async fn removed_inserted_swapped_and_cut_records_are_found() {
    let lines = write_lines().await;
    let mut removed = lines.clone();
    removed.remove(9);
    check_broken(&removed, 10, "missing records: 1");
    removed.drain(9..12);
    check_broken(&removed, 10, "missing records: 4");
    let mut inserted = lines.clone();
    inserted.insert(9, lines[8].clone());
    check_broken(&inserted, 10, "sequence 9 follows 9");
    inserted[9] = lines[9].replace("blue", "grey");
    check_broken(&inserted, 11, "sequence 10 follows 10");
    let mut swapped = lines.clone();
    swapped.swap(9, 10);
    check_broken(&swapped, 10, "missing records: 1");
    // The second half of a line, with its end.
    let mut cut = lines.clone();
    cut[9].truncate(80);
    check_broken(&cut, 10, "not a record");
    let mut renumbered = lines.clone();
    renumbered.remove(9);
    for (index, line) in renumbered.iter_mut().enumerate().skip(9) {
        *line = line.replace(
            &format!("\"sequence\":{}", index + 2),
            &format!("\"sequence\":{}", index + 1),
        );
    }
    check_broken(&renumbered, 10, "one of both was changed");
    let without_first = verify_files(&[lines[1..].concat()]);
    assert_eq!(
        (without_first.broken, without_first.first_sequence),
        (None, Some(2))
    );
    let mut first = lines[1..].to_vec();
    first[0] = first[0].replace("\"sequence\":2", "\"sequence\":1");
    check_broken(&first, 1, "begins with 1 and zeros");
}

#[tokio::test]
async fn files_are_one_chain_and_a_missing_or_cut_one_is_found() {
    let lines = write_lines().await;
    let files: Vec<String> = lines.chunks(8).map(<[String]>::concat).collect();
    let report = verify_files(&files);
    assert_eq!((report.broken, report.records), (None, 22));
    let last = report.last.expect("a last record");
    assert_eq!(last.hash, LineHash::of_line(lines[21].as_bytes()));
    assert!(lines[21].starts_with(&format!("{{\"time\":\"{}\"", report.last_time)));

    let without_middle = [files[0].clone(), files[2].clone()];
    let broken = verify_files(&without_middle).broken.expect("is found");
    assert_eq!((broken.file.as_str(), broken.line), ("1", 1));
    assert_eq!(
        broken.fault,
        ChainFault::Missing {
            before: 8,
            found: 17
        }
    );

    let mut cut = files.clone();
    let length = cut[0].len();
    cut[0].truncate(length - 10);
    let broken = verify_files(&cut).broken.expect("is found");
    assert_eq!(
        (broken.file.as_str(), broken.line, broken.fault),
        ("0", 8, ChainFault::Cut)
    );

    let with_empty = [files[0].clone(), String::new(), files[1].clone()];
    assert_eq!(verify_files(&with_empty).broken, None);
    assert_eq!(verify_files(&[]).records, 0);
}

//! Changes of what was written, each of which verification finds.

use super::*;

/// Returns the lines of an intact log, line ends included.
async fn write_lines() -> Vec<String> {
    let dir = LogDir::new();
    let log = dir.open().await;
    for number in 0..20 {
        log.record(record(&format!("id-{number}")))
            .await
            .expect("written");
    }
    log.close().await;
    let text = fs::read_to_string(dir.file()).expect("reads");
    text.split_inclusive('\n').map(str::to_owned).collect()
}

fn verify_files(files: &[String]) -> ChainReport {
    let named = files.iter().enumerate();
    verify_chain(named.map(|(number, text)| (number.to_string(), text.as_bytes()))).expect("reads")
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
    changed[9] = format!("{}\n", "x".repeat(chain::LINE_BYTES_MAX));
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
    assert_eq!(last.hash, chain::LineHash::of_line(lines[21].as_bytes()));
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

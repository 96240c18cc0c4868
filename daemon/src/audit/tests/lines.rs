//! Single lines: hostile texts, lengths, and values that no record can have.

use proptest::prelude::*;
use skilld_common::audit_chain::{ChainKey, ChainPosition, LINE_BYTES_MAX, LineHash, LineHeader};

use super::line::{LINE_BEGIN, LineEvent, append_line};
use super::*;

/// Key of these tests, with which also the example in docs/audit.md was written.
fn chain_key() -> ChainKey {
    ChainKey::new(ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &[7; 32]))
}

fn format_line(record: &AuditRecord, node: &str) -> (String, ChainPosition) {
    let mut out = Vec::new();
    let event = LineEvent::Call(record);
    let position = ChainPosition {
        sequence: u64::MAX - 1,
        hash: LineHash::of_line(b""),
    };
    let (key, now) = (chain_key(), SystemTime::now());
    let position = append_line(&mut out, position, &key, node, now, &event);
    (String::from_utf8(out).expect("UTF-8"), position)
}

proptest! {
    #[test]
    fn any_text_comes_back_as_it_was_and_stays_on_one_ascii_line(
        texts in proptest::collection::vec("\\PC*|(?s).{0,600}", 6),
        uid: u32, bytes: u64, micros: u64,
    ) {
        let outcome = CallOutcome {
            code: Code::Internal,
            reason: Some(ErrorReason::Internal),
            bytes_in: bytes,
            bytes_out: bytes,
            duration: Duration::from_micros(micros),
        };
        let record = AuditRecord {
            request_id: BoundedText::new(&texts[0]),
            principal: Some(AuditPrincipal {
                id: BoundedText::new(&texts[1]),
                tenant: BoundedText::new(&texts[2]),
                via: "jwt",
            }),
            peer: AuditPeer::Process { uid, pid: None },
            method: BoundedText::new(&texts[3]),
            resource: Some(BoundedText::new(&texts[4])),
            stage: CallStage::End(outcome),
            ..record("")
        };
        let (line, position) = format_line(&record, &texts[5]);
        let body = line.strip_suffix('\n').expect("a line end");
        prop_assert!(body.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{body}");
        prop_assert!(line.as_bytes().starts_with(LINE_BEGIN));
        let header = LineHeader::parse(line.as_bytes()).expect("a record");
        prop_assert_eq!(header.sequence, position.sequence);
        let value: Value = serde_json::from_str(body).expect("JSON");
        let principal = record.principal.as_ref().expect("is set");
        for (key, text) in [
            ("request_id", record.request_id.as_str()),
            ("principal", principal.id.as_str()),
            ("tenant", principal.tenant.as_str()),
            ("method", record.method.as_str()),
            ("resource", record.resource.as_ref().expect("is set").as_str()),
            ("node", &texts[5]),
            ("code", "INTERNAL"),
            ("reason", "INTERNAL"),
        ] {
            prop_assert_eq!(value[key].as_str(), Some(text));
        }
        prop_assert_eq!(value["peer_uid"].as_u64(), Some(u64::from(uid)));
        prop_assert_eq!(value["bytes_in"].as_u64(), Some(bytes));
        prop_assert_eq!(value["duration_us"].as_u64(), Some(micros));
    }

    #[test]
    fn a_bounded_text_is_the_beginning_of_what_was_given(text in "\\PC*") {
        let value = BoundedText::<16>::new(&text);
        let bounded = value.as_str();
        prop_assert!(bounded.len() <= 16);
        if text.len() <= 16 {
            prop_assert_eq!(bounded, &text);
        } else {
            let kept = bounded.strip_suffix('…').expect("a mark");
            prop_assert!(text.starts_with(kept) && kept.len() > 9);
        }
    }
}

#[test]
fn the_longest_record_fits_into_a_line() {
    // A control character takes six bytes in JSON, which is the most per byte.
    let long = "\u{1}".repeat(600);
    let name = "p".repeat(64);
    let dir = tempfile::tempdir().expect("temporary directory");
    let key = ArgvKey::load_or_create(dir.path()).expect("a key");
    let record = AuditRecord {
        request_id: BoundedText::new(&long),
        traceparent: TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        principal: Some(AuditPrincipal {
            id: BoundedText::new(&long),
            tenant: BoundedText::new(&long),
            via: "workspace_token",
        }),
        for_tenant: Some(BoundedText::new(&long)),
        peer: AuditPeer::Address {
            address: "[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]:65535"
                .parse()
                .expect("an address"),
        },
        method: BoundedText::new(&long),
        resource: Some(BoundedText::new(&long)),
        exec: Some(key.describe(&[&name])),
        setup: vec![key.describe(&[&name]); SETUP_COMMANDS_MAX],
        stage: CallStage::Refusal(CallOutcome {
            code: Code::FailedPrecondition,
            reason: Some(ErrorReason::StorageUnavailable),
            bytes_in: u64::MAX,
            bytes_out: u64::MAX,
            duration: Duration::MAX,
        }),
    };
    let (line, _) = format_line(&record, &long[..253]);
    assert!(
        line.len() > 8000 && line.len() <= LINE_BYTES_MAX,
        "{}",
        line.len()
    );
}

#[test]
fn only_a_plain_file_name_is_recorded_as_the_program() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let key = ArgvKey::load_or_create(dir.path()).expect("a key");
    let long = "x".repeat(65);
    for (program, recorded) in [
        ("/usr/bin/python3.11", Some("python3.11")),
        ("bash", Some("bash")),
        ("TOKEN=abc curl", None),
        ("curl -H x", None),
        ("a/", None),
        ("", None),
        ("\u{1b}[2J", None),
        ("é", None),
        (long.as_str(), None),
    ] {
        let described = serde_json::to_value(key.describe(&[program])).expect("JSON");
        assert_eq!(
            described.get("program").and_then(Value::as_str),
            recorded,
            "{program}"
        );
        assert_eq!(described["argv_hmac"].as_str().map(str::len), Some(64));
    }
    let none: [&str; 0] = [];
    let described = serde_json::to_value(key.describe(&none)).expect("JSON");
    assert_eq!(described.get("program"), None);
}

#[test]
fn a_fingerprint_is_the_hmac_of_arguments_that_end_with_nul() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("audit-key");
    fs::write(&file, [7; 32]).expect("writes");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
    let key = ArgvKey::load_or_create(dir.path()).expect("a key");
    let described = serde_json::to_value(key.describe(&["ls", "-la"])).expect("JSON");
    // printf '%s\0' ls -la | openssl dgst -sha256 -mac HMAC -macopt hexkey:0707…07
    assert_eq!(
        described["argv_hmac"],
        "785a3eda7742298324927afe669cdfcc48d08c0e74f7caf31995d937531b63de"
    );
}

#[test]
fn only_a_well_formed_trace_context_is_taken() {
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    assert!(TraceParent::parse(good).is_some());
    for bad in [
        "",
        "00-zz-00-01",
        &format!("{good}-x"),
        &good.replace('4', "é"),
    ] {
        assert_eq!(TraceParent::parse(bad), None, "{bad}");
    }
}

#[test]
fn the_line_in_the_documents_has_the_mac_of_a_key() {
    let document = include_str!("../../../../docs/audit.md");
    let line: String = document
        .lines()
        .skip_while(|line| !line.starts_with("{\"time\":"))
        .take_while(|line| !line.starts_with("```"))
        .map(str::trim_start)
        .collect();
    LineHeader::parse(line.as_bytes()).expect("a line");
    let (covered, mac) = line.split_once(",\"mac\":\"").expect("a MAC");
    let expected = chain_key().mac(covered.as_bytes());
    assert_eq!(mac.trim_end_matches("\"}"), expected);
}

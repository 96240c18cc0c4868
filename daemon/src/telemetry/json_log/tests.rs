//! Tests of the lines: their keys, their values and their escapes.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use super::*;

#[derive(Debug, Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the lines that are written while `work` runs.
fn lines_of(work: impl FnOnce()) -> Vec<String> {
    let lines = SharedBuffer::default();
    let written = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .fmt_fields(JsonFields::new())
        .event_format(JsonLineFormat)
        .with_writer(move || written.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, work);
    let text = lines.0.lock().clone();
    let text = String::from_utf8(text).expect("UTF-8");
    text.lines().map(str::to_owned).collect()
}

/// Returns the only line as keys and values in their order, without `time`.
fn only_object(lines: &[String]) -> Vec<(String, Value)> {
    assert_eq!(lines.len(), 1, "{lines:?}");
    let fields = ordered_fields(&lines[0]);
    assert_eq!(fields[0].0, "time");
    let time = fields[0].1.as_str().expect("text");
    humantime::parse_rfc3339(time).expect("a time");
    assert!(time.len() == 27 && time.ends_with('Z'), "{time}");
    fields[1..].to_vec()
}

/// Returns the keys and values of a JSON object with every key, also one that comes twice.
fn ordered_fields(line: &str) -> Vec<(String, Value)> {
    struct Fields(Vec<(String, Value)>);
    impl<'de> serde::Deserialize<'de> for Fields {
        fn deserialize<D: serde::Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
            struct Collector;
            impl<'de> serde::de::Visitor<'de> for Collector {
                type Value = Fields;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> Result<Fields, A::Error> {
                    let mut fields = Vec::new();
                    while let Some(entry) = map.next_entry()? {
                        fields.push(entry);
                    }
                    Ok(Fields(fields))
                }
            }
            source.deserialize_map(Collector)
        }
    }
    serde_json::from_str::<Fields>(line).expect(line).0
}

fn expected(pairs: &[(&str, Value)]) -> Vec<(String, Value)> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.clone()))
        .collect()
}

#[test]
fn fields_of_the_event_and_of_its_spans_are_top_level_keys() {
    let lines = lines_of(|| {
        let rpc = tracing::info_span!("rpc", request_id = "r1", tenant = tracing::field::Empty);
        rpc.record("tenant", "a");
        let _rpc = rpc.entered();
        let _slot = tracing::info_span!("slot", slot = 7).entered();
        tracing::info!(workspace = "w", reason = ?Some(1), ratio = 0.5, ok = true, "exec ended");
    });
    let target = json!("skilld::telemetry::json_log::tests");
    assert_eq!(
        only_object(&lines),
        expected(&[
            ("level", json!("INFO")),
            ("target", target),
            ("message", json!("exec ended")),
            ("ok", json!(true)),
            ("ratio", json!(0.5)),
            ("reason", json!("Some(1)")),
            ("workspace", json!("w")),
            ("slot", json!(7)),
            ("request_id", json!("r1")),
            ("tenant", json!("a")),
        ])
    );
}

#[test]
fn a_name_that_is_taken_never_gives_a_key_twice() {
    let lines = lines_of(|| {
        let _outer = tracing::info_span!("rpc", id = "outer", level = 1).entered();
        let _inner = tracing::info_span!("rpc", id = "inner").entered();
        tracing::warn!(id = "own", time = 3, target = "t", "again");
    });
    let object = only_object(&lines);
    assert_eq!(
        object[3..],
        expected(&[
            ("id", json!("own")),
            ("event.target", json!("t")),
            ("event.time", json!(3)),
            ("rpc.id", json!("inner")),
            ("rpc.level", json!(1)),
        ])
    );
}

#[test]
fn a_value_set_again_replaces_the_first_one() {
    let lines = lines_of(|| {
        let span = tracing::info_span!("rpc", tenant = "a");
        span.record("tenant", "b");
        let _entered = span.entered();
        tracing::info!("x");
    });
    assert_eq!(
        only_object(&lines)[3..],
        expected(&[("tenant", json!("b"))])
    );
}

#[test]
fn control_characters_are_escaped_as_json_escapes_them() {
    let forged = "x\nERROR forged \u{1b}[2J\u{9b}31m\u{7f}\r\0 é";
    let lines = lines_of(|| tracing::info!(who = forged, "hello"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(!lines[0].chars().any(char::is_control), "{lines:?}");
    assert!(lines[0].contains("\\u009b31m\\u007f"), "{lines:?}");
    assert_eq!(
        only_object(&lines)[3..],
        expected(&[("who", json!(forged))])
    );
}

#[test]
fn numbers_of_128_bits_are_text() {
    let lines = lines_of(|| {
        tracing::info!(
            huge = u128::MAX,
            low = i128::MIN,
            small = 3_u128,
            nan = f64::NAN,
            "n"
        );
    });
    assert_eq!(
        only_object(&lines)[3..],
        expected(&[
            ("huge", json!(u128::MAX.to_string())),
            ("low", json!(i128::MIN.to_string())),
            ("nan", json!(null)),
            ("small", json!("3")),
        ])
    );
}

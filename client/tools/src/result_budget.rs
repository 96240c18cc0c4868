//! Budget of a tool's result in bytes of JSON, as a model reads it. Tools keep within it by pages and references; what
//! exceeds it all the same is cut here, and the result says so. Pure.

use serde::Serialize;
use serde_json::{Value, json};

/// Maximum size of a result: some 25,000 tokens, beyond which clients are known to refuse it.
pub(crate) const RESULT_BYTES_MAX: usize = 96 * 1024;
/// Maximum size of one text that a result is for: instructions, a document, a part of a file.
pub(crate) const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of a list in a result that exceeds the budget. The four lists of a run leave some room for its texts.
const LIST_BYTES_MAX: usize = 20 * 1024;
/// Size with which a larger text in a list counts, since it is cut afterwards.
const ENTRY_BYTES_MAX: usize = 1024;
/// Number of fields beyond which an object is a list of entries.
const FIELDS_MAX: usize = 64;
/// Maximum number of cut lists that warnings name.
const WARNINGS_MAX: usize = 8;
/// Shortest length to which texts are cut.
const CUT_BYTES_MIN: usize = 128;

/// Cuts a result to the budget: first long lists, which a warning names, then long texts in their middle.
pub(crate) fn fit_result(mut result: Value) -> Value {
    if json_bytes(&result) <= RESULT_BYTES_MAX {
        return result;
    }
    let mut cut = Vec::new();
    cut_lists(&mut result, "the result", &mut cut);
    if !cut.is_empty() {
        add_warnings(&mut result, cut);
    }
    let mut bytes_max = TEXT_BYTES_MAX;
    while bytes_max >= CUT_BYTES_MIN {
        let fitting = with_short_texts(&result, bytes_max);
        if json_bytes(&fitting) <= RESULT_BYTES_MAX {
            return fitting;
        }
        bytes_max -= bytes_max / 4;
    }
    // Nothing that a tool of ours gives; a server's result can have any form.
    Value::String(cut_middle(&result.to_string(), TEXT_BYTES_MAX))
}

/// Adds warnings to a result: to its field `warnings`, or at the end of a result that is a list. Returns `false` if it
/// has no place for them.
pub(crate) fn add_warnings(result: &mut Value, warnings: Vec<String>) -> bool {
    let list = match result {
        Value::Array(list) => Some(list),
        Value::Object(fields) => {
            let list = fields.entry("warnings").or_insert_with(|| json!([]));
            list.as_array_mut()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    };
    let Some(list) = list else {
        return false;
    };
    list.extend(warnings.into_iter().map(Value::from));
    true
}

/// Cuts lists, and objects of many fields, at any depth. `warnings` receives what was left out.
fn cut_lists(value: &mut Value, name: &str, warnings: &mut Vec<String>) {
    let (count, total) = match value {
        Value::Array(items) => {
            items
                .iter_mut()
                .for_each(|item| cut_lists(item, name, warnings));
            let sizes = items.iter().map(entry_bytes);
            let (count, total) = (count_fitting(sizes), items.len());
            items.truncate(count);
            (count, total)
        }
        Value::Object(fields) => {
            fields
                .iter_mut()
                .for_each(|(key, field)| cut_lists(field, key, warnings));
            let total = fields.len();
            let count = match total > FIELDS_MAX {
                true => count_fitting(
                    fields
                        .iter()
                        .map(|field| json_bytes(&field).min(ENTRY_BYTES_MAX)),
                ),
                false => total,
            };
            let mut index = 0;
            fields.retain(|_, _| {
                index += 1;
                index <= count
            });
            (count, total)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return,
    };
    if count < total && warnings.len() < WARNINGS_MAX {
        warnings.push(format!("{name}: the first {count} of {total} entries"));
    }
}

/// Returns the size of a list's entry as far as it is not cut afterwards: files have their names and references whole.
fn entry_bytes(entry: &Value) -> usize {
    let whole = json_bytes(entry);
    match entry.get("ref") {
        Some(_) => {
            let content = entry.get("content").map_or(0, json_bytes);
            whole - content.saturating_sub(ENTRY_BYTES_MAX)
        }
        None => whole.min(ENTRY_BYTES_MAX),
    }
}

/// Returns the number of first entries that a list has room for.
fn count_fitting(sizes: impl Iterator<Item = usize>) -> usize {
    take_fitting(sizes, LIST_BYTES_MAX, |size| *size).count()
}

/// Returns the first entries that have at most `bytes_max` bytes together. `size` returns the bytes of an entry.
pub(crate) fn take_fitting<T>(
    entries: impl Iterator<Item = T>,
    bytes_max: usize,
    size: impl Fn(&T) -> usize,
) -> impl Iterator<Item = T> {
    let mut room = bytes_max;
    entries.map_while(move |entry| {
        room = room.checked_sub(size(&entry))?;
        Some(entry)
    })
}

/// Returns a value whose texts have at most `bytes_max` bytes each.
fn with_short_texts(value: &Value, bytes_max: usize) -> Value {
    let short = |value| with_short_texts(value, bytes_max);
    match value {
        Value::String(text) if json_bytes(text) > bytes_max => {
            Value::String(cut_middle(text, bytes_max))
        }
        Value::Array(items) => items.iter().map(short).collect(),
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(key, field)| (key.clone(), short(field)))
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Returns the beginning and the end of a text, with a note in between.
fn cut_middle(text: &str, bytes_max: usize) -> String {
    let half = bytes_max / 2;
    let head = json_head(text, half);
    let rest = text.get(head.len()..).unwrap_or_default();
    let tail = json_tail(rest, half);
    let left = rest.len() - tail.len();
    let most = RESULT_BYTES_MAX / 1024;
    format!("{head}\n[… {left} bytes left out: a result has at most {most} KiB …]\n{tail}")
}

/// Returns the number of bytes of a value in JSON, with the comma after it.
pub(crate) fn json_bytes(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(usize::MAX, |text| text.len() + 1)
}

/// Returns the longest beginning of a text that has at most `bytes_max` bytes in JSON.
pub(crate) fn json_head(text: &str, bytes_max: usize) -> &str {
    let mut room = bytes_max;
    let end = text.char_indices().find(|(_, char)| {
        let rest = room.checked_sub(char_json_bytes(*char));
        room = rest.unwrap_or(0);
        rest.is_none()
    });
    end.and_then(|(end, _)| text.get(..end)).unwrap_or(text)
}

/// Returns the longest end of a text that has at most `bytes_max` bytes in JSON.
fn json_tail(text: &str, bytes_max: usize) -> &str {
    let mut room = bytes_max;
    let before = text.char_indices().rfind(|(_, char)| {
        let rest = room.checked_sub(char_json_bytes(*char));
        room = rest.unwrap_or(0);
        rest.is_none()
    });
    let start = before.map_or(0, |(at, char)| at + char.len_utf8());
    text.get(start..).unwrap_or_default()
}

/// Returns the beginning of a text that has at most `bytes_max` bytes in JSON, up to the end of a line unless that loses
/// too much; `None` if all of the text fits.
pub(crate) fn cut_at_line(text: &str, bytes_max: usize) -> Option<&str> {
    let head = json_head(text, bytes_max);
    if head.len() == text.len() {
        return None;
    }
    let line_end = head.rfind('\n').map(|at| at + 1);
    let end = line_end.filter(|end| *end > head.len() / 2);
    text.get(..end.unwrap_or(head.len()))
}

/// Returns a skill's instructions as far as a result has room for them. `way` says how to read all of them.
pub(crate) fn cut_instructions(body: &str, way: &str) -> String {
    match cut_at_line(body, TEXT_BYTES_MAX) {
        None => body.to_owned(),
        Some(head) => {
            let (shown, all) = (head.len(), body.len());
            format!("{}\n[cut: {shown} of {all} bytes; {way}]", head.trim_end())
        }
    }
}

fn char_json_bytes(char: char) -> usize {
    match u8::try_from(char) {
        Ok(byte) if byte.is_ascii() => byte_json_bytes(byte),
        Ok(_) | Err(_) => char.len_utf8(),
    }
}

/// Returns the number of bytes that a byte of a text has in JSON.
pub(crate) fn byte_json_bytes(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0C => 2,
        0x00..=0x1F => 6,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_result_within_the_budget_stays_as_it_is() {
        let result = json!({"a": "x".repeat(RESULT_BYTES_MAX - 100), "b": [1, 2]});
        assert_eq!(fit_result(result.clone()), result);
    }

    #[test]
    fn long_lists_are_cut_first_and_a_warning_counts_their_entries() {
        let names: Vec<String> = (0..10_000)
            .map(|number| format!("a-name-{number:05}"))
            .collect();
        let map: serde_json::Map<String, Value> =
            names.iter().map(|name| (name.clone(), json!([]))).collect();
        let result = fit_result(json!({"text": "kept", "names": names, "map": map}));
        assert!(json_bytes(&result) <= RESULT_BYTES_MAX);
        assert_eq!(result["text"], "kept");
        let shown = result["names"].as_array().map_or(0, Vec::len);
        assert!((1000..10_000).contains(&shown), "{shown}");
        assert_eq!(result["names"][shown - 1], names[shown - 1].as_str());
        let warning = format!("names: the first {shown} of 10000 entries");
        assert_eq!(result["warnings"][0], warning);
        // A list has its warning at its end.
        let result = fit_result(json!(names));
        let warning = format!("the result: the first {shown} of 10000 entries");
        let last = result.as_array().and_then(|names| names.last());
        assert_eq!(last, Some(&Value::String(warning)));
    }

    #[test]
    fn files_with_long_names_keep_them_whole() {
        let reference = |number: usize| format!("workspace://out/{}{number}", "d/".repeat(2000));
        let files: Vec<Value> = (0..30)
            .map(|number| json!({"name": reference(number), "ref": reference(number)}))
            .collect();
        let result = fit_result(json!({"output_files": files}));
        assert!(json_bytes(&result) <= RESULT_BYTES_MAX);
        let shown = result["output_files"].as_array().expect("a list");
        assert!(!shown.is_empty());
        assert_eq!(shown[..], files[..shown.len()]);
    }

    #[test]
    fn long_texts_are_cut_in_their_middle_and_share_the_room() {
        let long = format!("first{}last", "\"\u{1}\n".repeat(50_000));
        let result = fit_result(json!({"stdout": long, "text": long, "name": "pdf"}));
        let bytes = json_bytes(&result);
        assert!(
            (RESULT_BYTES_MAX / 2..=RESULT_BYTES_MAX).contains(&bytes),
            "{bytes}"
        );
        assert_eq!(result["name"], "pdf");
        for field in ["stdout", "text"] {
            let text = result[field].as_str().expect("text");
            assert!(text.starts_with("first") && text.ends_with("last"));
            assert!(text.contains(" bytes left out: a result has at most 96 KiB …]"));
        }
    }

    #[test]
    fn a_result_of_any_form_fits() {
        let mut deep = json!("end");
        for _ in 0..100 {
            deep = json!([deep, "x".repeat(2000)]);
        }
        let wide: Vec<Value> = (0..3000).map(|_| json!(["y".repeat(100)])).collect();
        let many: Vec<Value> = (0..50).map(|_| json!(vec!["z".repeat(90); 300])).collect();
        for result in [
            deep,
            json!(wide),
            json!(many),
            json!("\u{1}".repeat(1 << 20)),
        ] {
            let fitting = fit_result(result);
            assert!(json_bytes(&fitting) <= RESULT_BYTES_MAX + 1);
        }
    }

    #[test]
    fn a_text_is_cut_at_the_end_of_a_line() {
        assert_eq!(cut_at_line("one\ntwo\n", 10), None);
        assert_eq!(cut_at_line("one\ntwo\nthree", 12), Some("one\ntwo\n"));
        // A line end costs two bytes, and the only one is too early.
        assert_eq!(cut_at_line("a\nbcdefgh", 7), Some("a\nbcde"));
    }

    proptest! {
        #[test]
        fn heads_and_tails_have_at_most_their_bytes(text in "[a\"\\\\\n\t\u{1}é€😀]{0,50}", max in 0_usize..80) {
            for part in [json_head(&text, max), json_tail(&text, max)] {
                // json_bytes counts two quotes and a comma.
                prop_assert!(json_bytes(&part) <= max + 3);
            }
            prop_assert!(text.starts_with(json_head(&text, max)));
            prop_assert!(text.ends_with(json_tail(&text, max)));
        }
    }
}

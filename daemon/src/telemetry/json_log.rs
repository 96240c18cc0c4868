//! Log lines as JSON: one flat object per line, whose keys are unique.
//!
//! `time`, `level`, `target` and `message` come first, then the fields of the event, then those of its spans, the
//! innermost span first; the fields of each are sorted by name. A field whose name is taken gets the name of its span
//! (or `event`) and a dot before its own.
//!
//! tracing-subscriber records the fields. Its own JSON lines are no alternative, because they have the fields of spans
//! in an array, which log stores don't index, and a key twice if a field is called `level` or `target`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use serde::{Serialize, Serializer};
use serde_json::Value;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Prefix of an event's own field whose name is taken.
const EVENT: &str = "event";
/// Prefix of the fields by which tracing describes a record of the crate `log`.
const LOG_CRATE_PREFIX: &str = "log.";

/// Format that writes each event as a JSON object.
#[derive(Debug)]
pub(super) struct JsonLineFormat;

/// Object of one line, in the order of its keys.
struct FlatObject(Vec<(String, Value)>);

/// Returns the line of a message that comes before the log or instead of it, with its end.
pub(super) fn startup_line(level: &str, message: &str) -> String {
    FlatObject::new(level, "skilld", Value::from(message)).into_line()
}

impl<S> FormatEvent<S, JsonFields> for JsonLineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        let mut fields = parse_fields(&text);
        let metadata = event.metadata();
        let log_target = fields.remove("log.target");
        let target = log_target
            .as_ref()
            .and_then(Value::as_str)
            .unwrap_or(metadata.target());
        let message = fields.remove("message").unwrap_or(Value::from(""));
        let mut object = FlatObject::new(metadata.level().as_str(), target, message);
        object.add_fields(EVENT, fields);
        for span in context.event_scope().into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<FormattedFields<JsonFields>>() {
                object.add_fields(span.name(), parse_fields(fields));
            }
        }
        writer.write_str(&object.into_line())
    }
}

/// Parses the fields of an event or a span, which `JsonFields` writes as an object.
fn parse_fields(text: &str) -> BTreeMap<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

// === impl FlatObject ===

impl FlatObject {
    fn new(level: &str, target: &str, message: Value) -> Self {
        let time = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        let first = [
            ("time", Value::from(time)),
            ("level", Value::from(level)),
            ("target", Value::from(target)),
            ("message", message),
        ];
        Self(first.map(|(key, value)| (key.to_owned(), value)).into())
    }

    /// Adds fields that keep their names, unless these are taken.
    fn add_fields(&mut self, owner: &str, fields: BTreeMap<String, Value>) {
        for (name, value) in fields {
            if name.starts_with(LOG_CRATE_PREFIX) {
                continue;
            }
            let key = match self.has(&name) {
                true => format!("{owner}.{name}"),
                false => name,
            };
            // Of nested spans with one name, the innermost keeps its field.
            if !self.has(&key) {
                self.0.push((key, value));
            }
        }
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(taken, _)| taken == key)
    }

    /// Returns the object as a line in which every control character is escaped, so that no value forges a line or
    /// controls a terminal.
    fn into_line(self) -> String {
        // A map of strings and JSON values always has a text.
        let text = serde_json::to_string(&self).unwrap_or_default();
        let mut line = String::with_capacity(text.len() + 1);
        for char in text.chars() {
            if char.is_control() {
                // JSON itself escapes only those below U+0020.
                line.push_str(&format!("\\u{:04x}", u32::from(char)));
            } else {
                line.push(char);
            }
        }
        line.push('\n');
        line
    }
}

impl Serialize for FlatObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

#[cfg(test)]
mod tests;

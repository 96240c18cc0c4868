//! Log lines as JSON: one flat object per line, whose keys are unique.
//!
//! `time`, `level`, `target` and `message` come first, then the fields of the event, then those of its spans, the
//! innermost span first. A field whose name is taken gets the name of its span (or `event`) and a dot before its own.

use std::fmt;
use std::io::Write as _;
use std::time::SystemTime;

use serde::{Serialize, Serializer};
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Prefix of an event's own field whose name is taken.
const EVENT: &str = "event";
/// Prefix of the fields by which tracing describes a record of the crate `log`.
const LOG_CRATE_PREFIX: &str = "log.";

/// Layer that writes each event as a JSON object.
#[derive(Debug)]
pub(super) struct JsonLog<M> {
    make_writer: M,
}

/// Object of one line, in the order of its keys.
struct FlatObject(Vec<(String, Value)>);

/// Fields of an event or a span, in their order.
#[derive(Debug, Default)]
struct RecordedFields(Vec<(&'static str, Value)>);

/// Returns the line of a message that comes before the log or instead of it, with its end.
pub(super) fn startup_line(level: &str, message: &str) -> Vec<u8> {
    FlatObject::new(level, "skilld", Value::from(message)).into_line()
}

// === impl JsonLog ===

impl<M> JsonLog<M> {
    pub(super) fn new(make_writer: M) -> Self {
        Self { make_writer }
    }
}

impl<S, M> Layer<S> for JsonLog<M>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    M: for<'a> MakeWriter<'a> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = RecordedFields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<RecordedFields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = RecordedFields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let target = fields.take("log.target");
        let target = target.as_ref().and_then(Value::as_str);
        let target = target.unwrap_or(metadata.target());
        let message = fields.take("message").unwrap_or(Value::from(""));
        let mut object = FlatObject::new(metadata.level().as_str(), target, message);
        object.add_fields(EVENT, &fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<RecordedFields>() {
                object.add_fields(span.name(), fields);
            }
        }
        // There is no other place to report that standard error can't be written.
        drop(
            self.make_writer
                .make_writer()
                .write_all(&object.into_line()),
        );
    }
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
    fn add_fields(&mut self, owner: &str, fields: &RecordedFields) {
        for (name, value) in &fields.0 {
            if name.starts_with(LOG_CRATE_PREFIX) {
                continue;
            }
            let mut key = (*name).to_owned();
            if self.has(&key) {
                key = format!("{owner}.{name}");
            }
            // Of nested spans with one name, the innermost keeps its field.
            if !self.has(&key) {
                self.0.push((key, value.clone()));
            }
        }
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(taken, _)| taken == key)
    }

    /// Returns the object as a line in which every control character is escaped, so that no value forges a line or
    /// controls a terminal.
    fn into_line(self) -> Vec<u8> {
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
        line.into_bytes()
    }
}

impl Serialize for FlatObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

// === impl RecordedFields ===

impl RecordedFields {
    /// Removes a field and returns its value.
    fn take(&mut self, name: &str) -> Option<Value> {
        let index = self.0.iter().position(|(field, _)| *field == name)?;
        Some(self.0.remove(index).1)
    }

    fn set(&mut self, field: &Field, value: Value) {
        let name = field.name();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }
}

impl Visit for RecordedFields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, Value::from(value));
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        let number = i64::try_from(value).map(Value::from);
        self.set(
            field,
            number.unwrap_or_else(|_| Value::from(value.to_string())),
        );
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        let number = u64::try_from(value).map(Value::from);
        self.set(
            field,
            number.unwrap_or_else(|_| Value::from(value.to_string())),
        );
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, Value::from(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, Value::from(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, Value::from(format!("{value:?}")));
    }
}

#[cfg(test)]
mod tests;

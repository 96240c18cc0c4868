//! List of the faults of a configuration, each with its key and the place where its value was given.

use std::collections::BTreeSet;
use std::fmt::Display;

use bytesize::ByteSize;

/// Collector of configuration faults.
pub(super) struct FaultList<'a> {
    lines: Vec<String>,
    /// Keys that have a fault already. Their values are stand-ins, so relations with them are not checked.
    keys: BTreeSet<String>,
    /// Returns the place where a key's value was given, for the end of its fault.
    place: &'a dyn Fn(&str) -> String,
}

// === impl FaultList ===

impl<'a> FaultList<'a> {
    /// Makes a list without faults.
    pub(super) fn new(place: &'a dyn Fn(&str) -> String) -> Self {
        Self {
            lines: Vec::new(),
            keys: BTreeSet::new(),
            place,
        }
    }

    /// Adds a fault of one key.
    pub(super) fn add(&mut self, key: &str, message: impl Display) {
        let place = (self.place)(key);
        let line = if key.is_empty() {
            format!("{message}{place}")
        } else {
            format!("{key}: {message}{place}")
        };
        self.lines.push(line);
        self.keys.insert(key.to_owned());
    }

    /// Returns the number of faults.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns one line per fault.
    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines
    }

    /// Returns `true` if a key has a fault.
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Adds a fault of `key` unless `holds` is true or the key has a fault already.
    pub(super) fn require(&mut self, key: &str, holds: bool, message: impl Display) {
        if !holds && !self.has(key) {
            self.add(key, message);
        }
    }

    /// Adds a fault of `key` unless its size is within the bounds.
    pub(super) fn require_size(&mut self, key: &str, bytes: u64, min: ByteSize, max: ByteSize) {
        let holds = (min.as_u64()..=max.as_u64()).contains(&bytes);
        let size = ByteSize::b(bytes);
        self.require(
            key,
            holds,
            format_args!("must be between {min} and {max}, is {size}"),
        );
    }

    /// Requires that the value of `key` is not over the value of `other`, or, if `strict`, below it.
    pub(super) fn require_order<T: PartialOrd>(
        &mut self,
        (key, value): (&str, T),
        (other, bound): (&str, T),
        strict: bool,
        why: &str,
    ) {
        if !self.has(other) {
            let (holds, rule) = if strict {
                (value < bound, "must be below")
            } else {
                (value <= bound, "must not be over")
            };
            self.require(key, holds, format_args!("{rule} {other}{why}"));
        }
    }
}

//! Masks values in texts, in JSON, and in output that comes in pieces. Pure.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// Text in place of a value.
const MASK: &str = "***";

/// Values to mask. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct SecretMask {
    /// The longest first: a value may be a part of another one.
    values: Arc<[String]>,
}

impl fmt::Debug for SecretMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretMask")
    }
}

impl SecretMask {
    /// Creates the mask of values, none of which is empty.
    pub(crate) fn new(values: impl IntoIterator<Item = String>) -> Self {
        let mut values: Vec<String> = values.into_iter().collect();
        values.sort_by_key(|value| Reverse(value.len()));
        Self {
            values: values.into(),
        }
    }

    /// Masks the values in a text.
    pub(crate) fn mask_text(&self, text: &mut String) {
        for value in self.values.iter() {
            if text.contains(value) {
                *text = text.replace(value, MASK);
            }
        }
    }

    /// Masks the values in the texts of a JSON value. The recursion is as deep as the value.
    pub(crate) fn mask_json(&self, json: &mut Value) {
        match json {
            Value::String(text) => self.mask_text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.mask_json(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.mask_json(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Returns the number of bytes at the end of a text that may be the beginning of a value.
    pub(crate) fn open_bytes(&self, text: &[u8]) -> usize {
        let lengths = self.values.iter().map(|value| {
            let mut lengths = (1..value.len()).rev();
            lengths
                .find(|length| text.ends_with(value.as_bytes().get(..*length).unwrap_or_default()))
        });
        lengths.flatten().max().unwrap_or(0)
    }
}

/// Text of a command that comes in pieces. An end that may be the beginning of a value is held back.
#[derive(Debug)]
pub(crate) struct MaskedText {
    mask: SecretMask,
    held: Vec<u8>,
}

impl MaskedText {
    pub(crate) fn new(mask: SecretMask) -> Self {
        Self {
            mask,
            held: Vec::new(),
        }
    }

    /// Takes a piece and hands over the masked text that no later piece can change.
    pub(crate) fn push(&mut self, text: &[u8], settle: &mut impl FnMut(&[u8])) {
        if self.mask.values.is_empty() {
            settle(text);
            return;
        }
        self.held.extend_from_slice(text);
        self.settle_held(false, settle);
    }

    /// Hands over what was held back; no more text may follow.
    pub(crate) fn finish(&mut self, settle: &mut impl FnMut(&[u8])) {
        self.settle_held(true, settle);
    }

    fn settle_held(&mut self, is_end: bool, settle: &mut impl FnMut(&[u8])) {
        let values = &self.mask.values;
        let held = std::mem::take(&mut self.held);
        let (mut rest, mut plain_bytes) = (held.as_slice(), 0);
        while let Some(tail) = rest.get(plain_bytes..).filter(|tail| !tail.is_empty()) {
            let is_beginning =
                |value: &String| value.len() > tail.len() && value.as_bytes().starts_with(tail);
            if !is_end && values.iter().any(is_beginning) {
                break;
            }
            let Some(value) = values
                .iter()
                .find(|value| tail.starts_with(value.as_bytes()))
            else {
                plain_bytes += 1;
                continue;
            };
            let (plain, masked) = rest.split_at(plain_bytes);
            settle(plain);
            settle(MASK.as_bytes());
            rest = masked.get(value.len()..).unwrap_or_default();
            plain_bytes = 0;
        }
        let (plain, beginning) = rest.split_at(plain_bytes);
        settle(plain);
        self.held = beginning.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mask(values: &[&str]) -> SecretMask {
        SecretMask::new(values.iter().map(|value| (*value).to_owned()))
    }

    fn masked(values: &[&str], pieces: &[&[u8]]) -> String {
        let mut masked = MaskedText::new(mask(values));
        let mut text = Vec::new();
        for piece in pieces {
            masked.push(piece, &mut |bytes: &[u8]| text.extend_from_slice(bytes));
        }
        masked.finish(&mut |bytes: &[u8]| text.extend_from_slice(bytes));
        String::from_utf8_lossy(&text).into_owned()
    }

    #[test]
    fn a_value_that_comes_in_pieces_is_masked() {
        let values = ["12345678", "1234567890", "67890abc"];
        for (pieces, wanted) in [
            (vec!["a1234", "5678b"], "a***b"),
            // The longer one counts, also if it comes later.
            (vec!["a12345678", "90b"], "a***b"),
            (vec!["12345678", "9x"], "***9x"),
            (vec!["1234567", "1234567", "8"], "1234567***"),
            (vec!["12345", "67"], "1234567"),
            (vec!["1234567890", "12345678"], "******"),
        ] {
            let bytes: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
            assert_eq!(masked(&values, &bytes), wanted, "{pieces:?}");
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_change_what_is_masked(
            pieces in proptest::collection::vec("[ab]{0,5}", 0..12),
        ) {
            let values = ["abab", "babba", "ababab"];
            let bytes: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
            let whole = pieces.concat();
            let text = masked(&values, &bytes);
            prop_assert_eq!(&text, &masked(&values, &[whole.as_bytes()]));
            prop_assert!(values.iter().all(|value| !text.contains(value)), "{}", text);
        }
    }
}

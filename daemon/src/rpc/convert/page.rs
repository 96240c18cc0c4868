//! Pages of lists that are made as a whole: a page begins behind the items of earlier ones.

use prost::Message;

use super::ViolationCollector;
use crate::error::Result;

/// Default size of a page.
const SIZE_DEFAULT: usize = 100;
/// Maximum size of a page.
const SIZE_MAX: usize = 1000;
/// Size of a page's messages in bytes, from which on it has no further ones. A message may have 4 MiB.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// Requested page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Number of items before the page.
    pub start: usize,
    /// Maximum number of items on the page.
    pub size: usize,
}

impl Page {
    /// Checks a request of which nothing else is checked.
    ///
    /// # Errors
    /// `Invalid` with every violation.
    pub fn requested(size: i32, token: &str) -> Result<Self> {
        let mut violations = ViolationCollector::default();
        let page = Self::check(&mut violations, size, token);
        violations.finish()?;
        Ok(page)
    }

    /// Checks `page_size` and `page_token` of a request.
    fn check(violations: &mut ViolationCollector, size: i32, token: &str) -> Self {
        let size = violations.page_size(size, SIZE_DEFAULT, SIZE_MAX);
        Self::begin(violations, size, token)
    }

    /// Checks the `page_token` of a request with a checked size.
    pub fn begin(violations: &mut ViolationCollector, size: usize, token: &str) -> Self {
        let start = match token {
            "" => Some(0),
            token => token.parse().ok().filter(|start| *start > 0),
        };
        if start.is_none() {
            violations.unknown_page_token();
        }
        Self {
            start: start.unwrap_or_default(),
            size,
        }
    }

    /// Takes the page's messages, at least one while there are any, and returns them with the token of the next page.
    pub fn take<M: Message>(self, messages: impl Iterator<Item = M>) -> (Vec<M>, String) {
        let mut rest = messages.skip(self.start);
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for message in rest.by_ref() {
            bytes += message.encoded_len();
            let is_full = taken.len() == self.size || (bytes > PAGE_BYTES_MAX && !taken.is_empty());
            if is_full {
                let next = self.start.saturating_add(taken.len());
                return (taken, next.to_string());
            }
            taken.push(message);
        }
        (taken, String::new())
    }
}

/// Returns the first messages that together fit into an answer, at least one.
pub fn keep_fitting<M: Message>(messages: impl Iterator<Item = M>) -> Vec<M> {
    let all = Page {
        start: 0,
        size: usize::MAX,
    };
    all.take(messages).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_without_gap_or_repetition() {
        let texts = || (0..7).map(|number: i32| number.to_string());
        let (mut seen, mut token) = (Vec::new(), String::new());
        for _ in 0..3 {
            let mut violations = ViolationCollector::default();
            let page = Page::check(&mut violations, 3, &token);
            violations.finish().expect("a token of an answer");
            let (items, next) = page.take(texts());
            assert!(items.len() <= 3);
            seen.extend(items);
            token = next;
        }
        assert_eq!(seen, texts().collect::<Vec<_>>());
        assert_eq!(token, "");
    }

    #[test]
    fn a_page_of_large_messages_is_short() {
        let large = || std::iter::repeat_n("x".repeat(600 << 10), 3);
        let page = Page { start: 0, size: 9 };
        let (items, next) = page.take(large());
        assert_eq!((items.len(), next.as_str()), (1, "1"));
    }

    #[test]
    fn foreign_page_tokens_are_refused() {
        for token in ["x", "-1", "0", "1.5", "18446744073709551616"] {
            let mut violations = ViolationCollector::default();
            let _page = Page::check(&mut violations, 0, token);
            assert!(violations.finish().is_err(), "{token}");
        }
    }
}

//! What bytes are, by their beginning with their name as tie-breaker: the guest's rule for what it collects, word for
//! word, so that a file has the same type wherever it is looked at.

#[path = "../../images/guest/src/collect/mime.rs"]
mod rule;

pub(crate) use rule::{is_text, mime_type};

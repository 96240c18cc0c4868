//! Budget of a prompt, which cuts the texts that do not fit. They are cut to one length, the longest that fits, and the
//! rest of the room goes to the first ones. Texts that are shorter than that stay whole.

/// Default maximum size of the overview in bytes, like that of an answer that lists skills: about 4,000 tokens.
const OVERVIEW_BYTES_MAX: usize = 16 * 1024;
/// Default maximum size of the texts of all loaded skills in bytes: about 64,000 tokens, which are in every request.
const CONTENT_BYTES_MAX: usize = 256 * 1024;

/// Measure of a text: its bytes, or its tokens by a tokenizer of the caller.
pub type TextMeasure<'a> = &'a dyn Fn(&str) -> usize;

/// Maximum size of the inserted text.
#[derive(Clone, Copy)]
pub struct PromptBudget<'a> {
    /// Maximum size of the overview without guidance; 0 for no limit. By default 16 KiB, so that thousands of skills do
    /// not fill the prompt.
    pub overview: usize,
    /// Maximum size of bodies and docs of all loaded skills together; 0 for no limit. By default 256 × 1024 of what
    /// `count` measures: 256 KiB, but four times as much text if that counts tokens.
    pub content: usize,
    /// Measure of both sizes.
    pub count: TextMeasure<'a>,
}

impl Default for PromptBudget<'_> {
    fn default() -> Self {
        Self {
            overview: OVERVIEW_BYTES_MAX,
            content: CONTENT_BYTES_MAX,
            count: &str::len,
        }
    }
}

impl std::fmt::Debug for PromptBudget<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PromptBudget")
            .field("overview", &self.overview)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// Returns the characters of each text in the largest share that fits; `None` if not even the smallest does.
pub(super) fn share_room(lengths: &[usize], fits: impl Fn(&[usize]) -> bool) -> Option<Vec<usize>> {
    if fits(lengths) {
        return Some(lengths.to_vec());
    }
    let longest = lengths.iter().copied().max().unwrap_or_default();
    let share = |each, more| share_lengths(lengths, each, more);
    if !fits(&share(0, 0)) {
        return None;
    }
    let each = largest_number(longest, |each| fits(&share(each, 0)));
    let longer = lengths.iter().filter(|length| **length > each).count();
    let more = largest_number(longer.saturating_sub(1), |more| fits(&share(each, more)));
    Some(share(each, more))
}

/// Cuts each length to `each`; the first `more` of the longer ones to one more.
fn share_lengths(lengths: &[usize], each: usize, mut more: usize) -> Vec<usize> {
    let shares = lengths.iter().map(|length| {
        let extra = usize::from(more > 0 && *length > each);
        more -= extra;
        (*length).min(each + extra)
    });
    shares.collect()
}

/// Returns the largest number up to `max` for which `is_true` holds, by bisection. It must hold for 0 and, nearly, for
/// all smaller numbers.
pub(super) fn largest_number(max: usize, is_true: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if is_true(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Returns the first characters of a text.
pub(super) fn head(text: &str, chars: usize) -> &str {
    let end = text
        .char_indices()
        .nth(chars)
        .map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fit(room: usize) -> impl Fn(&[usize]) -> bool {
        move |shares| shares.iter().sum::<usize>() <= room
    }

    #[test]
    fn long_texts_give_way_before_short_ones() {
        assert_eq!(share_room(&[2, 50, 50], fit(30)), Some(vec![2, 14, 14]));
        assert_eq!(share_room(&[2, 50, 50], fit(31)), Some(vec![2, 15, 14]));
        assert_eq!(share_room(&[2, 50, 50], fit(200)), Some(vec![2, 50, 50]));
        assert_eq!(share_room(&[2, 50], |_| false), None);
        assert_eq!(head("äöü", 2), "äö");
    }

    proptest! {
        #[test]
        fn nothing_fits_that_was_not_given(lengths in prop::collection::vec(0_usize..40, 1..12), room in 0_usize..300) {
            let shares = share_room(&lengths, fit(room)).expect("nothing at all fits");
            let given: usize = shares.iter().sum();
            prop_assert_eq!(given, room.min(lengths.iter().sum()));
            let cut = shares.iter().zip(&lengths).filter(|(share, length)| share < length).map(|(share, _)| *share);
            let (least, most) = (cut.clone().min().unwrap_or(0), cut.max().unwrap_or(0));
            prop_assert!(most - least <= 1, "{shares:?}");
        }
    }
}

//! Too little room: every text gives way alike. All are cut to one length, the longest that fits, and what is left over
//! goes to the first ones; texts that are shorter than that stay whole.

/// How a text is measured: its bytes, or its tokens by a tokenizer of the caller's.
pub type Counter<'a> = &'a dyn Fn(&str) -> usize;

/// How much room there is.
#[derive(Clone, Copy)]
pub struct Budget<'a> {
    /// For the overview, guidance not counted; 0 for any amount.
    pub overview: usize,
    /// For bodies and docs of loaded skills together; 0 for any amount.
    pub content: usize,
    /// What both are counted in.
    pub count: Counter<'a>,
}

impl Default for Budget<'_> {
    fn default() -> Self {
        Self {
            overview: 0,
            content: 0,
            count: &str::len,
        }
    }
}

impl std::fmt::Debug for Budget<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Budget")
            .field("overview", &self.overview)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// How many characters each text may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    each: usize,
    /// So many of the first that are longer have one more.
    more: usize,
}

impl Share {
    /// For texts in their order: how many characters of each.
    pub(super) fn of(self, lengths: &[usize]) -> Vec<usize> {
        let mut more = self.more;
        let mut shares = Vec::with_capacity(lengths.len());
        for length in lengths {
            let extra = usize::from(more > 0 && *length > self.each);
            more -= extra;
            shares.push((*length).min(self.each + extra));
        }
        shares
    }
}

/// The largest share that fits; none if not even the smallest does.
pub(super) fn share(lengths: &[usize], fits: impl Fn(&[usize]) -> bool) -> Option<Vec<usize>> {
    if fits(lengths) {
        return Some(lengths.to_vec());
    }
    let longest = lengths.iter().copied().max().unwrap_or_default();
    let fits = |each, more| fits(&Share { each, more }.of(lengths));
    if !fits(0, 0) {
        return None;
    }
    let each = largest(longest, |each| fits(each, 0));
    let longer = lengths.iter().filter(|length| **length > each).count();
    let more = largest(longer.saturating_sub(1), |more| fits(each, more));
    Some(Share { each, more }.of(lengths))
}

/// The largest number up to `max` of which something is true, that is true of 0 and, nearly, of all smaller ones.
pub(super) fn largest(max: usize, is_true: impl Fn(usize) -> bool) -> usize {
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

/// The first characters of a text.
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
        assert_eq!(share(&[2, 50, 50], fit(30)), Some(vec![2, 14, 14]));
        assert_eq!(share(&[2, 50, 50], fit(31)), Some(vec![2, 15, 14]));
        assert_eq!(share(&[2, 50, 50], fit(200)), Some(vec![2, 50, 50]));
        assert_eq!(share(&[2, 50], |_| false), None);
        assert_eq!(head("äöü", 2), "äö");
    }

    proptest! {
        #[test]
        fn nothing_fits_that_was_not_given(lengths in prop::collection::vec(0_usize..40, 1..12), room in 0_usize..300) {
            let shares = share(&lengths, fit(room)).expect("nothing at all fits");
            let given: usize = shares.iter().sum();
            prop_assert_eq!(given, room.min(lengths.iter().sum()));
            let cut = shares.iter().zip(&lengths).filter(|(share, length)| share < length).map(|(share, _)| *share);
            let (least, most) = (cut.clone().min().unwrap_or(0), cut.max().unwrap_or(0));
            prop_assert!(most - least <= 1, "{shares:?}");
        }
    }
}

//! How alike two names are: what answers suggest where one was not found. Pure.

/// How much of each is compared, characters from its end: the work grows with their product, and both may be somebody
/// hostile's.
const COMPARED_MAX: usize = 64;

/// From 0, nothing in common, to 1, the same.
pub(crate) fn similarity(a: &str, b: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(end(a), end(b))
}

fn end(text: &str) -> &str {
    let last = text.char_indices().rev().nth(COMPARED_MAX - 1);
    let start = last.map_or(0, |(start, _)| start);
    text.get(start..).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_much_of_two_names_is_compared() {
        assert!(similarity("report", "reprot") > 0.8);
        assert!(similarity("report", "zzz") < 0.2);
        for filler in ["x", "ü", "日"] {
            let (a, b) = ("a".repeat(1 << 20), "b".repeat(1 << 20));
            let name = filler.repeat(COMPARED_MAX);
            assert_eq!(end(&format!("{a}{name}")), name);
            assert!(similarity(&format!("{a}{name}"), &format!("{b}{name}")) > 0.999);
            assert_eq!(end(&name), name);
        }
        assert_eq!(end(""), "");
    }
}

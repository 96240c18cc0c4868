//! Similarity of names, for suggestions in errors. Pure.

/// Number of characters of each text that are compared, from its end. The work grows with the product of both lengths,
/// and both texts may come from a hostile client.
const COMPARED_MAX: usize = 64;
/// Maximum number of names that an error suggests.
const NEAREST_MAX: usize = 3;

/// Returns the similarity of two names, from 0 (nothing in common) to 1 (equal).
pub fn similarity(a: &str, b: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(compared_end(a), compared_end(b))
}

/// Returns the names with the highest scores, best first, for an error to suggest. Names with the same score keep their
/// order.
pub fn nearest_names(scored: impl IntoIterator<Item = (f64, String)>) -> Vec<String> {
    let mut scored: Vec<(f64, String)> = scored.into_iter().collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.truncate(NEAREST_MAX);
    scored.into_iter().map(|(_, name)| name).collect()
}

/// Returns the part of a text that is compared.
fn compared_end(text: &str) -> &str {
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
            assert_eq!(compared_end(&format!("{a}{name}")), name);
            assert!(similarity(&format!("{a}{name}"), &format!("{b}{name}")) > 0.999);
            assert_eq!(compared_end(&name), name);
        }
        assert_eq!(compared_end(""), "");
    }

    #[test]
    fn the_best_three_names_are_suggested_in_a_stable_order() {
        let scored = [(0.5, "d"), (0.7, "b"), (1.0, "a"), (0.7, "c")];
        let scored = scored.map(|(score, name)| (score, name.to_owned()));
        assert_eq!(nearest_names(scored), ["a", "b", "c"]);
        assert!(nearest_names([]).is_empty());
    }
}

//! Page of metrics as one client may see it.

/// Labels whose value decides who sees a sample. Their values have no character that is escaped.
const LABELS: [&str; 2] = ["tenant", "pool"];

/// Decision by the name and the value of a label.
pub type SampleFilter<'a> = dyn Fn(&str, &str) -> bool + 'a;

/// Returns a page without the samples for which `is_visible` is false of a label.
pub(super) fn retain_visible(page: &str, is_visible: &SampleFilter<'_>) -> String {
    let is_kept = |line: &&str| {
        let mut named = LABELS
            .iter()
            .map(|label| (*label, label_value(line, label)));
        named.all(|(label, value)| value.is_none_or(|value| is_visible(label, value)))
    };
    let lines = page.lines().filter(is_kept);
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the value of a label in the line of a sample.
fn label_value<'a>(line: &'a str, label: &str) -> Option<&'a str> {
    let start = format!("{label}=\"");
    let (_, found) = line
        .match_indices(&start)
        .map(|(at, _)| line.split_at(at))
        .find(|(before, _)| before.ends_with(['{', ',']))?;
    found.split('"').nth(1)
}

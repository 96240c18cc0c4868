//! Lines of Python that a script does without: for other systems, or with an `except` branch that goes on. Pure.

use std::collections::HashSet;
use std::ops::Range;

use crate::catalogue::preflight::python_requirements::{
    LogicalLine, is_foreign_platform, split_logical_lines,
};

/// Returns the lines that run on other systems only, or in `try` with a branch that goes on without the program or
/// module.
pub(super) fn find_optional_lines(source: &str) -> HashSet<usize> {
    let lines: Vec<LogicalLine> = split_logical_lines(source);
    let mut foreign = find_guarded_lines(&lines);
    let mut skipped: Option<usize> = None;
    for (index, line) in lines.iter().enumerate() {
        let statement = line.text.trim_start();
        if statement.is_empty() {
            continue;
        }
        let indent = line.text.len() - statement.len();
        if skipped.is_some_and(|skipped| indent > skipped) {
            let end = lines
                .get(index + 1)
                .map_or(line.number + 1, |next| next.number);
            foreign.extend(line.number..end);
            continue;
        }
        let is_branch = statement.starts_with("if ") || statement.starts_with("elif ");
        skipped = (is_branch && is_foreign_platform(line)).then_some(indent);
    }
    foreign
}

/// Returns the lines in `try` for which an `except` branch for a missing program or module goes on.
fn find_guarded_lines(lines: &[LogicalLine]) -> HashSet<usize> {
    let errors = [
        "FileNotFoundError",
        "OSError",
        "ImportError",
        "ModuleNotFoundError",
    ];
    let ends = [
        "exit(",
        "raise",
        "SystemExit",
        "return",
        "quit(",
        "fail(",
        "error(",
    ];
    let indent_of = |line: &LogicalLine| line.text.len() - line.text.trim_start().len();
    let mut guarded = Vec::new();
    // Indentation, first line, and first line after the body, of each open `try`.
    let mut open: Vec<(usize, usize, Option<usize>)> = Vec::new();
    let mut handler: Option<(usize, usize, usize)> = None;
    for line in lines {
        let statement = line.text.trim_start();
        if statement.is_empty() {
            continue;
        }
        let indent = indent_of(line);
        if let Some((at, from, to)) = handler {
            if indent > at {
                handler = handler.filter(|_| !ends.iter().any(|end| statement.contains(end)));
            } else {
                guarded.push(from..to);
                handler = None;
            }
        }
        while open.last().is_some_and(|(at, _, _)| *at > indent) {
            open.pop();
        }
        if let Some((at, from, end)) = open.last_mut().filter(|(at, _, _)| *at == indent) {
            let to = *end.get_or_insert(line.number);
            let is_quiet = statement.starts_with("except")
                && errors.iter().any(|error| statement.contains(error))
                && !ends.iter().any(|end| statement.contains(end));
            if is_quiet {
                handler = Some((*at, *from, to));
            } else if !["except", "else", "finally"]
                .iter()
                .any(|word| statement.starts_with(word))
            {
                open.pop();
            }
        }
        if statement.starts_with("try:") {
            open.push((indent, line.number, None));
        }
    }
    if let Some((_, from, to)) = handler {
        guarded.push(from..to);
    }
    lines_of_ranges(guarded)
}

/// Returns the lines in ranges, of which many may have the same lines: each handler of one `try` repeats its body.
fn lines_of_ranges(mut ranges: Vec<Range<usize>>) -> HashSet<usize> {
    ranges.sort_by_key(|range| range.start);
    let mut lines = HashSet::new();
    let mut next = 0;
    for range in ranges {
        lines.extend(next.max(range.start)..range.end);
        next = next.max(range.end);
    }
    lines
}

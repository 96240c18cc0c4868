//! Figures, the figures that they are compared with, budgets, and the table.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

/// Quantity that a figure measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Kept in nanoseconds; less is better.
    Time,
    /// Kept in thousandths per second; more is better.
    Rate,
    /// Kept in bytes per second; more is better.
    Speed,
    /// Kept in bytes; less is better.
    Bytes,
}

/// Measurements of one quantity.
#[derive(Debug, Clone)]
pub(crate) struct FigureSeries {
    unit: Unit,
    values: Histogram<u64>,
}

impl Default for FigureSeries {
    /// Creates an empty series of times.
    fn default() -> Self {
        Self::times()
    }
}

impl FigureSeries {
    fn new(unit: Unit) -> Self {
        let values = Histogram::new(3).expect("3 digits are supported");
        Self { unit, values }
    }

    /// Creates an empty series of times.
    pub(crate) fn times() -> Self {
        Self::new(Unit::Time)
    }

    /// Creates an empty series of rates.
    pub(crate) fn rates() -> Self {
        Self::new(Unit::Rate)
    }

    /// Creates an empty series of speeds.
    pub(crate) fn speeds() -> Self {
        Self::new(Unit::Speed)
    }

    /// Creates an empty series of sizes.
    pub(crate) fn bytes() -> Self {
        Self::new(Unit::Bytes)
    }

    /// Adds a time.
    pub(crate) fn time(&mut self, value: Duration) -> Result<()> {
        self.values.record(u64::try_from(value.as_nanos())?)?;
        Ok(())
    }

    /// Adds the times of a text with one number of nanoseconds per line.
    pub(crate) fn nanoseconds(&mut self, text: &str) -> Result<()> {
        for line in text.lines() {
            self.values.record(line.parse()?)?;
        }
        Ok(())
    }

    /// Adds the rate or speed at which `count` items took a time together.
    pub(crate) fn rate(&mut self, count: u64, time: Duration) -> Result<()> {
        let scale = if self.unit == Unit::Rate { 1000 } else { 1 };
        let scaled = u128::from(count) * scale * 1_000_000_000;
        let value = scaled / time.as_nanos().max(1);
        self.values.record(u64::try_from(value)?)?;
        Ok(())
    }

    /// Adds a size.
    pub(crate) fn size(&mut self, bytes: u64) -> Result<()> {
        self.values.record(bytes)?;
        Ok(())
    }

    /// Returns `true` if nothing was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn at(&self, quantile: f64) -> u64 {
        self.values.value_at_quantile(quantile)
    }

    fn show(&self, value: u64) -> String {
        let value = approximate(value);
        let scale = |steps: &[(f64, &str)]| {
            let found = steps.iter().rev().find(|(from, _)| value >= *from);
            let (from, name) = found.or(steps.first()).copied().unwrap_or((1.0, ""));
            let number = value / from;
            let digits = match number {
                n if n >= 100.0 => 0,
                n if n >= 10.0 => 1,
                _ => 2,
            };
            format!("{number:.digits$} {name}")
        };
        match self.unit {
            Unit::Time => scale(&[(1e3, "µs"), (1e6, "ms"), (1e9, "s")]),
            Unit::Rate => format!("{:.0}/s", value / 1000.0),
            Unit::Speed => scale(&[(1e6, "MB/s"), (1e9, "GB/s")]),
            Unit::Bytes => scale(&[
                (1024.0, "KiB"),
                (1024.0 * 1024.0, "MiB"),
                (1024.0 * 1024.0 * 1024.0, "GiB"),
            ]),
        }
    }

    fn raw(&self) -> String {
        let all = [0.0, 0.5, 0.9, 0.95, 0.99, 1.0].map(|quantile| self.show(self.at(quantile)));
        let [min, p50, p90, p95, p99, max] = all;
        let n = self.values.len();
        format!("min {min} · p50 {p50} · p90 {p90} · p95 {p95} · p99 {p99} · max {max} · n {n}")
    }
}

/// Precise enough for a table: whole numbers up to 2^53.
#[expect(
    clippy::cast_precision_loss,
    reason = "figures of a benchmark are far below 2^53"
)]
fn approximate(value: u64) -> f64 {
    value as f64
}

/// Promise about a figure. Ratios are skilld's figure by the reference's, or the inverse where skilld is to be faster.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Budget {
    /// No promise; the row informs.
    None,
    /// Maximum ratio of the medians.
    Within(f64),
    /// Maximum difference of the medians, in the unit of the series.
    Over(u64),
    /// Minimum factor by which the median, and the 99th percentile, are faster.
    Faster(f64, Option<f64>),
    /// Maximum of the median: the reference's times a factor, plus an amount in the unit of the series.
    WithinAnd(f64, u64),
    /// Minimum ratio of the medians, for rates and speeds.
    Share(f64),
    /// Minimum of the median, for rates and speeds.
    AtLeast(u64),
    /// Maximum of the worst value, in the unit of the series.
    AtMost(u64),
    /// Maximum of the median and of the 99th percentile, in the unit of the series.
    Soon { p50: Option<u64>, p99: Option<u64> },
}

/// Row of the table.
#[derive(Debug, Clone)]
pub(crate) struct TableRow {
    what: String,
    ours: FigureSeries,
    reference: Option<(String, FigureSeries)>,
    budget: Budget,
}

impl TableRow {
    /// Creates a row without a reference.
    pub(crate) fn new(what: &str, ours: &FigureSeries, budget: Budget) -> Self {
        Self {
            what: what.to_owned(),
            ours: ours.clone(),
            reference: None,
            budget,
        }
    }

    /// Adds the figures of a reference.
    #[must_use]
    pub(crate) fn against(mut self, name: &str, reference: &FigureSeries) -> Self {
        self.reference = Some((name.to_owned(), reference.clone()));
        self
    }

    /// Returns skilld's value by the reference's, or the inverse where the budget is about being faster.
    fn ratio(&self, quantile: f64) -> Option<f64> {
        let (_, reference) = self.reference.as_ref()?;
        let ours = approximate(self.ours.at(quantile)).max(1.0);
        let reference = approximate(reference.at(quantile)).max(1.0);
        let inverse = matches!(self.budget, Budget::Faster(..));
        Some(if inverse {
            reference / ours
        } else {
            ours / reference
        })
    }

    /// Returns how much skilld's median is above the reference's; 0 if it is below.
    fn excess(&self) -> Option<u64> {
        let (_, reference) = self.reference.as_ref()?;
        Some(self.ours.at(0.5).saturating_sub(reference.at(0.5)))
    }

    /// Returns `true` if the budget is met; `None` without a budget.
    fn verdict(&self) -> Option<bool> {
        let (p50, p99) = (self.ratio(0.5), self.ratio(0.99));
        match self.budget {
            Budget::None => None,
            Budget::Within(most) => Some(p50? <= most),
            Budget::Over(most) => Some(self.excess()? <= most),
            Budget::WithinAnd(factor, more) => {
                let (_, reference) = self.reference.as_ref()?;
                let most = approximate(reference.at(0.5)) * factor + approximate(more);
                Some(approximate(self.ours.at(0.5)) <= most)
            }
            Budget::Share(least) => Some(p50? >= least),
            Budget::AtLeast(least) => Some(self.ours.at(0.5) >= least),
            Budget::Faster(least, tail) => {
                Some(p50? >= least && tail.is_none_or(|tail| p99.is_some_and(|p99| p99 >= tail)))
            }
            Budget::AtMost(most) => Some(self.ours.values.max() <= most),
            Budget::Soon { p50, p99 } => {
                let within = |most: Option<u64>, quantile| {
                    most.is_none_or(|most| self.ours.at(quantile) <= most)
                };
                Some(within(p50, 0.5) && within(p99, 0.99))
            }
        }
    }

    /// Returns the cells in the order of [`HEAD`]. The verdict stays empty where budgets are not read.
    fn cells(&self, reads_budgets: bool) -> [String; 12] {
        let columns = |series: &FigureSeries| {
            let p50 = series.show(series.at(0.5));
            let p99 = series.show(series.at(0.99));
            (p50, p99, series.values.len().to_string())
        };
        let ratio = |quantile| self.ratio(quantile).map_or_else(String::new, times);
        let (p50, p99, n) = columns(&self.ours);
        let (name, (their_p50, their_p99, their_n)) = match &self.reference {
            Some((name, series)) => (name.clone(), columns(series)),
            None => Default::default(),
        };
        let budget = match self.budget {
            Budget::None => String::new(),
            Budget::Within(most) => format!("≤ {}", times(most)),
            Budget::Over(most) => format!("≤ {} over", self.ours.show(most)),
            Budget::WithinAnd(factor, more) => {
                format!("≤ {} + {}", times(factor), self.ours.show(more))
            }
            Budget::Share(least) => format!("≥ {}", times(least)),
            Budget::AtLeast(least) => format!("≥ {}", self.ours.show(least)),
            Budget::Faster(p50, None) => format!("≥ {} faster", times(p50)),
            Budget::Faster(p50, Some(p99)) => {
                format!("≥ {} faster, p99 ≥ {}", times(p50), times(p99))
            }
            Budget::AtMost(most) => format!("≤ {}", self.ours.show(most)),
            Budget::Soon { p50, p99 } => {
                let parts: Vec<_> = [("p50", p50), ("p99", p99)]
                    .into_iter()
                    .filter_map(|(name, most)| Some((name, most?)))
                    .map(|(name, most)| format!("{name} ≤ {}", self.ours.show(most)))
                    .collect();
                parts.join(", ")
            }
        };
        let word = match self.verdict().filter(|_| reads_budgets) {
            None => "",
            Some(true) => "met",
            Some(false) => "missed",
        };
        let verdict = if let (Budget::Over(_), Some(excess)) = (self.budget, self.excess()) {
            format!("{} {word}", self.ours.show(excess))
                .trim()
                .to_owned()
        } else {
            word.to_owned()
        };
        let what = self.what.clone();
        let (p50_ratio, p99_ratio) = (ratio(0.5), ratio(0.99));
        [
            what, p50, p99, n, name, their_p50, their_p99, their_n, p50_ratio, p99_ratio, budget,
            verdict,
        ]
    }

    /// Returns the cells that are not empty, for a line of progress.
    pub(crate) fn line(&self) -> String {
        let cells = self.cells(true);
        let full = cells.iter().filter(|cell| !cell.is_empty());
        full.cloned().collect::<Vec<_>>().join(" | ")
    }
}

fn times(ratio: f64) -> String {
    let digits = match ratio {
        r if r >= 10.0 => 0,
        r if (r * 10.0).fract().abs() < 1e-9 => 1,
        _ => 2,
    };
    format!("{ratio:.digits$}×")
}

const HEAD: [&str; 12] = [
    "what",
    "skilld p50",
    "p99",
    "n",
    "beside",
    "p50",
    "p99",
    "n",
    "ratio p50",
    "ratio p99",
    "budget",
    "",
];

/// Returns the table, aligned for a terminal.
pub(crate) fn table(rows: &[TableRow], reads_budgets: bool) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    lines.extend(rows.iter().map(|row| row.cells(reads_budgets)));
    let mut widths = [0; 12];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let cells = line
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Returns the table as Markdown.
pub(crate) fn markdown(rows: &[TableRow], reads_budgets: bool) -> String {
    let escape = |cell: &String| cell.replace('|', "\\|");
    let line = |cells: &[String; 12]| {
        let escaped: Vec<String> = cells.iter().map(escape).collect();
        format!("| {} |\n", escaped.join(" | "))
    };
    let mut text = line(&HEAD.map(str::to_owned));
    text.push_str("|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---|---|\n");
    for row in rows {
        text.push_str(&line(&row.cells(reads_budgets)));
    }
    text
}

/// Returns every series with its spread, as a list.
pub(crate) fn raw(rows: &[TableRow]) -> String {
    let mut text = "Raw figures:\n\n".to_owned();
    for row in rows {
        // Writing to a String does not fail.
        let _ = writeln!(text, "* {}: {}", row.what, row.ours.raw());
        if let Some((name, series)) = &row.reference {
            let _ = writeln!(text, "  * {name}: {}", series.raw());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[u64]) -> FigureSeries {
        let mut series = FigureSeries::times();
        for value in values {
            series.time(Duration::from_micros(*value)).expect("a time");
        }
        series
    }

    #[test]
    fn the_overhead_over_a_reference_is_a_budget() {
        let row = |budget| {
            let row = TableRow::new("exec of true", &series(&[900]), Budget::Over(budget));
            row.against("posix_spawn | inside", &series(&[600]))
        };
        assert_eq!(row(350_000).verdict(), Some(true));
        assert_eq!(row(250_000).verdict(), Some(false));
        let rows = [row(350_000)];
        let text = markdown(&rows, true);
        assert!(text.contains("| ≤ 350 µs over | 300 µs met |"), "{text}");
        assert!(text.contains(r"posix_spawn \| inside"), "{text}");
        let text = markdown(&rows, false);
        assert!(text.contains("| ≤ 350 µs over | 300 µs |"), "{text}");
    }
}

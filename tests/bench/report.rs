//! Figures, what they are compared with, what was promised, and the table.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

/// What a figure counts.
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

/// All that was measured of one thing.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    unit: Unit,
    values: Histogram<u64>,
}

impl Series {
    fn new(unit: Unit) -> Result<Self> {
        let values = Histogram::new(3)?;
        Ok(Self { unit, values })
    }

    pub(crate) fn times() -> Result<Self> {
        Self::new(Unit::Time)
    }

    pub(crate) fn rates() -> Result<Self> {
        Self::new(Unit::Rate)
    }

    pub(crate) fn speeds() -> Result<Self> {
        Self::new(Unit::Speed)
    }

    pub(crate) fn bytes() -> Result<Self> {
        Self::new(Unit::Bytes)
    }

    pub(crate) fn time(&mut self, value: Duration) -> Result<()> {
        self.values.record(u64::try_from(value.as_nanos())?)?;
        Ok(())
    }

    /// One time per line, in nanoseconds.
    pub(crate) fn nanoseconds(&mut self, text: &str) -> Result<()> {
        for line in text.lines() {
            self.values.record(line.parse()?)?;
        }
        Ok(())
    }

    /// `count` things took so long together.
    pub(crate) fn rate(&mut self, count: u64, time: Duration) -> Result<()> {
        let scale = if self.unit == Unit::Rate { 1000 } else { 1 };
        let scaled = u128::from(count) * scale * 1_000_000_000;
        let value = scaled / time.as_nanos().max(1);
        self.values.record(u64::try_from(value)?)?;
        Ok(())
    }

    pub(crate) fn size(&mut self, bytes: u64) -> Result<()> {
        self.values.record(bytes)?;
        Ok(())
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

/// What was promised. Ratios are ours by the reference's, or the other way round where we are to be faster.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Budget {
    /// No promise: to be read beside the others.
    None,
    /// Our median takes at most so many times the reference's.
    Within(f64),
    /// At least so many times faster, median and p99.
    Faster(f64, Option<f64>),
    /// Our rate is at least so many times the reference's.
    Share(f64),
    /// At most so much, in the unit of the series; the worst value counts.
    AtMost(u64),
    /// The median, and the 99th percentile, are at most so much.
    Soon { p50: Option<u64>, p99: Option<u64> },
}

/// One row of the table.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    what: String,
    ours: Series,
    reference: Option<(String, Series)>,
    budget: Budget,
}

impl Row {
    pub(crate) fn new(what: &str, ours: &Series, budget: Budget) -> Self {
        Self {
            what: what.to_owned(),
            ours: ours.clone(),
            reference: None,
            budget,
        }
    }

    #[must_use]
    pub(crate) fn against(mut self, name: &str, reference: &Series) -> Self {
        self.reference = Some((name.to_owned(), reference.clone()));
        self
    }

    /// Our value by the reference's, or the inverse where faster is what counts.
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

    fn verdict(&self) -> Option<bool> {
        let (p50, p99) = (self.ratio(0.5), self.ratio(0.99));
        match self.budget {
            Budget::None => None,
            Budget::Within(most) => Some(p50? <= most),
            Budget::Share(least) => Some(p50? >= least),
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

    /// what, p50, p99, n, reference, p50, p99, n, ratio of p50, of p99, budget, verdict.
    fn cells(&self) -> [String; 12] {
        let columns = |series: &Series| {
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
            Budget::Share(least) => format!("≥ {}", times(least)),
            Budget::Faster(p50, None) => format!("≥ {} faster", times(p50)),
            Budget::Faster(p50, Some(p99)) => {
                format!("≥ {} faster, p99 ≥ {}", times(p50), times(p99))
            }
            Budget::AtMost(most) => format!("≤ {}", self.ours.show(most)),
            Budget::Soon { p50, p99 } => {
                let named = [("p50", p50), ("p99", p99)];
                let named = named
                    .into_iter()
                    .filter_map(|(name, most)| Some((name, most?)));
                let parts = named.map(|(name, most)| format!("{name} ≤ {}", self.ours.show(most)));
                parts.collect::<Vec<_>>().join(", ")
            }
        };
        let verdict = match self.verdict() {
            None => "",
            Some(true) => "met",
            Some(false) => "missed",
        };
        let what = self.what.clone();
        let (p50_ratio, p99_ratio) = (ratio(0.5), ratio(0.99));
        let verdict = verdict.to_owned();
        [
            what, p50, p99, n, name, their_p50, their_p99, their_n, p50_ratio, p99_ratio, budget,
            verdict,
        ]
    }

    /// For the one who waits.
    pub(crate) fn line(&self) -> String {
        let cells = self.cells();
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

/// Aligned for a terminal.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
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

/// As a table of Markdown.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let line = |cells: &[String; 12]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&HEAD.map(str::to_owned));
    text.push_str("|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---|---|\n");
    for row in rows {
        text.push_str(&line(&row.cells()));
    }
    text
}

/// Every series with its spread.
pub(crate) fn raw(rows: &[Row]) -> String {
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

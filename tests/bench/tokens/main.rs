//! `make token-report`: counts the tokens of skills in prompts with a real tokenizer. It compares skills and tools that are
//! loaded on demand with all of them at once. docs/benchmarks.md describes the method; `--record` writes an entry to
//! tests/bench/results/. The same skills give the same figures on every machine.
//!
//! Modules in reading order: `corpus` (skills in a folder), `conversation` (requests to a model), `pool` (tools).

mod conversation;
mod corpus;
mod pool;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use skilld_bench::results;
use skilld_tests::binaries;
use tiktoken_rs::CoreBPE;

use conversation::Docs;
use corpus::{Corpus, MEDIAN, REFERENCE};

const USAGE: &str = "usage: token-report [--dir DIR] [--record]
  --dir DIR  skills beneath this folder too
  --record   write an entry to tests/bench/results/ and docs/benchmarks.md";

/// Line of the table.
pub(crate) struct Row {
    what: String,
    ours: usize,
    beside: usize,
    target: &'static str,
    /// Minimum saving, in percent.
    saved_min: f64,
}

impl Row {
    pub(crate) fn new(what: String, (ours, beside): (usize, usize)) -> Self {
        Self {
            what,
            ours,
            beside,
            target: "",
            saved_min: f64::NEG_INFINITY,
        }
    }

    pub(crate) fn with_target(self, target: &'static str, saved_min: f64) -> Self {
        Self {
            target,
            saved_min,
            ..self
        }
    }

    fn line(&self) -> String {
        let saved = 100.0 - 100.0 * to_f64(self.ours) / to_f64(self.beside.max(1));
        let outcome = match self.target {
            "" => "",
            // Rounded as it is printed.
            _ if (saved * 10.0).round() / 10.0 >= self.saved_min => "met",
            _ => "missed",
        };
        format!(
            "| {} | {} | {} | {saved:.1} % | {} | {outcome} |",
            self.what, self.ours, self.beside, self.target
        )
    }
}

/// Converts a number of tokens, which is exact below 2^32.
fn to_f64(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed standard error changes nothing.
            let _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let (mut dir, mut wants_record) = (None, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--dir" => dir = Some(PathBuf::from(args.next().context(USAGE)?)),
            "--record" => wants_record = true,
            _ => bail!("{USAGE}"),
        }
    }
    let tokenizer = tiktoken_rs::o200k_base().context("load the tokenizer")?;
    let samples = Corpus::read(&binaries::repository().join("skills"), "the sample skills")?;
    let longer = [&MEDIAN, &REFERENCE].map(|lengths| samples.lengthened(lengths));
    let mut corpora = vec![samples];
    corpora.extend(longer);
    if let Some(dir) = dir {
        corpora.push(Corpus::read(&dir, "the folder")?);
    }
    let mut rows = Vec::new();
    let mut sizes = String::new();
    for corpus in &corpora {
        writeln!(sizes, "* {}", corpus.size(&tokenizer))?;
        rows.extend(rows_of(corpus, &tokenizer));
    }
    rows.extend(pool::rows(&tokenizer)?);
    let table = table(&rows);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{sizes}\n{table}")?;
    if wants_record {
        let time = results::time_now();
        let summary = format!("* tokenizer: o200k_base\n{sizes}\n{table}");
        let entry = format!("# {time} UTC · `make token-report`\n\n{summary}");
        let path = results::write_entry(&time, "token-report", &entry)?;
        results::replace_latest("latest tokens", &path, &time, &summary)?;
        writeln!(out, "wrote {}", path.display())?;
    }
    Ok(())
}

fn rows_of(corpus: &Corpus, tokenizer: &CoreBPE) -> Vec<Row> {
    let mut rows = Vec::new();
    for (docs, said, target, saved_min) in [
        (Docs::None, "bodies only", "≥ 84 %", 84.0),
        (Docs::Some, "bodies and docs", "≥ 95 %", 95.0),
    ] {
        if docs == Docs::Some && corpus.docs() == 0 {
            continue;
        }
        let figures = conversation::figures(corpus, docs, tokenizer);
        let what = |of: &str| format!("{}, {said}: {of}", corpus.name);
        rows.push(
            Row::new(what("conversation"), figures.conversation).with_target(target, saved_min),
        );
        rows.push(Row::new(what("last request"), figures.last));
    }
    rows
}

fn table(rows: &[Row]) -> String {
    let mut table =
        "| prompt tokens | ours | beside | saved | target |  |\n|---|---:|---:|---:|---|---|\n"
            .to_owned();
    for row in rows {
        table.push_str(&row.line());
        table.push('\n');
    }
    table
}

/// Returns the number of tokens of a text.
pub(crate) fn tokens(tokenizer: &CoreBPE, text: &str) -> usize {
    tokenizer.encode_ordinary(text).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns skilld's tokens in percent of the comparison's.
    fn share(row: &Row) -> f64 {
        100.0 * to_f64(row.ours) / to_f64(row.beside)
    }

    #[test]
    fn saved_tokens_stay_near_the_published_figures() {
        let tokenizer = tiktoken_rs::o200k_base().expect("the tokenizer");
        let skills = binaries::repository().join("skills");
        let samples = Corpus::read(&skills, "the sample skills").expect("skills");
        // Bodies, then bodies and documents: each a conversation and its last request. Longer skills save more, but an
        // unoptimised program needs minutes to count them.
        let rows = rows_of(&samples, &tokenizer);
        assert_eq!(rows.len(), 4);
        for (row, most) in rows.iter().zip([45.0, 40.0, 45.0, 40.0]) {
            assert!(share(row) < most, "{}", row.line());
        }
        for row in pool::rows(&tokenizer).expect("figures") {
            assert!(
                row.target.is_empty() || share(&row) <= 15.05,
                "{}",
                row.line()
            );
        }
    }

    #[test]
    fn a_folder_of_one_skill_is_a_corpus_and_one_of_none_is_said() {
        let skills = binaries::repository().join("skills");
        let tokenizer = tiktoken_rs::o200k_base().expect("the tokenizer");
        let one = Corpus::read(&skills.join("csv-report"), "one").expect("a skill");
        assert!(!rows_of(&one, &tokenizer).is_empty());
        let none = Corpus::read(&skills.join("csv-report/scripts"), "none");
        assert!(none.is_err_and(|error| error.to_string().contains("has no skills")));
    }
}

//! Results of measurements in the repository: one file per run in `tests/bench/results/`, and the block with the latest
//! table in `docs/benchmarks.md`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};

use skilld_tests::binaries;

/// Page that shows the latest tables.
const PAGE: &str = "docs/benchmarks.md";

/// Directory of the entries.
const ENTRIES: &str = "tests/bench/results";

/// Returns the current time in UTC, as `2026-11-23 05:54:29`.
#[must_use]
pub fn time_now() -> String {
    let now = prost_types::Timestamp::from(SystemTime::now()).to_string();
    let time = now.split('.').next().unwrap_or_default().replace('T', " ");
    time.trim_end_matches('Z').to_owned()
}

/// Returns the abbreviated commit of the work tree, with `-dirty` if it has changes; empty without git.
#[must_use]
pub fn current_commit() -> String {
    let described = Command::new("git")
        .arg("-C")
        .arg(binaries::repository())
        .args(["describe", "--always", "--dirty"])
        .output();
    described.map_or_else(
        |_no_git| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// Writes an entry to `tests/bench/results/DATE-COMMIT[-KIND].md`, after those of the same day and commit, and returns
/// its path.
///
/// # Errors
/// When the file can't be written.
pub fn write_entry(time: &str, kind: &str, entry: &str) -> Result<PathBuf> {
    let date = time.split(' ').next().unwrap_or_default();
    let mut name = format!("{date}-{}", current_commit());
    if !kind.is_empty() {
        name = format!("{name}-{kind}");
    }
    let directory = binaries::repository().join(ENTRIES);
    std::fs::create_dir_all(&directory)?;
    let path = directory.join(format!("{name}.md"));
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("open {}", path.display()))?;
    if file.metadata()?.len() > 0 {
        file.write_all(b"\n")?;
    }
    file.write_all(entry.as_bytes())?;
    Ok(path)
}

/// Replaces the block `<!-- BLOCK: begin -->` … `<!-- BLOCK: end -->` of `docs/benchmarks.md` by the contents of an entry
/// and a link to it.
///
/// # Errors
/// When the page can't be read or written, or has no such block.
pub fn replace_latest(block: &str, entry: &Path, time: &str, contents: &str) -> Result<()> {
    let path = binaries::repository().join(PAGE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("read {PAGE}"))?;
    let name = entry.file_name().unwrap_or_default().to_string_lossy();
    let contents = format!(
        "\nFrom [{name}](../{ENTRIES}/{name}), run at {time} UTC.\n\n{}\n",
        contents.trim()
    );
    let page = replace_block(&page, block, &contents)
        .with_context(|| format!("{PAGE} has no block `<!-- {block}: begin -->`"))?;
    Ok(std::fs::write(path, page)?)
}

/// Returns a page with other contents between the two markers of a block; `None` if it has no such block.
fn replace_block(page: &str, block: &str, contents: &str) -> Option<String> {
    let (begin, end) = (
        format!("<!-- {block}: begin -->\n"),
        format!("\n<!-- {block}: end -->"),
    );
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{contents}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_contents_of_the_named_block_are_replaced() {
        let page = "# Page\n<!-- latest: begin -->\nold\n<!-- latest: end -->\n<!-- other: begin -->\nkept\n<!-- other: end -->\n";
        let replaced = replace_block(page, "latest", "new\n").expect("a block");
        assert_eq!(replaced, page.replace("\nold\n", "\nnew\n\n"));
        assert_eq!(replace_block(page, "strange", "new"), None);
    }
}

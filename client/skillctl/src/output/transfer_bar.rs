//! Progress bar or byte counter of a transfer, on stderr and only if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use skilld_client::TransferProgress;

use crate::output;
use crate::terminal::safe_text::plain_line;

/// Progress bar of a transfer, removed when dropped. Without a terminal and with --quiet it shows nothing.
#[derive(Debug)]
pub(crate) struct TransferBar(ProgressBar);

impl TransferBar {
    /// Creates a bar for something whose size may become known.
    pub(crate) fn new(what: &str) -> Self {
        if output::is_quiet() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::no_length();
        let template = "{msg} {bytes} {bytes_per_sec} {spinner}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(plain_line(what));
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Shows the share of this number of bytes from now on.
    pub(crate) fn set_total(&self, total: u64) {
        show_total(&self.0, total);
    }

    /// Returns the progress that moves the bar.
    pub(crate) fn progress(&self) -> TransferProgress {
        let bar = self.0.clone();
        TransferProgress::new(move |done, total| {
            if let Some(total) = total
                && bar.length() != Some(total)
            {
                show_total(&bar, total);
            }
            bar.set_position(done);
        })
    }

    /// Adds bytes that no [`TransferProgress`] counts.
    pub(crate) fn add(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }
}

fn show_total(bar: &ProgressBar, total: u64) {
    bar.set_length(total);
    let template = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
}

impl Drop for TransferBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

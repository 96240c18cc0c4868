//! Bar on a terminal that shows how much of a transfer is done.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skilld_client::TransferProgress;

/// Time before the bar appears: short transfers show none.
const DELAY: Duration = Duration::from_millis(500);
/// Interval between two states of the bar.
const INTERVAL: Duration = Duration::from_millis(100);
/// Width of a whole bar, in characters.
const WIDTH: usize = 30;
const MIB: f64 = 1024.0 * 1024.0;

/// Bar of one transfer. Dropping it removes it from the terminal.
struct ProgressBar {
    label: String,
    start: Instant,
    drawn: Option<Instant>,
}

impl ProgressBar {
    #[expect(clippy::cast_precision_loss, reason = "the bar has few digits")]
    fn show(&mut self, done: u64, total: Option<u64>) {
        let now = Instant::now();
        let due = self
            .drawn
            .map_or(self.start + DELAY, |drawn| drawn + INTERVAL);
        if now < due {
            return;
        }
        self.drawn = Some(now);
        let part = total
            .filter(|total| *total > 0)
            .map(|total| done as f64 / total as f64);
        let cells = (1..=WIDTH).map(|cell| match part {
            Some(part) if cell as f64 <= part * WIDTH as f64 => '━',
            Some(_) | None => ' ',
        });
        let cells: String = cells.collect();
        let percent = part.map_or(String::new(), |part| {
            format!("{:3.0} % ", part.min(1.0) * 100.0)
        });
        let rate = done as f64 / MIB / (now - self.start).as_secs_f64();
        let text = format!(
            "\r\x1b[K{} {cells} {percent}{:.1} MiB, {rate:.1} MiB/s",
            self.label,
            done as f64 / MIB
        );
        write_terminal(&text);
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            write_terminal("\r\x1b[K");
        }
    }
}

fn write_terminal(text: &str) {
    let mut terminal = std::io::stderr().lock();
    // A terminal that is gone needs no bar.
    let _gone = terminal
        .write_all(text.as_bytes())
        .and_then(|()| terminal.flush());
}

/// Returns the progress of a transfer: a bar if stderr is a terminal, and nothing otherwise.
pub(crate) fn terminal_progress(label: &str) -> TransferProgress {
    if !std::io::stderr().is_terminal() {
        return TransferProgress::none();
    }
    let printable = |char: char| if char.is_control() { '?' } else { char };
    let bar = Mutex::new(ProgressBar {
        label: label.chars().map(printable).take(40).collect(),
        start: Instant::now(),
        drawn: None,
    });
    TransferProgress::new(move |done, total| bar.lock().show(done, total))
}

//! Messages of a start: those that come before the log exists, and those that end the daemon.

use std::io::Write;

use super::json_log;

/// Writer of the messages of a start to standard error.
#[derive(Debug, Clone, Copy)]
pub struct StartupLog {
    is_json: bool,
}

impl StartupLog {
    /// Makes a writer of text, or of one JSON object per line like those of the log.
    pub fn new(is_json: bool) -> Self {
        Self { is_json }
    }

    /// Makes panics lines of this writer until the log exists. Text needs nothing: the standard library writes it.
    pub fn report_panics(self) {
        if self.is_json {
            std::panic::set_hook(Box::new(move |panic| self.error(&panic.to_string())));
        }
    }

    /// Writes an error, each line of its text by itself.
    pub fn error(self, text: &str) {
        self.write("error", text);
    }

    /// Writes a warning, each line of its text by itself.
    pub fn warn(self, text: &str) {
        self.write("warning", text);
    }

    fn write(self, kind: &str, text: &str) {
        let mut stderr = std::io::stderr().lock();
        let lines = text.lines();
        for line in lines.filter(|line| !self.is_json || !line.trim().is_empty()) {
            let line = match (self.is_json, kind) {
                (false, _) => format!("{kind}: {line}\n"),
                (true, "error") => json_log::startup_line("ERROR", line),
                (true, _) => json_log::startup_line("WARN", line),
            };
            // There is no other place to report it.
            drop(stderr.write_all(line.as_bytes()));
        }
    }
}

//! Logs: tracing on stderr, one line per event, as text or as JSON. Control characters are escaped, so that
//! nothing a tenant chose can forge a line or drive a terminal.
//!
//! Levels: ERROR broken · WARN odd but working · INFO a visible change of state · DEBUG a branch taken · TRACE
//! each frame. What programs print, and values of their environment, are never logged above TRACE.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::Config;
use crate::engine::{EngineInfo, seccomp};
use crate::error::{Error, Result};

mod limit;

pub use limit::{LOG_INTERVAL, LineLimit};

/// Starts logging for this process; once. Panics are logged too. Returns what counts the lines that are left out.
///
/// # Errors
/// When the filter is malformed, or something else logs already.
pub fn init(config: &Config) -> Result<LineLimit> {
    let failed = |error: &dyn std::fmt::Display| Error::Internal(format!("start logging: {error}"));
    let filter = EnvFilter::try_new(&config.log).map_err(|error| failed(&error))?;
    let colors = !config.log_json && io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colors)
        .with_writer(move || Escaped {
            out: io::stderr(),
            colors,
        });
    let limit = LineLimit::new(config.log_lines_max);
    let started = if config.log_json {
        let json = builder.json().flatten_event(true).finish();
        json.with(limit.clone()).try_init()
    } else {
        builder.finish().with(limit.clone()).try_init()
    };
    started.map_err(|error| failed(&error))?;
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        tracing::error!(message = panic.payload_as_str(), location, "panic");
    }));
    Ok(limit)
}

/// The line that says what was started, with what a bug report needs.
pub fn announce(config: &Config, instance: &str, engine: &EngineInfo) {
    let pools: Vec<String> = config
        .pools
        .iter()
        .map(|pool| format!("{} {}/{} {}", pool.name, pool.warm, pool.max, pool.image))
        .collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        instance,
        state_dir = %config.state_dir.display(),
        socket = %config.socket.display(),
        engine = %format_args!("{} {}", engine.name, engine.version),
        api = engine.api_version,
        cgroup = engine.cgroup_version,
        pools = pools.join(", "),
        default_pool = config.default_pool,
        uids = %format_args!("{}+{}", config.engine.uid_base, config.engine.uid_count),
        guest = %config.engine.guest_path.display(),
        seccomp = seccomp::digest(),
        "skilld"
    );
}

/// Writes one event per call and escapes control characters in it, but for the end of its line and, on a
/// terminal, our own colours (tracing-subscriber escapes those that came with a value).
struct Escaped<W> {
    out: W,
    colors: bool,
}

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        if !line.chars().any(|char| self.escapes(char)) {
            self.out.write_all(event)?;
            return Ok(event.len());
        }
        let mut escaped = String::with_capacity(event.len() + 16);
        for char in line.chars() {
            if self.escapes(char) {
                escaped.extend(char.escape_default());
            } else {
                escaped.push(char);
            }
        }
        escaped.push('\n');
        self.out.write_all(escaped.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W> Escaped<W> {
    fn escapes(&self, char: char) -> bool {
        char.is_control() && !(self.colors && char == '\u{1b}')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_can_forge_a_line_or_drive_a_terminal() {
        let mut out = Vec::new();
        let mut writer = Escaped {
            out: &mut out,
            colors: false,
        };
        let event = "INFO who=x\nERROR forged \u{1b}[2J\u{9b}31m\r\0 é\n".as_bytes();
        assert_eq!(writer.write(event).expect("write"), event.len());
        let line = String::from_utf8(out).expect("utf-8");
        assert_eq!(
            line,
            "INFO who=x\\nERROR forged \\u{1b}[2J\\u{9b}31m\\r\\u{0} é\n"
        );
    }
}

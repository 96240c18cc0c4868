//! Logging: tracing to stderr, one line per event, as text or as JSON. Control characters are escaped, so that no value
//! of a tenant can forge a log line or control a terminal.
//!
//! Levels: ERROR for defects, WARN for problems that an operator should see, INFO for visible changes of state, DEBUG
//! for decisions, TRACE for single frames. Output and environment of commands are never logged above TRACE.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Config, ListenAddress};
use crate::engine::{EngineInfo, seccomp};
use crate::error::{Error, Result};

mod json_log;
mod log_rate_limiter;
mod startup_log;
pub mod trace_span;

use json_log::JsonLineFormat;
use log_rate_limiter::LINES_MAX;
pub use log_rate_limiter::{LOG_INTERVAL, LogRateLimiter};
pub use startup_log::StartupLog;

/// Starts logging for this process, panics included. Returns the limit that counts suppressed lines.
///
/// # Errors
///
/// Fails if the filter is malformed or if logging was started before.
pub fn init_logging(config: &Config) -> Result<LogRateLimiter> {
    let failed = |error: &dyn std::fmt::Display| Error::Internal(format!("start logging: {error}"));
    let filter = EnvFilter::try_new(&config.log).map_err(|error| failed(&error))?;
    let limit = LogRateLimiter::new(LINES_MAX);
    // Reports of a failed write would go to the same standard error, and panic if that fails.
    let log = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter);
    let started = if config.log_json {
        let json = log
            .fmt_fields(JsonFields::new())
            .event_format(JsonLineFormat)
            .with_writer(io::stderr);
        json.finish().with(limit.clone()).try_init()
    } else {
        let colors = io::stderr().is_terminal();
        let text = log.with_ansi(colors).with_writer(move || EscapingWriter {
            out: io::stderr(),
            colors,
        });
        text.finish().with(limit.clone()).try_init()
    };
    started.map_err(|error| failed(&error))?;
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        tracing::error!(payload = panic.payload_as_str(), location, "panic");
    }));
    Ok(limit)
}

/// Logs the start of the daemon in one line, with the details that a bug report needs.
pub fn log_startup(config: &Config, instance: &str, engine: &EngineInfo) {
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

/// Logs that the daemon serves, and where. `tcp` and `metrics` are the addresses of listeners of these kinds.
pub fn log_serving(config: &Config, tcp: &[SocketAddr], metrics: &[SocketAddr]) {
    let (mut tcp, mut metrics) = (tcp.iter(), metrics.iter());
    for listener in &config.listeners {
        let authenticators = format!("{:?}", listener.authenticators);
        match &listener.address {
            ListenAddress::Unix { path, .. } => {
                tracing::info!(socket = %path.display(), authenticators, "serving");
            }
            ListenAddress::Tcp { address, tls } => {
                let address = tcp.next().unwrap_or(address);
                tracing::info!(%address, tls = tls.is_some(), authenticators, "serving");
            }
            ListenAddress::Metrics { address, tls } => {
                let address = metrics.next().unwrap_or(address);
                tracing::info!(%address, tls = tls.is_some(), authenticators, "serving metrics");
            }
        }
    }
}

/// Writer that escapes control characters in log events, one event per call. It keeps the line end and, on a terminal,
/// the colours of the log format; tracing-subscriber escapes those within values.
struct EscapingWriter<W> {
    out: W,
    colors: bool,
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        if !line.chars().any(|char| self.must_escape(char)) {
            self.out.write_all(event)?;
            return Ok(event.len());
        }
        let mut escaped = String::with_capacity(event.len() + 16);
        for char in line.chars() {
            if self.must_escape(char) {
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

impl<W> EscapingWriter<W> {
    /// Returns `true` if a character must not reach the output unescaped.
    fn must_escape(&self, char: char) -> bool {
        char.is_control() && !(self.colors && char == '\u{1b}')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_in_log_lines() {
        let mut out = Vec::new();
        let mut writer = EscapingWriter {
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

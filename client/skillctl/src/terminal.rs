//! This program's own terminal: its size, and raw mode, which every way out of the program ends.
//!
//! The previous mode is kept in this module and not by the caller, so that a panic can restore it before its message is
//! printed.

pub(crate) mod attach_input;
pub(crate) mod detach_keys;
pub(crate) mod interrupt;
pub(crate) mod safe_text;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;

use parking_lot::Mutex;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use skilld_client::v1::ExecTerminal;

/// Maximum number of rows and of columns that this program reports; the API takes one more, which a redraw needs.
const SIDE_MAX: u16 = 9_999;
/// Maximum length of TERM in the API, in bytes.
const TERM_BYTES_MAX: usize = 64;

/// Terminal in raw mode and its previous mode; `None` outside of raw mode.
static SAVED: Mutex<Option<SavedTerminal>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// Terminal that is in raw mode, with the mode to restore.
struct SavedTerminal {
    terminal: OwnedFd,
    mode: Termios,
}

/// Guard of raw mode, which ends when the guard is dropped. In raw mode each typed byte is read at once without a
/// meaning to the kernel, and written bytes are not changed.
#[derive(Debug)]
pub(crate) struct RawTerminal(());

impl RawTerminal {
    /// Enters raw mode on the terminal of stdin. What was typed before is not lost.
    pub(crate) fn enter() -> io::Result<Self> {
        Self::enter_on(&io::stdin())
    }

    fn enter_on(terminal: &impl AsFd) -> io::Result<Self> {
        HOOK.call_once(|| {
            let inner = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore_mode();
                inner(panic);
            }));
        });
        let mode = tcgetattr(terminal)?;
        let mut raw = mode.clone();
        raw.make_raw();
        *SAVED.lock() = Some(SavedTerminal {
            terminal: terminal.as_fd().try_clone_to_owned()?,
            mode,
        });
        // From here on a failure restores the mode, too.
        let entered = Self(());
        tcsetattr(terminal, OptionalActions::Now, &raw)?;
        Ok(entered)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore_mode();
    }
}

/// Returns `true` in raw mode, in which lines must end with a carriage return.
pub(crate) fn is_raw() -> bool {
    SAVED.lock().is_some()
}

fn restore_mode() {
    if let Some(SavedTerminal { terminal, mode }) = SAVED.lock().take() {
        // Not waiting for output: a terminal that takes none must not keep us. One that is gone has no mode.
        let _ = tcsetattr(terminal, OptionalActions::Now, &mode);
    }
}

/// Returns `true` if stdin is a terminal.
pub(crate) fn stdin_is_terminal() -> bool {
    isatty(io::stdin())
}

/// Returns rows and columns of this program's terminal; zeros if there is none or it does not report them.
pub(crate) fn terminal_size() -> (u32, u32) {
    let size = tcgetwinsize(io::stdin())
        .or_else(|_| tcgetwinsize(io::stdout()))
        .or_else(|_| tcgetwinsize(io::stderr()));
    size.map_or((0, 0), |size| {
        let side = |cells: u16| u32::from(cells.min(SIDE_MAX));
        (side(size.ws_row), side(size.ws_col))
    })
}

/// Returns the terminal to request for an exec: of the size of this program's, and of the kind `term` if that is a
/// valid name.
pub(crate) fn terminal_like_ours(term: &str) -> ExecTerminal {
    let (rows, cols) = terminal_size();
    let known = term.len() <= TERM_BYTES_MAX
        && term
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte));
    ExecTerminal {
        rows,
        cols,
        term: if known {
            term.to_owned()
        } else {
            String::new()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pty() -> (OwnedFd, OwnedFd) {
        use rustix::fs::{Mode, OFlags, open};
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pty");
        grantpt(&master).expect("grants");
        unlockpt(&master).expect("unlocks");
        let name = ptsname(&master, Vec::new()).expect("has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        (master, open(name, flags, Mode::empty()).expect("opens"))
    }

    fn mode(terminal: &OwnedFd) -> String {
        format!("{:?}", tcgetattr(terminal).expect("is a terminal"))
    }

    // One test: there is one terminal in a process.
    #[test]
    fn a_terminal_is_restored_by_whatever_ends_raw_mode() {
        let (_master, terminal) = pty();
        let before = mode(&terminal);
        let raw = RawTerminal::enter_on(&terminal).expect("enters");
        assert!(is_raw());
        assert_ne!(mode(&terminal), before);
        drop(raw);
        assert!(!is_raw());
        assert_eq!(mode(&terminal), before);

        let raw = RawTerminal::enter_on(&terminal).expect("enters");
        let during = std::panic::catch_unwind(|| panic!("as tested"));
        assert!(during.is_err());
        assert_eq!(
            mode(&terminal),
            before,
            "before anything else a panic restores it"
        );
        drop(raw);
        assert_eq!(mode(&terminal), before);

        let nothing = std::fs::File::open("/dev/null").expect("opens");
        RawTerminal::enter_on(&nothing).expect_err("is no terminal");
        assert!(!is_raw());
    }
}

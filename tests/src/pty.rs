//! A terminal of the test's own, with a program in it as its foreground program: `skillctl`, or a shell.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// Time limit of every wait for a program.
const DEADLINE: Duration = Duration::from_secs(120);

/// A terminal and what runs in it.
#[derive(Debug)]
pub struct Pty {
    master: tokio::fs::File,
    /// Held, so that what was written last can be read.
    terminal: OwnedFd,
    child: Child,
    /// Read and not yet asked for.
    screen: Vec<u8>,
    before: String,
}

/// Opens a new terminal. Returns its master, and the terminal itself.
pub fn open_terminal() -> (OwnedFd, OwnedFd) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pty");
    grantpt(&master).expect("grants");
    unlockpt(&master).expect("unlocks");
    let name = ptsname(&master, Vec::new()).expect("has a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = open(name, flags, Mode::empty()).expect("opens");
    (master, terminal)
}

impl Pty {
    /// Runs a program in a terminal of 24 rows and 80 columns; `skillctl` there uses the daemon at `endpoint`.
    pub fn run(program: &Path, endpoint: &str, words: &[&str]) -> Self {
        let (master, terminal) = open_terminal();
        set_size(&terminal, 24, 80);
        let before = mode(&terminal);
        let end = || Stdio::from(terminal.try_clone().expect("a descriptor"));
        // A session of its own, whose terminal this is: then the kernel sends it what it sends to programs in one.
        let child = Command::new("setsid")
            .arg("--ctty")
            .arg(program)
            .args(words)
            .env("SKILLD_ENDPOINT", endpoint)
            .env("TERM", "test-256")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .kill_on_drop(true)
            .spawn()
            .expect("starts");
        Self {
            master: tokio::fs::File::from_std(File::from(master)),
            terminal,
            child,
            screen: Vec::new(),
            before,
        }
    }

    /// Waits until this is shown, and takes all up to its end.
    pub async fn shows(&mut self, text: &str) -> String {
        let find = |screen: &[u8]| {
            let mut windows = screen.windows(text.len());
            windows.position(|window| window == text.as_bytes())
        };
        let reading = async {
            loop {
                if let Some(at) = find(&self.screen) {
                    let rest = self.screen.split_off(at + text.len());
                    let shown = std::mem::replace(&mut self.screen, rest);
                    return String::from_utf8_lossy(&shown).into_owned();
                }
                let mut space = [0; 4096];
                let read = self.master.read(&mut space).await.expect("reads");
                self.screen.extend(space.get(..read).expect("fits"));
            }
        };
        let shown = tokio::time::timeout(DEADLINE, reading).await;
        shown.unwrap_or_else(|_| {
            let screen = String::from_utf8_lossy(&self.screen);
            panic!("{text:?} never came after {screen:?}")
        })
    }

    /// Types keys.
    pub async fn types(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).await.expect("types");
        self.master.flush().await.expect("types");
    }

    /// Changes the size of the terminal.
    pub fn resize(&self, rows: u16, cols: u16) {
        set_size(&self.terminal, rows, cols);
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) {
        let pid = self
            .child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw)
            .expect("runs");
        kill_process(pid, signal).expect("sends");
    }

    /// Returns `true` if the terminal hands over each key at once.
    pub fn is_raw(&self) -> bool {
        mode(&self.terminal) != self.before
    }

    /// Waits for the end of the program; the terminal has to be as it was before.
    pub async fn ends(&mut self) -> Option<i32> {
        self.ends_within(DEADLINE).await
    }

    /// Waits as [`Self::ends`] does, for at most `limit`.
    pub async fn ends_within(&mut self, limit: Duration) -> Option<i32> {
        let ended = tokio::time::timeout(limit, self.child.wait()).await;
        let status: ExitStatus = ended.expect("ends in time").expect("ends");
        assert_eq!(mode(&self.terminal), self.before, "the terminal's mode");
        status.code()
    }
}

fn set_size(terminal: &OwnedFd, rows: u16, cols: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).expect("sets the size");
}

fn mode(terminal: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(terminal).expect("is a terminal"))
}

//! Input of a followed exec: this program's stdin, keys and the size of the terminal.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::time::Duration;

use skilld_client::v1::{ErrorReason, ResizeTerminalRequest};
use skilld_client::{Client, Error, StdinWriter};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::terminal::detach_keys::DetachKeys;
use crate::terminal::interrupt::InterruptSignals;
use crate::terminal::{self, RawTerminal};

/// Maximum size of the typed keys that wait for the sender, in bytes: a long paste fits, and the detach keys after it are
/// still read.
const KEYS_MAX: usize = 64 * 1024;

/// Maximum time for sending the keys that were typed before the detach keys.
const DETACH_GRACE: Duration = Duration::from_secs(1);

/// Input that this program sends to an exec while it prints the exec's output.
#[derive(Debug)]
pub(crate) enum AttachInput {
    /// Sends nothing.
    None,
    /// Sends the bytes of this program's stdin as they come, and end of file at its end.
    Stream(StdinWriter),
    /// Sends the keys that are typed on this program's terminal, which is in raw mode.
    Keyboard(TerminalAttach),
    /// Sends the size of this program's terminal and no keys.
    Watch(TerminalAttach),
}

/// Connection of this program's terminal to the terminal of an exec.
#[derive(Debug)]
pub(crate) struct TerminalAttach {
    pub(crate) client: Client,
    /// Name of the exec, `workspaces/{workspace}/execs/{exec}`.
    pub(crate) name: String,
    pub(crate) detach_keys: DetachKeys,
    /// Last known size of the exec's terminal, rows and columns; `None` resizes it in any case.
    pub(crate) size: Option<(u32, u32)>,
}

/// Signal that the user typed the detach keys; the exec continues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DetachNotice;

impl AttachInput {
    /// Returns the signals that end the program while this input is open. SIGHUP ends it without effect on the exec,
    /// unless keys are sent: then the terminal has to be restored.
    pub(crate) fn interrupt(&self) -> io::Result<InterruptSignals> {
        match self {
            Self::Keyboard(_) => InterruptSignals::with_hangup(),
            Self::None | Self::Stream(_) | Self::Watch(_) => InterruptSignals::without_hangup(),
        }
    }

    /// Sends the input once the exec has started. Returns only when the user detaches.
    pub(crate) async fn go(self, started: oneshot::Receiver<()>) -> anyhow::Result<DetachNotice> {
        // Without a start there is nothing to write to.
        if started.await.is_ok() {
            match self {
                Self::None => {}
                Self::Stream(writer) => send_stdin(writer).await?,
                Self::Keyboard(session) => return session.run().await,
                Self::Watch(session) => match session.watch_size().await? {},
            }
        }
        std::future::pending().await
    }
}

async fn send_stdin(mut writer: StdinWriter) -> anyhow::Result<()> {
    let written = async {
        writer.copy(tokio::io::stdin()).await?;
        writer.end().await
    };
    match written.await {
        // A program need not read what it is given; how it ends is told by its events.
        Err(error) if is_over(&error) => Ok(()),
        written => Ok(written?),
    }
}

/// Returns `true` if a write failed because nothing reads the exec's stdin any more.
fn is_over(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(
            ErrorReason::ExecNotRunning
                | ErrorReason::StdinClosed
                | ErrorReason::ExecNotFound
                | ErrorReason::WorkspaceNotFound
                | ErrorReason::WorkspaceNotReady
        )
    )
}

impl TerminalAttach {
    async fn run(self) -> anyhow::Result<DetachNotice> {
        let _raw = RawTerminal::enter()?;
        let (keys, typed_keys) = tokio::io::duplex(KEYS_MAX);
        let mut writer = self.client.stdin_end(&self.name);
        let typing = async {
            match writer.copy(typed_keys).await {
                Err(error) if !is_over(&error) => Err(error),
                Ok(_) | Err(_) => Ok(()),
            }
        };
        let detached = async {
            if !self.detach_keys.copy_others(tokio::io::stdin(), keys).await {
                // The keyboard is gone; if that is to end something, a signal says so.
                std::future::pending::<()>().await;
            }
        };
        let (mut typing, mut detached) = (pin!(typing), pin!(detached));
        let mut sizes = pin!(self.watch_size());
        let mut is_sent = false;
        loop {
            tokio::select! {
                biased;
                sent = &mut typing, if !is_sent => {
                    sent?;
                    is_sent = true;
                }
                () = &mut detached => {
                    if !is_sent {
                        drop(tokio::time::timeout(DETACH_GRACE, &mut typing).await);
                    }
                    return Ok(DetachNotice);
                }
                never = &mut sizes => match never? {},
            }
        }
    }

    /// Resizes the exec's terminal to this program's terminal, now and whenever that changes. Signals that come while a
    /// size is under way count as one. If we do not know the exec's size it changes in any case, so that a program that
    /// fills the screen draws it again.
    async fn watch_size(&self) -> anyhow::Result<Infallible> {
        let mut changed = signal(SignalKind::window_change())?;
        let mut known = self.size;
        loop {
            let size = terminal::terminal_size();
            if known != Some(size) && size.0 > 0 && size.1 > 0 {
                if known.is_none() {
                    self.resize((size.0 + 1, size.1)).await?;
                }
                self.resize(size).await?;
                known = Some(size);
            }
            if changed.recv().await.is_none() {
                return std::future::pending().await;
            }
        }
    }

    async fn resize(&self, (rows, cols): (u32, u32)) -> anyhow::Result<()> {
        let request = ResizeTerminalRequest {
            name: self.name.clone(),
            rows,
            cols,
        };
        match self.client.resize_terminal(request).await {
            Err(error) if is_over(&error) => std::future::pending().await,
            resized => Ok(resized?),
        }
    }
}

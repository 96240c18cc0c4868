//! Connection to one guest: the socket to which it connects, the proof of its identity, the channel.
//!
//! The guest connects out to `run/guest.sock` of its slot. A peer is checked in three ways: its uid is the slot's, its
//! pid is the container's first process (where the OCI runtime shows it), and it knows the nonce from the container's
//! environment, which commands can't read. Then the socket is unlinked. A guest that lost its connection, for instance
//! because the daemon restarted, connects again to the new socket that the daemon binds under the same path.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use skilld_common::frame_socket::FrameSocket;
use skilld_proto::guest::GENERATION;
use skilld_proto::guest::v1 as pb;
use skilld_proto::guest::v1::guest_service_client::GuestServiceClient;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::{Error, Result, tolerate};

mod channel;

pub use channel::{GuestChannel, STREAM_WINDOW};

/// File name of the guest's binary in the slot's `run/`.
pub const BINARY: &str = "skilld-guest";
/// File name of the guest's socket in the slot's `run/`.
const SOCKET: &str = "guest.sock";
/// Maximum number of entries of one archive that a guest unpacks, and of a folder that is an input: as many files as one
/// collection may have, so that what was collected can be staged.
pub const ARCHIVE_ENTRIES_MAX: u64 = 50_000;
/// Maximum size of a message from a guest, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Longest wait for the answer to the first call.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// gRPC client of a guest. Cheap to clone.
pub type GuestClient = GuestServiceClient<GuestChannel>;

/// Identity that a connecting guest must prove.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(Default))]
pub struct ExpectedGuest {
    /// Uid of the slot; `None` where the host sees shifted uids.
    pub uid: Option<u32>,
    /// Pid of the container's first process; `None` where the OCI runtime hides it.
    pub pid: Option<i32>,
    /// Nonce from the container's environment.
    pub nonce: Vec<u8>,
    /// File of the commands' CPU group, which is passed to the guest; `None` where commands share the container's
    /// group.
    pub command_group: Option<Arc<fs::File>>,
}

/// Listening socket for one guest. Dropping it unlinks the socket.
#[derive(Debug)]
pub struct GuestSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// Connection to a guest that proved its identity.
#[derive(Debug, Clone)]
pub struct GuestLink {
    /// Client for calls to the guest.
    pub client: GuestClient,
    /// Cancelled when the connection is lost.
    pub lost: CancellationToken,
    /// Version that the guest reported.
    pub version: String,
    /// Workspace as which the guest was configured; empty before that.
    pub workspace: String,
    /// Second handle of the connection, to shut it down below the channel.
    socket: Arc<std::os::unix::net::UnixStream>,
}

impl GuestLink {
    /// Ends the connection. Every call on it fails, and the guest connects again.
    pub fn cut(&self) {
        if let Err(error) = self.socket.shutdown(std::net::Shutdown::Both) {
            tracing::debug!(%error, "guest's connection was gone already");
        }
    }
}

/// Binds a socket in a slot's `run/` to which the slot's container can connect, replacing one that a crash left.
///
/// # Errors
/// When the directory cannot be written.
pub fn bind_container_socket(run_dir: &Path, name: &str) -> Result<UnixListener> {
    let path = run_dir.join(name);
    let bind = || -> io::Result<UnixListener> {
        tolerate(io::ErrorKind::NotFound, fs::remove_file(&path))?;
        // The kernel shows a container the path to which its peer was bound. This path does not reveal the slot's
        // directory, and is never too long for a socket.
        let directory = fs::File::open(run_dir)?;
        let unnamed = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
        let listener = UnixListener::bind(unnamed)?;
        // The slot's directory keeps other users of the host out; the container has only the slot's uid.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        Ok(listener)
    };
    bind().map_err(|source| Error::io(format!("bind the socket {}", path.display()), source))
}

impl GuestSocket {
    /// Binds the socket in a slot's `run/`, replacing one that a crash left.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn bind(run_dir: &Path) -> Result<Self> {
        let listener = bind_container_socket(run_dir, SOCKET)?;
        let path = run_dir.join(SOCKET);
        Ok(Self { listener, path })
    }

    /// Waits until the expected guest has connected and answered. Other peers are rejected without a pause: otherwise
    /// commands could keep the kernel's queue full, and the guest could not connect. The caller sets the deadline.
    ///
    /// # Errors
    /// When the socket fails.
    pub async fn accept(self, expected: &ExpectedGuest) -> Result<GuestLink> {
        loop {
            let (stream, _) = self.listener.accept().await.map_err(|source| {
                Error::io(format!("accept on {}", self.path.display()), source)
            })?;
            match verify_peer(stream, expected).await {
                Ok(link) => return Ok(link),
                Err(why) => {
                    tracing::warn!(socket = %self.path.display(), why, "rejected a peer that is not the guest");
                }
            }
        }
    }
}

impl Drop for GuestSocket {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(socket = %self.path.display(), %error, "guest's socket was gone already");
        }
    }
}

/// Checks the identity of a peer and exchanges Hello. The error is the reason for the log.
async fn verify_peer(stream: UnixStream, expected: &ExpectedGuest) -> Result<GuestLink, String> {
    let peer = stream
        .peer_cred()
        .map_err(|error| format!("no peer credentials: {error}"))?;
    if let Some(uid) = expected.uid
        && peer.uid() != uid
    {
        return Err(format!("uid {} instead of {uid}", peer.uid()));
    }
    // A peer in a pid namespace that the daemon cannot see has no pid or 0; then uid and nonce decide.
    if let (Some(pid), Some(peer)) = (expected.pid, peer.pid())
        && peer != 0
        && peer != pid
    {
        return Err(format!("pid {peer} instead of {pid}"));
    }
    let (stream, socket) =
        duplicate_socket(stream).map_err(|error| format!("take the socket: {error}"))?;
    let (channel, lost) = connect_channel(stream, expected.command_group.clone()).await?;
    let mut client = GuestServiceClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let request = pb::HelloRequest {
        generation: GENERATION,
        daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let hello = tokio::time::timeout(HELLO_TIMEOUT, client.hello(request))
        .await
        .map_err(|_| "no hello in time".to_owned())?
        .map_err(|status| format!("hello: {status}"))?
        .into_inner();
    check_hello(&hello, &expected.nonce)?;
    Ok(GuestLink {
        client,
        lost,
        // The guest is not trusted to send a short text.
        version: hello.guest_version.chars().take(64).collect(),
        workspace: hello.workspace,
        socket: Arc::new(socket),
    })
}

/// Checks what a guest says of itself.
fn check_hello(hello: &pb::HelloResponse, nonce: &[u8]) -> Result<(), String> {
    // A nonce that could not be read from a slot's record proves nothing.
    if nonce.is_empty() || !equal_in_constant_time(&hello.nonce, nonce) {
        return Err("wrong nonce".to_owned());
    }
    if hello.generation != GENERATION {
        return Err(format!("generation {}", hello.generation));
    }
    Ok(())
}

/// Returns the stream and a second handle of its socket.
fn duplicate_socket(
    stream: UnixStream,
) -> io::Result<(UnixStream, std::os::unix::net::UnixStream)> {
    let std_stream = stream.into_std()?;
    let socket = std_stream.try_clone()?;
    Ok((UnixStream::from_std(std_stream)?, socket))
}

/// Creates a channel over one accepted connection, and a token that is cancelled when the connection is lost.
async fn connect_channel(
    stream: UnixStream,
    command_group: Option<Arc<fs::File>>,
) -> Result<(GuestChannel, CancellationToken), String> {
    let lost = CancellationToken::new();
    let stream = GuestTransport {
        socket: FrameSocket::new(stream).map_err(|error| format!("take the socket: {error}"))?,
        command_group,
        _guard: lost.clone().drop_guard(),
    };
    let channel = GuestChannel::connect(stream).await;
    Ok((channel.map_err(|error| format!("connect: {error}"))?, lost))
}

/// Compares secrets in constant time.
fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

/// Byte stream to a guest that passes a file descriptor with its first bytes. Dropping it cancels [`GuestLink::lost`].
#[derive(Debug)]
struct GuestTransport {
    socket: FrameSocket,
    /// File descriptor that is sent with the first bytes. For a guest that does not expect it, the kernel closes it.
    command_group: Option<Arc<fs::File>>,
    _guard: DropGuard,
}

impl AsyncRead for GuestTransport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for GuestTransport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Some(group) = self.command_group.take() else {
            return Pin::new(&mut self.socket).poll_write(cx, buf);
        };
        // A new socket has room for the first bytes, so there is no wait for it.
        let (socket, fds) = (self.socket.as_fd().as_raw_fd(), [group.as_raw_fd()]);
        let rights = [ControlMessage::ScmRights(&fds)];
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let sent = sendmsg::<()>(socket, &[io::IoSlice::new(buf)], &rights, flags, None);
        Poll::Ready(Ok(sent?))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;

//! The connection to one guest: the socket it connects to, the proof that it is the guest, the channel.
//!
//! The guest connects out to `run/guest.sock` of its slot. Who connects is checked three ways: the peer's uid is the
//! slot's, its pid is the container's first process (where the OCI runtime shows it), and it knows the nonce from the
//! container's environment, which commands can't read. Then the socket is unlinked. A guest that lost its connection
//! (the daemon was restarted) connects again to the fresh socket that the daemon binds in the same place.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use skilld_proto::guest::GENERATION;
use skilld_proto::guest::v1 as pb;
use skilld_proto::guest::v1::guest_service_client::GuestServiceClient;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint, Uri};

use crate::error::{Error, Result};

pub mod fields;

/// Name of the guest's binary in the slot's `run/`.
pub const BINARY: &str = "skilld-guest";
const SOCKET: &str = "guest.sock";
/// Per stream. Two of the largest messages' worth, so that a reader that stalls costs no more, and little is lost with a
/// connection: the guest keeps what it gave to a reader last, but no more than 3 MiB by default.
pub const STREAM_WINDOW: u32 = 512 << 10;
/// Of the connection: it covers every stream at once, so that stalled readers cannot starve the others.
const CONNECTION_WINDOW: u32 = 512 << 20;
/// A message of the largest usual size comes in one frame; HTTP/2's default would cut it into 16.
const FRAME_BYTES_MAX: u32 = (256 << 10) + 1024;
/// Largest message from a guest, bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// While calls are open a guest that has said nothing for this long is asked whether it is there. It shares one processor
/// with hundreds of commands if they want it so, hence the patience; an idle guest is left asleep.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(4);
/// How long its answer may take. The engine tells sooner of what it knows: ends, removals, pauses.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(6);
/// A guest answers its first call within this.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Typed stub of a guest. Cheap to clone.
pub type GuestClient = GuestServiceClient<Channel>;

/// Who is expected to connect.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(Default))]
pub struct Expected {
    /// The slot's uid; `None` where the host sees shifted ones.
    pub uid: Option<u32>,
    /// The container's first process; `None` where the OCI runtime hides it.
    pub pid: Option<i32>,
    /// From the container's environment.
    pub nonce: Vec<u8>,
    /// File of the commands' CPU group, which the guest is given; `None` where commands share the container's.
    pub command_group: Option<Arc<fs::File>>,
}

/// A socket that waits for a guest. Dropping it unlinks the socket.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

/// A connected guest.
#[derive(Debug, Clone)]
pub struct Link {
    /// Calls go here.
    pub client: GuestClient,
    /// Cancelled as soon as the connection is gone.
    pub lost: CancellationToken,
    /// Version that the guest said.
    pub version: String,
    /// Of the protocol, as both sides speak it.
    pub generation: u32,
    /// The workspace that the guest was configured as, or empty.
    pub workspace: String,
    /// The same connection, to end it under the channel.
    socket: Arc<std::os::unix::net::UnixStream>,
}

impl Link {
    /// Ends the connection: every call on it fails, and the guest will connect again.
    pub fn cut(&self) {
        if let Err(error) = self.socket.shutdown(std::net::Shutdown::Both) {
            tracing::debug!(%error, "guest's connection was gone already");
        }
    }
}

impl Socket {
    /// Binds the socket in a slot's `run/`. One that a crash left there is replaced.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn bind(run_dir: &Path) -> Result<Self> {
        let path = run_dir.join(SOCKET);
        let bind = || -> io::Result<UnixListener> {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            // The kernel shows a container the path by which the other end of its connection was bound. This one does
            // not tell where the slot's directory is, and is never too long for a socket.
            let directory = fs::File::open(run_dir)?;
            let unnamed = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
            let listener = UnixListener::bind(unnamed)?;
            // The slot's directory keeps everybody on the host out; in the container there is only the slot's uid.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
            Ok(listener)
        };
        let listener = bind().map_err(|source| Error::Io {
            operation: format!("bind the guest's socket {}", path.display()),
            source,
        })?;
        Ok(Self { listener, path })
    }

    /// Waits until the expected guest has connected and answered. Others are turned away, as fast as they come: with a
    /// pause the commands of a workspace could fill the kernel's queue for good, which refuses the guest then. The caller
    /// sets the deadline.
    ///
    /// # Errors
    /// When the socket fails.
    pub async fn accept(self, expected: &Expected) -> Result<Link> {
        loop {
            let (stream, _) = self.listener.accept().await.map_err(|source| Error::Io {
                operation: format!("accept on {}", self.path.display()),
                source,
            })?;
            match greet(stream, expected).await {
                Ok(link) => return Ok(link),
                Err(why) => {
                    tracing::warn!(socket = %self.path.display(), why, "turned away who is not the guest");
                }
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(socket = %self.path.display(), %error, "guest's socket was gone already");
        }
    }
}

/// Checks the peer and says hello.
async fn greet(stream: UnixStream, expected: &Expected) -> Result<Link, String> {
    let peer = stream
        .peer_cred()
        .map_err(|error| format!("no peer credentials: {error}"))?;
    if let Some(uid) = expected.uid
        && peer.uid() != uid
    {
        return Err(format!("uid {} instead of {uid}", peer.uid()));
    }
    // A peer of another pid namespace that the daemon cannot see has no pid or 0; then the nonce decides alone.
    if let (Some(pid), Some(peer)) = (expected.pid, peer.pid())
        && peer != 0
        && peer != pid
    {
        return Err(format!("pid {peer} instead of {pid}"));
    }
    let (stream, socket) = doubled(stream).map_err(|error| format!("take the socket: {error}"))?;
    let (channel, lost) = channel(stream, expected.command_group.clone())
        .await
        .map_err(|error| format!("connect: {error}"))?;
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
    if !same(&hello.nonce, &expected.nonce) {
        return Err("wrong nonce".to_owned());
    }
    if hello.generation == 0 || hello.generation > GENERATION {
        return Err(format!("generation {}", hello.generation));
    }
    Ok(Link {
        client,
        lost,
        version: hello.guest_version.chars().take(64).collect(),
        generation: hello.generation,
        workspace: hello.workspace,
        socket: Arc::new(socket),
    })
}

/// A second handle of the same socket.
fn doubled(stream: UnixStream) -> io::Result<(UnixStream, std::os::unix::net::UnixStream)> {
    let stream = stream.into_std()?;
    let socket = stream.try_clone()?;
    Ok((UnixStream::from_std(stream)?, socket))
}

/// A channel over one accepted connection, and a token that is cancelled when it is gone.
async fn channel(
    stream: UnixStream,
    command_group: Option<Arc<fs::File>>,
) -> Result<(Channel, CancellationToken), tonic::transport::Error> {
    let lost = CancellationToken::new();
    let watched = Watched {
        stream,
        command_group,
        _guard: lost.clone().drop_guard(),
    };
    // The channel asks for a connection again when this one breaks; there is no second one to give.
    let once = Arc::new(std::sync::Mutex::new(Some(watched)));
    let connect = tower::service_fn(move |_: Uri| {
        let taken = once.lock().ok().and_then(|mut slot| slot.take());
        std::future::ready(
            taken
                .map(TokioIo::new)
                .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)),
        )
    });
    let channel = Endpoint::from_static("http://guest")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES_MAX)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(false)
        .connect_with_connector(connect)
        .await?;
    Ok((channel, lost))
}

/// Compares in a time that does not tell how much was right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

/// A connection that tells when it is dropped.
#[derive(Debug)]
struct Watched {
    stream: UnixStream,
    /// Sent with the first bytes. A guest that does not expect it reads them without, and the kernel closes it.
    command_group: Option<Arc<fs::File>>,
    _guard: DropGuard,
}

impl Watched {
    /// Writes bytes together with the file of the commands' CPU group, which is sent once.
    fn poll_write_with_group(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let fds: Vec<i32> = self.command_group.iter().map(AsRawFd::as_raw_fd).collect();
        let send = || {
            let rights = [ControlMessage::ScmRights(&fds)];
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            Ok(sendmsg::<()>(
                self.stream.as_raw_fd(),
                bufs,
                &rights,
                flags,
                None,
            )?)
        };
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_io(Interest::WRITABLE, send) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    self.command_group = None;
                    return Poll::Ready(done);
                }
            }
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.command_group.is_none() {
            return Pin::new(&mut self.stream).poll_write(cx, buf);
        }
        self.poll_write_with_group(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.command_group.is_some() {
            return self.poll_write_with_group(cx, bufs);
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
impl Link {
    /// A link of tests, over any channel.
    pub(crate) fn of(client: GuestClient, lost: CancellationToken) -> Self {
        let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a socket");
        Self {
            client,
            lost,
            version: String::new(),
            generation: GENERATION,
            workspace: String::new(),
            socket: Arc::new(socket),
        }
    }
}

#[cfg(test)]
mod tests;

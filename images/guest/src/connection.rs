//! Connection to the daemon: the guest opens it, serves it, and opens it again when it breaks.

use std::convert::Infallible;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::{MsgFlags, recvmsg};
use skilld_common::frame_socket::FrameSocket;
use skilld_proto::guest::v1::guest_service_server::GuestServiceServer;
use tokio::io::Interest;
use tokio::net::UnixStream;

use self::reset_aware_body::ResetAwareBody;
use crate::guest::Guest;
use crate::service::GuestRpcService;
use crate::sys;

mod reset_aware_body;

/// Minimum and maximum wait between attempts to connect; it doubles with each.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_millis(200);

const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
const STREAM_WINDOW: u32 = 2 * 1024 * 1024;
/// Maximum number of unread bytes on the whole connection. It exceeds the sum of the streams' windows, so that a
/// stalled stream starves no other.
const CONNECTION_WINDOW: u32 = 256 * 1024 * 1024;
/// Maximum number of calls at once. The daemon makes no more, because HTTP/2 would queue them silently.
const STREAMS_MAX: u32 = 1024;
/// Maximum number of streams that the daemon resets before the guest accepts them, and of streams that the guest resets
/// over the life of a connection. Either ends the connection, and with it what all clients read. The daemon is no
/// attacker: a guest whose commands keep the processor busy reads many calls at once that clients have cancelled.
const RESETS_MAX: usize = 16 << 10;
/// Maximum bytes of one stream that wait for the daemon to read them. Together with the windows of daemon and client
/// they must stay below the 3 MiB that a BLOCKing exec keeps for a reader.
const SEND_BUFFER: usize = 256 * 1024;
/// Maximum size of an HTTP/2 frame, in bytes. The protocol's default would cut each slice of a file into 16.
const FRAME_BYTES: u32 = 256 * 1024;

/// Connects to the daemon and serves it, again and again.
pub(crate) async fn serve_forever(socket: &Path, guest: &Arc<Guest>) -> Infallible {
    loop {
        let stream = connect_to_daemon(socket).await;
        if let Some(group) = receive_command_group(&stream).await {
            guest.host.supervisors.set_command_group(group);
        }
        serve_connection(stream, Arc::clone(guest)).await;
        guest.host.connected.send_replace(false);
    }
}

/// Connects to the daemon's socket, however long that takes.
async fn connect_to_daemon(socket: &Path) -> UnixStream {
    let mut wait = RETRY_MIN;
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => return stream,
            // A restarted daemon binds the same path.
            Err(_) => tokio::time::sleep(wait).await,
        }
        wait = (wait * 2).min(RETRY_MAX);
    }
}

/// Waits for the daemon's first bytes and takes the descriptor of the commands' CPU group, which may come with them.
/// The bytes stay in the socket for the HTTP/2 server.
async fn receive_command_group(stream: &UnixStream) -> Option<OwnedFd> {
    stream.readable().await.ok()?;
    let receive = || {
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        let mut control = nix::cmsg_space!([i32; 1]);
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
        Ok(sys::adopt_fds(message.cmsgs()?).pop())
    };
    stream.try_io(Interest::READABLE, receive).ok().flatten()
}

/// Serves one connection until the daemon closes it or breaks the protocol.
async fn serve_connection(stream: UnixStream, guest: Arc<Guest>) {
    let service = GuestServiceServer::new(GuestRpcService::new(guest))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(RESETS_MAX)
        .max_frame_size(FRAME_BYTES)
        .max_send_buf_size(SEND_BUFFER);
    let service = TowerToHyperService::new(service);
    let service = service_fn(move |request| service.call(request.map(ResetAwareBody)));
    let Ok(socket) = FrameSocket::new(stream) else {
        return;
    };
    let connection = http.serve_connection(TokioIo::new(socket), service);
    // Execs go on and the guest connects again, however the connection ended.
    let _ended = connection.await;
}

//! The connection to the daemon: made by the guest, served by the guest, made again when it breaks.

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
use skilld_proto::guest::v1::guest_service_server::GuestServiceServer;
use tokio::io::Interest;
use tokio::net::UnixStream;

use self::request::RequestBody;
use crate::guest::Guest;
use crate::service::Service;
use crate::sys;

mod request;

/// Between attempts to connect.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_millis(200);

const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
const STREAM_WINDOW: u32 = 2 * 1024 * 1024;
/// Covers every stream's window that matters: one that stalls must not starve the others.
const CONNECTION_WINDOW: u32 = 256 * 1024 * 1024;
const STREAMS_MAX: u32 = 1024;
/// Of one stream, waiting for the daemon to read. With the windows of daemon and client it is what is under way to a
/// reader, and that has to be less than what a BLOCKing exec keeps for it: 3 MiB.
const SEND_BUFFER: usize = 256 * 1024;
const FRAME_BYTES: u32 = 256 * 1024;

/// Serves one connection after the other.
pub(crate) async fn serve_for_ever(socket: &Path, guest: &Arc<Guest>) -> Infallible {
    loop {
        let stream = connect(socket).await;
        if let Some(group) = receive_command_group(&stream).await {
            guest.supervisors.set_command_group(group);
        }
        serve(stream, Arc::clone(guest)).await;
        guest.connected.send_replace(false);
    }
}

async fn connect(socket: &Path) -> UnixStream {
    let mut wait = RETRY_MIN;
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => return stream,
            // A daemon that is not there now binds the same path when it is back.
            Err(_) => tokio::time::sleep(wait).await,
        }
        wait = (wait * 2).min(RETRY_MAX);
    }
}

/// Waits for the daemon's first bytes, and takes the file of the commands' CPU group that may come with them. The bytes
/// stay where they are, for the HTTP/2 server.
async fn receive_command_group(stream: &UnixStream) -> Option<OwnedFd> {
    stream.readable().await.ok()?;
    let receive = || {
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        let mut control = nix::cmsg_space!([i32; 1]);
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
        Ok(sys::adopt(message.cmsgs()?).pop())
    };
    stream.try_io(Interest::READABLE, receive).ok().flatten()
}

/// Until the daemon closes it, or breaks the protocol.
async fn serve(stream: UnixStream, guest: Arc<Guest>) {
    let service = GuestServiceServer::new(Service::new(guest))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_MAX)
        .max_frame_size(FRAME_BYTES)
        .max_send_buf_size(SEND_BUFFER);
    let service = TowerToHyperService::new(service);
    let service = service_fn(move |request| service.call(request.map(RequestBody)));
    let connection = http.serve_connection(TokioIo::new(stream), service);
    // How it ended makes no difference: execs go on, and the next connection is made.
    let _ended = connection.await;
}

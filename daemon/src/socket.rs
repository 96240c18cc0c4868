//! Byte stream over a Unix socket, compiled from the guest's source: both ends of a connection need the same.

#[path = "../../images/guest/src/connection/frame_socket.rs"]
mod frame_socket;

pub(crate) use frame_socket::FrameSocket;

//! Byte stream over a Unix socket that carries HTTP/2. It wakes both sides no more often than needed. The guest has one
//! end, the daemon the other ones: to guests and to clients.
//!
//! tokio's own stream waits for both directions at once. The kernel then reports each read by the peer as room for
//! writing, which wakes this side after every message for nothing. This stream waits for room only after a write that
//! found none. It also joins short writes until the flush: HTTP/2 writes the head of a frame, its data and the end of a
//! response one by one, and each write may wake the peer.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use nix::errno::Errno;
use nix::sys::socket::{Shutdown, shutdown};
use nix::sys::uio::writev;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// Maximum bytes that are held until the flush. Larger writes go out at once, together with what is held.
const HELD_MAX: usize = 2048;

/// Connected Unix stream that buffers writes until the flush.
#[derive(Debug)]
pub struct FrameSocket {
    /// Registered for reading only. Writes that find room use it too.
    reader: pipe::Receiver,
    /// Copy of the socket for waits, made in advance: later no descriptor may be free. `None` during a wait.
    spare: Option<OwnedFd>,
    /// The copy while it is registered for writing; `None` while the socket has room.
    writer: Option<pipe::Sender>,
    /// Bytes that wait for the flush.
    held: Vec<u8>,
}

impl FrameSocket {
    /// Takes over a connected stream.
    ///
    /// # Errors
    /// Fails without a free descriptor.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        let socket = OwnedFd::from(stream.into_std()?);
        // Both pipe types only read, write and register: a non-blocking socket serves as well.
        let spare = socket.try_clone()?;
        Ok(Self {
            reader: pipe::Receiver::from_owned_fd_unchecked(socket)?,
            spare: Some(spare),
            writer: None,
            held: Vec::with_capacity(HELD_MAX),
        })
    }

    /// Sends the held bytes and then `data`. Returns how many bytes of `data` were sent; some, unless it is empty.
    fn poll_send(&mut self, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            if self.held.is_empty() && data.is_empty() {
                return Poll::Ready(Ok(0));
            }
            let parts = [IoSlice::new(&self.held), IoSlice::new(data)];
            let sent = match &mut self.writer {
                Some(writer) => ready!(Pin::new(writer).poll_write_vectored(context, &parts)),
                None => match writev(&self.reader, &parts) {
                    Err(Errno::EAGAIN) => {
                        let spare = self.spare.take().ok_or(io::ErrorKind::NotConnected)?;
                        self.writer = Some(pipe::Sender::from_owned_fd_unchecked(spare)?);
                        continue;
                    }
                    sent => sent.map_err(io::Error::from),
                },
            };
            if let Some(writer) = self.writer.take() {
                self.spare = Some(writer.into_nonblocking_fd()?);
            }
            let sent = sent?;
            let of_held = sent.min(self.held.len());
            self.held.drain(..of_held);
            if sent > of_held {
                return Poll::Ready(Ok(sent - of_held));
            }
        }
    }
}

impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

impl AsyncRead for FrameSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

/// Not vectored: HTTP/2 copies more short data behind its head then, and larger data is sent with its head here.
impl AsyncWrite for FrameSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.held.len() + data.len() > HELD_MAX {
            return self.poll_send(context, data);
        }
        self.held.extend_from_slice(data);
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(context, &[]).map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(context))?;
        Poll::Ready(Ok(shutdown(self.reader.as_raw_fd(), Shutdown::Write)?))
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn pair() -> (FrameSocket, UnixStream) {
        let (near, far) = UnixStream::pair().expect("a pair");
        (FrameSocket::new(near).expect("descriptors"), far)
    }

    #[tokio::test]
    async fn short_writes_arrive_together_at_the_flush() {
        let (mut near, far) = pair();
        for part in ["head", "data", "end"] {
            near.write_all(part.as_bytes()).await.expect("held");
        }
        let mut read = [0; 64];
        let early = far.try_read(&mut read).expect_err("nothing was sent");
        assert_eq!(early.kind(), ErrorKind::WouldBlock);
        near.flush().await.expect("sent");
        far.readable().await.expect("readable");
        let length = far.try_read(&mut read).expect("arrived");
        assert_eq!(&read[..length], b"headdataend");
    }

    /// A process without free descriptors must not lose its connections.
    #[tokio::test]
    async fn waiting_for_room_needs_no_other_descriptor() {
        let (mut near, mut far) = pair();
        let spare = near.spare.as_ref().map(AsRawFd::as_raw_fd);
        let full = vec![7; 4 << 20];
        for _ in 0..2 {
            let mut rest = full.as_slice();
            let waiting = std::future::poll_fn(|context| {
                loop {
                    match Pin::new(&mut near).poll_write(context, rest) {
                        Poll::Ready(sent) => rest = rest.split_at(sent.expect("sent")).1,
                        Poll::Pending => return Poll::Ready(()),
                    }
                }
            });
            waiting.await;
            assert_eq!(near.writer.as_ref().map(AsRawFd::as_raw_fd), spare);
            let left = rest.len();
            let mut arrived = vec![0; full.len()];
            let sending = async {
                near.write_all(rest).await?;
                near.flush().await
            };
            let (sent, read) = tokio::join!(sending, far.read_exact(&mut arrived));
            sent.expect("sent");
            read.expect("arrived");
            assert!(left > 0 && arrived == full);
            assert_eq!(near.spare.as_ref().map(AsRawFd::as_raw_fd), spare);
        }
    }

    #[tokio::test]
    async fn bytes_keep_their_order_while_the_peer_reads_slowly() {
        let (mut near, mut far) = pair();
        let data: Vec<u8> = (0..4_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let sent = data.clone();
        let writing = async move {
            // Lengths around the limit of what is held.
            let lengths = [1, 9, HELD_MAX - 10, HELD_MAX, HELD_MAX + 1, 300_000];
            let mut rest = sent.as_slice();
            for length in lengths.into_iter().cycle() {
                let (part, left) = rest.split_at(length.min(rest.len()));
                near.write_all(part).await.expect("sent");
                rest = left;
                if rest.is_empty() {
                    break;
                }
            }
            near.shutdown().await.expect("flushed");
            near
        };
        let mut arrived = Vec::new();
        let (_near, read) = tokio::join!(writing, far.read_to_end(&mut arrived));
        read.expect("read");
        assert!(arrived == data, "{} bytes arrived", arrived.len());
    }
}

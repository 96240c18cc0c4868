//! Parses the detach keys of a terminal session and filters them out of the typed input.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::oneshot;

/// Characters beside the letters that form a control key, as in `ctrl-]`.
const CONTROL_KEYS: &str = "@[\\]^_";

/// Sequence of keys that detaches from a terminal session; empty if no keys detach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetachKeys(Vec<u8>);

impl DetachKeys {
    /// Parses a sequence of detach keys, such as `ctrl-p,ctrl-q`, `a,b,c` or `none`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        let keys: Option<Vec<u8>> = text.split(',').map(parse_key).collect();
        keys.map(Self)
            .ok_or_else(|| "write for instance ctrl-p,ctrl-q or ctrl-], or none".to_owned())
    }
}

fn parse_key(text: &str) -> Option<u8> {
    let one = |text: &str| match text.as_bytes() {
        [byte] if byte.is_ascii_graphic() => Some(*byte),
        _ => None,
    };
    match text.strip_prefix("ctrl-") {
        Some(control) => {
            let byte = one(control)?.to_ascii_uppercase();
            let known = byte.is_ascii_uppercase() || CONTROL_KEYS.as_bytes().contains(&byte);
            known.then_some(byte & 0x1f)
        }
        None => one(text),
    }
}

/// Reader of typed keys that stops at the detach keys. It holds back a possible beginning of them until the next key.
#[derive(Debug)]
pub(crate) struct DetachKeyReader<R> {
    source: R,
    detach: DetachKeys,
    /// Typed keys that may be the beginning of the detach keys.
    held: Vec<u8>,
    /// Typed keys to pass on; those before `handed` were passed on.
    typed: Vec<u8>,
    handed: usize,
    ended: bool,
    /// Notified when the detach keys are typed; `None` afterwards.
    detached: Option<oneshot::Sender<()>>,
}

impl<R> DetachKeyReader<R> {
    /// Creates the stream of keys. It ends with its source, or with the detach keys, which are reported to `detached`.
    pub(crate) fn new(source: R, detach: DetachKeys, detached: oneshot::Sender<()>) -> Self {
        Self {
            source,
            detach,
            held: Vec::new(),
            typed: Vec::new(),
            handed: 0,
            ended: false,
            detached: Some(detached),
        }
    }

    fn take(&mut self, keys: &[u8]) {
        for key in keys {
            self.held.push(*key);
            while !self.detach.0.starts_with(&self.held) {
                self.typed.push(self.held.remove(0));
            }
            if !self.held.is_empty() && self.held == self.detach.0 {
                self.ended = true;
                if let Some(detached) = self.detached.take() {
                    // The receiver is gone if the session is over.
                    let _ = detached.send(());
                }
                return;
            }
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for DetachKeyReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        loop {
            let this = &mut *self;
            let rest = this.typed.get(this.handed..).unwrap_or_default();
            if !rest.is_empty() || this.ended {
                let now = rest.len().min(buffer.remaining());
                buffer.put_slice(rest.get(..now).unwrap_or_default());
                this.handed += now;
                return Poll::Ready(Ok(()));
            }
            this.typed.clear();
            this.handed = 0;
            let mut space = [0; 4096];
            let mut read = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut this.source).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                this.ended = true;
                this.typed.append(&mut this.held);
            } else {
                this.take(read.filled());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[test]
    fn detach_keys_are_written_as_docker_has_them() {
        let keys = |text| DetachKeys::parse(text).map(|keys| keys.0);
        assert_eq!(keys("ctrl-p,ctrl-q"), Ok(vec![16, 17]));
        assert_eq!(keys("ctrl-],x,~"), Ok(vec![29, b'x', b'~']));
        assert_eq!(keys("ctrl-@,ctrl-A"), Ok(vec![0, 1]));
        assert_eq!(keys("none"), Ok(vec![]));
        for wrong in ["", "ctrl-", "ctrl-1", "ctrl-pq", "ab", "a,,b", "é"] {
            keys(wrong).expect_err(wrong);
        }
    }

    /// Returns the keys that are passed on, and `true` if the detach keys were typed.
    async fn typed(detach: &str, pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let source = KeyPieces(pieces.iter().rev().map(|piece| piece.to_vec()).collect());
        let (tell, mut told) = oneshot::channel();
        let keys = DetachKeys::parse(detach).expect("are keys");
        let mut keys = DetachKeyReader::new(source, keys, tell);
        let mut through = Vec::new();
        keys.read_to_end(&mut through).await.expect("reads");
        (through, told.try_recv().is_ok())
    }

    /// A source that gives one piece at a time.
    struct KeyPieces(Vec<Vec<u8>>);

    impl AsyncRead for KeyPieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            if let Some(piece) = self.0.pop() {
                buffer.put_slice(&piece);
            }
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn all_keys_but_those_that_leave_come_through() {
        let usual = "ctrl-p,ctrl-q";
        for (detach, pieces, through, left) in [
            (usual, vec![&b"ls\r"[..]], &b"ls\r"[..], false),
            (usual, vec![b"ls\r\x10\x11more"], b"ls\r", true),
            (usual, vec![b"a\x10", b"\x11b"], b"a", true),
            (usual, vec![b"\x10", b"x"], b"\x10x", false),
            (usual, vec![b"\x10\x10", b"\x11"], b"\x10", true),
            (usual, vec![b"\x11\x10"], b"\x11\x10", false),
            ("a,a,b", vec![b"aaab"], b"a", true),
            ("a,b,a,c", vec![b"ababac"], b"ab", true),
            ("none", vec![b"\x10\x11"], b"\x10\x11", false),
        ] {
            let got = typed(detach, &pieces).await;
            assert_eq!(got, (through.to_vec(), left), "{detach} {pieces:?}");
        }
    }
}
